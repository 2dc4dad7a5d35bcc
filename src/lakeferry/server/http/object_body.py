"""Reads the body of an upload in pieces of a good size, within time limits."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import anyio.from_thread
from starlette.requests import ClientDisconnect, Request

from lakeferry.errors import StorageUnavailable, TimedOut
from lakeferry.server.upload_slots import Slot
from lakeferry.transfer.chain.hashes import Digest, Multihash
from lakeferry.transfer.datasets.dataset import DATASET_CHUNK_BYTES

CLIENT_LEFT = "client_left"
"""The attribute of a request's state that says that its client left in the middle of the body."""
SILENT_FOR_S = 60.0
"""How long a sender may pause within a body."""
_SLOWEST_BYTES_PER_S = 1 << 10
"""Minimum speed of a body, after the first ``SILENT_FOR_S``. While others wait it is higher
(:mod:`lakeferry.server.upload_slots`)."""


class ObjectBody:
    """A request's body, in pieces of a good size."""

    def __init__(self, request: Request, silent_for_s: float) -> None:
        """Read a request; its sender may pause for ``silent_for_s``."""
        self._request = request
        self._stream = request.stream()
        self._silent_for_s = silent_for_s
        self._fetched = b""
        self._received_bytes = 0
        self._waited_s = 0.0
        self._slot: Slot | None = None
        self._timer: asyncio.Timeout | None = None

    def limit_to(self, slot: Slot) -> None:
        """Continue only as long as the upload's place isn't withdrawn."""
        self._slot = slot
        slot.interrupt = self._interrupt

    async def fetch(self) -> None:
        """Read a small body into memory."""
        self._fetched = await self.next()

    async def pass_over(self) -> None:
        """Read and discard the rest; hardly any of it is in memory."""
        while await self.next(1):
            pass

    async def next(self, size_bytes: int = DATASET_CHUNK_BYTES) -> bytes:
        """Return the next piece, of about that size or more; empty at the end of the body."""
        if self._fetched:
            fetched, self._fetched = self._fetched, b""
            return fetched
        piece = bytearray()
        while len(piece) < size_bytes:
            self._check()
            began_s = asyncio.get_running_loop().time()
            try:
                async with asyncio.timeout(self._silent_for_s) as self._timer:
                    came = await anext(self._stream)
            except StopAsyncIteration:
                break
            except ClientDisconnect:
                setattr(self._request.state, CLIENT_LEFT, True)
                raise
            except TimeoutError as late:
                self._check()
                raise TimedOut(f"no data arrived for {self._silent_for_s:g} seconds") from late
            finally:
                self._timer = None
                self._waited_s += asyncio.get_running_loop().time() - began_s
            piece += came
            self._received_bytes += len(came)
            if self._slot is not None:
                self._slot.received_bytes += len(came)
        return bytes(piece)

    def _check(self) -> None:
        if self._slot is not None and self._slot.is_withdrawn:
            raise StorageUnavailable("other clients are waiting, and this upload was too slow")
        is_late = self._waited_s > self._silent_for_s
        if is_late and self._received_bytes < self._waited_s * _SLOWEST_BYTES_PER_S:
            raise TimedOut(f"fewer than {_SLOWEST_BYTES_PER_S:,} bytes arrived per second")

    def _interrupt(self) -> None:
        if self._timer is not None:
            self._timer.reschedule(asyncio.get_running_loop().time())

    def hashed(self, name: Multihash) -> Iterator[bytes]:
        """Yield the pieces, in a thread that the event loop waits for; fail on another hash.

        The check comes last, before the store gives the object its name.
        """
        digest = Digest()
        for piece in self.pieces():
            digest.update(piece)
            yield piece
        digest.check(name)

    def pieces(self) -> Iterator[bytes]:
        """Yield the pieces, in such a thread; the caller checks them when all have arrived."""
        while piece := anyio.from_thread.run(self.next):
            yield piece
