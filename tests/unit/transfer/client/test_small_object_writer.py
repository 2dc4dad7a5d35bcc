"""Small objects are written many at a time; each is told its own outcome."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping

import pytest

from lakeferry.errors import HashMismatch, StorageUnavailable
from lakeferry.transfer.chain.hashes import Multihash
from lakeferry.transfer.client.shared_limits import StoreThreads
from lakeferry.transfer.client.small_object_writer import SmallObjectWriter
from tests.support.stores import DictStore

DATA = {f"data/{number}": bytes([number]) * 10 for number in range(6)}


class Gated(DictStore):
    """A store whose calls wait for a gate; it refuses calls that have a certain name."""

    def __init__(self, refused: str = "") -> None:
        super().__init__()
        self.gate = threading.Event()
        self.calls_made: list[list[str]] = []
        self.refused = refused

    def put_many(self, objects: Mapping[str, bytes]) -> None:
        assert self.gate.wait(10)
        self.calls_made.append(list(objects))
        if self.refused in objects:
            raise StorageUnavailable("no room")
        super().put_many(objects)


def written(store: Gated, wrong: str = "") -> dict[str, BaseException | None]:
    """Put all objects at once, the ``wrong`` one under another name; return how each ended."""

    async def run() -> list[BaseException | None]:
        threads = StoreThreads(1)
        writer = SmallObjectWriter(store, threads)

        async def put(path: str, data: bytes) -> None:
            named = b"other" if path == wrong else data
            await writer.put(path, data, Multihash.sha3_256(named))

        tasks = [asyncio.create_task(put(path, data)) for path, data in DATA.items()]
        asyncio.get_running_loop().call_soon(store.gate.set)
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        threads.close()
        return ended

    return dict(zip(DATA, asyncio.run(run()), strict=True))


def test_what_waits_goes_in_one_call() -> None:
    store = Gated()
    assert set(written(store).values()) == {None}
    assert sum(map(len, store.calls_made)) == len(DATA)
    assert len(store.calls_made) <= 2
    assert store.get_many(list(DATA)) == list(DATA.values())


def test_an_object_that_isn_t_what_it_is_called_is_refused_alone() -> None:
    store = Gated()
    ended = written(store, wrong="data/3")
    assert isinstance(ended.pop("data/3"), HashMismatch)
    assert set(ended.values()) == {None}
    assert "data/3" not in [info.path for info in store.list("")]


def test_a_store_that_refuses_one_object_takes_the_others() -> None:
    store = Gated(refused="data/2")
    ended = written(store)
    assert isinstance(ended.pop("data/2"), StorageUnavailable)
    assert set(ended.values()) == {None}


def test_whoever_is_cancelled_holds_up_nobody() -> None:
    store = Gated()

    async def run() -> None:
        threads = StoreThreads(1)
        writer = SmallObjectWriter(store, threads)
        first, second = (
            asyncio.create_task(writer.put(path, DATA[path], Multihash.sha3_256(DATA[path])))
            for path in ("data/0", "data/1")
        )
        await asyncio.sleep(0)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        store.gate.set()
        await second
        threads.close()

    asyncio.run(run())
    assert store.get("data/1") == DATA["data/1"]
