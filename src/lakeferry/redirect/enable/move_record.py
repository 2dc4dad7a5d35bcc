"""The record of a move, kept beside the source's log until the move has ended.

Before ENABLING nothing in the source's log shows that a move has begun, and copying is
its longest part. So the record is written before the first byte is copied. With it
``status``, ``resume`` and ``cancel`` find the move from the source alone, on any machine.
No engine reads it: it is in our folder of ``_delta_log``, whose name no log file has.

The record decides nothing. From ENABLING on the source's log decides, and the claim at
the target says which move may write there. A leftover record is harmless.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace

import msgspec

from lakeferry.errors import ObjectNotFound, StorageUnavailable
from lakeferry.redirect.enable import log_staging
from lakeferry.redirect.enable.preflight import Request
from lakeferry.redirect.enable.target_claim import Claim
from lakeferry.storage import Store
from lakeferry.storage.uris import same_place, without_links

_RECORD = log_staging.RECORD_FILE


@dataclass(frozen=True, slots=True)
class MoveRecord:
    """The request and the id of a move.

    ``cancelled``: the move is being cancelled and must not be resumed. ``compared_version``: the
    copies of all files that versions up to this one name were read at both ends, and were right.
    Before a process copies any of them again, because they are gone, it forgets that.
    """

    move_id: str
    table_id: str
    request: Request
    cancelled: bool = False
    compared_version: int = -1

    @property
    def claim(self) -> Claim:
        """The claim of this move at its target."""
        return Claim(self.move_id, self.request.source, self.table_id, self.request.data)

    @property
    def location(self) -> str:
        """Where the copies are."""
        return self.request.location


_MOVE_RECORD_DECODER = msgspec.json.Decoder(MoveRecord)


def read_record(store: Store) -> MoveRecord | None:
    """Return the record at a source, if there is one for this table.

    A folder that was copied with other tools has the record of the original, which is
    ignored. An unreadable record is ignored too; the next move replaces it.
    """
    try:
        found = _MOVE_RECORD_DECODER.decode(store.get(_RECORD))
    except (ObjectNotFound, msgspec.MsgspecError):
        return None
    here, there = without_links(store.uri), without_links(found.request.source)
    return found if same_place(here, there) else None


def take_record(store: Store, wanted: MoveRecord, stale: MoveRecord | None) -> MoveRecord:
    """Write the record of a move, replacing a ``stale`` one; return it, or one in the way.

    A record of the same move is replaced: each process that resumes a move has its own claim. The
    new record keeps whether files are compared, and which have been.
    """
    if store.put_if_absent(_RECORD, msgspec.json.encode(wanted)):
        return wanted
    found = read_record(store)
    if found is not None and same_place(found.location, wanted.location):
        wanted = _following(wanted, found)
    elif found is not None and found != stale:
        return found
    _write(store, wanted)
    return wanted


def _following(wanted: MoveRecord, earlier: MoveRecord) -> MoveRecord:
    """Return the record of a process that goes on with a move."""
    if earlier.table_id != wanted.table_id:
        return wanted
    compares = wanted.request.compares or earlier.request.compares
    request = replace(wanted.request, compares=compares)
    # A cancel may have deleted copies, and others may be written while it is going on.
    compared = -1 if earlier.cancelled else earlier.compared_version
    return replace(wanted, request=request, compared_version=compared)


def note_compared(store: Store, move_id: str, version: int) -> None:
    """Write to the record of a move that all files up to a version were compared.

    Nothing is written if the record is another one by now, or if the store can't swap: then the
    files are compared again if the move is resumed.
    """
    with suppress(StorageUnavailable):
        _set_compared(store, move_id, version)


def forget_compared(store: Store, move_id: str) -> None:
    """Write to the record of a move that none of its copies count as compared.

    Unlike :func:`note_compared` it fails if that can't be written. If the record is another one by
    now, it isn't changed.
    """
    _set_compared(store, move_id, -1)


def _set_compared(store: Store, move_id: str, version: int) -> None:
    with suppress(ObjectNotFound, msgspec.MsgspecError):
        data = store.get(_RECORD)
        found = _MOVE_RECORD_DECODER.decode(data)
        if found.move_id == move_id and not found.cancelled:
            noted = replace(found, compared_version=version)
            store.swap(_RECORD, data, msgspec.json.encode(noted))


def _write(store: Store, wanted: MoveRecord) -> None:
    """Write a record, replacing any other."""
    store.put(_RECORD, msgspec.json.encode(wanted))


def cancelling(store: Store, wanted: MoveRecord) -> None:
    """Write to the record that a move is being cancelled, so that it isn't resumed."""
    _write(store, replace(wanted, cancelled=True))


def forget_record(store: Store, move_id: str | None) -> None:
    """Delete the record of a move, unless it is another move's by now."""
    found = read_record(store)
    if found is not None and found.move_id == move_id:
        log_staging.delete(store, [_RECORD])
        store.prune(log_staging.STAGING_FOLDER)
