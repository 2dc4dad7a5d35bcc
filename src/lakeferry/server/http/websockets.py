"""WebSocket connections on uvicorn, with the limits that a transfer needs.

The published dialect's subprotocol has slashes in its name, which no token may have, so our
handshake reads it instead. A long text is sent in several frames, because peers read at most
16 MiB in one and four times that in a message. A peer that was told to close gets as much
time as the protocol allows.

How large a message may be depends on what the session waits for. The session sets the limit
before the peer can know that it is its turn (:meth:`SessionSocket.limit`). A longer message is
refused by its announced length (:mod:`lakeferry.server.http.websocket_frames`), and the session
is told. A text is handed over as UTF-8 bytes: as a string it could take four times the memory.

A message is in memory from its first byte until the session has processed it. Any number of
connections may have small ones. Larger ones count against room that all connections share; a
connection without room isn't read meanwhile. A connection that has room and doesn't use it is
dropped, and so is one that doesn't read what is written to it
(:mod:`lakeferry.server.http.connection_timeouts`).
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import uvicorn
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.datastructures import Headers
from websockets.http11 import Request
from websockets.typing import BytesLike, Subprotocol

from lakeferry.server.client_identity import network_of
from lakeferry.server.http.connection_timeouts import Taking
from lakeferry.server.http.websocket_frames import BoundedFrames

LARGEST_FRAME_BYTES = 8 << 20
SMALL_MESSAGE_BYTES = 256 << 10
USUAL_MESSAGE_BYTES = 16 << 20
"""Maximum size of a page of objects, and of a push's blocks unless one is very large."""
ROOM_BYTES = 64 << 20
"""Memory for messages that aren't small, all connections together."""
SHARE_BYTES = ROOM_BYTES // 2
"""One client's share of it, so that there is always room for another client."""
LARGEST_AT_ONCE = 1
"""How many messages above the usual size may exist besides."""
_SLOWEST_BYTES_PER_S = 16 << 10
"""Minimum speed of a large message."""
SLOWEST_AWAITED_BYTES_PER_S = 128 << 10
"""The same while others wait for its room."""
LOOKED_AT_EVERY_S = 10.0
GONE_WITHIN_S = 5.0
"""How long a peer may take to answer a Close."""
EXTENSION = "lakeferry.messages"
"""The application finds a :class:`ConnectionControl` under this name among a connection's ASGI
extensions."""

_FED_BYTES = 4 << 10
_TOO_LARGE_HEAD = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\n"
    b"Content-Length: 0\r\nConnection: close\r\n\r\n"
)


class ConnectionControl(Protocol):
    """What the application can do with a connection beyond ASGI."""

    def limit(self, message_bytes: int) -> None:
        """Set the maximum size of messages that begin from now on."""

    async def written(self) -> None:
        """Wait until the system has taken nearly all of what was sent, or the peer is gone."""

    def unwritten_bytes(self) -> int:
        """Return how many sent bytes the system hasn't taken yet."""

    def drop(self) -> None:
        """End the connection, and discard what the peer hasn't read."""


class _Frames(BoundedFrames):
    """The WebSocket frames of a connection."""

    def process_subprotocol(self, headers: Headers) -> Subprotocol | None:  # noqa: ARG002
        """Choose none; the application chooses it when it accepts the connection."""
        return None

    def send_text(self, data: BytesLike, fin: bool = True) -> None:
        """Send a text, divided into frames if it is long."""
        if not fin or len(data) <= LARGEST_FRAME_BYTES:
            super().send_text(data, fin)
            return
        view = memoryview(data)
        super().send_text(view[:LARGEST_FRAME_BYTES], fin=False)
        for at in range(LARGEST_FRAME_BYTES, len(view), LARGEST_FRAME_BYTES):
            part = view[at : at + LARGEST_FRAME_BYTES]
            self.send_continuation(part, fin=at + len(part) == len(view))


@dataclass(frozen=True, slots=True)
class _Need:
    """The room that one connection needs."""

    socket: SessionSocket
    client: str
    size_bytes: int

    @property
    def is_usual(self) -> bool:
        return self.size_bytes <= USUAL_MESSAGE_BYTES


class _Room:
    """Room for large messages, given in the order of the requests.

    A client that has used up its share waits without delaying the others.
    """

    def __init__(self) -> None:
        self._held: dict[SessionSocket, _Need] = {}
        self._waiting: list[_Need] = []

    @property
    def is_awaited(self) -> bool:
        return bool(self._waiting)

    def take(self, need: _Need) -> bool:
        """Give a connection room, or call it when there is some."""
        if self._waiting or not self._fits(need):
            self._waiting.append(need)
            self._hand_out()
        else:
            self._held[need.socket] = need
        return need.socket in self._held

    def give_back(self, socket: SessionSocket) -> None:
        """Take back the room that a connection has, or its request for some."""
        self._held.pop(socket, None)
        self._waiting = [need for need in self._waiting if need.socket is not socket]
        self._hand_out()

    def _hand_out(self) -> None:
        for need in [*self._waiting]:
            # A connection that goes on may call give_back, and so this method, at once.
            if need in self._waiting and self._fits(need):
                self._waiting.remove(need)
                self._held[need.socket] = need
                need.socket.go_on()

    def _fits(self, need: _Need) -> bool:
        held = [each for each in self._held.values() if each.is_usual is need.is_usual]
        if not need.is_usual:
            return len(held) < LARGEST_AT_ONCE
        of_all = sum(each.size_bytes for each in held)
        of_client = sum(each.size_bytes for each in held if each.client == need.client)
        fits_share = of_client == 0 or of_client + need.size_bytes <= SHARE_BYTES
        return of_all == 0 or (fits_share and of_all + need.size_bytes <= ROOM_BYTES)


_ROOMS: WeakKeyDictionary[uvicorn.Config, _Room] = WeakKeyDictionary()


class SessionSocket(WebSocketsSansIOProtocol):
    """A connection that became a WebSocket."""

    conn: _Frames

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._room = _ROOMS.setdefault(self.config, _Room())
        self._client = ""
        self._is_asked = False
        self._waits = self._has_room = False
        self._is_refusal_told = False
        self._received_bytes = self._seen_bytes = 0
        self._look: asyncio.TimerHandle | None = None
        self._unfed = bytearray()
        self._taking: Taking | None = None
        self.close_timeout = GONE_WITHIN_S
        self.conn = _Frames(logger=logging.getLogger("uvicorn.error"))
        self.limit(self.config.ws_max_size)

    def limit(self, message_bytes: int) -> None:
        """Set the maximum size of messages that begin from now on."""
        self.conn.limit_bytes = message_bytes

    async def written(self) -> None:
        """Wait until the system has taken nearly all of what was sent, or the peer is gone."""
        await self.writable.wait()

    def unwritten_bytes(self) -> int:
        """Return how many sent bytes the system hasn't taken yet."""
        size: int = self.transport.get_write_buffer_size()
        return size

    def drop(self) -> None:
        """End the connection, and discard what the peer hasn't read."""
        self.transport.abort()

    def connection_made(self, transport: Any) -> None:
        """Start to check that the peer reads."""
        super().connection_made(transport)
        self._taking = Taking(self.transport, self.loop)

    def handle_connect(self, event: Request) -> None:
        """Give the session the control of this connection, through which it sets limits."""
        self._is_asked = True
        tokens = event.headers.get_all("Authorization")
        address = self.client[0] if self.client else None
        self._client = tokens[0] if tokens else network_of(address)
        super().handle_connect(event)
        if self.response.status_code == HTTPStatus.SWITCHING_PROTOCOLS:
            wire: ConnectionControl = self
            self.scope["extensions"][EXTENSION] = {"wire": wire}

    async def send(self, message: Any) -> None:
        """Send a message of the application; note if it was the refusal that was still due."""
        await super().send(message)
        if self.initial_response is not None and self.close_sent:
            # Otherwise each would be logged as an error of the application.
            self.handshake_complete = True
        if self.close_sent:
            # Only the peer's Close is expected from now on.
            self.limit(min(self.conn.limit_bytes, SMALL_MESSAGE_BYTES))
            self.conn.let_go()
            self._give_room_back()
            self._feed()

    # --- What comes in --------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Process received bytes, as far as there is room for them."""
        self._received_bytes += len(data)
        self._unfed += data
        self._feed()

    def _feed(self) -> None:
        """Pass on received bytes in small pieces: one message may have to wait for room."""
        while self._unfed and not self._waits and not self.read_paused:
            if self.disconnected:
                self._unfed.clear()
                return
            piece = bytes(self._unfed[:_FED_BYTES])
            del self._unfed[:_FED_BYTES]
            super().data_received(piece)
            if self.conn.handshake_exc is not None and not self._is_asked:
                self._refuse_head()
                return
            if self.conn.parser_exc is not None:
                self._unfed.clear()
                return
            self._tell_refusal()
            self._ask_for_room()

    def _refuse_head(self) -> None:
        """Refuse a request whose headers HTTP/1.1 allows and ``websockets`` doesn't.

        It has too many headers, or one that is too long. Without this nothing would answer it or
        close the connection.
        """
        self._unfed.clear()
        self.transport.write(_TOO_LARGE_HEAD)
        self.transport.close()

    def _tell_refusal(self) -> None:
        size = self.conn.refused_bytes
        if size is None or self._is_refusal_told:
            return
        self._is_refusal_told = True
        self._stop_watching()
        if not self.close_sent:
            self._hand_over({"type": "websocket.receive", "too_large": size})

    def _ask_for_room(self) -> None:
        size = self.conn.awaited_bytes
        if size <= SMALL_MESSAGE_BYTES or self._has_room:
            return
        if not self.conn.is_awaited_whole:
            # The size of the whole message is unknown.
            size = max(size, self.conn.limit_bytes)
        self._waits = True
        if self._room.take(_Need(self, self._client, size)):
            self.go_on()
        else:
            self.transport.pause_reading()

    def go_on(self) -> None:
        """Continue reading, now that there is room."""
        if not self._waits:
            return
        self._waits, self._has_room = False, True
        self._watch()
        self._feed()
        # If a message is complete now, the session has to process it first, as always.
        if not self.read_paused and not self._waits and not self.transport.is_closing():
            self.transport.resume_reading()

    def handle_ping(self) -> None:
        """Answer a ping, unless the answers to earlier ones are left unread."""
        if self.writable.is_set():
            super().handle_ping()
        else:
            self.conn.data_to_send()

    def send_receive_event_to_app(self) -> None:
        """Pass a message to the application, a text as UTF-8 bytes."""
        self._stop_watching()
        if self.curr_msg_data_type != "text" or self.close_sent:
            super().send_receive_event_to_app()
            return
        [data], self.frames = self.frames, []
        self._hand_over({"type": "websocket.receive", "utf8": data})
        if not self.read_paused:
            self.read_paused = True
            self.transport.pause_reading()

    def _hand_over(self, message: Any) -> None:
        self.queue.put_nowait(message)

    async def receive(self) -> Any:
        """Return the next message; the caller has processed the one before."""
        if self._look is None and not self._waits:
            self._give_room_back()
        message = await super().receive()
        self._feed()
        return message

    def connection_lost(self, exc: Exception | None) -> None:
        """Release everything that the connection holds."""
        self._unfed.clear()
        # A reference cycle with its own parser may keep it in memory for a while.
        self.conn.let_go()
        self._stop_watching()
        self._give_room_back()
        if self._taking is not None:
            self._taking.stop()
        super().connection_lost(exc)

    def _give_room_back(self) -> None:
        self._waits = self._has_room = False
        self._room.give_back(self)

    # --- Minimum speed of a large message --------------------------------------------

    def _watch(self) -> None:
        self._seen_bytes = self._received_bytes
        self._look = self.loop.call_later(LOOKED_AT_EVERY_S, self._check)

    def _stop_watching(self) -> None:
        if self._look is not None:
            self._look.cancel()
            self._look = None

    def _check(self) -> None:
        is_awaited = self._room.is_awaited
        slowest = SLOWEST_AWAITED_BYTES_PER_S if is_awaited else _SLOWEST_BYTES_PER_S
        if self._received_bytes - self._seen_bytes < LOOKED_AT_EVERY_S * slowest:
            self.transport.abort()
        else:
            self._watch()
