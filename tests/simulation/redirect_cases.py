"""Tables that move, run as often as a test likes, and what has to hold of what is left.

A world is a mapping from names to bytes: a procedure is run on a copy of it
(:func:`run`), or with one of its calls going wrong, in every way at every call
(:func:`leftovers`). Ids and times are the same in each run, so that two worlds
that should be equal are.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from unittest import mock

import pyarrow as pa

from lakeferry.errors import LakeferryError
from lakeferry.log import actions, file_actions
from lakeferry.log.commit import Transaction
from lakeferry.redirect import cancel, resuming
from lakeferry.redirect.disable import disabling
from lakeferry.redirect.enable import enabling
from lakeferry.redirect.enable.preflight import Request
from lakeferry.redirect.entry import Data, Mode
from lakeferry.redirect.no_redirect_rules import Rule
from lakeferry.redirect.outcome import Outcome
from lakeferry.redirect.redirect_context import Setting
from lakeferry.redirect.states import RedirectState
from lakeferry.table import DeltaLog
from tests.support import naive
from tests.support.clock import DEFAULT_START_MS, ManualClock
from tests.support.history import (
    Append,
    Change,
    Checkpoint,
    Clean,
    DeleteRows,
    Domain,
    History,
    Kind,
    Layout,
    Stream,
)
from tests.support.places import below
from tests.support.redirects import (
    NEW,
    OLD,
    REDIRECT_FEATURES,
    WORLD,
    Content,
    append,
    content,
    folder_of,
    numbered,
    protocol_features,
    redirect_at,
    request_for,
    setting_of,
    versions,
    world_with,
)
from tests.support.shares import Share
from tests.support.stores import CHANGES, DictStore, Fault, FaultyStore, Stopped, StoreCall, at
from tests.support.stores import Rule as FaultRule

Objects = Mapping[str, bytes]
Procedure = Callable[[Setting], Outcome]
MakeSetting = Callable[..., Setting]
"""``setting_of``, or a function that gives procedures more than it does."""
Past = dict[int, Content]
"""What a table held, by version."""
HOUR_MS = 3_600_000


@dataclass(frozen=True)
class Case:
    """A table, and how it is to move."""

    past: History
    mode: Mode = Mode.READER_WRITER
    data: Data = Data.COPY
    rules: tuple[Rule, ...] = ()

    @property
    def world(self) -> dict[str, bytes]:
        """The world before anything moves."""
        return world_with(self.past)

    @property
    def request(self) -> Request:
        """What is asked for."""
        return request_for(mode=self.mode, data=self.data, rules=self.rules)

    def enable(self, setting: Setting) -> Outcome:
        """Move the table."""
        return enabling.enable(setting, self.request)


VECTORS = Case(
    History(Layout(deletion_vectors="u", change_data=True)).then(
        Append(2), Checkpoint(), DeleteRows(1), Change()
    )
)
SIDECARS = Case(
    History(Layout(in_commit_timestamps=True, v2_checkpoints=True, deletion_vectors="u")).then(
        Append(2), DeleteRows(1), Checkpoint(Kind.V2_PARQUET), Append(1)
    ),
    Mode.WRITER_ONLY,
    Data.REFERENCE,
)
ABSOLUTE = Case(
    History(Layout(absolute_paths=True, domains=True, deletion_vectors="p")).then(
        Append(1), Domain(), Checkpoint(), DeleteRows(1), Stream()
    ),
    Mode.WRITER_ONLY,
)
CLEANED = Case(
    History(Layout(partitioned=True)).then(Append(2), Append(1), Checkpoint(), Stream(), Clean())
)
CASES = {
    "vectors and change files": VECTORS,
    "by reference, with sidecars and timestamps": SIDECARS,
    "absolute paths": ABSOLUTE,
    "a log that was cleaned up": CLEANED,
}


def resume(setting: Setting) -> Outcome:
    """Go on with whatever was begun."""
    return resuming.resume(setting, OLD)


def take_back(setting: Setting) -> Outcome:
    """Cancel whatever was begun."""
    return cancel.cancel(setting, OLD)


def withdraw(setting: Setting) -> Outcome:
    """End the redirect."""
    return disabling.disable(setting, OLD)


# ------------------------------------------------------------------------------ running


def run(
    objects: Objects, procedure: Procedure, lead: str, setting: MakeSetting = setting_of
) -> tuple[Outcome, dict[str, bytes]]:
    """Run a procedure to its end; return what it said, and the world after it."""
    store = DictStore(objects, uri=WORLD, clock=ManualClock(DEFAULT_START_MS + HOUR_MS))
    with mock.patch("uuid.uuid4", seeded(lead)):
        outcome = procedure(setting(store, new_id=numbered(lead)))
    return outcome, store.objects


def seeded(lead: str) -> Callable[[], uuid.UUID]:
    """Return a maker of UUIDs, the same ones in each run."""
    chance = random.Random(lead)
    return lambda: uuid.UUID(int=chance.getrandbits(128), version=4)


def run_with(
    objects: Objects, procedure: Procedure, rule: FaultRule, setting: MakeSetting = setting_of
) -> tuple[dict[str, bytes], list[StoreCall]]:
    """Run a procedure whose calls go wrong as a rule says; return what is left, and the calls."""
    store = DictStore(objects, uri=WORLD)
    faulty = FaultyStore(store, rule)
    try:
        with mock.patch("uuid.uuid4", seeded("first")):
            procedure(setting(faulty, clock=store.clock, new_id=numbered("first")))
    except (Stopped, LakeferryError):
        pass
    return store.objects, faulty.history


def leftovers(
    share: Share,
    objects: Objects,
    procedure: Procedure,
    *,
    thorough: bool = True,
    setting: MakeSetting = setting_of,
) -> Iterator[dict[str, bytes]]:
    """Let every call of a procedure go wrong in every way; yield each world that is left once.

    The run's share of those, that is: so many calls that go wrong, and ways to.

    Where a process dies at a call that only reads, it leaves what it left before
    that call; so calls that read only fail, and only where the test is ``thorough``.
    """
    _, clean = run_with(objects, procedure, lambda _: None, setting)
    seen: set[frozenset[tuple[str, bytes]]] = set()
    for index, fault in share.each(
        (call.index, fault) for call in clean for fault in _faults(call, thorough)
    ):
        left, _ = run_with(objects, procedure, at(index, fault), setting)
        key = frozenset(left.items())
        if key not in seen:
            seen.add(key)
            yield left


def _faults(call: StoreCall, thorough: bool) -> tuple[Fault, ...]:
    if call.verb not in CHANGES:
        return (Fault.FAIL,) if thorough else ()
    halves = (Fault.HALFWAY, Fault.STOP_HALFWAY) if len(call.paths) > 1 else ()
    if not thorough:
        return (Fault.STOP_BEFORE, Fault.STOP_AFTER, *halves[1:])
    return (Fault.FAIL, Fault.LOSE_ANSWER, Fault.STOP_BEFORE, Fault.STOP_AFTER, *halves)


def stages(case: Case) -> list[dict[str, bytes]]:
    """Return worlds in which a move is under way: just begun, locked, and about to be decided."""
    version = max(past_of(case.world)) + 1
    ends = (
        f"old/_delta_log/{version:020d}.json",
        f"new/_delta_log/{version:020d}.json",
        f"new/_delta_log/{version + 1:020d}.json",
    )
    found = []
    for name in ends:
        fault = Fault.STOP_BEFORE if name == ends[-1] else Fault.STOP_AFTER

        def rule(call: StoreCall, name: str = name, fault: Fault = fault) -> Fault | None:
            return fault if call.verb == "PUT_IF_ABSENT" and name in call.paths else None

        found.append(run_with(case.world, case.enable, rule)[0])
    return found


def moved(case: Case) -> dict[str, bytes]:
    """Return the world after a move, with commits of many kinds at the target since."""
    _, objects = run(case.world, case.enable, "moved")
    store = DictStore(objects, uri=WORLD, clock=ManualClock(DEFAULT_START_MS + 2 * HOUR_MS))
    log = setting_of(store).log(NEW)
    append(log, "x.parquet")
    delete_one(log)
    state = log.state()
    configuration = dict(state.metadata.configuration) | {"owner": "new"}
    metadata = actions.changed(state.metadata, configuration=configuration)
    log.commit(Transaction("SET TBLPROPERTIES", "txn-owner", metadata=metadata), state)
    append(log, "y.parquet")
    return store.objects


def delete_one(log: DeltaLog) -> None:
    """Remove the first file of a table."""
    first = log.snapshot().files.slice(0, 1).to_pylist()[0]
    kept = {key: first[key] for key in ("path", "deletionVector")}
    row = kept | {"deletionTimestamp": log.clock(), "dataChange": True}
    removes = pa.Table.from_pylist([row], schema=file_actions.REMOVE)
    log.commit(Transaction("DELETE", "txn-delete", removes=removes), log.state())


# -------------------------------------------------------------------------- what holds


def past_of(objects: Objects, place: str = OLD) -> Past:
    """Return every version that can be rebuilt."""
    found = {}
    for version in versions(objects, place):
        try:
            found[version] = content(objects, place, version)
        except naive.Unreadable:
            continue
    return found


def state_of(objects: Objects) -> RedirectState:
    """Return the state of the redirect at the source."""
    found = redirect_at(setting_of(DictStore(objects, uri=WORLD)))
    return RedirectState.NORMAL if found is None else found.state


def has_record(objects: Objects) -> bool:
    """Tell whether the source has the record of a move."""
    return "old/_delta_log/_lakeferry/move.json" in objects


def is_decided(objects: Objects, before: Past) -> bool:
    """Tell whether the target's version after the lock is there."""
    return f"new/_delta_log/{max(before) + 2:020d}.json" in objects


def check_rows(objects: Objects, place: str, before: Past) -> None:
    """Check that a place holds every version as it was, and nothing new since."""
    now = past_of(objects, place)
    newest = before[max(before)]
    for version, expected in before.items():
        assert now[version] == expected, version
    assert all(now[version] == newest for version in now if version > max(before))
    assert max(now) == max(versions(objects, place))


def check_ready(objects: Objects, before: Past) -> None:
    """Check that a table has moved: the same at both places, free to write at the new one."""
    check_rows(objects, OLD, before)
    check_rows(objects, NEW, before)
    assert versions(objects, OLD) == versions(objects, NEW)
    assert not protocol_features(objects, NEW) & REDIRECT_FEATURES
    assert protocol_features(objects, OLD) & REDIRECT_FEATURES
    assert not [name for name in below(objects, folder_of(NEW)) if "_lakeferry" in name]
    assert not has_record(objects)


def check_back(objects: Objects, before: Past) -> None:
    """Check that a table is where it was, and nothing is where it was to go."""
    check_rows(objects, OLD, before)
    assert not protocol_features(objects, OLD) & REDIRECT_FEATURES
    assert not has_record(objects)
    assert below(objects, folder_of(NEW)) == {}


def check_home(objects: Objects, before: Past) -> None:
    """Check that a table came home with all that happened at the target, number by number."""
    check_rows(objects, OLD, before)
    assert max(versions(objects, OLD)) == max(before) + 2
    assert not protocol_features(objects, OLD) & REDIRECT_FEATURES
    assert protocol_features(objects, NEW) & REDIRECT_FEATURES
    assert max(versions(objects, NEW)) == max(before) + 1


def check_idle(objects: Objects, procedure: Procedure) -> None:
    """Check that a procedure has nothing left to do, and does nothing."""
    outcome, after = run(objects, procedure, "again")
    assert not outcome.changed
    assert after == objects
