"""Catalogs: a name leads to a table's location. ``open_catalog`` opens one.

:class:`Catalog` is the interface that redirects use; ``sql.py`` is our own
catalog in a database, ``unity.py`` is a client of Unity Catalog's REST API, and
``names.py`` serves the command line and :class:`lakeferry.Table` with both.
Answers of a catalog aren't cached, as they may be outdated at once. A catalog that
doesn't answer raises :class:`~lakeferry.errors.CatalogUnavailable`, which
never means that a name is missing.

Importing this package loads neither a database's driver nor a network client.
"""

from __future__ import annotations

from collections.abc import Mapping

from lakeferry.catalogs.catalog import (
    KINDS,
    NO_ACCESS,
    VARIABLES,
    Catalog,
    CatalogAccess,
    CatalogKind,
    CatalogTable,
    EditableCatalog,
    GrantAccess,
    check_table_name,
    split_name,
    ungranted,
    unless_elsewhere,
)
from lakeferry.errors import InvalidInput

__all__ = [
    "KINDS",
    "NO_ACCESS",
    "VARIABLES",
    "Catalog",
    "CatalogAccess",
    "CatalogKind",
    "CatalogTable",
    "EditableCatalog",
    "GrantAccess",
    "check_table_name",
    "open_catalog",
    "split_name",
    "ungranted",
    "unless_elsewhere",
]


def open_catalog(kind: str, environment: Mapping[str, str] | None = None) -> EditableCatalog:
    """Return the catalog of that kind that the environment names; send no request yet."""
    if kind == "sql":
        from lakeferry.catalogs.sql import SqlCatalog

        return SqlCatalog.from_environment(environment)
    if kind == "unity":
        from lakeferry.catalogs.unity import UnityCatalog

        return UnityCatalog.from_environment(environment)
    raise InvalidInput(f"there is no catalog of kind {kind!r}", remedy="use sql or unity")
