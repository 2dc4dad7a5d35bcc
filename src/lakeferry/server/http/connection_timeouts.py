"""Time limits for connections: for a request, and for an answer to be taken.

uvicorn bounds how many connections there are, and not how long one may take to send
the head of a request: as many silent ones as that would keep everybody else out. Nor does
it bound how long a peer may leave unread what was written to it, and that is in memory.
Slow is fine: whoever takes anything at all is left alone.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_WITHIN_S = 10.0
"""How long the head of a request may take, from the connection or the last answer on."""
TAKEN_WITHIN_S = 120.0
"""How long a peer may take nothing of what is written to it."""
SPARE_CONNECTIONS = 64
"""Of those that a server takes, how many it keeps free by dropping others."""
SLOW_AFTER_S = 20.0
SLOWEST_BYTES_PER_S = 16 << 10
"""A peer that takes less than this, after that time, is dropped when there are too many."""

_LOG = logging.getLogger(__name__)
_LOOKS = 4
_ACKED = struct.Struct("=120xQ")  # tcpi_bytes_acked in Linux's struct tcp_info


class Taking:
    """Drops a connection whose peer takes nothing of what is written to it."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        """Begin to look, and go on until told otherwise: closing takes its time, too."""
        self._transport = transport
        self._loop = loop
        self._seen = self._progress()
        self._began_s = self._seen_s = loop.time()
        self._timer = loop.call_later(TAKEN_WITHIN_S / _LOOKS, self._look)

    def rate(self) -> float:
        """Return how fast the peer has taken what was written to it, from the beginning."""
        return self._acked() / max(self._loop.time() - self._began_s, 0.001)

    def stop(self) -> None:
        """Look no more."""
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
        """Return what changes whenever the peer takes something.

        The system takes more from us when a good part of its own buffer is free again, which
        a slow peer needs long for: so it is asked what has arrived, where it can tell.
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
    """HTTP/1.1 as uvicorn speaks it, without connections that ask for nothing or take nothing."""

    _head: asyncio.TimerHandle | None = None
    _taking: Taking | None = None
    _began_s = 0.0
    _received_bytes = 0
    waits_since_s = 0.0
    """Since when it is there, or its last answer was given."""

    def connection_made(self, transport: Any) -> None:
        """Begin to wait for a request."""
        super().connection_made(transport)
        self._taking = Taking(transport, self.loop)
        self._began_s = self.loop.time()
        self._wait()
        self._make_room()

    def data_received(self, data: bytes) -> None:
        """Take in what has come."""
        self._received_bytes += len(data)
        super().data_received(data)

    def _make_room(self) -> None:
        """While there are too many connections, drop one: the longest idle, or the slowest.

        Clients send the head of a request at once, so that one that hasn't is the one that
        nobody misses. Slow is fine otherwise: this is for a server that is full.
        """
        most = self.limit_concurrency
        if most is None or len(self.connections) <= most - SPARE_CONNECTIONS:
            return
        others = [each for each in self.connections if isinstance(each, PatientProtocol)]
        idle = [each for each in others if each.is_idle and each is not self]
        if idle:
            victim = min(idle, key=lambda each: each.waits_since_s)
        else:
            old_s = self.loop.time() - SLOW_AFTER_S
            slow = [each for each in others if each.rate < SLOWEST_BYTES_PER_S]
            slow = [each for each in slow if each is not self and each.waits_since_s < old_s]
            if not slow:
                return
            victim = min(slow, key=lambda each: each.rate)
        victim.transport.abort()

    @property
    def is_idle(self) -> bool:
        """Whether no request has come that isn't answered."""
        return not self.transport.is_closing() and not (
            bool(self.cycle) and not self.cycle.response_complete
        )

    @property
    def rate(self) -> float:
        """How fast bytes go, in both directions."""
        received = self._received_bytes / max(self.loop.time() - self._began_s, 0.001)
        return received + (0.0 if self._taking is None else self._taking.rate())

    def on_response_complete(self) -> None:
        """Begin to wait for the next one."""
        super().on_response_complete()
        self._wait()

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        """Leave the waiting to the session that the connection is for now."""
        self._stop_waiting()
        self._stop_looking()
        super().handle_websocket_upgrade(event)

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait for nothing any more."""
        self._stop_waiting()
        self._stop_looking()
        super().connection_lost(exc)

    def _wait(self) -> None:
        self._stop_waiting()
        self.waits_since_s = self.loop.time()
        self._head = self.loop.call_later(HEAD_WITHIN_S, self._give_up)

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
