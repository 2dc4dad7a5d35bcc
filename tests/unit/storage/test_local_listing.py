"""Listings of local disk: which files and links they show, in which order."""

from __future__ import annotations

import os
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from lakeferry.storage import Store, open_store


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "not yet" / "there"


@pytest.fixture
def store(root: Path) -> Store:
    return open_store(str(root))


def names(store: Store) -> list[str]:
    return [found.path for found in store.list("")]


def test_temporary_files_of_a_crash_are_not_listed(store: Store, root: Path) -> None:
    store.put("a/x", b"1")
    (root / "a/.lakeferry-0123456789abcdef.tmp").write_bytes(b"half")
    assert names(store) == ["a/x"]


def test_links_are_followed_and_circles_end(store: Store, root: Path, tmp_path: Path) -> None:
    store.put("a/x", b"1")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "y").write_bytes(b"2")
    (root / "b").symlink_to(tmp_path / "elsewhere")
    (root / "a/up").symlink_to(root)
    (root / "dangling").symlink_to(root / "nowhere")
    (root / "itself").symlink_to(root / "itself")
    assert names(store) == ["a/x", "b/y"]
    assert store.get("b/y") == b"2"


def test_a_place_is_emptied_without_following_links(
    store: Store, root: Path, tmp_path: Path
) -> None:
    for name in ("a/x", "a/.hidden/x", "a.b", "log/1"):
        store.put(name, b"1")
    (root / "a/.lakeferry-0123456789abcdef.tmp").write_bytes(b"half")
    os.mkfifo(root / "pipe")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "y").write_bytes(b"2")
    links = {"folder": elsewhere, "file": elsewhere / "y", "up": root, "nowhere": root / "no"}
    for name, leads_to in links.items():
        (root / f"a/{name}").symlink_to(leads_to)
    entries = list(store.entries(""))
    assert entries == sorted(entries)
    below = {".hidden/x", ".lakeferry-0123456789abcdef.tmp", "x", *links}
    assert set(entries) == {"a.b", "log/1", "pipe", *(f"a/{name}" for name in below)}
    assert list(store.entries("a/f")) == ["a/file", "a/folder"]
    assert list(store.entries("lo")) == ["log/1"]
    assert list(store.entries("none/")) == []
    store.delete_many(entries)
    store.prune("")
    assert not root.exists()
    assert [path.name for path in elsewhere.iterdir()] == ["y"]


def test_what_is_named_is_entered_through_a_link(store: Store, tmp_path: Path) -> None:
    store.put("a/x", b"1")
    (tmp_path / "link").symlink_to(tmp_path / "not yet" / "there")
    (tmp_path / "not yet/there/b").symlink_to(tmp_path / "not yet" / "there" / "a")
    through = open_store(str(tmp_path / "link"))
    assert list(through.entries("")) == ["a/x", "b"]
    assert list(through.entries("b/")) == ["b/x"]


def test_only_folders_in_range_are_read(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    for letter in "abcdef":
        store.put(f"{letter}/x", b"")
    read: list[str] = []
    real = os.scandir

    def noting(path: str) -> Any:
        read.append(path)
        return real(path)

    monkeypatch.setattr(os, "scandir", noting)
    found = [found.path for found in store.list("", start_after="b/x", stop_before="e/")]
    assert found == ["c/x", "d/x"]
    assert [path[-2] for path in read[1:]] == ["b", "c", "d"]


def test_names_sort_by_their_bytes(store: Store, root: Path) -> None:
    for name in ("b", "é", "z", "a/x", "a.b", "😀"):
        store.put(name, b"1")
    (root / os.fsdecode(b"not-utf-8-\xff")).write_bytes(b"1")
    found = names(store)
    assert len(found) == 7
    assert found == sorted(found, key=os.fsencode)


def test_a_long_listing_keeps_little_of_each_name(store: Store, root: Path) -> None:
    root.mkdir(parents=True)
    for number in range(500):
        (root / f"part-{number:05d}-with-a-name-as-long-as-those-of-data-files").touch()
    tracemalloc.start()
    count = sum(1 for _ in store.list(""))
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == 500
    assert peak_bytes < 300 * count
