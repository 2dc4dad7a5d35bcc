"""Reports several passes over a large file, such as reading and writing, as one pass."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from lakeferry.storage.store import StreamChunk


class FilePasses:
    """Counts the bytes of one file once, however many passes are made over it."""

    def __init__(self, moved: Callable[[int], None], size_bytes: int, passes: int) -> None:
        """Report the parts of ``size_bytes`` to ``moved``."""
        self._moved = moved
        self._size_bytes = size_bytes
        self._passes = passes
        self._told = 0

    def at(self, number: int, fraction: float) -> None:
        """Report which fraction of a pass is done; the first pass has the number 0."""
        done = int(self._size_bytes * (number + fraction) / self._passes)
        self._moved(done - self._told)
        self._told = done

    def over(
        self, number: int, chunks: Iterable[StreamChunk], size_bytes: int
    ) -> Iterator[StreamChunk]:
        """Yield chunks of ``size_bytes`` together, and report each when it has been taken."""
        taken = 0
        for chunk in chunks:
            yield chunk
            taken += len(chunk)
            self.at(number, taken / size_bytes)

    def ended(self) -> None:
        """Report that no pass is left."""
        self.at(self._passes, 0)
