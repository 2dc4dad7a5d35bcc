"""HTTP connections that don't wait for ever: whoever connects has to ask for something soon.

uvicorn bounds how many connections there are, and not how long one may take to send
the head of a request: as many silent ones as that would keep everybody else out.
"""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_WITHIN_S = 10.0
"""How long the head of a request may take, from the connection or the last answer on."""


class PatientProtocol(H11Protocol):
    """HTTP/1.1 as uvicorn speaks it, with a connection closed that asks for nothing."""

    _head: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Begin to wait for a request."""
        super().connection_made(transport)
        self._wait()

    def on_response_complete(self) -> None:
        """Begin to wait for the next one."""
        super().on_response_complete()
        self._wait()

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        """Leave the waiting to the session that the connection is for now."""
        self._stop_waiting()
        super().handle_websocket_upgrade(event)

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait for nothing any more."""
        self._stop_waiting()
        super().connection_lost(exc)

    def _wait(self) -> None:
        self._stop_waiting()
        self._head = self.loop.call_later(HEAD_WITHIN_S, self._give_up)

    def _stop_waiting(self) -> None:
        if self._head is not None:
            self._head.cancel()
            self._head = None

    def _give_up(self) -> None:
        self._head = None
        is_asked = bool(self.cycle) and not self.cycle.response_complete
        if not is_asked and not self.transport.is_closing():
            self.transport.close()
