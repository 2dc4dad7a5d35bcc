"""Resolves names that people write, ``sql:cat.schema.t`` and ``unity:cat.schema.t``.

Wherever a table may be named, :func:`locate` returns its place and storage
options. The other functions implement ``lakeferry catalog``; what changes a name is in
``name_changes.py``. There a name without a kind belongs to our own catalog, and the id of a table
may stand for its name. ``environment`` replaces the process's environment everywhere.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from lakeferry.catalogs import (
    KINDS,
    NO_ACCESS,
    Catalog,
    CatalogAccess,
    CatalogKind,
    CatalogTable,
    check_table_name,
    open_catalog,
    split_name,
)
from lakeferry.errors import (
    CatalogManaged,
    InvalidInput,
    TableNotFound,
)
from lakeferry.storage.uris import shell_safe

Environment = Mapping[str, str] | None


@dataclass(frozen=True, slots=True)
class TablePlace:
    """Where a table is, and how its catalog lets it be opened."""

    uri: str
    access: CatalogAccess = NO_ACCESS


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """A name and its entry in a catalog; ``changed`` says whether the command changed it.

    ``was`` is where the name led before. In a dry run a new name has no id yet.
    """

    name: str
    location: str | None
    table_id: str | None
    metastore_id: str | None = None
    changed: bool = False
    was: str | None = None
    managed: bool = False
    """Whether the catalog owns the table's files, and deletes them with its name."""

    @property
    def registration(self) -> str:
        """The command that registers the former name for the place."""
        return f"lakeferry catalog register {self.was} {shell_safe(self.location or '')}"

    def as_document(self) -> dict[str, object]:
        """Return what the command line prints of a name."""
        return {
            "name": self.name,
            "location": self.location,
            "table_id": self.table_id,
            "metastore_id": self.metastore_id,
            "managed": self.managed,
        }


def locate(table: str, environment: Environment = None) -> TablePlace:
    """Return where a table is; text that isn't a name in a catalog is returned unchanged.

    Raises :class:`~lakeferry.errors.TableNotFound` for a name that doesn't exist.
    """
    if (named := split_name(table)) is None:
        return TablePlace(table)
    kind, name = named
    catalog = open_catalog(kind, environment)
    found = catalog.get_to_open(name)
    return TablePlace(found.location, catalog.access(found))


@contextmanager
def name_in_errors(table: str) -> Iterator[None]:
    """Add the requested name to the error for a catalog-managed table."""
    try:
        yield
    except CatalogManaged as refused:
        if refused.fields.get("name") is not None or (known := split_name(table)) is None:
            raise
        raise CatalogManaged(
            f"{known[1]} is managed by its catalog",
            cause=refused.cause,
            remedy=refused.remedy,
            **{**refused.fields, "name": known[1]},
        ) from refused


def show(text: str, environment: Environment = None) -> CatalogEntry:
    """Return the entry of a name, or of a table's id, in its catalog."""
    kind, wanted = parse_table_name_or_id(text)
    return catalog_entry(kind, table_of_name_or_id(open_catalog(kind, environment), wanted))


def list_entries(prefix: str, environment: Environment = None) -> list[CatalogEntry]:
    """Return the entries of all names that begin with a text: ``sql:``, ``unity:sales.eu``."""
    kind, _, wanted = prefix.partition(":") if ":" in prefix else ("sql", "", prefix)
    if kind not in KINDS:
        raise InvalidInput(
            f"there is no catalog of kind {kind!r}",
            remedy="write sql: or unity:, and the beginning of a name",
        )
    found = open_catalog(kind, environment).tables(wanted)
    return [catalog_entry(kind, table) for table in found]


def table_of_name_or_id(catalog: Catalog, wanted: str) -> CatalogTable:
    """Return a table by its name or its id."""
    if not is_table_id(wanted):
        return catalog.get(wanted)
    found = catalog.find_id(wanted)
    if found is None or is_table_id(found.name):
        raise TableNotFound(
            f"the {catalog.kind} catalog at {catalog.place} has no table with the id {wanted}",
            cause=None if found is None else "it exists, but no listing shows its name",
            remedy=f"'lakeferry catalog list {catalog.kind}:' shows the tables that you may see",
            table_id=wanted,
            catalog=catalog.place,
        )
    return found


def is_table_id(text: str) -> bool:
    """Return True if a text is the id of a table, not a name."""
    with suppress(ValueError):
        return bool(uuid.UUID(text))
    return False


def parse_table_name_or_id(text: str) -> tuple[CatalogKind, str]:
    """Return kind, and name or id, of what may have an id in place of a name."""
    kind, colon, wanted = text.partition(":")
    if not colon and is_table_id(text):
        return "sql", text
    if kind in KINDS and is_table_id(wanted):
        return kind, wanted
    return parse_table_name(text)


def parse_table_name(text: str) -> tuple[CatalogKind, str]:
    """Return kind and name; without a kind, a name belongs to our own catalog."""
    if (named := split_name(text)) is not None:
        return named
    check_table_name(text)
    return "sql", text


def catalog_entry(
    kind: CatalogKind, found: CatalogTable, *, changed: bool = False, was: str | None = None
) -> CatalogEntry:
    """Return what commands print of a table that a catalog has."""
    return CatalogEntry(
        f"{kind}:{found.name}",
        found.location,
        found.table_id,
        found.metastore_id,
        changed,
        was,
        found.managed,
    )
