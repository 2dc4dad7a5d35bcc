"""Runs redirect commands on a table whose entry arrived by push or pull.

Such an entry was never in force here (:mod:`lakeferry.redirect.received_entries`), so its target is
none of this table's: nothing is read, brought or deleted there.
"""

from __future__ import annotations

from lakeferry.errors import RedirectIllegalTransition, RedirectSpecInvalid
from lakeferry.log.conflicts import Conflict
from lakeferry.log.replay import TableState as TableState
from lakeferry.redirect import read_entry, received_entries, redirect_commits, steps
from lakeferry.redirect.outcome import Outcome
from lakeferry.redirect.redirect_context import Setting
from lakeferry.redirect.states import RedirectState
from lakeferry.storage.uris import shell_safe
from lakeferry.table import DeltaLog


def check_no_received_entry(setting: Setting, table_uri: str) -> TableState:
    """Refuse to go on with an entry that arrived by transfer, or to put another in its place.

    Returns the table's state.
    """
    log = setting.log(table_uri)
    state = log.state()
    if _has_arrived(log, state):
        raise RedirectIllegalTransition(
            f"{table_uri} has a redirect that arrived by push or pull",
            cause="it was set somewhere else, and isn't followed here",
            remedy=f"remove it first: lakeferry redirect disable {shell_safe(table_uri)}",
            location=table_uri,
        )
    return state


def withdraw_received(
    setting: Setting, table_uri: str, *, asks_for_target: bool = False
) -> Outcome | None:
    """Take an entry away that arrived by transfer; ``None`` where the table has none.

    One commit to the table itself. ``asks_for_target`` tells that something is to be done with
    the target as well, which is refused: the entry may name anybody's table.
    """
    log = setting.log(table_uri)
    state = log.state()
    if not _has_arrived(log, state):
        return None
    if asks_for_target:
        raise RedirectIllegalTransition(
            f"the redirect of {table_uri} has no target here",
            cause="it arrived by push or pull, and its target wasn't copied from this table",
            remedy=f"leave the option out: lakeferry redirect disable {shell_safe(table_uri)}",
            location=table_uri,
        )
    # What the entry says of the protocol before it isn't believed either.
    bare = redirect_commits.bare(state.protocol, state.metadata, None)
    wanted = redirect_commits.transition(state, bare, RedirectState.NORMAL, None, setting.new_id())
    result = log.commit(wanted, state)
    if isinstance(result, Conflict):
        raise result.error()
    setting.step(steps.commit_step(table_uri, result.version, RedirectState.NORMAL))
    return Outcome(RedirectState.NORMAL, table_uri, None, result.version, True)


def _has_arrived(log: DeltaLog, state: TableState) -> bool:
    """Return whether a table's entry, readable or not, arrived by transfer."""
    try:
        redirect = read_entry.read(state.protocol, state.metadata, log.store.uri)
        if redirect is not None:
            return not received_entries.counts(log.store, redirect)
        # A property without its feature would be in the way of a redirect of our own.
        stray = read_entry.stray(state.protocol, state.metadata)
        return bool(stray) and received_entries.is_received(log.store)
    except RedirectSpecInvalid:
        return received_entries.is_received(log.store)
