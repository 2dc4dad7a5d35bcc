"""Reads data files by ranges, without deleted rows.

Used by the Arrow dataset (:mod:`lakeferry.dataset`) and by engines that rewrite files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from lakeferry.errors import CorruptLog
from lakeferry.log import roaring
from lakeferry.log.deletion_vectors import DeletionVector, relative_path, z85_decode
from lakeferry.log.parquet import SeekableFile

_NEARBY_BYTES = 64 * 1024
"""A vector within this many first bytes is fetched together with its file's first byte."""


class RangedFile(SeekableFile):
    """A file whose ranges are fetched when read; ``tail`` has the bytes from ``tail_start`` on."""

    def __init__(
        self, fetch: Callable[[int, int], bytes], tail_start: int, tail: bytes = b""
    ) -> None:
        super().__init__(tail_start + len(tail))
        self._fetch = fetch
        self._tail_start = tail_start
        self._tail = tail

    def read(self, size: int = -1) -> bytes:
        """Return bytes; what isn't in ``tail`` is fetched in one request."""
        start = self._position
        end = self._size if size < 0 else min(self._size, start + size)
        self._position = max(start, end)
        data = b""
        if start < min(end, self._tail_start):
            length = min(end, self._tail_start) - start
            data = self._fetch(start, length)
            if len(data) != length:
                raise OSError(f"the file ends at {start + len(data)}, before its size in the log")
        begin = max(0, start - self._tail_start)
        return data + self._tail[begin : max(begin, end - self._tail_start)]


def described(vector: Mapping[str, Any]) -> DeletionVector:
    """Return a row's ``deletionVector`` as a :class:`DeletionVector`."""
    return DeletionVector(
        vector["storageType"],
        vector["pathOrInlineDv"],
        vector["offset"],
        vector["sizeInBytes"],
        vector["cardinality"],
    )


def deleted_rows(
    vector: DeletionVector, fetch: Callable[[str, int, int], bytes]
) -> roaring.RowIndexes:
    """Return the rows that a vector deletes; raise if it contradicts the log.

    ``fetch`` gets a path of the log, and the start and length of a range.
    """
    where = vector.path_or_inline_dv
    if vector.storage_type == "i":
        rows = roaring.decode_bitmap(z85_decode(where)[: vector.size_in_bytes])
    elif vector.storage_type in ("u", "p"):
        path = relative_path(where) if vector.storage_type == "u" else where
        rows = roaring.decode_bitmap(_stored(path, vector, fetch))
    else:
        raise CorruptLog(
            "a deletion vector's descriptor can't be read",
            cause=f"type {vector.storage_type!r}",
            remedy="restore the commit or checkpoint that has it from a copy",
        )
    if rows.cardinality != vector.cardinality:
        raise CorruptLog(
            "a deletion vector contradicts the log",
            cause=f"it has {rows.cardinality} rows, but the log says {vector.cardinality}",
            remedy="read an older version, or restore the vector or the commit from a copy",
        )
    return rows


def _stored(path: str, vector: DeletionVector, fetch: Callable[[str, int, int], bytes]) -> bytes:
    offset = vector.offset or 0
    first = 0 if offset <= _NEARBY_BYTES else offset
    length = offset - first + vector.size_in_bytes + roaring.FRAME_BYTES
    stored = fetch(path, first, length)
    version = stored[:1] if first == 0 else fetch(path, 0, 1)
    if version != bytes([roaring.FILE_VERSION]):
        raise CorruptLog(
            "a deletion vector can't be read",
            cause=f"{path} is of version {version.hex() or 'none'}",
        )
    return roaring.unframed(stored[offset - first :], vector.size_in_bytes)


def check_own_vector(deleted: roaring.RowIndexes, num_rows: int, path: str) -> None:
    """Refuse a vector with rows beyond the ``num_rows`` of its file."""
    if deleted.last is not None and deleted.last >= num_rows:
        raise CorruptLog(
            f"the deletion vector of {path} belongs to another file",
            cause=f"it deletes row {deleted.last}, but the file has {num_rows}",
        )
