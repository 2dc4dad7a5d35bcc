"""What the objects of a transfer share: slots, memory and threads."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from typing import TypeVar

T = TypeVar("T")

_BUDGET_BYTES = 192 << 20


class Turns:
    """So many objects under way at once; who waits longest is next."""

    def __init__(self, count: int) -> None:
        self._free = count
        self._waiting: dict[object, Callable[[], None]] = {}

    def take(self) -> bool:
        """Take a turn if one is free and nobody waits for it; tell whether it is so."""
        if self._free == 0 or self._waiting:
            return False
        self._free -= 1
        return True

    def wait(self, then: Callable[[], None]) -> object:
        """Have ``then`` called once it has a turn; return what to say to wait no more."""
        who = object()
        self._waiting[who] = then
        return who

    def wait_no_more(self, who: object) -> bool:
        """Leave the queue; tell whether it is so, or the turn was there already."""
        return self._waiting.pop(who, None) is not None

    def give_back(self) -> None:
        """Have the next one begin."""
        if self._waiting:
            self._waiting.pop(next(iter(self._waiting)))()
        else:
            self._free += 1

    @asynccontextmanager
    async def holding(self) -> AsyncIterator[None]:
        """Wait for a turn, and have it."""
        if not self.take():
            told = asyncio.Event()
            who = self.wait(told.set)
            try:
                await told.wait()
            except asyncio.CancelledError:
                if not self.wait_no_more(who):
                    self.give_back()
                raise
        try:
            yield
        finally:
            self.give_back()


class MemoryBudget:
    """So many bytes in memory at once, shared by whoever holds some."""

    def __init__(self, size_bytes: int = _BUDGET_BYTES) -> None:
        self._left = self._all = size_bytes
        self._waiting: deque[asyncio.Future[None]] = deque()

    @asynccontextmanager
    async def holding(self, size_bytes: int) -> AsyncIterator[None]:
        """Wait until there is room for that many."""
        size_bytes = min(size_bytes, self._all)
        while self._left < size_bytes:
            told: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(told)
            await told
        self._left -= size_bytes
        try:
            yield
        finally:
            self._left += size_bytes
            self._tell()

    def _tell(self) -> None:
        """Have all who wait look again: there may be room for one that isn't the first."""
        while self._waiting:
            told = self._waiting.popleft()
            if not told.done():
                told.set_result(None)


class StoreThreads:
    """Where a store's calls are made, so that none of them holds up the others' bytes."""

    def __init__(self, count: int) -> None:
        self._pool = ThreadPoolExecutor(count, thread_name_prefix="transfer")

    async def run(self, act: Callable[[], T]) -> T:
        """Return what a call returns."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, act)

    def close(self) -> None:
        """Take no more calls; those under way end by themselves."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def end(self) -> None:
        """Take no more calls, and wait for those under way: nothing is written afterwards."""
        end = partial(self._pool.shutdown, wait=True, cancel_futures=True)
        await asyncio.get_running_loop().run_in_executor(None, end)
