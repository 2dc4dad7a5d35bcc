"""Tables whose catalog decides about their commits, through the public methods."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from lakeferry.api.table import Table, resolve
from lakeferry.catalogs import CatalogAccess, CatalogTable
from lakeferry.catalogs.places import Places
from lakeferry.catalogs.sql import SqlCatalog
from lakeferry.errors import CatalogManaged, InvalidInput, UnsupportedFeature
from lakeferry.log import paths
from lakeferry.storage import Store, open_store
from lakeferry.table.managed import CommitCatalog, ManagedStore
from tests.support.history import Append, Checkpoint, History, Layout, Upgrade
from tests.support.stored_catalog import STATE, StoredCatalog

MANAGED = ("catalogManaged", "vacuumProtocolCheck")
PAST = History(Layout(in_commit_timestamps=True)).then(
    Append(2), Append(1), Checkpoint(), Upgrade(reader=MANAGED, writer=MANAGED), Append(3)
)
NEWEST = 4
NAME = "main.sales.orders"


class Deciding(SqlCatalog):
    """Our own catalog of names, whose tables are managed by a catalog beside their logs."""

    def find(self, name: str) -> CatalogTable | None:
        found = super().find(name)
        return None if found is None else replace(found, managed=True)

    def access(self, table: CatalogTable) -> CatalogAccess:
        return CatalogAccess(commits=self.commits(table.location))

    @staticmethod
    def commits(place: str) -> CommitCatalog:
        return StoredCatalog(open_store(place))


@pytest.fixture
def place(tmp_path: Path) -> Store:
    """A managed table whose newest commit is ratified and not published."""
    store = open_store(str(tmp_path / "orders"))
    for name, data in PAST.objects().items():
        store.put(name, data)
    newest = NEWEST
    body = store.get(paths.commit(newest))
    store.delete_many([paths.commit(newest)])
    catalog = StoredCatalog(store)
    catalog.create()
    managed = ManagedStore(store, catalog, onboarding=newest - 1)
    assert managed.put_if_absent(paths.commit(newest), body)
    # As after a crash right before publication.
    store.delete_many([paths.commit(newest)])
    kept = catalog.kept()
    store.put(STATE, msgspec.json.encode(replace(kept, published=newest - 1)))
    return store


@pytest.fixture
def table(place: Store, tmp_path: Path) -> Table:
    """The table by its name."""
    catalog = Deciding(f"sqlite:///{tmp_path}/names.db")
    catalog.register(NAME, place.uri)
    return Table(f"sql:{NAME}", Places(catalog=lambda _: catalog))


def test_a_ratified_commit_is_part_of_the_table(table: Table) -> None:
    assert table.snapshot().version == NEWEST
    assert table.history(1)[0].version == NEWEST
    assert table.files().read_all().num_rows == 6
    assert table.inspect().version == NEWEST


def test_older_versions_are_read_as_well(table: Table) -> None:
    assert table.files(1).read_all().num_rows == 2


def test_by_its_path_the_table_is_refused(place: Store) -> None:
    with pytest.raises(UnsupportedFeature):
        Table(place.uri).snapshot()
    with pytest.raises(CatalogManaged):
        resolve(place.uri)


def test_its_log_is_not_cleaned_up(table: Table) -> None:
    with pytest.raises(CatalogManaged, match="can't be cleaned up"):
        table.cleanup(retention="0h", force=True)


def test_a_checkpoint_publishes_first(table: Table, place: Store) -> None:
    written = table.checkpoint()
    assert written.version == NEWEST
    assert place.exists(paths.commit(NEWEST))


def test_publishing_does_what_a_writer_has_left(table: Table, place: Store) -> None:
    first, again = table.publish(), table.publish()

    assert first.published == (NEWEST,)
    assert (again.published, again.latest_version) == ((), NEWEST)
    assert place.exists(paths.commit(NEWEST))


def test_a_table_without_such_a_catalog_has_nothing_to_publish(place: Store) -> None:
    with pytest.raises(InvalidInput, match="nothing to publish"):
        Table(place.uri).publish()
