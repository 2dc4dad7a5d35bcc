"""Time limits for connections: for a request, and for an answer to be taken.

uvicorn limits the number of connections, but not how long one may take to send the head of a
request: enough silent connections would block all other clients. It doesn't limit either how
long a peer may leave unread what was written to it, which stays in memory. Slow clients are fine:
a client that reads anything at all is not dropped.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

_HEAD_WITHIN_S = 10.0
"""How long the head of a request may take, from the connection or the last answer on."""
TAKEN_WITHIN_S = 120.0
"""How long a peer may read nothing of what is written to it."""
SPARE_CONNECTIONS = 64
"""How many of a server's connections are kept free by dropping others."""
_SLOW_AFTER_S = 20.0
_SLOWEST_BYTES_PER_S = 16 << 10
"""A peer that reads more slowly than this, after that time, is dropped if there are too many."""

_LOG = logging.getLogger(__name__)
_LOOKS = 4
_ACKED = struct.Struct("=120xQ")  # tcpi_bytes_acked in Linux's struct tcp_info


class Taking:
    """Drops a connection whose peer reads nothing of what is written to it."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        """Start to check, until :meth:`stop` is called: closing also takes time."""
        self._transport = transport
        self._loop = loop
        self._seen = self._progress()
        self._began_s = self._seen_s = loop.time()
        self._timer = loop.call_later(TAKEN_WITHIN_S / _LOOKS, self._look)

    def rate(self) -> float:
        """Return the average speed at which the peer has read, since the beginning."""
        return self._acked() / max(self._loop.time() - self._began_s, 0.001)

    def stop(self) -> None:
        """Stop checking."""
        self._timer.cancel()

    def _look(self) -> None:
        now, progress = self._loop.time(), self._progress()
        if progress != self._seen or not self._transport.get_write_buffer_size():
            self._seen, self._seen_s = progress, now
        elif now - self._seen_s >= TAKEN_WITHIN_S:
            _LOG.info("a peer took nothing for %g seconds, and is dropped", TAKEN_WITHIN_S)
            self._transport.abort()
            return
        self._timer = self._loop.call_later(TAKEN_WITHIN_S / _LOOKS, self._look)

    def _progress(self) -> tuple[int, int]:
        """Return a value that changes whenever the peer reads something.

        The system accepts more bytes only when a good part of its buffer is free again, which
        takes long with a slow peer. So the value has the acknowledged bytes, too, where the system
        can tell them.
        """
        return self._acked(), self._transport.get_write_buffer_size()

    def _acked(self) -> int:
        connection = self._transport.get_extra_info("socket")
        option = getattr(socket, "TCP_INFO", None)
        if connection is None or option is None:
            return 0
        try:
            told = connection.getsockopt(socket.IPPROTO_TCP, option, _ACKED.size)
            acked: int = _ACKED.unpack(told)[0]
        except (OSError, struct.error):
            return 0
        return acked


class PatientProtocol(H11Protocol):
    """uvicorn's HTTP/1.1, which drops connections that send no request or read no answer."""

    _head: asyncio.TimerHandle | None = None
    _taking: Taking | None = None
    _began_s = 0.0
    _received_bytes = 0
    waits_since_s = 0.0
    """The time of the connection, or of its last answer."""

    def connection_made(self, transport: Any) -> None:
        """Start to wait for a request."""
        super().connection_made(transport)
        self._taking = Taking(transport, self.loop)
        self._began_s = self.loop.time()
        self._wait()
        self._make_room()

    def data_received(self, data: bytes) -> None:
        """Process received bytes."""
        self._received_bytes += len(data)
        super().data_received(data)

    def _make_room(self) -> None:
        """While there are too many connections, drop the longest idle one, or the slowest.

        Clients send the head of a request at once, so an idle connection isn't missed. Slow ones
        are dropped only when the server is full.
        """
        most = self.limit_concurrency
        if most is None or len(self.connections) <= most - SPARE_CONNECTIONS:
            return
        others = [each for each in self.connections if isinstance(each, PatientProtocol)]
        idle = [each for each in others if each.is_idle and each is not self]
        if idle:
            victim = min(idle, key=lambda each: each.waits_since_s)
        else:
            old_s = self.loop.time() - _SLOW_AFTER_S
            slow = [each for each in others if each.rate < _SLOWEST_BYTES_PER_S]
            slow = [each for each in slow if each is not self and each.waits_since_s < old_s]
            if not slow:
                return
            victim = min(slow, key=lambda each: each.rate)
        victim.transport.abort()

    @property
    def is_idle(self) -> bool:
        """Return True if no request is waiting for its answer."""
        return not self.transport.is_closing() and not (
            bool(self.cycle) and not self.cycle.response_complete
        )

    @property
    def rate(self) -> float:
        """The speed of the connection, in both directions."""
        received = self._received_bytes / max(self.loop.time() - self._began_s, 0.001)
        return received + (0.0 if self._taking is None else self._taking.rate())

    def on_response_complete(self) -> None:
        """Start to wait for the next request."""
        super().on_response_complete()
        self._wait()

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        """Stop the time limits here: the WebSocket session has its own."""
        self._stop_waiting()
        self._stop_looking()
        super().handle_websocket_upgrade(event)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop all timers."""
        self._stop_waiting()
        self._stop_looking()
        super().connection_lost(exc)

    def _wait(self) -> None:
        self._stop_waiting()
        self.waits_since_s = self.loop.time()
        self._head = self.loop.call_later(_HEAD_WITHIN_S, self._give_up)

    def _stop_waiting(self) -> None:
        if self._head is not None:
            self._head.cancel()
            self._head = None

    def _stop_looking(self) -> None:
        if self._taking is not None:
            self._taking.stop()
            self._taking = None

    def _give_up(self) -> None:
        self._head = None
        is_asked = bool(self.cycle) and not self.cycle.response_complete
        if not is_asked and not self.transport.is_closing():
            self.transport.close()
