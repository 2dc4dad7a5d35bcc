"""Reads the files of a log, and keeps what was read for the next question.

A command that asks several things of a log reads each of its files once: what one question
brought is there for the next one. Commits and checkpoints never change under their names, but a
table may be replaced by another one. So whatever a new listing shows with another size or time is
read again, and a caller that has to know whether a file is still there reads from the store.
"""

from __future__ import annotations

import builtins
from collections.abc import Iterator, Sequence
from typing import Protocol

from lakeferry.log import paths
from lakeferry.storage import ObjectInfo, Store

_MOST_BYTES = 64 * 1024 * 1024
"""How much is kept of a log. Files for which there is no room are read again."""


class LogSource(Protocol):
    """What is needed to read a log; every :class:`~lakeferry.storage.Store` has it."""

    @property
    def uri(self) -> str:
        """The place of the table."""

    def list(
        self, prefix: str, *, start_after: str | None = None, stop_before: str | None = None
    ) -> Iterator[ObjectInfo]:
        """Yield the objects whose names begin with ``prefix``, sorted."""

    def head(self, path: str, /) -> ObjectInfo:
        """Return name, size and time of one object, or raise ``ObjectNotFound``."""

    def get(self, path: str, /) -> bytes:
        """Return the whole object, or raise ``ObjectNotFound``."""

    def get_many(self, paths: Sequence[str], /) -> builtins.list[bytes]:
        """Return whole objects in the order asked for."""

    def get_range(self, path: str, start: int, length: int, /) -> bytes:
        """Return a part of an object."""


class KeptReads:
    """The log of one table, as one command reads it: no byte is fetched a second time.

    Not for several threads.
    """

    def __init__(self, store: Store, most_bytes: int = _MOST_BYTES) -> None:
        """Read from ``store``, and keep up to ``most_bytes``."""
        self._store = store
        self._most_bytes = self._room = most_bytes
        self._listed: dict[str, ObjectInfo] = {}
        self._pieces: dict[str, dict[int, bytes]] = {}
        """Pieces of each object by their start; they don't overlap."""
        self._whole: dict[str, bytes] = {}

    @property
    def uri(self) -> str:
        """The place of the table."""
        return self._store.uri

    def list(
        self, prefix: str, *, start_after: str | None = None, stop_before: str | None = None
    ) -> Iterator[ObjectInfo]:
        """List the store; forget what was read of an object that is another one now."""
        for info in self._store.list(prefix, start_after=start_after, stop_before=stop_before):
            if info.path.startswith(f"{paths.LOG_DIR}/"):
                self._notice(info)
            yield info

    def head(self, path: str, /) -> ObjectInfo:
        """Ask the store."""
        return self._store.head(path)

    def get(self, path: str, /) -> bytes:
        """Return an object; of a checkpoint only those bytes are fetched that weren't yet."""
        data = self._whole.get(path)
        if data is not None:
            return data
        kept = self._pieces.get(path)
        if kept is None:
            return self._keep(path, self._store.get(path))
        listed = self._listed[path]
        if listed.size_bytes > self._most_bytes:
            # To put it together would take its size in memory twice.
            return self._store.get(path)
        data = self._filled(path, 0, listed.size_bytes)[0]
        self._forget(path)
        # An engine may have replaced a checkpoint by an equal one, with other bytes.
        if not _is_same(self._store.head(path), listed):
            return self._store.get(path)
        if self._keep(path, data) is not self._whole.get(path):
            self._keep_pieces(path, kept)
        return data

    def get_many(self, paths: Sequence[str], /) -> builtins.list[bytes]:
        """Return objects; those that weren't read before are fetched by one call."""
        new = [path for path in paths if path not in self._whole]
        fetched = dict(zip(new, self._store.get_many(new), strict=True)) if new else {}
        return [
            self._keep(path, fetched[path]) if path in fetched else self._whole[path]
            for path in paths
        ]

    def get_range(self, path: str, start: int, length: int, /) -> bytes:
        """Return a part of an object, of which only those bytes are fetched that weren't yet."""
        data = self._whole.get(path)
        if data is not None:
            return data[start : start + length]
        if path not in self._listed:
            # Without its size and its time, it couldn't be noticed that it was replaced.
            return self._store.get_range(path, start, length)
        end = min(start + length, self._listed[path].size_bytes)
        data, new = self._filled(path, start, end)
        self._keep_pieces(path, new)
        return data

    def _notice(self, info: ObjectInfo) -> None:
        before = self._listed.get(info.path)
        self._listed[info.path] = info
        data = self._whole.get(info.path)
        # An object may have been read by its name before it was listed.
        same = len(data) == info.size_bytes if before is None and data is not None else True
        if before not in (None, info) or not same:
            self._forget(info.path)

    def _forget(self, path: str) -> None:
        self._room += sum(map(len, self._pieces.pop(path, {}).values()))
        self._room += len(self._whole.pop(path, b""))

    def _keep(self, path: str, data: bytes) -> bytes:
        listed = self._listed.get(path)
        fits = len(data) <= self._room and (listed is None or listed.size_bytes == len(data))
        if fits and path not in self._whole:
            self._whole[path] = data
            self._room -= len(data)
        return data

    def _keep_pieces(self, path: str, pieces: dict[int, bytes]) -> None:
        for start, piece in pieces.items():
            if piece and len(piece) <= self._room:
                self._pieces.setdefault(path, {})[start] = piece
                self._room -= len(piece)

    def _filled(self, path: str, start: int, end: int) -> tuple[bytes, dict[int, bytes]]:
        """Return a part of an object, and those pieces of it that had to be fetched."""
        parts: builtins.list[bytes] = []
        new: dict[int, bytes] = {}
        position = start
        for first, piece in [*sorted(self._pieces.get(path, {}).items()), (end, b"")]:
            gap = min(first, end) - position
            if gap > 0:
                new[position] = fetched = self._store.get_range(path, position, gap)
                parts.append(fetched)
                position += gap
                if len(fetched) < gap:
                    # It is another object by now, which ends here.
                    break
            if first <= position < first + len(piece):
                parts.append(piece[position - first : end - first])
                position += len(parts[-1])
        return parts[0] if len(parts) == 1 else b"".join(parts), new


def _is_same(now: ObjectInfo, listed: ObjectInfo) -> bool:
    """Return whether an object is still the listed one; some services tell a time in seconds."""
    times = now.modified_ms, listed.modified_ms
    unit_ms = 1000 if any(time % 1000 == 0 for time in times) else 1
    same_time = times[0] // unit_ms == times[1] // unit_ms
    return same_time and now.size_bytes == listed.size_bytes
