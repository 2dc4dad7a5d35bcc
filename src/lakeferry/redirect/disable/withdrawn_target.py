"""Finds the target of a redirect that is to end, and checks that it is the table that moved."""

from __future__ import annotations

from lakeferry.errors import Forbidden, NotATable, RedirectTargetMissing, TableNotFound
from lakeferry.log.replay import TableState as TableState
from lakeferry.redirect import lineage, move_lookup
from lakeferry.redirect.entry import Redirect
from lakeferry.redirect.following_errors import target_missing
from lakeferry.redirect.redirect_context import Setting
from lakeferry.redirect.states import RedirectState
from lakeferry.redirect.target_in_catalog import find_in_catalog
from lakeferry.table import DeltaLog


def target_place(setting: Setting, redirect: Redirect, source_uri: str) -> str:
    """Return where the target is now. A catalog may have moved it since."""
    target = redirect.target
    if target is None or target.location is not None or redirect.state is RedirectState.ENABLING:
        return move_lookup.place_of_target(redirect)
    return find_in_catalog(setting.catalog, redirect, source_uri, setting.grant).location


def check_target(
    setting: Setting, source_uri: str, state: TableState, redirect: Redirect
) -> DeltaLog:
    """Return the target's log; refuse if it has no table, or not the one that moved.

    ``state`` is the source's.
    """
    target = setting.log(target_place(setting, redirect, source_uri))
    try:
        target.state()
        lineage.check_lineage(redirect, source_uri, state.metadata.id, target)
    except (TableNotFound, NotATable) as missing:
        raise target_missing(source_uri, target.store.uri, missing) from missing
    return target


def is_closed(lock: Redirect, place: str) -> bool:
    """Return whether ``lock`` is the entry of a closed target at ``place``."""
    return lock.state is RedirectState.DROPPING and lock.is_target(place)


def target_after_end(
    setting: Setting, source_uri: str, redirect: Redirect, place: str | None, *, removes: bool
) -> DeltaLog | None:
    """Return the target of a redirect that has ended, ``None`` for a managed one that is gone.

    ``place`` is where to look instead of where the move has created it. ``removes``: the target is
    to be deleted, so the user is told if the catalog hides it.
    """
    if redirect.journal is None or redirect.journal.managed is None:
        return setting.log(place or move_lookup.place_of_target(redirect))
    if place is not None:
        # No catalog gives the place of a managed table to another one.
        return None
    try:
        return setting.log(target_place(setting, redirect, source_uri))
    except RedirectTargetMissing:
        return None
    except Forbidden as hidden:
        # Some catalogs also say so of a table that was dropped.
        if removes:
            setting.warn(f"{redirect.target} isn't dropped, if it is still there: {hidden}")
        return None
