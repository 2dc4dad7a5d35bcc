"""Cancels a move: goes back from ENABLING to NORMAL.

The closing commit at the target's *N+1* decides. Then the copies are deleted
(:mod:`~lakeferry.redirect.cancelled_copies`), and the source's *N+1* says NORMAL.
"""

from __future__ import annotations

from functools import partial

from lakeferry.errors import (
    CatalogUnavailable,
    CommitConflict,
    CorruptLog,
    Forbidden,
    InvalidInput,
    LakeferryError,
    NotATable,
    RedirectIllegalTransition,
    RedirectSpecInvalid,
    RedirectTargetNotEmpty,
    StorageError,
    TableNotFound,
    TimedOut,
    Unauthorized,
)
from lakeferry.log.replay import TableState as TableState
from lakeferry.redirect import (
    cancelled_copies,
    entry,
    move_lookup,
    read_entry,
    redirect_commits,
    settling,
    states,
    target_registration,
)
from lakeferry.redirect.cancelled_copies import claim_of_move, ends_of_move, record_of_move
from lakeferry.redirect.enable import (
    existing_target,
    log_staging,
    managed_loss,
    move_record,
    target_claim,
    unfinished_move,
)
from lakeferry.redirect.enable.target_claim import Claim
from lakeferry.redirect.entry import Data, Redirect
from lakeferry.redirect.move import Move
from lakeferry.redirect.outcome import Outcome
from lakeferry.redirect.redirect_context import Setting
from lakeferry.redirect.states import RedirectEvent, RedirectState
from lakeferry.storage.uris import shell_safe
from lakeferry.table import DeltaLog


def cancel(setting: Setting, source_uri: str, *, leave_copies: bool = False) -> Outcome:
    """Cancel a move that isn't past the point of no return. Idempotent.

    ``leave_copies`` is for a move whose target can't be reached any more: only the source goes
    back to NORMAL, and the copies stay at the target.
    """
    source = setting.log(source_uri)
    state = source.state()
    redirect = read_entry.read(state.protocol, state.metadata, source_uri)
    if redirect is None:
        outcome = unfinished_move.take_back_unfinished(
            setting, source, state.version, leave_copies=leave_copies
        )
        if outcome is not None:
            return outcome
        # The move has committed ENABLING since we read the state.
        state = source.state()
        redirect = read_entry.read(state.protocol, state.metadata, source_uri)
        if redirect is None:
            return Outcome(RedirectState.NORMAL, source_uri, None, state.version, True)
    entry.check_own_redirect(redirect, source_uri)
    states.after(redirect.state, RedirectEvent.CANCEL, source_uri)
    if redirect.journal is None or redirect.is_frozen:
        # Another program's redirect, or a frozen table: there is nothing of ours to delete.
        version = redirect_commits.remove_entry(setting, source, state, redirect)
        return Outcome(RedirectState.NORMAL, source_uri, None, version, True)
    try:
        move = move_lookup.begun(setting, source, state, redirect)
    except RedirectSpecInvalid:
        return _let_go(setting, source, state, redirect, leave_copies=leave_copies)
    except (CatalogUnavailable, Forbidden, Unauthorized) as closed:
        # Without a token, or as another user than the one who began, we have no way to the target.
        if not leave_copies:
            place = move_lookup.place_of_target(redirect)
            if isinstance(closed, CatalogUnavailable):
                closed.remedy = unfinished_move.ways_on(source_uri, place)
            else:
                closed.remedy = (
                    f"{closed.remedy}; if nobody can do that any more, 'lakeferry redirect cancel "
                    f"{shell_safe(source_uri)} --leave-copies' takes back the source alone"
                )
            raise
        return _without_target(
            move_lookup.begun(setting, source, state, redirect, asks_catalog=False), closed
        )
    if redirect.journal.data is Data.EXISTING:
        return existing_target.cancel_to_existing(move)
    try:
        return take_back(move, leave_copies=leave_copies)
    except (StorageError, TimedOut, InvalidInput, CatalogUnavailable) as failed:
        if not leave_copies:
            failed.remedy = unfinished_move.ways_on(source_uri, move.place.uri)
            raise
        return _without_target(move, failed)


def take_back(move: Move, *, leave_copies: bool = False) -> Outcome:
    """Cancel a move at its source and its target."""
    source_uri = move.source.store.uri
    if is_lost(move):
        if move.managed is not None and not leave_copies:
            managed_loss.check_given_up(move)
        outcome = _end_at_source(move)
        what = f"some files of the move at {move.place.uri}"
        settling.attempt(move.setting, what, partial(_leave_to_others, move))
        return outcome
    kept: tuple[str, ...] = ()
    try:
        decided, info = move.decide(RedirectState.NORMAL)
        if decided is RedirectState.NORMAL:
            kept = cancelled_copies.finish_cancel(move, info)
    except LakeferryError as failed:
        # Another process may have ended the move meanwhile: then its result counts.
        ended = move.ended()
        if ended is None:
            if isinstance(failed, InvalidInput) and managed_loss.drop_undecided(move):
                return _without_table(move)
            raise
        decided = ended
    if decided is RedirectState.READY:
        raise past_return(move)
    return Outcome(RedirectState.NORMAL, source_uri, None, move.version + 1, True, kept=kept)


def _without_target(move: Move, failed: LakeferryError) -> Outcome:
    """Cancel at the source alone. A process that still runs the move sees that and cleans up."""
    outcome = _end_at_source(move)
    then = "delete them yourself, so that nobody mistakes them for the table"
    if move.managed is not None:
        table = f"{move.redirect.kind.catalog}:{move.managed.table_id}"
        then = (
            f"if the catalog has the table {table}, clients may use it: copy from it the rows that "
            f"the source lacks, then run 'lakeferry catalog remove {table} --yes'"
        )
    move.setting.warn(f"the copies at {move.place.uri} aren't deleted ({failed}): {then}")
    return outcome


def _without_table(move: Move) -> Outcome:
    """Cancel a move whose table was dropped, because its catalog doesn't let us close it."""
    outcome = _end_at_source(move)
    claim, ends = claim_of_move(move), ends_of_move(move)
    leave = partial(managed_loss.leave_managed, move, claim, ends, was_closed=True)
    settling.attempt(move.setting, f"some files of the move at {move.place.uri}", leave)
    return outcome


def _end_at_source(move: Move) -> Outcome:
    """Set the source to NORMAL and delete the move's record; leave the target as it is."""
    outcome = existing_target.cancel_to_existing(move)
    forget = partial(cancelled_copies.forget_move, move)
    settling.attempt(move.setting, "the record of the move", forget)
    return outcome


def _leave_to_others(move: Move) -> None:
    """Delete our staged files and our claim at a place that another table has by now."""
    store = move.place
    if move.managed is not None:
        managed_loss.leave_managed(move, claim_of_move(move), ends_of_move(move))
    elif target_claim.is_place_claimed(store, claim_of_move(move)):
        log_staging.delete(store, list(log_staging.staged_files(store, move.journal.move_id)))
        target_claim.release(store, claim_of_move(move))
        store.prune(log_staging.STAGING_FOLDER)


def is_lost(move: Move) -> bool:
    """Return whether the target's place belongs to another table by now."""
    if move.managed is not None:
        return managed_loss.is_out_of_reach(move)
    claim = _claim_at(move.place_log)
    if claim is not None:
        return not claim.is_of(claim_of_move(move)) or move.is_replaced()
    there, _ = _table_at(move.place_log)
    if there is None:
        return False
    # This move locks its table before it publishes it; without our lock it is another table.
    return not move.is_locked()


def past_return(move: Move) -> RedirectIllegalTransition:
    """Return the error for the cancel of a move whose target is open."""
    source = move.source.store.uri
    after = (
        ""
        if move.managed is not None
        else f"; after that 'lakeferry redirect disable {shell_safe(source)}' brings the table back"
    )
    return RedirectIllegalTransition(
        f"the move of {source} can't be cancelled any more",
        cause=f"its target {move.place.uri} is open: clients may already use it",
        remedy=f"'lakeferry redirect resume {shell_safe(source)}' completes the move{after}",
        location=source,
        state=RedirectState.ENABLING.value,
    )


# --- Where the newest version isn't the one that began the move ------------------


def _let_go(
    setting: Setting,
    source: DeltaLog,
    state: TableState,
    redirect: Redirect,
    *,
    leave_copies: bool,
) -> Outcome:
    """Remove the entry of a move that can't be resumed, and delete what the move has copied.

    Another writer has committed on top of it, or an old entry is back, e.g. by a RESTORE.
    """
    move = to_take_back(setting, source, state, redirect, leave_copies=leave_copies)
    ours: Claim | None = None
    kept: tuple[str, ...] = ()
    if move is not None:
        # One put decides here too: a process that is about to open the target finds it closed.
        if move.decide(RedirectState.NORMAL)[0] is RedirectState.READY:
            raise _opened(source.store.uri, move.place.uri, move.redirect)
        target_registration.unregister_target(setting, redirect, move.place.uri)
        ours = target_claim.revoke_claim(move.place, claim_of_move(move))
        claimed = partial(target_claim.is_place_claimed, move.place, ours)
        still = partial(cancelled_copies.is_still_ours, move, claimed)
        move_record.cancelling(source.store, record_of_move(move))
        kept = cancelled_copies.remove_copies_of(move, still, move.is_locked)
    try:
        version = redirect_commits.remove_entry(setting, source, state, redirect)
    except CommitConflict:
        now = source.state()
        if read_entry.read(now.protocol, now.metadata, source.store.uri) is not None:
            raise
        version = now.version
    if move is not None and ours is not None:
        cancelled_copies.leave_cancelled(move, ours)
    elif redirect.journal is not None:
        move_id = redirect.journal.move_id
        forget = partial(move_record.forget_record, source.store, move_id)
        settling.attempt(setting, "the record of the move", forget)
    return Outcome(RedirectState.NORMAL, source.store.uri, None, version, True, kept=kept)


def to_take_back(
    setting: Setting,
    source: DeltaLog,
    state: TableState,
    redirect: Redirect,
    *,
    leave_copies: bool,
) -> Move | None:
    """Return the move that has copied to its target, if the place still belongs to it.

    Refuses if the target is open: then there are two tables, and the user has to choose
    which one to delete.
    """
    if redirect.journal is None or redirect.journal.data is Data.EXISTING:
        return None
    move = move_lookup.begun_earlier(setting, source, redirect)
    if move is not None and move.managed is not None and managed_loss.is_dropped(move):
        if not leave_copies:
            managed_loss.check_given_up(move)
        return None
    target = setting.log(move_lookup.place_of_target(redirect))
    there, lock = _table_at(target)
    try:
        found = move.decision() if move is not None else None
    except CommitConflict:
        # The target's N+1 is another writer's: the place doesn't belong to this move any more.
        return None
    decided = found[0] if found is not None else None
    if there is None:
        # No table yet: the place is ours if this move, or another one of the table, claims it.
        claim = _claim_at(target)
        ours = claim is not None and move is not None and claim.is_of(claim_of_move(move))
        return move if ours and decided is not RedirectState.READY else None
    if lock is not None:
        # A target closed by a withdrawal was open before, and its files may be needed.
        same = lock.journal is not None and lock.journal.move_id == redirect.journal.move_id
        unopened = lock.state is RedirectState.ENABLING or decided is RedirectState.NORMAL
        return move if same and unopened else None
    opened = move is None or decided is RedirectState.READY or _is_cleaned(move)
    if opened and there.metadata.id == state.metadata.id:
        raise _opened(source.store.uri, target.store.uri, redirect)
    return None


def _table_at(target: DeltaLog) -> tuple[TableState | None, Redirect | None]:
    """Return the table at a place and its lock; ``None`` for each that can't be read."""
    try:
        there = target.state()
    except (TableNotFound, NotATable, CorruptLog):
        return None, None
    try:
        found = read_entry.read(there.protocol, there.metadata, target.store.uri)
    except RedirectSpecInvalid:
        return there, None
    return there, found if found is not None and found.is_target(target.store.uri) else None


def _claim_at(target: DeltaLog) -> Claim | None:
    """Return the claim at a place, or ``None`` if there is none that can be read."""
    try:
        return target_claim.read_claim(target.store)
    except RedirectTargetNotEmpty:
        return None


def _is_cleaned(move: Move) -> bool:
    """Return whether the target's *N+1* is missing: log cleanup may have deleted it."""
    return redirect_commits.read_commit(move.place, move.version + 1) is None


def _opened(source: str, target: str, redirect: Redirect) -> RedirectIllegalTransition:
    delete, cancel = f"delete {target}", f"redirect cancel {shell_safe(source)}"
    managed = redirect.journal.managed if redirect.journal is not None else None
    if managed is not None:
        table = f"{redirect.kind.catalog}:{managed.table_id}"
        delete = f"run 'lakeferry catalog remove {table} --yes --force'"
        cancel = f"{cancel} --leave-copies"
    return RedirectIllegalTransition(
        f"the move of {source} can't be cancelled",
        cause=f"its target {target} is open already, and somebody has written to the source "
        "since then: there are two tables",
        remedy="copy the rows that were written to the target, if there are any, to the source; "
        f"{delete}; then 'lakeferry {cancel}' removes the redirect",
        location=source,
        state=RedirectState.ENABLING.value,
        target=target,
    )
