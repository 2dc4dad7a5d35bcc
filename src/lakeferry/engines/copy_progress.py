"""Counts bytes and objects that are copied or read, also inside large objects."""

from __future__ import annotations

import threading
from collections.abc import Callable

from lakeferry.engines import object_copy
from lakeferry.engines.object_copy import Copied


class CopyProgress:
    """Adds up small objects and pieces of large ones, and reports the totals.

    ``tell`` is called with bytes and objects. Safe to use from several threads.
    """

    def __init__(self, tell: Callable[[int, int], None]) -> None:
        """Report that nothing is done yet."""
        self._tell = tell
        self._lock = threading.Lock()
        self._bytes = self._objects = 0
        tell(0, 0)

    def moved(self, size_bytes: int) -> None:
        """Count a piece of a large object."""
        with self._lock:
            self._bytes += size_bytes
            self._tell(self._bytes, self._objects)

    def ended(self, size_bytes: int, copied: Copied | None) -> None:
        """Count an object; the pieces of a large one were counted before."""
        in_pieces = copied is not None and copied.size_bytes > object_copy.SMALL_COPY_BYTES
        with self._lock:
            self._bytes += 0 if in_pieces else size_bytes
            self._objects += 1
            self._tell(self._bytes, self._objects)
