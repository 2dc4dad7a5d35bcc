"""Downloads objects: streams, hashes and resumes them.

An object gets its name only when all of its bytes were received, their number is that in the
block, and their hash is its name. Small objects are held whole and written in one call. Large
ones are written while they arrive, and discarded if the hash turns out wrong. After a broken
connection, a new request gets the rest (``Range``); received bytes are kept, also when a URL
expires meanwhile. Bytes of objects above :data:`KEPT_BYTES` are kept even when the process ends,
if the store can keep them (:meth:`~lakeferry.storage.Store.partial`): the next pull reads them
again for the hash, and requests the rest.

Memory is bounded by a budget (``shared_limits.py``) and not by the number of concurrent objects,
because stores hold objects of up to about 32 MiB whole while they write them.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Protocol, TypeVar

import aiohttp

from lakeferry.errors import (
    Forbidden,
    HashMismatch,
    LimitExceeded,
    MissingFile,
    StorageUnavailable,
    TimedOut,
)
from lakeferry.storage import Partial, Store
from lakeferry.transfer.chain.hashes import Digest
from lakeferry.transfer.chain.odf_blocks import ObjectRef
from lakeferry.transfer.client.chunk_queue import Chunk, Relay, ahead, heard
from lakeferry.transfer.client.object_urls import Source, UrlExpired
from lakeferry.transfer.client.remote_dataset import Remote, is_passing, shown_body
from lakeferry.transfer.client.shared_limits import MemoryBudget, StoreThreads
from lakeferry.transfer.client.small_object_writer import SmallObjectWriter
from lakeferry.transfer.datasets.dataset import ObjectPlaces

_T = TypeVar("_T")

_SMALL_BYTES = 1 << 20
_LARGEST_OBJECT_BYTES = 5 << 40
"""The maximum of object stores, and more than any object of ours."""

KEPT_BYTES = 32 << 20

_CHUNK_BYTES = 1 << 20
_HELD_BYTES = 32 << 20
_MOST_PARTS = 1000
_REFUSED_URLS = 3
_RANGE = re.compile(r"bytes ([0-9]{1,19})-[0-9]{1,19}/(?:[0-9]{1,19}|\*)")


Within = Callable[[ObjectRef, int], None]
"""Is called with the number of bytes of a large object that have been moved now."""

Checked = Callable[[ObjectRef, int, bool], None]
"""Is called with a number of bytes of an object, and whether these are all."""


class Supply(Protocol):
    """Provides a large object with what it needs while it arrives."""

    def began(self) -> None:
        """Called when the object's download begins."""

    @property
    def is_alone(self) -> bool:
        """Return True if a failed object must wait for a new URL before it is given up."""

    async def renew(self) -> Source:
        """Return a new URL for the rest of the object."""


class Downloads:
    """Downloads objects into one dataset."""

    def __init__(
        self,
        remote: Remote,
        store: Store,
        places: ObjectPlaces,
        threads: StoreThreads,
        within: Within = lambda *_: None,
        checked: Checked = lambda *_: None,
    ) -> None:
        """Download from a remote; ``within`` is told how far each large object has come.

        ``checked`` is told how many of the bytes that an earlier process received were hashed.
        """
        self._remote = remote
        self._within = within
        self._checked = checked
        self._store = store
        self._places = places
        self._threads = threads
        self._budget = MemoryBudget()
        self._turns = asyncio.Semaphore(remote.terms.parallel)
        self._shelf = SmallObjectWriter(store, threads)
        self._were_there: dict[ObjectRef, int] = {}
        """How many bytes of an object an earlier process had received."""

    async def fetch(
        self,
        ref: ObjectRef,
        source: Source,
        supply: Supply | None = None,
    ) -> int:
        """Download an object to its place; return how many bytes were transferred now.

        ``UrlExpired`` if the URL failed before anything was received, or if no ``supply`` has
        another; only large objects get one. Bytes with a wrong hash are requested once more:
        something on the way may have changed them.
        """
        check_download_size(ref)
        async with self._budget.holding(min(ref.size_bytes, _HELD_BYTES)):
            try:
                await self._fetch(ref, source, supply)
            except HashMismatch:
                await self._fetch(ref, source, supply)
        were_there = self._were_there.pop(ref, 0) if is_large(ref) else 0
        return ref.size_bytes - were_there

    async def _fetch(self, ref: ObjectRef, source: Source, supply: Supply | None) -> None:
        path = self._places.place(ref)
        if not is_large(ref):
            async with self._turns:
                data = b"".join([chunk async for chunk in self._chunks(ref, source)])
            # Other objects are requested while this one is checked and written.
            await self._shelf.put(path, data, ref.hash)
            return
        async with self._turns:
            if supply is not None:
                supply.began()
            await self._fetch_large(path, ref, source, supply)

    async def _fetch_large(
        self, path: str, ref: ObjectRef, source: Source, supply: Supply | None
    ) -> None:
        if ref.size_bytes > KEPT_BYTES:
            partial = await self._threads.run(lambda: self._store.partial(path))
            if partial is not None:
                await self._continue(partial, ref, source, supply)
                return
        async with aclosing(ahead(self._chunks(ref, source, supply))) as chunks:
            relay = Relay(chunks, asyncio.get_running_loop(), ref.hash, Digest())
            await self._write(
                relay,
                lambda: self._store.put_stream(path, map(bytes, relay), ref.size_bytes),
            )

    async def _continue(
        self, partial: Partial, ref: ObjectRef, source: Source, supply: Supply | None
    ) -> None:
        """Append to the stored part of an object, and give it its name if all bytes are right."""
        try:
            loop = asyncio.get_running_loop()

            def checked(size_bytes: int) -> None:
                loop.call_soon_threadsafe(self._checked, ref, size_bytes, False)

            digest = await self._to_its_end(lambda: _digest_of(partial, ref, checked))
            self._checked(ref, digest.size_bytes, True)
            self._were_there.setdefault(ref, digest.size_bytes)
            rest = self._chunks(ref, source, supply, digest.size_bytes)
            chunks = ahead(rest)
            async with aclosing(chunks):
                relay = Relay(chunks, asyncio.get_running_loop(), ref.hash, digest)
                await self._write(relay, lambda: _complete(partial, relay))
        except HashMismatch:
            # It isn't known which bytes are wrong, so none can be kept.
            await self._to_its_end(partial.discard)
            self._were_there[ref] = 0
            raise
        finally:
            partial.close()

    async def _write(self, relay: Relay, act: Callable[[], None]) -> None:
        """Let a thread write the chunks of a relay."""
        try:
            await self._to_its_end(act, relay.stop)
        except asyncio.CancelledError:
            raise
        except BaseException:
            # A store may wrap the exception; raise the original one.
            if relay.error is not None:
                raise relay.error from None
            raise

    async def _to_its_end(
        self, act: Callable[[], _T], stop: Callable[[], None] | None = None
    ) -> _T:
        """Return the result of a thread; a cancelled caller waits for the thread, too.

        The thread uses what the caller is about to close.
        """
        doing = asyncio.ensure_future(self._threads.run(act))
        doing.add_done_callback(heard)
        try:
            return await asyncio.shield(doing)
        except asyncio.CancelledError:
            if stop is not None:
                stop()
            # A second cancellation waits, too: the thread still uses what is closed next.
            while not doing.done():
                with suppress(asyncio.CancelledError):
                    await asyncio.wait([doing])
            raise

    async def _chunks(
        self,
        ref: ObjectRef,
        source: Source,
        supply: Supply | None = None,
        begin: int = 0,
    ) -> AsyncGenerator[Chunk, None]:
        """Yield an object's bytes from an offset, with as many requests as needed."""
        held: list[bytes] = []
        held_bytes = 0
        at = begin
        failures = refused = 0
        if begin == ref.size_bytes > 0:
            return
        for _ in range(_MOST_PARTS):
            began = at
            try:
                async with self._reading(ref, source, at) as body:
                    while piece := await body.readany():
                        at += len(piece)
                        await self._remote.rate.take(len(piece))
                        if is_large(ref):
                            self._within(ref, at - self._were_there.get(ref, 0))
                        if at > ref.size_bytes:
                            raise _wrong_size(ref, "more came")
                        held.append(piece)
                        held_bytes += len(piece)
                        if held_bytes >= _CHUNK_BYTES:
                            yield b"".join(held)
                            held, held_bytes = [], 0
                self._check_end(ref, at)
                if held:
                    yield b"".join(held)
                return
            except UrlExpired:
                refused += not source.is_stale
                if supply is None or at == begin or refused > _REFUSED_URLS:
                    raise
                source = await supply.renew()
                continue
            except (StorageUnavailable, TimedOut) as error:
                failures = 1 if at > began else failures + 1
                if failures >= self._remote.terms.patience.attempts or not is_passing(error):
                    if supply is None or at == begin or not supply.is_alone:
                        raise
                    source, failures = await supply.renew(), 0
                    continue
            await self._remote.terms.patience.wait(failures)
        raise StorageUnavailable(
            f"the object {ref.hash} came in too many pieces", cause=f"{_MOST_PARTS:,} of them"
        )

    @staticmethod
    def _check_end(ref: ObjectRef, at: int) -> None:
        if at < ref.size_bytes:
            raise StorageUnavailable(
                f"the transfer of object {ref.hash} was interrupted", cause=f"after {at:,} bytes"
            )

    @asynccontextmanager
    async def _reading(
        self, ref: ObjectRef, source: Source, at: int
    ) -> AsyncIterator[aiohttp.StreamReader]:
        """Request an object from an offset, and yield a reader that begins there."""
        if source.is_stale:
            raise UrlExpired
        headers = {"range": f"bytes={at}-"} if at else {}
        async with self._remote.request("GET", source.url, headers) as response:
            await check_status(response, ref, (200, 206) if at else (200,))
            skipped = at
            if response.status == 206:
                found = _RANGE.fullmatch(response.headers.get("content-range", ""))
                if found is None or int(found[1]) != at:
                    raise StorageUnavailable(
                        "the server sent another range than the one requested", passing=False
                    )
                skipped = 0
            announced = response.content_length
            if announced is not None and announced != ref.size_bytes - at + skipped:
                raise _wrong_size(ref, f"{announced:,} are announced")
            # A server without range support sends everything; skip the bytes that we have.
            while skipped:
                piece = await response.content.read(min(skipped, _CHUNK_BYTES))
                if not piece:
                    raise StorageUnavailable(f"the transfer of object {ref.hash} was interrupted")
                skipped -= len(piece)
            yield response.content


def _digest_of(partial: Partial, ref: ObjectRef, checked: Callable[[int], None]) -> Digest:
    """Return the digest of an object's stored part; discard a part that is too long."""
    digest = Digest()
    for chunk in partial.read():
        digest.update(chunk)
        checked(digest.size_bytes)
    if digest.size_bytes <= ref.size_bytes:
        return digest
    partial.discard()
    return Digest()


def _complete(partial: Partial, rest: Iterable[Chunk]) -> None:
    for chunk in rest:
        partial.append(chunk)
    partial.publish()


async def check_status(
    response: aiohttp.ClientResponse, ref: ObjectRef, fine: tuple[int, ...]
) -> None:
    """Raise an object's error for an answer other than the expected ones."""
    status = response.status
    if status in fine:
        return
    body = await shown_body(response)
    # Google answers 400 for an expired URL.
    if status in (401, 403) or (status == 400 and "xpired" in body):
        raise UrlExpired
    if status == 404:
        raise MissingFile(
            f"the server doesn't have {ref.hash}",
            cause="its blocks name the object, but its URL finds nothing",
            remedy="ask the owner of the dataset to repair it: it lacks an object",
            missing=[ref.hash.text],
        )
    raise StorageUnavailable(
        f"the object {ref.hash} can't be transferred",
        cause=f"the answer was {status} {response.reason or ''}".rstrip(),
        remedy="try again later",
        passing=status >= 500 or status in (408, 425, 429),
    )


def is_large(ref: ObjectRef) -> bool:
    """Return True if an object is written while it arrives."""
    return ref.size_bytes > _SMALL_BYTES


def check_download_size(ref: ObjectRef) -> None:
    """Refuse an object that is larger than any store allows."""
    if ref.size_bytes > _LARGEST_OBJECT_BYTES:
        raise LimitExceeded(
            f"the object {ref.hash} is too large",
            cause=f"its block says {ref.size_bytes:,} bytes",
            limit=_LARGEST_OBJECT_BYTES,
        )


def refused_url(ref: ObjectRef) -> Forbidden:
    """Return the error for URLs that are refused although they are new."""
    return Forbidden(
        f"the store refuses the URL of {ref.hash}",
        cause="it hasn't expired, and new URLs are refused too",
        remedy="compare the clocks of this machine, the server and the store; if they agree, ask "
        "the server's owner",
    )


def _wrong_size(ref: ObjectRef, cause: str) -> HashMismatch:
    return HashMismatch(
        f"the bytes don't match the hash {ref.hash}",
        cause=f"its block says {ref.size_bytes:,} bytes, and {cause}",
        remedy="ask the owner of the sender's dataset: its copy is damaged",
        expected=ref.hash.text,
        actual=None,
    )
