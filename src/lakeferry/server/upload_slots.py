"""Divides places for uploads, and room for large answers, fairly between clients.

A client is a token, or an address if it has no token. Nothing is reserved for clients that
aren't connected. While a client waits that has less than another,

- a place that becomes free is given to the client with the fewest, and
- if none becomes free soon, the client with the most has to give one back: the slowest of its
  uploads. Clients retry after that, as after any broken connection.

So a slow or stopped client delays another one by a few seconds at most. All of it belongs to one
event loop. Sessions are shared by the same rule (:mod:`lakeferry.server.session_seats`).
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from lakeferry.errors import StorageUnavailable

PATIENCE_S = 2.0
"""How long a client waits before another one has to make way."""
_GRACE_S = 2.0
"""How long an upload runs at least."""
_SLOW_AFTER_S = 10.0
_SLOWEST_BYTES_PER_S = 8 << 10
"""An upload that is slower than this, after that time, makes way for any other client."""
RATE_OVER_S = 5.0
"""The shortest period over which the speed of an answer is measured."""

_LOOKS_PER_S = 4


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
    """Returns how many bytes were sent; for answers, where ``received_bytes`` isn't counted."""
    _mark: tuple[float, int] | None = None
    _last_mark: tuple[float, int] | None = None

    def withdraw(self) -> None:
        """End the upload or answer that has this place."""
        self.is_withdrawn = True
        if self.interrupt is not None:
            self.interrupt()

    def rate(self, now_s: float) -> float:
        """Return an upload's average speed so far, or the recent speed of an answer.

        The system takes the first megabytes of an answer at once, however slowly it is read.
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
    """A number of places, or units of room, and the clients that wait for them."""

    def __init__(self, total: int, most_waiting: int | None = None) -> None:
        """Start with all places free; ``most_waiting`` is how many requests may wait."""
        self._total = total
        self._most_waiting = most_waiting
        self._held: set[Slot] = set()
        self._waiting: list[_Waiter] = []
        self._timer: asyncio.TimerHandle | None = None
        self._turns: dict[str, int] = {}
        """Turn number of the last place that each client got, while it has or awaits one."""
        self._turn = 0

    @asynccontextmanager
    async def slot(self, holder: str, units: int = 1) -> AsyncIterator[Slot]:
        """Wait for a place, and hold it until the context ends.

        A request larger than the whole room gets all of it alone. ``StorageUnavailable`` if too
        many wait already; clients with the most waiting requests make way for others.
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
        crowded = StorageUnavailable("too many clients are waiting", remedy="try again later")
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
            # Among the clients with the fewest places, the one whose last turn is longest ago.
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
        """Return the slowest slot of the client that has the most, if it has too many."""
        [(holder, most)] = held.most_common(1) or [("", 0)]
        if most <= fewest:
            return None
        return self._slowest(
            slot
            for slot in self._held
            if slot.holder == holder and now_s - slot.since_s >= _GRACE_S
        )

    def _too_slow(self, waiting: set[str], now_s: float) -> Slot | None:
        """Return a slot that is too slow to keep another client waiting."""
        return self._slowest(
            slot
            for slot in self._held
            if now_s - slot.since_s >= _SLOW_AFTER_S
            and slot.rate(now_s) < _SLOWEST_BYTES_PER_S
            # Many readers may share one address: an answer also makes way for its own client.
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
        """Give back the units that a slot turned out not to need."""
        slot.units = min(slot.units, units)
        self._hand_out()
