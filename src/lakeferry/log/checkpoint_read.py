"""Reads checkpoints: classic, multi-part and V2, in Parquet or JSON, with sidecars.

Implements the reading side of the protocol's "Checkpoints". A checkpoint keeps
its own schema: fields of file actions that we don't know become further
columns. ``stats_parsed`` is read only where the text of the statistics isn't
there, and ``partitionValues_parsed`` never: both say again what other columns
say, and are the largest part of many checkpoints.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from lakeferry.errors import CorruptLog
from lakeferry.log import actions, decoding, files, parquet
from lakeferry.log.actions import Action
from lakeferry.log.latest_actions import LatestActions
from lakeferry.log.lines import ORDER, Lines

BATCH_ROWS = 65_536
# The field of each action that is never null where the action is there.
_REQUIRED = {
    "protocol": "minReaderVersion",
    "metaData": "id",
    "txn": "appId",
    "domainMetadata": "domain",
    "sidecar": "path",
    "checkpointMetadata": "version",
    "add": "path",
    "remove": "path",
}
SMALL_ACTIONS = ("protocol", "metaData", "txn", "domainMetadata", "sidecar", "checkpointMetadata")
PROTOCOL_AND_METADATA = ("protocol", "metaData")


@dataclass(slots=True)
class Rows(LatestActions):
    """What one or more files of a checkpoint hold. Tables of file actions come as batches."""

    adds: list[pa.RecordBatch] = field(default_factory=list)
    removes: list[pa.RecordBatch] = field(default_factory=list)
    path: str | None = None
    """The file that rows were read from last, for the message if they don't fit others."""
    unfolded_bytes: int = 0
    """How much a batch of a Parquet file came to."""

    def extend(self, later: Rows) -> None:
        """Take in what further rows of the same checkpoint hold."""
        self.absorb(later)
        self.adds += later.adds
        self.removes += later.removes
        self.path = later.path or self.path


def read_json(rows: Rows, data: bytes, path: str) -> None:
    """Take in the top-level file of a V2 checkpoint that is written as JSON."""
    lines = Lines()
    # As a compacted log, a checkpoint says one thing of each thing.
    lines.read_compacted(data, path)
    rows.absorb(lines)
    rows.path = path
    rows.adds += lines.adds.drop_columns([ORDER.name]).to_batches()
    rows.removes += lines.removes.drop_columns([ORDER.name]).to_batches()


def read_parquet(
    rows: Rows,
    source: bytes | io.RawIOBase,
    path: str,
    *,
    wanted: Sequence[str],
    row_groups: Sequence[int] | None = None,
) -> None:
    """Take in the actions named in ``wanted`` from a Parquet file of a checkpoint.

    ``row_groups`` limits it to those; ``None`` is all.
    """
    for part in parquet_rows(source, path, wanted=wanted, row_groups=row_groups):
        rows.extend(part)


def parquet_rows(
    source: bytes | io.RawIOBase,
    path: str,
    *,
    wanted: Sequence[str],
    row_groups: Sequence[int] | None = None,
    batch_rows: int = BATCH_ROWS,
) -> Iterator[Rows]:
    """Yield the actions named in ``wanted`` from a checkpoint's Parquet file, a batch at a time."""
    opened = pa.BufferReader(source) if isinstance(source, bytes) else source
    try:
        parquet_file = pq.ParquetFile(
            opened, page_checksum_verification=True, coerce_int96_timestamp_unit="us"
        )
        columns = columns_to_read(parquet_file.schema_arrow, source, wanted)
        groups = range(parquet_file.num_row_groups) if row_groups is None else row_groups
        if not columns:
            return
        for batch in parquet_file.iter_batches(
            batch_rows, row_groups=list(groups), columns=columns
        ):
            # Parquet doesn't promise that its strings are UTF-8, and Arrow doesn't look.
            batch.validate(full=True)
            rows = Rows(path=path, unfolded_bytes=batch.nbytes)
            _take(rows, _with_instants(batch, parquet_file))
            del batch
            yield rows
    except CorruptLog as broken:
        raise corrupt(path, str(broken)) from broken
    except (pa.ArrowException, OSError, UnicodeError, ValueError) as broken:
        raise corrupt(path, str(broken)) from broken


def corrupt(path: str, why: str) -> CorruptLog:
    """Return the error for a checkpoint file that can't be read."""
    return CorruptLog(
        f"checkpoint file {path} can't be read",
        cause=why,
        remedy="restore that checkpoint, or the commits before it, from a copy",
        path=path,
    )


def columns_to_read(
    schema: pa.Schema, source: bytes | io.RawIOBase, wanted: Sequence[str]
) -> list[str]:
    """Return the columns of a checkpoint's Parquet file to read for the actions ``wanted``.

    Of file actions these are all fields but the ones that say again what others say.
    """
    chosen = []
    for name in wanted:
        index = schema.get_field_index(name)
        if index < 0:
            continue
        kind = schema.field(index).type
        if not pa.types.is_struct(kind):
            raise CorruptLog(f"its column {name} isn't a struct")
        if name not in files.SCHEMAS:
            chosen.append(name)
            continue
        fields = [child.name for child in kind if child.name != "partitionValues_parsed"]
        if "stats_parsed" in fields and not _stats_text_is_missing(parquet.footer_of(source)):
            fields.remove("stats_parsed")
        chosen += [f"{name}.{field}" for field in fields]
    return chosen


def _stats_text_is_missing(footer: parquet.Footer) -> bool:
    """Tell whether some row has parsed statistics and no text of them, by the file's own counts."""
    for chunks in footer.row_groups:
        filled: dict[str, int] = {}
        for chunk in chunks:
            name = ".".join(chunk.path)
            if name in ("add.stats", "add.stats_parsed.numRecords"):
                if chunk.null_count is None:
                    return True
                filled[name] = chunk.num_values - chunk.null_count
        if filled.get("add.stats_parsed.numRecords", 0) > filled.get("add.stats", 0):
            return True
    return False


def _with_instants(batch: pa.RecordBatch, file: pq.ParquetFile) -> pa.RecordBatch:
    """Return the batch with the timestamps of parsed statistics as the instants they are.

    Spark writes them as INT96, which Arrow takes for local time.
    """
    kinds = {field.name: field.type for field in batch.schema}
    if "add" not in kinds or kinds["add"].get_field_index("stats_parsed") < 0:
        return batch
    meant = parquet.schema_of(file).field("add").type
    fields = [meant.field(child.name) for child in kinds["add"]]
    schema = pa.schema(
        [
            field.with_type(pa.struct(fields)) if field.name == "add" else field
            for field in batch.schema
        ]
    )
    return batch.cast(schema)


def _take(rows: Rows, batch: pa.RecordBatch) -> None:
    for name in batch.schema.names:
        column = _present(batch.column(name), name)
        if not len(column):
            continue
        if name in files.SCHEMAS:
            target = rows.adds if name == "add" else rows.removes
            target.append(files.conform(column, files.SCHEMAS[name], whole_vectors=True))
        else:
            for value in column.to_pylist(maps_as_pydicts="lossy"):
                encoded = msgspec.json.encode(_without_nulls(value))
                action = decoding.decode_value(name, encoded)
                check_agrees(rows, action)
                rows.keep(action)


def check_agrees(known: LatestActions, action: Action) -> None:
    """Refuse an action that contradicts what the same checkpoint says elsewhere."""
    before = known.known(action)
    if before is not None and actions.as_json(before) != actions.as_json(action):
        raise CorruptLog(f"it has two actions {type(action).__name__} that contradict each other")


def _present(column: pa.StructArray, name: str) -> pa.StructArray:
    """Return the rows in which the action is there."""
    required = _REQUIRED[name]
    position = column.type.get_field_index(required)
    if position < 0:
        raise CorruptLog(f"its column {name} has no field {required}")
    if column.null_count == len(column):
        return column[:0]
    found = column.filter(column.is_valid()) if column.null_count else column
    marker = found.flatten()[position]
    if marker.null_count:
        # Some writers can't say that a struct is null and leave all of its fields null.
        empty = found.filter(marker.is_null())
        if any(child.null_count < len(child) for child in empty.flatten()):
            raise CorruptLog(f"an action {name} has no {required}")
        found = found.filter(marker.is_valid())
    return found


def _without_nulls(value: dict[str, Any]) -> dict[str, Any]:
    return {
        key: _without_nulls(item) if isinstance(item, dict) and key == "format" else item
        for key, item in value.items()
        if item is not None
    }
