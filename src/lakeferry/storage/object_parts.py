"""Sizes of an object's parts, and parts on local disk.

On local disk a part is a hidden file beside the object's final name. When all parts are
there, their bytes are copied in order to the object. So the object has exactly the checked
bytes, even if another process still writes to a part.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from lakeferry.errors import InvalidInput, ObjectNotFound
from lakeferry.storage.local_durability import PARTS_PREFIX, TEMPORARY_SUFFIX
from lakeferry.storage.store import PartsUpload, StreamChunk

if TYPE_CHECKING:
    from lakeferry.storage.local_store import LocalStore

SMALLEST_PART_BYTES = 16 << 20
_LARGEST_PART_BYTES = 64 << 20
MOST_PARTS = 10_000

_FEW_PARTS = 128
_MIB = 1 << 20
_CHUNK_BYTES = 8 << 20
_PART = re.compile(rf"{re.escape(PARTS_PREFIX)}[0-9a-f]{{32}}-[0-9]+{re.escape(TEMPORARY_SUFFIX)}")


def part_bytes(size_bytes: int) -> int | None:
    """Return the size of an object's parts; ``None`` if it would have too many."""
    wanted = -(-size_bytes // _FEW_PARTS)
    chosen = min(max(SMALLEST_PART_BYTES, -(-wanted // _MIB) * _MIB), _LARGEST_PART_BYTES)
    return chosen if chosen * MOST_PARTS >= size_bytes else None


class LocalPartsUpload(PartsUpload):
    """An object that is received in parts on local disk."""

    def __init__(self, store: LocalStore, path: str, size_bytes: int, part_bytes: int) -> None:
        self._store = store
        self._path = path
        self._size_bytes = size_bytes
        self.part_bytes = part_bytes

    @property
    def begun(self) -> bool:
        """Whether any part is there."""
        return len(self.missing()) < self._count

    def missing(self) -> list[int]:
        """Return the numbers of the parts that aren't there in full."""
        return [number for number in range(1, self._count + 1) if not self._is_there(number)]

    def sign(self, numbers: Sequence[int], expires_s: int) -> tuple[str, list[str]]:
        """Refuse: a file has no URL that another machine could use."""
        raise InvalidInput(
            f"parts of {self._path!r} can't be reached by a signed URL",
            cause=f"{len(numbers)} parts, for {expires_s} seconds",
        )

    def put(self, number: int, chunks: Iterator[StreamChunk], size_bytes: int) -> None:
        """Write a hidden file, and give it the part's name when all of it is there."""
        if not 1 <= number <= self._count or size_bytes != self._length(number):
            raise InvalidInput(f"{self._path!r} has no such part", cause=f"number {number}")
        self._store.put_stream(self._name(number), chunks, size_bytes)

    def join(self, checked: Callable[[Iterator[bytes]], Iterator[bytes]]) -> None:
        """Write the parts' bytes to one file; delete the parts, also after a failure."""
        try:
            whole = checked(self._bytes())
            self._store.put_stream_if_absent(self._path, whole, self._size_bytes)
        finally:
            self._store.delete_many([self._name(number) for number in range(1, self._count + 1)])

    def _bytes(self) -> Iterator[bytes]:
        for number in range(1, self._count + 1):
            for start in range(0, self._length(number), _CHUNK_BYTES):
                length = min(_CHUNK_BYTES, self._length(number) - start)
                yield self._store.get_range(self._name(number), start, length)

    def _is_there(self, number: int) -> bool:
        try:
            return self._store.head(self._name(number)).size_bytes == self._length(number)
        except ObjectNotFound:
            return False

    @property
    def _count(self) -> int:
        return -(-self._size_bytes // self.part_bytes)

    def _length(self, number: int) -> int:
        return min(self.part_bytes, self._size_bytes - (number - 1) * self.part_bytes)

    def _name(self, number: int) -> str:
        folder, slash, name = self._path.rpartition("/")
        # The name includes the size: an object of another size is another upload.
        of = hashlib.sha256(f"{name}\n{self._size_bytes}".encode()).hexdigest()[:32]
        return f"{folder}{slash}{PARTS_PREFIX}{of}-{number}{TEMPORARY_SUFFIX}"


def drop_local(root: str, is_ours: Callable[[str, int], bool]) -> int:
    """Remove parts below a folder, and return their number.

    ``is_ours`` gets the name of each below that folder, and the time when it was written.
    """
    dropped = 0
    for folder, _, names in os.walk(root):
        for name in names:
            if not _PART.fullmatch(name):
                continue
            file = f"{folder}/{name}"
            # Another process may have joined and deleted them meanwhile.
            with suppress(FileNotFoundError):
                written_ms = os.stat(file).st_mtime_ns // 1_000_000
                if is_ours(file[len(root) + 1 :], written_ms):
                    os.unlink(file)
                    dropped += 1
    return dropped
