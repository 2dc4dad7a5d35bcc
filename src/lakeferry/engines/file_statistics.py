"""Computes the statistics of a file that is being written, as JSON for its ``add``.

Implements the writer's side of the protocol's "Per-file Statistics", as delta-spark writes them.
:func:`~lakeferry.log.stats_columns.stats_type` decides which columns have statistics; names are
those of the file.

Bounds always include all values: strings are cut to :data:`PREFIX_CHARACTERS`, and a cut largest
string gets a character that makes it larger than the original; instants are rounded outwards. If
no bound is understood by every reader, the column has none. Only bounds are kept, so memory
doesn't grow with the size of the file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from lakeferry.log import schema, stats
from lakeferry.log.actions import Metadata
from lakeferry.log.stats_columns import stats_type

PREFIX_CHARACTERS = 32
_LAST_ASCII, _LAST_CHARACTER = "\x7f", "\U0010ffff"
_MILLISECOND_US = 1_000
_PHYSICAL_NAME = "delta.columnMapping.physicalName"
_EPOCH = date(1970, 1, 1).toordinal()
_DAYS = range(date.min.toordinal() - _EPOCH, date.max.toordinal() - _EPOCH + 1)
_DAY_MS = 24 * 60 * 60 * 1_000


@dataclass(slots=True)
class _Leaf:
    """Statistics of one column so far."""

    has_bounds: bool
    nulls: int = 0
    least: Any = None
    greatest: Any = None


@dataclass(slots=True)
class _Node:
    """Statistics of a struct so far: its children's nodes and leaves, by name."""

    children: dict[str, _Node | _Leaf] = field(default_factory=dict)


class FileStatistics:
    """Collects the statistics of one file from its rows."""

    def __init__(self, metadata: Metadata, *, tight_bounds: bool = False) -> None:
        """Collect statistics of the columns that ``metadata`` selects.

        ``tight_bounds`` says whether the text states that its bounds are tight.
        """
        text = metadata.schema_string
        if schema.mapping_mode(metadata) is None:
            text = _without_physical_names(text)
        self._type = stats_type(
            text,
            metadata.configuration,
            metadata.partition_columns,
            tight_bounds=tight_bounds,
        )
        self._tight_bounds = tight_bounds
        self.num_rows = 0
        """Number of rows so far."""
        self._root = _node(_child(self._type, "nullCount"), _child(self._type, "minValues"))

    def see(self, batch: pa.RecordBatch) -> None:
        """Add some rows of the file."""
        self.num_rows += batch.num_rows
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        _see(self._root, columns, batch.num_rows)

    def text(self) -> str:
        """Return the statistics of all rows so far as JSON."""
        bounds = _child(self._type, "minValues")
        row = {
            "numRecords": self.num_rows,
            "minValues": _values(self._root, bounds, _lower),
            "maxValues": _values(self._root, bounds, _upper),
            "nullCount": _counts(self._root),
            "tightBounds": self._tight_bounds,
        }
        known = {each.name: row[each.name] for each in self._type}
        return str(stats.format_stats(pa.array([known], self._type))[0].as_py())


def _without_physical_names(schema_string: str) -> str:
    """Return a schema without physical names."""

    def without(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: without(item) for key, item in value.items() if key != _PHYSICAL_NAME}
        return [without(item) for item in value] if isinstance(value, list) else value

    if _PHYSICAL_NAME not in schema_string:
        return schema_string
    return msgspec.json.encode(without(msgspec.json.decode(schema_string))).decode()


def _child(kind: pa.StructType | None, name: str) -> Any:
    at = -1 if kind is None else kind.get_field_index(name)
    return None if kind is None or at < 0 else kind.field(at).type


def _node(counts: pa.StructType | None, bounds: pa.StructType | None) -> _Node:
    """Return a node for each column that has a ``nullCount``; some of them have bounds."""
    node = _Node()
    for each in counts or ():
        below = _child(bounds, each.name)
        is_struct = pa.types.is_struct(each.type)
        node.children[each.name] = (
            _node(each.type, below) if is_struct else _Leaf(below is not None)
        )
    return node


def _see(node: _Node, columns: Mapping[str, pa.Array], rows: int) -> None:
    for name, child in node.children.items():
        values = columns.get(name)
        if isinstance(child, _Node):
            # Flattening gives the nulls of a struct to its children.
            flat = {} if values is None else _flattened(values)
            _see(child, flat, rows)
        elif values is None:
            child.nulls += rows
        else:
            child.nulls += values.null_count
            if child.has_bounds:
                _widen(child, values)


def _flattened(values: pa.StructArray) -> dict[str, pa.Array]:
    return dict(zip([each.name for each in values.type], values.flatten(), strict=True))


def _widen(leaf: _Leaf, values: pa.Array) -> None:
    kind = values.type
    if pa.types.is_floating(kind) and pc.any(pc.is_nan(values)).as_py():
        # Engines order NaN differently among the numbers.
        leaf.has_bounds, leaf.least, leaf.greatest = False, None, None
        return
    if pa.types.is_timestamp(kind):
        values = values.view(pa.int64())
    elif pa.types.is_date32(kind):
        values = values.view(pa.int32())
    least, greatest = (each.as_py() for each in pc.min_max(values).values())
    if least is None:
        return
    leaf.least = least if leaf.least is None else min(leaf.least, least)
    leaf.greatest = greatest if leaf.greatest is None else max(leaf.greatest, greatest)


def _values(node: _Node, kind: pa.StructType | None, bound: Any) -> dict[str, Any] | None:
    if kind is None:
        return None
    found: dict[str, Any] = {}
    for each in kind:
        child = node.children[each.name]
        found[each.name] = (
            _values(child, each.type, bound)
            if isinstance(child, _Node)
            else bound(child, each.type)
        )
    return found


def _counts(node: _Node) -> dict[str, Any]:
    return {
        name: _counts(child) if isinstance(child, _Node) else child.nulls
        for name, child in node.children.items()
    }


def _lower(leaf: _Leaf, kind: pa.DataType) -> Any:
    least = leaf.least
    if isinstance(least, str):
        return least[:PREFIX_CHARACTERS]
    if least is not None and pa.types.is_timestamp(kind):
        return _instant(least // _MILLISECOND_US)
    return _day(least) if pa.types.is_date(kind) else least


def _upper(leaf: _Leaf, kind: pa.DataType) -> Any:
    greatest = leaf.greatest
    if isinstance(greatest, str):
        return _longer_or_cut(greatest)
    if greatest is not None and pa.types.is_timestamp(kind):
        return _instant(-(-greatest // _MILLISECOND_US))
    return _day(greatest) if pa.types.is_date(kind) else greatest


def _longer_or_cut(text: str) -> str | None:
    """Return a short text that isn't smaller, by code points; ``None`` if there is none."""
    if len(text) <= PREFIX_CHARACTERS:
        return text
    following = text[PREFIX_CHARACTERS]
    for last in (_LAST_ASCII, _LAST_CHARACTER):
        if following < last:
            return text[:PREFIX_CHARACTERS] + last
    return None


def _instant(milliseconds: int) -> int | None:
    return milliseconds * _MILLISECOND_US if milliseconds // _DAY_MS in _DAYS else None


def _day(day: int | None) -> int | None:
    # Engines write years before the first or after 9999 differently.
    return day if day is not None and day in _DAYS else None
