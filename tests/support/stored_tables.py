"""A catalog that owns tables, kept as one object of a world of places.

Every call of it is a call of the store, so that a :class:`~tests.support.stores.FaultyStore` or a
simulation makes it fail, lose its answer, or end its caller. It answers as the real Unity Catalog
does: staging tables can't be listed or deleted, a table is created on one once, the latest version
is 0 until the first commit is ratified, that one may have any version, and a property has at most
255 characters. Dropping a table deletes no file.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

import msgspec

from lakeferry.catalogs import Catalog, CatalogAccess, CatalogTable, unity_limits
from lakeferry.catalogs.catalog import NO_ACCESS
from lakeferry.catalogs.managed_tables import (
    DOCUMENTED_PROPERTIES,
    ManagedTables,
    StagedTable,
    TableToCreate,
)
from lakeferry.engine import Engine
from lakeferry.engines.local_engine import LocalEngine
from lakeferry.errors import (
    CatalogUnavailable,
    InvalidInput,
    ObjectNotFound,
    StorageUnavailable,
    TableNotFound,
)
from lakeferry.log.actions import Metadata
from lakeferry.log.catalog_changes import CatalogChanges, changes_of
from lakeferry.log.features import TABLE_ID_PROPERTY
from lakeferry.log.latest_actions import LatestActions
from lakeferry.redirect.enable.preflight import Request
from lakeferry.redirect.entry import RedirectTarget, TargetKind
from lakeferry.redirect.redirect_context import Setting
from lakeferry.storage import Store, StoreConfig
from lakeferry.storage.aliases import AliasStore
from lakeferry.table.managed import CatalogHead, CommitCatalog, Proposal, Verdict
from tests.support.places import opener
from tests.support.redirects import OLD, WORLD, numbered
from tests.support.stored_catalog import RatifiedTable
from tests.support.stores import DictStore

NAME = "main.sales.orders"
OTHER_NAME = "main.sales.others"
STATE = ".catalog/tables.json"
LONGEST_PROPERTY = 255
METASTORE = "5b1f2f3e-0000-4000-8000-00000000000a"
MANAGED = f"{WORLD}/managed"

T = TypeVar("T")


@dataclass(frozen=True)
class KeptTable(RatifiedTable):
    """What the catalog knows of one staging table, and of the table on it."""

    principal: str | None
    name: str | None = None
    was_created: bool = False


Tables = dict[str, KeptTable]


class StoredTables(ManagedTables):
    """The managed tables of a world; ``user`` is who asks."""

    has_to_be_tried = False

    def __init__(self, world: Store, user: str | None = None) -> None:
        """Ask nothing yet."""
        self.world = world
        self.user = user

    def kept(self) -> Tables:
        """Return all tables by their ids."""
        return self.read()[1]

    def check(self, name: str) -> None:
        """Take any name."""

    def check_table(self, name: str, metadata: Metadata) -> None:
        """Refuse what the real server has no room for."""
        unity_limits.check(name, changes_of(LatestActions(metadata=metadata), None))

    def principal(self) -> str | None:
        """Return who asks."""
        return self.user

    def metastore_id(self) -> str | None:
        """Return the only one."""
        return METASTORE

    def stage(self, name: str) -> StagedTable:
        """Allocate a place below :data:`MANAGED`."""

        def allocate(tables: Tables) -> tuple[Tables, str]:
            table_id = f"{len(tables):08x}-0000-4000-8000-000000000000"
            return {**tables, table_id: KeptTable(self.user)}, table_id

        table_id = self.change(allocate)
        return StagedTable.documented(table_id, f"{MANAGED}/{table_id}")

    def place_access(self, table_id: str, location: str) -> CatalogAccess:
        """Return the plain place."""
        return CatalogAccess()

    def create(self, table: TableToCreate) -> None:
        """Create a table, unless it is there or was there."""
        properties = dict(table.description.properties)
        _check(properties)

        def create(tables: Tables) -> tuple[Tables, None]:
            kept = tables[table.table_id]
            if kept.name is not None:
                return tables, None
            if kept.was_created or any(each.name == table.name for each in tables.values()):
                raise InvalidInput(f"{table.table_id} was used before, or {table.name} is taken")
            made = replace(kept, name=table.name, was_created=True, properties=properties)
            return {**tables, table.table_id: made}, None

        self.change(create)

    def name_of(self, table_id: str, former: str) -> str | None:
        """Look it up."""
        kept = self.kept().get(table_id)
        return kept.name if kept is not None else None

    def is_free(self, name: str) -> bool:
        """Look it up."""
        return all(kept.name != name for kept in self.kept().values())

    def rename(self, table_id: str, name: str, new_name: str) -> bool:
        """Rename, unless the name is another table's."""

        def rename(tables: Tables) -> tuple[Tables, bool]:
            for other, kept in tables.items():
                if kept.name == new_name:
                    return tables, other == table_id
            if tables[table_id].name is None:
                raise TableNotFound(f"there is no {name}")
            return {**tables, table_id: replace(tables[table_id], name=new_name)}, True

        return self.change(rename)

    def drop(self, table_id: str, former: str) -> bool:
        """Drop the table; its staging table can't be used again."""

        def drop(tables: Tables) -> tuple[Tables, bool]:
            kept = tables[table_id]
            return {**tables, table_id: replace(kept, name=None)}, kept.name is not None

        return self.change(drop)

    def drop_named(self, table_id: str, name: str) -> bool:
        """Drop the table if it has that name."""

        def drop(tables: Tables) -> tuple[Tables, bool]:
            kept = tables[table_id]
            if kept.name != name:
                return tables, False
            return {**tables, table_id: replace(kept, name=None)}, True

        return self.change(drop)

    def commits(self, table_id: str, name: str) -> StoredTableCommits:
        """Return one table."""
        return StoredTableCommits(self, table_id, name)

    def change(self, change: Callable[[Tables], tuple[Tables, T]]) -> T:
        """Change the state by one swap; whoever loses the race looks again."""
        while True:
            before, tables = self.read()
            after, said = change(tables)
            if after == tables:
                return said
            try:
                if self.world.swap(STATE, before, msgspec.json.encode(after)):
                    return said
            except StorageUnavailable as down:
                if self._is_there(after):
                    return said
                raise CatalogUnavailable("the catalog doesn't answer", cause=str(down)) from down

    def _is_there(self, after: Tables) -> bool:
        """Ask what happened, as a client does whose answer was lost."""
        try:
            return self.read()[1] == after
        except CatalogUnavailable:
            return False

    def read(self) -> tuple[bytes | None, Tables]:
        """Return the state, as bytes and decoded."""
        try:
            body = self.world.get(STATE)
        except ObjectNotFound:
            return None, {}
        except StorageUnavailable as down:
            raise CatalogUnavailable("the catalog doesn't answer", cause=str(down)) from down
        return body, msgspec.json.decode(body, type=Tables)


class StoredTableCommits(CommitCatalog):
    """One table of :class:`StoredTables`."""

    def __init__(self, tables: StoredTables, table_id: str, name: str) -> None:
        """Ask nothing yet."""
        self._tables = tables
        self.table_id = table_id
        self.name = f"unity:{name}"

    def head(self) -> CatalogHead:
        """Return what the catalog says now."""
        return self._find(self._tables.kept()).head(self.table_id)

    def check(self, changes: CatalogChanges) -> None:
        """Refuse what the real server has no room for."""
        unity_limits.check(self.name, changes)

    def propose(self, proposal: Proposal) -> Verdict:
        """Ratify a commit, unless another one has its version."""
        _check(dict(proposal.changes.properties))

        def ratify(tables: Tables) -> tuple[Tables, Verdict]:
            kept = self._find(tables)
            after, verdict = kept.ratify(proposal)
            if after is not kept and proposal.changes.protocol is not None:
                _check_required(after.properties, self.table_id)
            return {**tables, self.table_id: after}, verdict

        return self._tables.change(ratify)

    def report_published(self, version: int) -> None:
        """Keep the number; a lower one than before changes nothing."""

        def report(tables: Tables) -> tuple[Tables, None]:
            kept = self._find(tables).with_published(version)
            return {**tables, self.table_id: kept}, None

        self._tables.change(report)

    def _find(self, tables: Tables) -> KeptTable:
        kept = tables.get(self.table_id)
        if kept is None or kept.name is None:
            raise TableNotFound(f"there is no {self.name} any more", name=self.name)
        return kept


class StoredUnity(Catalog):
    """The catalog of a world, which has managed tables alone."""

    kind = "unity"

    def __init__(self, tables: StoredTables) -> None:
        """Ask nothing yet."""
        self.tables = tables

    def managed_tables(self) -> StoredTables:
        """Return the tables."""
        return self.tables

    def find(self, name: str) -> CatalogTable | None:
        """Look it up."""
        return self._one(lambda _, kept: kept.name == name)

    def find_id(
        self, table_id: str, metastore_id: str | None = None, once: str | None = None
    ) -> CatalogTable | None:
        """Look it up."""
        return self._one(lambda each, kept: each == table_id and kept.name is not None)

    def access(self, table: CatalogTable) -> CatalogAccess:
        """Return the table's own catalog."""
        return CatalogAccess(commits=self.tables.commits(table.table_id, table.name))

    def register(self, name: str, location: str, metadata: Metadata | None = None) -> CatalogTable:
        """Refuse: nothing here is external."""
        raise AssertionError(f"{name} is registered at {location}")

    def move(self, name: str, location: str, was: str | None = None) -> CatalogTable:
        """Refuse: a managed table stays."""
        raise AssertionError(f"{name} is moved to {location}")

    def unregister(
        self, name: str, location: str | None = None, *, table_id: str | None = None
    ) -> bool:
        """Refuse: a managed table is dropped by its id."""
        raise AssertionError(f"{name} is unregistered")

    def _one(self, fits: Callable[[str, KeptTable], bool]) -> CatalogTable | None:
        for table_id, kept in self.tables.kept().items():
            if fits(table_id, kept):
                name = kept.name or ""
                return CatalogTable(name, f"{MANAGED}/{table_id}", table_id, METASTORE, True)
        return None


def managed_setting(
    whole: Store,
    *,
    clock: Callable[[], int] | None = None,
    new_id: Callable[[], str] | None = None,
    warn: Callable[[str], None] = lambda _: None,
    user: str | None = None,
) -> Setting:
    """Return the setting of procedures in a world with a catalog, as one process has it."""
    plain, granted = opener(whole), dict[str, CatalogAccess]()

    def opened(place: str | StoreConfig) -> Store:
        if isinstance(place, StoreConfig):
            store = plain(place)
            return store if place.aliases is None else AliasStore(store, dict(place.aliases))
        return granted.get(place, NO_ACCESS).over(plain(place), warn)

    engine = LocalEngine(open_store=opened, parallel=1)

    def choose(objects: int, size_bytes: int, urgent: bool = False) -> Engine:
        return engine

    if clock is None:
        assert isinstance(whole, DictStore)
        clock = whole.clock
    unity = StoredUnity(StoredTables(whole, user))
    return Setting(
        engine=choose,
        open_store=opened,
        catalog=lambda _: unity,
        grant=granted.__setitem__,
        clock=clock,
        new_id=new_id or numbered("id"),
        warn=warn,
    )


def managed_request(name: str = NAME, source: str = OLD) -> Request:
    """Return the request to move a table into the catalog."""
    target = RedirectTarget(TargetKind.UNITY, name=name)
    return Request(source, target, "", managed=True)


def _check_required(properties: dict[str, str], table_id: str) -> None:
    """Refuse as the real server does, which looks at them only if the protocol is sent."""
    required = {**DOCUMENTED_PROPERTIES, TABLE_ID_PROPERTY: table_id}
    wrong = [key for key, value in required.items() if properties.get(key) != value]
    if wrong:
        raise InvalidInput(f"MANAGED table required property {wrong[0]}")


def _check(properties: dict[str, str]) -> None:
    """Fail as the real server does: the whole request, with 500."""
    long = [key for key, value in properties.items() if len(value) > LONGEST_PROPERTY]
    if long:
        raise CatalogUnavailable(f"Value too long for column PROPERTY_VALUE: {long[0]}")
