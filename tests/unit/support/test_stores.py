"""What the other tests rely on when they use the stores of ``tests/support``."""

from __future__ import annotations

import pytest

from lakeferry.errors import StorageUnavailable
from tests.support.clock import ManualClock
from tests.support.stores import DictStore, Fault, FaultyStore, Stopped, any_of, at, on


def test_times_come_from_the_clock() -> None:
    clock = ManualClock(1000)
    store = DictStore({"a": b"1"}, clock=clock)
    clock.advance(5)
    store.put("b", b"22")
    assert [(found.path, found.modified_ms) for found in store.list("")] == [
        ("a", 1000),
        ("b", 1005),
    ]
    store.set_modified("b", 1)
    assert store.head("b").modified_ms == 1


@pytest.mark.parametrize(
    ("fault", "done", "unknown"), [(Fault.FAIL, False, False), (Fault.LOSE_ANSWER, True, True)]
)
def test_a_write_fails_before_or_after(fault: Fault, done: bool, unknown: bool) -> None:
    store = FaultyStore(DictStore(), on("PUT_IF_ABSENT", fault))
    with pytest.raises(StorageUnavailable) as raised:
        store.put_if_absent("x", b"1")
    assert raised.value.fields["outcome_unknown"] is unknown
    assert store.put_if_absent("x", b"1") is not done


@pytest.mark.parametrize(
    ("fault", "there", "unknown"), [(Fault.FAIL, b"1", False), (Fault.LOSE_ANSWER, b"2", True)]
)
def test_a_swap_fails_before_or_after(fault: Fault, there: bytes, unknown: bool) -> None:
    inner = DictStore({"x": b"1"})
    store = FaultyStore(inner, on("SWAP", fault))
    with pytest.raises(StorageUnavailable) as raised:
        store.swap("x", b"1", b"2")
    assert raised.value.fields["outcome_unknown"] is unknown
    assert inner.objects == {"x": there}


def test_streams_copies_and_times_fail_like_other_calls() -> None:
    inner = DictStore({"a": b"1"})
    store = FaultyStore(
        inner,
        any_of(
            on("PUT", Fault.FAIL),
            on("COPY", Fault.LOSE_ANSWER, containing="c"),
            on("UTIME", Fault.STOP_BEFORE),
        ),
    )
    with pytest.raises(StorageUnavailable):
        store.put_stream("b", iter([b"2"]), 1)
    with pytest.raises(StorageUnavailable) as raised:
        store.copy_within("a", "c")
    assert raised.value.fields["outcome_unknown"] is True
    with pytest.raises(Stopped):
        store.restore_time("a", 1)
    assert inner.objects == {"a": b"1", "c": b"1"}


def test_deletions_stop_halfway() -> None:
    inner = DictStore(dict.fromkeys("abcd", b""))
    store = FaultyStore(inner, on("DELETE", Fault.HALFWAY))
    with pytest.raises(StorageUnavailable):
        store.delete_many(list("abcd"))
    assert list(inner.objects) == ["c", "d"]


def test_listings_fail_when_they_are_read() -> None:
    inner = DictStore(dict.fromkeys("abcd", b""))
    store = FaultyStore(inner, any_of(at(0, Fault.FAIL), at(1, Fault.HALFWAY)))
    with pytest.raises(StorageUnavailable):
        next(store.list(""))
    listing = store.list("")
    assert [next(listing).path, next(listing).path] == ["a", "b"]
    with pytest.raises(StorageUnavailable):
        next(listing)
    assert [found.path for found in store.list("")] == list("abcd")


def test_nothing_swallows_the_end_of_an_actor() -> None:
    inner = DictStore()
    store = FaultyStore(inner, at(1, Fault.STOP_AFTER))
    store.put("a", b"")
    try:
        with pytest.raises(Stopped):
            store.put("b", b"")
    except Exception:  # noqa: BLE001 what ordinary code would write
        pytest.fail("swallowed")
    assert list(inner.objects) == ["a", "b"]
    assert [call.verb for call in store.history] == ["PUT", "PUT"]
