"""A limit on the bytes per second that several threads share.

A caller takes bytes before it moves them, and waits until they are due. So the waiting times of
many small takes add up, over all threads; after a pause at most a quarter of a second is caught up.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from lakeferry.errors import InvalidInput

_BURST_S = 0.25
_PIECE_S = 1.0
_SMALLEST_PIECE_BYTES = 4096


class ByteRate:
    """A number of bytes per second. Safe to use from several threads."""

    def __init__(self, bytes_per_s: int, clock: Callable[[], float] = time.monotonic) -> None:
        """Set the limit."""
        if bytes_per_s < 1:
            raise InvalidInput(
                f"the rate can't be {bytes_per_s} bytes per second", remedy="choose 1 or more"
            )
        self.bytes_per_s = bytes_per_s
        self._clock = clock
        self._lock = threading.Lock()
        self._free_s = clock()
        """When all bytes that were taken are due."""

    @property
    def piece_bytes(self) -> int:
        """How many bytes to move at a time: a second's worth, so that nothing stands still."""
        return max(_SMALLEST_PIECE_BYTES, int(self.bytes_per_s * _PIECE_S))

    def reserve(self, size_bytes: int) -> float:
        """Take bytes, and return in how many seconds they are due; callers are served in order."""
        with self._lock:
            now = self._clock()
            self._free_s = max(self._free_s, now - _BURST_S) + size_bytes / self.bytes_per_s
            return max(0.0, self._free_s - now)

    def take(self, size_bytes: int, ended: threading.Event) -> bool:
        """Take bytes, and wait until they are due; return False as soon as ``ended`` is set."""
        return not ended.wait(min(self.reserve(size_bytes), threading.TIMEOUT_MAX))

    def halve(self) -> ByteRate:
        """Give one half of the rate away for good, and return it."""
        half = ByteRate(max(1, self.bytes_per_s // 2), self._clock)
        with self._lock:
            self.bytes_per_s = max(1, self.bytes_per_s - half.bytes_per_s)
        return half
