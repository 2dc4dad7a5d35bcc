"""Freezes a table (read-only without a target) and thaws it."""

from __future__ import annotations

from lakeferry.errors import RedirectIllegalTransition
from lakeferry.log import features, protocols
from lakeferry.log.conflicts import Conflict
from lakeferry.log.replay import TableState as TableState
from lakeferry.redirect import entry as model
from lakeferry.redirect import read_entry, received_entries, redirect_commits, states, steps
from lakeferry.redirect.entry import Data, Journal, Mode, Redirect
from lakeferry.redirect.outcome import Outcome
from lakeferry.redirect.redirect_commits import Bare
from lakeferry.redirect.redirect_context import Setting
from lakeferry.redirect.states import RedirectEvent, RedirectState
from lakeferry.storage.uris import shell_safe
from lakeferry.table import DeltaLog


def freeze(setting: Setting, table: str, mode: Mode = Mode.WRITER_ONLY) -> Outcome:
    """Freeze a table, so that all writers are refused. Idempotent."""
    log = setting.log(table)
    state = log.state()
    if not check_freezable(log, state, mode):
        return Outcome(RedirectState.ENABLING, table, None, state.version, False, frozen=True)
    move_id = setting.new_id()
    entry = _entry(state, mode, move_id)
    after = Bare(state.protocol, state.metadata).carrying(entry)
    wanted = redirect_commits.transition(
        state, after, RedirectState.ENABLING, move_id, setting.new_id()
    )
    received_entries.mark_set_here(log.store, entry)
    result = log.commit(wanted, state)
    if isinstance(result, Conflict):
        raise result.error()
    setting.step(steps.commit_step(table, result.version, RedirectState.ENABLING, frozen=True))
    return Outcome(RedirectState.ENABLING, table, None, result.version, True, frozen=True)


def _entry(state: TableState, mode: Mode, move_id: str) -> Redirect:
    journal = Journal(Data.EXISTING, protocols.versions(state.protocol), move_id=move_id)
    return Redirect(mode, RedirectState.ENABLING, journal=journal)


def check_freezable(log: DeltaLog, state: TableState, mode: Mode) -> bool:
    """Refuse to freeze what is redirected or can't be written to; tell whether it isn't frozen."""
    table = log.store.uri
    redirect = read_entry.read(state.protocol, state.metadata, table)
    if redirect is not None:
        model.check_single(redirect, table)
        if redirect.is_frozen and redirect.mode is mode:
            return False
    states.after(redirect.state if redirect else RedirectState.NORMAL, RedirectEvent.FREEZE, table)
    features.check_writable(state.protocol, asks_catalog=log.store.asks_catalog)
    read_entry.check_no_stray(state.protocol, state.metadata, table)
    log.check_checksum(state.version)
    redirect_commits.check_both_ways(log, state, _entry(state, mode, ""))
    return True


def thaw(setting: Setting, table: str) -> Outcome:
    """Thaw a frozen table, so that writers are accepted again. Idempotent."""
    log = setting.log(table)
    state = log.state()
    redirect = read_entry.read(state.protocol, state.metadata, table)
    if redirect is None:
        return Outcome(RedirectState.NORMAL, table, None, state.version, False)
    check_frozen(redirect, table)
    version = redirect_commits.remove_entry(setting, log, state, redirect)
    return Outcome(RedirectState.NORMAL, table, None, version, True)


def check_frozen(redirect: Redirect, table: str) -> None:
    """Refuse to thaw what is redirected, or on its way."""
    model.check_single(redirect, table)
    states.after(redirect.state, RedirectEvent.THAW, table)
    if not redirect.is_frozen:
        raise RedirectIllegalTransition(
            f"{table} isn't frozen, it is being moved",
            cause=f"its target is {redirect.target}",
            remedy=f"'lakeferry redirect cancel {shell_safe(table)}' undoes the move",
            location=table,
            state=redirect.state.value,
        )
