"""How many pages may be connected: those whose visitors have left don't count."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from lakeferry.errors import LimitExceeded
from lakeferry.web.live_feed import FeedMark, LiveFeed

MOST = 3


async def allowed() -> bool:
    return True


def feed() -> LiveFeed:
    return LiveFeed(lambda _: FeedMark(1), poll_s=0.001, most=MOST)


async def connected(live: LiveFeed) -> AsyncIterator[bytes]:
    """Return the events of a connection whose first bytes were sent."""
    events = live.listen(None, allowed)
    assert await anext(events) == b"retry: 3000\n\n"
    return events


def test_whoever_leaves_before_the_first_byte_takes_no_place() -> None:
    async def work() -> None:
        live = feed()
        for _ in range(2 * MOST):
            # An answer that can't be sent is dropped before its body has begun.
            live.listen(None, allowed)
        assert live.listeners == 0
        await connected(live)

    asyncio.run(work())


def test_one_too_many_is_refused_whenever_it_begins() -> None:
    async def work() -> None:
        live = feed()
        waiting = live.listen(None, allowed)
        open_ones = [await connected(live) for _ in range(MOST)]
        assert live.listeners == MOST
        with pytest.raises(LimitExceeded):
            live.listen(None, allowed)
        assert [event async for event in waiting] == []
        await open_ones.pop().aclose()  # type: ignore[attr-defined]
        assert live.listeners == MOST - 1
        await connected(live)

    asyncio.run(work())
