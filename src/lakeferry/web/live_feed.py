"""Tells connected pages that something has changed, by server-sent events.

One poller for all connections asks the database, and only while somebody is connected. An event
has the id of the history's newest entry, and the newest entries in words for those who listen to
the page. What has changed is in the page, which the script requests again.

A connection waits for a number that grows, so a slow one misses events in between and costs no
memory. The first event comes at once, because the page may be older than the connection; after
``Last-Event-ID`` it has the entries since then.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from lakeferry.errors import LakeferryError, LimitExceeded

FEED_POLL_S = 1.0
HEARTBEAT_S = 15.0
MOST_LISTENERS = 64
_TOLD = 20
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FeedMark:
    """How things stand: the newest entry of the history, and all else that pages show.

    ``entries`` are the newest ones in words, with their ids, the oldest first.
    """

    history_id: int
    rest: Any = None
    entries: tuple[tuple[int, str], ...] = ()


class LiveFeed:
    """The poller and its listeners, all in one event loop. ``read`` is called in a thread."""

    def __init__(
        self,
        read: Callable[[int], FeedMark],
        *,
        poll_s: float = FEED_POLL_S,
        heartbeat_s: float = HEARTBEAT_S,
        most: int = MOST_LISTENERS,
    ) -> None:
        """Nothing is read before somebody listens. ``read`` gets the last history id."""
        self._read = read
        self._poll_s = poll_s
        self._heartbeat_s = heartbeat_s
        self._most = most
        self._listeners = 0
        self._changes = 0
        self._mark: FeedMark | None = None
        self._entries: deque[tuple[int, str]] = deque(maxlen=_TOLD)
        self._condition: asyncio.Condition | None = None
        self._poller: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopped = False

    @property
    def listeners(self) -> int:
        """How many connections there are."""
        return self._listeners

    def listen(
        self, last_id: int | None, is_allowed: Callable[[], Awaitable[bool]]
    ) -> AsyncIterator[bytes]:
        """Return the events of one connection, or refuse it if there are too many.

        ``is_allowed`` is asked before anything is sent: a token may have been revoked.
        """
        if self._listeners >= self._most:
            raise LimitExceeded(
                f"{self._most} pages are connected already",
                remedy="close some, or load the page again to see what is new",
            )
        return self._events(last_id, is_allowed)

    async def _events(
        self, last_id: int | None, is_allowed: Callable[[], Awaitable[bool]]
    ) -> AsyncIterator[bytes]:
        # Counted here: of an answer that couldn't be sent, not even this much is run.
        if self._listeners >= self._most:
            return
        self._listeners += 1
        try:
            condition = self._begin()
            # The page may be older than the newest mark, so the first event comes at once.
            seen = self._changes if self._mark is None else -1
            yield b"retry: 3000\n\n"
            told = last_id
            while True:
                changed = await self._wait(condition, seen)
                if self._stopped or not await is_allowed():
                    return
                if not changed:
                    yield b": nothing new\n\n"
                    continue
                seen, mark = self._changes, self._mark
                assert mark is not None
                if told is None or told > mark.history_id:
                    told = mark.history_id
                new = [text for number, text in self._entries if number > told]
                told = max(told, mark.history_id)
                data = msgspec.json.encode({"entries": new}).decode()
                yield f"id: {told}\nevent: change\ndata: {data}\n\n".encode()
        finally:
            self._listeners -= 1

    def _begin(self) -> asyncio.Condition:
        if self._condition is None:
            self._condition = asyncio.Condition()
            self._loop = asyncio.get_running_loop()
        if self._poller is None or self._poller.done():
            self._poller = asyncio.create_task(self._poll(self._condition))
        return self._condition

    async def _wait(self, condition: asyncio.Condition, seen: int) -> bool:
        try:
            async with asyncio.timeout(self._heartbeat_s), condition:
                await condition.wait_for(lambda: self._stopped or self._changes > seen)
        except TimeoutError:
            return False
        return True

    async def _poll(self, condition: asyncio.Condition) -> None:
        while self._listeners and not self._stopped:
            last = self._mark.history_id if self._mark is not None else 0
            try:
                mark = await asyncio.to_thread(self._read, last)
            except LakeferryError as lost:
                _LOG.warning("pages can't be told what is new: %s", lost)
                await asyncio.sleep(self._poll_s)
                continue
            except Exception:  # noqa: BLE001 - connected pages would say "Live" for ever
                _LOG.exception("pages can't be told what is new")
                await asyncio.sleep(self._poll_s)
                continue
            if self._mark is not None and mark.history_id < self._mark.history_id:
                # Another database is at its place: ids begin anew.
                self._entries.clear()
            if self._mark is None or (mark.history_id, mark.rest) != (
                self._mark.history_id,
                self._mark.rest,
            ):
                self._entries.extend(mark.entries)
                self._mark = mark
                async with condition:
                    self._changes += 1
                    condition.notify_all()
            await asyncio.sleep(self._poll_s)

    def stop(self) -> None:
        """End all connections. May be called from any thread."""
        self._stopped = True
        loop, condition = self._loop, self._condition
        if loop is None or condition is None or loop.is_closed():
            return

        async def wake() -> None:
            async with condition:
                condition.notify_all()

        asyncio.run_coroutine_threadsafe(wake(), loop)
