"""What the objects of a transfer share: memory and threads."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from typing import TypeVar

_T = TypeVar("_T")

_BUDGET_BYTES = 192 << 20


class MemoryBudget:
    """A limited number of bytes in memory, shared by the objects of a transfer."""

    def __init__(self, size_bytes: int = _BUDGET_BYTES) -> None:
        self._left = self._all = size_bytes
        self._waiting: deque[asyncio.Future[None]] = deque()

    @asynccontextmanager
    async def holding(self, size_bytes: int) -> AsyncIterator[None]:
        """Wait until there is room for that number of bytes, and hold it."""
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
        """Wake all waiting callers: the room may be enough for one that isn't the first."""
        while self._waiting:
            told = self._waiting.popleft()
            if not told.done():
                told.set_result(None)


class StoreThreads:
    """Threads for a store's calls, so that the event loop isn't blocked."""

    def __init__(self, count: int) -> None:
        self._pool = ThreadPoolExecutor(count, thread_name_prefix="transfer")

    async def run(self, act: Callable[[], _T]) -> _T:
        """Run a call in a thread and return its result."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, act)

    def close(self) -> None:
        """Accept no more calls; running ones end by themselves."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def end(self) -> None:
        """Accept no more calls, and wait for running ones: nothing is written afterwards."""
        end = partial(self._pool.shutdown, wait=True, cancel_futures=True)
        await asyncio.get_running_loop().run_in_executor(None, end)
