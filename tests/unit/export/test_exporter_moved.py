"""Exports that go on after the table has moved to another place, or has come back."""

from __future__ import annotations

from contextlib import suppress

import pytest

from lakeferry.engines.local_engine import LocalEngine
from lakeferry.errors import CommitConflict, LakeferryError
from lakeferry.export import manifest
from lakeferry.export.exporter import Export, ExportContext, Exported
from lakeferry.log import paths
from lakeferry.storage import Store, StoreConfig
from lakeferry.storage.aliases import AliasStore
from lakeferry.table import DeltaLog
from tests.support.history import Append, Checkpoint, History, Layout
from tests.support.managed_history import BECOMES_MANAGED, managed_history
from tests.support.shares import Share
from tests.support.stores import DictStore, Fault, FaultyStore, Stopped, at
from tests.unit.export.memory_world import SOURCE, TARGET, live

OLD = "memory://lake/old"
TIMED = Layout(in_commit_timestamps=True)
BEFORE = History(TIMED).then(Append(2), Checkpoint(), Append(1))
AFTER = BEFORE.then(*BECOMES_MANAGED, Append(1))


class Moved:
    """A table at its old path, the managed table that it became, and the place of the export."""

    def __init__(self, target: DictStore | None = None, over: Store | None = None) -> None:
        self.old = BEFORE.store(OLD)
        self.table = managed_history(AFTER, SOURCE, unpublished=1)
        self.target = target or DictStore(uri=TARGET)
        self.over = over or self.target
        self.warned: list[str] = []

    def open(self, uri: str) -> Store:
        return {OLD: self.old, SOURCE: self.table.objects, TARGET: self.over}[uri]

    def _open_config(self, config: StoreConfig) -> Store:
        store = self.open(config.uri)
        return store if config.aliases is None else AliasStore(store, dict(config.aliases))

    def export(self, store: Store, *former: str) -> Exported:
        engine = LocalEngine(self._open_config, parallel=1)
        warn = self.warned.append
        work = ExportContext(lambda *_: engine, self.open, warn=warn, new_id=lambda: "run")
        return Export(work, store, to=TARGET, former=former).export()

    def export_old(self) -> Exported:
        """Export the table as long as it is at its old path."""
        return self.export(self.old)

    def export_by_old_path(self) -> Exported:
        """Export the table by its old path, whose redirect leads to the managed one."""
        return self.export(self.table.store(), OLD)

    def log(self) -> dict[str, bytes]:
        names = [name for name in self.target.objects if "/_lakeferry/" not in name]
        return {name: self.target.get(name) for name in names}


def test_an_export_by_the_old_path_follows_the_table_and_goes_on_there() -> None:
    there = Moved()
    there.export_old()
    assert {path.rpartition("/")[0] for path in live(there.target)} == {OLD}
    done = there.export_by_old_path()
    assert (done.version, done.incremental_from) == (AFTER.newest_version, None)
    assert {path.rpartition("/")[0] for path in live(there.target)} == {SOURCE}
    assert any(f"has moved to {SOURCE}" in each for each in there.warned)
    fresh = Moved()
    fresh.export_by_old_path()
    assert there.log() == fresh.log()

    # By its path or by its name, it is one table now.
    there.warned.clear()
    assert not there.export_by_old_path().changed
    there.table = managed_history(AFTER.then(Append(1)), SOURCE, unpublished=1)
    later = there.export(there.table.store())
    assert (later.incremental_from, later.files_written) == (done.version, 1)
    assert there.warned == []


@pytest.mark.parametrize("first", ["before the move", "after the move"])
def test_an_export_of_the_old_path_goes_on_after_the_way_back(first: str) -> None:
    there = Moved()
    if first == "before the move":
        there.export_old()
    there.export_by_old_path()
    # What the export has by now is more than what came back.
    there.old = BEFORE.then(Append(1)).store(OLD)
    done = there.export_old()
    assert done.version == BEFORE.newest_version + 1
    assert {path.rpartition("/")[0] for path in live(there.target)} == {OLD}
    assert not there.export_old().changed


def test_a_name_that_nobody_led_from_the_old_path_is_refused_with_a_way_on() -> None:
    there = Moved()
    there.export_old()
    before = there.target.objects
    with pytest.raises(CommitConflict) as refused:
        there.export(there.table.store())
    assert f"lakeferry export {OLD} --to {TARGET}" in (refused.value.remedy or "")
    assert there.target.objects == before


def test_another_table_at_the_old_path_does_not_take_the_export_over() -> None:
    there = Moved()
    there.export_by_old_path()
    before = there.log()
    objects = BEFORE.store(OLD).objects
    mine = DeltaLog(there.old).state().metadata.id.encode()
    kept = {name: data for name, data in objects.items() if "checkpoint" not in name}
    named = {name: data.replace(mine, b"another") for name, data in kept.items()}
    there.old = DictStore(named, uri=OLD)
    with pytest.raises(LakeferryError, match="isn't free"):
        there.export_old()
    assert there.log() == before


def test_what_is_kept_of_an_export_that_never_moved_has_the_same_bytes() -> None:
    there = Moved()
    there.export_old()
    assert b"former" not in there.target.get(manifest.NAME)
    there.export_by_old_path()
    found = manifest.read_manifest(there.target)
    assert found is not None
    assert (found.source, found.former) == (SOURCE, (OLD,))


def test_readers_see_one_place_or_the_other_wherever_it_is_broken_off(share: Share) -> None:
    def begun() -> DictStore:
        there = Moved()
        there.export_old()
        return there.target

    target = begun()
    counting = FaultyStore(target, lambda _: None)
    Moved(target, counting).export_by_old_path()
    whole = {name: data for name, data in target.objects.items() if "/_lakeferry/" not in name}
    for index in share.each(range(len(counting.history))):
        target = begun()
        with suppress(Stopped):
            Moved(target, FaultyStore(target, at(index, Fault.STOP_AFTER))).export_by_old_path()
        _check_one_place(target)
        again = Moved(target)
        again.export_by_old_path()
        assert again.log() == whole


def test_commits_of_an_export_that_was_broken_off_do_not_continue_the_next_one() -> None:
    """It was of the managed table, with more versions than have come back."""
    there = Moved()
    newest = paths.commit(AFTER.newest_version)
    store = FaultyStore(
        there.target, lambda call: Fault.STOP_AFTER if newest in call.paths else None
    )
    with suppress(Stopped):
        Moved(there.target, store).export_by_old_path()
    assert newest in there.target.objects
    begun = there.target.objects

    def go_on(over: Store, target: DictStore) -> None:
        back = Moved(target, over)
        back.old = BEFORE.then(Append(1)).store(OLD)
        back.export_old()

    counting = FaultyStore(there.target, lambda _: None)
    go_on(counting, there.target)
    for index in range(len(counting.history)):
        target = DictStore(begun, uri=TARGET)
        with suppress(Stopped):
            go_on(FaultyStore(target, at(index, Fault.STOP_AFTER)), target)
        _check_one_place(target)


def _check_one_place(target: DictStore) -> None:
    with suppress(LakeferryError):
        assert len({path.rpartition("/")[0] for path in live(target)}) == 1
