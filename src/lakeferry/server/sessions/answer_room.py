"""Reserves memory for the large answers that clients haven't read yet."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from contextlib import suppress

from lakeferry.server.http.websockets import ConnectionControl
from lakeferry.server.upload_slots import Slot, Slots

ANSWERS_BYTES = 64 << 20
"""Memory for answers that clients haven't read yet, all sessions together."""
SMALL_ANSWER_BYTES = 256 << 10
"""An answer up to this size doesn't count."""


class AnswerRoom:
    """Reserves room for the large answers of one session, one at a time.

    Room is reserved before an answer is made, and released when the client has read the text.
    """

    def __init__(
        self,
        room: Slots,
        holder: str,
        wire: ConnectionControl | None,
        tidy: Callable[[], None],
    ) -> None:
        """Reserve nothing yet; ``wire`` is the client's connection."""
        self._room = room
        self._tidy = tidy
        self._holder = holder
        self._wire = wire
        self._task: asyncio.Task[None] | None = None
        self._slot: Slot | None = None
        self._text_bytes = 0
        self._is_sent = asyncio.Event()

    @property
    def is_awaited(self) -> bool:
        """Return True if an answer isn't being made because there is no room for it."""
        return self._task is not None and not self._task.done() and self._slot is None

    def when_there_is_room(self, size_bytes: int, begin: Callable[[], None]) -> None:
        """Call ``begin`` once there is room for its answer; at once if the answer is small."""
        if size_bytes <= SMALL_ANSWER_BYTES or self._wire is None:
            begin()
            return
        self._is_sent.clear()
        self._task = asyncio.create_task(self._hold(size_bytes, begin, self._wire, self._task))

    async def _hold(
        self,
        size_bytes: int,
        begin: Callable[[], None],
        wire: ConnectionControl,
        before: asyncio.Task[None] | None,
    ) -> None:
        if before is not None:
            # The client's next request shows that it has read nearly all of the last answer.
            await before
        async with self._room.slot(self._holder, size_bytes) as slot:
            # While the answer is being made, the client isn't slow.
            slot.since_s = math.inf
            slot.interrupt = wire.drop
            self._slot = slot
            try:
                # While the server shuts down, nothing new begins.
                with suppress(RuntimeError):
                    begin()
                await self._is_sent.wait()
                await wire.written()
            finally:
                self._slot = None
                self._tidy()

    def begin(self, text_bytes: int) -> None:
        """Record that the answer is made, and its size."""
        slot, wire = self._slot, self._wire
        if slot is not None and wire is not None:
            slot.since_s = asyncio.get_running_loop().time()
            slot.moved_bytes = lambda: -wire.unwritten_bytes()
            self._room.shrink(slot, text_bytes)

    def sent(self) -> None:
        """Record that the answer was sent."""
        self._is_sent.set()

    def close(self) -> None:
        """Release the room; a client that hasn't read its answer by now is cut off."""
        if self._task is None or self._task.done():
            return
        if self._is_sent.is_set() and self._wire is not None and self._wire.unwritten_bytes():
            self._wire.drop()
        self._task.cancel()
