"""Large objects that arrive in several pulls, as when a process ended in between; small ones."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from lakeferry.engine import Volume
from lakeferry.errors import HashMismatch, StorageUnavailable
from lakeferry.storage import Store, local_store, open_store
from lakeferry.transfer.chain.hashes import Multihash
from lakeferry.transfer.client import downloads
from lakeferry.transfer.client.downloads import Downloads
from lakeferry.transfer.client.remote_dataset import Patience
from lakeferry.transfer.client.shared_limits import StoreThreads
from lakeferry.transfer.client.small_object_writer import SmallObjectWriter
from tests.support.stores import DictStore
from tests.support.transfer_server import TransferServer
from tests.support.transfers import pull
from tests.unit.transfer.client.test_push_and_pull import laid_out, terms, with_large_object

SIZE = (5 << 20) + 7
IMPATIENT = Patience(attempts=1, first_wait_s=0.001)


@pytest.fixture(autouse=True)
def all_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(downloads, "KEPT_BYTES", 4 << 20)


@pytest.fixture
def server() -> Iterator[TransferServer]:
    built, _ = with_large_object(SIZE)
    with TransferServer(laid_out(built)) as running:
        yield running


@pytest.fixture
def path(server: TransferServer) -> str:
    return next(path for path in server.files if path.startswith("data/"))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(str(tmp_path / "t"))


def objects(store: Store) -> dict[str, bytes]:
    return {found.path: store.get(found.path) for found in store.list("")}


def ranges(server: TransferServer, path: str) -> list[int]:
    """Return from which byte on the object was asked for, each time."""
    asked = [asked for _, asked_path, asked in server.asked if asked_path == path]
    return [int(one.removeprefix("bytes=").rstrip("-")) if one else 0 for one in asked]


def break_off(server: TransferServer, path: str, store: Store, after: int = 3 << 20) -> None:
    server.break_after[path] = after
    with pytest.raises(StorageUnavailable):
        pull(server.url, store, terms(patience=IMPATIENT))
    assert objects(store) == {}


def test_the_next_pull_goes_on_within_the_object(
    server: TransferServer, path: str, store: Store
) -> None:
    break_off(server, path, store)
    break_off(server, path, store, 1 << 20)
    done = pull(server.url, open_store(store.uri), terms())
    assert objects(store) == server.files
    first, second, third = ranges(server, path)
    assert 0 == first < second < third
    assert (done.objects, done.bytes) == (1, SIZE - third)
    assert list(store.entries("")) == sorted(server.files)


def test_a_pull_tells_how_far_it_is_within_an_object(
    server: TransferServer, path: str, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_store, "_CHUNK_BYTES", 1 << 18)
    break_off(server, path, store)
    told: list[tuple[int, int, int]] = []
    checked: list[tuple[int, int]] = []

    def observe(what: str, done: int, total: int) -> None:
        assert isinstance(done, Volume)
        assert isinstance(total, Volume)
        if what == "checking received bytes":
            checked.append((int(done), int(total)))
        else:
            told.append((int(done), done.objects, int(total)))

    done = pull(server.url, open_store(store.uri), terms(), observer=observe)
    # What was received before is read again for the hash.
    were_there = SIZE - done.bytes
    assert checked[-1] == (were_there, were_there)
    assert checked == sorted(checked, key=lambda each: each[0])
    assert any(0 < size < were_there for size, _ in checked)
    *inside, last = told
    assert last == (done.bytes, 1, SIZE)
    assert inside
    assert inside == sorted(inside)
    assert all(0 < size <= done.bytes and not objects for size, objects, _ in inside)


def test_what_broke_off_at_its_very_end_isnt_asked_for_again(
    server: TransferServer, path: str, store: Store
) -> None:
    partial = store.partial(path)
    assert partial is not None
    partial.append(server.files[path])
    partial.close()
    pull(server.url, store, terms())
    assert objects(store) == server.files
    assert ranges(server, path) == []


@pytest.mark.parametrize("left", [b"?" * (2 << 20), b"?" * (SIZE + 1), b"?" * SIZE])
def test_what_was_left_and_is_wrong_is_thrown_away(
    server: TransferServer, path: str, store: Store, left: bytes
) -> None:
    partial = store.partial(path)
    assert partial is not None
    partial.append(left)
    partial.close()
    pull(server.url, store, terms())
    assert objects(store) == server.files
    assert ranges(server, path)[-1] == 0


def test_a_server_that_has_something_else_now_is_found_out(
    server: TransferServer, path: str, store: Store
) -> None:
    break_off(server, path, store)
    server.corrupt.add(path)
    server.files[path] = server.files[path][:-1] + b"?"
    with pytest.raises(HashMismatch):
        pull(server.url, store, terms())
    assert objects(store) == {}


def test_two_at_once_both_get_it(server: TransferServer, path: str, store: Store) -> None:
    partial = store.partial(path)
    assert partial is not None
    partial.append(b"somebody else's")
    pull(server.url, store, terms())
    assert objects(store) == server.files
    assert b"".join(partial.read()) == b"somebody else's"
    partial.close()


# --- Small objects, which are written many at a time -------------------------------------


X = Multihash.sha3_256(b"x")


class Failing(DictStore):
    """A store whose calls wait, and then fail with whatever they are told to."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error
        self.calls_made = 0
        self.called, self.goes_on = threading.Event(), threading.Event()

    def put_many(self, objects: Mapping[str, bytes]) -> None:
        self.calls_made += 1
        self.called.set()
        assert self.goes_on.wait(30)
        raise self.error


def shelved(
    store: Failing, work: Callable[[SmallObjectWriter, StoreThreads], Awaitable[object]]
) -> list[dict[str, Any]]:
    """Let something be put, and return what the event loop complains of."""
    complaints: list[dict[str, Any]] = []

    async def run() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, what: complaints.append(what))
        threads = StoreThreads(2)
        try:
            async with asyncio.timeout(30):
                await work(SmallObjectWriter(store, threads), threads)
        finally:
            store.goes_on.set()
            await threads.end()
        gc.collect()
        await asyncio.sleep(0)

    asyncio.run(run())
    return complaints


@pytest.mark.parametrize("error", [MemoryError("none left"), RuntimeError("after shutdown")])
def test_whoever_waits_for_a_small_object_hears_of_every_error(error: Exception) -> None:
    store = Failing(error)

    async def work(shelf: SmallObjectWriter, _: StoreThreads) -> None:
        store.goes_on.set()
        puts = [shelf.put(f"data/{number}", b"x", X) for number in range(3)]
        assert await asyncio.gather(*puts, return_exceptions=True) == [error] * 3
        with pytest.raises(type(error)):
            await shelf.put("data/later", b"x", X)

    assert shelved(store, work) == []


def test_nobody_waits_for_threads_that_take_no_more_calls() -> None:
    store = Failing(MemoryError())

    async def work(shelf: SmallObjectWriter, threads: StoreThreads) -> None:
        threads.close()
        with pytest.raises(RuntimeError):
            await shelf.put("data/1", b"x", X)

    assert shelved(store, work) == []


def test_when_the_writing_is_cancelled_so_are_those_who_wait() -> None:
    store = Failing(MemoryError())

    async def work(shelf: SmallObjectWriter, _: StoreThreads) -> None:
        first = asyncio.create_task(shelf.put("data/1", b"x", X))
        assert await asyncio.to_thread(store.called.wait, 30)
        second = asyncio.create_task(shelf.put("data/2", b"x", X))
        await asyncio.sleep(0)
        [emptying] = asyncio.all_tasks() - {first, second, asyncio.current_task()}
        emptying.cancel()
        await asyncio.wait([first, second])
        assert first.cancelled()
        assert second.cancelled()

    assert shelved(store, work) == []


def test_whoever_stops_waiting_leaves_no_error_that_nobody_hears_of() -> None:
    store = Failing(StorageUnavailable("gone"))

    async def work(shelf: SmallObjectWriter, _: StoreThreads) -> None:
        waiting = asyncio.create_task(shelf.put("data/1", b"x", X))
        assert await asyncio.to_thread(store.called.wait, 30)
        waiting.cancel()
        await asyncio.wait([waiting])
        store.goes_on.set()

    assert shelved(store, work) == []


def test_a_thread_that_fails_after_it_was_given_up_is_heard_of() -> None:
    store = Failing(MemoryError())

    async def work(_: SmallObjectWriter, threads: StoreThreads) -> None:
        held = object.__new__(Downloads)
        held._threads = threads
        doing = asyncio.create_task(held._to_its_end(lambda: store.put_many({})))
        assert await asyncio.to_thread(store.called.wait, 30)
        doing.cancel()
        await asyncio.sleep(0)
        store.goes_on.set()
        await asyncio.wait([doing])
        assert doing.cancelled()

    assert shelved(store, work) == []
