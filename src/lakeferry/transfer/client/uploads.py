"""Uploads objects, hashed on the way.

A copy that is damaged here is never completed: the last piece is sent only after the hash of all
bytes was checked. A PUT that breaks off is repeated from its beginning.

Large objects are sent in parts if the server offers it
(:class:`~lakeferry.transfer.wire.messages.UploadParts`), a few at a time. Parts that a session has
sent stay: the server knows which exist, and requests the others in the next session.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from functools import partial

from lakeferry.errors import HashMismatch, InvalidInput, LakeferryError
from lakeferry.storage import Store
from lakeferry.transfer.chain.hashes import Digest
from lakeferry.transfer.chain.odf_blocks import ObjectRef
from lakeferry.transfer.client.downloads import Within, check_status, is_large
from lakeferry.transfer.client.object_urls import Source, UrlExpired
from lakeferry.transfer.client.remote_dataset import Remote
from lakeferry.transfer.client.shared_limits import MemoryBudget, StoreThreads
from lakeferry.transfer.datasets.dataset import ObjectPlaces
from lakeferry.transfer.wire.messages import TransferUrl, UploadParts

_CHUNK_BYTES = 4 << 20
_SENT_AT_ONCE = 256 << 10
"""A larger write would delay the event loop, and take too long on a slow connection."""
_TOGETHER_BYTES = 64 << 20


class MoreUrls(UrlExpired):
    """An object has more parts than the server gave URLs for in one message."""


class Uploads:
    """Uploads objects from one dataset."""

    def __init__(
        self,
        remote: Remote,
        store: Store,
        places: ObjectPlaces,
        threads: StoreThreads,
        within: Within = lambda *_: None,
    ) -> None:
        """Upload to a remote; ``within`` is told how far each large object has come."""
        self._remote = remote
        self._within = within
        self._store = store
        self._places = places
        self._threads = threads
        self._budget = MemoryBudget()
        self._slots = asyncio.Semaphore(remote.terms.parallel)
        self._arrived: dict[ObjectRef, int] = {}
        """How many bytes of an object's parts have arrived."""
        self._sending: dict[ObjectRef, dict[str, int]] = {}
        """How many bytes of an object's other parts have been sent, by their URLs."""

    async def put(self, ref: ObjectRef, source: Source) -> int:
        """Put an object to a URL; return how many of its bytes were sent, in all sessions.

        The server had the other bytes already. ``UrlExpired`` if the URL failed.
        """
        async with self._slots:
            return await self._put_whole_or_parts(ref, source)

    async def _put_whole_or_parts(self, ref: ObjectRef, source: Source) -> int:
        parts = source.url.parts
        if parts is not None:
            together = max(1, _TOGETHER_BYTES // parts.part_bytes)
            async with self._budget.holding((together + 1) * parts.part_bytes):
                try:
                    await self._put_parts(ref, source, parts, together)
                finally:
                    self._sending.pop(ref, None)
            return self._arrived.pop(ref, 0)
        async with self._budget.holding(min(ref.size_bytes, 2 * _CHUNK_BYTES)):
            await self._remote.patiently(lambda: self._put(ref, source))
        return ref.size_bytes

    async def _put_parts(
        self, ref: ObjectRef, source: Source, parts: UploadParts, together: int
    ) -> None:
        """Put the missing parts; the object's last one is sent after the whole hash was checked."""
        wanted = _checked(ref, parts)
        pieces = _Pieces(self._store, self._places, self._threads, ref, parts.part_bytes)
        room = asyncio.Semaphore(together)
        sending: list[asyncio.Task[None]] = []
        number = 0

        def ended(_: object) -> None:
            room.release()

        try:
            async for piece in pieces.read():
                number += 1
                if number not in wanted:
                    continue
                await room.acquire()
                if any(_has_failed(one) for one in sending):
                    break
                url = parts.url_of(wanted[number])
                sending.append(asyncio.create_task(self._put_part(ref, source, url, piece)))
                sending[-1].add_done_callback(ended)
            # Let running parts finish even if others failed: they needn't be sent again.
            await asyncio.gather(*sending, return_exceptions=True)
        finally:
            for one in sending:
                one.cancel()
        for one in sending:
            one.result()
        if not parts.is_all:
            raise MoreUrls

    async def _paced(
        self, pieces: AsyncIterator[bytes], sent: Callable[[int], None] = lambda _: None
    ) -> AsyncIterator[bytes]:
        """Yield bytes at the allowed rate, in slices that don't delay the event loop.

        ``sent`` is called with the number of bytes so far.
        """
        at = 0
        async for piece in pieces:
            for begin in range(0, len(piece), _SENT_AT_ONCE):
                part = piece[begin : begin + _SENT_AT_ONCE]
                await self._remote.rate.take(len(part))
                yield part
                at += len(part)
                sent(at)

    async def _put_part(self, ref: ObjectRef, source: Source, url: str, data: bytes) -> None:
        sending = self._sending.setdefault(ref, {})

        def sent(size_bytes: int) -> None:
            sending[url] = size_bytes
            self._within(ref, self._arrived.get(ref, 0) + sum(sending.values()))

        async def attempt() -> None:
            if source.is_stale:
                raise UrlExpired
            at = TransferUrl(url)
            headers = {"content-length": str(len(data))}
            async with self._remote.request(
                "PUT", at, headers, self._paced(_one(data), sent)
            ) as response:
                # The store doesn't know the upload any more: another client has completed it.
                if response.status == 404:
                    raise UrlExpired
                await check_status(response, ref, tuple(range(200, 300)))
                while await response.content.readany():
                    pass

        await self._remote.patiently(attempt)
        sending.pop(url, None)
        self._arrived[ref] = self._arrived.get(ref, 0) + len(data)

    async def _put(self, ref: ObjectRef, source: Source) -> None:
        if source.is_stale:
            raise UrlExpired
        pieces = _Pieces(self._store, self._places, self._threads, ref)
        headers = {
            "content-type": "application/octet-stream",
            "content-length": str(ref.size_bytes),
        }
        # The store replaces nothing and has a file there already; the server checks that file.
        bound = any(name.lower() == "if-none-match" for name, _ in source.url.headers)
        fine = (*range(200, 300), 412) if bound else tuple(range(200, 300))
        data: bytes | AsyncIterator[bytes] = self._paced(
            pieces.read(), partial(self._within, ref) if is_large(ref) else lambda _: None
        )
        if ref.size_bytes <= _SENT_AT_ONCE:
            data = b"".join([piece async for piece in self._paced(pieces.read())])
        try:
            async with self._remote.request("PUT", source.url, headers, data) as response:
                await check_status(response, ref, fine)
                while await response.content.readany():
                    pass
        except LakeferryError:
            # The error in reading is the reason for the failed PUT.
            if pieces.error is not None:
                raise pieces.error from None
            raise


async def _one(data: bytes) -> AsyncIterator[bytes]:
    yield data


def _has_failed(task: asyncio.Task[None]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is not None


def _checked(ref: ObjectRef, parts: UploadParts) -> dict[int, str]:
    """Return the missing parts by number, if an object of that size has them."""
    count = -(-ref.size_bytes // parts.part_bytes)
    wanted = dict(parts.missing)
    if len(wanted) != len(parts.missing) or not all(1 <= number <= count for number in wanted):
        raise InvalidInput(f"the server asks for parts that {ref.hash} doesn't have")
    return wanted


class _Pieces:
    """An object's bytes from the store; ``error`` is set if they are wrong."""

    def __init__(
        self,
        store: Store,
        places: ObjectPlaces,
        threads: StoreThreads,
        ref: ObjectRef,
        piece_bytes: int = _CHUNK_BYTES,
    ) -> None:
        self._piece_bytes = piece_bytes
        self._store = store
        self._path = places.place(ref)
        self._threads = threads
        self._ref = ref
        self._digest = Digest()
        self.error: LakeferryError | None = None

    async def read(self) -> AsyncIterator[bytes]:
        """Yield the pieces in order; the last one only after the hash of all was checked."""
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
        length = min(self._piece_bytes, ref.size_bytes - digest.size_bytes)
        piece = self._store.get_range(self._path, digest.size_bytes, length) if length else b""
        digest.update(piece)
        if len(piece) < length:
            raise HashMismatch(
                f"the local copy of {ref.hash} is damaged",
                cause=f"it has {digest.size_bytes:,} bytes, and its block says {ref.size_bytes:,}",
                remedy="pull the dataset again from a complete copy",
                expected=ref.hash.text,
                actual=None,
            )
        if digest.size_bytes == ref.size_bytes:
            digest.check(ref.hash)
        return piece
