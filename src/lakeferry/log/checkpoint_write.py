"""Makes the files of a snapshot's checkpoint, classic or V2.

Implements the writing side of the protocol's "Checkpoints". Rows from an older checkpoint keep
all their fields. Rows from commits keep unknown fields as additional columns. Values that
Parquet can't store (an empty object, a field with values of several types) are stored as JSON
text, so an unknown field never prevents a checkpoint. Expired tombstones are left out, and
``dataChange`` is always false, as every engine writes it.

The few actions that aren't about files are in the first row group, so a reader that needs only
the protocol reads a few hundred bytes.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakeferry.log import actions, arrow_versions, features, file_actions, paths, properties, stats
from lakeferry.log.actions import Action, CheckpointMetadata, Sidecar
from lakeferry.log.last_checkpoint import Hint
from lakeferry.log.partition_values import parse_partition_values
from lakeferry.log.paths import LogFileKind
from lakeferry.log.replay import Snapshot
from lakeferry.log.stats_columns import partition_type, stats_type

ROW_GROUP_ROWS = 131_072
SIDECAR_ROWS = 500_000
"""The most file actions in one sidecar; one reader processes a whole sidecar at once."""

_STRINGS = pa.list_(pa.field("element", pa.string()))
_SMALL = {
    "txn": pa.struct(
        [("appId", pa.string()), ("version", pa.int64()), ("lastUpdated", pa.int64())]
    ),
    "metaData": pa.struct(
        [
            ("id", pa.string()),
            ("name", pa.string()),
            ("description", pa.string()),
            (
                "format",
                pa.struct([("provider", pa.string()), ("options", file_actions.STRING_MAP)]),
            ),
            ("schemaString", pa.string()),
            ("partitionColumns", _STRINGS),
            ("configuration", file_actions.STRING_MAP),
            ("createdTime", pa.int64()),
        ]
    ),
    "protocol": pa.struct(
        [
            ("minReaderVersion", pa.int32()),
            ("minWriterVersion", pa.int32()),
            ("readerFeatures", _STRINGS),
            ("writerFeatures", _STRINGS),
        ]
    ),
    "domainMetadata": pa.struct(
        [("domain", pa.string()), ("configuration", pa.string()), ("removed", pa.bool_())]
    ),
    "checkpointMetadata": pa.struct([("version", pa.int64()), ("tags", file_actions.STRING_MAP)]),
    "sidecar": pa.struct(
        [
            ("path", pa.string()),
            ("sizeInBytes", pa.int64()),
            ("modificationTime", pa.int64()),
            ("tags", file_actions.STRING_MAP),
        ]
    ),
}
_FALSE = pa.scalar(False, pa.bool_())
_V2_ONLY = ("checkpointMetadata", "sidecar")
_NOT_IN_REMOVE = ("stats", "tags")
_LINE = file_actions.RAW.name
# A line may have unknown actions beside the known one, with values of any type.
_PER_KEY = msgspec.json.Decoder(dict[str, msgspec.Raw])
_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw] | None)


@dataclass(frozen=True, slots=True)
class CheckpointFile:
    """One file to write."""

    path: str
    body: bytes


@dataclass(frozen=True, slots=True)
class CheckpointPlan:
    """The files of a checkpoint in write order: the last one completes the checkpoint."""

    version: int
    kind: LogFileKind
    files: tuple[CheckpointFile, ...]
    hint: Hint


def kind_for(snapshot: Snapshot) -> LogFileKind:
    """Return which kind of checkpoint the table asks for."""
    if "v2Checkpoint" in snapshot.protocol.features and properties.wants_v2_checkpoints(
        snapshot.metadata.configuration
    ):
        return LogFileKind.V2
    return LogFileKind.CLASSIC


def plan_checkpoint(
    snapshot: Snapshot, now_ms: int, uniques: Iterator[str], *, sidecar_rows: int = SIDECAR_ROWS
) -> CheckpointPlan:
    """Return the checkpoint of a snapshot. ``uniques`` returns unique names."""
    # Whether a managed table's catalog is asked is for whoever puts the files to check.
    features.check_writable(snapshot.protocol, asks_catalog=True)
    tables = _file_tables(snapshot, now_ms)
    rows = sum(table.num_rows for table in tables.values())
    few = _small_actions(snapshot)
    codec = _codec(snapshot)
    kind = kind_for(snapshot)
    if kind is LogFileKind.CLASSIC:
        body = _parquet(few, tables, codec, v2=False)
        written = [CheckpointFile(paths.classic_checkpoint(snapshot.version), body)]
    else:
        written, sidecars = _sidecars(tables, codec, now_ms, uniques, sidecar_rows)
        few = [CheckpointMetadata(snapshot.version, {}), *few, *sidecars]
        top = paths.v2_checkpoint(snapshot.version, next(uniques))
        # delta-spark expects the columns of file actions even if all of these are in sidecars.
        none = {name: table.slice(0, 0) for name, table in tables.items()}
        written.append(CheckpointFile(top, _parquet(few, none, codec, v2=True)))
    hint = Hint(
        snapshot.version,
        len(few) + rows,
        size_in_bytes=sum(len(file.body) for file in written),
        num_of_add_files=snapshot.num_files,
    )
    return CheckpointPlan(snapshot.version, kind, tuple(written), hint)


def _codec(snapshot: Snapshot) -> str:
    wanted = snapshot.metadata.configuration.get("delta.parquet.compression.codec", "snappy")
    known = {"uncompressed": "none", "none": "none", "lz4_raw": "lz4"}
    codec = known.get(wanted.lower(), wanted.lower())
    return codec if codec in ("none", "snappy", "gzip", "lz4", "zstd", "brotli") else "snappy"


def _small_actions(snapshot: Snapshot) -> list[Action]:
    return [
        snapshot.protocol,
        snapshot.metadata,
        *snapshot.txns.values(),
        *snapshot.domains.values(),
    ]


def _file_tables(snapshot: Snapshot, now_ms: int) -> dict[str, pa.Table]:
    """Return the rows of ``add`` and ``remove`` with exactly the columns to write."""
    configuration = snapshot.metadata.configuration
    horizon = now_ms - properties.deleted_file_retention_ms(configuration)
    removed_at = pc.fill_null(snapshot.tombstones["deletionTimestamp"], 0)
    tombstones = snapshot.tombstones.filter(pc.greater(removed_at, pa.scalar(horizon, pa.int64())))
    adds = _with_statistics(_with_unknown_fields(snapshot.files, "add"), snapshot)
    removes = _with_unknown_fields(tombstones, "remove")
    removes = removes.drop_columns(
        [name for name in _NOT_IN_REMOVE if name in removes.schema.names]
    )
    return {"add": _unchanging(adds), "remove": _unchanging(removes)}


def _unchanging(table: pa.Table) -> pa.Table:
    index = table.schema.get_field_index("dataChange")
    table = table.set_column(index, "dataChange", pa.repeat(_FALSE, table.num_rows))
    return table.drop_columns([_LINE]) if _LINE in table.column_names else table


def _with_unknown_fields(table: pa.Table, name: str) -> pa.Table:
    """Add a column for each unknown field in commit lines."""
    if _LINE not in table.column_names:
        return table
    known, known_of_vector = (
        set(file_actions.SCHEMAS[name].names),
        set(file_actions.DELETION_VECTOR.names),
    )
    found: dict[str, dict[int, bytes]] = {}
    of_vectors: dict[str, dict[int, bytes]] = {}
    for row, line in enumerate(table[_LINE]):
        if not line.is_valid:
            continue
        value = _FIELDS.decode(_PER_KEY.decode(line.as_py())[name]) or {}
        for key in value.keys() - known:
            found.setdefault(key, {})[row] = bytes(value[key])
        if "deletionVector" in value:
            vector = _FIELDS.decode(value["deletionVector"]) or {}
            for key in vector.keys() - known_of_vector:
                of_vectors.setdefault(key, {})[row] = bytes(vector[key])
    if of_vectors:
        index = table.schema.get_field_index("deletionVector")
        vectors = _with_columns(_parts_of(table["deletionVector"]), of_vectors)
        rebuilt = pa.StructArray.from_arrays(
            [_one(column) for column in vectors.columns],
            fields=list(vectors.schema),
            mask=_one(table["deletionVector"].is_null()),
        )
        table = table.set_column(index, "deletionVector", rebuilt)
    return _with_columns(table, found)


def _parts_of(structs: pa.ChunkedArray) -> pa.Table:
    """Return each field of the structs as a column."""
    whole = _one(structs)
    return pa.Table.from_arrays(whole.flatten(), schema=pa.schema(list(whole.type)))


def _with_columns(table: pa.Table, found: dict[str, dict[int, bytes]]) -> pa.Table:
    """Add a column for each field; if the column exists, fill in the missing values."""
    for key, texts in sorted(found.items()):
        column = _from_texts([texts.get(row) for row in range(table.num_rows)])
        if key in table.column_names:
            index = table.schema.get_field_index(key)
            merged = _merged(column, table[key], texts)
            table = table.set_column(index, pa.field(key, merged.type), merged)
        else:
            table = table.append_column(key, column)
    return table


def _from_texts(texts: list[bytes | None]) -> pa.Array:
    """Parse JSON texts, and return the values in a type that can hold all of them."""
    try:
        values = [None if text is None else msgspec.json.decode(text) for text in texts]
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return pa.array([_text(text) for text in texts], pa.string())
    return _inferred(values, texts)


def _text(text: bytes | None) -> str | None:
    return None if text is None or text == b"null" else text.decode(errors="replace")


def _inferred(values: list[Any], texts: list[bytes | None] | None = None) -> pa.Array:
    """Return the values in a type that can hold all of them, or else their JSON texts."""
    try:
        column = pa.array(values)
        if _is_storable(column.type):
            return column
    except (pa.ArrowException, OverflowError, UnicodeError):
        # One field with values of several types: Parquet has no such column, so it stays text.
        pass
    if texts is None:
        texts = [msgspec.json.encode(value) for value in values]
    return pa.array([_text(text) for text in texts], pa.string())


def _is_storable(kind: pa.DataType) -> bool:
    """Return True if Parquet has the type: it has no struct without fields."""
    if pa.types.is_struct(kind) and not kind.num_fields:
        return False
    return all(_is_storable(kind.field(index).type) for index in range(kind.num_fields))


def _merged(ours: pa.Array, theirs: pa.ChunkedArray, texts: dict[int, bytes]) -> pa.ChunkedArray:
    """Return the commits' values of a field, and the old checkpoint's values for other rows."""
    name = "field"
    schemas = [pa.schema([pa.field(name, each.type)]) for each in (ours, theirs)]
    try:
        both = pa.unify_schemas(schemas, promote_options="permissive").field(name).type
        return pc.coalesce(_one(_cast(pa.chunked_array([ours]), both)), _one(_cast(theirs, both)))
    except pa.ArrowException:
        # The field has had values of several types over time. Text in the old checkpoint is
        # kept unchanged: it may be the JSON text of such values.
        is_text = pa.types.is_string(theirs.type) or pa.types.is_large_string(theirs.type)
        old = arrow_versions.to_rows(theirs)
        return pa.array(
            [
                _text(texts[row])
                if row in texts
                else (value if is_text or value is None else msgspec.json.encode(value).decode())
                for row, value in enumerate(old)
            ],
            pa.string(),
        )


def _cast(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """Cast the column to the wider type; a struct may lack some of its fields."""
    if column.type == kind:
        return column
    alone = pa.table({"field": column})
    wider = pa.schema([pa.field("field", kind)]).empty_table()
    return pa.concat_tables([wider, alone], promote_options="permissive")["field"]


def _with_statistics(adds: pa.Table, snapshot: Snapshot) -> pa.Table:
    """Convert statistics and partition values to the forms that the table's properties require."""
    metadata = snapshot.metadata
    configuration = metadata.configuration
    if "stats_parsed" in adds.column_names:
        text = stats.format_stats(adds["stats_parsed"])
        index = adds.schema.get_field_index("stats")
        adds = adds.set_column(index, "stats", pc.coalesce(adds["stats"], text))
    # Commit lines may have the typed forms, too, in whatever types their JSON has.
    typed_forms = ("stats_parsed", "partitionValues_parsed")
    adds = adds.drop_columns([name for name in typed_forms if name in adds.column_names])
    if properties.writes_stats_as_struct(configuration):
        kind = stats_type(
            metadata.schema_string,
            configuration,
            metadata.partition_columns,
            tight_bounds="deletionVectors" in snapshot.protocol.features,
        )
        adds = adds.append_column("stats_parsed", stats.parse_stats(adds["stats"], kind))
        typed = partition_type(metadata.schema_string, metadata.partition_columns)
        if typed is not None:
            values = parse_partition_values(_one(adds["partitionValues"]), typed)
            adds = adds.append_column("partitionValues_parsed", values)
    if not properties.writes_stats_as_json(configuration):
        adds = adds.drop_columns(["stats"])
    return adds


def _one(column: pa.ChunkedArray) -> Any:
    return column.combine_chunks()


def _sidecars(
    tables: dict[str, pa.Table],
    codec: str,
    now_ms: int,
    uniques: Iterator[str],
    sidecar_rows: int,
) -> tuple[list[CheckpointFile], list[Sidecar]]:
    written, named = [], []
    adds, removes = tables["add"], tables["remove"]
    parts = [{"add": part, "remove": removes.slice(0, 0)} for part in _slices(adds, sidecar_rows)]
    parts += [{"add": adds.slice(0, 0), "remove": part} for part in _slices(removes, sidecar_rows)]
    if len(parts) == 2 and adds.num_rows + removes.num_rows <= sidecar_rows:
        parts = [tables]
    for part in parts:
        name = f"{next(uniques)}.parquet"
        body = _parquet([], part, codec, v2=False)
        written.append(CheckpointFile(paths.sidecar(name), body))
        named.append(Sidecar(name, len(body), now_ms))
    return written, named


def _slices(table: pa.Table, rows: int) -> list[pa.Table]:
    return [table.slice(start, rows) for start in range(0, table.num_rows, rows)]


def _parquet(few: Sequence[Action], tables: dict[str, pa.Table], codec: str, *, v2: bool) -> bytes:
    """Return one Parquet file with these actions, one per row."""
    small = {
        name: [
            actions.as_json(action) for action in few if actions.ACTION_NAMES[type(action)] == name
        ]
        for name in _SMALL
        if few and (v2 or name not in _V2_ONLY)
    }
    columns = {name: _struct(values, _SMALL[name]) for name, values in small.items()}
    types = {name: column.type for name, column in columns.items()}
    types |= {name: _row_type(table) for name, table in tables.items()}
    schema = pa.schema([pa.field(name, types[name]) for name in _ORDER if name in types])
    sink = io.BytesIO()
    with pq.ParquetWriter(sink, schema, compression=codec, write_statistics=True) as writer:
        if few:
            total = sum(len(column) for column in columns.values())
            writer.write_table(_spread(columns, schema, total))
        for name, table in tables.items():
            for start in range(0, table.num_rows, ROW_GROUP_ROWS):
                part = table.slice(start, ROW_GROUP_ROWS).combine_chunks()
                rows = pa.StructArray.from_arrays(
                    [_one(column) for column in part.columns], fields=list(types[name])
                )
                writer.write_table(_spread({name: rows}, schema, len(rows)))
    return sink.getvalue()


_ORDER = (
    "txn",
    "add",
    "remove",
    "metaData",
    "protocol",
    "domainMetadata",
    "checkpointMetadata",
    "sidecar",
)


def _row_type(table: pa.Table) -> pa.StructType:
    return pa.struct([pa.field(field.name, field.type) for field in table.schema])


def _struct(values: Sequence[dict[str, Any] | None], known: pa.StructType) -> pa.StructArray:
    """Return the values as structs of the known type, with an extra field for each unknown one."""
    names = {field.name for field in known}
    extra = sorted({key for value in values for key in value or {}} - names)

    def each(name: str) -> list[Any]:
        return [None if value is None else value.get(name) for value in values]

    children = {field.name: _known(each(field.name), field.type) for field in known}
    children |= {key: _inferred(each(key)) for key in extra}
    return pa.StructArray.from_arrays(
        list(children.values()),
        fields=[pa.field(name, child.type) for name, child in children.items()],
        mask=pa.array([value is None for value in values], pa.bool_()),
    )


def _known(values: list[Any], kind: pa.DataType) -> pa.Array:
    if pa.types.is_struct(kind):
        return _struct(values, kind)
    if pa.types.is_map(kind):
        values = [None if value is None else list(value.items()) for value in values]
    return pa.array(values, kind)


def _spread(columns: dict[str, pa.StructArray], schema: pa.Schema, total: int) -> pa.Table:
    """Stack the columns, so that each row has one action and nulls in the other columns."""
    arrays = []
    done = 0
    place = {}
    for name in columns:
        place[name] = done
        done += len(columns[name])
    for field in schema:
        values = columns.get(field.name)
        if values is None or not len(values):
            arrays.append(pa.nulls(total, field.type))
            continue
        before = place[field.name]
        parts = [
            pa.nulls(before, field.type),
            values,
            pa.nulls(total - before - len(values), field.type),
        ]
        arrays.append(pa.concat_arrays(parts))
    return pa.Table.from_arrays(arrays, schema=schema)
