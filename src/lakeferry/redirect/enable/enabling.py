"""Moves a table: goes from NORMAL to READY.

1. Preflight refuses what can't be moved (:mod:`~lakeferry.redirect.enable.preflight`).
2. Data and log are copied while writers go on (:mod:`~lakeferry.redirect.enable.precopy`).
3. The source's version *N* says ENABLING: from here on writers are refused.
4. What was written during step 2 is copied.
5. The target's *N* locks it, then its log is published, then its name is registered.
6. The target's *N+1* opens it: the point of no return. The source's *N+1* says READY.

Both logs together are the journal. A process that finds the source in ENABLING can
resume at step 4; one that finds the target's *N+1* follows that decision.
"""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial

from lakeferry.errors import (
    CommitConflict,
    Forbidden,
    InvalidInput,
    LakeferryError,
    RedirectInProgress,
    RedirectSpecInvalid,
    RedirectTargetNotEmpty,
    TableError,
    Unauthorized,
    UnsupportedFeature,
)
from lakeferry.log.actions import CommitInfo
from lakeferry.log.replay import TableState as TableState
from lakeferry.redirect import (
    cancel,
    cancelled_copies,
    copy_comparison,
    read_entry,
    states,
    steps,
    target_registration,
)
from lakeferry.redirect.disable import target_removal
from lakeferry.redirect.enable import closed_target as closed
from lakeferry.redirect.enable import (
    enabling_commit,
    ended_move,
    existing_target,
    giving_up,
    leftovers,
    log_staging,
    managed_move,
    move_record,
    preflight,
    target_claim,
    unfinished_move,
)
from lakeferry.redirect.enable import repeated_enable as again
from lakeferry.redirect.enable.move_record import MoveRecord
from lakeferry.redirect.enable.precopy import Crossing
from lakeferry.redirect.enable.preflight import Request
from lakeferry.redirect.enable.target_claim import Claim
from lakeferry.redirect.entry import Data
from lakeferry.redirect.move import Move
from lakeferry.redirect.outcome import Outcome
from lakeferry.redirect.redirect_context import Setting
from lakeferry.redirect.states import RedirectEvent, RedirectState
from lakeferry.storage import Store
from lakeferry.storage.uris import same_place, shell_safe
from lakeferry.table import DeltaLog


def enable(setting: Setting, request: Request, state: TableState | None = None) -> Outcome:
    """Move a table, or raise an error that says why not. Idempotent for the same request.

    ``state`` is the source's, if the caller has loaded it.
    """
    source = setting.log(request.source)
    state = source.state() if state is None else state
    redirect = read_entry.read(state.protocol, state.metadata, request.source)
    if redirect is not None:
        return again.answer(setting, source, state, redirect, request)
    states.after(RedirectState.NORMAL, RedirectEvent.ENABLE, request.source)
    request = managed_move.located(setting, source, request, state)
    preflight.check_move(setting, request, state)
    preflight.check_not_in_a_table(setting, request)
    enabling_commit.check_can_begin(source, request, state)
    stale = unfinished_move.check_no_unfinished_move(setting, source.store, request)
    if request.data is Data.EXISTING:
        return existing_target.enable_to_existing(setting, source, state, request)
    target = unfinished_move.open_requested(setting, request)
    record = MoveRecord(setting.new_id(), state.metadata.id, request)
    record, resumed = _claim(setting, source, target, state, record, stale)
    if record.request.compares and not request.compares:
        setting.warn(
            "the unfinished move was started with --verify full: the files are read at both ends"
        )
    request, claim = record.request, record.claim
    guard = partial(target_claim.check_claimed, target, claim)
    crossing = Crossing(
        setting,
        source,
        target,
        request.data,
        claim.move_id,
        guard,
        resumed=resumed,
        compares=request.compares,
        compared_version=record.compared_version,
    )
    try:
        state = crossing.precopy(state)
    except LakeferryError as failed:
        if not target_claim.is_place_claimed(target, claim):
            giving_up.clear_after_cancel(setting, source, target, claim, request)
            # If another move took the place or this one was cancelled, raise that instead.
            guard()
        if isinstance(failed, RedirectTargetNotEmpty):
            giving_up.step_back(setting, source, crossing, claim)
        elif isinstance(failed, UnsupportedFeature):
            # A retry can't move this table in this way either, so nothing is kept to resume.
            giving_up.take_back_impossible(setting, source, state.version)
        raise
    if request.managed:
        guard()
        managed_move.create_table(setting, source, request, state)
    return _move(setting, source, state, request, claim, crossing)


def _claim(
    setting: Setting,
    source: DeltaLog,
    target: Store,
    state: TableState,
    record: MoveRecord,
    stale: MoveRecord | None,
) -> tuple[MoveRecord, bool]:
    """Write the record and claim the target; return whether copies may be there already.

    The record is returned as it was written.

    All checks that can refuse the move run before the first write.
    """
    claim = record.claim
    in_the_way = leftovers.to_clear(setting, target, claim)
    closed_target = closed.to_replace(setting, source, state, record.request)
    if in_the_way is None and closed_target is None:
        leftovers.check_reusable(setting, target, claim)
    preflight.try_name(setting, record.request, state)
    preflight.probe(source.store, claim.move_id)
    if not record.request.managed:
        # A managed target's catalog decides. Nothing is written there before it is on record.
        preflight.probe(target, claim.move_id)
    taken = move_record.take_record(source.store, record, stale)
    if taken.move_id != record.move_id:
        raise unfinished_move.in_the_way(taken)
    try:
        if closed_target is not None:
            setting.warn(f"the closed table at {target.uri} is deleted")
            target_removal.delete_target(closed_target)
        if in_the_way is not None:
            leftovers.clear_leftovers(setting, target, claim, in_the_way)
        resumed = target_claim.claim(target, claim)
        setting.step(steps.at("claim", target.uri))
    except RedirectTargetNotEmpty:
        move_record.forget_record(source.store, claim.move_id)
        raise
    found = move_record.read_record(source.store)
    if found is None or not same_place(found.location, record.location):
        # Another process has begun a move elsewhere, or cancelled this one, at the same time.
        target_claim.release(target, claim)
        target.prune("")
        raise unfinished_move.in_the_way(found) if found is not None else cancelled(record.request)
    return taken, resumed


def cancelled(request: Request) -> CommitConflict:
    """Return the error for a move that was cancelled meanwhile."""
    return CommitConflict(
        f"the move of {request.source} was cancelled meanwhile",
        cause="somebody ran 'redirect cancel'",
        remedy="run the same command again to move the table nevertheless",
        reason="move_ended",
    )


def _move(
    setting: Setting,
    source: DeltaLog,
    state: TableState,
    request: Request,
    claim: Claim,
    crossing: Crossing,
) -> Outcome:
    """Commit ENABLING and finish; start over if a writer without put-if-absent replaced it."""
    known: TableState | None = state
    for _ in range(enabling_commit.MAX_BEGINNINGS):
        try:
            move = enabling_commit.commit_enabling(
                setting, source, request, crossing.move_id, known
            )
        except RedirectInProgress:
            giving_up.give_way(setting, source, request, crossing.target, claim)
            raise
        began = time.monotonic()
        if not target_claim.is_place_claimed(crossing.target, claim):
            if cancel.is_lost(move):
                existing_target.cancel_to_existing(move)
                move_record.forget_record(source.store, claim.move_id)
                raise target_claim.not_free(request.location, "another table was given the place")
            found = target_claim.read_claim(crossing.target)
            if found is None or found.cancelled:
                # Another process may resume this move already, so the target has to decide.
                cancel.cancel(setting, request.source)
                giving_up.clear_after_cancel(setting, source, crossing.target, claim, request)
                raise cancelled(request)
            # Another move of the table to the same place is being prepared.
            crossing = anew(move)
        try:
            move.check_not_replaced()
            outcome = finish_enable(move, crossing)
        except CommitConflict as conflict:
            if conflict.fields.get("reason") != "version_replaced":
                raise
            setting.warn(f"{conflict}; starting again")
            giving_up.unlock_replaced(move)
            known = None
            continue
        blocked_ms = round((time.monotonic() - began) * 1000)
        if outcome.state is RedirectState.READY:
            version, move_id = move.version + 1, move.journal.move_id
            ended_move.settle_move(
                setting, source, move.target, version, move_id, resumed=crossing.resumed
            )
        return replace(outcome, blocked_ms=blocked_ms)
    raise CommitConflict(
        f"the redirect of {request.source} couldn't be started",
        cause="a writer without put-if-absent kept overwriting our commit",
        remedy="stop that writer until the move has begun, and run the same command again "
        "(docs/concurrency.md lists such engines)",
        reason="version_replaced",
    )


def anew(move: Move, compares: bool | None = None) -> Crossing:
    """Return a crossing that knows nothing of earlier copies and lists the target again.

    ``compares`` is what the user says now about reading copies at both ends, if anything.
    """
    store = move.source.store
    compares = copy_comparison.chosen(compares, move.journal.compares, store.uri)
    record = move_record.read_record(store) if compares else None
    if record is not None and record.move_id != move.journal.move_id:
        record = None
    return Crossing(
        move.setting,
        move.source,
        move.place,
        move.journal.data,
        move.journal.move_id or "",
        move.check_going,
        resumed=True,
        is_rest=True,
        compares=compares,
        compared_version=-1 if record is None else record.compared_version,
    )


def finish_enable(move: Move, crossing: Crossing) -> Outcome:
    """Go from ENABLING to READY, or to NORMAL if another process has decided so."""
    crossing.guard = partial(_check_ours, move)
    try:
        decided = move.decision()
        if decided is None:
            _bring(move, crossing)
            move.check_undecided()
            decided = _open(move)
        _follow(move, *decided)
        ended = decided[0]
    except target_registration.TakenBack as back:
        raise back.error from None
    except LakeferryError:
        # Another process may have decided or even ended the move meanwhile: then its result
        # counts. The order matters, as a cancel deletes its closing commit at the end.
        decided = _decided(move)
        found = move.ended()
        if found is RedirectState.NORMAL:
            cancelled_copies.abandon_move(move)
        elif decided is None:
            giving_up.leave_to_stranger(move, crossing)
        if found is None:
            if decided is None:
                raise
            _follow(move, *decided)
            found = decided[0]
        ended = found
    return Outcome(
        ended,
        move.source.store.uri,
        str(move.redirect.target) if ended is RedirectState.READY else None,
        move.version + 1,
        True,
        crossing.copied.objects,
        crossing.copied.bytes,
        by_store_bytes=crossing.copied.by_store_bytes,
        compared=crossing.copied.compared if crossing.compares else None,
    )


def _check_ours(move: Move) -> None:
    """Refuse to copy more if the move has ended or another table has its place."""
    move.check_going()
    if move.is_taken():
        raise target_claim.not_free(move.place.uri, "another table was created there meanwhile")


def _decided(move: Move) -> tuple[RedirectState, CommitInfo] | None:
    """Return what the target's *N+1* says, or ``None`` if it is another move's."""
    try:
        return move.decision()
    except CommitConflict:
        return None


def _follow(move: Move, decided: RedirectState, info: CommitInfo) -> None:
    """End the move at the source as the target's *N+1* says."""
    if decided is RedirectState.NORMAL:
        cancelled_copies.finish_cancel(move, info)
        return
    if move.managed is None:
        move.end(RedirectState.READY, info, target_registration.register_after_decision(move))
    else:
        move.end(RedirectState.READY, info, managed_move.give_final_name(move))


def _bring(move: Move, crossing: Crossing) -> None:
    """Copy the rest, lock the target, publish its log, and register its name."""
    listing = move.source.listing()
    crossing.urgent = crossing.version >= 0
    if not move.is_locked():
        # From here on nothing is replaced: files that are there already have the same bytes.
        # So a process that is paused here can't damage a later move.
        log_staging.check_unopened(move.place)
    crossing.round(listing, before=move.version)
    move.check_not_replaced()
    place, is_locked = move.place.uri, move.is_locked()
    if not is_locked:
        log_staging.check_unopened(move.place)
    move.put_lock()
    if not is_locked:
        move.setting.step(steps.commit_step(place, move.version, RedirectState.ENABLING))
    move.check_undecided()
    crossing.publish(listing, move.version)
    move.setting.step(steps.at("publish", place))
    _check_target(move, listing.earliest_version())
    if move.managed is None:
        _register(move)
    else:
        managed_move.check_name(move)
    move.check_not_replaced()


def _open(move: Move) -> tuple[RedirectState, CommitInfo]:
    """Put the opening *N+1*; if a catalog refuses it by its rules, take the whole move back.

    Writers are blocked by now, and a retry wouldn't help.
    """
    try:
        return move.decide(RedirectState.READY)
    except InvalidInput as refused:
        if move.managed is None:
            raise
        source = move.source.store.uri
        try:
            cancel.take_back(move)
        except LakeferryError as failed:
            move.setting.warn(f"the move of {source} couldn't be undone automatically: {failed}")
            raise refused from failed
        raise target_registration.TakenBack(refused, source) from refused


def _register(move: Move) -> None:
    """Register the target's name; if the catalog refuses it, cancel the whole move.

    Writers are blocked by now, and a retry wouldn't help. If the catalog doesn't answer,
    the move isn't cancelled: 'redirect resume' can finish it later.
    """
    try:
        named = target_registration.register_target(move)
    except (InvalidInput, Forbidden, Unauthorized, TableError) as refused:
        source = move.source.store.uri
        try:
            decided, info = move.decide(RedirectState.NORMAL)
            if decided is RedirectState.NORMAL:
                cancelled_copies.finish_cancel(move, info)
        except LakeferryError as failed:
            move.setting.warn(f"the move of {source} couldn't be undone automatically: {failed}")
            raise refused from failed
        if decided is RedirectState.NORMAL:
            raise target_registration.TakenBack(refused, source) from refused
        # Another process has opened the target meanwhile.
        raise
    if named is not None:
        place = move.place.uri
        move.setting.step(steps.name("register", move.redirect.target, place))


def _check_target(move: Move, earliest: int | None) -> None:
    """Open the target as any client does; refuse if it isn't the same table, and locked."""
    listing = move.target.listing()
    found = move.target.state(move.version)
    wanted = move.locked
    same = (
        found.protocol.unordered == wanted.protocol.unordered
        and found.metadata == wanted.metadata
        and listing.earliest_version() is not None
        and (listing.earliest_version() or 0) <= (earliest or 0)
    )
    if not same:
        raise RedirectSpecInvalid(
            f"the copy at {move.place.uri} is wrong",
            cause=f"version {move.version} there differs from version {move.version} of the source",
            remedy=f"'lakeferry redirect cancel {shell_safe(move.source.store.uri)}' undoes the "
            "move; nothing is lost at the source",
            value=move.version,
        )
