"""The feed: one poller for all connections, ids, words, limits, and an end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine
from typing import Any

import pytest

from lakeferry.errors import LakeferryError, LimitExceeded
from lakeferry.web.live_feed import FeedMark, LiveFeed


class Source:
    """What a feed reads; ``calls`` counts how often."""

    def __init__(self) -> None:
        self.mark = FeedMark(5)
        self.calls = 0

    def read(self, last_id: int) -> FeedMark:
        self.calls += 1
        return self.mark


async def allowed() -> bool:
    return True


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, 30))


def entries(event: bytes) -> list[str]:
    data = next(line for line in event.decode().splitlines() if line.startswith("data: "))
    found: list[str] = json.loads(data.removeprefix("data: "))["entries"]
    return found


def test_a_connection_is_told_at_once_and_after_each_change() -> None:
    async def test() -> None:
        source = Source()
        feed = LiveFeed(source.read, poll_s=0.01)
        events = feed.listen(None, allowed)
        assert (await anext(events)).startswith(b"retry:")
        first = await anext(events)
        assert first.startswith(b"id: 5\nevent: change\n")
        assert entries(first) == []
        source.mark = FeedMark(7, None, ((6, "a has moved"), (7, "b has moved")))
        second = await anext(events)
        assert second.startswith(b"id: 7\n")
        assert entries(second) == ["a has moved", "b has moved"]
        source.mark = FeedMark(7, "a step")
        assert entries(await anext(events)) == []
        feed.stop()

    run(test())


def test_one_that_comes_back_is_told_what_it_missed() -> None:
    async def test() -> None:
        source = Source()
        feed = LiveFeed(source.read, poll_s=0.01)
        one = feed.listen(None, allowed)
        await anext(one), await anext(one)
        source.mark = FeedMark(8, None, ((6, "a"), (8, "b")))
        await anext(one)
        back = feed.listen(6, allowed)
        await anext(back)
        assert entries(await anext(back)) == ["b"]
        feed.stop()

    run(test())


def test_all_connections_share_one_poller_and_few_are_let_in() -> None:
    async def test() -> None:
        source = Source()
        feed = LiveFeed(source.read, poll_s=60, most=3)
        open_ones = [feed.listen(None, allowed) for _ in range(3)]
        for each in open_ones:
            await anext(each)
            await anext(each)
        assert source.calls == 1
        with pytest.raises(LimitExceeded):
            feed.listen(None, allowed)
        await open_ones[0].aclose()  # type: ignore[attr-defined]
        assert feed.listeners == 2
        feed.listen(None, allowed)
        feed.stop()

    run(test())


def test_nothing_new_is_a_heartbeat() -> None:
    async def test() -> None:
        feed = LiveFeed(Source().read, poll_s=0.01, heartbeat_s=0.05)
        events = feed.listen(None, allowed)
        await anext(events), await anext(events)
        assert (await anext(events)).startswith(b":")
        feed.stop()

    run(test())


def test_a_connection_ends_when_its_visitor_may_not_see_it_any_more() -> None:
    async def test() -> None:
        rights = iter([True, False])

        async def is_allowed() -> bool:
            return next(rights)

        feed = LiveFeed(Source().read, poll_s=0.01, heartbeat_s=0.05)
        events = feed.listen(None, is_allowed)
        assert len([each async for each in events]) == 2
        assert feed.listeners == 0
        feed.stop()

    run(test())


def test_all_end_when_the_server_does() -> None:
    async def test() -> None:
        feed = LiveFeed(Source().read, poll_s=0.01)
        events = feed.listen(None, allowed)
        await anext(events), await anext(events)
        rest = asyncio.create_task(anext(events, b"end"))
        await asyncio.sleep(0)
        feed.stop()
        assert await rest == b"end"

    run(test())


def test_a_failure_that_nobody_expected_does_not_end_the_feed() -> None:
    async def test() -> None:
        source = Source()
        failures = [ValueError("odd"), LakeferryError("the database is gone")]

        def read(last_id: int) -> FeedMark:
            if failures:
                raise failures.pop()
            return source.read(last_id)

        feed = LiveFeed(read, poll_s=0.01)
        events = feed.listen(None, allowed)
        await anext(events)
        assert (await anext(events)).startswith(b"id: 5\n")
        feed.stop()

    run(test())


def test_entries_of_a_new_database_are_told() -> None:
    async def test() -> None:
        source = Source()
        source.mark = FeedMark(900, None, ((900, "old has moved"),))
        feed = LiveFeed(source.read, poll_s=0.01)
        events = feed.listen(None, allowed)
        await anext(events)
        assert (await anext(events)).startswith(b"id: 900\n")
        source.mark = FeedMark(2)
        event = await anext(events)
        assert (event.partition(b"\n")[0], entries(event)) == (b"id: 2", [])
        source.mark = FeedMark(3, None, ((3, "new has moved"),))
        assert entries(await anext(events)) == ["new has moved"]
        feed.stop()

    run(test())
