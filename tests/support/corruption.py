"""Random damage to a log, and the verdict on what Lakeferry makes of it.

One number is one case: :func:`damaged` takes a small table, damages one or two
files of its log, and :func:`verdict` reads it in every way. Each reading must
be an error with a code, or exactly what :mod:`tests.support.naive` makes of the
same bytes. Damage to what is no more than a helper (the hint, a checksum file)
must not stop anybody.

Parquet readers are native code, so cases run in a process of their own
(:func:`run`), which may die or hang without taking the tests with it::

    python -m tests.support.corruption FIRST COUNT

runs the cases and prints what failed; with ``COUNT`` of 1 it is the replay of
one failure.
"""

from __future__ import annotations

import json
import os
import random
import re
import resource
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

from lakeferry.errors import LakeferryError
from lakeferry.table import DeltaLog, load
from tests.support import naive
from tests.support.clock import DEFAULT_START_MS
from tests.support.history import (
    DOS,
    EVERY_ACTION,
    MINUTE_MS,
    RUST,
    Append,
    Change,
    Checkpoint,
    Checksum,
    Clean,
    Compact,
    Create,
    Delete,
    DeleteRows,
    Dialect,
    Domain,
    History,
    KeepTime,
    Kind,
    Layout,
    Step,
    Stream,
    dated,
)
from tests.support.invariants import metadata_row, protocol_row, reading_of
from tests.support.naive import Reading, Unreadable

Objects = dict[str, bytes]
ROOT = Path(__file__).parents[2]
HINT = "_delta_log/_last_checkpoint"
MEMORY_BYTES = 6 * 1024**3
"""All that a case may allocate: damage that asks for more must not get it."""
HANG_S = 60
_COMPACTED = re.compile(r"_delta_log/[0-9]{20}\.[0-9]{20}\.compacted\.json")


@cache
def tables() -> tuple[Objects, ...]:
    """Return the logs that get damaged: small, and together with everything a log can have."""
    old = Layout(partitioned=True, deletion_vectors="u", row_tracking=True)
    many = replace(old, v2_checkpoints=True)
    plain = Layout(v2_checkpoints=True)
    mapped = Layout(column_mapping="name", in_commit_timestamps=True, v2_checkpoints=True)
    life: tuple[Step, ...] = (Append(3), Delete(1), Stream("s", 1))
    after: tuple[Step, ...] = (DeleteRows(1), Domain("d", "{}"), Checksum(full=True))

    def log(layout: Layout, *steps: Step, dialect: Dialect | None = None) -> Objects:
        past = History(layout, (Create(), *steps), dialect or Dialect())
        return {name: data for name, data in past.objects().items() if "_delta_log/" in name}

    return (
        log(plain, *life, Checkpoint(), *after),
        log(plain, *life, Checkpoint(stats="both", unknown=True), *after, dialect=EVERY_ACTION),
        log(old, *life, Checkpoint(Kind.MULTI_PART, parts=3), *after),
        log(many, *life, Checkpoint(Kind.V2_JSON), *after, dialect=RUST),
        log(mapped, *life, Checkpoint(Kind.V2_PARQUET, stats="parsed"), *after),
        log(mapped, *life, Checkpoint(Kind.V2_CLASSIC, sidecars=1), *after, dialect=DOS),
        log(many, *life, Checkpoint(Kind.V2_PARQUET, sidecars=0, empty_structs=True), *after),
        log(plain, *life, Checkpoint(), Append(1), Checkpoint(row_group_rows=2), Append(2)),
        log(plain, *life, Checkpoint(), *after, Clean()),
        log(many, *life, Checkpoint(Kind.V2_JSON, sidecars=1), *after, Clean()),
        log(plain, *life, Compact(3), Change(), KeepTime(), Append(1), Compact(2), *after),
    )


# ------------------------------------------------------------------------ damage


@dataclass(frozen=True, slots=True)
class Damage:
    """A damaged log, and in words what was done to which files."""

    objects: Objects
    what: str
    touched: tuple[str, ...]

    @property
    def helpers_only(self) -> bool:
        """Whether nothing was touched that a version is made of."""
        return all(name == HINT or name.endswith(".crc") for name in self.touched)


def damaged(seed: int) -> Damage:
    """Return the case with this number."""
    chance = random.Random(seed)
    objects = dict(tables()[seed % len(tables())])
    said, touched = [], []
    for _ in range(chance.choice((1, 1, 1, 2))):
        name = _victim(chance, objects)
        act = chance.choice(_ACTS)
        touched.append(name)
        said.append(f"{act.__name__.strip('_')} {name}: {act(chance, objects, name, touched)}")
    return Damage(objects, "; ".join(said), tuple(touched))


def _victim(chance: random.Random, objects: Objects) -> str:
    """Choose a kind of file first, so that the many commits don't get all of it."""
    kinds: dict[str, list[str]] = {}
    for name in sorted(objects):
        kind = name.rpartition(".")[2] + ("checkpoint" if "checkpoint" in name else "")
        kinds.setdefault("sidecar" if "_sidecars" in name else kind, []).append(name)
    return chance.choice(kinds[chance.choice(sorted(kinds))])


Act = Callable[[random.Random, Objects, str, list[str]], str]


def _cut(chance: random.Random, objects: Objects, name: str, _: list[str]) -> str:
    end = chance.randrange(len(objects[name]) + 1)
    objects[name] = objects[name][:end]
    return f"to {end} bytes"


def _cut_lines(chance: random.Random, objects: Objects, name: str, _: list[str]) -> str:
    lines = objects[name].split(b"\n")
    kept = [line for line in lines if chance.random() < 0.7]
    chance.shuffle(kept)
    objects[name] = b"\n".join(kept)
    return f"{len(kept)} of {len(lines)} are left, in another order"


def _flip_bits(chance: random.Random, objects: Objects, name: str, _: list[str]) -> str:
    data = bytearray(objects[name])
    places = (
        [chance.randrange(len(data)) for _ in range(chance.choice((1, 1, 2, 8)))] if data else []
    )
    for place in places:
        data[place] ^= 1 << chance.randrange(8)
    objects[name] = bytes(data)
    return f"at {places}"


def _overwrite(chance: random.Random, objects: Objects, name: str, _: list[str]) -> str:
    data = bytearray(objects[name])
    start = chance.randrange(len(data) + 1)
    length = chance.choice((1, 4, 16, 200))
    filling = chance.choice((b"\0" * length, b"\xff" * length, chance.randbytes(length)))
    data[start : start + length] = filling
    objects[name] = bytes(data)
    return f"{length} bytes at {start}"


def _change_digits(chance: random.Random, objects: Objects, name: str, _: list[str]) -> str:
    data = bytearray(objects[name])
    digits = [place for place, byte in enumerate(data) if 48 <= byte < 58]
    chosen = chance.sample(digits, min(len(digits), 3))
    for place in chosen:
        data[place] = chance.choice(b"0123456789-.e")
    objects[name] = bytes(data)
    return f"at {chosen}"


def _empty(_: random.Random, objects: Objects, name: str, __: list[str]) -> str:
    objects[name] = b""
    return ""


def _lose(_: random.Random, objects: Objects, name: str, __: list[str]) -> str:
    del objects[name]
    return ""


def _rename(chance: random.Random, objects: Objects, name: str, touched: list[str]) -> str:
    other = chance.choice(sorted(objects))
    if chance.random() < 0.5:
        version = f"{chance.randrange(12):020d}"
        folder, slash, old = name.rpartition("/")
        other = f"{folder}{slash}{version}{old[20:]}" if old[:20].isdigit() else other
    objects[other] = objects.pop(name)
    touched.append(other)
    return f"to {other}"


def _swap(chance: random.Random, objects: Objects, name: str, touched: list[str]) -> str:
    other = chance.choice(sorted(objects))
    objects[name], objects[other] = objects[other], objects[name]
    touched.append(other)
    return f"with {other}"


_ACTS: tuple[Act, ...] = (
    *(_cut, _cut_lines, _flip_bits, _flip_bits, _flip_bits, _overwrite),
    *(_change_digits, _empty, _lose, _rename, _swap),
)


# ----------------------------------------------------------------------- verdict


def verdict(case: Damage, seed: int) -> str | None:
    """Return what is wrong with how Lakeferry reads a damaged log, or ``None``."""
    chance = random.Random(seed)
    moment = DEFAULT_START_MS + chance.randrange(8) * MINUTE_MS
    version = chance.choice((None, chance.randrange(8)))
    others: tuple[Callable[[], str | None], ...] = (
        lambda: _judge_small(case, version),
        lambda: _judge_state(case, version),
        lambda: _attempt(case, lambda log: log.history())[2],
        lambda: _attempt(case, lambda log: log.version_at(moment))[2],
    )
    another = chance.choice(others)
    # Small as these files are, half of the time they are read by ranges, like large ones.
    below = load._WHOLE_BELOW_BYTES if chance.random() < 0.5 else 0
    with mock.patch.object(load, "_WHOLE_BELOW_BYTES", below):
        problem = judge_snapshot(case, version) or another()
    return problem and f"version {version}: {problem}"


def _attempt(case: Damage, act: Callable[[DeltaLog], Any]) -> tuple[Any, list[str], str | None]:
    """Return what came of it, the warnings, and the problem if it went wrong in a wrong way."""
    warnings: list[str] = []
    try:
        found = act(DeltaLog(dated(case.objects), warn=warnings.append))
    except LakeferryError as refused:
        if refused.code == "error" or not str(refused):
            return refused, warnings, f"an error without a code: {refused!r}"
        return refused, warnings, None
    except Exception:  # noqa: BLE001 - any other exception is what we look for
        return None, warnings, f"not an error of ours:\n{traceback.format_exc()}"
    return found, warnings, None


def judge_snapshot(case: Damage, version: int | None) -> str | None:
    """Return what is wrong with how one version of a damaged log is read, or ``None``."""
    found, warnings, problem = _attempt(case, lambda log: reading_of(log.snapshot(version)))
    if problem:
        return f"snapshot: {problem}"
    choices = naive.bases(case.objects, version)
    if isinstance(found, LakeferryError):
        return _unless_helper(case, version, found)
    without = skipped(warnings)
    if len(set(without)) < len(without) or not set(without) <= set(case.touched):
        return f"snapshot: these were skipped: {without}"
    # Every other warning is one checkpoint that couldn't be read.
    others = len(warnings) - len(without)
    base = choices[others] if others < len(choices) else ()
    try:
        expected = naive.replay(case.objects, version, base=base, without=without)
    except Unreadable as broken:
        return f"snapshot: read what naive replay can't read from {base}: {broken}"
    return None if found == expected else f"snapshot: {_difference(found, expected)}"


def skipped(warnings: Sequence[str]) -> list[str]:
    """Return the compacted logs that couldn't be read, so that commits were read instead."""
    return [match[0] for warning in warnings if (match := _COMPACTED.search(warning))]


def _unless_helper(case: Damage, version: int | None, error: LakeferryError) -> str | None:
    if not case.helpers_only:
        return None
    try:
        naive.replay(case.objects, version)
    except Unreadable:
        return None
    return f"damage to a helper of the log stopped us: {error}"


def _judge_small(case: Damage, version: int | None) -> str | None:
    found, warnings, problem = _attempt(case, lambda log: reading_of(log.small_snapshot(version)))
    if problem or isinstance(found, LakeferryError):
        return problem and f"small snapshot: {problem}"
    readings = _small_readings(case.objects, version, naive.SMALL, skipped(warnings))
    if any(_small(found) == _small(reading) for reading in readings):
        return None
    return f"small snapshot: {_small(found)} is none of {[_small(r) for r in readings]}"


def _judge_state(case: Damage, version: int | None) -> str | None:
    found, warnings, problem = _attempt(case, lambda log: log.state(version))
    if problem or isinstance(found, LakeferryError):
        return problem and f"state: {problem}"
    rows = (protocol_row(found.protocol), metadata_row(found.metadata))
    readings = _small_readings(case.objects, version, ("protocol", "metaData"), skipped(warnings))
    if any(rows == (reading.protocol, reading.metadata) for reading in readings):
        return None
    if rows == naive.checksum(case.objects, found.version):
        return None
    return f"state: {rows} is none of {[(r.protocol, r.metadata) for r in readings]}"


def _small_readings(
    objects: Mapping[str, bytes],
    version: int | None,
    wanted: Sequence[str],
    without: Sequence[str],
) -> list[Reading]:
    readings = []
    choices = naive.bases(objects, version)
    # Whoever looks for protocol and metadata may stop at the part that has them.
    parts = [base[:count] for base in choices for count in range(1, len(base))]
    for base in [*choices, *parts]:
        try:
            readings.append(
                naive.replay(objects, version, base=base, without=without, wanted=wanted)
            )
        except Unreadable:
            continue
    return readings


def _small(reading: Reading) -> tuple[object, ...]:
    return (
        reading.version,
        reading.protocol,
        reading.metadata,
        reading.domains,
        reading.txns,
    )


def _difference(found: Reading, expected: Reading) -> str:
    parts = []
    for name in Reading.__dataclass_fields__:
        ours, theirs = getattr(found, name), getattr(expected, name)
        if ours != theirs:
            if isinstance(ours, list):
                ours, theirs = (
                    [row for row in ours if row not in theirs],
                    [row for row in theirs if row not in ours],
                )
            parts.append(f"{name} is {ours!r}, by naive replay {theirs!r}")
    return "\n".join(parts)


# --------------------------------------------------------------------- execution


def judge(seed: int) -> str | None:
    """Make one case and return what is wrong with how it is read, with how to replay it."""
    case = damaged(seed)
    problem = verdict(case, seed)
    return problem and f"{replay_command(seed)}\n{case.what}\n{problem}"


def replay_command(seed: int) -> str:
    """Return what to type to see one case again."""
    return f"python -m tests.support.corruption {seed} 1"


def run(first: int, count: int) -> list[str]:
    """Run cases in processes of their own and return what failed; a dead process is a failure."""
    failures: list[str] = []
    end = first + count
    while first < end:
        last, found, died = _run_process(first, end - first)
        failures += found
        if died is None:
            break
        failures.append(f"{replay_command(last)}\n{damaged(last).what}\n{died}")
        first = last + 1
    return failures


def _run_process(first: int, count: int) -> tuple[int, list[str], str | None]:
    """Return the last seed that was begun, what failed, and how the process died if it did."""
    command = [sys.executable, "-X", "faulthandler", "-m", "tests.support.corruption"]
    process = subprocess.Popen(
        [*command, "--report", str(first), str(count)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    last, failures, hung = first, [], threading.Event()

    def end_it() -> None:
        hung.set()
        process.kill()

    assert process.stdout is not None
    assert process.stderr is not None
    with process:
        watchdog = threading.Timer(HANG_S, end_it)
        watchdog.start()
        for line in process.stdout:
            seed, problem = json.loads(line)
            if problem is None:
                last = seed
                watchdog.cancel()
                watchdog = threading.Timer(HANG_S, end_it)
                watchdog.start()
            else:
                failures.append(problem)
        watchdog.cancel()
        said = process.stderr.read()
    if process.returncode == 0:
        return last, failures, None
    how = f"no end within {HANG_S} s" if hung.is_set() else f"exit code {process.returncode}"
    return last, failures, f"the process died: {how}\n{said[-3000:]}"


def main(arguments: list[str]) -> int:
    """Run cases in this process."""
    report = "--report" in arguments
    first, count = (int(word) for word in arguments if word.isdigit())
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    failed = False
    for seed in range(first, first + count):
        if report:
            print(json.dumps([seed, None]), flush=True)
        problem = judge(seed)
        if problem:
            failed = True
            print(json.dumps([seed, problem]) if report else problem, flush=True)
    return 0 if report else int(failed)


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    # Native libraries may abort while the interpreter ends, with threads of theirs still
    # running; that is no verdict on a case.
    os._exit(code)
