"""Refuses to end the redirect to a managed table, before anything changes."""

from __future__ import annotations

from lakeferry.errors import CatalogManaged
from lakeferry.redirect.entry import Redirect
from lakeferry.storage.uris import shell_safe


def check_way_back(redirect: Redirect, source: str) -> None:
    """Refuse to bring back a table that a move has made a managed one."""
    if redirect.journal is None or redirect.journal.managed is None:
        return
    raise CatalogManaged(
        f"the redirect of {source} can't be withdrawn",
        cause=f"its target {redirect.target} is managed by its catalog, and such a table can't be "
        "brought back yet; nothing was changed",
        remedy="go on using the table, by its old path or by its name; if it was dropped in the "
        f"catalog, 'lakeferry redirect disable {shell_safe(source)} --abandon-target' makes the "
        "source an ordinary table again",
        features=["catalogManaged"],
        name=redirect.target.name if redirect.target is not None else None,
        location=source,
    )
