"""Changes what names of a catalog lead to: registers, renames, moves and removes them.

A name may also be made to lead to a place, whatever it led to before, if the caller allows that:
our own catalog changes the entry, and Unity Catalog, which can't, gives the name anew after a
trial. ``environment`` replaces the process's environment everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from lakeferry.catalogs import Catalog, CatalogKind, CatalogTable, open_catalog, unless_elsewhere
from lakeferry.catalogs.names import (
    CatalogEntry,
    Environment,
    catalog_entry,
    is_table_id,
    parse_table_name,
    parse_table_name_or_id,
    table_of_name_or_id,
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


def rename_in_catalog(
    text: str, new_text: str, *, dry_run: bool = False, environment: Environment = None
) -> CatalogEntry:
    """Give a table another name in its catalog; ``text`` is its name or its id.

    ``was`` of the result is the name that it had.
    """
    kind, wanted = parse_table_name_or_id(text)
    new_kind, new_name = parse_table_name(new_text if ":" in new_text else f"{kind}:{new_text}")
    catalog = open_catalog(kind, environment)
    found = table_of_name_or_id(catalog, wanted)
    was = f"{kind}:{found.name}"
    if new_kind != kind:
        raise InvalidInput(
            f"{was} can't get a name in another catalog",
            remedy=f"register the new name for its place: lakeferry catalog register {new_text} "
            f"{shell_safe(found.location)}",
            name=found.name,
        )
    if found.name == new_name:
        return catalog_entry(kind, found, was=was)
    catalog.check_rename(found, new_name)
    renamed = replace(found, name=new_name) if dry_run else catalog.rename(found, new_name)
    return catalog_entry(kind, renamed, changed=True, was=was)


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
    kind, wanted = parse_table_name_or_id(text)
    catalog = open_catalog(kind, environment)
    try:
        found = table_of_name_or_id(catalog, wanted)
    except TableNotFound:
        half = None if is_table_id(wanted) else catalog.half_removed(wanted)
        if half is None:
            return CatalogEntry(f"{kind}:{wanted}", None, None)
        found = half
    if table_id is not None and found.table_id != table_id:
        raise CommitConflict(
            f"the name {kind}:{found.name} now belongs to another table",
            cause="somebody has given it that name since the question was asked; it is at "
            f"{found.location}",
            remedy="run the same command again, which asks about that table",
            name=found.name,
            location=found.location,
            table_id=found.table_id,
        )
    check(catalog_entry(kind, found))
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
    return catalog_entry(kind, found, changed=changed)


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
    kind, name = parse_table_name(text)
    place = normalise(location)
    catalog = open_catalog(kind, environment)
    if (found := catalog.find(name)) is not None:
        return catalog_entry(kind, unless_elsewhere(kind, found, place))
    metadata = _metadata(kind, place, storage_options, warn)
    if dry_run:
        return CatalogEntry(f"{kind}:{name}", place, None, changed=True)
    return catalog_entry(kind, catalog.register(name, place, metadata), changed=True)


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
    kind, name = parse_table_name(text)
    place = normalise(location)
    catalog = open_catalog(kind, environment)
    found = catalog.get(name)
    if found.location == place:
        return catalog_entry(kind, found)
    if kind == "sql":
        _metadata(kind, place, storage_options, warn)
        if dry_run:
            return CatalogEntry(
                f"{kind}:{name}", place, found.table_id, changed=True, was=found.location
            )
    # Unity Catalog refuses to move a table, so a dry run may ask it too.
    moved = catalog.move(name, place, was=found.location)
    return catalog_entry(kind, moved, changed=True, was=found.location)


def check_leads(
    text: str,
    location: str,
    *,
    may_leave: Callable[[str], bool],
    environment: Environment = None,
) -> None:
    """Refuse what :func:`lead` would refuse, as far as the catalog shows it."""
    kind, name = parse_table_name(text)
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
    kind, name = parse_table_name(text)
    place = normalise(location)
    catalog = open_catalog(kind, environment)
    found = _leaving(catalog, name, place, may_leave)
    if found is not None and found.location == place:
        return catalog_entry(kind, found)
    metadata = _metadata(kind, place, storage_options, lambda _: None)
    if found is None:
        return catalog_entry(kind, catalog.register(name, place, metadata), changed=True)
    if kind == "sql":
        moved = catalog.move(name, place, was=found.location)
        return catalog_entry(kind, moved, changed=True, was=found.location)
    # Unity Catalog can't move a table, so delete the name and register it again, if allowed.
    if metadata is not None:
        catalog.try_registration(name, place, metadata)
    catalog.unregister(name, found.location)
    return catalog_entry(
        kind, catalog.register(name, place, metadata), changed=True, was=found.location
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
