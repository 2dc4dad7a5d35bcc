"""Copies from one folder to another, when files and systems misbehave."""

from __future__ import annotations

import errno
import itertools
import os
import resource
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from lakeferry.errors import LakeferryError, StorageUnavailable
from lakeferry.storage import Store, local_durability, open_store

Copy = Callable[[Store, Store, str], object]


def one(source: Store, target: Store, name: str) -> object:
    """Copy one object by itself."""
    return target.copy_from(source, name, name, lambda _: None)


def together(source: Store, target: Store, name: str) -> object:
    """Copy one object as one of many."""
    return target.copy_many_from(source, {name: name}).get(name)


@pytest.fixture(params=[one, together])
def copy(request: pytest.FixtureRequest) -> Copy:
    chosen: Copy = request.param
    return chosen


@pytest.fixture
def source(tmp_path: Path) -> Store:
    return open_store(str(tmp_path / "from"))


@pytest.fixture
def target(tmp_path: Path) -> Store:
    return open_store(str(tmp_path / "to"))


@pytest.fixture
def few_files() -> Iterator[None]:
    """Let this process open 60 more files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # A new file gets the lowest free number, which must be below the limit.
    used = {int(name) for name in os.listdir("/proc/self/fd")}
    free = (number for number in itertools.count() if number not in used)
    limit = next(itertools.islice(free, 60, None))
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_objects_in_many_folders_do_not_need_many_open_files(
    source: Store, target: Store, few_files: None
) -> None:
    names = [f"day={day}/x" for day in range(100)]
    source.put_many(dict.fromkeys(names, b"1"))
    assert target.copy_many_from(source, {name: name for name in names}) == dict.fromkeys(names, 1)
    assert sorted(found.path for found in target.list("")) == sorted(names)


def test_a_pipe_is_no_object_and_nobody_waits_for_its_writer(
    source: Store, target: Store, tmp_path: Path, copy: Copy
) -> None:
    (tmp_path / "from").mkdir()
    os.mkfifo(tmp_path / "from/pipe")

    def read() -> None:
        assert copy(source, target, "pipe") is None
        for read in (source.get, source.open):
            with pytest.raises(LakeferryError):
                read("pipe")
        done.set()

    done = threading.Event()
    threading.Thread(target=read, daemon=True).start()
    assert done.wait(10)


@pytest.mark.parametrize("size", [10, 4])
def test_a_file_that_is_changed_in_place_meanwhile_is_not_mixed(
    source: Store,
    target: Store,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    copy: Copy,
    size: int,
) -> None:
    source.put("x", b"0123456789")
    whole = os.copy_file_range

    def change(fd: int, new_fd: int, length: int, start: int, new_start: int) -> int:
        done = whole(fd, new_fd, 5, start, new_start)
        file = tmp_path / "from/x"
        file.write_bytes(b"abcdefghij"[:size])
        os.utime(file, ns=(0, 0))
        return done

    monkeypatch.setattr(os, "copy_file_range", change)
    with pytest.raises(StorageUnavailable, match="took its name"):
        copy(source, target, "x")
    assert os.listdir(tmp_path / "to") == []


@pytest.mark.parametrize("answer", ["nothing", "missing", errno.EXDEV, errno.ENOENT, errno.EIO])
def test_what_the_system_does_not_copy_is_read_and_written(
    source: Store,
    target: Store,
    monkeypatch: pytest.MonkeyPatch,
    copy: Copy,
    answer: str | int,
) -> None:
    def copied(*_: object) -> int:
        if isinstance(answer, int):
            raise OSError(answer, os.strerror(answer))
        return 0

    source.put("x", b"0123456789")
    if answer == "missing":
        monkeypatch.delattr(os, "copy_file_range")
    else:
        monkeypatch.setattr(os, "copy_file_range", copied)
    assert copy(source, target, "x") == 10
    assert target.get("x") == b"0123456789"


@pytest.mark.parametrize("why", ["old Linux", "type of the file system"])
def test_each_file_is_synced_where_a_sync_of_all_may_not_be_enough(
    source: Store, target: Store, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    if why == "old Linux":
        monkeypatch.setattr(os, "uname", lambda: SimpleNamespace(release="5.4.0-90-generic"))
    if why == "type of the file system":
        monkeypatch.setattr(local_durability, "_SYNCED_TYPES", frozenset())
    source.put_many({"a": b"1", "b": b"2"})
    synced: list[bool] = []
    sync = os.fsync

    def note(fd: int) -> None:
        synced.append(stat.S_ISREG(os.fstat(fd).st_mode))
        sync(fd)

    monkeypatch.setattr(os, "fsync", note)
    target.copy_many_from(source, {"a": "a", "b": "b"})
    assert synced.count(True) == 2
