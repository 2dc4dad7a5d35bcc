"""The last two commits of a withdrawal, at the source: DROPPING, then NORMAL."""

from __future__ import annotations

from dataclasses import replace

from lakeferry.errors import CommitConflict
from lakeferry.log.actions import CommitInfo
from lakeferry.log.conflicts import Conflict
from lakeferry.log.replay import TableState as TableState
from lakeferry.redirect import read_entry, received_entries, redirect_commits, states, steps
from lakeferry.redirect.entry import Data, Journal
from lakeferry.redirect.redirect_context import Setting
from lakeferry.redirect.states import RedirectEvent, RedirectState
from lakeferry.table import DeltaLog


def drop_target(
    setting: Setting,
    source: DeltaLog,
    state: TableState,
    decided: CommitInfo | None = None,
    *,
    place: str | None = None,
    abandoned: bool = False,
    brings_back: bool = False,
    compares: bool = False,
) -> TableState:
    """Commit DROPPING at the source; ``decided`` is the target's commit of the same version.

    ``place`` is where the target was. A later cleanup needs it, as the target's name may lead
    elsewhere by then. ``abandoned``: what was written to the target wasn't copied back.
    ``brings_back``: whoever resumes brings the rest from a target that existed before, and
    ``compares`` it.
    """
    redirect = read_entry.read(state.protocol, state.metadata, source.store.uri)
    if redirect is None or redirect.state is RedirectState.DROPPING:
        return state
    states.after(redirect.state, RedirectEvent.DISABLE, source.store.uri)
    if redirect.journal is None:
        # Some dialects can't express a withdrawal without our journal.
        redirect = replace(redirect, journal=Journal(Data.EXISTING, move_id=setting.new_id()))
        received_entries.mark_set_here(source.store, redirect)
    if abandoned and redirect.journal is not None:
        redirect = replace(redirect, journal=replace(redirect.journal, abandoned=True))
    if brings_back and redirect.journal is not None:
        journal = replace(redirect.journal, returns=Data.COPY, compares=compares)
        redirect = replace(redirect, journal=journal)
    if place is not None and redirect.journal is not None and redirect.kind.catalog is not None:
        redirect = replace(redirect, journal=replace(redirect.journal, location=place))
        received_entries.mark_set_here(source.store, redirect)
    bare = redirect_commits.bare(state.protocol, state.metadata, redirect.journal)
    after = bare.carrying(redirect.in_state(RedirectState.DROPPING))
    move_id = redirect.journal.move_id if redirect.journal else None
    txn_id = (decided.txn_id if decided else None) or setting.new_id()
    wanted = redirect_commits.transition(state, after, RedirectState.DROPPING, move_id, txn_id)
    moment = (
        redirect_commits.commit_time(decided, state.version + 1) if decided else setting.clock()
    )
    result = source.commit_exactly(wanted, state, moment)
    if isinstance(result, Conflict):
        mark = redirect_commits.mark_of(result.winner) or {}
        if mark.get("state") != RedirectState.DROPPING.value or mark.get("moveId") != move_id:
            raise result.error()
    else:
        version = state.version + 1
        setting.step(steps.commit_step(source.store.uri, version, RedirectState.DROPPING))
    return source.state()


def remove(setting: Setting, source: DeltaLog, state: TableState) -> int:
    """Remove the entry and the feature; succeed if another process just did so."""
    redirect = read_entry.read(state.protocol, state.metadata, source.store.uri)
    if redirect is None:
        return state.version
    states.after(redirect.state, RedirectEvent.REMOVE, source.store.uri)
    try:
        return redirect_commits.remove_entry(setting, source, state, redirect)
    except CommitConflict:
        now = source.state()
        if read_entry.read(now.protocol, now.metadata, source.store.uri) is not None:
            raise
        return now.version
