"""Exports of managed tables: what is exported is a table that needs no catalog."""

from __future__ import annotations

import json

import pytest

from lakeferry.engines.local_engine import LocalEngine
from lakeferry.errors import CorruptLog, UnsupportedFeature
from lakeferry.export.exporter import Export, ExportContext, Exported
from lakeferry.log import paths
from lakeferry.storage import Store, StoreConfig
from lakeferry.storage.aliases import AliasStore
from lakeferry.table import DeltaLog
from tests.support.history import Append, Checkpoint, DeleteRows, History, Kind
from tests.support.managed_history import (
    MANAGED_PAST,
    TRACES,
    ManagedHistory,
    managed_history,
)
from tests.support.stores import DictStore
from tests.unit.export.memory_world import SOURCE, TARGET


class Ends:
    """A managed table and the place of its export."""

    def __init__(self, table: ManagedHistory, target: DictStore | None = None) -> None:
        self.table = table
        self.target = target or DictStore(uri=TARGET)

    def open(self, uri: str) -> Store:
        return {SOURCE: self.table.objects, TARGET: self.target}[uri]

    def _open_config(self, config: StoreConfig) -> Store:
        store = self.open(config.uri)
        return store if config.aliases is None else AliasStore(store, dict(config.aliases))

    def export(self, store: Store | None = None) -> Exported:
        engine = LocalEngine(self._open_config, parallel=1)
        work = ExportContext(lambda *_: engine, self.open, new_id=lambda: "run")
        return Export(work, store or self.table.store(), to=TARGET).export()

    def log(self) -> dict[str, bytes]:
        names = [name for name in self.target.objects if "/_lakeferry/" not in name]
        return {name: self.target.get(name) for name in names}


def ends(history: History, unpublished: int) -> Ends:
    return Ends(managed_history(history, SOURCE, unpublished=unpublished))


@pytest.mark.parametrize("kind", [None, *Kind])
def test_what_is_exported_needs_no_catalog(kind: Kind | None) -> None:
    more = () if kind is None else (Checkpoint(kind),)
    there = ends(MANAGED_PAST.then(*more, DeleteRows(1), Append(1)), unpublished=2)
    done = there.export()

    seen = DeltaLog(there.table.store()).snapshot()
    made = DeltaLog(there.target).snapshot()
    assert (done.version, made.version) == (seen.version, seen.version)
    assert made.num_files == seen.num_files
    readers, writers = made.protocol.reader_features or (), made.protocol.writer_features or ()
    assert set(readers) == {"deletionVectors", "v2Checkpoint"}
    assert "inCommitTimestamp" in writers
    assert "catalogManaged" not in writers
    assert "io.unitycatalog.tableId" not in made.metadata.configuration
    assert made.metadata.configuration["owner"] == "ann"
    texts = [data for name, data in there.log().items() if name.endswith(".json")]
    assert not any(trace in text for text in texts for trace in TRACES)


def test_a_commit_that_is_published_meanwhile_is_not_exported_again() -> None:
    there = ends(MANAGED_PAST, unpublished=1)
    first = there.export()
    before = there.log()
    there.table.publish()
    there.table.objects.restore_time(paths.commit(first.version), 1)

    again = there.export()
    assert (again.changed, again.version) == (False, first.version)
    assert there.log() == before
    fresh = Ends(there.table)
    assert fresh.export().version == first.version
    assert fresh.log() == before


def test_a_later_version_is_added() -> None:
    whole = MANAGED_PAST.then(Append(1), Append(1))
    there = ends(MANAGED_PAST, unpublished=1)
    first = there.export()
    later = Ends(managed_history(whole, SOURCE, unpublished=1), there.target)
    done = later.export()
    assert (done.incremental_from, done.files_written) == (first.version, 2)
    fresh = Ends(later.table)
    fresh.export()
    assert later.log() == fresh.log()


def test_the_path_alone_is_refused() -> None:
    there = ends(MANAGED_PAST, unpublished=0)
    with pytest.raises(UnsupportedFeature) as refused:
        there.export(there.table.objects)
    assert refused.value.fields["features"] == ["catalogManaged"]
    with pytest.raises(CorruptLog):
        DeltaLog(there.target).snapshot()


def test_the_times_of_versions_stay() -> None:
    there = ends(MANAGED_PAST, unpublished=1)
    version = there.export().version
    info = json.loads(there.target.get(paths.commit(version)).splitlines()[0])["commitInfo"]
    seen = json.loads(there.table.store().get(paths.commit(version)).splitlines()[0])
    assert info["inCommitTimestamp"] == seen["commitInfo"]["inCommitTimestamp"]
