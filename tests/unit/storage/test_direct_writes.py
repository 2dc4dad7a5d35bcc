"""Large files are written directly to disk, and any file system gets all bytes."""

from __future__ import annotations

import errno
import fcntl
import os
import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import pytest

from lakeferry.errors import StorageUnavailable
from lakeferry.storage import Store, direct_writes, open_store
from lakeferry.storage.direct_writes import DIRECT_BYTES, write_directly

PAGE = 4096
LARGE = DIRECT_BYTES + PAGE + 17


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(str(tmp_path / "table"))


def chunks_of(data: bytes, size: int) -> Iterator[memoryview]:
    whole = memoryview(data)
    return (whole[start : start + size] for start in range(0, len(data), size))


def streamed(store: Store, data: bytes) -> None:
    store.put_stream("x", chunks_of(data, 100_003), len(data))


def streamed_if_absent(store: Store, data: bytes) -> None:
    assert store.put_stream_if_absent("x", chunks_of(data, 1 << 20), len(data))


WAYS: list[Callable[[Store, bytes], None]] = [
    lambda store, data: store.put("x", data),
    lambda store, data: store.put_many({"x": data, "small": b"1"}),
    streamed,
    streamed_if_absent,
]


@pytest.fixture(params=WAYS, ids=["put", "put_many", "stream", "stream if absent"])
def write(request: pytest.FixtureRequest) -> Callable[[Store, bytes], None]:
    chosen: Callable[[Store, bytes], None] = request.param
    return chosen


def noting(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the sizes of writes that are made directly."""
    sizes: list[int] = []
    pwrite = os.pwrite

    def noted(fd: int, data: memoryview, at: int) -> int:
        assert fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT
        sizes.append(len(data))
        return pwrite(fd, data, at)

    monkeypatch.setattr(os, "pwrite", noted)
    return sizes


def test_all_pages_of_a_large_file_pass_by_the_cache(
    store: Store, write: Callable[[Store, bytes], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes, data = noting(monkeypatch), os.urandom(LARGE)
    write(store, data)
    assert sum(sizes) == LARGE // PAGE * PAGE
    assert store.get("x") == data


def test_small_files_are_written_as_usual(
    store: Store, write: Callable[[Store, bytes], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes, data = noting(monkeypatch), os.urandom(DIRECT_BYTES - 1)
    write(store, data)
    assert sizes == []
    assert store.get("x") == data


@pytest.mark.parametrize("size", [0, 1, PAGE - 1, PAGE, 3 << 20, (2 << 20) + PAGE + 1])
@pytest.mark.parametrize("chunk", [1_000, PAGE, 1 << 20, (1 << 20) + 1])
@pytest.mark.parametrize("at", [0, 1, PAGE])
def test_bytes_arrive_in_order_whatever_the_chunks(
    tmp_path: Path, size: int, chunk: int, at: int
) -> None:
    data = random.Random(size).randbytes(size)
    (tmp_path / "x").write_bytes(bytes(at))
    with (tmp_path / "x").open("r+b") as file:
        write_directly(file.fileno(), chunks_of(data, chunk), at)
        assert not fcntl.fcntl(file.fileno(), fcntl.F_GETFL) & os.O_DIRECT
    assert (tmp_path / "x").read_bytes() == bytes(at) + data


@pytest.mark.parametrize("refuses", ["the flag", "the first write", "a later write"])
def test_what_a_file_system_refuses_is_written_as_usual(
    store: Store,
    write: Callable[[Store, bytes], None],
    monkeypatch: pytest.MonkeyPatch,
    refuses: str,
) -> None:
    control, pwrite = fcntl.fcntl, os.pwrite
    written: list[int] = []

    def set_flags(fd: int, command: int, flags: int = 0) -> int:
        if command == fcntl.F_SETFL and flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "no direct writes")
        return control(fd, command, flags)

    def refused(fd: int, data: memoryview, at: int) -> int:
        if refuses == "the first write" or written:
            raise OSError(errno.EINVAL, "not aligned")
        written.append(len(data))
        return pwrite(fd, data[:PAGE], at)

    if refuses == "the flag":
        monkeypatch.setattr(fcntl, "fcntl", set_flags)
    monkeypatch.setattr(os, "pwrite", refused)
    data = os.urandom(LARGE)
    write(store, data)
    assert store.get("x") == data
    assert bool(written) == (refuses == "a later write")


def test_a_write_that_stops_within_a_page_is_completed(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    pwrite = os.pwrite

    def some(fd: int, data: memoryview, at: int) -> int:
        # A disk's block may be smaller than a page.
        return pwrite(fd, data[:512], at)

    monkeypatch.setattr(os, "pwrite", some)
    data = os.urandom(LARGE)
    store.put("x", data)
    assert store.get("x") == data


def test_a_disk_that_fails_leaves_nothing(
    store: Store, write: Callable[[Store, bytes], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(StorageUnavailable):
        write(store, os.urandom(LARGE))
    assert list(store.entries("")) == []


def test_threads_do_not_share_a_buffer_at_a_time(store: Store) -> None:
    contents = [os.urandom(2 * LARGE) for _ in range(24)]
    with ThreadPoolExecutor(24) as pool:
        list(pool.map(lambda n: streamed_as(store, n, contents[n]), range(24)))
    assert [store.get(f"{number}") for number in range(24)] == contents
    assert all(one != other for one, other in pairwise(contents))


def streamed_as(store: Store, number: int, data: bytes) -> None:
    store.put_stream(f"{number}", chunks_of(data, 65_536), len(data))


def test_a_forked_process_has_buffers_of_its_own() -> None:
    with direct_writes._buffer() as pages:
        pages[:1] = b"p"
    child = os.fork()
    if child == 0:
        with direct_writes._buffer() as pages:
            was = bytes(pages[:1])
            pages[:1] = b"c"
        os._exit(0 if was == b"p" else 1)
    # It had the same buffer, and its change isn't seen here.
    assert os.waitpid(child, 0)[1] == 0
    with direct_writes._buffer() as pages:
        assert bytes(pages[:1]) == b"p"
