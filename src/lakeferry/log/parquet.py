"""Reads parts of a Parquet file from byte ranges.

A checkpoint may contain a million files and one protocol. To read only the protocol, a caller
fetches the footer (:data:`FOOTER_GUESS_BYTES` from the end are nearly always enough), calls
:func:`ranges` for the byte ranges of the wanted columns, fetches those, and passes everything to
a :class:`SparseFile`, which Parquet readers treat as the whole file. Row groups without values
of a wanted column, by their own statistics, are left out.

A file from an untrusted source is checked against :class:`FileBounds` first: a few bytes of
Parquet can expand to any number of rows, and to pages of any size.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from lakeferry.errors import CorruptLog
from lakeferry.log import thrift

FOOTER_GUESS_BYTES = 64 * 1024
_MAGIC = b"PAR1"
_TAIL = 8
_CODECS = ("NONE", "SNAPPY", "GZIP", "LZO", "BROTLI", "LZ4", "ZSTD", "LZ4")
"""Indexed by codec number in Parquet's definition; names as in pyarrow."""
_HOLE_BYTES = 256 * 1024
"""Ranges with smaller gaps are fetched as one: another request costs more."""


@dataclass(frozen=True, slots=True)
class Range:
    """A byte range of a file."""

    start: int
    length: int

    @property
    def end(self) -> int:
        """The end of the range, exclusive."""
        return self.start + self.length


class SeekableFile(io.RawIOBase):
    """A file of a known size, with a position; subclasses read."""

    def __init__(self, size_bytes: int) -> None:
        """Start at the beginning."""
        super().__init__()
        self._size = size_bytes
        self._position = 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the position of the next read."""
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move to another position and return it."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = base + offset
        return self._position


class SparseFile(SeekableFile):
    """A file with only some ranges in memory; reading any other byte is an error."""

    def __init__(self, size_bytes: int, pieces: Iterable[tuple[int, bytes]]) -> None:
        super().__init__(size_bytes)
        self._pieces = sorted(pieces)

    def read(self, size: int = -1) -> bytes:
        """Return bytes that are in memory; raise ``OSError`` for any that aren't."""
        end = self._size if size < 0 else min(self._size, self._position + size)
        start, self._position = self._position, end
        parts = []
        for at, data in self._pieces:
            if at <= start < at + len(data) and start < end:
                part = data[start - at : end - at]
                parts.append(part)
                start += len(part)
        if start < end:
            raise OSError(f"bytes {start} to {end} were not fetched")
        return b"".join(parts)


def footer_range(tail: bytes, size_bytes: int) -> Range:
    """Return where the footer is, given the file's last bytes."""
    if len(tail) < _TAIL or tail[-4:] != _MAGIC:
        raise CorruptLog("a Parquet file can't be read", cause="it doesn't end like a Parquet file")
    (length,) = struct.unpack("<I", tail[-_TAIL:-4])
    if length + _TAIL + len(_MAGIC) > size_bytes:
        raise CorruptLog("a Parquet file can't be read", cause="its footer is longer than the file")
    return Range(size_bytes - _TAIL - length, length + _TAIL)


@dataclass(frozen=True, slots=True)
class ColumnChunk:
    """Where one column of one row group is; ``null_count`` is ``None`` if it isn't stated."""

    path: tuple[str, ...]
    span: Range
    codec: str
    num_values: int
    null_count: int | None


@dataclass(frozen=True, slots=True)
class Footer:
    """The part of a Parquet file's footer that we need: its row groups' column chunks."""

    num_rows: int
    row_groups: tuple[tuple[ColumnChunk, ...], ...]


def read_footer(tail: bytes, size_bytes: int) -> Footer:
    """Return the footer, given the file's last bytes, which must include all of it."""
    where = footer_range(tail, size_bytes)
    start = where.start - (size_bytes - len(tail))
    if start < 0:
        raise CorruptLog("a Parquet file can't be read", cause="its footer is incomplete")
    fields = thrift.decode_struct(tail[start:-_TAIL])
    try:
        groups = tuple(
            tuple(_chunk(column[3], size_bytes) for column in group[1]) for group in fields[4]
        )
        return Footer(int(fields[3]), groups)
    except (KeyError, TypeError, IndexError, ValueError, AttributeError) as broken:
        raise CorruptLog("a Parquet footer can't be read", cause=repr(broken)) from broken


def footer_of(source: bytes | io.RawIOBase | io.BufferedIOBase) -> Footer:
    """Return the footer of a file in memory or open for reading."""
    if isinstance(source, bytes):
        return read_footer(source, len(source))
    size = source.seek(0, io.SEEK_END)
    source.seek(max(0, size - _TAIL))
    where = footer_range(source.read(_TAIL) or b"", size)
    source.seek(where.start)
    return read_footer(source.read(where.length) or b"", size)


def _chunk(fields: dict[int, Any], size_bytes: int) -> ColumnChunk:
    # The numbers are those of ColumnMetaData in Parquet's own definition.
    start = fields[9]
    if fields.get(11):
        start = min(start, fields[11])
    # A chunk without values has no place; some writers leave its numbers at zero or below.
    span = Range(start, fields[7]) if fields[5] else Range(0, 0)
    if fields[5] and (span.start < len(_MAGIC) or span.length < 0 or span.end > size_bytes):
        raise ValueError("a column chunk lies outside of the file")
    return ColumnChunk(
        tuple(part.decode() for part in fields[3]),
        span,
        _CODECS[fields[4]],
        fields[5],
        (fields.get(12) or {}).get(3),
    )


def row_groups_with(footer: Footer, roots: Sequence[str]) -> list[int]:
    """Return the row groups that may contain a value of one of these top-level columns."""
    return [
        index
        for index, chunks in enumerate(footer.row_groups)
        if any(chunk.path[0] in roots and _may_hold(chunk) for chunk in chunks)
    ]


def _may_hold(chunk: ColumnChunk) -> bool:
    # Leaves of lists and maps count their own values; a plain leaf counts rows.
    return chunk.null_count is None or chunk.null_count < chunk.num_values


def ranges(footer: Footer, roots: Sequence[str], row_groups: Sequence[int]) -> list[Range]:
    """Return the byte ranges of these columns in these row groups; near ones are joined."""
    spans = [
        chunk.span
        for group in row_groups
        for chunk in footer.row_groups[group]
        if chunk.path[0] in roots and chunk.span.length
    ]
    joined: list[Range] = []
    for span in sorted(spans, key=lambda span: span.start):
        if joined and span.start - joined[-1].end <= _HOLE_BYTES:
            last = joined.pop()
            joined.append(Range(last.start, max(last.end, span.end) - last.start))
        else:
            joined.append(span)
    return joined


@dataclass(frozen=True, slots=True)
class FileBounds:
    """How far a file may expand, set by a caller that knows its expected size."""

    rows: int
    unfolded_bytes: int

    def check(self, data: bytes) -> int:
        """Raise an error for a file that expands too far; return how many rows to read at a time.

        Nothing is expanded: each page header states the expanded size, and readers rely on it. A
        dictionary value may be repeated in every row, so the number of rows at a time is small
        enough even for that case.
        """
        if footer_range(data[-_TAIL:], len(data)).length > _LARGEST_FOOTER_BYTES:
            raise _unfolds(f"a footer of more than {_LARGEST_FOOTER_BYTES:,} bytes")
        footer = footer_of(data)
        if footer.num_rows > self.rows:
            raise _unfolds(f"{footer.num_rows:,} rows, and not {self.rows:,} at most")
        unfolded_bytes = largest_dictionary = 0
        for chunk in (chunk for chunks in footer.row_groups for chunk in chunks):
            if chunk.num_values > self.rows * _VALUES_PER_ROW + _VALUES_AT_LEAST:
                raise _unfolds(f"{chunk.num_values:,} values in {'.'.join(chunk.path)}")
            for page in _pages(data, chunk.span):
                unfolded_bytes += page.unfolded_bytes
                if page.is_dictionary:
                    largest_dictionary = max(largest_dictionary, page.unfolded_bytes)
            if unfolded_bytes > self.unfolded_bytes:
                raise _unfolds(f"more than {self.unfolded_bytes:,} bytes")
        return max(1, min(_MOST_ROWS, _AT_ONCE_BYTES // max(1, largest_dictionary)))


_VALUES_PER_ROW = 64  # of a map of tags, or of partition values
_VALUES_AT_LEAST = 10_000
_AT_ONCE_BYTES = 64 << 20
_LARGEST_FOOTER_BYTES = 16 << 20
_MOST_ROWS = 65_536


@dataclass(frozen=True, slots=True)
class _Page:
    unfolded_bytes: int
    is_dictionary: bool


def _pages(data: bytes, span: Range) -> Iterator[_Page]:
    """Yield the pages of a column chunk, by their headers."""
    at = span.start
    while at < span.end:
        # The numbers are those of PageHeader in Parquet's own definition.
        fields, behind = thrift.decode_struct_at(data, at)
        try:
            kind, unfolded_bytes, packed_bytes = fields[1], fields[2], fields[3]
            if unfolded_bytes < 0 or packed_bytes < 0 or behind + packed_bytes > span.end:
                raise ValueError("a page is longer than its column")
        except (KeyError, TypeError, ValueError) as broken:
            raise CorruptLog("a Parquet page can't be read", cause=repr(broken)) from broken
        yield _Page(unfolded_bytes, kind == _DICTIONARY_PAGE)
        at = behind + packed_bytes


_DICTIONARY_PAGE = 2


def _unfolds(cause: str) -> CorruptLog:
    return CorruptLog("a Parquet file is too large when decompressed", cause=cause)


def schema_of(file: pq.ParquetFile) -> pa.Schema:
    """Return the file's schema with INT96 as an instant in microseconds, which is what it means.

    Arrow reads INT96 as local time in nanoseconds, which can't hold the years that statistics
    reach. Open such files with ``coerce_int96_timestamp_unit="us"`` and cast the result to this
    schema.
    """
    columns = iter(file.schema.column(index) for index in range(len(file.schema)))

    def meant(kind: pa.DataType) -> pa.DataType:
        if pa.types.is_struct(kind):
            return pa.struct([child.with_type(meant(child.type)) for child in kind])
        if pa.types.is_map(kind):
            key, item = meant(kind.key_type), meant(kind.item_type)
            return pa.map_(kind.key_field.with_type(key), kind.item_field.with_type(item))
        if pa.types.is_list(kind):
            return pa.list_(kind.value_field.with_type(meant(kind.value_type)))
        return pa.timestamp("us", "UTC") if next(columns).physical_type == "INT96" else kind

    fields = [field.with_type(meant(field.type)) for field in file.schema_arrow]
    return pa.schema(fields, file.schema_arrow.metadata)
