"""Runs redirect commands on a table whose entry arrived by push or pull.

Such an entry was never in force here (:mod:`lakeferry.redirect.received_entries`), so its target is
none of this table's: nothing is read, brought or deleted there.
"""

from __future__ import annotations

from typing import Any

from lakeferry.errors import RedirectIllegalTransition, RedirectSpecInvalid
from lakeferry.log.commit import Conflict
from lakeferry.log.replay import TableState as TableState
from lakeferry.redirect import dialects, received_entries, redirect_commits
from lakeferry.redirect.move import Outcome
from lakeferry.redirect.redirect_context import Setting
from lakeferry.redirect.states import RedirectState
from lakeferry.storage.uris import shell_safe
from lakeferry.table import DeltaLog


def check_none(setting: Setting, table_uri: str) -> None:
    """Refuse to go on with an entry that arrived by transfer, or to put another in its place."""
    if _found(setting.log(table_uri)) is not None:
        raise RedirectIllegalTransition(
            f"{table_uri} has a redirect entry that arrived by transfer",
            cause="it was set somewhere else, and isn't followed here",
            remedy=f"take it away first: lakeferry redirect disable {shell_safe(table_uri)}",
            location=table_uri,
        )


def withdraw(
    setting: Setting, table_uri: str, *, dry_run: bool, asks_for_target: bool = False
) -> Outcome | list[dict[str, Any]] | None:
    """Take an entry away that arrived by transfer; ``None`` where the table has none.

    One commit to the table itself. ``asks_for_target`` tells that something is to be done with
    the target as well, which is refused: the entry may name anybody's table.
    """
    log = setting.log(table_uri)
    state = _found(log)
    if state is None:
        return None
    if asks_for_target:
        raise RedirectIllegalTransition(
            f"the redirect entry of {table_uri} has no target here",
            cause="it arrived by transfer: what it names was never made of this table",
            remedy=f"leave the option out: lakeferry redirect disable {shell_safe(table_uri)}",
            location=table_uri,
        )
    if dry_run:
        version, ends = state.version + 1, RedirectState.NORMAL.value
        return [{"op": "commit", "table": table_uri, "version": version, "state": ends}]
    # What the entry says of the protocol before it isn't believed either.
    bare = redirect_commits.bare(state.protocol, state.metadata, None)
    wanted = redirect_commits.transition(state, bare, RedirectState.NORMAL, None, setting.new_id())
    result = log.commit(wanted, state)
    if isinstance(result, Conflict):
        raise result.error()
    return Outcome(RedirectState.NORMAL, table_uri, None, result.version, True)


def _found(log: DeltaLog) -> TableState | None:
    """Return the state of a table whose entry arrived by transfer, readable or not."""
    state = log.state()
    try:
        redirect = dialects.read(state.protocol, state.metadata, log.store.uri)
        if redirect is not None:
            arrived = not received_entries.counts(log.store, redirect)
        else:
            # A property without its feature would be in the way of a redirect of our own.
            stray = dialects.stray(state.protocol, state.metadata)
            arrived = bool(stray) and received_entries.is_received(log.store)
    except RedirectSpecInvalid:
        arrived = received_entries.is_received(log.store)
    return state if arrived else None
