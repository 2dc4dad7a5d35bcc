"""Limits the bytes per second of a command.

Whoever is about to move bytes takes them from the allowance, and waits until it has grown
back. So the time of many small takes adds up, whichever connection they are for; after a
pause no more than a quarter of a second's worth is made up for.
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
    """So many bytes per second, or as fast as can be."""

    def __init__(
        self,
        bytes_per_s: int | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        """Allow that many; ``None`` is no limit."""
        self._bytes_per_s = bytes_per_s
        self._clock = clock
        self._sleep = sleep
        self._free_s = clock()
        """When all that was taken has been earned."""

    @property
    def is_limited(self) -> bool:
        """Whether anybody ever waits."""
        return self._bytes_per_s is not None

    async def take(self, size_bytes: int) -> None:
        """Take bytes, and wait until they are due; who comes first is served first."""
        if self._bytes_per_s is None:
            return
        now = self._clock()
        self._free_s = max(self._free_s, now - _BURST_S) + size_bytes / self._bytes_per_s
        if self._free_s > now:
            await self._sleep(self._free_s - now)


def parse_rate(text: str) -> int:
    """Return the bytes per second that a person means: ``512K``, ``10MB``, ``1.5GiB``.

    A letter alone, and with ``iB``, counts in steps of 1024; with ``B`` it is steps of 1000.
    """
    found = _RATE.fullmatch(text.strip())
    if found is not None and not (not found[2] and found[3].lower().startswith("i")):
        step = 1000 if found[2] and found[3].lower() == "b" else 1024
        bytes_per_s = int(float(found[1]) * step ** _POWERS[found[2].lower()])
        if bytes_per_s > 0:
            return bytes_per_s
    raise InvalidInput(
        f"{text!r} is no rate", remedy="write how many bytes per second: 512K, 10MB, 1.5GiB"
    )
