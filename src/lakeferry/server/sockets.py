"""WebSocket connections as uvicorn speaks them, with what a transfer needs different.

The published dialect's subprotocol has slashes in its name, which no token may have: it is
left to the handshake of ours to read. A long text goes out in several frames, for peers read
16 MiB in one and four times that in a message. And a peer that was told to go gets as long as
the protocol gives it.

A message is in memory from its first byte until the session has looked at it. Small ones
any number of connections may have; of large ones there are a few at a time, and whoever
sends one more isn't read meanwhile. Whoever has room and doesn't use it is dropped, and so
is who takes nothing of what is written to it (:mod:`lakeferry.server.patience`).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import Any
from weakref import WeakKeyDictionary

import uvicorn
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.datastructures import Headers
from websockets.server import ServerProtocol
from websockets.typing import BytesLike, Subprotocol

from lakeferry.server.patience import Taking

LARGEST_MESSAGE_BYTES = 64 << 20
LARGEST_FRAME_BYTES = 8 << 20
SMALL_MESSAGE_BYTES = 256 << 10
LARGE_AT_ONCE = 8
"""How many messages that aren't small a server has in memory, all of its connections together."""
SLOWEST_BYTES_PER_S = 16 << 10
"""How fast a large message has to come: others wait for its room."""
LOOKED_AT_EVERY_S = 20.0
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


class _Room:
    """Room for large messages, handed out in the order in which it was asked for."""

    def __init__(self) -> None:
        self._free = LARGE_AT_ONCE
        self._waiting: deque[SessionSocket] = deque()

    def take(self, socket: SessionSocket) -> bool:
        """Give a connection room, or call it when there is some."""
        if self._free == 0 or self._waiting:
            self._waiting.append(socket)
            return False
        self._free -= 1
        return True

    def give_back(self) -> None:
        self._free += 1
        while self._free and self._waiting:
            self._free -= 1
            self._waiting.popleft().go_on()

    def forget(self, socket: SessionSocket) -> None:
        if socket in self._waiting:
            self._waiting.remove(socket)


_ROOMS: WeakKeyDictionary[uvicorn.Config, _Room] = WeakKeyDictionary()


class SessionSocket(WebSocketsSansIOProtocol):
    """A connection that became a WebSocket."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._room = _ROOMS.setdefault(self.config, _Room())
        self._has_room = False
        self._unread_bytes = 0
        self._seen_bytes = 0
        self._look: asyncio.TimerHandle | None = None
        self._held = b""
        self._taking: Taking | None = None
        self.close_timeout = GONE_WITHIN_S
        self.conn = _Frames(
            max_size=self.config.ws_max_size, logger=logging.getLogger("uvicorn.error")
        )

    def connection_made(self, transport: Any) -> None:
        """Begin to look whether the peer reads."""
        super().connection_made(transport)
        self._taking = Taking(self.transport, self.loop)

    async def send(self, message: Any) -> None:
        """Send something; a refusal that was sent is one that isn't owed any more."""
        await super().send(message)
        if self.initial_response is not None and self.close_sent:
            # Otherwise each is logged as a mistake of the application's.
            self.handshake_complete = True

    def data_received(self, data: bytes) -> None:
        """Take in what has come, unless it makes a message large for which there is no room."""
        self._unread_bytes += len(data)
        if self._unread_bytes > SMALL_MESSAGE_BYTES and self._look is None:
            if not self._has_room and not self._room.take(self):
                self._held = data
                self.transport.pause_reading()
                return
            self._has_room = True
            self._watch()
        super().data_received(data)

    def go_on(self) -> None:
        """Read on, now that there is room."""
        self._has_room = True
        self._watch()
        held, self._held = self._held, b""
        super().data_received(held)
        # A message that is complete by that has to be looked at first, as always.
        if not self.read_paused and not self.transport.is_closing():
            self.transport.resume_reading()

    def handle_ping(self) -> None:
        """Answer a ping, unless the answers to earlier ones are left unread."""
        if self.writable.is_set():
            super().handle_ping()
        else:
            self.conn.data_to_send()

    def send_receive_event_to_app(self) -> None:
        """Hand a message over; what comes behind it counts anew."""
        self._unread_bytes = 0
        self._stop_watching()
        super().send_receive_event_to_app()

    async def receive(self) -> Any:
        """Return the next message; whoever asks for it has looked at the one before."""
        if self._look is None:
            self._give_room_back()
        return await super().receive()

    def connection_lost(self, exc: Exception | None) -> None:
        """Let go of everything."""
        self._room.forget(self)
        self._held = b""
        self._stop_watching()
        self._give_room_back()
        if self._taking is not None:
            self._taking.stop()
        super().connection_lost(exc)

    def _give_room_back(self) -> None:
        if self._has_room:
            self._has_room = False
            self._room.give_back()

    # --- How fast a large message comes ---------------------------------------------

    def _watch(self) -> None:
        self._seen_bytes = self._unread_bytes
        self._look = self.loop.call_later(LOOKED_AT_EVERY_S, self._check)

    def _stop_watching(self) -> None:
        if self._look is not None:
            self._look.cancel()
            self._look = None

    def _check(self) -> None:
        if self._unread_bytes - self._seen_bytes < LOOKED_AT_EVERY_S * SLOWEST_BYTES_PER_S:
            self.transport.abort()
        else:
            self._watch()
