"""Where tables are, and the storage options with which each place is opened.

A table is named by a path, a URI or a name in a catalog. Credentials that a catalog vends with
a place are used only for that place; the user's own options have precedence.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeAlias

from lakeferry.catalogs import open_catalog, split_name
from lakeferry.catalogs.catalog import Catalog, CatalogTable
from lakeferry.storage import Store, normalise, open_store
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
    ) -> None:
        """Keep the user's options; ``layered`` replaces ``options``."""
        given = options if callable(options) else dict(options or {})
        self._layered = layered or partial(_above, given)
        self._granted: dict[str, StorageOptions] = {}
        self.environment = environment
        self.catalog = catalog or partial(open_catalog, environment=environment)

    def locate(self, table: str) -> str:
        """Return the URI of a table; look up names in their catalog."""
        named = split_name(table)
        if named is None:
            return normalise(table)
        catalog = self.catalog(named[0])
        return self.of_entry(catalog, catalog.get(named[1]))

    def of_entry(self, catalog: Catalog, found: CatalogTable) -> str:
        """Return where a catalog's table is, and keep the options that it issues for it."""
        place = normalise(found.location)
        if granted := catalog.credentials(found):
            self.grant(place, granted)
        return place

    def grant(self, uri: str, options: StorageOptions) -> None:
        """Keep the options that a catalog has issued for a place."""
        self._granted[normalise(uri)] = options

    def granted(self, uri: str) -> StorageOptions:
        """Return the options that a catalog has issued for a place."""
        return self._granted.get(normalise(uri), {})

    def options(self, uri: str) -> StorageOptions:
        """Return the options with which to open a place."""
        return self._layered(uri, self.granted(uri))

    def open(self, uri: str) -> Store:
        """Return the store of a place."""
        return open_store(uri, self.options(uri))


def _above(given: PlaceOptions, uri: str, granted: StorageOptions) -> StorageOptions:
    """Return the user's options, completed by those of the catalog."""
    return override(granted, given(uri) if callable(given) else given)
