"""A store whose changes stay in memory, for dry runs.

What is written stays here, what is read is what would be there. For few and small objects:
those of a plan that nobody executes.
"""

from __future__ import annotations

import builtins
from collections.abc import Iterator, Sequence
from heapq import merge

from lakeferry.errors import ObjectNotFound
from lakeferry.storage.store import ObjectInfo, Store, exactly, in_order


class Overlay(Store):
    """Another store, and what was changed of it here."""

    def __init__(self, below: Store) -> None:
        """See ``below``, which isn't changed."""
        self._below = below
        self._changed: dict[str, bytes | None] = {}
        self.config = below.config
        self.calls = below.calls

    def list(
        self, prefix: str, *, start_after: str | None = None, stop_before: str | None = None
    ) -> Iterator[ObjectInfo]:
        """List what would be there."""
        found = self._below.list(prefix, start_after=start_after, stop_before=stop_before)
        here = sorted(
            (
                ObjectInfo(path, len(data), 0)
                for path, data in self._changed.items()
                if data is not None
                and path.startswith(prefix)
                and (start_after is None or path.encode() > start_after.encode())
                and (stop_before is None or path.encode() < stop_before.encode())
            ),
            key=in_order,
        )
        yield from merge(
            (one for one in found if one.path not in self._changed), here, key=in_order
        )

    def head(self, path: str) -> ObjectInfo:
        """Ask here first."""
        if path in self._changed:
            return ObjectInfo(path, len(self._own(path)), 0)
        return self._below.head(path)

    def get(self, path: str) -> bytes:
        """Get from here first."""
        return self._own(path) if path in self._changed else self._below.get(path)

    def get_range(self, path: str, start: int, length: int) -> bytes:
        """Get a part, from here first."""
        if path in self._changed:
            return self._own(path)[start : start + length]
        return self._below.get_range(path, start, length)

    def get_many(self, paths: Sequence[str]) -> builtins.list[bytes]:
        """Get many, those that are here from here."""
        left = [path for path in paths if path not in self._changed]
        found = dict(zip(left, self._below.get_many(left), strict=True))
        return [found[path] if path in found else self._own(path) for path in paths]

    def put(self, path: str, data: bytes) -> None:
        """Keep it here."""
        self._changed[path] = bytes(data)

    def put_if_absent(self, path: str, data: bytes) -> bool:
        """Keep it here unless it is there."""
        try:
            self.head(path)
        except ObjectNotFound:
            self.put(path, data)
            return True
        return False

    def swap(self, path: str, expected: bytes | None, data: bytes) -> bool:
        """Keep it here if what is there is what is expected."""
        try:
            there: bytes | None = self.get(path)
        except ObjectNotFound:
            there = None
        if there != expected:
            return False
        self.put(path, data)
        return True

    def put_stream(self, path: str, chunks: Iterator[bytes], size_bytes: int) -> None:
        """Keep it here."""
        self.put(path, b"".join(exactly(chunks, size_bytes, path)))

    def copy_within(self, path: str, new_path: str) -> None:
        """Keep a copy here."""
        self.put(new_path, self.get(path))

    def delete_many(self, paths: Sequence[str]) -> None:
        """Forget them here."""
        self._changed |= dict.fromkeys(paths)

    def sign(self, method: str, path: str, expires_s: int) -> str:
        """Sign what is there."""
        return self._below.sign(method, path, expires_s)

    def _own(self, path: str) -> bytes:
        data = self._changed[path]
        if data is None:
            raise ObjectNotFound(f"no object at {path!r}", path=path)
        return data
