"""Rewrites one data file: without deleted rows, in another schema.

Both engines use this for each file of a :class:`~lakeferry.engine.RewritePlan`. A file's footer
is fetched first: it shows whether the file needs a rewrite. Then the rows are read batch by
batch, converted (:mod:`lakeferry.engines.column_conversion`), measured
(:mod:`lakeferry.engines.file_statistics`) and written in row groups of bounded size, into memory
or a temporary file, and from there to the store in one stream. So memory is bounded by a row
group, whatever the file's size.

Files are written as Spark writes them: Snappy, instants as microseconds in INT64, small decimals
as integers, no Arrow schema in the footer. A new file is put beside the old one, or at the
table's root if the old one isn't below it. Each new file has a new name. If a repeated task
writes a file twice, no log names the extra one, and VACUUM removes it.

**Row ids** (the protocol's "Row Tracking"). If no row is deleted, rows keep their ids by
position: the new file gets the old one's ``baseRowId``. If rows are deleted, the ids of the
others are written to the columns that the table has for that. The committer then assigns the
file fresh ids, which readers never see.
"""

from __future__ import annotations

import io
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, BinaryIO, cast

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakeferry.engine import REWRITTEN, RewritePlan
from lakeferry.engines.column_conversion import Reshaped, Reshaping
from lakeferry.engines.copy_progress import CopyProgress
from lakeferry.engines.file_passes import FilePasses
from lakeferry.engines.file_statistics import FileStatistics
from lakeferry.engines.object_copy import (
    CHUNK_BYTES,
    SMALL_COPY_BYTES,
    CopyPlaces,
    Hands,
    OpenConfig,
    name_of,
)
from lakeferry.errors import CorruptLog, MissingFile, ObjectNotFound, UnsupportedFeature
from lakeferry.log import arrow_versions, file_actions, file_identity, parquet, properties, roaring
from lakeferry.log.actions import Metadata
from lakeferry.storage.uris import encode_name, is_absolute_uri, relative_name
from lakeferry.table import load
from lakeferry.table.data_files import RangedFile, check_own_vector, deleted_rows, described

REWRITE_TITLE = "rewriting files"
FILES_AT_ONCE = 4
_LARGE_AT_ONCE = 2
_PASSES = 2
"""Rows are read, converted and written to the new file; then that file is sent to the store."""
BATCH_FILES = 256

_BATCH_ROWS = 128 * 1024
_BATCH_BYTES = 16 * 1024 * 1024
_ROW_GROUP_BYTES = 64 * 1024 * 1024
_IN_MEMORY_BYTES = 16 * 1024 * 1024
"""Up to this size a new file is made in memory; a larger one in a temporary file."""
_NOT_CARRIED_TAGS = frozenset({"ICEBERG_COMPAT_VERSION"})
"""Tags that describe only the old file's bytes."""
_FIRST_ROW_ID = "baseRowId"
_ROW_ID_COLUMNS = {
    "delta.rowTracking.materializedRowIdColumnName": _FIRST_ROW_ID,
    "delta.rowTracking.materializedRowCommitVersionColumnName": "defaultRowCommitVersion",
}
"""By property: the field of a file's ``add`` that gives the default for rows without a value."""

Row = Mapping[str, Any]


def check_rewritable(plan: RewritePlan) -> None:
    """Raise an error if a plan can't be executed, before anything is written."""
    Reshaping(plan.before, plan.after)
    FileStatistics(plan.after)
    _row_id_columns(plan.before)


def numbered(table: pa.Table) -> pa.Table:
    """Return the plan's files with numbers, and only the columns that are needed."""
    numbers = arrow_versions.numbers(0, table.num_rows)
    known = table.select(file_actions.ADD.names).cast(file_actions.ADD)
    return known.add_column(0, REWRITTEN.field("row"), pa.chunked_array([numbers]))


def _row_id_columns(before: Metadata) -> Mapping[str, str]:
    """Return the columns for ids and versions of moved rows, and the names of their defaults.

    Empty if rows have no ids.
    """
    columns: dict[str, str] = {}
    if properties.keeps_row_ids(before.configuration):
        for key, default in _ROW_ID_COLUMNS.items():
            if key not in before.configuration:
                raise CorruptLog(
                    "the table's row ids can't be kept",
                    cause=f"it has row tracking, but lacks the property {key}",
                )
            columns[before.configuration[key]] = default
    return columns


@dataclass(frozen=True, slots=True)
class _Rows:
    """The rows of a file to write, and how."""

    path: str
    file: pq.ParquetFile
    shape: Reshaped
    deleted: roaring.RowIndexes | None
    beside: Mapping[str, int]
    """Columns for ids and versions to fill in, with the default of the file's first row."""
    schema: pa.Schema

    @property
    def left(self) -> int:
        """Number of rows to write, by the footer and the log."""
        gone = 0 if self.deleted is None else self.deleted.cardinality
        return int(self.file.metadata.num_rows) - gone


class Rewriter:
    """Rewrites files according to one plan. Safe to use from several threads."""

    def __init__(self, plan: RewritePlan, open_store: OpenConfig) -> None:
        """Check the plan, and open the table's store; the plan's files aren't read yet."""
        check_rewritable(plan)
        self._plan = plan
        self._reshaping = Reshaping(plan.before, plan.after)
        self._row_id_columns = _row_id_columns(plan.before)
        self._places = CopyPlaces(plan.store, open_store)
        self._large = threading.Semaphore(_LARGE_AT_ONCE)

    def each(
        self,
        hands: Hands,
        batches: Iterable[pa.RecordBatch],
        progress: CopyProgress,
    ) -> Iterator[pa.RecordBatch]:
        """Rewrite numbered files, and yield :data:`lakeferry.engine.REWRITTEN`."""

        def act(row: Row) -> Row:
            size = row["size"]
            moved = progress.moved if size > SMALL_COPY_BYTES else lambda _: None
            passes = FilePasses(moved, size, _PASSES)
            result = self.one(row, passes)
            passes.ended()
            progress.ended(size, size)
            return result

        found = hands.each(act, _rows(batches))
        while rows := list(islice(found, BATCH_FILES)):
            yield pa.RecordBatch.from_pylist(rows, schema=REWRITTEN)

    def one(self, row: Row, passes: FilePasses) -> Row:
        """Rewrite one file if needed, and return the result."""
        path = row["path"]
        with self._large if row["size"] > _IN_MEMORY_BYTES else nullcontext(), _about(path):
            file, whole = self._open(row)
            found = parquet.schema_of(file) if _has_int96(file) else file.schema_arrow
            shape = self._reshaping.of(found, frozenset(self._row_id_columns))
            values = self._reshaping.partition_values(row["partitionValues"] or [])
            if self._is_wanted(row, shape, values):
                return dict(row) | {"outcome": "kept"}
            deleted = self._deleted(row, file.metadata.num_rows)
            dropped = 0 if deleted is None else deleted.cardinality
            if dropped == file.metadata.num_rows:
                return {"row": row["row"], "outcome": "emptied"}
            rows = self._rows(row, whole(), shape, deleted)
            statistics = FileStatistics(self._plan.after, tight_bounds=self._plan.tight_bounds)
            new_path = self._new_path(path)
            size = self._write(rows, statistics, name_of(new_path, self._places.table.uri), passes)
        return {
            "row": row["row"],
            "path": new_path,
            "partitionValues": values,
            "size": size,
            "modificationTime": time.time_ns() // 1_000_000,
            "dataChange": False,
            "stats": statistics.text(),
            "tags": _carried(row["tags"]),
            "deletionVector": None,
            "baseRowId": None if dropped else row["baseRowId"],
            "defaultRowCommitVersion": None if dropped else row["defaultRowCommitVersion"],
            "clusteringProvider": row["clusteringProvider"],
            "outcome": "rewritten",
        }

    def _is_wanted(self, row: Row, shape: Reshaped, values: list[tuple[str, Any]]) -> bool:
        if not self._plan.only_where_needed or row["deletionVector"] is not None:
            return False
        # If the partition has other names, the file must be committed again in any case.
        return shape.is_wanted and values == (row["partitionValues"] or [])

    # --- Reading ---------------------------------------------------------------

    def _open(self, row: Row) -> tuple[pq.ParquetFile, Callable[[], pq.ParquetFile]]:
        """Open a file by its footer; also return a function that opens it to read all of it."""
        path, size = row["path"], row["size"]
        store, name = self._places.find(path)
        with _reading(path):
            start, tail = load.fetch_footer(store, name, size)
            file = _parquet(RangedFile(partial(store.get_range, name), start, tail))

        def whole() -> pq.ParquetFile:
            if not start or size > SMALL_COPY_BYTES:
                return file
            # Fetch a small file in one request, instead of one per column.
            with _reading(path):
                return _parquet(io.BytesIO(store.get_range(name, 0, start) + tail))

        return file, whole

    def _deleted(self, row: Row, num_rows: int) -> roaring.RowIndexes | None:
        if row["deletionVector"] is None:
            return None
        deleted = deleted_rows(described(row["deletionVector"]), self._fetch_vector)
        check_own_vector(deleted, num_rows, row["path"])
        return deleted

    def _fetch_vector(self, path: str, start: int, length: int) -> bytes:
        store, name = self._places.find(path)
        with _reading(path):
            return store.get_range(name, start, length)

    def _rows(
        self, row: Row, file: pq.ParquetFile, shape: Reshaped, deleted: roaring.RowIndexes | None
    ) -> _Rows:
        there = file.schema_arrow
        beside: dict[str, int] = {}
        if deleted is not None and deleted.cardinality:
            for name, default in self._row_id_columns.items():
                if row[default] is None:
                    raise CorruptLog(
                        f"the row ids of data file {row['path']} can't be kept",
                        cause=f"its add has no {default}",
                    )
                beside[name] = row[default]
        names = beside or [name for name in self._row_id_columns if name in there.names]
        fields = [
            there.field(name).with_type(pa.int64())
            if name in there.names
            else pa.field(name, pa.int64())
            for name in names
        ]
        schema = pa.schema([*shape.schema, *fields], shape.schema.metadata)
        return _Rows(row["path"], file, shape, deleted, beside, schema)

    def _batches(self, rows: _Rows, passes: FilePasses) -> Iterator[pa.RecordBatch]:
        """Yield the remaining rows, converted."""
        there = rows.file.schema_arrow.names
        beside = rows.schema.names[len(rows.shape.schema) :]
        # A file needs a column to have rows.
        names = [*rows.shape.names, *(name for name in beside if name in there)] or there[:1]
        batches = rows.file.iter_batches(_rows_at_once(rows.file), columns=names, use_threads=False)
        at = 0
        while True:
            with _reading(rows.path):
                batch = next(batches, None)
                if batch is None:
                    return
                length = batch.num_rows
                ids = [self._ids(rows, name, batch, at) for name in beside]
                if rows.deleted is not None:
                    kept = pc.invert(rows.deleted.flags(at, length))
                    batch, ids = batch.filter(kept), [each.filter(kept) for each in ids]
                columns = [*rows.shape.columns(batch), *ids]
                made = pa.RecordBatch.from_arrays(columns, schema=rows.schema)
            at += length
            passes.at(0, at / max(1, rows.file.metadata.num_rows))
            yield made

    def _ids(self, rows: _Rows, name: str, batch: pa.RecordBatch, at: int) -> pa.Array:
        """Return ids or versions of some rows: the stored ones, else those by position."""
        own = None
        if name in batch.schema.names:
            own = batch.column(name).cast(pa.int64())
        first = rows.beside.get(name)
        if first is None:
            return own
        if self._row_id_columns[name] == _FIRST_ROW_ID:
            default = arrow_versions.numbers(first + at, first + at + batch.num_rows)
        else:
            default = pa.repeat(pa.scalar(first, pa.int64()), batch.num_rows)
        return default if own is None else pc.coalesce(own, default)

    # --- Writing ---------------------------------------------------------------

    def _new_path(self, path: str) -> str:
        """Return a path for a new file: in the old one's folder if that is in the table's."""
        root = self._places.table.uri
        if not is_absolute_uri(path):
            below = file_identity.identity(path, root)
        else:
            inside = relative_name(root, self._places.uri(path))
            below = "" if inside is None else encode_name(inside)
        folder, slash, _ = below.rpartition("/")
        return f"{folder}{slash}part-00000-{uuid.uuid4()}.c000.snappy.parquet"

    def _write(self, rows: _Rows, statistics: FileStatistics, name: str, passes: FilePasses) -> int:
        """Write a new file, and return its size."""
        with tempfile.SpooledTemporaryFile(_IN_MEMORY_BYTES, prefix="lakeferry-") as made:
            sink = cast(BinaryIO, made)
            with pq.ParquetWriter(
                sink,
                rows.schema,
                compression="snappy",
                store_schema=False,
                store_decimal_as_integer=True,
            ) as writer:
                if rows.schema.metadata:
                    writer.add_key_value_metadata(rows.schema.metadata)
                for group in _row_groups(self._batches(rows, passes), statistics):
                    writer.write_table(group, row_group_size=group.num_rows)
            if statistics.num_rows != rows.left:
                raise CorruptLog(
                    f"data file {rows.path} doesn't match the table",
                    cause=f"{rows.left} rows should be live, and {statistics.num_rows} were read",
                )
            size = sink.tell()
            sink.seek(0)
            chunks = iter(lambda: sink.read(CHUNK_BYTES), b"")
            self._places.table.put_stream(name, passes.over(1, chunks, size), size)
        return size


def _row_groups(
    batches: Iterable[pa.RecordBatch], statistics: FileStatistics
) -> Iterator[pa.Table]:
    """Yield rows in tables of bounded size, after ``statistics`` has measured them."""
    waiting: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        statistics.see(batch)
        waiting.append(batch)
        size += batch.nbytes
        if size >= _ROW_GROUP_BYTES:
            yield pa.Table.from_batches(waiting)
            waiting, size = [], 0
    if any(batch.num_rows for batch in waiting):
        yield pa.Table.from_batches(waiting)


def _rows(batches: Iterable[pa.RecordBatch]) -> Iterator[Row]:
    for batch in batches:
        for start in range(0, len(batch), BATCH_FILES):
            yield from batch.slice(start, BATCH_FILES).to_pylist()


def _carried(tags: list[tuple[str, str]] | None) -> list[tuple[str, str]] | None:
    if tags is None:
        return None
    return [(key, value) for key, value in tags if key not in _NOT_CARRIED_TAGS]


def _parquet(source: io.RawIOBase | io.BufferedIOBase) -> pq.ParquetFile:
    # The calling thread does all reads, when it asks for the data.
    return pq.ParquetFile(
        pa.PythonFile(source, mode="r"), pre_buffer=False, coerce_int96_timestamp_unit="us"
    )


def _has_int96(file: pq.ParquetFile) -> bool:
    columns = (file.schema.column(index) for index in range(len(file.schema)))
    return any(column.physical_type == "INT96" for column in columns)


def _rows_at_once(file: pq.ParquetFile) -> int:
    """Return the number of rows for a batch of bounded size, estimated from the footer."""
    groups = [file.metadata.row_group(index) for index in range(file.metadata.num_row_groups)]
    widest = max((group.total_byte_size // max(1, group.num_rows) for group in groups), default=0)
    return max(1, min(_BATCH_ROWS, _BATCH_BYTES // max(1, widest)))


@contextmanager
def _about(path: str) -> Iterator[None]:
    """Add the file's path to errors."""
    try:
        yield
    except (CorruptLog, UnsupportedFeature) as wrong:
        wrong.fields.setdefault("path", path)
        raise


@contextmanager
def _reading(path: str) -> Iterator[None]:
    """Turn errors while reading a file into ``MissingFile`` or ``CorruptLog``."""
    try:
        yield
    except ObjectNotFound as gone:
        raise MissingFile(
            f"data file {path} isn't there",
            cause="the log names it, but there is no such object",
            remedy="restore it from a copy, or delete its rows from the table",
            path=path,
        ) from gone
    except (pa.ArrowException, OSError) as broken:
        raise CorruptLog(
            f"data file {path} can't be read", cause=str(broken), path=path
        ) from broken
