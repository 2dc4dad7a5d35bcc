"""Counts bytes and objects that are copied, read or rewritten, also inside large objects."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from lakeferry.engine import LogCopy, Observer, Volume
from lakeferry.engines import object_copy
from lakeferry.storage.byte_rate import ByteRate

_Result = TypeVar("_Result")


class CopyProgress:
    """Adds up small objects and pieces of large ones, and reports the totals.

    ``tell`` is called with bytes and objects. ``rate`` is the limit of what is counted, if there
    is one: it decides which objects are large. Safe to use from several threads.
    """

    def __init__(self, tell: Callable[[int, int], None], rate: ByteRate | None = None) -> None:
        """Report that nothing is done yet."""
        self._tell = tell
        self._small_bytes = object_copy.small_bytes(rate)
        self._lock = threading.Lock()
        self._bytes = self._objects = 0
        tell(0, 0)

    def moved(self, size_bytes: int) -> None:
        """Count a piece of a large object."""
        with self._lock:
            self._bytes += size_bytes
            self._tell(self._bytes, self._objects)

    def ended(self, size_bytes: int, read_bytes: int | None) -> None:
        """Count an object of which ``read_bytes`` were read; ``None`` if it is missing.

        The pieces of a large object were counted before.
        """
        in_pieces = read_bytes is not None and read_bytes > self._small_bytes
        with self._lock:
            self._bytes += 0 if in_pieces else size_bytes
            self._objects += 1
            self._tell(self._bytes, self._objects)

    def of_files(self, files: Iterable[LogCopy], results: Iterable[_Result]) -> Iterator[_Result]:
        """Yield the result of each log file, and count the file."""
        for file, result in zip(files, results, strict=True):
            self.ended(file.size_bytes, file.size_bytes)
            yield result


def observed(
    what: str, total: Volume, observer: Observer, rate: ByteRate | None = None
) -> CopyProgress:
    """Return what reports its totals to the observer, out of ``total``."""

    def tell(size_bytes: int, objects: int) -> None:
        observer(what, Volume(min(size_bytes, total), objects), total)

    return CopyProgress(tell, rate)
