"""The port ``ManagedTables``: what a move needs of a catalog that owns tables.

A managed table is allocated first: its catalog chooses an id and a place (a staging table). Then
it is created there, with the history that the place already has. From its creation on it has a
name. All calls but :meth:`ManagedTables.stage` are idempotent: what happened is decided by the
table's id and never by a status.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field

from lakeferry.catalogs.catalog import CatalogAccess
from lakeferry.log.actions import Metadata
from lakeferry.log.catalog_changes import CatalogChanges
from lakeferry.log.features import TABLE_ID_PROPERTY
from lakeferry.table.managed import CommitCatalog

PRIVATE_LEAD = "_lakeferry_"
"""How the names begin under which tables exist while they move, and while they are dropped."""
DOCUMENTED_READER_FEATURES = (
    "catalogManaged",
    "v2Checkpoint",
    "vacuumProtocolCheck",
    "deletionVectors",
)
DOCUMENTED_WRITER_FEATURES = (*DOCUMENTED_READER_FEATURES, "inCommitTimestamp")
DOCUMENTED_PROPERTIES = {
    "delta.checkpointPolicy": "v2",
    "delta.enableDeletionVectors": "true",
    "delta.enableInCommitTimestamps": "true",
    "delta.checkpoint.writeStatsAsStruct": "true",
    "delta.checkpoint.writeStatsAsJson": "true",
}
"""What Unity Catalog's documentation requires of a managed table. A dry run uses these."""


@dataclass(frozen=True, slots=True)
class StagedTable:
    """A place that a catalog has allocated, and what the table there must be like."""

    table_id: str
    location: str
    reader_features: tuple[str, ...] = ()
    writer_features: tuple[str, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def documented(cls, table_id: str, location: str) -> StagedTable:
        """Return a place with the requirements that Unity Catalog documents."""
        return cls(
            table_id,
            location,
            DOCUMENTED_READER_FEATURES,
            DOCUMENTED_WRITER_FEATURES,
            {**DOCUMENTED_PROPERTIES, TABLE_ID_PROPERTY: table_id},
        )


@dataclass(frozen=True, slots=True)
class TableToCreate:
    """A table at an allocated place, as its catalog is told of it.

    ``description`` is the whole table, ``timestamp_ms`` the time of its newest version.
    """

    name: str
    table_id: str
    location: str
    description: CatalogChanges
    timestamp_ms: int


class ManagedTables(ABC):
    """The managed tables of a catalog. Names have three parts: ``catalog.schema.table``.

    Every method raises :class:`~lakeferry.errors.CatalogUnavailable` if the answer is missing,
    and :class:`~lakeferry.errors.Forbidden` if the catalog doesn't let us.
    """

    has_to_be_tried: bool = True
    """Whether it has to be found out by trying that the catalog takes a table with its history."""
    taken: frozenset[str] = frozenset()
    """Keys of the descriptions of tables that it was found to take."""

    @abstractmethod
    def check(self, name: str) -> None:
        """Refuse a name or a catalog that can't have a managed table."""

    @abstractmethod
    def check_table(self, name: str, metadata: Metadata) -> None:
        """Refuse a table that the catalog has no room for; ask nothing."""

    @abstractmethod
    def principal(self) -> str | None:
        """Return the user as whom we ask, or ``None`` if the catalog has no users."""

    @abstractmethod
    def metastore_id(self) -> str | None:
        """Return the id of the metastore, if the catalog has one."""

    @abstractmethod
    def stage(self, name: str) -> StagedTable:
        """Allocate an id and a place for a new table. Each call allocates another one."""

    @abstractmethod
    def place_access(self, table_id: str, location: str) -> CatalogAccess:
        """Return how an allocated place is opened, before and after its table is created.

        It has no ``commits``: the files there are written without asking the catalog.
        """

    @abstractmethod
    def create(self, table: TableToCreate) -> None:
        """Create the table of an allocated place; succeed if it was created there already."""

    @abstractmethod
    def name_of(self, table_id: str, former: str) -> str | None:
        """Return the present name of a table that was called ``former``, or ``None``."""

    @abstractmethod
    def is_free(self, name: str) -> bool:
        """Return whether no table has that name."""

    @abstractmethod
    def rename(self, table_id: str, name: str, new_name: str) -> bool:
        """Give the table with that id another name in its schema.

        Returns ``False`` if another table has the new name.
        """

    @abstractmethod
    def drop(self, table_id: str, former: str) -> bool:
        """Drop the table with that id, which was called ``former``; return whether it existed."""

    @abstractmethod
    def drop_named(self, table_id: str, name: str) -> bool:
        """Drop the table with that id unless it has another name; return whether it was dropped."""

    @abstractmethod
    def commits(self, table_id: str, name: str) -> CommitCatalog:
        """Return the table as the catalog of its own commits."""
