"""Downloads very many small objects.

What is done for each of ten thousand objects of a few kilobytes is what their pull costs. So
here nothing waits for one of them: an object goes from the queue to a connection, from there
to the shelf, and from the shelf to whoever wants to hear of it, by one call at each step. Only
the plain case goes this way. Of whatever else comes ``None`` is told, and
:class:`~lakeferry.transfer.client.downloads.Downloads` finds out, with patience, what is wrong.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial, wraps
from typing import Concatenate, ParamSpec, TypeAlias

from lakeferry.errors import HashMismatch, LakeferryError
from lakeferry.transfer.chain.odf_blocks import ObjectRef
from lakeferry.transfer.client.object_urls import Source
from lakeferry.transfer.client.plain_get import Asking
from lakeferry.transfer.client.remote_dataset import Remote
from lakeferry.transfer.client.shared_limits import Turns
from lakeferry.transfer.client.small_object_writer import SmallObjectWriter
from lakeferry.transfer.datasets.dataset import ObjectPlaces

_HELD_BYTES = 32 << 20
"""Of objects that are asked for or not yet written."""

WhenDownloaded: TypeAlias = Callable[[int | LakeferryError | None], None]
"""Hears how many bytes came; or what went wrong; or ``None``, if it takes patience."""


P = ParamSpec("P")


def _watched(
    act: Callable[Concatenate[SmallDownloads, P], None],
) -> Callable[Concatenate[SmallDownloads, P], None]:
    """Have an error of a call that nobody waits for end the session (``SmallDownloads.watch``)."""

    @wraps(act)
    def watched(self: SmallDownloads, /, *args: P.args, **kwargs: P.kwargs) -> None:
        try:
            act(self, *args, **kwargs)
        except Exception as error:  # noqa: BLE001 - whoever watches raises it
            self.fail(error)

    return watched


class _Small:
    """An object on its way."""

    __slots__ = ("asking", "ref", "source", "then")

    def __init__(self, ref: ObjectRef, source: Source, then: WhenDownloaded) -> None:
        self.ref = ref
        self.source = source
        self.then = then
        self.asking: Asking | None = None


class SmallDownloads:
    """Small objects of one session on their way into one dataset, until it is closed."""

    def __init__(
        self, remote: Remote, places: ObjectPlaces, shelf: SmallObjectWriter, turns: Turns
    ) -> None:
        self._remote = remote
        self._places = places
        self._shelf = shelf
        self._turns = turns
        self._queue: deque[_Small] = deque()
        self._under_way: set[_Small] = set()
        """Those that have a turn."""
        self._paying: set[asyncio.Task[None]] = set()
        self._held_bytes = 0
        self._waits_for_turn = self._is_closed = False
        self._mistake: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def begin(self, ref: ObjectRef, source: Source, then: WhenDownloaded) -> None:
        """Put an object into its place; ``then`` hears what became of it, not at once.

        Of bytes that don't have the hash ``None`` is told as well: a server that answers one
        request with what belongs to another is no plain case.
        """
        self._queue.append(_Small(ref, source, then))
        self._begin_more()

    async def watch(self) -> None:
        """Raise what should not happen, and would be lost in a call back; else wait."""
        await self._mistake

    def fail(self, error: Exception) -> None:
        """Have whoever watches raise an error."""
        if not self._mistake.done():
            self._mistake.set_exception(error)

    def close(self) -> None:
        """Drop everything: nobody hears of it. What is being written is written."""
        self._is_closed = True
        self._mistake.cancel()
        self._queue.clear()
        for task in self._paying:
            task.cancel()
        for one in list(self._under_way):
            if one.asking is not None:
                one.asking.cancel()
            self._end_turn(one)

    def _begin_more(self) -> None:
        while self._has_room():
            if not self._turns.take():
                if not self._waits_for_turn:
                    self._waits_for_turn = True
                    self._turns.wait(self._take_turn)
                return
            self._ask(self._queue.popleft())

    def _has_room(self) -> bool:
        if not self._queue:
            return False
        size_bytes = self._queue[0].ref.size_bytes
        return self._held_bytes == 0 or self._held_bytes + size_bytes <= _HELD_BYTES

    @_watched
    def _take_turn(self) -> None:
        """Use the turn that was waited for, if there still is a use for it."""
        self._waits_for_turn = False
        if self._has_room():
            self._ask(self._queue.popleft())
            self._begin_more()
        else:
            self._turns.give_back()

    def _ask(self, one: _Small) -> None:
        self._under_way.add(one)
        self._held_bytes += one.ref.size_bytes
        url = one.source.url
        if not one.source.is_stale:
            one.asking = self._remote.ask(url, one.ref.size_bytes, partial(self._came, one))
        if one.asking is None:
            asyncio.get_running_loop().call_soon(self._came, one, None)

    @_watched
    def _came(self, one: _Small, data: bytes | None) -> None:
        if one not in self._under_way:
            return
        if data is None:
            self._end_turn(one)
            self._end(one, None)
        elif self._remote.rate.is_limited:
            task = asyncio.get_running_loop().create_task(self._pay(one, data))
            self._paying.add(task)
            task.add_done_callback(self._paying.discard)
        else:
            self._shelve(one, data)

    async def _pay(self, one: _Small, data: bytes) -> None:
        """Hold the turn until what came is due."""
        await self._remote.rate.take(len(data))
        if one in self._under_way:
            self._shelve(one, data)

    @_watched
    def _shelve(self, one: _Small, data: bytes) -> None:
        """Have it checked and written, while others are asked for."""
        path = self._places.place(one.ref)
        self._shelf.add(path, data, one.ref.hash, partial(self._written, one))
        self._end_turn(one)
        self._begin_more()

    def _end_turn(self, one: _Small) -> None:
        one.asking = None
        self._under_way.discard(one)
        self._turns.give_back()

    @_watched
    def _written(self, one: _Small, error: BaseException | None) -> None:
        if self._is_closed:
            return
        if error is None:
            self._end(one, one.ref.size_bytes)
        elif isinstance(error, LakeferryError) and not isinstance(error, HashMismatch):
            self._end(one, error)
        else:
            # What isn't a failure of the store's is raised where somebody waits for it.
            self._end(one, None)

    def _end(self, one: _Small, became: int | LakeferryError | None) -> None:
        self._held_bytes -= one.ref.size_bytes
        one.then(became)
        self._begin_more()
