"""Keeps downloads of large objects going when a session ends.

A download belongs to the whole pull, not to one session. When the session ends, a large object
that is being received continues with its URL. If the URL fails, the object keeps what it has
received and waits for the next session, which requests a URL for it before all others: it holds
memory and a turn that the others wait for. All other downloads of a session end with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine
from functools import partial
from typing import Any, TypeAlias

from lakeferry.transfer.chain.odf_blocks import ObjectRef
from lakeferry.transfer.client.chunk_queue import heard
from lakeferry.transfer.client.downloads import Downloads, Supply, is_large
from lakeferry.transfer.client.object_urls import Source

RequestUrl: TypeAlias = Callable[[], None]
"""Requests another URL for an object; :meth:`UnderWay.renew` gets the answer."""


class UnderWay:
    """The running downloads of one pull, and those that continue after a session."""

    def __init__(self, downloads: Downloads) -> None:
        self._downloads = downloads
        self._arriving: dict[ObjectRef, _Arriving] = {}

    def __contains__(self, ref: ObjectRef) -> bool:
        """Return True if a large object has begun to arrive."""
        return is_large(ref) and ref in self._arriving

    async def fetch(self, ref: ObjectRef, source: Source, ask: RequestUrl) -> int:
        """Download an object as :meth:`Downloads.fetch` does, or join its running download.

        If the caller is cancelled, a large object that has its turn continues for the next one.
        """
        if not is_large(ref):
            return await self._downloads.fetch(ref, source)
        arriving = self._arriving.get(ref)
        if arriving is not None and arriving.is_of_use:
            arriving.join(source, ask)
        else:
            fetch = partial(self._downloads.fetch, ref, source)
            arriving = self._arriving[ref] = _Arriving(fetch, ask)
        try:
            size_bytes = await asyncio.shield(arriving.task)
        except asyncio.CancelledError:
            arriving.leave()
            if not arriving.is_of_use:
                await self._drop([ref])
            raise
        except Exception:
            del self._arriving[ref]
            raise
        del self._arriving[ref]
        return size_bytes

    def renew(self, ref: ObjectRef, source: Source) -> bool:
        """Give a waiting object another URL; return False if it wasn't waiting."""
        arriving = self._arriving.get(ref) if is_large(ref) else None
        return arriving is not None and arriving.renewed(source)

    async def keep(self, refs: Collection[ObjectRef]) -> list[ObjectRef]:
        """Keep the downloads of these objects and return those that are kept; cancel all others.

        Downloads that finished since the last session are included.
        """
        kept = [ref for ref in refs if ref in self and self._arriving[ref].is_of_use]
        await self._drop(self._arriving.keys() - set(kept))
        return kept

    async def end(self) -> None:
        """Cancel everything."""
        await self._drop(list(self._arriving))

    async def _drop(self, refs: Collection[ObjectRef]) -> None:
        tasks = [self._arriving[ref].task for ref in refs]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        for ref in refs:
            self._arriving.pop(ref, None)


class _Arriving:
    """A large object's download, which may pass from one session to the next."""

    def __init__(
        self, fetch: Callable[[Supply], Coroutine[Any, Any, int]], ask: RequestUrl
    ) -> None:
        self._ask: RequestUrl | None = ask
        self._has_begun = False
        self._source: Source | None = None
        """A later session's URL, for when the present one fails."""
        self._waiting: asyncio.Future[Source] | None = None
        self.task = asyncio.create_task(fetch(self))
        self.task.add_done_callback(heard)

    @property
    def is_of_use(self) -> bool:
        """Return True if resuming is cheaper than starting over."""
        if self.task.done():
            return not self.task.cancelled() and self.task.exception() is None
        return self._has_begun

    def join(self, source: Source, ask: RequestUrl) -> None:
        """Connect the download to a session, with the session's URL."""
        self._ask = ask
        if not self.renewed(source):
            self._source = source

    def leave(self) -> None:
        """Disconnect the download from its session."""
        self._ask = None

    def renewed(self, source: Source) -> bool:
        """Continue with a URL if the download waits for one; return True if it did."""
        if self._ask is None or self._waiting is None or self._waiting.done():
            return False
        self._waiting.set_result(source)
        return True

    # --- For the download -----------------------------------------------------------------

    def began(self) -> None:
        """Note that the download has its turn now."""
        self._has_begun = True

    @property
    def is_alone(self) -> bool:
        """Return True if no session is connected at present."""
        return self._ask is None

    async def renew(self) -> Source:
        """Return another URL: a stored one, or one of this or the next session."""
        if self._source is not None:
            source, self._source = self._source, None
            return source
        if self._ask is not None:
            self._ask()
        self._waiting = asyncio.get_running_loop().create_future()
        return await self._waiting
