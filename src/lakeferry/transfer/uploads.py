"""Objects from a store to URLs: read a piece at a time, hashed before the last piece leaves.

A copy that is damaged here isn't sent: the hash is known when all was read, and the last
piece is held back until it is. A PUT that breaks off is made again from its beginning.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from lakeferry.errors import HashMismatch, LakeferryError
from lakeferry.storage import Store
from lakeferry.transfer.blocks import ObjectRef
from lakeferry.transfer.downloads import Budget, Source, Threads, UrlExpired, check_status
from lakeferry.transfer.hashes import Digest
from lakeferry.transfer.odf_dataset import OdfDataset
from lakeferry.transfer.remote import Remote

_CHUNK_BYTES = 4 << 20


class Uploads:
    """Objects on their way out of one dataset."""

    def __init__(self, remote: Remote, store: Store, dataset: OdfDataset, threads: Threads) -> None:
        self._remote = remote
        self._store = store
        self._dataset = dataset
        self._threads = threads
        self._budget = Budget()

    async def put(self, ref: ObjectRef, source: Source) -> None:
        """Put an object where a URL says; ``UrlExpired`` where that is of no use."""
        async with self._budget.holding(min(ref.size_bytes, 2 * _CHUNK_BYTES)):
            await self._remote.patiently(lambda: self._put(ref, source))

    async def _put(self, ref: ObjectRef, source: Source) -> None:
        if source.is_stale:
            raise UrlExpired
        pieces = _Pieces(self._store, self._dataset, self._threads, ref)
        headers = {
            "content-type": "application/octet-stream",
            "content-length": str(ref.size_bytes),
        }
        small = ref.size_bytes <= _CHUNK_BYTES
        data = b"".join([piece async for piece in pieces.read()]) if small else pieces.read()
        try:
            async with self._remote.request("PUT", source.url, headers, data) as response:
                await check_status(response, ref, tuple(range(200, 300)))
                while await response.content.readany():
                    pass
        except LakeferryError:
            # What went wrong while it was read is the reason for what went wrong with the PUT.
            if pieces.error is not None:
                raise pieces.error from None
            raise


class _Pieces:
    """An object's bytes out of the store; ``error`` is what was wrong with them."""

    def __init__(self, store: Store, dataset: OdfDataset, threads: Threads, ref: ObjectRef) -> None:
        self._store = store
        self._path = dataset.object_path(ref.kind, ref.hash)
        self._threads = threads
        self._ref = ref
        self._digest = Digest()
        self.error: LakeferryError | None = None

    async def read(self) -> AsyncIterator[bytes]:
        """Yield them in order; the last piece only when all of them have the right hash."""
        try:
            while True:
                piece = await self._threads.run(self._next)
                if piece:
                    yield piece
                if self._digest.size_bytes == self._ref.size_bytes:
                    return
        except LakeferryError as error:
            self.error = error
            raise

    def _next(self) -> bytes:
        digest, ref = self._digest, self._ref
        length = min(_CHUNK_BYTES, ref.size_bytes - digest.size_bytes)
        piece = self._store.get_range(self._path, digest.size_bytes, length) if length else b""
        digest.update(piece)
        if len(piece) < length:
            raise HashMismatch(
                f"our own copy of {ref.hash} is damaged",
                cause=f"it has {digest.size_bytes:,} bytes, and its block says {ref.size_bytes:,}",
                remedy="pull the dataset again from where it is whole",
                expected=ref.hash.text,
                actual=None,
            )
        if digest.size_bytes == ref.size_bytes:
            digest.check(ref.hash)
        return piece
