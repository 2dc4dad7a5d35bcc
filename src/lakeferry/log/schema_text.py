"""Decodes the text of a table's schema, and the names of its primitive types."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
import pyarrow as pa

from lakeferry.errors import CorruptLog

_Built = TypeVar("_Built")
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
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}
_DECIMAL = re.compile(r"decimal(?:\(\s*(\d+)\s*,\s*(-?\d+)\s*\))?")


def built_schema(schema_string: str, build: Callable[[dict[str, Any]], _Built]) -> _Built:
    """Return what ``build`` makes of a decoded schema; raise ``CorruptLog`` if it fails."""
    try:
        schema = msgspec.json.decode(schema_string, type=dict[str, Any])
        if schema["type"] != "struct":
            raise ValueError(f"it is a {schema['type']!r}")
        return build(schema)
    except (
        msgspec.MsgspecError,
        pa.ArrowException,
        AttributeError,
        KeyError,
        RecursionError,
        TypeError,
        ValueError,
    ) as broken:
        raise CorruptLog(
            "the table's schema can't be read",
            cause=repr(broken),
            remedy="restore the commit or checkpoint with the table's metaData from a copy",
        ) from broken


def primitive_type(kind: str) -> pa.DataType | None:
    """Return the Arrow type of a primitive type of Delta; ``None`` if we don't have it."""
    if kind in _PRIMITIVES:
        return _PRIMITIVES[kind]
    decimal = _DECIMAL.fullmatch(kind)
    if decimal is None:
        return None
    return pa.decimal128(int(decimal[1] or 10), int(decimal[2] or 0))
