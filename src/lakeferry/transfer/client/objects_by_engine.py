"""Has an engine's executors move objects.

A page of objects, with their places and URLs, is a :class:`Carriage`: a frozen value that an
engine sends to its executors. They use the same code as this process
(:mod:`lakeferry.transfer.client.downloads`, :mod:`lakeferry.transfer.client.uploads`), so trusted
hosts, resuming and hash checks are the same. The result of each object is sent back; for one
whose URL failed, a new URL is requested. The user's token stays in this process; the headers that
a server wants with an object's URL are sent along.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import msgspec

from lakeferry import errors
from lakeferry.engine import CarryPlan, Engine, Observer, Volume
from lakeferry.errors import LakeferryError
from lakeferry.storage import StoreConfig, open_config
from lakeferry.transfer.chain.odf_blocks import ObjectRef
from lakeferry.transfer.client import event_loop
from lakeferry.transfer.client.downloads import Downloads, Within
from lakeferry.transfer.client.object_urls import Source, UrlExpired
from lakeferry.transfer.client.remote_dataset import Remote, Terms
from lakeferry.transfer.client.shared_limits import StoreThreads
from lakeferry.transfer.client.transfer_progress import TransferProgress
from lakeferry.transfer.client.uploads import MoreUrls, Uploads

ObjectOutcome: TypeAlias = UrlExpired | LakeferryError | int
"""The result of an object: the number of bytes that were moved, or the error."""

_EXPIRED = "expired"
_MORE = "more"


@dataclass(frozen=True, slots=True)
class Load:
    """An object, its path in our store, and its URL at the other end."""

    ref: ObjectRef
    place: str
    source: Source


@dataclass(frozen=True, slots=True)
class Carriage:
    """Objects to move between a store and URLs; ``is_push`` is the direction."""

    store: StoreConfig
    url: str
    """The dataset's URL, which defines the trusted hosts."""
    terms: Terms
    loads: tuple[Load, ...]
    is_push: bool

    def carry(
        self, numbers: Sequence[int], tasks: int, tell: Callable[[int, int], None]
    ) -> Iterator[tuple[int, str]]:
        """Move the objects with these numbers, and yield the result of each."""

        def observer(_what: str, done: int, _total: int) -> None:
            tell(done, done.objects if isinstance(done, Volume) else 0)

        progress = TransferProgress(observer, "")
        yield from event_loop.run_in_loop(self._carry(numbers, tasks, progress))

    async def _carry(
        self, numbers: Sequence[int], tasks: int, progress: TransferProgress
    ) -> list[tuple[int, str]]:
        terms = self.terms
        if terms.limit_rate is not None:
            terms = replace(terms, limit_rate=max(1, terms.limit_rate // tasks))
        threads = StoreThreads(terms.parallel + 2)
        waiting = iter(numbers)
        done: list[tuple[int, str]] = []

        async def work(move: _Move) -> None:
            for number in waiting:
                became = await move(self.loads[number])
                if isinstance(became, int):
                    progress.moved(self.loads[number].ref, became)
                else:
                    progress.gone(self.loads[number].ref)
                done.append((number, str(became)))

        try:
            async with Remote.open(self.url, terms) as remote, asyncio.TaskGroup() as workers:
                move = _Move(self, remote, threads, progress.within)
                for _ in range(min(terms.parallel, len(numbers))):
                    workers.create_task(work(move))
        finally:
            threads.close()
        return done


class _Move:
    """Moves one object after the other, in an executor."""

    def __init__(
        self, carriage: Carriage, remote: Remote, threads: StoreThreads, within: Within
    ) -> None:
        store = open_config(carriage.store)
        self._places = {load.ref: load.place for load in carriage.loads}
        self._downloads = self._uploads = None
        if carriage.is_push:
            self._uploads = Uploads(remote, store, self, threads, within)
        else:
            self._downloads = Downloads(remote, store, self, threads, within)

    def place(self, ref: ObjectRef) -> str:
        """Return the path of an object."""
        return self._places[ref]

    async def __call__(self, load: Load) -> int | str:
        """Move an object; return the number of bytes, or what went wrong as text."""
        try:
            if self._uploads is not None:
                return await self._uploads.put(load.ref, load.source)
            assert self._downloads is not None
            return await self._downloads.fetch(load.ref, load.source)
        except MoreUrls:
            return _MORE
        except UrlExpired:
            return _EXPIRED
        except LakeferryError as error:
            return _told(error)


class Carrying:
    """Lets an engine move the objects of one transfer."""

    def __init__(
        self,
        engine: Engine,
        store: StoreConfig,
        remote: Remote,
        threads: StoreThreads,
        *,
        is_push: bool,
    ) -> None:
        """Move between a store and the URLs of a server, which is the transfer's ``remote``."""
        self._engine = engine
        self._store = store
        self._url = remote.url
        self._terms = replace(remote.terms, token=None)
        self._threads = threads
        self._is_push = is_push

    async def carry(self, loads: Sequence[Load], observer: Observer) -> list[ObjectOutcome]:
        """Move objects, and return the result of each."""
        carriage = Carriage(self._store, self._url, self._terms, tuple(loads), self._is_push)
        sizes = tuple(load.ref.size_bytes for load in loads)
        plan = CarryPlan(carriage, self._store, sizes, "pushing" if self._is_push else "pulling")
        told = await self._threads.run(lambda: dict(self._engine.carry(plan, observer)))
        return [_heard(told.get(number, _EXPIRED)) for number in range(len(loads))]


def _told(error: LakeferryError) -> str:
    fields = {
        name: value if isinstance(value, str | int | float | bool | None) else str(value)
        for name, value in error.fields.items()
    }
    # An error class that is private to this package is sent as its nearest public class.
    kind = next(
        each.__name__
        for each in type(error).__mro__
        if getattr(errors, each.__name__, None) is each
    )
    return msgspec.json.encode([kind, error.message, error.cause, error.remedy, fields]).decode()


def _heard(text: str) -> ObjectOutcome:
    if text == _EXPIRED:
        return UrlExpired()
    if text == _MORE:
        return MoreUrls()
    if text.isdecimal():
        return int(text)
    kind, message, cause, remedy, fields = msgspec.json.decode(text)
    raised: type[LakeferryError] = getattr(errors, kind)
    return raised(message, cause=cause, remedy=remedy, **fields)
