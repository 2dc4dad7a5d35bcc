"""Counts the bytes that all sessions of a server hold, and has some make way when it is full."""

from __future__ import annotations

import threading

from lakeferry.errors import LimitExceeded
from lakeferry.server.session_seats import Seat, Seats, Sitting

HELD_BYTES = 128 << 20
"""Most bytes that all pushes of a server hold together."""
UNPACKED_AT_ONCE = 2
FREED_WITHIN_S = 10.0
"""How long sessions that make way may take to release what they hold."""


class Budget:
    """Counts the bytes that all sessions hold. Safe to use from several threads.

    A single client may use the whole budget. If there is no room for a client that holds less,
    other sessions have to make way (:class:`~lakeferry.server.session_seats.Seats`). Their bytes
    count until they give them back.
    """

    def __init__(self, most_bytes: int = HELD_BYTES) -> None:
        """Begin with nothing held."""
        self._most = most_bytes
        self._held: dict[Seat, int] = {}
        self._seats = Seats(most_bytes)
        self._changed = threading.Condition()
        self.unpacking = threading.BoundedSemaphore(UNPACKED_AT_ONCE)
        """Held while a push's blocks are unpacked in memory."""

    def take(
        self, size_bytes: int, holder: str = "", address: str = "", sitting: Sitting | None = None
    ) -> Seat:
        """Reserve bytes and return the seat, or raise ``LimitExceeded`` if there is no room.

        The session of ``sitting`` may have to make way for another client.
        """
        with self._changed:
            seat = self._seats.take(holder, address, size_bytes)
            if seat is None:
                raise self._exceeded()
            seat.sitting = sitting
            try:
                self._wait_for(seat, size_bytes)
            except LimitExceeded:
                self._seats.leave(seat)
                raise
            return seat

    def resize(self, seat: Seat, size_bytes: int) -> None:
        """Change the size of a reservation, or raise ``LimitExceeded``."""
        with self._changed:
            if not self._seats.resize(seat, size_bytes):
                raise self._exceeded()
            self._wait_for(seat, size_bytes)

    def give_back(self, seat: Seat) -> None:
        """Release the bytes of a seat."""
        with self._changed:
            self._seats.leave(seat)
            self._held.pop(seat, None)
            self._changed.notify_all()

    @property
    def held(self) -> int:
        """The number of bytes that are held now."""
        with self._changed:
            return sum(self._held.values())

    def _wait_for(self, seat: Seat, size_bytes: int) -> None:
        """Count the bytes once sessions that have to make way have released theirs."""

        def is_free() -> bool:
            others = sum(size for each, size in self._held.items() if each is not seat)
            return others + size_bytes <= self._most

        if not self._changed.wait_for(is_free, FREED_WITHIN_S):
            raise self._exceeded()
        self._held[seat] = size_bytes
        self._changed.notify_all()

    def _exceeded(self) -> LimitExceeded:
        return LimitExceeded(
            "too much is being pushed at once",
            cause=f"{sum(self._held.values()):,} bytes of blocks are held",
        )
