"""Renames the columns in a data file's footer to the names that users see.

Implements the reader's part of the protocol's "Column Mapping": the footer gets the names that
users see. Data read with the new footer has the table's columns, so projections and filters are
pushed down to the file as usual.

Statistics of ``float`` and ``double`` columns can be removed from the footer, too. They say
nothing about NaN: a column with the bounds 1 and 2 may contain it. A reader that trusts the
bounds would then select the wrong rows.

A column of the file that the table doesn't have any more gets a name that nobody requests: a new
column may have its old name by now.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from lakeferry.errors import CorruptLog
from lakeferry.log import thrift
from lakeferry.log.parquet import footer_range
from lakeferry.log.schema import Array, Column, Map, Struct, Type

_SCHEMA, _ROW_GROUPS = 2, 4  # in FileMetaData
_COLUMNS, _COLUMN_METADATA = 1, 3  # in RowGroup, and in ColumnChunk
_TYPE, _STATISTICS = 1, 12  # in ColumnMetaData
_FLOATS = (4, 5)
# In SchemaElement:
_REPETITION, _NAME, _CHILDREN, _FIELD_ID = 3, 4, 5, 9
_REPEATED = 2
_MAX_DEPTH = 100
_TAIL = 8


@dataclass(frozen=True, slots=True)
class _Node:
    """An element of a Parquet schema and its children."""

    name: thrift.Located
    field_id: int | None
    is_repeated: bool
    children: tuple[_Node, ...]


def served_footer(
    tail: bytes,
    size_bytes: int,
    table: Struct,
    mode: str | None,
    *,
    without_float_statistics: bool = False,
) -> tuple[int, bytes]:
    """Return where a file's footer begins, and the bytes that replace it to the end of the file.

    ``tail`` are the file's last bytes, including the whole footer. ``mode`` is ``name``, ``id``,
    or ``None`` if columns keep their names.
    """
    where = footer_range(tail, size_bytes)
    at = where.start - (size_bytes - len(tail))
    if at < 0:
        raise CorruptLog("a Parquet file can't be read", cause="its footer is incomplete")
    footer = tail[at:-_TAIL]
    found = thrift.decode_located(footer, _ROW_GROUPS if without_float_statistics else _SCHEMA)
    edits: list[tuple[int, int, bytes]] = []
    if mode is not None:
        root = _tree(found.get(_SCHEMA))
        edits += [
            (name.start, name.end, thrift.encode_bytes(replacement.encode()))
            for name, replacement in _renames(root.children, table.columns, mode)
        ]
    if without_float_statistics:
        edits += [
            (each.start, each.end, thrift.EMPTY_STRUCT)
            for each in _float_statistics(found.get(_ROW_GROUPS))
        ]
    pieces, end = [], 0
    for start, stop, replacement in sorted(edits):
        pieces += [footer[end:start], replacement]
        end = stop
    changed = b"".join([*pieces, footer[end:]])
    return where.start, changed + struct.pack("<I", len(changed)) + tail[-4:]


def _float_statistics(row_groups: Any) -> Iterator[thrift.LocatedStruct]:
    """Yield the statistics of each chunk of a float or double column."""
    try:
        for group in row_groups or ():
            for chunk in group[_COLUMNS]:
                # An encrypted column has its metadata elsewhere.
                known = chunk.get(_COLUMN_METADATA) or {}
                statistics = known.get(_STATISTICS)
                if statistics is not None and known[_TYPE] in _FLOATS:
                    if not isinstance(statistics, thrift.LocatedStruct):
                        raise TypeError("a column's statistics aren't a struct")
                    yield statistics
    except (AttributeError, KeyError, TypeError) as broken:
        raise CorruptLog("a Parquet footer can't be read", cause=repr(broken)) from broken


def _tree(elements: Any) -> _Node:
    """Return the schema's root from its elements, a flat list with parents first."""
    try:
        rest = iter(elements)
        return _node(rest, 0)
    except (AttributeError, KeyError, StopIteration, TypeError, ValueError) as broken:
        raise CorruptLog("a Parquet footer can't be read", cause=repr(broken)) from broken


def _node(rest: Iterator[dict[int, Any]], depth: int) -> _Node:
    if depth > _MAX_DEPTH:
        raise ValueError("its schema is nested too deeply")
    element = next(rest)
    # Each child consumes an element, so a count that is too large stops at the last element.
    children = [_node(rest, depth + 1) for _ in range(element.get(_CHILDREN) or 0)]
    name = element[_NAME]
    if not isinstance(name, thrift.Located):
        raise TypeError("a column has no name")
    is_repeated = element.get(_REPETITION) == _REPEATED
    return _Node(name, element.get(_FIELD_ID), is_repeated, tuple(children))


def _renames(
    nodes: Sequence[_Node], columns: Sequence[Column], mode: str
) -> Iterator[tuple[thrift.Located, str]]:
    if mode == "id":
        known: dict[Any, Column] = {each.field_id: each for each in columns}
    else:
        known = {each.physical_name.encode(): each for each in columns}
    names = {each.name for each in columns}
    for index, node in enumerate(nodes):
        found = known.get(bytes(node.name) if mode == "name" else node.field_id)
        if found is not None:
            yield node.name, found.name
            yield from _below(node, found.type, mode)
            continue
        unasked = f"dropped {index}"
        while unasked in names:
            unasked += "'"
        yield node.name, unasked


def _below(node: _Node, kind: Type, mode: str) -> Iterator[tuple[thrift.Located, str]]:
    if isinstance(kind, Struct):
        yield from _renames(node.children, kind.columns, mode)
    elif isinstance(kind, Array) and node.children:
        yield from _below(_element(node), kind.element, mode)
    elif isinstance(kind, Map) and node.children and len(node.children[0].children) == 2:
        key, value = node.children[0].children
        yield from _below(key, kind.key, mode)
        yield from _below(value, kind.value, mode)


def _element(node: _Node) -> _Node:
    """Return the element of a list: below the repeated group, or in old files that group itself."""
    repeated = node.children[0]
    if not repeated.is_repeated or len(repeated.children) != 1:
        return repeated
    if bytes(repeated.name) in (b"array", bytes(node.name) + b"_tuple"):
        return repeated
    return repeated.children[0]
