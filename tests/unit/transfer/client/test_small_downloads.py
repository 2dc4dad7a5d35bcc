"""Small objects by calls back: turns, what is held, what takes patience, an end at any moment."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, cast

import pytest

from lakeferry.errors import LakeferryError, StorageUnavailable
from lakeferry.transfer.chain.hashes import Multihash
from lakeferry.transfer.chain.odf_blocks import ObjectKind, ObjectRef
from lakeferry.transfer.client import small_downloads
from lakeferry.transfer.client.object_urls import Source, now_ms
from lakeferry.transfer.client.plain_wires import WhenReceived
from lakeferry.transfer.client.rate_limit import Rate
from lakeferry.transfer.client.remote_dataset import Remote
from lakeferry.transfer.client.shared_limits import StoreThreads, Turns
from lakeferry.transfer.client.small_downloads import SmallDownloads
from lakeferry.transfer.client.small_object_writer import SmallObjectWriter
from lakeferry.transfer.wire.messages import TransferUrl
from tests.support.stores import DictStore

DATA = [bytes([number]) * 100 for number in range(20)]
REFS = [ObjectRef(ObjectKind.DATA_SLICE, Multihash.sha3_256(data), 100) for data in DATA]


class Asked:
    """A request, which is answered when a test says so."""

    def __init__(self, url: str, then: WhenReceived) -> None:
        self.url = url
        self.then = then
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class Asking:
    """Who is asked: like a remote, of which every answer is a test's."""

    def __init__(self, rate: Rate | None = None) -> None:
        self.asked: list[Asked] = []
        self.rate = rate or Rate()
        self.is_plain = True

    def ask(self, url: TransferUrl, _: int, then: WhenReceived) -> Asked | None:
        if not self.is_plain:
            return None
        self.asked.append(Asked(url.url, then))
        return self.asked[-1]

    def place(self, ref: ObjectRef) -> str:
        if ref == REFS[13]:
            raise RuntimeError("a mistake")
        return f"data/{ref.hash.text}"


class Stage:
    """Small downloads, whom they ask, where they write, and what they told."""

    def __init__(
        self, parallel: int, store: DictStore, threads: StoreThreads, asking: Asking
    ) -> None:
        self.store = store
        self.asking = asking
        self.turns = Turns(parallel)
        shelf = SmallObjectWriter(store, threads)
        self.small = SmallDownloads(cast(Remote, asking), asking, shelf, self.turns)
        self.told: dict[int, int | LakeferryError | None] = {}

    def begin(self, *numbers: int, expired: bool = False) -> None:
        for number in numbers:
            url = TransferUrl(f"http://x/{number}", (), now_ms() - 1 if expired else None)
            source = Source(url, now_ms() - 1000)
            self.small.begin(REFS[number], source, partial(self.tell, number))

    def tell(self, number: int, became: int | LakeferryError | None) -> None:
        assert number not in self.told
        self.told[number] = became

    @property
    def urls(self) -> list[int]:
        return [int(one.url.rpartition("/")[2]) for one in self.asking.asked]

    async def until(self, count: int) -> None:
        """Wait until so many were told of."""
        await eventually(lambda: len(self.told) >= count)


async def eventually(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not is_so():  # noqa: ASYNC110 - by threads, in calls back
            await asyncio.sleep(0.001)


def staged(
    work: Callable[[Stage], Awaitable[None]],
    parallel: int = 3,
    store: DictStore | None = None,
    rate: Callable[[], Rate] = Rate,
) -> Stage:
    async def run() -> Stage:
        threads = StoreThreads(2)
        stage = Stage(parallel, store or DictStore(), threads, Asking(rate()))
        try:
            await work(stage)
        finally:
            stage.small.close()
            await threads.end()
        return stage

    return asyncio.run(run())


def test_so_many_are_asked_for_at_once_and_each_is_told_when_it_is_written() -> None:
    async def work(stage: Stage) -> None:
        stage.begin(*range(5))
        assert stage.urls == [0, 1, 2]
        stage.asking.asked[1].then(DATA[1])
        # The turn is free as soon as the bytes are there, and not only when they are written.
        assert stage.urls == [0, 1, 2, 3]
        assert stage.told == {}
        for number in (0, 2, 3, 4):
            stage.asking.asked[number].then(DATA[number])
        await stage.until(5)

    stage = staged(work)
    assert stage.told == dict.fromkeys(range(5), 100)
    assert {path: stage.store.get(path) for path in stage.store.objects} == {
        f"data/{ref.hash.text}": data for ref, data in zip(REFS[:5], DATA[:5], strict=True)
    }


def test_what_isnt_plain_is_told_to_take_patience_and_holds_up_nobody() -> None:
    async def work(stage: Stage) -> None:
        stage.begin(0, 1)
        stage.asking.asked[0].then(None)
        assert stage.told == {0: None}
        stage.asking.asked[1].then(DATA[1])
        await stage.until(2)

    assert staged(work, 1).told == {0: None, 1: 100}


def test_a_url_that_isnt_plain_or_near_its_end_isnt_asked() -> None:
    async def work(stage: Stage) -> None:
        stage.begin(0, expired=True)
        stage.asking.is_plain = False
        stage.begin(1)
        await stage.until(2)
        assert stage.urls == []

    assert staged(work, 1).told == {0: None, 1: None}


def test_bytes_without_their_hash_take_patience_and_arent_written() -> None:
    async def work(stage: Stage) -> None:
        stage.begin(0, 1)
        stage.asking.asked[0].then(b"x" * 100)
        stage.asking.asked[1].then(DATA[1])
        await stage.until(2)

    stage = staged(work)
    assert stage.told == {0: None, 1: 100}
    assert list(stage.store.objects) == [f"data/{REFS[1].hash.text}"]


class Refusing(DictStore):
    """A store that fails."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error

    def put_many(self, objects: Any) -> None:
        raise self.error


@pytest.mark.parametrize("error", [StorageUnavailable("full"), MemoryError()])
def test_what_a_store_says_is_told_and_what_it_should_not_say_is_found_out(
    error: Exception,
) -> None:
    async def work(stage: Stage) -> None:
        stage.begin(0)
        stage.asking.asked[0].then(DATA[0])
        await stage.until(1)

    expected = error if isinstance(error, LakeferryError) else None
    assert staged(work, store=Refusing(error)).told == {0: expected}


def test_no_more_is_held_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small_downloads, "_HELD_BYTES", 250)

    async def work(stage: Stage) -> None:
        stage.begin(*range(5))
        assert stage.urls == [0, 1]
        stage.asking.asked[0].then(DATA[0])
        assert stage.urls == [0, 1]
        await stage.until(1)
        assert stage.urls == [0, 1, 2]
        for number in (1, 2, 3, 4):
            stage.asking.asked[number].then(DATA[number])
            await stage.until(number + 1)

    assert staged(work, 8).told == dict.fromkeys(range(5), 100)


def test_one_that_is_larger_than_the_room_goes_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small_downloads, "_HELD_BYTES", 50)

    async def work(stage: Stage) -> None:
        stage.begin(0, 1)
        assert stage.urls == [0]
        stage.asking.asked[0].then(DATA[0])
        await stage.until(1)
        assert stage.urls == [0, 1]

    staged(work)


def test_whoever_else_waits_for_a_turn_gets_the_next_one() -> None:
    async def work(stage: Stage) -> None:
        stage.begin(0, 1, 2)
        has_turn = asyncio.Event()

        async def other() -> None:
            async with stage.turns.holding():
                has_turn.set()
                await asyncio.sleep(0)

        waiting = asyncio.create_task(other())
        await asyncio.sleep(0)
        stage.asking.asked[0].then(DATA[0])
        # Who asked before has it; then the other one, before what is left of these.
        assert stage.urls == [0, 1]
        stage.asking.asked[1].then(DATA[1])
        assert stage.urls == [0, 1]
        async with asyncio.timeout(30):
            await has_turn.wait()
            await waiting
        assert stage.urls == [0, 1, 2]

    staged(work, 1)


def test_a_turn_that_nobody_wants_any_more_goes_to_the_next() -> None:
    async def work(stage: Stage) -> None:
        assert stage.turns.take()
        began: list[str] = []

        async def hold(name: str) -> None:
            async with stage.turns.holding():
                began.append(name)

        first, second = (asyncio.create_task(hold(name)) for name in "ab")
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.sleep(0)
        stage.turns.give_back()
        async with asyncio.timeout(30):
            await second
        assert began == ["b"]
        # Cancelled in the moment in which it gets the turn.
        assert stage.turns.take()
        third = asyncio.create_task(hold("c"))
        await asyncio.sleep(0)
        stage.turns.give_back()
        third.cancel()
        await asyncio.wait([third])
        assert stage.turns.take()

    staged(work, 1)


def test_however_many_stop_waiting_no_turn_is_lost() -> None:
    async def work(stage: Stage) -> None:
        assert all(stage.turns.take() for _ in range(3))

        async def hold() -> None:
            async with stage.turns.holding():
                raise AssertionError("it is nobody's turn")

        waiting = [asyncio.create_task(hold()) for _ in range(5000)]
        await asyncio.sleep(0)
        for one in waiting:
            one.cancel()
        await asyncio.wait(waiting)
        for _ in range(3):
            stage.turns.give_back()
        assert all(stage.turns.take() for _ in range(3))
        assert not stage.turns.take()

    staged(work)


def test_closed_it_asks_nobody_and_tells_nobody_and_gives_all_turns_back() -> None:
    async def work(stage: Stage) -> None:
        stage.begin(*range(5))
        stage.asking.asked[0].then(DATA[0])
        stage.small.close()
        assert [one.is_cancelled for one in stage.asking.asked] == [False, True, True, True]
        assert all(stage.turns.take() for _ in range(3))
        assert not stage.turns.take()
        stage.asking.asked[1].then(DATA[1])
        await asyncio.sleep(0.05)

    stage = staged(work)
    assert stage.told == {}
    assert stage.urls == [0, 1, 2, 3]


def test_a_rate_is_kept_by_holding_the_turn() -> None:
    waits: list[asyncio.Future[None]] = []

    async def sleep(_: float) -> None:
        waits.append(asyncio.get_running_loop().create_future())
        await waits[-1]

    async def work(stage: Stage) -> None:
        stage.begin(0, 1)
        stage.asking.asked[0].then(DATA[0])
        await asyncio.sleep(0.01)
        assert (stage.urls, len(waits)) == ([0], 1)
        waits[0].set_result(None)
        await stage.until(1)
        assert stage.urls == [0, 1]
        stage.asking.asked[1].then(DATA[1])
        await asyncio.sleep(0.01)
        stage.small.close()
        assert stage.turns.take()

    assert staged(work, 1, rate=lambda: Rate(1, sleep=sleep)).told == {0: 100}


@pytest.mark.parametrize("rate", [Rate, lambda: Rate(10**9)])
def test_a_mistake_in_a_call_back_isnt_lost(rate: Callable[[], Rate]) -> None:
    async def work(stage: Stage) -> None:
        watching = asyncio.create_task(stage.small.watch())
        stage.begin(13)
        stage.asking.asked[0].then(DATA[13])
        async with asyncio.timeout(30):
            with pytest.raises(RuntimeError, match="a mistake"):
                await watching

    staged(work, rate=rate)
