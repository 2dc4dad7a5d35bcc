"""Resolves names that people write, ``sql:cat.schema.t`` and ``unity:cat.schema.t``.

Wherever a table may be named, :func:`locate` returns its place and storage
options. :func:`show`, :func:`register` and :func:`move` implement
``lakeferry catalog``, where a name without a kind belongs to our own catalog.
``environment`` replaces the process's environment everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from lakeferry.catalogs import (
    NO_ACCESS,
    CatalogAccess,
    CatalogKind,
    CatalogTable,
    check_table_name,
    open_catalog,
    split_name,
    unless_elsewhere,
)
from lakeferry.errors import CatalogManaged, LakeferryError
from lakeferry.log.actions import Metadata
from lakeferry.storage import normalise, open_store
from lakeferry.table import DeltaLog

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
    location: str
    table_id: str | None
    metastore_id: str | None = None
    changed: bool = False
    was: str | None = None

    def as_document(self) -> dict[str, object]:
        """Return what the command line prints of a name."""
        return {
            "name": self.name,
            "location": self.location,
            "table_id": self.table_id,
            "metastore_id": self.metastore_id,
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
    """Return a name's entry in its catalog."""
    kind, name = _parsed(text)
    return _entry(kind, open_catalog(kind, environment).get(name))


def register(
    text: str,
    location: str,
    storage_options: Mapping[str, str] | None = None,
    *,
    dry_run: bool = False,
    environment: Environment = None,
    warn: Callable[[str], None] = lambda _: None,
) -> CatalogEntry:
    """Register the table at ``location`` under a name; succeed if it has the name already.

    Our own catalog accepts a place without a readable table, with a warning: the
    table may come later. Unity Catalog stores columns, so it needs a table.
    """
    kind, name = _parsed(text)
    place = normalise(location)
    catalog = open_catalog(kind, environment)
    if (found := catalog.find(name)) is not None:
        return _entry(kind, unless_elsewhere(kind, found, place))
    metadata = _metadata(kind, place, storage_options, warn)
    if dry_run:
        return CatalogEntry(f"{kind}:{name}", place, None, changed=True)
    return _entry(kind, catalog.register(name, place, metadata), changed=True)


def move(
    text: str,
    location: str,
    storage_options: Mapping[str, str] | None = None,
    *,
    dry_run: bool = False,
    environment: Environment = None,
    warn: Callable[[str], None] = lambda _: None,
) -> CatalogEntry:
    """Change the place of an existing name; its id stays."""
    kind, name = _parsed(text)
    place = normalise(location)
    catalog = open_catalog(kind, environment)
    found = catalog.get(name)
    if found.location == place:
        return _entry(kind, found)
    if kind == "sql":
        _metadata(kind, place, storage_options, warn)
        if dry_run:
            return CatalogEntry(
                f"{kind}:{name}", place, found.table_id, changed=True, was=found.location
            )
    # Unity Catalog refuses to move a table, so a dry run may ask it too.
    return _entry(kind, catalog.move(name, place), changed=True, was=found.location)


def check_leads(
    text: str,
    location: str,
    *,
    may_leave: Callable[[str], bool],
    environment: Environment = None,
) -> None:
    """Refuse what :func:`lead` would refuse, as far as the catalog shows it."""
    kind, name = _parsed(text)
    place = normalise(location)
    catalog = open_catalog(kind, environment)
    found = catalog.find(name)
    if found is None:
        catalog.check_schema(name)
    elif found.location != place and not may_leave(found.location):
        unless_elsewhere(kind, found, place)


def lead(
    text: str,
    location: str,
    storage_options: Mapping[str, str] | None = None,
    *,
    may_leave: Callable[[str], bool],
    environment: Environment = None,
) -> CatalogEntry:
    """Make a name lead to the table at ``location``; create the name if it doesn't exist.

    A name that leads to another place is an error, unless ``may_leave`` returns True for
    that place.
    """
    check_leads(text, location, may_leave=may_leave, environment=environment)
    kind, name = _parsed(text)
    place = normalise(location)
    catalog = open_catalog(kind, environment)
    found = catalog.find(name)
    if found is not None and found.location == place:
        return _entry(kind, found)
    metadata = _metadata(kind, place, storage_options, lambda _: None)
    if found is None:
        return _entry(kind, catalog.register(name, place, metadata), changed=True)
    if kind == "sql":
        return _entry(kind, catalog.move(name, place), changed=True, was=found.location)
    # Unity Catalog can't move a table, so delete the name and register it again, if allowed.
    if metadata is not None:
        catalog.try_registration(name, place, metadata)
    catalog.unregister(name, found.location)
    return _entry(kind, catalog.register(name, place, metadata), changed=True, was=found.location)


def _parsed(text: str) -> tuple[CatalogKind, str]:
    if (named := split_name(text)) is not None:
        return named
    check_table_name(text)
    return "sql", text


def _entry(
    kind: CatalogKind, found: CatalogTable, *, changed: bool = False, was: str | None = None
) -> CatalogEntry:
    return CatalogEntry(
        f"{kind}:{found.name}",
        found.location,
        found.table_id,
        found.metastore_id,
        changed,
        was,
    )


def _metadata(
    kind: CatalogKind,
    place: str,
    storage_options: Mapping[str, str] | None,
    warn: Callable[[str], None],
) -> Metadata | None:
    """Return the metadata of the table at a place; optional for catalogs without columns."""
    try:
        return DeltaLog(open_store(place, storage_options)).state().metadata
    except LakeferryError as problem:
        if kind == "unity":
            raise
        warn(f"{problem}; a name can be given to that place nevertheless")
        return None
