"""What killed writers leave on local disk, and what of it is removed."""

from __future__ import annotations

import errno
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lakeferry.storage import open_store, process_identity
from lakeferry.storage.local_durability import OpenFolder
from lakeferry.storage.local_leftovers import UNTOUCHED_FOR_S
from lakeferry.storage.local_store import LocalStore
from lakeferry.storage.process_identity import has_ended, this_process


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    found = open_store(tmp_path.as_uri())
    assert isinstance(found, LocalStore)
    return found


def left_by(process: str, folder: Path, number: int = 1) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f".lakeferry-{process}-{number:016x}.tmp"
    path.write_bytes(b"half")
    return path


def ended_process() -> str:
    """Return the name of a process that has ended."""
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as child:
        machine = this_process().partition("-")[0]
        name = f"{machine}-{child.pid}-{process_identity._started(child.pid)}"
        assert has_ended(name) is False
    return name


def test_a_process_is_known_by_its_name() -> None:
    assert has_ended(this_process()) is False
    ended = ended_process()
    assert ended != this_process()
    assert has_ended(ended) is True
    # The number alone isn't enough: another process may have it now.
    machine, number, started = this_process().split("-")
    assert has_ended(f"{machine}-{number}-{int(started) + 1}") is True


@pytest.mark.parametrize("name", ["", "x", "ffffffff-1-1", "00000000-1-1", "ffffffff--1-1"])
def test_of_a_process_elsewhere_nobody_can_tell(name: str) -> None:
    assert has_ended(name) is None


@pytest.fixture
def reading(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, int], None]:
    """Return a function: the number of a process can't be read any more, for that reason."""
    read = Path.read_text

    def fail(number: int, code: int) -> None:
        def fails(self: Path, *args: Any, **options: Any) -> str:
            if str(self) == f"/proc/{number}/stat":
                raise OSError(code, os.strerror(code))
            return read(self, *args, **options)

        monkeypatch.setattr(Path, "read_text", fails)

    return fail


@pytest.mark.parametrize("code", [errno.ENOENT, errno.EACCES, errno.EMFILE])
def test_a_process_that_cant_be_read_hasnt_ended(
    code: int, reading: Callable[[int, int], None]
) -> None:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as child:
        machine = this_process().partition("-")[0]
        name = f"{machine}-{child.pid}-{process_identity._started(child.pid)}"
        reading(child.pid, code)
        assert has_ended(name) is None
    assert has_ended(name) is True


@pytest.mark.parametrize("code", [errno.ENOENT, errno.EMFILE])
def test_a_process_that_cant_read_its_start_has_a_name_of_which_nobody_can_tell(
    code: int, reading: Callable[[int, int], None]
) -> None:
    reading(os.getpid(), code)
    process_identity._named.cache_clear()
    try:
        assert has_ended(this_process()) is None
    finally:
        process_identity._named.cache_clear()


def test_a_copy_of_a_virtual_machine_is_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    ended, there = ended_process(), os.uname()
    monkeypatch.setattr(os, "uname", lambda: os.uname_result([there[0], "copy", *there[2:]]))
    assert has_ended(ended) is None


def test_numbers_of_another_namespace_tell_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    name, number = this_process(), os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: number + 1)
    assert has_ended(name) is None
    process_identity._named.cache_clear()
    try:
        assert has_ended(this_process()) is None
    finally:
        process_identity._named.cache_clear()


def test_files_of_ended_writers_go_and_those_of_running_ones_stay(
    store: LocalStore, tmp_path: Path
) -> None:
    gone = left_by(ended_process(), tmp_path / "a/b")
    ours, elsewhere = left_by(this_process(), tmp_path / "a"), left_by("ffffffff-1-1", tmp_path)
    part = tmp_path / f".lakeferry-part-{'0' * 32}-1.tmp"
    part.write_bytes(b"part")
    store.put("a/x", b"1")
    assert store.drop_leftovers() == 1
    assert not gone.exists()
    assert ours.exists()
    assert elsewhere.exists()
    assert part.exists()


@pytest.mark.parametrize("name", ["ffffffff-1-1-0123456789abcdef", "0123456789abcdef"])
def test_if_nobody_can_tell_age_decides_and_a_running_writer_still_counts(
    store: LocalStore, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, ours = tmp_path / f".lakeferry-{name}.tmp", left_by(this_process(), tmp_path)
    path.write_bytes(b"half")
    assert store.drop_leftovers() == 0
    later_s = time.time() + UNTOUCHED_FOR_S + 1
    monkeypatch.setattr(time, "time", lambda: later_s)
    assert store.drop_leftovers() == 1
    assert not path.exists()
    assert ours.exists()


def test_a_new_name_of_an_old_file_isnt_old(store: LocalStore, tmp_path: Path) -> None:
    (tmp_path / "old").write_bytes(b"1")
    os.utime(tmp_path / "old", (0, 0))
    link = tmp_path / ".lakeferry-ffffffff-1-1-0123456789abcdef.tmp"
    link.hardlink_to(tmp_path / "old")
    assert store.drop_leftovers() == 0
    assert link.exists()


def test_a_hidden_file_has_its_writer_in_its_name(tmp_path: Path) -> None:
    def chunks() -> Iterator[bytes]:
        yield b"1"
        [name] = os.listdir(tmp_path)
        assert name.startswith(f".lakeferry-{this_process()}-")
        yield b"2"

    with OpenFolder(str(tmp_path)) as folder:
        folder.write_named(chunks())


def test_a_partly_received_object_goes_unless_somebody_is_receiving_it(
    store: LocalStore, tmp_path: Path
) -> None:
    held, left = store.partial("a/held"), store.partial("a/left")
    assert held is not None
    assert left is not None
    for each in (held, left):
        each.append(b"half")
    left.close()
    assert store.drop_leftovers() == 1
    assert len(os.listdir(tmp_path / "a")) == 1
    held.append(b"rest")
    held.publish()
    held.close()
    assert store.get("a/held") == b"halfrest"
    assert os.listdir(tmp_path / "a") == ["held"]


def test_what_may_not_be_removed_makes_nothing_fail(store: LocalStore, tmp_path: Path) -> None:
    assert store.drop_leftovers() == 0
    (tmp_path / f".lakeferry-{'0' * 32}.tmp").symlink_to("nowhere")
    (tmp_path / f".lakeferry-{'1' * 16}.tmp").symlink_to("nowhere")
    assert store.drop_leftovers() == 0
