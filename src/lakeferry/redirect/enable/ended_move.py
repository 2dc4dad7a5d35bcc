"""Writes the checkpoints of a move that has ended at its target, and deletes its own files."""

from __future__ import annotations

from functools import partial

from lakeferry.log import paths
from lakeferry.log.lines import Lines
from lakeferry.redirect import lineage, settling
from lakeferry.redirect.enable import log_staging, move_record, target_claim
from lakeferry.redirect.redirect_context import Setting
from lakeferry.storage.uris import same_place, shell_safe
from lakeferry.table import DeltaLog


def settle_move(
    setting: Setting,
    source: DeltaLog,
    target: DeltaLog,
    version: int,
    move_id: str | None,
    *,
    resumed: bool = True,
) -> bool:
    """Write checkpoints and delete the move's own files; return whether all worked.

    ``resumed``: another process may have been killed while it copied, and left files.

    The move has ended, so a failure is only a warning. Then the claim stays, which tells
    'resume' that something is left to do.
    """
    again = f"redirect resume {shell_safe(source.store.uri)}"
    settled = [settling.settle_version(source, version, setting, again)]
    what = f"the checkpoint of version {version} of {target.store.uri}"
    settled_target = partial(_settle_target, setting, target, version, move_id)
    settled.append(settling.attempt(setting, what, settled_target, again))
    settling.attempt(
        setting,
        "the record of the move",
        lambda: move_record.forget_record(source.store, move_id),
        again,
    )
    what = f"files of the move at {target.store.uri}"
    if resumed:
        settled.append(
            settling.attempt(
                setting,
                what,
                lambda: setting.removal.sweep(target.store),
                again,
            )
        )
    setting.removal.drop_uploads(source, target.store, paths.commit(version))
    clear = partial(_clear_target, target, source.store.uri)
    return all(settled) and settling.attempt(setting, what, clear, again)


def _settle_target(setting: Setting, target: DeltaLog, version: int, move_id: str | None) -> None:
    """Write a checkpoint of the target's opening version, unless it is another table's by now."""

    def is_ours(_: bytes, lines: Lines) -> bool:
        return lineage.opens_target(lines, move_id)

    # A redirect of ours always has the id of its move; without one nothing could be staged.
    stage = partial(log_staging.staged_name, move_id=move_id) if move_id else None
    settling.write_checkpoint(setting, target, version, is_ours, stage)


def _clear_target(log: DeltaLog, source: str) -> None:
    """Delete staged files at the target, then the claim, unless another table has the place."""
    claim = target_claim.read_claim(log.store)
    if claim is not None and not same_place(claim.source, source):
        return
    log_staging.delete(log.store, list(log_staging.staged_files(log.store)))
    log_staging.delete(log.store, [target_claim.CLAIM_FILE])
    log.store.prune(log_staging.STAGING_FOLDER)
