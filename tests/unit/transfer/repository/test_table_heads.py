"""Heads that take long to find out: who waits for whom, and how old an answer may be."""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from lakeferry.errors import CorruptLog, StorageUnavailable
from lakeferry.transfer.chain.hashes import Multihash
from lakeferry.transfer.repository.table_heads import Heads
from tests.support.odf import hash_of

WITHIN_S = 30


class Tables:
    """Tables whose heads are found out when a test lets them."""

    def __init__(self, *slow: str) -> None:
        self.begun = {name: threading.Semaphore(0) for name in slow}
        self.go = {name: threading.Semaphore(0) for name in slow}
        self.versions: dict[str, int] = {}
        self.found: list[str] = []
        self.at_once: dict[str, int] = {}

    def find(self, name: str) -> Multihash | None:
        assert self.at_once.setdefault(name, 0) == 0
        self.at_once[name] += 1
        version = self.versions.get(name, 0)
        if name in self.go:
            self.begun[name].release()
            assert self.go[name].acquire(timeout=WITHIN_S)
        self.found.append(name)
        self.at_once[name] -= 1
        return hash_of(f"{name} {version}")


def test_all_who_ask_before_it_begins_are_answered_at_once_and_the_others_next() -> None:
    tables = Tables("t")
    heads = Heads(tables.find)
    first = heads.of("t")
    assert tables.begun["t"].acquire(timeout=WITHIN_S)
    tables.versions["t"] = 1
    later = [heads.of("t") for _ in range(50)]
    tables.go["t"].release(2)
    assert first.result(WITHIN_S) == hash_of("t 0")
    assert {each.result(WITHIN_S) for each in later} == {hash_of("t 1")}
    assert tables.found == ["t", "t"]
    heads.stop()


def test_a_slow_table_keeps_no_other_waiting() -> None:
    tables = Tables("slow")
    heads = Heads(tables.find)
    slow = [heads.of("slow")]
    assert tables.begun["slow"].acquire(timeout=WITHIN_S)
    slow += [heads.of("slow") for _ in range(10)]
    assert heads.of("quick").result(WITHIN_S) == hash_of("quick 0")
    assert not any(each.done() for each in slow)
    tables.go["slow"].release(2)
    assert {each.result(WITHIN_S) for each in slow} == {hash_of("slow 0")}
    heads.stop()


def test_who_goes_away_takes_the_answer_from_nobody() -> None:
    tables = Tables("t")
    heads = Heads(tables.find)
    answer = heads.of("t")
    assert answer.cancel() is False
    tables.go["t"].release()
    assert answer.result(WITHIN_S) == hash_of("t 0")
    heads.stop()


def test_a_failure_is_the_answer_and_the_next_question_is_a_new_one() -> None:
    heads: Heads[str]

    def find(_: str) -> Multihash | None:
        return failing.pop()()

    def fail() -> Multihash | None:
        raise CorruptLog("the log makes no sense")

    failing = [lambda: None, fail]
    heads = Heads(find)
    with pytest.raises(CorruptLog):
        heads.of("t").result(WITHIN_S)
    assert heads.of("t").result(WITHIN_S) is None
    heads.stop()


def test_whoever_asks_on_the_way_out_is_told_so() -> None:
    tables = Tables("t")
    heads = Heads(tables.find)
    under_way = heads.of("t")
    assert tables.begun["t"].acquire(timeout=WITHIN_S)
    waiting = heads.of("t")
    heads.stop()
    for answer in (waiting, heads.of("t"), heads.of("other")):
        with pytest.raises(StorageUnavailable):
            answer.result(WITHIN_S)
    tables.go["t"].release()
    assert under_way.result(WITHIN_S) == hash_of("t 0")


def test_many_threads_get_their_answers() -> None:
    tables = Tables()
    heads = Heads(tables.find)

    def ask(number: int) -> bool:
        name = f"t{number % 7}"
        answers: list[Future[Multihash | None]] = [heads.of(name) for _ in range(20)]
        return {each.result(WITHIN_S) for each in answers} == {hash_of(f"{name} 0")}

    with ThreadPoolExecutor(16) as pool:
        assert all(pool.map(ask, range(200)))
    heads.stop()
