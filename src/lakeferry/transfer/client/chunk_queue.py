"""Passes a large object's chunks from the event loop to the thread that writes them.

Chunks are read ahead in the event loop, hashed in a thread of their own and written in another
one, concurrently, with a limited number of chunks between them. ``downloads.py`` defines their
source and their destination.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeAlias

from lakeferry.errors import StorageUnavailable
from lakeferry.transfer.chain.hashes import Digest, Multihash

Chunk: TypeAlias = bytes | bytearray

_CHUNKS_AHEAD = 8


async def ahead(chunks: AsyncGenerator[Chunk, None]) -> AsyncGenerator[Chunk, None]:
    """Yield chunks, and read some of them ahead."""
    room: asyncio.Queue[Chunk | None] = asyncio.Queue(_CHUNKS_AHEAD)

    async def pump() -> None:
        async for chunk in chunks:
            await room.put(chunk)
        await room.put(None)

    pumping = asyncio.create_task(pump())
    getting: asyncio.Future[Chunk | None] | None = None
    try:
        while True:
            getting = asyncio.ensure_future(room.get())
            await asyncio.wait({getting, pumping}, return_when=asyncio.FIRST_COMPLETED)
            if not getting.done():
                getting.cancel()
                # It failed, or it has ended and its last item is in the queue.
                await pumping
                getting = asyncio.ensure_future(room.get())
            chunk = await getting
            if chunk is None:
                return
            yield chunk
    finally:
        if getting is not None:
            getting.cancel()
        pumping.cancel()
        await asyncio.wait({pumping})
        heard(pumping)
        await chunks.aclose()


class Relay:
    """Passes chunks from the event loop to a thread that writes them.

    ``error`` is set if reading or hashing them fails.
    """

    def __init__(
        self,
        chunks: AsyncIterator[Chunk],
        loop: asyncio.AbstractEventLoop,
        expected: Multihash,
        digest: Digest,
    ) -> None:
        self._chunks = chunks
        self._loop = loop
        self._expected = expected
        self._digest = digest
        self._task: asyncio.Task[object] | None = None
        self._stopped = False
        self.error: Exception | None = None

    def __iter__(self) -> Iterator[Chunk]:
        hashed: deque[Future[None]] = deque()
        with ThreadPoolExecutor(1, thread_name_prefix="transfer-hash") as hashing:
            try:
                while (chunk := self._take()) is not None:
                    # A few may wait, so that hashing and writing don't wait for each other.
                    if len(hashed) == _CHUNKS_AHEAD:
                        hashed.popleft().result()
                    hashed.append(hashing.submit(self._digest.update, chunk))
                    yield chunk
                for one in hashed:
                    one.result()
                self._digest.check(self._expected)
            except Exception as error:
                self.error = error
                raise

    def _take(self) -> Chunk | None:
        return asyncio.run_coroutine_threadsafe(self._pull(), self._loop).result()

    async def _pull(self) -> Chunk | None:
        if self._stopped:
            raise StorageUnavailable("the transfer was stopped")
        self._task = asyncio.current_task()
        try:
            return await anext(self._chunks, None)
        finally:
            self._task = None

    def stop(self) -> None:
        """Make the thread fail, once nothing reads the chunks; called in the event loop."""
        self._stopped = True
        if self._task is not None:
            self._task.cancel()


def heard(done: asyncio.Future[Any]) -> None:
    """Mark an exception as retrieved, for a future whose caller has gone."""
    if not done.cancelled():
        done.exception()
