"""Read-only without a target: ENABLING with an empty spec, and back."""

from __future__ import annotations

from lakeferry.errors import RedirectIllegalTransition
from lakeferry.log import features, protocols
from lakeferry.log.commit import Conflict
from lakeferry.log.replay import State as TableState
from lakeferry.redirect import arrivals, cancel, commits, dialects, model, states
from lakeferry.redirect.commits import Bare
from lakeferry.redirect.model import Data, Journal, Mode, Redirect
from lakeferry.redirect.moving import Outcome
from lakeferry.redirect.setting import Setting
from lakeferry.redirect.states import Event, State
from lakeferry.storage.uris import shell_safe


def freeze(setting: Setting, table: str, mode: Mode = Mode.WRITER_ONLY) -> Outcome:
    """Keep everybody from writing to a table. Twice is once."""
    log = setting.log(table)
    state = log.state()
    if not check_freezable(state, table, mode):
        return Outcome(State.ENABLING, table, None, state.version, False, frozen=True)
    log.check_checksum(state.version)
    move_id = setting.new_id()
    entry = Redirect(
        mode,
        State.ENABLING,
        journal=Journal(Data.EXISTING, protocols.versions(state.protocol), move_id=move_id),
    )
    after = Bare(state.protocol, state.metadata).carrying(entry)
    wanted = commits.transition(state, after, State.ENABLING, move_id, setting.new_id())
    arrivals.begin(log.store, entry)
    result = log.commit(wanted, state)
    if isinstance(result, Conflict):
        raise result.error()
    return Outcome(State.ENABLING, table, None, result.version, True, frozen=True)


def check_freezable(state: TableState, table: str, mode: Mode) -> bool:
    """Refuse to freeze what is redirected or can't be written to; tell whether it isn't frozen."""
    redirect = dialects.read(state.protocol, state.metadata, table)
    if redirect is not None:
        model.check_single(redirect, table)
        if redirect.is_frozen and redirect.mode is mode:
            return False
    states.after(redirect.state if redirect else State.NORMAL, Event.FREEZE, table)
    features.check_writable(state.protocol)
    dialects.check_no_stray(state.protocol, state.metadata, table)
    return True


def thaw(setting: Setting, table: str) -> Outcome:
    """Let everybody write to a frozen table again. Twice is once."""
    log = setting.log(table)
    state = log.state()
    redirect = dialects.read(state.protocol, state.metadata, table)
    if redirect is None:
        return Outcome(State.NORMAL, table, None, state.version, False)
    check_frozen(redirect, table)
    version = cancel.remove_entry(setting, log, state, redirect)
    return Outcome(State.NORMAL, table, None, version, True)


def check_frozen(redirect: Redirect, table: str) -> None:
    """Refuse to thaw what is redirected, or on its way."""
    model.check_single(redirect, table)
    states.after(redirect.state, Event.THAW, table)
    if not redirect.is_frozen:
        raise RedirectIllegalTransition(
            f"{table} isn't frozen, it is being moved",
            cause=f"its target is {redirect.target}",
            remedy=f"'lakeferry redirect cancel {shell_safe(table)}' goes back",
            location=table,
            state=redirect.state.value,
        )
