"""Parses and formats file statistics.

Implements the protocol's "Per-file Statistics". :mod:`lakeferry.log.stats_columns` decides their
types. Statistics are hints: a value that can't be parsed becomes null.

Python objects exist for one bounded chunk of rows at a time.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from lakeferry.log.partition_values import json_array

_CHUNK_ROWS = 16_384


def parse_stats(stats: pa.Array | pa.ChunkedArray, kind: pa.StructType) -> pa.StructArray:
    """Parse JSON statistics as values of ``kind``; invalid JSON becomes null."""
    decode = _decoder(kind)
    chunks = [pa.array([], kind)]
    for start in range(0, len(stats), _CHUNK_ROWS):
        texts = stats.slice(start, _CHUNK_ROWS).to_pylist()
        chunks.append(_build([decode(text) for text in texts], kind))
    return pa.concat_arrays(chunks)


def _decoder(kind: pa.DataType) -> Callable[[str | None], Any]:
    # Decimals need all digits of a number; without decimals, the faster float parser is used.
    hook = Decimal if _has_decimal(kind) else None
    fast = msgspec.json.Decoder(float_hook=hook)

    def decode(text: str | None) -> Any:
        if text is None:
            return None
        try:
            return fast.decode(text)
        except (msgspec.MsgspecError, RecursionError):
            pass
        try:
            # Python's own parser accepts NaN and Infinity without quotes.
            return json.loads(text, parse_float=hook or float)
        except (ValueError, RecursionError, InvalidOperation):
            return None

    return decode


def _has_decimal(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
        return any(_has_decimal(child.type) for child in kind)
    return bool(pa.types.is_decimal(kind))


def _build(values: list[Any], kind: pa.DataType) -> pa.Array:
    if not pa.types.is_struct(kind):
        return json_array(values, kind)
    rows = [value if isinstance(value, dict) else None for value in values]
    children = [
        _build([None if row is None else row.get(child.name) for row in rows], child.type)
        for child in kind
    ]
    mask = pa.array([row is None for row in rows], pa.bool_())
    return pa.StructArray.from_arrays(children, fields=list(kind), mask=mask)


def format_stats(parsed: pa.Array | pa.ChunkedArray) -> pa.StringArray:
    """Return parsed statistics as JSON; nulls are left out, and a null row stays null.

    Timestamps are cut to milliseconds, as readers expect of statistics in JSON.
    Cast what an INT96 column held to an instant first: Arrow takes it for local time.
    """
    if isinstance(parsed, pa.ChunkedArray):
        parsed = parsed.combine_chunks()
    if not pa.types.is_struct(parsed.type):
        # A column without values, or whose type isn't the expected one.
        return pa.nulls(len(parsed), pa.string())
    return _object(parsed).cast(pa.string())


def _object(rows: pa.StructArray) -> pa.Array:
    # Each member ends in a comma, and the last comma is removed. Joining with commas while skipping
    # nulls doesn't work: Arrow's kernel loses rows that have only nulls.
    members = [pc.fill_null(pa.nulls(len(rows), pa.string()), "")]
    for child, values in zip(rows.type, rows.flatten(), strict=True):
        texts = _json_text(values)
        if texts is not None:
            name = msgspec.json.encode(child.name).decode() + ":"
            member = pc.binary_join_element_wise(name, texts, ",", "")
            members.append(pc.fill_null(member, ""))
    inside = pc.ascii_rtrim(pc.binary_join_element_wise(*members, ""), ",")
    texts = pc.binary_join_element_wise("{", inside, "}", "")
    return pc.if_else(rows.is_valid(), texts, pa.scalar(None, pa.string()))


def _json_text(values: pa.Array) -> pa.Array | None:
    kind = values.type
    if pa.types.is_struct(kind):
        return _object(values)
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_decimal(kind):
        return values.cast(pa.string())
    if pa.types.is_floating(kind):
        return _float_text(values)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return _string_text(values.cast(pa.string()))
    if pa.types.is_date(kind):
        return pc.binary_join_element_wise('"', values.cast(pa.string()), '"', "")
    if pa.types.is_timestamp(kind):
        cut = pc.floor_temporal(values, unit="millisecond").cast(pa.timestamp("ms", kind.tz))
        text = pc.replace_substring(cut.cast(pa.string()), " ", "T", max_replacements=1)
        return pc.binary_join_element_wise('"', text, '"', "")
    # Variants and other types have no text form: better no statistic than a wrong one.
    return None


def _float_text(values: pa.Array) -> pa.Array:
    infinite = pc.if_else(pc.greater(values, 0), '"Infinity"', '"-Infinity"')
    odd = pc.if_else(pc.is_nan(values), '"NaN"', infinite)
    return pc.if_else(pc.is_finite(values), values.cast(pa.string()), odd)


def _string_text(values: pa.Array) -> pa.Array:
    escaped = pc.replace_substring(values, "\\", "\\\\")
    quoted = pc.binary_join_element_wise('"', pc.replace_substring(escaped, '"', '\\"'), '"', "")
    control = pc.match_substring_regex(values, r"[\x00-\x1f]")
    if not pc.any(control).as_py():
        return quoted
    spelled = [msgspec.json.encode(text).decode() for text in values.filter(control).to_pylist()]
    return pc.replace_with_mask(
        quoted, pc.fill_null(control, False), pa.array(spelled, pa.string())
    )


_LEADING_RECORDS = r'^\s*\{\s*"numRecords"\s*:\s*(?P<rows>[0-9]{1,18})\s*[,}]'


def num_rows(files: pa.Table) -> int | None:
    """Return the number of rows in live files, without those that their vectors delete.

    ``None`` if a file's statistics don't state it. Writers put ``numRecords`` first; statistics
    that begin otherwise are decoded one by one.
    """
    texts = files["stats"]
    found = pc.struct_field(pc.extract_regex(texts, _LEADING_RECORDS), "rows").cast(pa.int64())
    total = pc.sum(found).as_py() or 0
    for text in texts.filter(pc.is_null(found)).to_pylist():
        try:
            rows = msgspec.json.decode(text or "{}", type=dict[str, Any]).get("numRecords")
        except (msgspec.MsgspecError, RecursionError):
            return None
        if type(rows) is not int:
            return None
        total += rows
    deleted = pc.struct_field(files["deletionVector"], "cardinality")
    return int(total) - int(pc.sum(deleted).as_py() or 0)
