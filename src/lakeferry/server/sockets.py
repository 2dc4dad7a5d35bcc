"""WebSocket connections as uvicorn speaks them, with what a transfer needs different.

The published dialect's subprotocol has slashes in its name, which no token may have: it is
left to the handshake of ours to read. A long text goes out in several frames, for peers read
16 MiB in one and four times that in a message. And a peer that was told to go gets as long as
the protocol gives it.
"""

from __future__ import annotations

import logging
from typing import Any

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.datastructures import Headers
from websockets.server import ServerProtocol
from websockets.typing import BytesLike, Subprotocol

LARGEST_MESSAGE_BYTES = 64 << 20
LARGEST_FRAME_BYTES = 8 << 20
GONE_WITHIN_S = 5.0
"""How long a peer may take to answer a Close."""


class _Frames(ServerProtocol):
    """The bytes on the wire."""

    def process_subprotocol(self, headers: Headers) -> Subprotocol | None:  # noqa: ARG002
        """Choose none; whoever accepts the connection says which it is."""
        return None

    def send_text(self, data: BytesLike, fin: bool = True) -> None:
        """Send a text, in as many frames as it takes."""
        if not fin or len(data) <= LARGEST_FRAME_BYTES:
            super().send_text(data, fin)
            return
        view = memoryview(data)
        super().send_text(view[:LARGEST_FRAME_BYTES], fin=False)
        for at in range(LARGEST_FRAME_BYTES, len(view), LARGEST_FRAME_BYTES):
            part = view[at : at + LARGEST_FRAME_BYTES]
            self.send_continuation(part, fin=at + len(part) == len(view))


class SessionSocket(WebSocketsSansIOProtocol):
    """A connection that became a WebSocket."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.close_timeout = GONE_WITHIN_S
        self.conn = _Frames(
            max_size=self.config.ws_max_size, logger=logging.getLogger("uvicorn.error")
        )
