"""Limits the bytes per second of a command.

A caller takes bytes from the allowance before it moves them, and waits until they are due. So the
waiting times of many small takes add up, over all connections; after a pause at most a quarter of
a second is caught up.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable

from lakeferry.errors import InvalidInput

_BURST_S = 0.25
_RATE = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,6})?) *([kmgt]?)(i?b?)(?:/s)?", re.IGNORECASE)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


class Rate:
    """A number of bytes per second, or no limit."""

    def __init__(
        self,
        bytes_per_s: int | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        """Set the limit; ``None`` is no limit."""
        self._bytes_per_s = bytes_per_s
        self._clock = clock
        self._sleep = sleep
        self._free_s = clock()
        """When all bytes that were taken are due."""

    @property
    def is_limited(self) -> bool:
        """Return True if there is a limit."""
        return self._bytes_per_s is not None

    async def take(self, size_bytes: int) -> None:
        """Take bytes, and wait until they are due; callers are served in order."""
        if self._bytes_per_s is None:
            return
        now = self._clock()
        self._free_s = max(self._free_s, now - _BURST_S) + size_bytes / self._bytes_per_s
        if self._free_s > now:
            await self._sleep(self._free_s - now)


def parse_rate(text: str) -> int:
    """Return the bytes per second in a user's text: ``512K``, ``10MB``, ``1.5GiB``.

    A letter alone, or with ``iB``, counts in steps of 1024; with ``B`` in steps of 1000.
    """
    found = _RATE.fullmatch(text.strip())
    if found is not None and not (not found[2] and found[3].lower().startswith("i")):
        step = 1000 if found[2] and found[3].lower() == "b" else 1024
        bytes_per_s = int(float(found[1]) * step ** _POWERS[found[2].lower()])
        if bytes_per_s > 0:
            return bytes_per_s
    raise InvalidInput(
        f"{text!r} isn't a rate", remedy="write how many bytes per second: 512K, 10MB, 1.5GiB"
    )
