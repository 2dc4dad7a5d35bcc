"""Reuses a place where an earlier, ended move left files.

A move that was interrupted before ENABLING leaves its claim and its copies. A cancel that
was interrupted at its end leaves its claim, and perhaps the lock and the closing commit. A
new move of the same table reuses them. For another table they are in the way, and their
own source doesn't know of them any more. So the new move checks that source and deletes
them.

Two checks in opposite order make that safe: the process that deletes claims the place
first and then checks the source; a process that begins a move commits ENABLING at the
source first and then checks the claim. So one of the two sees the other and gives up.
"""

from __future__ import annotations

from functools import partial

from lakeferry.errors import LakeferryError, NotATable, RedirectTargetNotEmpty, TableNotFound
from lakeferry.log import paths
from lakeferry.redirect import move_lookup, read_entry, settling, steps
from lakeferry.redirect.enable import log_staging, move_record, target_claim
from lakeferry.redirect.enable.target_claim import Claim
from lakeferry.redirect.redirect_context import Setting
from lakeferry.storage import Store
from lakeferry.storage.uris import same_place, shell_safe

QUIET_MS = 3_600_000
"""A place without writes for this long isn't being prepared for a move any more."""


def clear_leftovers(setting: Setting, store: Store, wanted: Claim, found: Claim) -> None:
    """Delete the files of the move with the claim ``found``, which :func:`to_clear` returned."""
    target_claim.replace_claim(store, wanted)
    if not _has_no_move(setting, found, store.uri):
        if target_claim.is_place_claimed(store, wanted):
            target_claim.replace_claim(store, found)
        raise target_claim.not_free(store.uri, f"a move of {found.source} has begun there")
    setting.warn(f"files that a move of {found.source} has left at {store.uri} are deleted")
    source, target = setting.log(found.source), setting.log(store.uri)
    still = partial(target_claim.is_place_claimed, store, wanted)
    kept = setting.removal.remove_copies(source, target, still, lambda: False)
    setting.step(steps.at("clear", store.uri))
    if kept:
        setting.warn(
            f"{store.uri} has files that don't belong to that move, and they aren't deleted: "
            f"{kept[0]}"
        )
    target_claim.release(store, wanted)
    store.prune("")
    settling.attempt(
        setting,
        f"the record of the move at {found.source}",
        lambda: move_record.forget_record(source.store, found.move_id),
        f"redirect cancel {shell_safe(found.source)}",
    )


def to_clear(setting: Setting, store: Store, wanted: Claim) -> Claim | None:
    """Return the claim of a move whose leftovers are in the way and may be deleted."""
    found = target_claim.read_claim(store)
    if found is None or target_claim.continues(found, wanted):
        return None
    try:
        log_staging.check_unopened(store)
    except RedirectTargetNotEmpty:
        return None
    over = _has_no_move(setting, found, store.uri) and (
        found.cancelled or _is_quiet(store, setting.clock())
    )
    return found if over and _can_tell(setting, found, store) else None


def check_reusable(setting: Setting, store: Store, wanted: Claim) -> None:
    """Refuse a place that has other files than those left by a move of the same table.

    The claim's source may have been deleted or replaced, and may not know the move any more.
    Then no command for that source helps, and the error says so.
    """
    try:
        target_claim.check_place_free(store, wanted)
    except RedirectTargetNotEmpty as taken:
        found = target_claim.read_claim(store)
        if found is None or not _is_forgotten(setting, found, store.uri):
            raise
        raise RedirectTargetNotEmpty(
            taken.message,
            cause=f"a move of {found.source} has left files there, and {found.source} has no "
            "record of that move any more",
            remedy=f"delete {store.uri} if nobody needs what is there, or choose another target",
            **taken.fields,
        ) from taken


def _is_forgotten(setting: Setting, claim: Claim, place: str) -> bool:
    """Return whether a claim's source has neither a record of the move nor a redirect there."""
    try:
        record = move_record.read_record(setting.open_store(claim.source))
    except LakeferryError:
        return False
    known = record is not None and record.claim.is_of(claim)
    return not known and _has_no_move(setting, claim, place)


def _has_no_move(setting: Setting, claim: Claim, place: str) -> bool:
    """Return whether a claim's source has no redirect that leads to the place."""
    try:
        state = setting.log(claim.source).state()
        redirect = read_entry.read(state.protocol, state.metadata, claim.source)
        if redirect is None or redirect.target is None:
            return True
        return not same_place(move_lookup.place_of_target(redirect), place)
    except (TableNotFound, NotATable):
        return True
    except LakeferryError:
        # Unknown, so nothing is deleted.
        return False


def _is_quiet(store: Store, now_ms: int) -> bool:
    return all(now_ms - entry.modified_ms > QUIET_MS for entry in store.list(""))


def _can_tell(setting: Setting, claim: Claim, store: Store) -> bool:
    """Return whether the copied files can be identified by the source, or all are log files."""
    try:
        setting.log(claim.source).state()
    except LakeferryError:
        return all(entry.path.startswith(f"{paths.LOG_DIR}/") for entry in store.list(""))
    return True
