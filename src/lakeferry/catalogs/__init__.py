"""Catalogs: a name leads to a table's location. ``open_catalog`` opens one.

:class:`Catalog` is the port that redirects stand on; ``sql.py`` is our own
catalog in a database, ``unity.py`` speaks Unity Catalog's REST API, and
``names.py`` is what the command line and :class:`lakeferry.Table` ask of either.
A catalog is asked every time: what it said a moment ago may be wrong now. One
that doesn't answer raises :class:`~lakeferry.errors.CatalogUnavailable`, which
never means that a name isn't there.

Importing this package loads neither a database's driver nor a network client.
"""

from __future__ import annotations

from collections.abc import Mapping

from lakeferry.catalogs.catalog import (
    KINDS,
    VARIABLES,
    Catalog,
    CatalogKind,
    CatalogTable,
    GrantOptions,
    check_name,
    split_name,
    ungranted,
    unless_elsewhere,
)
from lakeferry.errors import InvalidInput

__all__ = [
    "KINDS",
    "VARIABLES",
    "Catalog",
    "CatalogKind",
    "CatalogTable",
    "GrantOptions",
    "check_name",
    "open_catalog",
    "split_name",
    "ungranted",
    "unless_elsewhere",
]


def open_catalog(kind: str, environment: Mapping[str, str] | None = None) -> Catalog:
    """Return the catalog of that kind, as the environment names it; nothing is asked yet."""
    if kind == "sql":
        from lakeferry.catalogs.sql import SqlCatalog

        return SqlCatalog.from_environment(environment)
    if kind == "unity":
        from lakeferry.catalogs.unity import UnityCatalog

        return UnityCatalog.from_environment(environment)
    raise InvalidInput(f"there is no catalog of kind {kind!r}", remedy="use sql or unity")
