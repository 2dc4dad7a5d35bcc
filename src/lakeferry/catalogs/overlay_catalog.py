"""A catalog whose changes stay in memory, for dry runs."""

from __future__ import annotations

from lakeferry.catalogs.catalog import (
    Catalog,
    CatalogAccess,
    CatalogTable,
    moved_meanwhile,
    unless_elsewhere,
)
from lakeferry.catalogs.managed_tables import ManagedTables
from lakeferry.catalogs.overlay_managed_tables import OverlayManagedTables
from lakeferry.log.actions import Metadata
from lakeferry.storage import normalise


class OverlayCatalog(Catalog):
    """Another catalog with changes in memory."""

    def __init__(self, below: Catalog) -> None:
        """Put an overlay over ``below``, which is only read."""
        self.kind = below.kind
        self._below = below
        self._changed: dict[str, CatalogTable | None] = {}
        self._managed: OverlayManagedTables | None = None

    @property
    def place(self) -> str:
        """Where the catalog is."""
        return self._below.place

    def find(self, name: str) -> CatalogTable | None:
        """Return the table that would have that name."""
        return self._changed[name] if name in self._changed else self._below.find(name)

    def find_to_open(self, name: str) -> CatalogTable | None:
        """Return the table that would have that name, about to be opened."""
        if name in self._changed:
            return self._changed[name]
        return self._below.find_to_open(name)

    def find_id(
        self, table_id: str, metastore_id: str | None = None, once: str | None = None
    ) -> CatalogTable | None:
        """Return the table that would have that id; a table registered here has no id."""
        return self._unless_changed(self._below.find_id(table_id, metastore_id, once))

    def locate_id(self, table_id: str, metastore_id: str | None = None) -> str | None:
        """Return the place of the table with that id."""
        if self._changed:
            return super().locate_id(table_id, metastore_id)
        return self._below.locate_id(table_id, metastore_id)

    def check_schema(self, name: str) -> None:
        """Refuse a schema that the catalog below refuses."""
        self._below.check_schema(name)

    def register(self, name: str, location: str, metadata: Metadata | None = None) -> CatalogTable:  # noqa: ARG002
        """Remember the name."""
        place = normalise(location)
        if (found := self.find(name)) is not None:
            return unless_elsewhere(self._below.kind, found, place)
        return self._keep(CatalogTable(name, place, ""))

    def move(self, name: str, location: str, was: str | None = None) -> CatalogTable:
        """Remember the new place of the name."""
        found = self.get(name)
        if was is not None and found.location not in (normalise(was), normalise(location)):
            raise moved_meanwhile(self._below.kind, found)
        moved = CatalogTable(name, normalise(location), found.table_id, found.metastore_id)
        return self._keep(moved)

    def unregister(
        self, name: str, location: str | None = None, *, table_id: str | None = None
    ) -> bool:
        """Remember the name as deleted; the name of a managed table stays."""
        renamed = self.find_id(table_id) if table_id is not None else None
        found = renamed or self.find(name)
        place = None if location is None else normalise(location)
        if found is None or found.managed or place not in (None, found.location):
            return False
        self._changed[found.name] = None
        return True

    def access(self, table: CatalogTable) -> CatalogAccess:
        """Return how the catalog below lets the table be opened."""
        return self._below.access(table)

    def place_access(self, location: str) -> CatalogAccess:
        """Return how the catalog below lets the place be opened."""
        return self._below.place_access(location)

    def managed_tables(self) -> ManagedTables | None:
        """Return the managed tables of the catalog below, with changes in memory."""
        if self._managed is None and (below := self._below.managed_tables()) is not None:
            self._managed = OverlayManagedTables(below)
        return self._managed

    def _keep(self, table: CatalogTable) -> CatalogTable:
        self._changed[table.name] = table
        return table

    def _unless_changed(self, found: CatalogTable | None) -> CatalogTable | None:
        """Return a table of the catalog below, unless its name was deleted or moved here."""
        if found is None or found.name not in self._changed:
            return found
        now = self._changed[found.name]
        return now if now is not None and now.table_id == found.table_id else None
