"""The record of a move, kept beside the source's log until the move has ended.

Before ENABLING nothing in the source's log tells that a move has begun, and copying is
the longest part of it. So the record is written before the first byte is copied: by it
``status``, ``resume`` and ``cancel`` find the move from the source alone, from any machine.
No engine looks at it: it is in our folder of ``_delta_log``, whose name no log file has.

The record decides nothing. From ENABLING on the source's log is what counts, and the claim
at the target tells who may write there. A record that outlives its move is harmless.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import msgspec

from lakeferry.errors import ObjectNotFound
from lakeferry.redirect.enable import log_staging
from lakeferry.redirect.enable.log_staging import Claim
from lakeferry.redirect.enable.preflight import Request
from lakeferry.storage import Store
from lakeferry.storage.uris import same_place, without_links

RECORD = log_staging.RECORD


@dataclass(frozen=True, slots=True)
class MoveRecord:
    """What was asked for, and which move does it.

    ``cancelled`` tells that the move is being taken back: it isn't to be gone on with.
    """

    move_id: str
    table_id: str
    request: Request
    cancelled: bool = False

    @property
    def claim(self) -> Claim:
        """The claim of this move at its target."""
        return Claim(self.move_id, self.request.source, self.table_id, self.request.data)

    @property
    def location(self) -> str:
        """Where the copies are."""
        return self.request.location


def read(store: Store) -> MoveRecord | None:
    """Return the record at a source, if there is one that is about this very table.

    A folder that was copied with other tools has the record of the original, which says
    nothing about the copy. One that can't be read is none: the next move replaces it.
    """
    try:
        found = msgspec.json.decode(store.get(RECORD), type=MoveRecord)
    except (ObjectNotFound, msgspec.MsgspecError):
        return None
    here, there = without_links(store.uri), without_links(found.request.source)
    return found if same_place(here, there) else None


def take(store: Store, wanted: MoveRecord, stale: MoveRecord | None) -> MoveRecord | None:
    """Put the record of a move, in place of a ``stale`` one; return another that is in the way.

    One of the same move is replaced: whoever goes on with a move has a claim of its own.
    """
    if store.put_if_absent(RECORD, msgspec.json.encode(wanted)):
        return None
    found = read(store)
    if found is not None and found != stale and not same_place(found.location, wanted.location):
        return found
    write(store, wanted)
    return None


def write(store: Store, wanted: MoveRecord) -> None:
    """Put a record in place of what is there."""
    store.put(RECORD, msgspec.json.encode(wanted))


def cancelling(store: Store, wanted: MoveRecord) -> None:
    """Write down that a move is being taken back, so that nobody goes on with it."""
    write(store, replace(wanted, cancelled=True))


def forget(store: Store, move_id: str | None) -> None:
    """Delete the record of a move, unless another move has its own there by now."""
    found = read(store)
    if found is not None and found.move_id == move_id:
        log_staging.delete(store, [RECORD])
        store.prune(log_staging.FOLDER)
