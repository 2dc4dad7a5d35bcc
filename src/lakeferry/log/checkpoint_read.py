"""Reads checkpoints: classic, multi-part and V2, in Parquet or JSON, with sidecars.

Implements the reading side of the protocol's "Checkpoints". A checkpoint keeps its own schema:
unknown fields of file actions become further columns. ``stats_parsed`` is read only if the text
of the statistics is missing, and ``partitionValues_parsed`` never: both repeat other columns,
and are the largest part of many checkpoints.
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
from lakeferry.log import actions, arrow_versions, decoding, file_actions, parquet
from lakeferry.log.actions import Action
from lakeferry.log.latest_actions import LatestActions
from lakeferry.log.lines import ORDER, Lines

BATCH_ROWS = 65_536
# The field of each action that is never null if the action is there.
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
    """The content of one or more files of a checkpoint; file actions are in batches."""

    adds: list[pa.RecordBatch] = field(default_factory=list)
    removes: list[pa.RecordBatch] = field(default_factory=list)
    path: str | None = None
    """The last file that rows were read from, for an error message if they don't fit others."""
    unfolded_bytes: int = 0
    """The size of one batch of a Parquet file in memory."""
    share: float = 1.0
    """Which part of the rows of its file this is."""

    def extend(self, later: Rows) -> None:
        """Add the content of further rows of the same checkpoint."""
        self.absorb(later)
        self.adds += later.adds
        self.removes += later.removes
        self.path = later.path or self.path


def read_json(rows: Rows, data: bytes, path: str) -> None:
    """Add the top-level file of a V2 checkpoint in JSON."""
    lines = Lines()
    # Like a compacted log, a checkpoint has only one action for each key.
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
    """Add the actions named in ``wanted`` from a Parquet file of a checkpoint.

    ``row_groups`` are the row groups to read; ``None`` means all.
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
    """Yield the actions named in ``wanted`` from a checkpoint's Parquet file, in batches."""
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
            # Parquet doesn't guarantee that its strings are UTF-8, and Arrow doesn't check.
            batch.validate(full=True)
            share = batch.num_rows / max(1, parquet_file.metadata.num_rows)
            rows = Rows(path=path, unfolded_bytes=batch.nbytes, share=share)
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

    For file actions these are all fields except those that repeat others.
    """
    chosen = []
    for name in wanted:
        index = schema.get_field_index(name)
        if index < 0:
            continue
        kind = schema.field(index).type
        if not pa.types.is_struct(kind):
            raise CorruptLog(f"its column {name} isn't a struct")
        if name not in file_actions.SCHEMAS:
            chosen.append(name)
            continue
        fields = [child.name for child in kind if child.name != "partitionValues_parsed"]
        if "stats_parsed" in fields and not _stats_text_is_missing(parquet.footer_of(source)):
            fields.remove("stats_parsed")
        chosen += [f"{name}.{field}" for field in fields]
    return chosen


def _stats_text_is_missing(footer: parquet.Footer) -> bool:
    """Return True if a row may have parsed statistics but no text, by the file's own counts."""
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
    """Return the batch with the timestamps of parsed statistics as instants.

    Spark writes them as INT96, which Arrow reads as local time.
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
        if name in file_actions.SCHEMAS:
            target = rows.adds if name == "add" else rows.removes
            target.append(
                file_actions.conform(column, file_actions.SCHEMAS[name], whole_vectors=True)
            )
        else:
            for value in arrow_versions.to_rows(column):
                encoded = msgspec.json.encode(_without_nulls(value))
                action = decoding.decode_value(name, encoded)
                check_agrees(rows, action)
                rows.keep(action)


def check_agrees(known: LatestActions, action: Action) -> None:
    """Raise an error if an action contradicts another one of the same checkpoint."""
    before = known.known(action)
    if before is not None and actions.as_json(before) != actions.as_json(action):
        raise CorruptLog(f"it has two actions {type(action).__name__} that contradict each other")


def _present(column: pa.StructArray, name: str) -> pa.StructArray:
    """Return the rows that have the action."""
    required = _REQUIRED[name]
    position = column.type.get_field_index(required)
    if position < 0:
        raise CorruptLog(f"its column {name} has no field {required}")
    if column.null_count == len(column):
        return column[:0]
    found = column.filter(column.is_valid()) if column.null_count else column
    marker = found.flatten()[position]
    if marker.null_count:
        # Some writers can't make a struct null; they make all of its fields null.
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
