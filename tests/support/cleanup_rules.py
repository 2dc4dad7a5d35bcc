"""The rules of cleaning up a log, written a second time: by names alone, and slowly.

A :class:`Log` is what a store shows, and what only its files know: which sidecars
a checkpoint names, and which protocol each version has. :func:`violations` compares
a log with what is left of it, and says in sentences what must not have happened.
Nothing of :mod:`lakeferry` is used.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

_COMMIT = re.compile(r"_delta_log/(\d{20})\.json")
_CHECKSUM = re.compile(r"_delta_log/(\d{20})\.crc")
_COMPACTED = re.compile(r"_delta_log/(\d{20})\.(\d{20})\.compacted\.json")
_WHOLE = re.compile(r"_delta_log/(\d{20})\.checkpoint\.(?:[0-9a-f-]{36}\.)?(?:parquet|json)")
_PART = re.compile(r"_delta_log/(\d{20})\.checkpoint\.(\d{10})\.(\d{10})\.parquet")
_SIDECAR = re.compile(r"_delta_log/_sidecars/.+")
DAY_MS = 86_400_000


@dataclass(frozen=True)
class Log:
    """Names with the times they were written, and what only the files themselves know."""

    names: Mapping[str, int]
    sidecars: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Which sidecars each checkpoint file names."""
    unsupported: frozenset[int] = frozenset()
    """The versions whose protocol the cleaner doesn't support."""


def commits(names: Mapping[str, int]) -> set[int]:
    """Return the versions that have their commit."""
    return {int(found[1]) for name in names if (found := _COMMIT.fullmatch(name))}


def checkpoint_versions(names: Mapping[str, int]) -> set[int]:
    """Return the versions of which any file of a checkpoint is there."""
    found = (_WHOLE.fullmatch(name) or _PART.fullmatch(name) for name in names)
    return {int(each[1]) for each in found if each}


def complete_checkpoints(log: Log, names: Mapping[str, int]) -> set[int]:
    """Return the versions that can be read from a checkpoint: all parts, all sidecars."""
    found: set[int] = set()
    parts: dict[tuple[int, int], set[int]] = {}
    for name in names:
        if each := _PART.fullmatch(name):
            parts.setdefault((int(each[1]), int(each[3])), set()).add(int(each[2]))
        elif (each := _WHOLE.fullmatch(name)) and log.sidecars.get(name, frozenset()) <= set(names):
            found.add(int(each[1]))
    return found | {version for (version, of), got in parts.items() if len(got) == of}


def rebuildable(log: Log, names: Mapping[str, int]) -> set[int]:
    """Return every version that can be rebuilt from what is there."""
    there = commits(names)
    begins = complete_checkpoints(log, names)
    compacted = [
        (int(each[1]), int(each[2])) for name in names if (each := _COMPACTED.fullmatch(name))
    ]
    found: set[int] = set()
    newest = max(there | begins, default=-1)
    reached = {*begins, -1}
    for version in range(newest + 1):
        steps = [version - 1] if version in there else []
        steps += [first - 1 for first, last in compacted if last == version]
        if version in begins or any(step in reached for step in steps):
            reached.add(version)
            found.add(version)
    return found


def violations(
    before: Log,
    after: Mapping[str, int],
    end: Mapping[str, int],
    cut: int,
    boundary: int | None,
    now_ms: int,
) -> Iterator[str]:
    """Yield what is wrong with what is left at a moment; ``end`` is what is left in the end."""
    gone = set(before.names) - set(after)
    lost = {v for v in rebuildable(before, before.names) - rebuildable(before, after) if v >= cut}
    if lost:
        yield f"versions {sorted(lost)} have to stay and can't be rebuilt"
    left = commits(after)
    for name in gone:
        if (each := _WHOLE.fullmatch(name) or _PART.fullmatch(name)) and any(
            version <= int(each[1]) for version in left
        ):
            yield f"{name} went before the commits that it covers (d)"
        if _SIDECAR.fullmatch(name):
            if any(name in named for file, named in before.sidecars.items() if file in after):
                yield f"the sidecar {name} is still named"
            if before.names[name] >= now_ms - DAY_MS:
                yield f"the sidecar {name} is younger than a day"
    if boundary is not None:
        yield from _protected(before, gone, left, end, boundary)


def _protected(
    before: Log, gone: set[str], left: set[int], end: Mapping[str, int], boundary: int
) -> Iterator[str]:
    early = [
        name
        for name in gone
        if (each := _WHOLE.fullmatch(name) or _PART.fullmatch(name)) and int(each[1]) < boundary
    ]
    if early and any(version < boundary for version in left):
        yield f"{early} are protected, and history before {boundary} is still there (a)"
    cleaned = {int(each[1]) for name in gone if (each := _COMMIT.fullmatch(name))}
    wrong = cleaned & before.unsupported
    if wrong and any(version < boundary for version in commits(end)):
        yield f"versions {sorted(wrong)} went, which aren't supported, and not all history (c)"


def leftovers(log: Log, end: Mapping[str, int]) -> Iterator[str]:
    """Yield what a finished cleanup shouldn't have left behind."""
    oldest = min(rebuildable(log, end))
    for name in end:
        each = _CHECKSUM.fullmatch(name) or _COMMIT.fullmatch(name)
        if each and int(each[1]) < oldest:
            yield f"{name} stayed, and nothing is read from it"
        if (each := _COMPACTED.fullmatch(name)) and int(each[2]) < oldest:
            yield f"{name} stayed without its commits"
