"""Removes from log files what binds a table to its catalog; every other byte stays.

The log of a managed table tells readers to ask its catalog. A copy of that log at another place
has no catalog. So the feature ``catalogManaged`` and the catalog's properties are removed from
every file that states them: commits, compacted logs and checkpoints. ``vacuumProtocolCheck`` goes
with the feature that requires it: nothing in a log depends on it, and delta-rs doesn't read tables
that have it. What is left is a valid protocol: versions 3 and 7 with the other features. In-commit
timestamps stay, since times of versions follow from them.

The same bytes always give the same bytes. So it doesn't matter which process removes it, nor
whether a commit was published when it was read.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakeferry.errors import CorruptLog
from lakeferry.log.actions import Protocol
from lakeferry.log.features import (
    CATALOG_PROPERTIES,
    GONE_WITH_CATALOG,
    MANAGED,
    TABLE_ID_PROPERTY,
)
from lakeferry.log.rewrite.row_rewrite import child_column, rewrite_batches, with_fields

_FEATURE_LISTS = ("readerFeatures", "writerFeatures")
_FEATURES = GONE_WITH_CATALOG | {MANAGED}
_TRACES = (MANAGED.encode(), TABLE_ID_PROPERTY.encode(), b"\\u")
"""One of these is in every line that has to change; an escape may spell any of them."""
_COLUMNS = ("protocol", "metaData")
_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])


def without_catalog(protocol: Protocol) -> Protocol:
    """Return a protocol without the features of managed tables."""
    if MANAGED not in protocol.features:
        return protocol
    return replace(
        protocol,
        reader_features=_others(protocol.reader_features),
        writer_features=_others(protocol.writer_features),
        raw=None,
    )


def remove_catalog(data: bytes, path: str) -> bytes:
    """Return a log file for readers without the table's catalog; often the same bytes.

    ``path`` tells JSON from Parquet. Sidecars have no protocol, so they don't change.
    """
    try:
        return _parquet(data) if path.endswith(".parquet") else _lines(data)
    except CorruptLog as broken:
        broken.fields.setdefault("path", path)
        raise


def _others(names: tuple[str, ...] | None) -> tuple[str, ...] | None:
    return None if names is None else tuple(name for name in names if name not in _FEATURES)


def _lines(data: bytes) -> bytes:
    if not any(trace in data for trace in _TRACES):
        return data
    return b"\n".join(map(_line, data.split(b"\n")))


def _line(line: bytes) -> bytes:
    if not any(trace in line for trace in _TRACES):
        return line
    try:
        actions = _OBJECT.decode(line)
        changed = {
            name: change(_OBJECT.decode(value))
            for name, change in (("protocol", _protocol), ("metaData", _metadata))
            if (value := actions.get(name)) is not None
        }
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        # Readers refuse such a line, unless it is provenance or an unknown action.
        return line
    new = {name: value for name, value in changed.items() if value is not None}
    if not new:
        return line
    end = line[len(line.rstrip()) :]
    return msgspec.json.encode({**actions, **new}) + end


def _protocol(fields: Mapping[str, msgspec.Raw]) -> dict[str, Any] | None:
    """Return the fields of a changed protocol; ``None`` if it stays."""
    named = [name for name in _FEATURE_LISTS if name in fields]
    lists = {name: msgspec.json.decode(fields[name], type=list[str] | None) for name in named}
    if not any(MANAGED in (names or ()) for names in lists.values()):
        return None
    kept = {
        name: [feature for feature in names if feature not in _FEATURES]
        for name, names in lists.items()
        if names is not None
    }
    return {**fields, **kept}


def _metadata(fields: Mapping[str, msgspec.Raw]) -> dict[str, Any] | None:
    """Return the fields of changed metadata; ``None`` if they stay."""
    name = "configuration"
    if name not in fields:
        return None
    old = msgspec.json.decode(fields[name], type=dict[str, msgspec.Raw] | None) or {}
    kept = {key: value for key, value in old.items() if key not in CATALOG_PROPERTIES}
    return {**fields, name: kept} if kept.keys() != old.keys() else None


def _parquet(data: bytes) -> bytes:
    return rewrite_batches(data, _batch) if _has_traces(data) else data


def _has_traces(data: bytes) -> bool:
    """Return whether a file has to change; reads only two of its columns."""
    try:
        file = pq.ParquetFile(io.BytesIO(data))
        names = [name for name in _COLUMNS if name in file.schema_arrow.names]
        batches = file.iter_batches(columns=names) if names else ()
        return any(_batch(batch) is not batch for batch in batches)
    except (pa.ArrowException, OSError) as broken:
        raise CorruptLog("a checkpoint can't be read", cause=str(broken)) from broken


def _batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows of a checkpoint without the catalog; the same value if nothing changes."""
    columns = [
        _column(column, kind.name) for column, kind in zip(batch.columns, batch.schema, strict=True)
    ]
    if all(new is old for new, old in zip(columns, batch.columns, strict=True)):
        return batch
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def _column(column: pa.Array, name: str) -> pa.Array:
    if name not in _COLUMNS:
        return column
    present = [index for index, valid in enumerate(pc.is_valid(column).to_pylist()) if valid]
    if not present:
        return column
    if name == "metaData":
        return _changed(
            column, ("configuration",), present, lambda one: one[0] not in CATALOG_PROPERTIES
        )
    named = [field for field in _FEATURE_LISTS if field in cast(pa.StructType, column.type).names]
    lists = [child_column(column, field).to_pylist() for field in named]
    managed = [index for index in present if any(MANAGED in (one[index] or ()) for one in lists)]
    return _changed(column, named, managed, lambda feature: feature not in _FEATURES)


def _changed(
    column: pa.StructArray, fields: Sequence[str], rows: Sequence[int], keeps: Callable[[Any], bool]
) -> pa.StructArray:
    """Return actions without some items of their lists or maps, in some rows."""
    new: dict[str, pa.Array] = {}
    for field in fields if rows else ():
        if field not in cast(pa.StructType, column.type).names:
            continue
        old = child_column(column, field)
        values = old.to_pylist()
        for index in rows:
            if values[index] is not None:
                values[index] = [item for item in values[index] if keeps(item)]
        made = pa.array(values, old.type)
        if not made.equals(old):
            new[field] = made
    return with_fields(column, new) if new else column
