"""Large objects of a pull that outlive the session that began them."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from aiohttp import web

from lakeferry.errors import StorageUnavailable
from lakeferry.transfer.chain.hashes import Multihash
from lakeferry.transfer.chain.odf_blocks import ObjectKind, ObjectRef
from lakeferry.transfer.client.downloads import Downloads, Supply
from lakeferry.transfer.client.large_downloads import UnderWay
from lakeferry.transfer.client.object_urls import Source
from lakeferry.transfer.client.remote_dataset import Remote
from lakeferry.transfer.client.shared_limits import StoreThreads
from lakeferry.transfer.wire.messages import TransferUrl
from tests.support.odf import Chain
from tests.support.stores import DictStore
from tests.support.transfer_server import Cut, Files, TransferServer
from tests.support.transfers import async_pull, pull
from tests.unit.transfer.client.test_downloads import ranges
from tests.unit.transfer.client.test_push_and_pull import (
    HASTY,
    laid_out,
    stored,
    terms,
    with_large_object,
)

SIZE = (5 << 20) + 7


def dataset(appends: int) -> tuple[Chain, str]:
    """Return a dataset whose first object is a large one, and that one's path."""
    built, path = with_large_object(SIZE)
    built._rows = 10
    for number in range(appends):
        built.append(checkpoint=f"checkpoint {number}")
    return built, path


class Breaking(TransferServer):
    """A server whose first session ends at the second answer, once an object was asked for."""

    def __init__(self, files: Files, path: str, times: int) -> None:
        super().__init__(files)
        self.change: Callable[[Any], None] = lambda _: None
        """Changes what later sessions answer."""
        self._large = path
        self._times = times
        self._answers = 0
        self._was_asked = asyncio.Event()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        if self.count("GET", self._large) + request.path.endswith(self._large) >= self._times:
            self._was_asked.set()
        return await super()._handle(request)

    async def _send(self, socket: web.WebSocketResponse, name: str, message: Any) -> None:
        if name == "urls":
            self._answers += 1
            if self._answers == 2:
                await self._was_asked.wait()
                await socket.close(code=1011, message=b"gone")
                raise Cut
            if self._answers > 2:
                self.change(message)
        await super()._send(socket, name, message)


@pytest.mark.parametrize("parallel", [1, 4])
@pytest.mark.parametrize("page", [1, 1000])
def test_an_object_that_waits_for_a_url_goes_on_with_the_next_sessions(
    parallel: int, page: int
) -> None:
    built, path = dataset(6)
    with Breaking(laid_out(built), path, times=2) as server:
        server.break_after[path] = 3 << 20
        server.refuses_after_break = True
        store = stored()
        done = pull(server.url, store, terms(parallel=parallel, page=page))
        assert store.objects == server.files
        assert server.sessions == 2
        assert ranges(server, path)[0] == 0
        assert all(begin > 0 for begin in ranges(server, path)[1:])
        assert (done.objects, done.skipped) == (len(built.objects), 0)
        assert done.bytes == sum(map(len, built.objects.values()))


def test_what_others_wait_for_comes_first_whatever_the_order_of_the_answer() -> None:
    built, path = dataset(8)

    def reverse(message: Any) -> None:
        message["object_transfer_strategies"].reverse()

    with Breaking(laid_out(built), path, times=2) as server:
        server.break_after[path] = 3 << 20
        server.refuses_after_break = True
        server.change = reverse
        store = stored()
        pull(server.url, store, terms(parallel=1))
        assert store.objects == server.files
        assert server.sessions == 2


class Pausing(Breaking):
    """A server that sends half of one object, and the rest when it is told to."""

    def __init__(self, files: Files, path: str) -> None:
        super().__init__(files, path, times=1)
        self.goes_on = asyncio.Event()

    async def _file(self, request: web.Request, path: str) -> web.StreamResponse:
        if path != self._large:
            return await super()._file(request, path)
        data = self.files[path]
        response = web.StreamResponse()
        response.content_length = len(data)
        await response.prepare(request)
        await response.write(data[: 3 << 20])
        await self.goes_on.wait()
        await response.write(data[3 << 20 :])
        return response


def test_an_object_whose_url_is_still_good_just_goes_on() -> None:
    built, path = dataset(3)
    with Pausing(laid_out(built), path) as server:
        server.change = lambda _: server.goes_on.set()
        store = stored()
        pull(server.url, store, terms(page=1))
        assert store.objects == server.files
        assert server.sessions == 2
        assert ranges(server, path) == [0]


def test_nothing_is_left_when_the_pull_ends() -> None:
    built, path = dataset(3)
    complaints: list[dict[str, Any]] = []

    async def run(server: TransferServer, store: DictStore) -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, what: complaints.append(what))
        with pytest.raises(StorageUnavailable):
            await async_pull(server.url, store, terms(page=1))
        assert asyncio.all_tasks() == {asyncio.current_task()}
        gc.collect()
        await asyncio.sleep(0)

    def end(_: Any) -> None:
        raise Cut

    with Pausing(laid_out(built), path) as server:
        # Every other session ends before it has brought anything, until there is no hope.
        server.change = end
        store = stored()
        asyncio.run(run(server, store))
        assert server.sessions == HASTY.attempts
        assert ranges(server, path) == [0]
        assert path not in store.objects
        server._loop.call_soon_threadsafe(server.goes_on.set)
    assert complaints == []


# --- What is kept, and what isn't ----------------------------------------------------------


URL = Source.now(TransferUrl("http://h/x"))
LATER = Source.now(TransferUrl("http://h/y"))


def large(text: bytes) -> ObjectRef:
    return ObjectRef(ObjectKind.DATA_SLICE, Multihash.sha3_256(text), SIZE)


A, B = large(b"a"), large(b"b")


@dataclass
class Turns:
    """Downloads that get their turn, fail and end when they are told to."""

    supplies: dict[ObjectRef, Supply] = field(default_factory=dict)
    ends: dict[ObjectRef, asyncio.Future[int]] = field(default_factory=dict)
    calls: int = 0

    async def fetch(self, ref: ObjectRef, source: Source, supply: Supply) -> int:
        self.calls += 1
        self.supplies[ref] = supply
        self.ends[ref] = asyncio.get_running_loop().create_future()
        return await self.ends[ref]


def asked(times: list[int]) -> Callable[[], None]:
    return lambda: times.append(1)


def with_turns(work: Callable[[UnderWay, Turns], Awaitable[None]]) -> None:
    async def run() -> None:
        turns = Turns()
        async with asyncio.timeout(30):
            await work(UnderWay(cast(Downloads, turns)), turns)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(run())


async def begin(under_way: UnderWay, *refs: ObjectRef) -> list[asyncio.Task[int]]:
    tasks = [asyncio.create_task(under_way.fetch(ref, URL, lambda: None)) for ref in refs]
    await asyncio.sleep(0.01)
    return tasks


async def leave(*tasks: asyncio.Task[int]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


def test_only_what_has_its_turn_outlives_its_session() -> None:
    async def work(under_way: UnderWay, turns: Turns) -> None:
        tasks = await begin(under_way, A, B)
        turns.supplies[A].began()
        await leave(*tasks)
        assert (A in under_way, B in under_way) == (True, False)
        assert turns.ends[B].cancelled()
        assert await under_way.keep([B, A]) == [A]
        await under_way.end()
        assert turns.ends[A].cancelled()

    with_turns(work)


def test_what_nobody_names_any_more_is_dropped() -> None:
    async def work(under_way: UnderWay, turns: Turns) -> None:
        tasks = await begin(under_way, A, B)
        for supply in turns.supplies.values():
            supply.began()
        await leave(*tasks)
        assert await under_way.keep([B]) == [B]
        assert turns.ends[A].cancelled()
        assert not turns.ends[B].done()
        await under_way.end()

    with_turns(work)


@pytest.mark.parametrize("fails", [False, True])
def test_what_ends_between_two_sessions_is_the_next_ones_unless_it_failed(fails: bool) -> None:
    async def work(under_way: UnderWay, turns: Turns) -> None:
        tasks = await begin(under_way, A)
        turns.supplies[A].began()
        await leave(*tasks)
        if fails:
            turns.ends[A].set_exception(StorageUnavailable("gone"))
        else:
            turns.ends[A].set_result(SIZE)
        await asyncio.sleep(0.01)
        assert await under_way.keep([A]) == ([] if fails else [A])
        [task] = await begin(under_way, A)
        if fails:
            turns.ends[A].set_result(7)
        assert await task == (7 if fails else SIZE)
        assert turns.calls == 1 + fails
        assert A not in under_way

    with_turns(work)


def test_a_url_is_asked_for_once_by_the_session_that_is_there() -> None:
    async def work(under_way: UnderWay, turns: Turns) -> None:
        first: list[int] = []
        second: list[int] = []
        task = asyncio.create_task(under_way.fetch(A, URL, asked(first)))
        await asyncio.sleep(0.01)
        supply = turns.supplies[A]
        supply.began()
        # Nobody has asked.
        assert not under_way.renew(A, LATER)
        renewing = asyncio.ensure_future(supply.renew())
        await asyncio.sleep(0)
        assert len(first) == 1
        assert under_way.renew(A, LATER)
        assert await renewing == LATER
        # The session breaks while the next one is under way.
        renewing = asyncio.ensure_future(supply.renew())
        await asyncio.sleep(0)
        await leave(task)
        assert supply.is_alone
        assert not under_way.renew(A, URL)
        task = asyncio.create_task(under_way.fetch(A, URL, asked(second)))
        assert await renewing == URL
        assert turns.supplies[A].is_alone is False
        assert (len(first), second) == (2, [])
        # And once more, while it needs none: it is used when one is needed.
        await leave(task)
        task = asyncio.create_task(under_way.fetch(A, LATER, asked(second)))
        await asyncio.sleep(0)
        assert await supply.renew() == LATER
        assert second == []
        turns.ends[A].set_result(SIZE)
        assert await task == SIZE

    with_turns(work)


def test_while_no_session_is_there_an_object_isnt_given_up() -> None:
    built, path = dataset(0)
    store = DictStore()

    class Alone:
        is_alone = True
        waited = 0

        def began(self) -> None:
            pass

        async def renew(self) -> Source:
            self.waited += 1
            return Source.now(TransferUrl(f"{server.url}/{path}"))

    class Here:
        def place(self, ref: ObjectRef) -> str:
            return path

    async def run() -> None:
        threads = StoreThreads(2)
        async with Remote.open(server.url, terms()) as remote:
            source = Source.now(TransferUrl(f"{server.url}/{path}"))
            downloads = Downloads(remote, store, Here(), threads)
            name = Multihash.parse(path.removeprefix("data/"))
            ref = ObjectRef(ObjectKind.DATA_SLICE, name, SIZE)
            assert await downloads.fetch(ref, source, alone) == SIZE
        await threads.end()

    class FailingLater(TransferServer):
        async def _file(self, request: web.Request, path: str) -> web.StreamResponse:
            self.statuses.setdefault(path, [503] * 2 * HASTY.attempts)
            return await super()._file(request, path)

    alone = Alone()
    with FailingLater(laid_out(built)) as server:
        server.break_after[path] = 3 << 20
        asyncio.run(run())
        assert store.objects == {path: server.files[path]}
        assert alone.waited == 2
        assert ranges(server, path)[1] > 0
