"""Where tables are, and the storage options with which each place is opened.

A table is named by a path, a URI or a name in a catalog. Credentials that a catalog vends with
a place are used only for that place; the user's own options have precedence. The place of a
managed table is opened with the catalog, which decides about its commits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeAlias

from lakeferry.catalogs import open_catalog, split_name
from lakeferry.catalogs.catalog import NO_ACCESS, Catalog, CatalogAccess, CatalogTable
from lakeferry.storage import Store, StoreConfig, normalise, open_config
from lakeferry.storage.option_spellings import StorageOptions, override

PlaceOptions: TypeAlias = StorageOptions | Callable[[str], StorageOptions]
"""Storage options for every place, or a function from a place to its options."""
LayeredOptions: TypeAlias = Callable[[str, StorageOptions], StorageOptions]
"""Returns a place's options; it decides which of them have precedence over the catalog's."""


class Places:
    """Finds tables and opens their stores. ``catalog`` opens a catalog of a kind."""

    def __init__(
        self,
        options: PlaceOptions | None = None,
        *,
        environment: Mapping[str, str] | None = None,
        catalog: Callable[[str], Catalog] | None = None,
        layered: LayeredOptions | None = None,
        warn: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Keep the user's options; ``layered`` replaces ``options``."""
        self._warn = warn
        given = options if callable(options) else dict(options or {})
        self._layered = layered or partial(_above, given)
        self._granted: dict[str, CatalogAccess] = {}
        self.environment = environment
        self.catalog = catalog or partial(open_catalog, environment=environment)

    def locate(self, table: str) -> str:
        """Return the URI of a table; look up names in their catalog."""
        named = split_name(table)
        if named is None:
            return normalise(table)
        catalog = self.catalog(named[0])
        return self.of_entry(catalog, catalog.get_to_open(named[1]))

    def of_entry(self, catalog: Catalog, found: CatalogTable) -> str:
        """Return where a catalog's table is, and keep how the catalog lets it be opened."""
        place = normalise(found.location)
        self.grant(place, catalog.access(found))
        return place

    def grant(self, uri: str, access: CatalogAccess) -> None:
        """Keep how a catalog lets a place be opened; the user's own credentials come first."""
        place = normalise(uri)
        if access.is_fallback and (place in self._granted or self._has_own(place)):
            return
        self._granted[place] = access

    def _has_own(self, place: str) -> bool:
        from lakeferry.storage.cloud_clients import has_credentials

        return has_credentials(StoreConfig(place, dict(self._layered(place, {}))))

    def granted(self, uri: str) -> CatalogAccess:
        """Return how a catalog lets a place be opened."""
        return self._granted.get(normalise(uri), NO_ACCESS)

    def options(self, uri: str) -> StorageOptions:
        """Return the options with which to open a place."""
        return self._layered(uri, self.granted(uri).options)

    def open(self, uri: str) -> Store:
        """Return the store of a place. Credentials that can be renewed aren't options of it."""
        access = self.granted(uri)
        options = self.options(uri) if access.renewal is None else self._layered(uri, {})
        config = StoreConfig(normalise(uri), dict(options), renewal=access.renewal)
        return access.over(open_config(config), self._warn)


def _above(given: PlaceOptions, uri: str, granted: StorageOptions) -> StorageOptions:
    """Return the user's options, completed by those of the catalog."""
    return override(granted, given(uri) if callable(given) else given)
