"""A store fails at any call of a cleanup: what stays, what is reported, and what goes later."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import pytest

from lakeferry.errors import LakeferryError
from lakeferry.log import cleanup, paths
from lakeferry.protection import cleaning
from lakeferry.protection.cleaning import Cleaned
from lakeferry.table import DeltaLog
from tests.support import naive
from tests.support.history import (
    Append,
    Checkpoint,
    Checksum,
    Compact,
    Delete,
    History,
    Kind,
    Layout,
    SetProperties,
    Upgrade,
    dated,
)
from tests.support.shares import Share
from tests.support.stores import DictStore, Fault, FaultyStore, Stopped, StoreCall, at

DAY_MS = 86_400_000
V2 = Layout(v2_checkpoints=True)


def rich(*protection: Any) -> History:
    """Return a history with every kind of log file, on both sides of the cut."""
    return History(V2).then(
        *(Append(2), Checksum(), Append(1), Compact(2), Checksum()),
        Checkpoint(Kind.V2_PARQUET, sidecars=2),
        *(Append(1), Delete(1), Checksum(), Append(1)),
        Checkpoint(Kind.MULTI_PART, parts=2),
        *protection,
        *(Append(1), Compact(3), Delete(1), Append(1), Checksum()),
        Checkpoint(Kind.V2_JSON, sidecars=2),
        *(Append(1), Checksum(), Delete(1), Compact(2)),
    )


def protected_before(boundary: int) -> tuple[Any, ...]:
    value = (("delta.requireCheckpointProtectionBeforeVersion", str(boundary)),)
    return Upgrade(writer=("checkpointProtection",)), SetProperties(value)


STORIES: dict[str, tuple[History, dict[str, Any]]] = {
    "by age": (rich(), {}),
    "before a version without a checkpoint": (rich(), {"before": 7}),
    "all protected history goes": (rich(*protected_before(6)), {}),
    "protected checkpoints stay": (rich(*protected_before(100)), {}),
    "a checkpoint within protected history": (rich(*protected_before(100)), {"before": 9}),
}


@dataclass
class CleanupRun:
    """One cleanup: the store, what was reported, and which calls were made."""

    store: DictStore
    calls: list[StoreCall]
    done: Cleaned | None = None
    failed: bool = False
    warned: list[str] = field(default_factory=list)


def aged(past: History) -> DictStore:
    """Return a table whose hint names its oldest checkpoint, a year later."""
    store = dated(past.objects())
    store.put(paths.LAST_CHECKPOINT, json.dumps({"version": 2, "size": 5}).encode())
    store.clock.advance(365 * DAY_MS)  # type: ignore[attr-defined]
    return store


@cache
def expected(past: History) -> dict[int, tuple[Any, ...]]:
    """Return the state of every version before the cleanup."""
    objects = aged(past).objects
    return {version: state(objects, version) for version in range(past.newest_version + 1)}


def state(objects: Mapping[str, bytes], version: int) -> tuple[Any, ...]:
    """Return a version's state; a checkpoint may leave out expired tombstones."""
    found = naive.replay(objects, version)
    files = [(each["path"], each["size"], each.get("deletionVector")) for each in found.files]
    return found.version, found.protocol, found.metadata, found.domains, found.txns, files


def cleaned(past: History, options: dict[str, Any], call: int, fault: Fault) -> CleanupRun:
    store = aged(past)
    faulty = FaultyStore(store, at(call, fault))
    run = CleanupRun(store, faulty.history)
    log = DeltaLog(faulty, clock=store.clock, warn=run.warned.append)
    try:
        run.done = cleaning.clean(log, **options, force=True)
    except LakeferryError:
        run.failed = True
    except Stopped:
        pass
    return run


def is_history(name: str) -> bool:
    """Return whether a file is a commit, or stands for one: these go first."""
    file = paths.parse(name)
    return file is not None and not file.kind.is_checkpoint


def files(objects: Mapping[str, bytes]) -> set[str]:
    """Return all names but the hint, which a new checkpoint may do without."""
    return objects.keys() - {paths.LAST_CHECKPOINT}


def faults(call: StoreCall) -> list[Fault]:
    """Return the ways a call can go wrong that differ."""
    found = [Fault.FAIL, Fault.STOP_BEFORE]
    if call.verb in ("PUT", "PUT_IF_ABSENT", "DELETE"):
        found += [Fault.LOSE_ANSWER, Fault.STOP_AFTER]
    if call.verb in ("DELETE", "LIST"):
        found += [Fault.HALFWAY, Fault.STOP_HALFWAY]
    return found


@pytest.mark.parametrize("wave_files", [1000, 3])
@pytest.mark.parametrize("story", STORIES)
def test_whatever_call_fails_what_stays_is_readable_and_the_next_cleanup_ends_it(
    story: str, wave_files: int, share: Share, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cleanup, "WAVE_FILES", wave_files)
    past, options = STORIES[story]
    whole = cleaned(past, options, -1, Fault.FAIL)
    assert whole.done is not None
    assert whole.done.deleted
    left = whole.store.objects
    first = DeltaLog(whole.store).listing().earliest_version()
    assert first is not None
    assert 0 < first < past.newest_version
    gone = {name for name in whole.done.deleted if is_history(name)}
    known: list[dict[str, bytes]] = []
    cases = [(call.index, fault) for call in whole.calls for fault in faults(call)]
    for call, fault in share.each(cases):
        run = cleaned(past, options, call, fault)
        what = f"{fault.name} at {whole.calls[call]}"
        objects = run.store.objects
        if run.done is not None:
            assert gone.isdisjoint(objects), what
            assert run.warned or files(objects) == files(left), what
            assert set(run.done.deleted).isdisjoint(objects), what
        elif run.failed and fault is Fault.FAIL:
            # Once the log begins at its new base, nothing that fails is an error.
            assert not gone.isdisjoint(objects), what
        if objects not in known:
            known.append(objects)
            _check_readable(run.store, past, first, what)
            again = DeltaLog(run.store, clock=run.store.clock)
            cleaning.clean(again, **options, force=True)
            assert files(run.store.objects) == files(left), what
            _check_readable(run.store, past, first, what)


def _check_readable(store: DictStore, past: History, first: int, what: str) -> None:
    """Check that no version reads as another one, and that all from ``first`` on can be read."""
    objects = store.objects
    for version, wanted in expected(past).items():
        try:
            found = state(objects, version)
        except naive.Unreadable:
            assert version < first, what
            continue
        assert found == wanted, what
    # Our own reader uses checksum files, compacted logs and the hint.
    for version in (first, past.newest_version):
        ours = DeltaLog(store).snapshot(version).files["path"].to_pylist()
        assert sorted(ours) == [each[0] for each in expected(past)[version][-1]], what


def test_protocols_that_only_checksum_files_state_are_known_without_the_first_commit() -> None:
    """An interrupted cleanup may have deleted the commit that the protocol was in."""
    past = History().then(*(Append(1), Append(1), Checksum(), Append(1), Checkpoint()))
    store = aged(past.then(*protected_before(100), Append(1), Checkpoint(), Append(1)))
    store.delete_many([paths.commit(0)])
    cleaning.clean(DeltaLog(store, clock=store.clock))
    assert paths.commit(1) not in store.objects
