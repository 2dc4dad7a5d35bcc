"""How a WebSocket is closed: the codes, and the error for a connection that ended too early."""

from __future__ import annotations

from enum import Enum

from lakeferry.errors import LakeferryError, StorageUnavailable
from lakeferry.transfer.wire.codec import CLOSE_REASON_BYTES

NORMAL = 1000
GOING_AWAY = 1001
PROTOCOL_ERROR = 1002
NO_STATUS = 1005
TOO_BIG = 1009
INTERNAL = 1011


def is_clean(code: int) -> bool:
    """Return True if a Close reports success."""
    return code in (NORMAL, NO_STATUS)


def connection_lost(peer: str, state: Enum, code: int, reason: str) -> StorageUnavailable:
    """Return the error for a connection that ended too early."""
    said = f"it closed with {code} {reason[:CLOSE_REASON_BYTES]}".rstrip()
    return StorageUnavailable(
        f"the connection to the {peer} ended too early",
        cause=f"while {state.value}; {said}",
        remedy="run the same command again: what has arrived isn't transferred again",
        peer_left=True,
    )


def has_left(error: LakeferryError | None) -> bool:
    """Return True if the error is that the peer went away, which isn't our failure."""
    return error is not None and bool(error.fields.get("peer_left"))
