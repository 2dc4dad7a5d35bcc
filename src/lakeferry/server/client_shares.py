"""Divides sessions and uploads fairly between clients.

These are places for uploads, sessions, room for large answers, and what pushes hold.

A client is a token, or an address for those who come without one. Nothing is kept back for
clients that aren't there. While somebody waits who has less than another,

- a place that becomes free goes to who has the fewest, and
- if none becomes free in a moment, who has the most has to give one back: of uploads the
  slowest one, of sessions, and of pushes that hold blocks, the one that has been silent for
  longest. Clients come again after that, as after any connection that breaks.

So what one client does, slowly or not at all, costs another one a few seconds at most. All of
it belongs to one event loop, but for :class:`Seats`, which use none.
"""

from __future__ import annotations

import asyncio
import ipaddress
import math
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Protocol

from lakeferry.errors import StorageUnavailable

PATIENCE_S = 2.0
"""How long somebody waits before another one has to make way."""
GRACE_S = 2.0
"""How long an upload goes on in any case."""
SLOW_AFTER_S = 10.0
SLOWEST_BYTES_PER_S = 8 << 10
"""An upload that is slower than this, after that time, makes way for any other client."""
RATE_OVER_S = 5.0
"""Over how long a time, at least, it is measured how fast a client takes an answer."""
SILENT_S = 120.0
"""A session that was silent for so long makes way for any other, of its own client too."""

_LOOKS_PER_S = 4


def holder_of(token: str | None, address: str | None) -> str:
    """Return who a client is: its token's public part, or where its address is."""
    if token is not None:
        return f"token {token.split('_')[1] if token.count('_') > 1 else ''}"
    return f"address {network_of(address)}"


def network_of(address: str | None) -> str:
    """Return what stands for an address: of IPv6 the /64, of which one machine has them all."""
    try:
        found = ipaddress.ip_address(address or "")
    except ValueError:
        return address or ""
    if isinstance(found, ipaddress.IPv4Address):
        return str(found)
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.IPv6Network((int(found), 64), strict=False))


@dataclass(eq=False, slots=True)
class Slot:
    """A place among the uploads, or room for an answer."""

    holder: str
    since_s: float
    units: int = 1
    received_bytes: int = 0
    is_withdrawn: bool = False
    interrupt: Callable[[], None] | None = None
    moved_bytes: Callable[[], int] | None = None
    """Tells how many bytes have gone, where nobody counts ``received_bytes``."""
    _mark: tuple[float, int] | None = None
    _last_mark: tuple[float, int] | None = None

    def withdraw(self) -> None:
        """Have the upload end that has this place."""
        self.is_withdrawn = True
        if self.interrupt is not None:
            self.interrupt()

    def rate(self, now_s: float) -> float:
        """Return how fast its bytes have come so far; of those that go, how fast they go lately.

        The system takes the first megabytes of an answer at once, whoever reads it.
        """
        if self.moved_bytes is None:
            return self.received_bytes / max(now_s - self.since_s, 0.001)
        moved = self.moved_bytes()
        if self._mark is None or now_s - self._mark[0] >= RATE_OVER_S:
            self._last_mark, self._mark = self._mark, (now_s, moved)
        if self._last_mark is None:
            return math.inf
        began_s, before = self._last_mark
        return (moved - before) / max(now_s - began_s, 0.001)


@dataclass(eq=False, slots=True)
class _Waiter:
    holder: str
    since_s: float
    units: int = 1
    granted: asyncio.Future[Slot] = field(default_factory=asyncio.Future)


class Slots:
    """A number of places, and those who wait for one; or room, of which each has some units."""

    def __init__(self, total: int, most_waiting: int | None = None) -> None:
        """Begin with all of them free; ``most_waiting`` is how many may wait for one."""
        self._total = total
        self._most_waiting = most_waiting
        self._held: set[Slot] = set()
        self._waiting: list[_Waiter] = []
        self._timer: asyncio.TimerHandle | None = None
        self._turns: dict[str, int] = {}
        """When each client that has a place or waits for one was given its last one."""
        self._turn = 0

    @asynccontextmanager
    async def slot(self, holder: str, units: int = 1) -> AsyncIterator[Slot]:
        """Wait for a place, and have it until the context ends.

        What is larger than all the room there is gets it alone. ``StorageUnavailable`` where
        too many wait already; of those, some of who has the most make way for other clients.
        """
        waiter = _Waiter(holder, asyncio.get_running_loop().time(), min(units, self._total))
        self._check_waiting(holder)
        self._waiting.append(waiter)
        self._hand_out()
        try:
            slot = await waiter.granted
        except asyncio.CancelledError:
            if waiter in self._waiting:
                self._waiting.remove(waiter)
            elif not waiter.granted.cancelled():
                self._free(waiter.granted.result())
            raise
        try:
            yield slot
        finally:
            self._free(slot)

    def _check_waiting(self, holder: str) -> None:
        if self._most_waiting is None or len(self._waiting) < self._most_waiting:
            return
        counts = Counter(each.holder for each in self._waiting)
        [(greedy, most)] = counts.most_common(1)
        crowded = StorageUnavailable("too many wait for their turn", remedy="try again later")
        if most <= counts[holder] + 1:
            raise crowded
        victim = [each for each in self._waiting if each.holder == greedy][-1]
        self._waiting.remove(victim)
        if not victim.granted.done():
            victim.granted.set_exception(crowded)

    def _free(self, slot: Slot) -> None:
        self._held.discard(slot)
        self._hand_out()

    def _hand_out(self) -> None:
        now_s = asyncio.get_running_loop().time()
        while self._waiting:
            held = self._counted()
            # Of those who have the fewest, the one whose last turn is longest ago.
            waiter = min(
                self._waiting,
                key=lambda each: (held[each.holder], self._turns.get(each.holder, 0)),
            )
            if held.total() + waiter.units > self._total:
                break
            self._waiting.remove(waiter)
            if waiter.granted.cancelled():
                continue
            slot = Slot(waiter.holder, now_s, waiter.units)
            self._held.add(slot)
            self._take_turn(waiter.holder)
            waiter.granted.set_result(slot)
        if self._waiting and self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(1 / _LOOKS_PER_S, self._look)

    def _take_turn(self, holder: str) -> None:
        self._turn += 1
        known = {each.holder for each in self._held} | {each.holder for each in self._waiting}
        self._turns = {each: turn for each, turn in self._turns.items() if each in known}
        self._turns[holder] = self._turn

    def _look(self) -> None:
        self._timer = None
        now_s = asyncio.get_running_loop().time()
        waiting = [each for each in self._waiting if now_s - each.since_s >= PATIENCE_S]
        if waiting and not any(slot.is_withdrawn for slot in self._held):
            held = self._counted()
            fewest = min(held[each.holder] + each.units for each in waiting)
            holders = {each.holder for each in waiting}
            victim = self._over_its_share(held, fewest, now_s) or self._too_slow(holders, now_s)
            if victim is not None:
                victim.withdraw()
        self._hand_out()

    def _over_its_share(self, held: Counter[str], fewest: int, now_s: float) -> Slot | None:
        """Return the slowest upload of who has the most, if that is too many."""
        [(holder, most)] = held.most_common(1) or [("", 0)]
        if most <= fewest:
            return None
        return self._slowest(
            slot for slot in self._held if slot.holder == holder and now_s - slot.since_s >= GRACE_S
        )

    def _too_slow(self, waiting: set[str], now_s: float) -> Slot | None:
        """Return an upload that is too slow to keep another client waiting."""
        return self._slowest(
            slot
            for slot in self._held
            if now_s - slot.since_s >= SLOW_AFTER_S
            and slot.rate(now_s) < SLOWEST_BYTES_PER_S
            # Anybody may read, and one address stand for many: answers make way for their own.
            and (slot.moved_bytes is not None or waiting - {slot.holder})
        )

    def _slowest(self, slots: Iterable[Slot]) -> Slot | None:
        now_s = asyncio.get_running_loop().time()
        return min(slots, key=lambda slot: slot.rate(now_s), default=None)

    def _counted(self) -> Counter[str]:
        counted: Counter[str] = Counter()
        for slot in self._held:
            counted[slot.holder] += slot.units
        return counted

    def shrink(self, slot: Slot, units: int) -> None:
        """Give back what a place has more than it turned out to need."""
        slot.units = min(slot.units, units)
        self._hand_out()


class Sitting(Protocol):
    """A session that has a seat."""

    @property
    def silent_since_s(self) -> float | None:
        """Since when it waits for its client, if it does."""

    @property
    def has_spoken(self) -> bool:
        """Whether its client has said anything."""

    def make_way(self) -> None:
        """End, and let the client come again."""


@dataclass(eq=False, slots=True)
class Seat:
    """A place among the sessions, or what a session has of something."""

    holder: str
    address: str
    sitting: Sitting | None = None
    units: int = 1


class Seats:
    """The sessions of a server: a bounded number, of which nobody keeps others out.

    What sessions hold is shared in the same way; a seat then has some units.
    """

    def __init__(self, total: int, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin with all of them free."""
        self._total = total
        self._clock = clock
        self._taken: dict[Seat, None] = {}

    def __len__(self) -> int:
        """Return how many are taken."""
        return len(self._taken)

    def take(self, holder: str, address: str, units: int = 1) -> Seat | None:
        """Return a seat; ``None`` if there is none, and nobody has to make way for this one."""
        seat = Seat(holder, address, units=units)
        if not self._make_room(seat, units):
            return None
        self._taken[seat] = None
        return seat

    def resize(self, seat: Seat, units: int) -> bool:
        """Have a seat take more or less, and tell whether it may."""
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
        """Have others make way until so much is free; nobody, if that isn't enough."""
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
        """Return a session whose place anybody needs more: a client begins to speak at once."""
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
        """Return a silent session of the group that has the most, if that is too many."""
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
