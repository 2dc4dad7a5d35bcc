"""A store fails at any call of an export: what is reported, shown to readers, and mended."""

from __future__ import annotations

from functools import cache

import pytest

from lakeferry.errors import LakeferryError
from lakeferry.export.exporter import Exported
from lakeferry.storage import Store
from lakeferry.table import DeltaLog
from tests.support.history import Append, Checkpoint, Delete, History, Kind, SetProperties
from tests.support.shares import Share
from tests.support.stores import DictStore, Fault, FaultyStore, Stopped, StoreCall, at, on
from tests.unit.export.memory_world import LONG, PLAIN, SOURCE, TARGET, World, live

OTHER = PLAIN.then(Checkpoint(), Append(1), SetProperties((("a", "b"),)))
STORIES: dict[str, tuple[History | None, History]] = {
    "fresh": (None, LONG),
    "fresh without a checkpoint": (None, PLAIN),
    "two commits later": (LONG, LONG.then(Append(1), Delete(1))),
    "a checkpoint later": (LONG, LONG.then(Append(1), Checkpoint(), Append(1))),
    "parts later": (PLAIN, PLAIN.then(Checkpoint(Kind.MULTI_PART, parts=3), Append(1))),
    "back": (LONG.then(Append(1), Checkpoint(), Append(1)), LONG),
    "back behind all checkpoints": (LONG, PLAIN),
    "another history": (LONG, OTHER.then(Append(1))),
    "another history from its second commit on": (
        LONG,
        PLAIN.then(Checkpoint(), SetProperties((("a", "b"),)), Append(1)),
    ),
    "another and shorter history": (LONG.then(Append(1), Append(1)), OTHER),
    "another history without a checkpoint": (LONG, PLAIN.then(SetProperties((("a", "b"),)))),
}
CHANGES = {"PUT", "SWAP", "COPY", "DELETE"}


def faults(call: StoreCall) -> list[Fault]:
    """Return the ways a call can go wrong that differ."""
    found = [Fault.FAIL, Fault.STOP_BEFORE]
    if call.verb in CHANGES:
        found += [Fault.LOSE_ANSWER, Fault.STOP_AFTER]
    if len(call.paths) > 1 and call.verb == "DELETE":
        found += [Fault.HALFWAY, Fault.STOP_HALFWAY]
    return found


@cache
def source(history: History) -> DictStore:
    """Return a table that is only read."""
    return history.store(SOURCE)


@cache
def exported(*histories: History) -> dict[str, bytes]:
    """Return the place of an export after one version of a table after the other."""
    there = World(source(histories[0]))
    for history in histories:
        there.source = source(history)
        there.run()
    return there.target.objects


def is_new(name: str) -> bool:
    """Return whether a file doesn't wait for its name."""
    return "-run/" not in name


@cache
def wanted(history: History, version: int | None = None) -> list[str]:
    return [f"{SOURCE}/{path}" for path in live(source(history), version)]


def shown(store: Store) -> tuple[int, list[str]] | None:
    """Return the version that readers see, and its live files; ``None`` if there is none."""
    try:
        found = DeltaLog(store).snapshot()
    except LakeferryError:
        return None
    return found.version, sorted(found.files["path"].to_pylist())


def attempt(
    before: History | None, after: History, call: int, fault: Fault
) -> tuple[World, Exported | None, list[StoreCall]]:
    """Export a version, where a call fails."""
    target = DictStore(exported(before) if before else {}, uri=TARGET)
    there = World(source(after), target, FaultyStore(target, at(call, fault)))
    calls = there.faulty.history  # type: ignore[union-attr]
    try:
        return there, there.run(), calls
    except (LakeferryError, Stopped):
        return there, None, calls


@pytest.mark.parametrize("story", STORIES)
def test_whatever_call_fails_what_is_reported_is_true_and_the_next_export_mends_it(
    story: str, share: Share
) -> None:
    before, after = STORIES[story]
    *_, calls = attempt(before, after, -1, Fault.FAIL)
    assert len(calls) > 5
    mended: list[dict[str, bytes]] = []
    cases = [(call.index, fault) for call in calls for fault in faults(call)]
    for call, fault in share.each(cases):
        there, done, _ = attempt(before, after, call, fault)
        what = f"{fault.name} at {calls[call]}"
        _check_report(there, before, after, done, calls[call], fault)
        if there.target.objects not in mended:
            mended.append(there.target.objects)
            _check_mended(there, before, after, what)


def _check_mended(there: World, before: History | None, after: History, what: str) -> None:
    """Another export, of the same version or of a later one, does what is left."""
    there.faulty = None
    left = there.target.objects
    for history in (after, after.then(Append(1))):
        there.target = DictStore(left, uri=TARGET)
        there.source = source(history)
        there.warned.clear()
        there.run()
        assert not there.warned
        objects = there.target.objects
        found = {name: data for name, data in objects.items() if is_new(name)}
        assert found == exported(*(each for each in (before, after, history) if each)), what


def _check_report(
    there: World,
    before: History | None,
    after: History,
    done: Exported | None,
    call: StoreCall,
    fault: Fault,
) -> None:
    what = f"{fault.name} at {call}"
    seen = shown(there.target)
    is_there = seen == (after.newest_version, wanted(after))
    if done is not None:
        assert is_there, what
        assert there.warned or there.target.objects == exported(*filter(None, (before, after)))
    elif fault is Fault.FAIL:
        # What fails before the version can be read is an error; nothing that fails later is one.
        assert not is_there, what
    elif fault in (Fault.LOSE_ANSWER, Fault.HALFWAY) and is_there:
        # The deciding call itself may have been done.
        assert any(name.endswith((".json", ".parquet")) for name in call.paths), what
        assert call.verb in ("COPY", "DELETE"), what
    if seen is not None and not is_there:
        # Readers see versions of the one or the other table, and never a mixture.
        version, files = seen
        either = [each for each in (before, after) if each and version <= each.newest_version]
        assert files in [wanted(each, version) for each in either], what
    elif seen is None and before is not None:
        # Only a table that went back, or was replaced, may be unreadable for a while.
        assert before.newest_version > after.newest_version or _differs(before, after), what


def test_without_the_right_to_delete_later_versions_are_published_all_the_same() -> None:
    history = LONG
    there = World(source(history))
    there.run()
    there.faulty = FaultyStore(there.target, on("DELETE", Fault.FAIL, times=-1))
    for step in (Checkpoint(), Append(1), Checkpoint(), Append(1), Append(1)):
        history = history.then(Append(1), step)
        there.source = source(history)
        there.run()
        assert there.warned
        assert shown(there.target) == (history.newest_version, wanted(history))
    there.faulty = None
    there.warned.clear()
    there.run()
    assert not there.warned
    found = {name: data for name, data in there.target.objects.items() if is_new(name)}
    assert found == exported(LONG, history)


def _differs(before: History, after: History) -> bool:
    """Return whether one table isn't a later version of the other."""
    return any(
        source(after).objects.get(name) != data
        for name, data in source(before).objects.items()
        if name.startswith("_delta_log/0") and name.endswith(".json")
    )
