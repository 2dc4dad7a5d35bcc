"""File actions as Arrow tables.

Implements the protocol's "Add File and Remove File" for actions of which there may be a million.
Columns have Delta's own field names. A table of file actions may have more columns than the
schemas here: unknown fields of a checkpoint keep their name and type, and :data:`RAW` is the
text of the commit line that a row was read from (null for rows from a checkpoint).

When two actions mean the same file is decided in :mod:`lakeferry.log.file_identity`.
"""

from __future__ import annotations

from functools import lru_cache
from typing import cast

import pyarrow as pa

STRING_MAP = pa.map_(pa.string(), pa.string())
DELETION_VECTOR = pa.struct(
    [
        pa.field("storageType", pa.string()),
        pa.field("pathOrInlineDv", pa.string()),
        pa.field("offset", pa.int32()),
        pa.field("sizeInBytes", pa.int32()),
        pa.field("cardinality", pa.int64()),
        pa.field("maxRowIndex", pa.int64()),
    ]
)
ADD = pa.schema(
    [
        pa.field("path", pa.string()),
        pa.field("partitionValues", STRING_MAP),
        pa.field("size", pa.int64()),
        pa.field("modificationTime", pa.int64()),
        pa.field("dataChange", pa.bool_()),
        pa.field("stats", pa.string()),
        pa.field("tags", STRING_MAP),
        pa.field("deletionVector", DELETION_VECTOR),
        pa.field("baseRowId", pa.int64()),
        pa.field("defaultRowCommitVersion", pa.int64()),
        pa.field("clusteringProvider", pa.string()),
    ]
)
REMOVE = pa.schema(
    [
        pa.field("path", pa.string()),
        pa.field("deletionTimestamp", pa.int64()),
        pa.field("dataChange", pa.bool_()),
        pa.field("extendedFileMetadata", pa.bool_()),
        pa.field("partitionValues", STRING_MAP),
        pa.field("size", pa.int64()),
        pa.field("stats", pa.string()),
        pa.field("tags", STRING_MAP),
        pa.field("deletionVector", DELETION_VECTOR),
        pa.field("baseRowId", pa.int64()),
        pa.field("defaultRowCommitVersion", pa.int64()),
    ]
)
RAW = pa.field("lakeferry:line", pa.large_binary())
"""The text of the commit line that a row was read from. No engine has a field of that name."""
SCHEMAS = {"add": ADD, "remove": REMOVE}


def as_removes(adds: pa.Table, now_ms: int, *, data_change: bool) -> pa.Table:
    """Return the actions that remove live files; all known fields are kept."""
    rows = adds.num_rows
    columns: dict[str, pa.Array | pa.ChunkedArray] = {}
    for column in REMOVE:
        if column.name == "deletionTimestamp":
            columns[column.name] = pa.array([now_ms] * rows, column.type)
        elif column.name == "dataChange":
            columns[column.name] = pa.array([data_change] * rows, column.type)
        elif column.name == "extendedFileMetadata":
            columns[column.name] = pa.array([True] * rows, column.type)
        elif column.name in adds.column_names:
            columns[column.name] = adds[column.name].cast(column.type)
        else:
            columns[column.name] = pa.nulls(rows, column.type)
    return pa.table(columns, schema=REMOVE)


def with_column(table: pa.Table, name: str, values: pa.Array) -> pa.Table:
    """Return a table with one column replaced."""
    return table.set_column(table.schema.get_field_index(name), name, values)


def conform(
    actions: pa.StructArray, schema: pa.Schema, *, whole_vectors: bool = False
) -> pa.RecordBatch:
    """Return a checkpoint's ``add`` or ``remove`` structs as columns, ``schema``'s first.

    Fields that the checkpoint lacks are null; unknown fields follow under their own names. With
    ``whole_vectors``, deletion vectors keep unknown fields, after the known ones. Rows must not
    be null.
    """
    kind = cast(pa.StructType, actions.type)
    children = dict(zip([field.name for field in kind], actions.flatten(), strict=True))
    columns: dict[str, pa.Array] = {}
    for field in schema:
        child = children.pop(field.name, None)
        wanted = field.type
        if whole_vectors and field.name == "deletionVector" and child is not None:
            wanted = _with_unknown(wanted, child.type)
        columns[field.name] = _as_type(child, wanted, len(actions))
    columns.update(children)
    return pa.RecordBatch.from_pydict(columns)


def _with_unknown(known: pa.StructType, found: pa.DataType) -> pa.StructType:
    if not pa.types.is_struct(found):
        return known
    return pa.struct([*known, *(field for field in found if known.get_field_index(field.name) < 0)])


def _as_type(column: pa.Array | None, wanted: pa.DataType, length: int) -> pa.Array:
    if column is None:
        return pa.nulls(length, wanted)
    if column.type == wanted:
        return column
    if pa.types.is_struct(wanted) and pa.types.is_struct(column.type):
        found = {field.name: index for index, field in enumerate(column.type)}
        flat = column.flatten()
        parts = [
            _as_type(flat[found[field.name]] if field.name in found else None, field.type, length)
            for field in wanted
        ]
        return pa.StructArray.from_arrays(parts, fields=list(wanted), mask=column.is_null())
    return column.cast(wanted)


def lean(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the batch with columns of only nulls sharing their memory with others.

    Most tables use few of an action's fields, and a million nulls take as much memory as a
    million values.
    """
    if len(batch) > _MOST_SHARED:
        return batch
    columns = [
        _nothing(column.type).slice(0, len(batch)) if column.null_count == len(batch) else column
        for column in batch.columns
    ]
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


_MOST_SHARED = 65_536


@lru_cache(maxsize=64)
def _nothing(kind: pa.DataType) -> pa.Array:
    return pa.nulls(_MOST_SHARED, kind)
