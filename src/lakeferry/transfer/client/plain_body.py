"""Reads a large plain HTTP answer.

Part of the cheapest GET (``plain_get.py``): whatever isn't plain is nothing.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import cast

from lakeferry.transfer.client.plain_wires import LARGEST_HEAD_BYTES, is_plain

_CHUNK_BYTES = 1 << 20
_CHUNKS_AHEAD = 4


class LargeBody(asyncio.BufferedProtocol):
    """One connection, and one answer that is large: its bytes are received where they stay.

    The chunks that are full wait for whoever takes them; when some do, no more is read.
    """

    def __init__(self, size_bytes: int) -> None:
        self._size = self._left = size_bytes
        self._head: bytearray | None = bytearray(LARGEST_HEAD_BYTES)
        self._chunk = bytearray()
        self._filled = 0
        self._full: deque[bytearray] = deque()
        self._transport: asyncio.Transport | None = None
        self._is_over = self._is_paused = self._has_stirred = False
        self._told: asyncio.Future[None] | None = None

    def ask(self, request: bytes) -> None:
        """Send the request."""
        assert self._transport is not None
        self._transport.write(request)

    async def next(self, silence_s: float) -> bytearray | None:
        """Return the next chunk; ``None`` where no more comes, or nothing for so long."""
        while not self._full:
            if self._is_over:
                return None
            self._has_stirred = False
            self._told = asyncio.get_running_loop().create_future()
            try:
                async with asyncio.timeout(silence_s):
                    await self._told
            except TimeoutError:
                if not self._has_stirred:
                    return None
            finally:
                self._told = None
        chunk = self._full.popleft()
        if self._is_paused and self._transport is not None and not self._transport.is_closing():
            self._is_paused = False
            self._transport.resume_reading()
        return chunk

    def close(self) -> None:
        """Let go."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Be connected."""
        self._transport = cast(asyncio.Transport, transport)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        """Return where to put what comes; never no room, by the rules of the event loop."""
        if self._is_over:
            return memoryview(bytearray(1))
        return memoryview(self._chunk if self._head is None else self._head)[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        """Take what was put there."""
        self._has_stirred = True
        if self._is_over:
            return
        self._filled += nbytes
        if self._head is not None:
            self._read_head(self._head)
        elif self._filled == len(self._chunk):
            self._hand_over()

    def _read_head(self, head: bytearray) -> None:
        end = head.find(b"\r\n\r\n", 0, self._filled)
        if end < 0:
            if self._filled == len(head):
                self._end()
            return
        begun = head[end + 4 : self._filled]
        if not is_plain(bytes(head[: end + 2]), self._size) or len(begun) > self._size:
            self._end()
            return
        self._head = None
        self._begin_chunk()
        # A chunk is larger than a head, unless all of the body is smaller.
        self._chunk[: len(begun)] = begun
        self._filled = len(begun)
        if self._filled == len(self._chunk):
            self._hand_over()

    def _begin_chunk(self) -> None:
        size = min(_CHUNK_BYTES, self._left)
        self._left -= size
        self._chunk, self._filled = bytearray(size), 0
        if size == 0:
            self._end()

    def _hand_over(self) -> None:
        self._full.append(self._chunk)
        self._begin_chunk()
        if len(self._full) >= _CHUNKS_AHEAD and not self._is_over:
            assert self._transport is not None
            self._is_paused = True
            self._transport.pause_reading()
        self._tell()

    def eof_received(self) -> bool:
        """Be told that no more comes."""
        return False

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002
        """Be cut off; what has come is of use all the same."""
        if not self._is_over and self._head is None and self._filled:
            self._full.append(self._chunk[: self._filled])
        self._end()

    def _end(self) -> None:
        self._is_over = True
        # What comes behind the last byte is nobody's, and isn't read.
        self.close()
        self._tell()

    def _tell(self) -> None:
        if self._told is not None and not self._told.done():
            self._told.set_result(None)
