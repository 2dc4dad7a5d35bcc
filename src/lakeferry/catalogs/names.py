"""Resolves names that people write, ``sql:cat.schema.t`` and ``unity:cat.schema.t``.

Wherever a table may be named, :func:`locate` returns its place and storage
options. The other functions implement ``lakeferry catalog``. There a name without a kind
belongs to our own catalog, and the id of a table may stand for its name.
``environment`` replaces the process's environment everywhere.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace

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
    unless_elsewhere,
)
from lakeferry.errors import (
    CatalogManaged,
    CommitConflict,
    InvalidInput,
    LakeferryError,
    TableNotFound,
)
from lakeferry.log.actions import Metadata
from lakeferry.log.features import MANAGED
from lakeferry.storage import normalise, open_store
from lakeferry.storage.uris import shell_safe
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
    kind, wanted = _parsed_with_ids(text)
    return _entry(kind, _found(open_catalog(kind, environment), wanted))


def list_entries(prefix: str, environment: Environment = None) -> list[CatalogEntry]:
    """Return the entries of all names that begin with a text: ``sql:``, ``unity:sales.eu``."""
    kind, _, wanted = prefix.partition(":") if ":" in prefix else ("sql", "", prefix)
    if kind not in KINDS:
        raise InvalidInput(
            f"there is no catalog of kind {kind!r}",
            remedy="write sql: or unity:, and the beginning of a name",
        )
    found = open_catalog(kind, environment).tables(wanted)
    return [_entry(kind, table) for table in found]


def rename_in_catalog(
    text: str, new_text: str, *, dry_run: bool = False, environment: Environment = None
) -> CatalogEntry:
    """Give a table another name in its catalog; ``text`` is its name or its id.

    ``was`` of the result is the name that it had.
    """
    kind, wanted = _parsed_with_ids(text)
    new_kind, new_name = _parsed(new_text if ":" in new_text else f"{kind}:{new_text}")
    catalog = open_catalog(kind, environment)
    found = _found(catalog, wanted)
    was = f"{kind}:{found.name}"
    if new_kind != kind:
        raise InvalidInput(
            f"{was} can't get a name in another catalog",
            remedy=f"register the new name for its place: lakeferry catalog register {new_text} "
            f"{shell_safe(found.location)}",
            name=found.name,
        )
    if found.name == new_name:
        return _entry(kind, found, was=was)
    catalog.check_rename(found, new_name)
    renamed = replace(found, name=new_name) if dry_run else catalog.rename(found, new_name)
    return _entry(kind, renamed, changed=True, was=was)


def remove_from_catalog(
    text: str,
    *,
    table_id: str | None = None,
    deletes_files: bool = False,
    dry_run: bool = False,
    environment: Environment = None,
    check: Callable[[CatalogEntry], None] = lambda _: None,
) -> CatalogEntry:
    """Remove a table from its catalog; ``text`` is its name or its id.

    A managed table is removed only with ``deletes_files``, as its catalog deletes its files, too.
    The files of other tables stay. A name that doesn't exist is no error; a removal that was broken
    off under it is ended. ``check`` may refuse to remove the table that was found. With
    ``table_id``, only the table with that id is removed.
    """
    kind, wanted = _parsed_with_ids(text)
    catalog = open_catalog(kind, environment)
    try:
        found = _found(catalog, wanted)
    except TableNotFound:
        half = None if _is_id(wanted) else catalog.half_removed(wanted)
        if half is None:
            return CatalogEntry(f"{kind}:{wanted}", None, None)
        found = half
    if table_id is not None and found.table_id != table_id:
        raise CommitConflict(
            f"{kind}:{found.name} is another table by now",
            cause="somebody has given it that name since the question was asked; it is at "
            f"{found.location}",
            remedy="run the same command again, which asks about that table",
            name=found.name,
            location=found.location,
            table_id=found.table_id,
        )
    check(_entry(kind, found))
    if found.managed and not (deletes_files or dry_run):
        raise CatalogManaged(
            f"{kind}:{found.name} is a managed table: its catalog deletes its files with its name",
            cause=f"they are at {found.location}",
            remedy=f"if nobody needs them, run: lakeferry catalog remove {kind}:{found.name} --yes",
            name=found.name,
            location=found.location,
            features=[MANAGED],
        )
    changed = dry_run or catalog.remove(found)
    return _entry(kind, found, changed=changed)


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
    moved = catalog.move(name, place, was=found.location)
    return _entry(kind, moved, changed=True, was=found.location)


def check_leads(
    text: str,
    location: str,
    *,
    may_leave: Callable[[str], bool],
    environment: Environment = None,
) -> None:
    """Refuse what :func:`lead` would refuse, as far as the catalog shows it."""
    kind, name = _parsed(text)
    _leaving(open_catalog(kind, environment), name, normalise(location), may_leave)


def _leaving(
    catalog: Catalog, name: str, place: str, may_leave: Callable[[str], bool]
) -> CatalogTable | None:
    """Return the table that has a name now; refuse if the name may not lead to ``place``."""
    found = catalog.find(name)
    if found is None:
        catalog.check_schema(name)
    elif found.location != place and not may_leave(found.location):
        unless_elsewhere(catalog.kind, found, place)
    return found


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
    that place. So is a name that another process changes meanwhile: it stays as it is.
    """
    kind, name = _parsed(text)
    place = normalise(location)
    catalog = open_catalog(kind, environment)
    found = _leaving(catalog, name, place, may_leave)
    if found is not None and found.location == place:
        return _entry(kind, found)
    metadata = _metadata(kind, place, storage_options, lambda _: None)
    if found is None:
        return _entry(kind, catalog.register(name, place, metadata), changed=True)
    if kind == "sql":
        moved = catalog.move(name, place, was=found.location)
        return _entry(kind, moved, changed=True, was=found.location)
    # Unity Catalog can't move a table, so delete the name and register it again, if allowed.
    if metadata is not None:
        catalog.try_registration(name, place, metadata)
    catalog.unregister(name, found.location)
    return _entry(kind, catalog.register(name, place, metadata), changed=True, was=found.location)


def _found(catalog: Catalog, wanted: str) -> CatalogTable:
    """Return a table by its name or its id."""
    if not _is_id(wanted):
        return catalog.get(wanted)
    found = catalog.find_id(wanted)
    if found is None or _is_id(found.name):
        raise TableNotFound(
            f"the {catalog.kind} catalog at {catalog.place} has no table with the id {wanted}",
            cause=None if found is None else "it exists, but no listing shows its name",
            remedy=f"'lakeferry catalog list {catalog.kind}:' shows the tables that you may see",
            table_id=wanted,
            catalog=catalog.place,
        )
    return found


def _is_id(text: str) -> bool:
    with suppress(ValueError):
        return bool(uuid.UUID(text))
    return False


def _parsed_with_ids(text: str) -> tuple[CatalogKind, str]:
    """Return kind, and name or id, of what may have an id in place of a name."""
    kind, colon, wanted = text.partition(":")
    if not colon and _is_id(text):
        return "sql", text
    if kind in KINDS and _is_id(wanted):
        return kind, wanted
    return _parsed(text)


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
        found.managed,
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
