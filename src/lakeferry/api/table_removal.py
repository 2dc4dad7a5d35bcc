"""Removes a table from its catalog, unless an old path leads to it."""

from __future__ import annotations

from collections.abc import Callable

from lakeferry.api.redirects import Redirects
from lakeferry.catalogs import names
from lakeferry.catalogs.names import CatalogEntry, Environment
from lakeferry.catalogs.places import Places
from lakeferry.errors import CatalogManaged, LakeferryError
from lakeferry.log.features import MANAGED
from lakeferry.redirect.old_paths import OldPath, old_paths
from lakeferry.storage.uris import shell_safe


def remove_named_table(
    text: str,
    *,
    deletes_files: bool = False,
    breaks_redirects: bool = False,
    dry_run: bool = False,
    environment: Environment = None,
    warn: Callable[[str], None] = lambda _: None,
) -> CatalogEntry:
    """Remove a table from its catalog, as :func:`~lakeferry.catalogs.names.remove_from_catalog`.

    A managed table to which an old path leads is removed only with ``breaks_redirects``: its rows
    can't be brought back to that path afterwards.
    """
    paths: list[OldPath] = []

    def check(entry: CatalogEntry) -> None:
        paths.extend(_paths_to(entry, environment, warn) if entry.managed else ())
        if paths and not breaks_redirects:
            raise _refusal(entry, paths)

    entry = names.remove_from_catalog(
        text, deletes_files=deletes_files, dry_run=dry_run, environment=environment, check=check
    )
    for path in paths:
        end = f"lakeferry redirect disable {shell_safe(path.source)} --abandon-target"
        when = "would lead" if dry_run else "leads"
        warn(
            f"{path.source} {when} nowhere now: '{end}' makes it an ordinary table again, with the "
            "rows that it had at READY"
        )
    return entry


def _paths_to(
    entry: CatalogEntry, environment: Environment, warn: Callable[[str], None]
) -> list[OldPath]:
    """Return the old paths that lead to a table; none if the table can't be read."""
    with Redirects(Places(environment=environment)) as redirects:
        try:
            target = redirects.setting.log(redirects.place(entry.name))
            return old_paths(redirects.setting.log, target)
        except LakeferryError as unreadable:
            warn(f"whether an old path leads to {entry.name} isn't known: {unreadable}")
            return []


def _refusal(entry: CatalogEntry, paths: list[OldPath]) -> CatalogManaged:
    """Return the error for a table that old paths lead to."""
    first = paths[0]
    others = "".join(f", {path.source}" for path in paths[1:])
    state = "can't be read" if first.state is None else f"is {first.state.value}"
    why = "" if first.why is None else f" ({first.why})"
    source = shell_safe(first.source)
    return CatalogManaged(
        f"the old path {first.source}{others} leads to {entry.name}",
        cause=f"the redirect of {first.source} {state}{why}; without the table its readers and "
        "writers would find nothing, and what was written since the move would be lost",
        remedy=f"'lakeferry redirect disable {source} --remove-target' brings the rows back and "
        "drops the table then; to lose them, add --force: lakeferry catalog remove "
        f"{entry.name} --yes --force",
        name=entry.name.partition(":")[2],
        location=entry.location,
        features=[MANAGED],
        sources=[path.source for path in paths],
    )
