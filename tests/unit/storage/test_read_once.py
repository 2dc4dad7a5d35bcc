"""A store that is asked for everything once."""

from __future__ import annotations

import pytest

from lakeferry.errors import ObjectNotFound
from lakeferry.storage import read_once
from lakeferry.storage.read_once import ReadOnceStore, RememberedReads
from tests.support.stores import DictStore, FaultyStore


def opened(*, real: DictStore | None = None) -> tuple[FaultyStore, ReadOnceStore]:
    real = real or DictStore({"a/1": b"one", "a/2": b"two", "b": b"three"})
    asked = FaultyStore(real)
    return asked, ReadOnceStore(asked, RememberedReads())


def names(store: ReadOnceStore, prefix: str, **bounds: str) -> list[str]:
    return [info.path for info in store.list(prefix, **bounds)]


def test_a_listing_answers_for_all_that_it_covers() -> None:
    asked, store = opened()
    assert names(store, "a/", start_after="a/1") == ["a/2"]
    assert names(store, "a/") == ["a/1", "a/2"]
    assert names(store, "a/", start_after="a/1", stop_before="a/2") == []
    assert names(store, "a/2") == ["a/2"]
    assert store.head("a/1").size_bytes == 3
    for miss in (store.head, store.get):
        with pytest.raises(ObjectNotFound):
            miss("a/3")
    assert [call.verb for call in asked.history] == ["LIST", "LIST"]
    assert names(store, "") == ["a/1", "a/2", "b"]
    assert [call.verb for call in asked.history] == ["LIST"] * 3


def test_a_listing_that_wasn_t_read_to_its_end_is_none() -> None:
    asked, store = opened()
    assert next(store.list("")).path == "a/1"
    assert store.exists("b")
    assert [call.verb for call in asked.history] == ["LIST", "HEAD"]


def test_an_object_is_read_once_whether_it_is_there_or_not() -> None:
    asked, store = opened()
    assert store.get("b") == store.get("b") == b"three"
    assert store.get_many(["a/1", "b"]) == store.get_many(["a/1", "b"]) == [b"one", b"three"]
    for miss in (store.get, store.get, store.head):
        with pytest.raises(ObjectNotFound):
            miss("c")
    assert not store.exists("d")
    assert not store.exists("d")
    assert [call.paths for call in asked.history] == [("b",), ("a/1",), ("c",), ("d",)]


def test_nothing_that_is_large_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_once, "_LARGEST_BYTES", 3)
    monkeypatch.setattr(read_once, "MOST_NAMES", 1)
    asked, store = opened()
    for _ in range(2):
        assert store.get_many(["a/1", "b"]) == [b"one", b"three"]
        assert names(store, "") == ["a/1", "a/2", "b"]
    assert [call.paths for call in asked.history] == [("a/1", "b"), ("",), ("b",), ("",)]


def test_what_is_gone_since_the_listing_makes_it_too_old() -> None:
    real = DictStore({"a/1": b"one", "a/2": b"two"})
    _, store = opened(real=real)
    assert names(store, "a/") == ["a/1", "a/2"]
    real.delete_many(["a/1"])
    real.put("a/3", b"new")
    with pytest.raises(ObjectNotFound):
        store.get("a/1")
    assert names(store, "a/") == ["a/2", "a/3"]
