"""Deletes what a move has copied to its target when it can't continue there.

It was cancelled, another move of the table came first, another table has the place by now, or the
table can't be moved in this way. Failures are warnings, as the caller's own error matters
more; only :func:`unlock_replaced` raises, after which the move would begin again.
"""

from __future__ import annotations

from functools import partial

from lakeferry.errors import LakeferryError
from lakeferry.log import paths
from lakeferry.redirect import (
    lineage,
    managed_place,
    move_lookup,
    read_entry,
)
from lakeferry.redirect.enable import (
    log_staging,
    move_record,
    target_claim,
    unfinished_move,
)
from lakeferry.redirect.enable.precopy import Crossing
from lakeferry.redirect.enable.preflight import Request
from lakeferry.redirect.enable.target_claim import Claim
from lakeferry.redirect.move import Move
from lakeferry.redirect.redirect_context import Setting
from lakeferry.storage import Store
from lakeferry.storage.uris import same_place, shell_safe
from lakeferry.table import DeltaLog


def clear_after_cancel(
    setting: Setting, source: DeltaLog, target: Store, claim: Claim, request: Request
) -> None:
    """Delete what we copied after a cancel, unless another move has the place."""
    try:
        found = target_claim.read_claim(target)
        if found is not None and not (found.cancelled and found.is_of(claim)):
            return
        # The process that cancelled stops when it loses the claim; we delete the rest.
        revoked = target_claim.revoke_claim(target, claim)
        now = source.state()
        if read_entry.read(now.protocol, now.metadata, source.store.uri) is not None:
            # Another move of the table has begun, perhaps to this place; that move cleans up.
            return
        log = managed_place.log_at(setting, target)
        unfinished_move.clean_up(setting, source, log, revoked, request)
        move_record.forget_record(source.store, claim.move_id)
    except LakeferryError as failed:
        setting.warn(f"copies may still be at {target.uri}: {failed}")


def give_way(
    setting: Setting, source: DeltaLog, request: Request, store: Store, claim: Claim
) -> None:
    """Delete the copies of a move because another move of the table began first.

    If the other one has the same target, the copies belong to it and stay.
    """
    target = managed_place.log_at(setting, store)

    def is_ours(by: Claim) -> bool:
        state = source.state()
        present = read_entry.read(state.protocol, state.metadata, source.store.uri)
        here = False
        if present is not None and present.target is not None:
            here = same_place(move_lookup.place_of_target(present), store.uri)
        return not here and target_claim.is_place_claimed(store, by)

    try:
        if is_ours(claim):
            log_staging.check_unopened(store)
            revoked = target_claim.revoke_claim(store, claim)
            if unfinished_move.drop_managed(setting, request, store, claim.move_id):
                still = partial(is_ours, revoked)
                setting.removal.remove_copies(source, target, still, lambda: False)
            target_claim.release(store, revoked)
            store.prune("")
            move_record.forget_record(source.store, claim.move_id)
    except LakeferryError as failed:
        setting.warn(f"copies may still be at {store.uri}: {failed}")


def leave_to_stranger(move: Move, crossing: Crossing) -> None:
    """Delete our log files and our lock if another table was created at the target."""
    store = move.place
    try:
        # A missing claim is normal if a commit of this move has opened the target.
        opened = lineage.is_opened(store, move.version + 1, move.journal.move_id)
        if move.is_taken() and not opened and crossing.withdraw():
            if move.is_locked():
                log_staging.delete(store, [paths.commit(move.version)])
            log_staging.delete(store, list(log_staging.staged_files(store, move.journal.move_id)))
    except LakeferryError as failed:
        move.setting.warn(f"log files of the move may still be at {store.uri}: {failed}")


def unlock_replaced(move: Move) -> None:
    """Undo the lock and the publishing of a beginning that was replaced at the source."""
    store = move.place
    if move.is_locked():
        log_staging.delete(store, list(log_staging.published_files(store)))
        log_staging.delete(store, [paths.commit(move.version)])


def step_back(setting: Setting, source: DeltaLog, crossing: Crossing, claim: Claim) -> None:
    """Delete our log files from a place where another table was created meanwhile.

    Data files stay: that table doesn't refer to them, and its VACUUM deletes them.
    """
    store = crossing.target
    try:
        if target_claim.is_place_claimed(store, claim):
            log_staging.delete(store, list(log_staging.staged_files(store, claim.move_id)))
            crossing.withdraw()
            target_claim.release(store, claim)
            store.prune(log_staging.STAGING_FOLDER)
            move_record.forget_record(source.store, claim.move_id)
    except LakeferryError as failed:
        setting.warn(
            f"log files that were copied from {source.store.uri} are still at {store.uri}: {failed}"
        )


def take_back_impossible(setting: Setting, source: DeltaLog, version: int) -> None:
    """Delete the copies and the record of a move that is impossible."""
    try:
        unfinished_move.take_back_unfinished(setting, source, version)
    except LakeferryError as failed:
        uri = source.store.uri
        setting.warn(
            f"the copies couldn't be deleted: {failed}; 'lakeferry redirect cancel "
            f"{shell_safe(uri)}' deletes them"
        )
