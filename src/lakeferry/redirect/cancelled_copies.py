"""Deletes what a cancelled move has copied, in an order that nobody can mistake for a table.

After the closing commit at the target these are deleted, in order: the target's name, the staged
files, the other copies. Then the source's *N+1* says NORMAL. At last the lock, the closing commit
and the claim are deleted. They stay until the source is NORMAL, so that no other process can open
the target meanwhile. The staged files go first, so that nobody can publish the rest as a table.

Before each wave of deletions it is checked that the place still belongs to this move: two processes
may cancel at once, and a new move may begin when the faster one is done.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from lakeferry.errors import CommitConflict, LakeferryError, RedirectTargetNotEmpty
from lakeferry.log import paths
from lakeferry.log.actions import CommitInfo
from lakeferry.redirect import (
    managed_place,
    received_entries,
    redirect_commits,
    settling,
    steps,
    target_registration,
)
from lakeferry.redirect.enable import (
    log_staging,
    managed_move,
    move_record,
    target_claim,
)
from lakeferry.redirect.enable.move_record import MoveRecord
from lakeferry.redirect.enable.preflight import Request
from lakeferry.redirect.enable.target_claim import Claim
from lakeferry.redirect.move import Move
from lakeferry.redirect.states import RedirectState
from lakeferry.storage.uris import shell_safe


def finish_cancel(move: Move, decided: CommitInfo) -> tuple[str, ...]:
    """Finish a cancel after the target's *N+1* closed it; return the files that aren't ours."""
    kept: tuple[str, ...] = ()
    # If another table is there by now, only this move's lock and N+1 belong to us.
    if move.is_going() and not move.is_taken():
        managed_move.publish_decision(move)
        target_registration.unregister_target(move.setting, move.redirect, move.place.uri)
        ours = target_claim.revoke_claim(move.place, claim_of_move(move))
        # With this record 'cancel' can finish the cleanup even if the source is NORMAL already.
        move_record.cancelling(move.source.store, record_of_move(move))

        def claimed() -> bool:
            return move.is_going() and target_claim.is_place_claimed(move.place, ours)

        still = partial(is_still_ours, move, claimed)

        kept = remove_copies_of(move, still, move.is_locked)
    move.end(RedirectState.NORMAL, decided)
    leave_cancelled(move, replace(claim_of_move(move), cancelled=True))
    return kept


def is_still_ours(move: Move, claimed: Callable[[], bool]) -> bool:
    """Return whether a place still belongs to the move that is being cancelled."""
    return claimed() and _is_closed(move)


def _is_closed(move: Move) -> bool:
    """Return whether the target has this move's *N+1*; another table wouldn't have it."""
    try:
        return move.decision() is not None
    except CommitConflict:
        return False


def leave_cancelled(move: Move, claim: Claim) -> None:
    """Delete the last files of an ended move; after a failure the next cancel retries."""

    def leave() -> None:
        journal, target = move.journal, move.redirect.target
        if managed_place.drop_table(
            move.setting, target, journal.managed, move.place, journal.move_id
        ):
            _remove_ends(move)
        target_claim.release(move.place, claim)
        move.place.prune("")
        forget_move(move)

    what = f"some files of the move at {move.place.uri}"
    settling.attempt(
        move.setting, what, leave, f"redirect cancel {shell_safe(move.source.store.uri)}"
    )


def forget_move(move: Move) -> None:
    """Delete the record of a move at its source, and what had arrived there with its entry."""
    received_entries.take_back_received(move.source.store, move.redirect)
    move_record.forget_record(move.source.store, move.journal.move_id)


def record_of_move(move: Move) -> MoveRecord:
    """Return the record of a move that has begun, with which a later cancel can end it."""
    redirect, journal = move.redirect, move.journal
    assert redirect.target is not None
    request = Request(
        move.source.store.uri,
        redirect.target,
        move.place.uri,
        redirect.mode,
        journal.data,
        redirect.dialects,
        redirect.rules,
        managed=journal.managed is not None,
        managed_target=journal.managed,
    )
    return MoveRecord(journal.move_id or "", move.bare.metadata.id, request)


def claim_of_move(move: Move) -> Claim:
    """Return the claim of a move that has begun."""
    journal, bare = move.journal, move.bare
    return Claim(journal.move_id or "", move.source.store.uri, bare.metadata.id, journal.data)


def remove_copies_of(
    move: Move, still: Callable[[], bool], published: Callable[[], bool]
) -> tuple[str, ...]:
    """Delete a move's copies, except *N* and *N+1*; return the files that aren't ours."""
    removal = move.setting.removal
    kept = removal.remove_copies(move.source, move.place_log, still, published, ends_of_move(move))
    move.setting.step(steps.at("delete_copies", move.place.uri))
    return kept


def ends_of_move(move: Move) -> frozenset[str]:
    """Return the names of the lock and *N+1*, which go last to keep the target locked."""
    return frozenset({paths.commit(move.version), paths.commit(move.version + 1)})


def _remove_ends(move: Move) -> None:
    """Delete this move's lock and closing commit, but not a later move's in the same place."""
    store, version = move.place, move.version
    try:
        decided = move.decision()
    except CommitConflict:
        decided = None
    if decided is not None:
        log_staging.delete(store, [paths.commit(version + 1)])
    if move.is_locked():
        log_staging.delete(store, [paths.commit(version)])
    if next(store.list(f"{paths.LOG_DIR}/", stop_before=paths.END_OF_VERSIONS), None) is None:
        received_entries.leave(store, move.lock)


def abandon_move(move: Move) -> None:
    """Delete what this process copied for a move that another process has cancelled.

    By now another move or another table may be at the place: only what has this move's
    mark is deleted.
    """
    store = move.place
    revoked = replace(claim_of_move(move), cancelled=True)
    try:
        log_staging.delete(store, list(log_staging.staged_files(store, revoked.move_id)))
        if not target_claim.take_claim(store, revoked):
            return
        if _is_unopened_or_ours(move):
            ours = partial(target_claim.is_place_claimed, store, revoked)
            remove_copies_of(move, ours, lambda: True)
            _remove_ends(move)
        target_claim.release(store, revoked)
        store.prune("")
    except LakeferryError as failed:
        # The caller reports how the move ended, which matters more than this failure.
        move.setting.warn(f"copies may still be at {store.uri}: {failed}")


def _is_unopened_or_ours(move: Move) -> bool:
    """Return whether the target can't be opened, or only as this move's locked table."""
    try:
        log_staging.check_unopened(move.place)
    except RedirectTargetNotEmpty:
        found = redirect_commits.read_commit(move.place, move.place_log.state().version)
        mark = redirect_commits.mark_of(found[1].commit_info) if found else None
        ours = mark is not None and mark.get("moveId") == move.journal.move_id
        return ours and move.is_locked()
    return True
