"""A limit on the bytes per second, by a clock of ours."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from lakeferry.errors import InvalidInput
from lakeferry.transfer.client.rate_limit import Rate, parse_rate


class Clock:
    """Time that passes when somebody sleeps."""

    def __init__(self) -> None:
        self.now = 100.0
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        until = self.now + seconds
        await asyncio.sleep(0)
        self.now = max(self.now, until)


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


def test_bytes_take_the_time_that_they_are_due() -> None:
    clock = Clock()
    rate = Rate(1000, clock=clock, sleep=clock.sleep)

    async def work() -> None:
        for _ in range(10):
            await rate.take(500)

    run(work())
    assert clock.now == pytest.approx(105.0)


def test_all_who_take_share_one_allowance() -> None:
    clock = Clock()
    rate = Rate(1000, clock=clock, sleep=clock.sleep)

    async def work() -> None:
        await asyncio.gather(*(rate.take(1000) for _ in range(4)))

    run(work())
    assert sorted(clock.slept) == pytest.approx([1.0, 2.0, 3.0, 4.0])


def test_a_pause_is_made_up_for_only_a_little() -> None:
    clock = Clock()
    rate = Rate(1000, clock=clock, sleep=clock.sleep)
    clock.now += 3600

    async def work() -> None:
        await rate.take(250)
        assert clock.slept == []
        await rate.take(1000)

    run(work())
    assert clock.slept == pytest.approx([1.0])


def test_without_a_limit_nobody_waits() -> None:
    clock = Clock()
    run(Rate(None, clock=clock, sleep=clock.sleep).take(1 << 50))
    assert clock.slept == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1", 1),
        ("512K", 512 << 10),
        ("512k", 512 << 10),
        ("10MB", 10_000_000),
        ("10 MiB", 10 << 20),
        ("1.5GiB", 3 << 29),
        ("2G/s", 2 << 30),
        ("7B", 7),
        ("1TB", 10**12),
    ],
)
def test_a_rate_is_written_as_people_write_it(text: str, expected: int) -> None:
    assert parse_rate(text) == expected


@pytest.mark.parametrize("text", ["", "0", "fast", "-1", "1 Q", "1iB", "1e9", "0.0001", "10 M B"])
def test_what_is_no_rate_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput):
        parse_rate(text)
