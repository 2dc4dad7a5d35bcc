from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import pickle
import random
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lakeferry.errors import (
    Forbidden,
    InvalidInput,
    ObjectNotFound,
    StorageUnavailable,
)
from lakeferry.storage import PartsUpload, StoreConfig, local_durability, open_config, open_store
from lakeferry.storage.local_store import LocalStore
from lakeferry.storage.object_parts import SMALLEST_PART_BYTES


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    opened = open_store(str(tmp_path / "not yet" / "there"))
    assert isinstance(opened, LocalStore)
    return opened


@pytest.fixture
def root(store: LocalStore, tmp_path: Path) -> Path:
    return tmp_path / "not yet" / "there"


def names(store: LocalStore, prefix: str = "") -> list[str]:
    return [found.path for found in store.list(prefix)]


def failing(code: int) -> Callable[..., Any]:
    def fail(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    return fail


def test_a_configuration_travels_and_hides_its_options(tmp_path: Path) -> None:
    config = StoreConfig(tmp_path.as_uri(), {"aws_secret_access_key": "hunter2"})
    assert "hunter2" not in repr(config)
    there = open_config(pickle.loads(pickle.dumps(config)))
    assert there.config == config
    assert there.uri == tmp_path.as_uri()


def put_stream(store: LocalStore, path: str, data: bytes) -> None:
    store.put_stream(path, iter([data[:1], data[1:]]), len(data))


def copy_within(store: LocalStore, path: str, data: bytes) -> None:
    store.put("source", data)
    store.copy_within("source", path)


Write = Callable[[LocalStore, str, bytes], object]
REPLACE: list[Write] = [LocalStore.put, put_stream, copy_within]


def swap(store: LocalStore, path: str, data: bytes) -> None:
    assert store.swap(path, None, data)


WRITE: list[Write] = [*REPLACE, LocalStore.put_if_absent, swap]


@pytest.mark.parametrize("write", WRITE)
def test_writing_leaves_nothing_but_the_object(store: LocalStore, root: Path, write: Write) -> None:
    write(store, "a/b/c", b"x")
    assert [path.name for path in (root / "a/b").iterdir()] == ["c"]
    assert stat.S_IMODE((root / "a/b/c").stat().st_mode) & 0o600 == 0o600


@pytest.mark.parametrize("write", WRITE)
def test_a_failed_write_leaves_nothing(
    store: LocalStore, root: Path, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put("folder/other", b"")
    monkeypatch.setattr(os, "fsync", failing(errno.ENOSPC))
    with pytest.raises(StorageUnavailable, match="space"):
        write(store, "folder/x", b"x")
    assert [path.name for path in (root / "folder").iterdir()] == ["other"]


def test_a_folder_that_cannot_be_synced_leaves_the_outcome_unknown(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.fsync

    def only_files(fd: int) -> None:
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            raise OSError(errno.EIO, "broken")
        real(fd)

    store.put("folder/other", b"")
    monkeypatch.setattr(os, "fsync", only_files)
    with pytest.raises(StorageUnavailable) as raised:
        store.put_if_absent("folder/x", b"x")
    assert raised.value.fields["outcome_unknown"] is True


@pytest.mark.parametrize("without", ["tmpfile", "links"])
def test_put_if_absent_where_the_file_system_offers_less(
    store: LocalStore, root: Path, without: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if without == "links":
        monkeypatch.setattr(os, "link", failing(errno.EPERM))
    monkeypatch.setattr(os, "O_TMPFILE", os.O_DIRECTORY | os.O_CREAT)
    assert store.put_if_absent("a/x", b"1") is True
    assert store.put_if_absent("a/x", b"2") is False
    with local_durability.OpenFolder(str(root / "a")) as folder:
        assert folder.write_and_claim(b"3", "x") is False
    assert store.get("a/x") == b"1"
    assert [path.name for path in (root / "a").iterdir()] == ["x"]

    def overtaken() -> Iterator[bytes]:
        store.put("b/x", b"4")
        yield b"5"

    assert store.put_stream_if_absent("b/x", overtaken(), 1) is False
    assert store.put_stream_if_absent("b/y", iter([b"6"]), 1) is True
    assert (store.get("b/x"), store.get("b/y")) == (b"4", b"6")
    assert sorted(path.name for path in (root / "b").iterdir()) == ["x", "y"]


def test_put_if_absent_refuses_where_no_winner_can_be_told(
    store: LocalStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "link", failing(errno.EOPNOTSUPP))
    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: object())
    with pytest.raises(StorageUnavailable, match="neither hard links"):
        store.put_if_absent("a/x", b"1")
    assert list((root / "a").iterdir()) == []


def test_a_swap_waits_for_the_folder_and_no_longer_than_it_may(
    store: LocalStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put("refs/head", b"1")
    monkeypatch.setattr(local_durability, "LOCKED_WITHIN_S", 0.01)
    with local_durability.OpenFolder(str(root / "refs")) as folder:
        with folder.locked(), pytest.raises(StorageUnavailable, match="somebody holds it"):
            store.swap("refs/head", b"1", b"2")
        assert store.swap("refs/head", b"1", b"2") is True
    assert [path.name for path in (root / "refs").iterdir()] == ["head"]


def test_a_swap_refuses_where_folders_cannot_be_locked(
    store: LocalStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put("refs/head", b"1")
    monkeypatch.setattr(fcntl, "flock", failing(errno.ENOLCK))
    with pytest.raises(StorageUnavailable, match="lock"):
        store.swap("refs/head", b"1", b"2")
    assert store.get("refs/head") == b"1"


@pytest.mark.parametrize("fails_at", ["write", "rename"])
def test_a_swap_that_fails_leaves_what_was_there(
    store: LocalStore, root: Path, fails_at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put("refs/head", b"1")
    call = "fsync" if fails_at == "write" else "rename"
    with monkeypatch.context() as patched:
        patched.setattr(os, call, failing(errno.EIO))
        with pytest.raises(StorageUnavailable):
            store.swap("refs/head", b"1", b"2")
    assert store.get("refs/head") == b"1"
    assert [path.name for path in (root / "refs").iterdir()] == ["head"]
    assert store.swap("refs/head", b"1", b"2") is True, "the lock is free again"


def put_many(store: LocalStore, path: str, data: bytes) -> None:
    store.put_many({path: data})


def put_stream_if_absent(store: LocalStore, path: str, data: bytes) -> None:
    assert store.put_stream_if_absent(path, iter([data]), len(data))


def by_a_partial(store: LocalStore, path: str, data: bytes) -> None:
    partial = store.partial(path)
    assert partial is not None
    partial.append(data)
    partial.publish()


@pytest.mark.parametrize("write", [*WRITE, put_many, put_stream_if_absent, by_a_partial])
def test_a_folder_that_is_tidied_away_before_anything_is_in_it_is_made_anew(
    store: LocalStore, root: Path, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others remove what they find empty, also what was made just now."""
    entered = local_durability.OpenFolder.__enter__
    removed: list[str] = []

    def overtaken(self: local_durability.OpenFolder) -> local_durability.OpenFolder:
        opened = entered(self)
        if self._path.endswith("/a/b"):
            store.prune("a")
            if not os.path.exists(self._path):
                removed.append(self._path)
        return opened

    monkeypatch.setattr(local_durability.OpenFolder, "__enter__", overtaken)
    write(store, "a/b/c", b"x")
    assert removed == [str(root / "a/b")]
    assert store.get("a/b/c") == b"x"
    assert [path.name for path in (root / "a/b").iterdir()] == ["c"]


@pytest.mark.parametrize("call", ["open", "mkdir", "link"])
def test_those_who_tidy_up_at_any_moment_disturb_nobody(
    store: LocalStore, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put("other", b"")
    real, is_tidying, chance = getattr(os, call), False, random.Random(call)

    def after_tidying(*args: Any, **named: Any) -> Any:
        nonlocal is_tidying
        if not is_tidying and chance.random() < 0.1:
            is_tidying = True
            store.prune("a")
            is_tidying = False
        return real(*args, **named)

    monkeypatch.setattr(os, call, after_tidying)
    for number in range(200):
        assert store.put_if_absent("a/b/c/d", b"%d" % number) is True
        assert store.get("a/b/c/d") == b"%d" % number
        store.delete_many(["a/b/c/d"])
        store.prune("a")


def test_a_folder_whose_lock_is_held_is_not_tidied_away(store: LocalStore, root: Path) -> None:
    with local_durability.OpenFolder(str(root / "refs")) as folder, folder.locked():
        store.prune("")
        assert (root / "refs").is_dir()
    store.prune("refs")
    assert not (root / "refs").exists()


def test_a_lock_is_of_the_folder_that_is_there(store: LocalStore, root: Path) -> None:
    with local_durability.OpenFolder(str(root / "refs")) as folder:
        store.prune("refs")
        with folder.locked():
            assert os.path.samestat(os.fstat(folder.fd), os.stat(root / "refs"))
            assert folder.write_and_claim(b"1", "head") is True
            store.prune("refs")
    assert store.get("refs/head") == b"1"


def test_those_who_tidy_up_at_once_leave_nothing_of_what_both_wanted_gone(
    store: LocalStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One has the folder's lock when the other comes, and gives it up when that one waits."""
    store.put("other", b"")
    (root / "a/b").mkdir(parents=True)
    with local_durability.OpenFolder(str(root / "a/b")) as another:
        fcntl.flock(another.fd, fcntl.LOCK_EX)
        waits: list[float] = []

        def let_go(seconds: float) -> None:
            waits.append(seconds)
            fcntl.flock(another.fd, fcntl.LOCK_UN)

        monkeypatch.setattr(time, "sleep", let_go)
        store.prune("a")
    assert len(waits) == 1
    assert not (root / "a").exists()


def test_folders_are_tidied_away_where_they_cannot_be_locked(
    store: LocalStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put("other", b"")
    (root / "a/b").mkdir(parents=True)
    monkeypatch.setattr(fcntl, "flock", failing(errno.ENOLCK))
    store.prune("")
    assert names(store) == ["other"]
    assert not (root / "a").exists()


@pytest.mark.parametrize("write", [*WRITE, lambda store, path, _: store.delete_many([path])])
def test_hadoop_checksums_go_before_what_they_describe(
    store: LocalStore, root: Path, write: Write
) -> None:
    store.put("a/other", b"")
    (root / "a/.x.crc").write_bytes(b"crc\0stale")
    write(store, "a/x", b"1")
    assert not (root / "a/.x.crc").exists()


@pytest.mark.parametrize("write", REPLACE)
def test_a_checksum_that_cannot_be_removed_keeps_the_name_as_it_was(
    store: LocalStore, root: Path, write: Write
) -> None:
    store.put("a/x", b"before")
    (root / "a/.x.crc").mkdir()
    with pytest.raises(InvalidInput):
        write(store, "a/x", b"1")
    assert store.get("a/x") == b"before"
    assert {path.name for path in (root / "a").iterdir()} == {"x", ".x.crc"}


def test_a_second_name_costs_no_room(store: LocalStore, root: Path) -> None:
    store.put("a/x", b"1" * 1000)
    store.copy_within("a/x", "b/y")
    assert (root / "a/x").samefile(root / "b/y")


@pytest.mark.parametrize("code", [errno.EPERM, errno.EXDEV, errno.EMLINK, errno.ENOENT])
def test_where_links_do_not_work_bytes_are_copied(
    store: LocalStore, root: Path, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = bytes(range(256)) * 40_000
    store.put("a/x", data)
    monkeypatch.setattr(os, "link", failing(code))
    store.copy_within("a/x", "b/y")
    assert store.get("b/y") == data
    assert not (root / "a/x").samefile(root / "b/y")
    assert [path.name for path in (root / "b").iterdir()] == ["y"]


def test_a_time_is_restored_to_the_millisecond(store: LocalStore) -> None:
    store.put("x", b"")
    store.restore_time("x", 1_700_000_000_123)
    assert [info.modified_ms for info in store.list("")] == [1_700_000_000_123]
    with pytest.raises(ObjectNotFound):
        store.restore_time("missing", 1)


@pytest.mark.parametrize("code", [errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP])
def test_a_time_that_cant_be_set_stays(
    store: LocalStore, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put("x", b"")
    monkeypatch.setattr(os, "utime", failing(code))
    store.restore_time("x", 1)
    monkeypatch.setattr(os, "utime", failing(errno.EIO))
    with pytest.raises(StorageUnavailable):
        store.restore_time("x", 1)


def test_the_loser_leaves_the_winners_checksum(store: LocalStore, root: Path) -> None:
    store.put("a/x", b"1")
    (root / "a/.x.crc").write_bytes(b"crc\0good")
    assert store.put_if_absent("a/x", b"2") is False
    assert (root / "a/.x.crc").exists()


def test_what_is_no_object(store: LocalStore, root: Path) -> None:
    store.put("file", b"x")
    store.put("folder/x", b"x")
    for path in ("file/below", "folder", "n" * 300):
        for read in (store.get, store.head):
            with pytest.raises(ObjectNotFound):
                read(path)
        store.delete_many([path])
    for path in ("file/below", "folder", "n" * 300):
        with pytest.raises(InvalidInput):
            store.put(path, b"")
    with pytest.raises(InvalidInput):
        store.put_if_absent("file/below", b"")
    assert names(store) == ["file", "folder/x"]


def test_a_root_that_is_a_file_says_so(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"123")
    store = open_store(str(tmp_path / "f"))
    assert store.head("").size_bytes == 3
    assert list(store.list("")) == []
    with pytest.raises(ObjectNotFound):
        open_store(str(tmp_path)).head("")


def test_a_file_above_the_root_is_named(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"123")
    store = open_store(str(tmp_path / "f" / "a" / "table"))
    for write in (store.put, store.put_if_absent):
        with pytest.raises(InvalidInput, match=r"/f is a file, but a folder is needed"):
            write("_delta_log/x", b"")


@pytest.mark.parametrize("path", ["", "/x", "../x", "a/../../x", "a//b", "a\0"])
def test_names_that_lead_elsewhere_are_refused(store: LocalStore, path: str) -> None:
    for verb in (store.get, lambda p: store.put(p, b""), lambda p: store.delete_many([p])):
        with pytest.raises(InvalidInput):
            verb(path)


@pytest.mark.parametrize(
    ("code", "kind"), [(errno.EACCES, Forbidden), (errno.EIO, StorageUnavailable)]
)
def test_what_the_system_says_has_a_class(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch, code: int, kind: type[Exception]
) -> None:
    monkeypatch.setattr(os, "open", failing(code))
    with pytest.raises(kind):
        store.get("x")
    with pytest.raises(kind):
        store.put("x", b"")


def test_local_objects_have_no_signed_url(store: LocalStore) -> None:
    with pytest.raises(InvalidInput, match="signed URL"):
        store.sign("GET", "x", 60)


class TestPartialObjects:
    def test_the_next_one_goes_on_where_the_last_one_stopped(self, store: LocalStore) -> None:
        first = store.partial("a/x")
        assert first is not None
        assert list(first.read()) == []
        first.append(b"12")
        first.append(b"34")
        first.close()
        assert names(store) == []
        second = store.partial("a/x")
        assert second is not None
        assert b"".join(second.read()) == b"1234"
        second.append(b"56")
        second.publish()
        second.close()
        assert store.get("a/x") == b"123456"
        assert list(store.entries("")) == ["a/x"]

    @pytest.mark.parametrize("sizes", [(1 << 20, 5, 1 << 20), (3 << 20, 4096, 4097, 1 << 21)])
    @pytest.mark.parametrize("refuses", [False, True], ids=["", "past the cache is refused"])
    def test_whatever_is_added_is_there_in_order(
        self,
        store: LocalStore,
        sizes: tuple[int, ...],
        refuses: bool,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        def refused(fd: int, data: memoryview, at: int) -> int:
            raise OSError(errno.EINVAL, "not so")

        if refuses:
            monkeypatch.setattr(os, "pwrite", refused)
        parts = [random.Random(size).randbytes(size) for size in sizes]
        partial = store.partial("x")
        assert partial is not None
        for part in parts:
            partial.append(bytearray(part))
            assert b"".join(partial.read()).endswith(part)
        partial.publish()
        partial.close()
        assert store.get("x") == b"".join(parts)

    def test_a_disk_that_is_full_is_an_error_and_not_a_hole(
        self, store: LocalStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def full(*_: object) -> int:
            raise OSError(errno.ENOSPC, "no space left")

        partial = store.partial("x")
        assert partial is not None
        partial.append(b"1" * 4096)
        with monkeypatch.context() as patched:
            patched.setattr(os, "pwrite", full)
            patched.setattr(os, "write", full)
            with pytest.raises(StorageUnavailable):
                partial.append(b"2" * 4096)
        partial.append(b"3" * 4096)
        assert b"".join(partial.read()) == b"1" * 4096 + b"3" * 4096
        partial.close()

    def test_it_has_one_writer_at_a_time_and_one_name(self, store: LocalStore) -> None:
        first, other = store.partial("x"), store.partial("y")
        assert first is not None
        assert other is not None
        assert store.partial("x") is None
        first.append(b"1")
        first.close()
        again = store.partial("x")
        assert again is not None
        assert b"".join(again.read()) == b"1"
        assert list(other.read()) == []
        again.close()
        other.close()

    def test_what_is_published_is_no_partial_object_any_more(self, store: LocalStore) -> None:
        store.put("x", b"before")
        writing = store.partial("x")
        assert writing is not None
        writing.append(b"after")
        writing.publish()
        late = store.partial("x")
        assert late is not None
        assert list(late.read()) == []
        writing.close()
        late.close()
        assert store.get("x") == b"after"

    def test_what_is_discarded_begins_anew(self, store: LocalStore) -> None:
        partial = store.partial("x")
        assert partial is not None
        partial.append(b"wrong")
        partial.discard()
        partial.append(b"right")
        partial.publish()
        partial.close()
        assert store.get("x") == b"right"

    def test_hadoops_checksum_of_what_is_replaced_goes(self, store: LocalStore, root: Path) -> None:
        store.put("x", b"before")
        (root / ".x.crc").write_bytes(b"crc")
        partial = store.partial("x")
        assert partial is not None
        partial.publish()
        partial.close()
        assert not (root / ".x.crc").exists()

    def test_one_that_was_renamed_while_it_was_opened_isnt_taken(
        self, store: LocalStore, root: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        held = store.partial("x")
        assert held is not None
        lock = fcntl.flock

        def late(fd: int, how: int) -> None:
            held.publish()
            held.close()
            lock(fd, how)

        monkeypatch.setattr(fcntl, "flock", late)
        assert store.partial("x") is None
        assert names(store) == ["x"]


class TestParts:
    SIZE = 2 * SMALLEST_PART_BYTES + 3

    def upload(self, store: LocalStore) -> PartsUpload:
        found = store.parts_upload("d/x", self.SIZE, begin=True)
        assert found is not None
        return found

    def put(self, store: LocalStore, number: int, letter: bytes) -> None:
        size = 3 if number == 3 else SMALLEST_PART_BYTES
        self.upload(store).put(number, iter([letter * size]), size)

    def test_they_become_one_object_when_all_are_there(self, store: LocalStore) -> None:
        assert store.parts_upload("d/x", self.SIZE, begin=False) is None
        self.put(store, 3, b"c")
        self.put(store, 1, b"?")
        self.put(store, 1, b"a")
        again = store.parts_upload("d/x", self.SIZE, begin=False)
        assert again is not None
        assert again.missing() == [2]
        self.put(store, 2, b"b")
        assert names(store) == []
        again.join(iter)
        whole = b"a" * SMALLEST_PART_BYTES + b"b" * SMALLEST_PART_BYTES + b"ccc"
        assert store.get("d/x") == whole
        assert list(store.entries("")) == ["d/x"]

    def test_what_the_check_refuses_leaves_nothing(self, store: LocalStore) -> None:
        for number in (1, 2, 3):
            self.put(store, number, b"x")

        def refuse(chunks: Iterator[bytes]) -> Iterator[bytes]:
            yield from chunks
            raise ValueError("of something else")

        with pytest.raises(ValueError, match="something else"):
            self.upload(store).join(refuse)
        assert list(store.entries("")) == []
        assert self.upload(store).missing() == [1, 2, 3]

    def test_they_never_replace_an_object(self, store: LocalStore) -> None:
        for number in (1, 2, 3):
            self.put(store, number, b"x")
        store.put("d/x", b"old")
        self.upload(store).join(iter)
        assert store.get("d/x") == b"old"
        assert list(store.entries("")) == ["d/x"]

    def test_an_object_that_comes_while_they_are_joined_stays(self, store: LocalStore) -> None:
        for number in (1, 2, 3):
            self.put(store, number, b"x")

        def overtaken(chunks: Iterator[bytes]) -> Iterator[bytes]:
            yield from chunks
            store.put("d/x", b"somebody else's")

        self.upload(store).join(overtaken)
        assert store.get("d/x") == b"somebody else's"
        assert list(store.entries("")) == ["d/x"]

    def test_parts_of_another_number_or_length_arent_taken(self, store: LocalStore) -> None:
        for number, size in ((0, SMALLEST_PART_BYTES), (4, 3), (3, 4), (1, 3)):
            with pytest.raises(InvalidInput):
                self.upload(store).put(number, iter([b"x" * size]), size)
        assert store.parts_upload("d/x", self.SIZE + 1, begin=False) is None

    def test_old_ones_are_dropped(self, store: LocalStore) -> None:
        self.put(store, 3, b"c")
        store.put(".lakeferry-0011.tmp", b"somebody is writing")
        assert store.drop_parts(lambda _, written_ms: written_ms == 0) == 0
        assert store.drop_parts(lambda name, _: name.startswith("d/.lakeferry-")) == 1
        assert self.upload(store).missing() == [1, 2, 3]
        assert store.get(".lakeferry-0011.tmp") == b"somebody is writing"


def test_a_full_disk_is_named_with_what_to_do(store: LocalStore) -> None:
    with (
        pytest.raises(StorageUnavailable, match="No space left on device") as full,
        store._errors.writing("x"),
    ):
        raise OSError(errno.ENOSPC, "no space left")
    assert "free some space" in (full.value.remedy or "")


@pytest.mark.parametrize("put", ["put_if_absent", "put_stream_if_absent"])
def test_what_is_taken_survives_a_crash(
    store: LocalStore, root: Path, put: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others write without a sync, or end before they come to it."""

    def taken() -> bool:
        if put == "put_if_absent":
            return not store.put_if_absent("x", b"1")
        return not store.put_stream_if_absent("x", iter([b"1"]), 1)

    root.mkdir(parents=True)
    (root / "x").write_bytes(b"theirs")
    synced: list[bool] = []
    real = os.fsync

    def noted(fd: int) -> None:
        real(fd)
        synced.append(stat.S_ISDIR(os.fstat(fd).st_mode))

    monkeypatch.setattr(os, "fsync", noted)
    assert taken()
    assert synced == [False, True]

    monkeypatch.setattr(os, "fsync", failing(errno.EIO))
    with pytest.raises(StorageUnavailable, match="survive a crash"):
        taken()
    # Nobody can change a file of a read-only file system.
    monkeypatch.setattr(os, "fsync", failing(errno.EROFS))
    assert taken()
