"""Parses partition values, and single values of statistics, as Arrow's types.

Implements the protocol's "Partition Value Serialization". A value that can't be parsed becomes
null, which promises nothing; it never becomes a guess or an error.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta, tzinfo
from decimal import Decimal, InvalidOperation
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.compute as pc


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


def json_array(values: list[Any], kind: pa.DataType) -> pa.Array:
    """Return values of decoded JSON as an array of a type; others than this type's become null."""
    convert = _CONVERT.get(kind.id, _as_is)
    return _array([convert(value, kind) for value in values], kind)


def _as_is(value: Any, _: pa.DataType) -> Any:
    return value


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
    pa.timestamp("us").id: _timestamp,
}
