"""Resolves names that people write, ``sql:cat.schema.t`` and ``unity:cat.schema.t``.

Wherever a table may be named, :func:`locate` says where the name leads and with
which storage options. :func:`show`, :func:`register` and :func:`move` are what
``lakeferry catalog`` does; there a name without its kind is one of our own
catalog. ``environment`` takes the place of the process's own everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from lakeferry.catalogs import (
    CatalogKind,
    CatalogTable,
    check_name,
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
    """Where a table is, and the storage options that its catalog hands out for it."""

    uri: str
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """A name, and what its catalog says of it; ``changed`` tells whether that is new.

    ``was`` is where the name led before. What wasn't done has no id yet.
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
    """Return where a table is; what isn't a name in a catalog is returned as it is.

    Raises :class:`~lakeferry.errors.TableNotFound` for a name that isn't there.
    """
    if (named := split_name(table)) is None:
        return TablePlace(table)
    kind, name = named
    catalog = open_catalog(kind, environment)
    found = catalog.get(name)
    return TablePlace(found.location, catalog.credentials(found))


@contextmanager
def named(table: str) -> Iterator[None]:
    """Put the name that was asked for into the refusal of a table that its catalog manages."""
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
    """Return what the catalog says of a name."""
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
    """Give the table at ``location`` a name; fine where it has it already.

    Our own catalog takes a place where no table can be read, with a warning: the
    name may come first. Unity Catalog keeps columns, so there has to be a table.
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
    """Let a name that is there lead to another place; its id stays."""
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
    """Refuse what :func:`lead` would refuse, as far as the catalog tells."""
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
    """Let a name lead to the table at ``location``, whether it is there or not.

    One that leads to another place is left as it is, and that is an error, unless
    ``may_leave`` says of that place that it may.
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
    # Unity Catalog can't move a table, so the name is given anew, if that will be allowed.
    if metadata is not None:
        catalog.try_registration(name, place, metadata)
    catalog.unregister(name, found.location)
    return _entry(kind, catalog.register(name, place, metadata), changed=True, was=found.location)


def _parsed(text: str) -> tuple[CatalogKind, str]:
    if (named := split_name(text)) is not None:
        return named
    check_name(text)
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
    """Return the metadata of the table at a place; a catalog without columns can do without."""
    try:
        return DeltaLog(open_store(place, storage_options)).state().metadata
    except LakeferryError as problem:
        if kind == "unity":
            raise
        warn(f"{problem}; the name may lead there all the same")
        return None
