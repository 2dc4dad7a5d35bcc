"""A limit of bytes per second that threads share, by a clock of ours."""

from __future__ import annotations

import threading

import pytest

from lakeferry.errors import InvalidInput
from lakeferry.storage.byte_rate import ByteRate


class Clock:
    """A time that tests set."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_all_takers_share_one_allowance() -> None:
    rate = ByteRate(1000, Clock())
    # A quarter of a second is free at the start.
    assert [rate.reserve(1000) for _ in range(3)] == pytest.approx([1.0, 2.0, 3.0])


def test_a_pause_is_made_up_for_only_a_little() -> None:
    clock = Clock()
    rate = ByteRate(1000, clock)
    clock.now += 3600
    assert rate.reserve(250) == 0
    assert rate.reserve(500) == pytest.approx(0.5)


def test_waiting_ends_when_nobody_waits_for_the_bytes() -> None:
    rate, ended = ByteRate(1), threading.Event()
    results: list[bool] = []
    waiting = threading.Thread(target=lambda: results.append(rate.take(1 << 40, ended)))
    waiting.start()
    ended.set()
    waiting.join(5)
    assert results == [False]
    assert ByteRate(1000).take(1, threading.Event())


def test_pieces_are_a_seconds_worth() -> None:
    assert ByteRate(1 << 20).piece_bytes == 1 << 20
    assert ByteRate(1).piece_bytes == 4096


def test_a_half_is_given_away_for_good() -> None:
    rate = ByteRate(1001, Clock())
    half = rate.halve()
    assert (rate.bytes_per_s, half.bytes_per_s) == (501, 500)
    assert half.reserve(1000) == pytest.approx(2.0)
    assert ByteRate(1).halve().bytes_per_s == 1


@pytest.mark.parametrize("bytes_per_s", [0, -1])
def test_what_is_no_rate_is_refused(bytes_per_s: int) -> None:
    with pytest.raises(InvalidInput, match="bytes per second"):
        ByteRate(bytes_per_s)
