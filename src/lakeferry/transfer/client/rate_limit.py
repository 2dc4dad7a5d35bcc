"""Limits the bytes per second of a transfer, and reads a rate as people write it."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable

from lakeferry.errors import InvalidInput
from lakeferry.storage.byte_rate import ByteRate

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
        self._rate = None if bytes_per_s is None else ByteRate(bytes_per_s, clock)
        self._sleep = sleep

    @property
    def is_limited(self) -> bool:
        """Return True if there is a limit."""
        return self._rate is not None

    async def take(self, size_bytes: int) -> None:
        """Take bytes, and wait until they are due; callers are served in order."""
        if self._rate is not None and (wait_s := self._rate.reserve(size_bytes)) > 0:
            await self._sleep(wait_s)


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
