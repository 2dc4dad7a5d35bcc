"""Resumes an interrupted move or withdrawal of a table."""

from __future__ import annotations

from dataclasses import replace

from lakeferry.errors import InvalidInput, RedirectIllegalTransition, RedirectTargetNotEmpty
from lakeferry.log.replay import TableState as TableState
from lakeferry.redirect import (
    cancel,
    copy_comparison,
    entry,
    managed_commits,
    move_lookup,
    read_entry,
    states,
    steps,
    target_registration,
)
from lakeferry.redirect.disable import disabling
from lakeferry.redirect.disable.withdrawal import WithdrawalOptions
from lakeferry.redirect.disable.withdrawn_target import check_target
from lakeferry.redirect.enable import (
    enabling,
    ended_move,
    existing_target,
    managed_move,
    move_record,
    target_claim,
)
from lakeferry.redirect.entry import Data, Redirect
from lakeferry.redirect.move import Move
from lakeferry.redirect.outcome import Outcome
from lakeferry.redirect.redirect_context import Setting
from lakeferry.redirect.states import RedirectEvent, RedirectState
from lakeferry.storage.uris import same_place, shell_safe
from lakeferry.table import DeltaLog


def resume(
    setting: Setting, source_uri: str, name: str | None = None, compares: bool | None = None
) -> Outcome:
    """Resume the interrupted move or withdrawal of a table.

    ``name`` is another name for a managed target, whose name was taken meanwhile. ``compares`` is
    what the user says about reading copies at both ends; ``None`` goes on as it began.
    """
    source = setting.log(source_uri)
    state = source.state()
    redirect = read_entry.read(state.protocol, state.metadata, source_uri)
    record = move_record.read_record(source.store) if redirect is None else None
    if record is not None:
        request = record.request
        if name is not None and not record.cancelled:
            _check_takes_name(request.managed, source_uri)
            request = replace(request, target=managed_move.named_otherwise(request.target, name))
        if not record.cancelled:
            reads = copy_comparison.chosen(compares, request.compares, source_uri)
            request = replace(request, compares=reads)
        return (
            cancel.cancel(setting, source_uri)
            if record.cancelled
            else enabling.enable(setting, request, state)
        )
    redirect = resumable(redirect, source_uri)
    if name is not None:
        moving_there = redirect.state is RedirectState.ENABLING and redirect.journal is not None
        managed = moving_there and redirect.journal is not None and redirect.journal.managed
        _check_takes_name(bool(managed), source_uri)
    if redirect.state is RedirectState.ENABLING:
        return _resume_enabling(setting, source, state, redirect, name, compares)
    nowhere = move_lookup.leads_nowhere(source, redirect, state.version)
    if nowhere or disabling.has_begun(setting, redirect):
        brings_back = redirect.journal is not None and redirect.journal.returns is not None
        options = WithdrawalOptions(bring_back=brings_back, compares=compares)
        return disabling.disable(setting, source_uri, options)
    return _resume_ready(setting, source, state, redirect)


def resumable(redirect: Redirect | None, source_uri: str) -> Redirect:
    """Refuse a table that has nothing to go on with."""
    if redirect is None:
        states.after(RedirectState.NORMAL, RedirectEvent.FINISH, source_uri)
    elif redirect.is_frozen:
        raise RedirectIllegalTransition(
            f"{source_uri} is frozen",
            cause="it has no target, so there is no move to resume",
            remedy=f"'lakeferry redirect thaw {shell_safe(source_uri)}' makes it writable again",
            location=source_uri,
            state=redirect.state.value,
        )
    assert redirect is not None
    entry.check_own_redirect(redirect, source_uri)
    is_ready = redirect.state is RedirectState.READY
    if redirect.journal is None:
        raise RedirectIllegalTransition(
            f"the redirect of {source_uri} can't be resumed",
            cause="another program made it",
            remedy="continue with that program, or remove the redirect: lakeferry redirect "
            f"{'disable' if is_ready else 'cancel'} {shell_safe(source_uri)}",
            location=source_uri,
            state=redirect.state.value,
        )
    return redirect


def _check_takes_name(managed: bool, source: str) -> None:
    """Refuse another name for a target that has its name, or needs none."""
    if not managed:
        raise InvalidInput(
            f"the target of {source} can't get another name",
            cause="only the target of an unfinished move to a managed table can get another name",
            remedy="leave out --name",
            location=source,
        )


def _resume_enabling(
    setting: Setting,
    source: DeltaLog,
    state: TableState,
    redirect: Redirect,
    name: str | None,
    compares: bool | None,
) -> Outcome:
    move = move_lookup.begun(setting, source, state, redirect)
    if name is not None and redirect.target is not None:
        move = replace(move, name=managed_move.named_otherwise(redirect.target, name).name)
    if move.journal.data is Data.EXISTING:
        return existing_target.finish_to_existing(move)
    check_place(move)
    if move.decision() is None:
        # An invalid token or a missing setting doesn't end the move: the user can fix it and
        # resume again.
        target_registration.check_catalog_answers(move)
    outcome = enabling.finish_enable(move, enabling.anew(move, compares))
    if outcome.state is RedirectState.READY:
        ended_move.settle_move(setting, source, move.target, move.version + 1, move.journal.move_id)
    return outcome


def check_place(move: Move) -> None:
    """Refuse to bring anything to a place that is another table's by now."""
    if cancel.is_lost(move):
        cause = f"the move of {move.source.store.uri} was interrupted before it locked the target"
        if move.managed is not None:
            cause = (
                f"unity:{move.managed.private_name} was dropped, or somebody else has committed "
                "to it before it was open"
            )
        raise RedirectTargetNotEmpty(
            f"{move.place.uri} has been taken by another table"
            if move.managed is None
            else f"the move of {move.source.store.uri} to {move.redirect.target} can't continue",
            cause=cause,
            remedy=f"'lakeferry redirect cancel {shell_safe(move.source.store.uri)}' undoes the "
            "move; then choose another target",
            target=move.place.uri,
        )


def _resume_ready(
    setting: Setting, source: DeltaLog, state: TableState, redirect: Redirect
) -> Outcome:
    """Do what may be left to do after READY; the state stays."""
    journal = redirect.journal
    assert journal is not None
    place: str | None = None
    target = check_target(setting, source.store.uri, state, redirect)
    changed = journal.managed is not None and managed_commits.restore_requirements(
        setting, target, journal.managed
    )
    if journal.data is not Data.EXISTING and journal.ready_version is not None:
        place = target.store.uri
        claim = target_claim.read_claim(target.store)
        if claim is not None and same_place(claim.source, source.store.uri):
            version, move_id = journal.ready_version, journal.move_id
            if ended_move.settle_move(setting, source, target, version, move_id):
                setting.step(steps.at("clear", place))
        else:
            move_record.forget_record(source.store, journal.move_id)
    return Outcome(
        redirect.state,
        source.store.uri,
        str(redirect.target) if redirect.target else place,
        state.version,
        changed,
    )
