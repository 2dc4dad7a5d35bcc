"""Decides which columns have statistics, and the types of parsed statistics and partition values.

Implements the parts of the protocol's "Checkpoint Schema" that concern ``add.stats_parsed`` and
``add.partitionValues_parsed``. The types are those that delta-spark gives them:

* names are physical names, partition columns have no statistics, and only
  indexed columns have any (``delta.dataSkippingStatsColumns``, or the first
  ``delta.dataSkippingNumIndexedCols`` leaves);
* numbers, dates, timestamps and strings of the default collation have
  ``minValues`` and ``maxValues``; every leaf has a ``nullCount``, and an array
  or a map is one leaf;
* ``tightBounds`` is there on tables that support deletion vectors.

An invalid schema is :class:`~lakeferry.errors.CorruptLog`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from lakeferry.errors import CorruptLog
from lakeferry.log.schema_text import built_schema, primitive_type

DEFAULT_INDEXED_COLUMNS = 32
_WITHOUT_BOUNDS = (pa.bool_(), pa.binary())


@dataclass(frozen=True, slots=True)
class _Column:
    """A column of a table's schema: a struct has ``children``, other columns a type or ``None``."""

    name: str
    physical_name: str
    children: tuple[_Column, ...] | None
    type: pa.DataType | None
    bounds: bool


def _columns(schema_string: str) -> tuple[_Column, ...]:
    return built_schema(
        schema_string, lambda schema: tuple(_column(field) for field in schema["fields"])
    )


def _column(field: Mapping[str, Any]) -> _Column:
    name, kind, metadata = field["name"], field["type"], field.get("metadata") or {}
    if not isinstance(name, str):
        raise ValueError(f"{name!r} isn't a column's name")
    physical = metadata.get("delta.columnMapping.physicalName", name)
    if isinstance(kind, dict) and kind["type"] == "struct":
        children = tuple(_column(child) for child in kind["fields"])
        return _Column(name, physical, children, None, False)
    found = primitive_type(kind) if isinstance(kind, str) else None
    # Bounds of a collated string follow its collation, which we don't implement.
    collated = name in metadata.get("__COLLATIONS", {})
    bounds = found is not None and found not in _WITHOUT_BOUNDS and not collated
    return _Column(name, physical, None, found, bounds)


def stats_type(
    schema_string: str,
    configuration: Mapping[str, str],
    partition_columns: Iterable[str] = (),
    *,
    tight_bounds: bool = False,
) -> pa.StructType:
    """Return the type of ``add.stats_parsed``.

    Set ``tight_bounds`` if the table supports deletion vectors.
    """
    partitions = frozenset(partition_columns)
    data = [column for column in _columns(schema_string) if column.name not in partitions]
    indexed = _indexed(data, configuration)
    bounds = _project(indexed, lambda column: column.type if column.bounds else None)
    counts = _project(indexed, lambda _: pa.int64())
    fields = [pa.field("numRecords", pa.int64())]
    if bounds:
        fields += [pa.field(name, pa.struct(bounds)) for name in ("minValues", "maxValues")]
    if counts:
        fields.append(pa.field("nullCount", pa.struct(counts)))
    if tight_bounds:
        fields.append(pa.field("tightBounds", pa.bool_()))
    return pa.struct(fields)


def _project(
    columns: Sequence[_Column], leaf: Callable[[_Column], pa.DataType | None]
) -> list[pa.Field]:
    fields = []
    for column in columns:
        if column.children is None:
            kind = leaf(column)
        else:
            children = _project(column.children, leaf)
            kind = pa.struct(children) if children else None
        if kind is not None:
            fields.append(pa.field(column.physical_name, kind))
    return fields


def _indexed(columns: Sequence[_Column], configuration: Mapping[str, str]) -> Sequence[_Column]:
    named = configuration.get("delta.dataSkippingStatsColumns")
    if named is not None:
        return _named(columns, _column_paths(named))
    try:
        limit = int(configuration.get("delta.dataSkippingNumIndexedCols", DEFAULT_INDEXED_COLUMNS))
    except ValueError:
        limit = DEFAULT_INDEXED_COLUMNS
    return columns if limit < 0 else _first(columns, limit)[0]


def _first(columns: Sequence[_Column], limit: int) -> tuple[list[_Column], int]:
    kept: list[_Column] = []
    count = 0
    for column in columns:
        if count >= limit:
            break
        if column.children is None:
            count += 1
        else:
            children, leaves = _first(column.children, limit - count)
            column = _Column(column.name, column.physical_name, tuple(children), None, False)
            count += leaves
        kept.append(column)
    return kept, count


def _named(columns: Sequence[_Column], paths: Sequence[Sequence[str]]) -> list[_Column]:
    kept = []
    for column in columns:
        rests = [path[1:] for path in paths if path and path[0] == column.name.lower()]
        if not rests:
            continue
        if not any(rests):
            kept.append(column)
        elif column.children is not None:
            children = tuple(_named(column.children, rests))
            kept.append(_Column(column.name, column.physical_name, children, None, False))
    return kept


def _column_paths(text: str) -> list[list[str]]:
    """Return the columns of a list such as ``a.b, `with.dot` ``; names compare without case."""
    paths: list[list[str]] = [[""]]
    for quoted, separator, plain in re.findall(r"`((?:[^`]|``)*)`|([,.])|([^`,.]+)", text.lower()):
        if separator == ",":
            paths.append([""])
        elif separator == ".":
            paths[-1].append("")
        else:
            paths[-1][-1] += quoted.replace("``", "`") or plain.strip()
    return paths


def partition_type(schema_string: str, partition_columns: Iterable[str]) -> pa.StructType | None:
    """Return the type of ``add.partitionValues_parsed``; ``None`` without partition columns."""
    columns = {column.name: column for column in _columns(schema_string)}
    fields = []
    for name in partition_columns:
        column = columns.get(name)
        if column is None or column.children is not None:
            raise CorruptLog("the table's schema can't be read", cause=f"no column {name!r} in it")
        # A type without a typed form stays text.
        fields.append(pa.field(column.physical_name, column.type or pa.string()))
    return pa.struct(fields) if fields else None
