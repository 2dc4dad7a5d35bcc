"""Removes a table from its catalog, unless an old path leads to it.

A table that can't be read, or whose move is no longer on record, may have such a path: it is
removed only on request, since what is dropped can't be brought back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lakeferry.api.redirects import Redirects
from lakeferry.catalogs import CatalogTable, name_changes
from lakeferry.catalogs.names import CatalogEntry, Environment
from lakeferry.catalogs.places import Places
from lakeferry.errors import CatalogManaged, LakeferryError, NotATable, TableNotFound
from lakeferry.log.features import MANAGED
from lakeferry.redirect.old_paths import OldPath, old_paths
from lakeferry.storage.uris import shell_safe


def remove_named_table(
    text: str,
    *,
    table_id: str | None = None,
    deletes_files: bool = False,
    breaks_redirects: bool = False,
    dry_run: bool = False,
    environment: Environment = None,
    warn: Callable[[str], None] = lambda _: None,
) -> CatalogEntry:
    """Remove a table from its catalog, as ``name_changes.remove_from_catalog`` does.

    A managed table to which an old path leads, or may lead, is removed only with
    ``breaks_redirects``: its rows can't be brought back to that path afterwards.
    """
    paths: list[OldPath] = []

    def check(entry: CatalogEntry) -> None:
        if not entry.managed:
            return
        try:
            paths.extend(_paths_to(entry, environment))
        except LakeferryError as unreadable:
            refused = _unknown(entry, str(unreadable), unreadable.remedy)
            # Without a log there are no rows to lose.
            if not breaks_redirects and not isinstance(unreadable, TableNotFound | NotATable):
                raise refused from unreadable
            warn(f"{refused.message}: {unreadable}")
        if paths and not breaks_redirects:
            raise _refusal(entry, paths)

    entry = name_changes.remove_from_catalog(
        text,
        table_id=table_id,
        deletes_files=deletes_files,
        dry_run=dry_run,
        environment=environment,
        check=check,
    )
    for path in paths:
        if path.source is None:
            continue
        end = f"lakeferry redirect disable {shell_safe(path.source)} --abandon-target"
        when = "would lead" if dry_run else "leads"
        warn(
            f"{path.source} {when} to no table now: '{end}' makes it an ordinary table, with the "
            "rows that it had at READY"
        )
    return entry


def _paths_to(entry: CatalogEntry, environment: Environment) -> list[OldPath]:
    """Return the old paths that lead to a table.

    It is opened by its id, as it is removed: somebody may change its name meanwhile.
    """
    places = Places(environment=environment)
    kind, _, name = entry.name.partition(":")
    table = CatalogTable(
        name, entry.location or "", entry.table_id or "", entry.metastore_id, entry.managed
    )
    with Redirects(places) as redirects:
        target = redirects.setting.log(places.of_entry(places.catalog(kind), table))
        return old_paths(redirects.setting.log, target)


def _refusal(entry: CatalogEntry, paths: list[OldPath]) -> CatalogManaged:
    """Return the error for a table that old paths lead to, or may lead to."""
    sources = [path.source for path in paths if path.source is not None]
    first = next((path for path in paths if path.source is not None), None)
    if first is None:
        return _unknown(
            entry,
            f"the table has moved there, and {paths[0].why}; an old path may still lead to it",
        )
    state = "can't be read" if first.state is None else f"is {first.state.value}"
    why = "" if first.why is None else f" ({first.why})"
    return CatalogManaged(
        f"the old path {', '.join(sources)} leads to {entry.name}",
        cause=f"the redirect of {first.source} {state}{why}; without the table its readers and "
        "writers would find nothing, and what was written since the move would be lost",
        remedy=f"'lakeferry redirect disable {shell_safe(sources[0])} --remove-target' brings the "
        "rows back and then drops the table; to drop it with its rows: lakeferry catalog remove "
        f"{entry.name} --yes --force",
        **_fields(entry, sources),
    )


def _unknown(entry: CatalogEntry, cause: str, first: str | None = None) -> CatalogManaged:
    """Return the error for a table of which it isn't known whether an old path leads to it."""
    return CatalogManaged(
        f"Lakeferry can't find out if an old path leads to {entry.name}",
        cause=cause,
        remedy=f"{f'{first}; or ' if first else ''}if nobody needs its rows, add --force: "
        f"lakeferry catalog remove {entry.name} --yes --force",
        **_fields(entry, []),
    )


def _fields(entry: CatalogEntry, sources: list[str]) -> dict[str, Any]:
    return {
        "name": entry.name.partition(":")[2],
        "location": entry.location,
        "features": [MANAGED],
        "sources": sources,
    }
