"""Divides sessions, and the memory that they hold, fairly between clients.

Nothing is reserved for clients that aren't connected. If no seat is free, the client with the most
has to give one back, if it has more than the one that comes: the session that has been silent for
longest. Its client retries after that, as after any broken connection.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from lakeferry.server.upload_slots import PATIENCE_S

SILENT_S = 120.0
"""A session silent for this long makes way for any other, even of its own client."""


class Sitting(Protocol):
    """A session that has a seat."""

    @property
    def silent_since_s(self) -> float | None:
        """Since when it has been waiting for its client; ``None`` if it isn't."""

    @property
    def has_spoken(self) -> bool:
        """Return True if its client has sent anything."""

    def make_way(self) -> None:
        """End the session; the client may retry."""


@dataclass(eq=False, slots=True)
class Seat:
    """A place among the sessions, or a session's share of a resource."""

    holder: str
    address: str
    sitting: Sitting | None = None
    units: int = 1


class Seats:
    """The sessions of a server: a bounded number, shared so that no client blocks the others.

    Memory that sessions hold is shared in the same way; a seat then has a number of units.
    """

    def __init__(self, total: int, clock: Callable[[], float] = time.monotonic) -> None:
        """Start with all seats free."""
        self._total = total
        self._clock = clock
        self._taken: dict[Seat, None] = {}

    def __len__(self) -> int:
        """Return the number of taken seats."""
        return len(self._taken)

    def take(self, holder: str, address: str, units: int = 1) -> Seat | None:
        """Return a seat, or ``None`` if no session can make way for this one."""
        seat = Seat(holder, address, units=units)
        if not self._make_room(seat, units):
            return None
        self._taken[seat] = None
        return seat

    def resize(self, seat: Seat, units: int) -> bool:
        """Change a seat's units; return True if that was possible."""
        if seat not in self._taken:
            return False
        if units > seat.units and not self._make_room(seat, units - seat.units):
            return False
        seat.units = units
        return True

    def leave(self, seat: Seat) -> None:
        """Free a seat, if it isn't free yet."""
        self._taken.pop(seat, None)

    def _make_room(self, newcomer: Seat, units: int) -> bool:
        """Let sessions make way until there is room; none of them if it wouldn't be enough."""
        left = dict.fromkeys(each for each in self._taken if each is not newcomer)
        missing = sum(each.units for each in self._taken) + units - self._total
        victims: list[tuple[Seat, Sitting]] = []
        while missing > 0:
            victim = (
                self._over_its_share(left, lambda seat: seat.holder, newcomer, units)
                or self._over_its_share(left, lambda seat: seat.address, newcomer, units)
                or self._silent_for_long(left)
            )
            if victim is None or victim.sitting is None:
                return False
            del left[victim]
            victims.append((victim, victim.sitting))
            missing -= victim.units
        for victim, sitting in victims:
            self.leave(victim)
            sitting.make_way()
        return True

    def _silent_for_long(self, among: Iterable[Seat]) -> Seat | None:
        """Return a session silent for too long; a new client has to speak sooner than others."""
        now_s = self._clock()
        found = [
            ((each.has_spoken, silent_since_s), seat)
            for seat in among
            if (each := seat.sitting) is not None
            and (silent_since_s := each.silent_since_s) is not None
            and now_s - silent_since_s >= (SILENT_S if each.has_spoken else PATIENCE_S)
        ]
        return min(found, key=lambda each: each[0])[1] if found else None

    def _over_its_share(
        self, among: Iterable[Seat], group: Callable[[Seat], str], newcomer: Seat, units: int
    ) -> Seat | None:
        """Return a silent session of the group that has the most, if it has too many."""
        counts: Counter[str] = Counter()
        for seat in among:
            counts[group(seat)] += seat.units
        own = units + counts[group(newcomer)] + (newcomer.units if newcomer in self._taken else 0)
        silent = [
            ((each.has_spoken, silent_since_s), seat)
            for seat in among
            if (each := seat.sitting) is not None
            and (silent_since_s := each.silent_since_s) is not None
            and counts[group(seat)] > own
        ]
        most = max((counts[group(seat)] for _, seat in silent), default=0)
        found = [(order, seat) for order, seat in silent if counts[group(seat)] == most]
        return min(found, key=lambda each: each[0])[1] if found else None
