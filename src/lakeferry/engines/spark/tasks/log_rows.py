"""Reads a task's log files into rows that Spark can reconcile.

A row is a file action with the columns that decide whether it counts: ``kind`` (``add`` or
``remove``), ``key`` (the logical file, by :func:`lakeferry.log.file_identity.keys`) and ``rank``
(its position among all commits; null for a checkpoint's rows). Actions that aren't about files are
rows with the action's text in ``raw`` and a unique key, so that they reach the driver unchanged.
Their kind is ``line`` if the text was read from a line, ``value`` if it was made from Parquet's
columns.

A checkpoint's unknown fields are in separate structs, ``add_unknown`` and ``remove_unknown``,
because both actions may have a field of the same name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from lakeferry.engines.spark.tasks.log_plan import (
    FILE_ACTIONS,
    CheckpointTask,
    CommitTask,
    FileSurvey,
    Piece,
)
from lakeferry.errors import CorruptLog, ObjectNotFound
from lakeferry.log import actions, checkpoint_read, file_actions, file_identity, parquet
from lakeferry.log.actions import Action
from lakeferry.log.checkpoint_read import SMALL_ACTIONS, Rows
from lakeferry.log.lines import ORDER, Lines
from lakeferry.storage import Store
from lakeferry.table import load

LINE = "line"
VALUE = "value"
SMALL = (LINE, VALUE)
_BATCH_ROWS = 16_384
"""How many rows go to the JVM at a time."""
_RANKS_PER_FILE = 2**32
"""No commit has more lines than this."""
_DECIDING = [
    pa.field("kind", pa.string()),
    pa.field("key", pa.string()),
    pa.field("rank", pa.int64()),
]
_RAW = pa.field("raw", pa.binary())


def unknown_name(action: str) -> str:
    """Return the column that holds an action's unknown fields."""
    return f"{action}_unknown"


@dataclass(frozen=True, slots=True)
class Shape:
    """The columns of a log's rows; each action's unknown fields come from surveys."""

    unknown: tuple[tuple[str, pa.Schema], ...] = ()

    @property
    def schema(self) -> pa.Schema:
        """All columns, the deciding ones first."""
        named = {field.name: field for schema in file_actions.SCHEMAS.values() for field in schema}
        structs = [
            pa.field(unknown_name(action), pa.struct(list(schema)))
            for action, schema in self.unknown
        ]
        return pa.schema([*_DECIDING, *named.values(), _RAW, *structs])

    def names(self, action: str) -> list[str]:
        """Return the names of an action's unknown fields."""
        return list(dict(self.unknown).get(action, pa.schema([])).names)


def shape_of(surveys: Iterable[FileSurvey]) -> Shape:
    """Return the columns that hold the fields of all these files."""
    found: dict[str, list[pa.Schema]] = {}
    for looked in surveys:
        for action, field in looked.unknown:
            known = pa.schema([field.with_type(_as_spark_has(field.type)).with_nullable(True)])
            found.setdefault(action, []).append(known)
    return Shape(tuple((action, _unified(schemas)) for action, schemas in sorted(found.items())))


def _unified(schemas: list[pa.Schema]) -> pa.Schema:
    try:
        return pa.unify_schemas(schemas, promote_options="default")
    except pa.ArrowException:
        return pa.unify_schemas(schemas, promote_options="permissive")


def _as_spark_has(kind: pa.DataType) -> pa.DataType:
    """Return the nearest type that Spark also has."""
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_as_spark_has(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(_as_spark_has(kind.key_type), _as_spark_has(kind.item_type))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(_as_spark_has(kind.value_type))
    if pa.types.is_dictionary(kind):
        return _as_spark_has(kind.value_type)
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", None if kind.tz is None else "UTC")
    if pa.types.is_null(kind) or pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return pa.binary()
    return _WIDER.get(kind, kind)


_WIDER = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
    pa.float16(): pa.float32(),
    pa.date64(): pa.date32(),
}


def read_commits(store: Store, task: CommitTask, shape: Shape) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a run of commits; for non-file actions, only the newest in the run."""
    lines = Lines()
    names = [file.path for file in task.files]
    try:
        fetched = store.get_many(names)
    except ObjectNotFound as gone:
        raise load.vanished(str(gone.fields.get("path", "?"))) from gone
    for file, data in zip(task.files, fetched, strict=True):
        load.read_delta(lines, file, data)
    del fetched
    lines.check_compacted(store.uri)
    first_rank = task.position * _RANKS_PER_FILE
    for action, table in (("add", lines.adds), ("remove", lines.removes)):
        for batch in table.to_batches(_BATCH_ROWS):
            ranks = pa.array(
                [first_rank + order for order in batch.column(ORDER.name).to_pylist()], pa.int64()
            )
            yield _rows(action, batch.drop_columns([ORDER.name]), ranks, store.uri, shape)
    # The commit info of the last commit comes last.
    small = [
        lines.protocol,
        lines.metadata,
        *lines.txns.values(),
        *lines.domains.values(),
        lines.commit_info,
    ]
    yield _small(small, first_rank, shape)


def read_checkpoint(store: Store, task: CheckpointTask, shape: Shape) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a part of a checkpoint."""
    rank = task.position * _RANKS_PER_FILE
    for piece in task.pieces:
        for rows in _piece_rows(store, piece):
            for action, batches in (("add", rows.adds), ("remove", rows.removes)):
                for whole in batches:
                    for start in range(0, len(whole), _BATCH_ROWS):
                        batch = whole.slice(start, _BATCH_ROWS)
                        ranks = pa.nulls(len(batch), pa.int64())
                        yield _rows(action, batch, ranks, store.uri, shape)
            small = [
                rows.protocol,
                rows.metadata,
                *rows.txns.values(),
                *rows.domains.values(),
            ]
            batch = _small(small, rank, shape)
            rank += len(batch)
            yield batch


def _piece_rows(store: Store, piece: Piece) -> Iterator[Rows]:
    """Yield the rows of a piece, a row group at a time."""
    wanted = FILE_ACTIONS if piece.is_sidecar else (*SMALL_ACTIONS, *FILE_ACTIONS)
    try:
        source: bytes | parquet.SparseFile
        source = store.get(piece.path) if piece.is_whole else _fetch(store, piece, wanted)
    except ObjectNotFound as gone:
        raise load.vanished(piece.path) from gone
    except (CorruptLog, pa.ArrowException, OSError) as broken:
        raise checkpoint_read.corrupt(piece.path, str(broken)) from broken
    if piece.path.endswith(".json"):
        assert isinstance(source, bytes)
        rows = Rows()
        checkpoint_read.read_json(rows, source, piece.path)
        yield rows
        return
    for group in piece.row_groups:
        rows = Rows()
        checkpoint_read.read_parquet(rows, source, piece.path, wanted=wanted, row_groups=[group])
        yield rows


def _fetch(store: Store, piece: Piece, wanted: tuple[str, ...]) -> parquet.SparseFile:
    """Fetch the footer and the piece's row groups."""
    start, tail = load.fetch_footer(store, piece.path, piece.size_bytes)
    footer = parquet.read_footer(tail, piece.size_bytes)
    fetched = [(start, tail)]
    for span in parquet.ranges(footer, wanted, piece.row_groups):
        if span.start < start:
            length = min(span.end, start) - span.start
            fetched.append((span.start, store.get_range(piece.path, span.start, length)))
    return parquet.SparseFile(piece.size_bytes, fetched)


def _rows(
    action: str, batch: pa.RecordBatch, ranks: pa.Array, root: str, shape: Shape
) -> pa.RecordBatch:
    unknown = dict(shape.unknown).get(action, pa.schema([]))
    known = file_actions.SCHEMAS[action]
    whole = file_actions.conform(batch.to_struct_array(), pa.schema([*known, *unknown]))
    columns = {name: whole.column(name) for name in known.names}
    columns["kind"] = pa.repeat(pa.scalar(action), len(batch))
    columns["key"] = file_identity.keys(whole.column("path"), whole.column("deletionVector"), root)
    columns["rank"] = ranks
    if file_actions.RAW.name in batch.schema.names:
        columns["raw"] = batch.column(file_actions.RAW.name).cast(pa.binary())
    if len(unknown):
        parts = [whole.column(name) for name in unknown.names]
        columns[unknown_name(action)] = pa.StructArray.from_arrays(parts, fields=list(unknown))
    return _filled(columns, len(batch), shape)


def _small(found: Iterable[Action | None], first_rank: int, shape: Shape) -> pa.RecordBatch:
    """Return actions that aren't about files as rows. No path begins with a line feed."""
    there = [action for action in found if action is not None]
    lines = [actions.encode_line(action) for action in there]
    ranks = range(first_rank, first_rank + len(lines))
    columns = {
        "kind": pa.array([VALUE if action.raw is None else LINE for action in there], pa.string()),
        "key": pa.array([f"\n{rank}" for rank in ranks], pa.string()),
        "rank": pa.array(ranks, pa.int64()),
        "raw": pa.array(lines, pa.binary()),
    }
    return _filled(columns, len(lines), shape)


def _filled(columns: dict[str, pa.Array], length: int, shape: Shape) -> pa.RecordBatch:
    schema = shape.schema
    arrays = [
        columns[field.name] if field.name in columns else pa.nulls(length, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
