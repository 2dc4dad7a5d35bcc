"""Makes the files of a snapshot's checkpoint, classic or V2.

Implements the writing side of the protocol's "Checkpoints";
:mod:`lakeferry.log.checkpoint_rows` makes the rows about files. The few other actions are in the
first row group, so a reader that needs only the protocol reads a few hundred bytes.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from lakeferry.log import actions, features, file_actions, paths, properties
from lakeferry.log.actions import Action, CheckpointMetadata, Sidecar
from lakeferry.log.checkpoint_rows import RowsToWrite, as_one_array, inferred_values
from lakeferry.log.last_checkpoint import Hint
from lakeferry.log.paths import LogFileKind
from lakeferry.log.replay import FileTable, Snapshot

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
_V2_ONLY = ("checkpointMetadata", "sidecar")


@dataclass(frozen=True, slots=True)
class CheckpointFile:
    """One file to write."""

    path: str
    body: bytes


@dataclass(frozen=True, slots=True)
class CheckpointPlan:
    """The files of a checkpoint in write order: the last one completes the checkpoint."""

    snapshot: Snapshot
    """The version; its tables of files may be empty."""
    kind: LogFileKind
    files: tuple[CheckpointFile, ...]
    hint: Hint
    num_files: int
    size_bytes: int
    """Number and total size of the version's live files."""


def kind_for(snapshot: Snapshot) -> LogFileKind:
    """Return which kind of checkpoint the table asks for."""
    if "v2Checkpoint" in snapshot.protocol.features and properties.wants_v2_checkpoints(
        snapshot.metadata.configuration
    ):
        return LogFileKind.V2
    return LogFileKind.CLASSIC


def plan_checkpoint(
    snapshot: Snapshot,
    tables: Iterable[FileTable],
    now_ms: int,
    uniques: Iterator[str],
    *,
    sidecar_rows: int = SIDECAR_ROWS,
) -> CheckpointPlan:
    """Return the checkpoint of a version. ``uniques`` returns unique names.

    ``tables`` have its file actions, those of ``snapshot`` aren't used. Memory holds a row group
    of them at a time, and the file's bytes. Raises :class:`UnevenRows` if their columns differ.
    """
    # Whether a managed table's catalog is asked is for whoever puts the files to check.
    features.check_writable(snapshot.protocol, asks_catalog=True)
    rows = RowsToWrite(snapshot, tables, now_ms)
    few = _small_actions(snapshot)
    codec = _codec(snapshot)
    kind = kind_for(snapshot)
    if kind is LogFileKind.CLASSIC:
        body = _parquet(few, rows.types, rows.groups(), codec, v2=False)
        written = [CheckpointFile(paths.classic_checkpoint(snapshot.version), body)]
    else:
        written, sidecars = _sidecars(rows, codec, now_ms, uniques, sidecar_rows)
        few = [CheckpointMetadata(snapshot.version, {}), *few, *sidecars]
        top = paths.v2_checkpoint(snapshot.version, next(uniques))
        # delta-spark expects the columns of file actions even if all of these are in sidecars.
        written.append(CheckpointFile(top, _parquet(few, rows.types, (), codec, v2=True)))
    hint = Hint(
        snapshot.version,
        len(few) + rows.count,
        size_in_bytes=sum(len(file.body) for file in written),
        num_of_add_files=rows.num_files,
    )
    return CheckpointPlan(snapshot, kind, tuple(written), hint, rows.num_files, rows.size_bytes)


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


def _sidecars(
    rows: RowsToWrite,
    codec: str,
    now_ms: int,
    uniques: Iterator[str],
    sidecar_rows: int,
) -> tuple[list[CheckpointFile], list[Sidecar]]:
    written, named = [], []
    numbered = _numbered(rows.groups(), sidecar_rows)
    for _, parts in groupby(numbered, key=itemgetter(0)):
        name = f"{next(uniques)}.parquet"
        body = _parquet([], rows.types, (part for _, part in parts), codec, v2=False)
        written.append(CheckpointFile(paths.sidecar(name), body))
        named.append(Sidecar(name, len(body), now_ms))
    return written, named


def _numbered(groups: Iterable[FileTable], sidecar_rows: int) -> Iterator[tuple[int, FileTable]]:
    """Yield row groups, divided where a sidecar is full, each with the number of its sidecar."""
    done = 0
    for name, table in groups:
        start = 0
        while start < table.num_rows:
            part = table.slice(start, sidecar_rows - done % sidecar_rows)
            yield done // sidecar_rows, (name, part)
            start += part.num_rows
            done += part.num_rows


def _parquet(
    few: Sequence[Action],
    row_types: Mapping[str, pa.StructType],
    groups: Iterable[FileTable],
    codec: str,
    *,
    v2: bool,
) -> bytes:
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
    types |= row_types
    schema = pa.schema([pa.field(name, types[name]) for name in _ORDER if name in types])
    sink = io.BytesIO()
    with pq.ParquetWriter(sink, schema, compression=codec, write_statistics=True) as writer:
        if few:
            total = sum(len(column) for column in columns.values())
            writer.write_table(_spread(columns, schema, total))
        for name, table in groups:
            if table.num_rows:
                rows = pa.StructArray.from_arrays(
                    [as_one_array(column) for column in table.columns], fields=list(types[name])
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


def _struct(values: Sequence[dict[str, Any] | None], known: pa.StructType) -> pa.StructArray:
    """Return the values as structs of the known type, with an extra field for each unknown one."""
    names = {field.name for field in known}
    extra = sorted({key for value in values for key in value or {}} - names)

    def each(name: str) -> list[Any]:
        return [None if value is None else value.get(name) for value in values]

    children = {field.name: _known(each(field.name), field.type) for field in known}
    children |= {key: inferred_values(each(key)) for key in extra}
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
        if len(values) == total:
            arrays.append(values)
            continue
        before = place[field.name]
        parts = [
            pa.nulls(before, field.type),
            values,
            pa.nulls(total - before - len(values), field.type),
        ]
        arrays.append(pa.concat_arrays(parts))
    return pa.Table.from_arrays(arrays, schema=schema)
