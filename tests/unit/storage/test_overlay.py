"""A store whose changes stay in memory: what is read is what would be there."""

from __future__ import annotations

import pytest

from lakeferry.errors import ObjectNotFound
from lakeferry.storage.overlay import Overlay, OverlayChanges, ReferredObject
from tests.support.stores import DictStore, FaultyStore

CHANGES = {"PUT", "PUT_IF_ABSENT", "SWAP", "COPY", "UTIME", "DELETE"}


def below() -> FaultyStore:
    return FaultyStore(DictStore({"a/1": b"one", "a/2": b"two", "b/1": b"three"}))


def names(store: Overlay, prefix: str = "") -> list[str]:
    return [info.path for info in store.list(prefix)]


def test_what_is_written_and_deleted_stays_here() -> None:
    real = below()
    store = Overlay(real)
    store.put("a/3", b"new")
    assert not store.put_if_absent("a/1", b"lost")
    assert store.put_if_absent("c", b"won")
    store.delete_many(["a/2"])
    store.copy_within("b/1", "b/2")
    store.restore_time("a/1", 5)
    assert store.swap("a/1", b"one", b"swapped")
    assert names(store) == list(store.entries("")) == ["a/1", "a/3", "b/1", "b/2", "c"]
    assert store.get_many(["b/2", "a/1", "b/1"]) == [b"three", b"swapped", b"three"]
    assert store.get_range("b/2", 1, 2) == b"hr"
    with pytest.raises(ObjectNotFound):
        store.get("a/2")
    with pytest.raises(ObjectNotFound):
        store.head("a/2")
    assert not [call for call in real.history if call.verb in CHANGES]


def test_a_copy_isn_t_read_before_somebody_reads_it() -> None:
    real, other = FaultyStore(DictStore()), below()
    store = Overlay(real)
    store.refer("x", ReferredObject(other, "a/1", 3))
    store.refer("y", ReferredObject(other, "a/2", 3, bytes.upper))
    store.copy_within("x", "z")
    assert [(info.path, info.size_bytes) for info in store.list("")] == [
        ("x", 3),
        ("y", 3),
        ("z", 3),
    ]
    assert other.history == []
    assert store.get_many(["y", "z", "x"]) == [b"TWO", b"one", b"one"]
    assert store.get_range("y", 1, 1) == b"W"
    assert real.inner.objects == {}  # type: ignore[attr-defined]


def test_everything_is_deleted_at_once_but_what_is_left() -> None:
    real = below()
    store = Overlay(real)
    store.put("a/own", b"")
    store.put("b/own", b"")
    store.leave_only(["b/", "a/2", "b/1"])
    listed = len(real.history)
    assert names(store) == ["a/2", "b/1", "b/own"]
    # Only what may be left is listed, however much there is.
    assert {call.paths[0] for call in real.history[listed:]} == {"a/2", "b/"}
    assert (names(store, "b/1"), names(store, "a/1")) == (["b/1"], [])
    assert not store.exists("a/1")
    assert store.is_changed("a/1")
    assert not store.is_changed("b/1")
    store.leave_only([])
    assert not store.is_occupied()
    assert store.put_if_absent("a/1", b"")
    assert names(store) == ["a/1"]


def test_overlays_of_one_place_share_what_has_changed() -> None:
    real, changes = below(), OverlayChanges()
    Overlay(real, changes).put("c", b"here")
    assert Overlay(real, changes).get("c") == b"here"
    assert not Overlay(real).exists("c")


def test_a_place_is_occupied_by_what_is_below_or_here() -> None:
    store = Overlay(DictStore())
    assert not store.is_occupied()
    store.put("a", b"")
    assert store.is_occupied()
    assert Overlay(below()).is_occupied()
