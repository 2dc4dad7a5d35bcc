"""The managed tables of a catalog, whose changes stay in memory: for dry runs."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field, replace

from lakeferry.catalogs.catalog import NO_ACCESS, CatalogAccess
from lakeferry.catalogs.managed_tables import ManagedTables, StagedTable, TableToCreate
from lakeferry.errors import TableNotFound
from lakeferry.log.actions import Metadata
from lakeferry.table.managed import CatalogHead, CommitCatalog, Proposal, Verdict

MADE_UP = "memory://chosen-by-the-catalog/"
"""How the place of a table begins that a dry run would have allocated."""


class OverlayManagedTables(ManagedTables):
    """Other managed tables with changes in memory.

    No place is allocated, since it couldn't be given back: the place is made up, and the table's
    requirements are the documented ones.
    """

    has_to_be_tried = False

    def __init__(self, below: ManagedTables) -> None:
        """Put an overlay over ``below``, which is only read."""
        self._below = below
        self._staged: set[str] = set()
        self._names: dict[str, str | None] = {}
        self._commits: dict[str, _OverlayCommits] = {}

    def check(self, name: str) -> None:
        """Refuse what the catalog below refuses."""
        self._below.check(name)

    def check_table(self, name: str, metadata: Metadata) -> None:
        """Refuse what the catalog below refuses."""
        self._below.check_table(name, metadata)

    def principal(self) -> str | None:
        """Return the user as whom we ask."""
        return self._below.principal()

    def metastore_id(self) -> str | None:
        """Return the id of the metastore."""
        return self._below.metastore_id()

    def stage(self, name: str) -> StagedTable:  # noqa: ARG002
        """Return a place that is made up."""
        table_id = str(uuid.uuid4())
        self._staged.add(table_id)
        return StagedTable.documented(table_id, f"{MADE_UP}{table_id}")

    def place_access(self, table_id: str, location: str) -> CatalogAccess:
        """Return how a place is opened; one that is made up needs nothing."""
        return (
            NO_ACCESS if table_id in self._staged else self._below.place_access(table_id, location)
        )

    def create(self, table: TableToCreate) -> None:
        """Remember the table."""
        if self.name_of(table.table_id, table.name) is None:
            self._names[table.table_id] = table.name
            head = CatalogHead(table.table_id, 0, (), dict(table.description.properties))
            commits = _OverlayCommits(f"unity:{table.name}", table.table_id, head)
            self._commits[table.table_id] = commits

    def name_of(self, table_id: str, former: str) -> str | None:
        """Return the name that the table would have."""
        if table_id in self._names:
            return self._names[table_id]
        return None if table_id in self._staged else self._below.name_of(table_id, former)

    def is_free(self, name: str) -> bool:
        """Return whether no table would have that name."""
        return name not in self._names.values() and self._below.is_free(name)

    def rename(self, table_id: str, name: str, new_name: str) -> bool:  # noqa: ARG002
        """Remember the new name."""
        if not self.is_free(new_name):
            return self._names.get(table_id) == new_name
        self._names[table_id] = new_name
        return True

    def drop(self, table_id: str, former: str) -> bool:
        """Remember that the table is dropped."""
        existed = self.name_of(table_id, former) is not None
        self._names[table_id] = None
        return existed

    def drop_named(self, table_id: str, name: str) -> bool:
        """Remember that the table is dropped, if that is its name."""
        return self.name_of(table_id, name) == name and self.drop(table_id, name)

    def commits(self, table_id: str, name: str) -> CommitCatalog:
        """Return the table as the catalog of its commits, which are kept in memory."""
        if table_id not in self._commits:
            below = None if table_id in self._staged else self._below.commits(table_id, name)
            self._commits[table_id] = _OverlayCommits(f"unity:{name}", table_id, None, below)
        return self._commits[table_id]


@dataclass
class _OverlayCommits(CommitCatalog):
    """The commits of one table; those that are proposed stay in memory."""

    name: str
    table_id: str
    known: CatalogHead | None = None
    below: CommitCatalog | None = field(default=None)

    def head(self) -> CatalogHead:
        """Return what the catalog would say."""
        if self.known is None:
            if self.below is None:
                raise TableNotFound(f"there is no table {self.name}", name=self.name)
            self.known = self.below.head()
        return self.known

    def propose(self, proposal: Proposal) -> Verdict:
        """Remember the commit, unless another one has its version."""
        head, commit = self.head(), proposal.commit
        if commit in head.unpublished:
            return Verdict.RATIFIED
        if commit.version <= head.latest_version:
            return Verdict.CONFLICT
        self.known = replace(
            head, latest_version=commit.version, unpublished=(*head.unpublished, commit)
        )
        return Verdict.RATIFIED

    def report_published(self, version: int) -> None:
        """Remember what is published."""
        head = self.head()
        left = tuple(commit for commit in head.unpublished if commit.version > version)
        self.known = replace(head, unpublished=left)
