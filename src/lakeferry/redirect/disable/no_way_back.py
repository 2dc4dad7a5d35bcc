"""Refuses to end the redirect to a managed table, before anything changes."""

from __future__ import annotations

from lakeferry.errors import CatalogManaged
from lakeferry.redirect.entry import Redirect
from lakeferry.storage.uris import shell_safe
from lakeferry.table import DeltaLog


def check_bring_back(redirect: Redirect, source: str, target: DeltaLog) -> None:
    """Refuse to bring changes back from a table that its catalog manages."""
    if not target.store.asks_catalog:
        return
    raise CatalogManaged(
        f"changes of {redirect.target} can't be brought back to {source}",
        cause="it is managed by its catalog, and has features and properties that only such a "
        "table may have; nothing was changed",
        remedy="leave out --bring-back: the source is then as it was when it was redirected",
        features=["catalogManaged"],
        name=redirect.target.name if redirect.target is not None else None,
        location=source,
    )


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
