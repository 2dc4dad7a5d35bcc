"""Bodies of answers, small and large, and what becomes of them when nobody waits any more."""

from __future__ import annotations

import os
import threading
from concurrent.futures import Future, ThreadPoolExecutor

import obstore
import pytest
from obstore.store import MemoryStore

from lakeferry.storage import response_body
from lakeferry.storage.response_body import SMALL_BODY_BYTES, body_of


def loops() -> int:
    return sum(thread.name == "lakeferry-bodies" for thread in threading.enumerate())


@pytest.mark.parametrize("size", [0, 1, SMALL_BODY_BYTES, SMALL_BODY_BYTES + 1, 3 << 20])
def test_a_body_is_whole_whatever_its_size(size: int) -> None:
    store, data = MemoryStore(), os.urandom(size)
    obstore.put(store, "x", data)
    assert bytes(body_of(obstore.get(store, "x"))) == data


def test_a_part_of_an_object_counts_by_its_own_size() -> None:
    store, data = MemoryStore(), os.urandom(3 << 20)
    obstore.put(store, "x", data)
    part = obstore.get(store, "x", options={"range": (100, 100 + (1 << 20))})
    assert bytes(body_of(part)) == data[100 : 100 + (1 << 20)]


def test_many_threads_share_one_event_loop() -> None:
    store, data = MemoryStore(), os.urandom(1 << 20)
    obstore.put(store, "x", data)
    body_of(obstore.get(store, "x"))
    before = loops()
    with ThreadPoolExecutor(8) as pool:
        bodies = list(pool.map(lambda _: bytes(body_of(obstore.get(store, "x"))), range(32)))
    assert set(bodies) == {data}
    assert loops() == before


def test_a_child_process_has_a_loop_of_its_own() -> None:
    store, data = MemoryStore(), os.urandom(1 << 20)
    obstore.put(store, "x", data)
    here = response_body._loop_of(os.getpid())
    assert response_body._loop_of(os.getpid()) is here
    assert response_body._loop_of(-1) is not here


def test_a_body_that_nobody_waits_for_is_given_up() -> None:
    class Interrupted(Future[obstore.Bytes]):
        def result(self, timeout: float | None = None) -> obstore.Bytes:
            raise KeyboardInterrupt

    waiting = Interrupted()
    with pytest.raises(KeyboardInterrupt):
        response_body._result_of(waiting)
    assert waiting.cancelled()
