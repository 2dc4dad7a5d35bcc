"""Finds a move that was interrupted before ENABLING, and takes it back.

The record at the source says which move it is, the claim at the target whether the copies
still belong to it. One process may cancel while another resumes. The cancel replaces the claim
first and then checks the source; the resume commits ENABLING at the source first and then
checks the claim. So one of the two sees the other, and gives up.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from lakeferry.errors import LakeferryError, RedirectInProgress, RedirectTargetNotEmpty
from lakeferry.log import paths
from lakeferry.redirect import managed_place, read_entry, received_entries, steps
from lakeferry.redirect.enable import log_staging, move_record, preflight, target_claim
from lakeferry.redirect.enable.move_record import MoveRecord
from lakeferry.redirect.enable.precopy import Crossing
from lakeferry.redirect.enable.preflight import Request
from lakeferry.redirect.enable.target_claim import Claim
from lakeferry.redirect.managed_target import ManagedTarget
from lakeferry.redirect.outcome import Outcome
from lakeferry.redirect.redirect_context import Setting
from lakeferry.redirect.states import RedirectState
from lakeferry.storage import Store
from lakeferry.storage.uris import same_place, shell_safe
from lakeferry.table import DeltaLog


@dataclass(frozen=True, slots=True)
class Unfinished:
    """A move that was broken off before ENABLING; counts are of the data files at the target.

    They are ``None`` where the target can't be asked.
    """

    target: str
    mode: str
    data: str
    files_copied: int | None
    bytes_copied: int | None
    cancelled: bool
    """Whether it is being taken back, so that 'resume' ends that and doesn't go on."""

    def as_document(self) -> dict[str, object]:
        """Return ``unfinished`` of the command ``redirect status``."""
        return {
            "target": self.target,
            "mode": self.mode,
            "data": self.data,
            "files_copied": self.files_copied,
            "bytes_copied": self.bytes_copied,
            "cancelled": self.cancelled,
        }


def describe_unfinished_move(
    setting: Setting, source: Store
) -> tuple[Unfinished | None, ManagedTarget | None, tuple[str, ...]]:
    """Return the move of a table without a redirect that was broken off, and warnings.

    And the place that a catalog has allocated for it, if it is to own the table.
    """
    record = move_record.read_record(source)
    if record is None:
        return None, None, ()
    request = record.request
    counts: tuple[int | None, int | None] = (0, 0)
    warnings: tuple[str, ...] = ()
    try:
        target = open_requested(setting, request)
        claim = target_claim.read_claim(target)
        if claim is not None and claim.is_of(record.claim):
            counts = _counted(target)
        elif claim is not None:
            other = f"a move of {claim.source} now uses {record.location}"
            back = f"'lakeferry redirect cancel {shell_safe(request.source)}'"
            warnings = (f"{other}; {back} removes the record of the earlier move",)
    except LakeferryError as failed:
        counts = (None, None)
        warnings = (f"{record.location} can't be read: {failed}",)
    found = Unfinished(
        str(request.target), request.mode.value, request.data.value, *counts, record.cancelled
    )
    return found, request.managed_target, warnings


def _counted(target: Store) -> tuple[int, int]:
    """Return the number and the bytes of the data files at a place."""
    count = size_bytes = 0
    for entry in target.list(""):
        if not entry.path.startswith(f"{paths.LOG_DIR}/"):
            count += 1
            size_bytes += entry.size_bytes
    return count, size_bytes


def check_no_unfinished_move(
    setting: Setting, source: Store, request: Request
) -> MoveRecord | None:
    """Refuse a move while another one of the table, to another place, isn't finished.

    Returns the record of one that has nothing at its target any more.
    """
    record = move_record.read_record(source)
    # A managed target has no place before its catalog has allocated one.
    if record is None or (request.location and same_place(record.location, request.location)):
        return None
    if record.request.managed:
        # Its place can't be found without the record, also while nothing is there yet.
        raise in_the_way(record)
    try:
        claim = target_claim.read_claim(open_requested(setting, record.request))
    except LakeferryError:
        claim = record.claim
    if claim is not None and claim.is_of(record.claim):
        raise in_the_way(record)
    return record


def in_the_way(record: MoveRecord) -> RedirectInProgress:
    """Return the refusal to begin a second move of a table."""
    source = record.request.source
    return RedirectInProgress(
        f"a move of {source} to {record.request.target} isn't finished",
        cause=f"it was interrupted or still runs; what it has copied is at {record.location}",
        remedy=f"'lakeferry redirect cancel {shell_safe(source)}' undoes it, then run the same "
        f"command again; 'lakeferry redirect resume {shell_safe(source)}' continues it instead",
        location=source,
        state=RedirectState.NORMAL.value,
        target=str(record.request.target),
    )


def take_back_unfinished(
    setting: Setting, source: DeltaLog, version: int, *, leave_copies: bool = False
) -> Outcome | None:
    """Take back the unfinished move of a table, if it has one; ``None`` if it has just begun.

    Deletes what the move has copied, and nothing else at the target.
    """
    record = move_record.read_record(source.store)
    uri = source.store.uri
    if record is None:
        return Outcome(RedirectState.NORMAL, uri, None, version, False)
    if leave_copies:
        move_record.forget_record(source.store, record.move_id)
        setting.step(steps.at("forget", record.location))
        setting.warn(f"the copies at {record.location} aren't deleted")
        return Outcome(RedirectState.NORMAL, uri, None, version, True)
    if record.request.managed:
        # Refuses another user before anything changes.
        open_requested(setting, record.request)
    move_record.cancelling(source.store, record)
    try:
        return _delete_copies(setting, source, record, version)
    except LakeferryError as failed:
        failed.remedy = ways_on(uri, record.location)
        raise


def ways_on(source: str, target: str) -> str:
    """Return the remedy where a move can't be taken back because of its target."""
    reached = (
        f"'lakeferry redirect cancel {shell_safe(source)}' continues once {target} can be used"
    )
    forgotten = (
        f"'lakeferry redirect cancel {shell_safe(source)} --leave-copies' undoes the "
        "move without the target instead"
    )
    return f"{reached}; {forgotten}, and leaves the copies at the target"


def _delete_copies(
    setting: Setting, source: DeltaLog, record: MoveRecord, version: int
) -> Outcome | None:
    store = open_requested(setting, record.request)
    target = managed_place.log_at(setting, store)
    found = target_claim.read_claim(store)
    kept: tuple[str, ...] = ()
    # The place of a managed table belongs to one move; without a claim its end may be left to do.
    without = found is None and record.request.managed
    if without or (found is not None and found.is_of(record.claim)):
        revoked = target_claim.revoke_claim(store, record.claim)
        now = source.state()
        if read_entry.read(now.protocol, now.metadata, source.store.uri) is not None:
            if target_claim.is_place_claimed(store, revoked):
                _give_back(store, found)
            return None
        kept = clean_up(setting, source, target, revoked, record.request)
        setting.step(steps.at("delete_copies", store.uri))
    else:
        setting.step(steps.at("forget", store.uri))
    received_entries.take_back_received(
        source.store, preflight.entry(record.request, None, record.move_id)
    )
    move_record.forget_record(source.store, record.move_id)
    return Outcome(RedirectState.NORMAL, source.store.uri, None, version, True, kept=kept)


def _give_back(store: Store, claim: Claim | None) -> None:
    """Put the claim back that a cancel has replaced too late."""
    if claim is None:
        log_staging.delete(store, [target_claim.CLAIM_FILE])
    else:
        target_claim.replace_claim(store, claim)


def clean_up(
    setting: Setting, source: DeltaLog, target: DeltaLog, revoked: Claim, request: Request
) -> tuple[str, ...]:
    """Delete what a move has copied to a place that ``revoked`` claims; return what stays.

    A managed table that was created there is dropped.
    """
    store = target.store
    still = partial(target_claim.is_place_claimed, store, revoked)
    try:
        log_staging.check_unopened(store)
    except RedirectTargetNotEmpty:
        # Somebody made a table there meanwhile. Its data files may have the names of ours, if
        # it is a copy of the same table: they stay.
        setting.warn(
            f"data files that were copied to {store.uri} aren't deleted: another table is there now"
        )
        guard = partial(target_claim.check_claimed, store, revoked)
        crossing = Crossing(
            setting, source, store, revoked.data, revoked.move_id, guard, resumed=False
        )
        log_staging.delete(store, list(log_staging.staged_files(store)), still)
        crossing.withdraw()
        kept: tuple[str, ...] = ()
    else:
        kept = ()
        # Another process may have taken the place over meanwhile, and use the table.
        if still() and drop_managed(setting, request, store, revoked.move_id):
            kept = setting.removal.remove_copies(source, target, still, lambda: False)
    target_claim.release(store, revoked)
    store.prune("")
    return kept


def open_requested(setting: Setting, request: Request) -> Store:
    """Return the plain store of a request's target."""
    managed = request.managed_target
    return managed_place.open_place(
        setting, request.source, request.target, managed, request.location
    )


def drop_managed(setting: Setting, request: Request, place: Store, move_id: str) -> bool:
    """Drop the managed table of a move that was undone; return whether there is none any more."""
    return managed_place.drop_table(setting, request.target, request.managed_target, place, move_id)
