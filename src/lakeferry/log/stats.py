"""Parses file statistics and partition values.

Implements the protocol's "Per-file Statistics", "Partition Value Serialization"
and the parts of "Checkpoint Schema" that concern ``add.stats_parsed`` and
``add.partitionValues_parsed``. The types are those that delta-spark gives them:

* names are physical names, partition columns have no statistics, and only
  indexed columns have any (``delta.dataSkippingStatsColumns``, or the first
  ``delta.dataSkippingNumIndexedCols`` leaves);
* numbers, dates, timestamps and strings of the default collation have
  ``minValues`` and ``maxValues``; every leaf has a ``nullCount``, and an array
  or a map is one leaf;
* ``tightBounds`` is there on tables that support deletion vectors.

Statistics are hints. A value that can't be parsed becomes null, which promises nothing; it never
becomes a guess or an error. An invalid schema is :class:`~lakeferry.errors.CorruptLog`.

Python objects exist for one bounded chunk of rows at a time.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, tzinfo
from decimal import Decimal, InvalidOperation
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from lakeferry.errors import CorruptLog

DEFAULT_INDEXED_COLUMNS = 32
_CHUNK_ROWS = 16_384
_INSTANT = pa.timestamp("us", "UTC")
_LOCAL = pa.timestamp("us")
_PRIMITIVES = {
    "byte": pa.int8(),
    "short": pa.int16(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": _INSTANT,
    "timestamp_ntz": _LOCAL,
}
_DECIMAL = re.compile(r"decimal(?:\(\s*(\d+)\s*,\s*(-?\d+)\s*\))?")
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
    try:
        schema = msgspec.json.decode(schema_string, type=dict[str, Any])
        if schema["type"] != "struct":
            raise ValueError(f"the schema is a {schema['type']!r}")
        return tuple(_column(field) for field in schema["fields"])
    except (
        msgspec.MsgspecError,
        pa.ArrowException,
        AttributeError,
        KeyError,
        RecursionError,
        TypeError,
        ValueError,
    ) as broken:
        raise CorruptLog("the table's schema can't be read", cause=repr(broken)) from broken


def _column(field: Mapping[str, Any]) -> _Column:
    name, kind, metadata = field["name"], field["type"], field.get("metadata") or {}
    if not isinstance(name, str):
        raise ValueError(f"{name!r} is no column's name")
    physical = metadata.get("delta.columnMapping.physicalName", name)
    if isinstance(kind, dict) and kind["type"] == "struct":
        children = tuple(_column(child) for child in kind["fields"])
        return _Column(name, physical, children, None, False)
    found = primitive_type(kind) if isinstance(kind, str) else None
    # Bounds of a collated string follow its collation, which we don't implement.
    collated = name in metadata.get("__COLLATIONS", {})
    bounds = found is not None and found not in _WITHOUT_BOUNDS and not collated
    return _Column(name, physical, None, found, bounds)


def primitive_type(kind: str) -> pa.DataType | None:
    """Return the Arrow type of a primitive type of Delta; ``None`` if we don't have it."""
    if kind in _PRIMITIVES:
        return _PRIMITIVES[kind]
    decimal = _DECIMAL.fullmatch(kind)
    if decimal is None:
        return None
    return pa.decimal128(int(decimal[1] or 10), int(decimal[2] or 0))


# Types.


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


# Text to values.


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
        convert = _CONVERT.get(kind.id, _as_is)
        return _array([convert(value, kind) for value in values], kind)
    rows = [value if isinstance(value, dict) else None for value in values]
    children = [
        _build([None if row is None else row.get(child.name) for row in rows], child.type)
        for child in kind
    ]
    mask = pa.array([row is None for row in rows], pa.bool_())
    return pa.StructArray.from_arrays(children, fields=list(kind), mask=mask)


def _array(values: list[Any], kind: pa.DataType) -> pa.Array:
    try:
        return pa.array(values, kind)
    except (pa.ArrowException, OverflowError, TypeError, ValueError):
        return pa.array([_alone(value, kind) for value in values], kind)


def _alone(value: Any, kind: pa.DataType) -> Any:
    try:
        pa.array([value], kind)
    except (pa.ArrowException, OverflowError, TypeError, ValueError):
        return None
    return value


def _as_is(value: Any, _: pa.DataType) -> Any:
    return value


def _integer(value: Any, _: pa.DataType) -> int | None:
    return value if type(value) is int else None


def _boolean(value: Any, _: pa.DataType) -> bool | None:
    return value if isinstance(value, bool) else None


def _text(value: Any, _: pa.DataType) -> str | None:
    return value if isinstance(value, str) else None


_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
# From here on a number rounds to infinity, which would be a wrong bound.
_BEYOND = {32: (2 - 2**-24) * 2.0**127, 64: math.inf}
_NO_NUMBER = re.compile(r"[+-]?(nan|inf|infinity)", re.IGNORECASE)
_NOT_FINITE = {"NaN", "Infinity", "+Infinity", "-Infinity", "INF", "+INF", "-INF"}


def _float(value: Any, kind: pa.DataType) -> float | None:
    if isinstance(value, str):
        return float(value) if value in _NOT_FINITE else None
    try:
        number = float(value) if type(value) in (int, float, Decimal) else None
    except OverflowError:
        return None
    if number is not None and abs(number) >= _BEYOND[kind.bit_width] and math.isfinite(number):
        return None
    return number


def _decimal(value: Any, _: pa.DataType) -> Decimal | None:
    try:
        number = Decimal(value) if type(value) in (int, str, Decimal) else None
        return None if number is None or not number.is_finite() else number
    except InvalidOperation:
        return None


_DAY = re.compile(r"([+-]?\d{4,7})-(\d\d?)-(\d\d?)")
_CYCLE_YEARS, _CYCLE_DAYS = 400, 146_097
"""The calendar repeats after this many years."""
_SECOND_US = 1_000_000
_DAY_US = 24 * 60 * 60 * _SECOND_US


def _days(text: str) -> int | None:
    """Return a date as days since the epoch. Years may be outside of Python's 1 to 9999."""
    match = _DAY.fullmatch(text)
    if match is None:
        return None
    year, month, day = map(int, match.groups())
    cycles, like = divmod(year - 2000, _CYCLE_YEARS)
    try:
        found = date(2000 + like, month, day).toordinal() - date(1970, 1, 1).toordinal()
    except ValueError:
        return None
    return found + cycles * _CYCLE_DAYS


def _date(value: Any, _: pa.DataType) -> int | None:
    days = _days(value) if isinstance(value, str) else None
    return days if days is not None and _is_usual(days * _DAY_US) else None


_TIMESTAMP = re.compile(
    r"([+-]?\d{4,7}-\d\d?-\d\d?)[T ](\d\d?):(\d\d?)(?::(\d\d?))?(?:\.(\d{1,9}))?"
    r"(?:(Z)|([+-])(\d\d):?(\d\d)(?::?(\d\d))?)?"
)


def _moment(value: Any) -> tuple[int, int | None] | None:
    """Return a local time in microseconds, and its offset from UTC if the text has one."""
    match = _TIMESTAMP.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        return None
    day, hour, minute, second, fraction, zulu, sign, *ahead = match.groups()
    days, clock = _days(day), _clock(hour, minute, second)
    if days is None or clock is None:
        return None
    # Finer parts than microseconds are cut off, as Spark does.
    local = days * _DAY_US + clock + int((fraction or "0")[:6].ljust(6, "0"))
    if zulu:
        return local, 0
    if sign is None:
        return local, None
    offset = _clock(*ahead)
    return None if offset is None else (local, -offset if sign == "-" else offset)


def _clock(hour: str, minute: str, second: str | None) -> int | None:
    """Return a time of day in microseconds."""
    seconds = int(second or 0)
    if int(hour) > 23 or int(minute) > 59 or seconds > 59:
        return None
    return ((int(hour) * 60 + int(minute)) * 60 + seconds) * _SECOND_US


def _timestamp(value: Any, kind: pa.TimestampType) -> int | None:
    # An instant without a zone would be a guess, and so would a local time with one.
    moment = _moment(value)
    if moment is None or (moment[1] is None) != (kind.tz is None):
        return None
    instant = moment[0] - (moment[1] or 0)
    return instant if _is_usual(instant) else None


def _is_usual(local: int) -> bool:
    """Return True if Python supports the time. Statistics of other times are left out."""
    return _FIRST_US <= local < _END_US


def _ahead(local: int, zone: tzinfo) -> int:
    """Return a zone's offset from UTC at a local time, in microseconds."""
    if zone is UTC:
        return 0
    # Zones have no rules for years that Python doesn't support: use the nearest one.
    bound = min(max(local, _FIRST_US + 2 * _DAY_US), _END_US - 2 * _DAY_US)
    moment = datetime.fromtimestamp(0, UTC).replace(tzinfo=None) + timedelta(microseconds=bound)
    offset = moment.replace(tzinfo=zone).utcoffset() or timedelta()
    return offset // timedelta(microseconds=1)


_FIRST_US = (_days("0001-01-01") or 0) * _DAY_US
_END_US = (_days("10000-01-01") or 0) * _DAY_US


_CONVERT: dict[int, Callable[[Any, Any], Any]] = {
    **{kind.id: _integer for kind in (pa.int8(), pa.int16(), pa.int32(), pa.int64())},
    **{kind.id: _float for kind in (pa.float32(), pa.float64())},
    pa.bool_().id: _boolean,
    pa.string().id: _text,
    pa.decimal128(1).id: _decimal,
    pa.date32().id: _date,
    _INSTANT.id: _timestamp,
}


def parse_partition_values(
    maps: pa.MapArray, kind: pa.StructType, zone: str = "UTC"
) -> pa.StructArray:
    """Return partition values, which are text, as values of ``kind``.

    An empty text is null for every type. ``zone`` is the zone of the system that wrote
    timestamps without one.
    """
    # Not every system has a time zone database, and UTC doesn't need one.
    writer_zone = UTC if zone == "UTC" else ZoneInfo(zone)
    children = []
    for child in kind:
        texts = pc.map_lookup(maps, pa.scalar(child.name, maps.type.key_type), "first")
        texts = texts.cast(pa.string())
        # Many files share few values, so each distinct value is parsed once.
        distinct = texts.dictionary_encode()
        values = [
            _partition_value(text, child.type, writer_zone)
            for text in distinct.dictionary.to_pylist()
        ]
        children.append(_array(values, child.type).take(distinct.indices))
    return pa.StructArray.from_arrays(children, fields=list(kind), mask=maps.is_null())


def _partition_value(text: str, kind: pa.DataType, zone: tzinfo) -> Any:
    if not text:
        return None
    if pa.types.is_string(kind):
        return text
    if pa.types.is_binary(kind):
        return text.encode()
    trimmed = text.strip()
    if pa.types.is_boolean(kind):
        return {"true": True, "false": False}.get(trimmed.lower())
    if pa.types.is_integer(kind):
        return int(trimmed) if re.fullmatch(r"[+-]?\d+", trimmed, re.ASCII) else None
    if pa.types.is_floating(kind):
        # Engines spell them differently: Infinity in Spark, inf in delta-rs.
        is_float = _NUMBER.fullmatch(trimmed) or _NO_NUMBER.fullmatch(trimmed)
        return float(trimmed) if is_float else _float(trimmed, kind)
    if pa.types.is_timestamp(kind):
        is_day = _DAY.fullmatch(trimmed) is not None
        moment = _moment(f"{trimmed} 00:00:00" if is_day else trimmed)
        if moment is None or kind.tz is None:
            return None if moment is None else moment[0]
        return moment[0] - (_ahead(moment[0], zone) if moment[1] is None else moment[1])
    if pa.types.is_date(kind):
        return _days(trimmed)
    return _CONVERT[kind.id](trimmed, kind)


# Values to text.


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
