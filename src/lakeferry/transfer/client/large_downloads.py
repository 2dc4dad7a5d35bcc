"""Keeps downloads of large objects going when a session ends.

What a session has begun to fetch belongs to the whole pull. When the session breaks, an object
that has its turn goes on with the URL that it has. If that comes to be of no use, the object
keeps what has arrived, and waits for the next session, which asks for it like for any other,
and before all others: it holds memory and a turn that they wait for. All else that a session
has begun ends with it.
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
"""How to have another URL for an object asked for; it comes by :meth:`UnderWay.renew`."""


class UnderWay:
    """The objects of one pull on their way, and those that outlive a session."""

    def __init__(self, downloads: Downloads) -> None:
        self._downloads = downloads
        self._arriving: dict[ObjectRef, _Arriving] = {}

    def __contains__(self, ref: ObjectRef) -> bool:
        """Tell whether a large object has begun to arrive."""
        return is_large(ref) and ref in self._arriving

    async def fetch(self, ref: ObjectRef, source: Source, ask: RequestUrl) -> int:
        """Put an object into its place as :meth:`Downloads.fetch` does, or see it arrive there.

        Whoever is cancelled leaves a large object that has its turn to whoever wants it next.
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
        """Give an object another URL, if that is what it waits for; tell whether it was."""
        arriving = self._arriving.get(ref) if is_large(ref) else None
        return arriving is not None and arriving.renewed(source)

    async def keep(self, refs: Collection[ObjectRef]) -> list[ObjectRef]:
        """Go on with those of the objects that are under way, and return them; drop all others.

        What has arrived since the last session ended is among them.
        """
        kept = [ref for ref in refs if ref in self and self._arriving[ref].is_of_use]
        await self._drop(self._arriving.keys() - set(kept))
        return kept

    async def end(self) -> None:
        """Drop everything."""
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
    """A large object on its way, whoever it is that wants it now."""

    def __init__(
        self, fetch: Callable[[Supply], Coroutine[Any, Any, int]], ask: RequestUrl
    ) -> None:
        self._ask: RequestUrl | None = ask
        self._has_begun = False
        self._source: Source | None = None
        """A later session's URL, for when the present one is of no use any more."""
        self._waiting: asyncio.Future[Source] | None = None
        self.task = asyncio.create_task(fetch(self))
        self.task.add_done_callback(heard)

    @property
    def is_of_use(self) -> bool:
        """Whether there is more to it than to a new beginning."""
        if self.task.done():
            return not self.task.cancelled() and self.task.exception() is None
        return self._has_begun

    def join(self, source: Source, ask: RequestUrl) -> None:
        """Be wanted by a session, which brings a URL."""
        self._ask = ask
        if not self.renewed(source):
            self._source = source

    def leave(self) -> None:
        """Be wanted by nobody for now."""
        self._ask = None

    def renewed(self, source: Source) -> bool:
        """Go on with a URL, if that is what is missing."""
        if self._ask is None or self._waiting is None or self._waiting.done():
            return False
        self._waiting.set_result(source)
        return True

    # --- For the download -----------------------------------------------------------------

    def began(self) -> None:
        """Have a turn from now on."""
        self._has_begun = True

    @property
    def is_alone(self) -> bool:
        """Whether no session wants it at present, and another one may be about to."""
        return self._ask is None

    async def renew(self) -> Source:
        """Return another URL: the one that is there, the session's, or the next session's."""
        if self._source is not None:
            source, self._source = self._source, None
            return source
        if self._ask is not None:
            self._ask()
        self._waiting = asyncio.get_running_loop().create_future()
        return await self._waiting
