"""``LiveFiles``: the live files of a version, as a stream of Arrow batches and to look at.

It behaves as the ``pyarrow.RecordBatchReader`` of its rows, which it also is for every library
that takes Arrow's C stream interface (``pyarrow.table``, Polars, DuckDB, pandas). Looking at it
reads no more than the first batch, and takes nothing from the stream.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa

from lakeferry.api.arrow_conversions import pandas_frame, polars_frame
from lakeferry.readable import counted, size
from lakeferry.table.live_files import FILES

if TYPE_CHECKING:
    import polars

_SHOWN_FILES = 10
_COLUMNS = ("file", "size", "partition", "deleted rows")
ReadBatches = Callable[[], Iterator[pa.RecordBatch]]


class LiveFiles:
    """The live files of a version. Each row is a file, with the columns of :data:`FILES`.

    Iterating over it, or calling ``read_all``, reads the stream once, as with Arrow's own reader.
    ``to_arrow``, ``to_pandas`` and ``to_polars`` always return all files.
    """

    def __init__(
        self, location: str, version: int, num_files: int, size_bytes: int, read: ReadBatches
    ) -> None:
        """Describe the files; ``read`` yields their batches, and may be called again."""
        self.location = location
        self.version = version
        self.num_files = num_files
        self.size_bytes = size_bytes
        self._read = read
        self._stream = _PeekedBatches(read())
        # A reader that nobody uses any more is closed at once: nothing of it leads back here.
        self._reader = pa.RecordBatchReader.from_batches(FILES, self._stream.remaining())

    @property
    def schema(self) -> pa.Schema:
        """The columns."""
        return FILES

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Iterate over the batches that weren't read yet."""
        return iter(self._reader)

    def __next__(self) -> pa.RecordBatch:
        """Return the next batch."""
        return self._reader.__next__()

    def __getattr__(self, name: str) -> Any:
        """Return what Arrow's reader has, such as ``read_next_batch``."""
        if name.startswith("_") and name != "__arrow_c_stream__":
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self._reader, name)

    def read_all(self) -> pa.Table:
        """Return the rows that weren't read yet as an Arrow table."""
        return self._reader.read_all()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Hand the stream over; see Arrow's PyCapsule interface."""
        return self._reader.__arrow_c_stream__(requested_schema)

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the stream."""
        self._reader.close()

    def to_arrow(self) -> pa.Table:
        """Return all files as an Arrow table."""
        return pa.Table.from_batches(self._read(), FILES)

    def to_pandas(self) -> Any:
        """Return all files as a ``pandas.DataFrame``; needs pandas."""
        return pandas_frame(self.to_arrow())

    def to_polars(self) -> polars.DataFrame:
        """Return all files as a ``polars.DataFrame``; needs Polars."""
        return polars_frame(self.to_arrow())

    def __repr__(self) -> str:
        """Return how many files there are, and the first of them."""
        rows = list(self._rows())
        lines = [
            self._title(),
            *("  ".join(str(cell) for cell in row if cell is not None) for row in rows),
        ]
        if self.num_files > len(rows):
            lines.append(f"the first {len(rows)} of {counted(self.num_files, 'file')}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """Return what a notebook shows: how many files there are, and the first of them."""
        from lakeferry.html_tables import first_rows, notebook_view

        table = first_rows(_COLUMNS, self._rows(), self.num_files, "file", shown=_SHOWN_FILES)
        return notebook_view(self._title(), table)

    def _title(self) -> str:
        files = f"{counted(self.num_files, 'file')}, {size(self.size_bytes)}"
        return f"Live files of version {self.version} of {self.location}: {files}"

    def _rows(self) -> Iterator[tuple[str, str, str | None, int | None]]:
        inside = f"{self.location}/"
        for file in self._stream.first():
            vector = file["deletion_vector"]
            values = ", ".join(f"{name}={value}" for name, value in file["partition_values"])
            deleted = None if vector is None else vector["cardinality"]
            yield file["path"].removeprefix(inside), size(file["size"]), values or None, deleted


class _PeekedBatches:
    """Batches of which the first can be looked at before, or after, they are read."""

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._batches = batches
        self._peeked: pa.RecordBatch | None = None
        self._first: list[dict[str, Any]] | None = None

    def remaining(self) -> Iterator[pa.RecordBatch]:
        """Yield the batches."""
        while (batch := self._next()) is not None:
            yield batch

    def first(self) -> list[dict[str, Any]]:
        """Return the first rows, and take nothing away."""
        if self._first is None:
            self._peeked = self._next()
        return self._first or []

    def _next(self) -> pa.RecordBatch | None:
        batch, self._peeked = self._peeked, None
        if batch is None:
            batch = next(self._batches, None)
        if self._first is None:
            self._first = [] if batch is None else batch.slice(0, _SHOWN_FILES).to_pylist()
        return batch
