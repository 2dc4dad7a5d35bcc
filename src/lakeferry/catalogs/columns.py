"""Converts a Delta schema to the columns that Unity Catalog stores.

Its API for Delta tables takes the schema as it is, with other names in nested types
(:func:`kebab_schema`). In its older API (:func:`columns`), each column has three descriptions:
``type_name`` is one word of a fixed list, ``type_text`` the type as Spark's catalogs write it
(``bigint``, ``struct<a:int>``), and ``type_json`` the field as in the schema, with its metadata.
The server is strict: each field must be complete, and what Spark wouldn't write into a catalog
either (columns without a type, user-defined types) is left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from lakeferry.errors import CorruptLog
from lakeferry.log.actions import Metadata

# A type of Delta's schemas, Unity's word for it and SQL's.
_TYPES = {
    "boolean": ("BOOLEAN", "boolean"),
    "byte": ("BYTE", "tinyint"),
    "short": ("SHORT", "smallint"),
    "integer": ("INT", "int"),
    "long": ("LONG", "bigint"),
    "float": ("FLOAT", "float"),
    "double": ("DOUBLE", "double"),
    "date": ("DATE", "date"),
    "timestamp": ("TIMESTAMP", "timestamp"),
    "timestamp_ntz": ("TIMESTAMP_NTZ", "timestamp_ntz"),
    "string": ("STRING", "string"),
    "binary": ("BINARY", "binary"),
    "variant": ("VARIANT", "variant"),
}
_DECIMAL = re.compile(r"decimal\(\s*(\d+)\s*,\s*(-?\d+)\s*\)")
_NESTED = {"struct": "STRUCT", "array": "ARRAY", "map": "MAP"}
_OTHER = "USER_DEFINED_TYPE"


def catalog_columns(metadata: Metadata) -> list[dict[str, Any]]:
    """Return the columns of a table for a request that creates it.

    Raises :class:`~lakeferry.errors.CorruptLog` for a schema that can't be read.
    """
    with _readable():
        fields = _typed(msgspec.json.decode(metadata.schema_string)["fields"])
        partitions = {name: index for index, name in enumerate(metadata.partition_columns)}
        return [
            _column(position, field, partitions.get(field["name"]))
            for position, field in enumerate(fields)
        ]


def kebab_schema(metadata: Metadata) -> dict[str, Any]:
    """Return the schema of a table as ``/delta/v1`` takes it: ``element-type``, ``key-type``.

    Raises :class:`~lakeferry.errors.CorruptLog` for a schema that can't be read.
    """
    with _readable():
        fields = _typed(msgspec.json.decode(metadata.schema_string)["fields"])
        return {"type": "struct", "fields": [_kebab_field(field) for field in fields]}


@contextmanager
def _readable() -> Iterator[None]:
    try:
        yield
    except (
        msgspec.MsgspecError,
        AttributeError,
        LookupError,
        RecursionError,
        TypeError,
    ) as broken:
        raise CorruptLog("the table's schema can't be read", cause=str(broken)) from broken


def _column(position: int, field: dict[str, Any], partition: int | None) -> dict[str, Any]:
    kind = field["type"]
    column: dict[str, Any] = {
        "name": field["name"],
        "type_text": type_text(kind),
        "type_json": msgspec.json.encode(field).decode(),
        "type_name": _type_name(kind),
        "position": position,
        "nullable": bool(field["nullable"]),
    }
    if isinstance(kind, str) and (decimal := _DECIMAL.fullmatch(kind)):
        column |= {"type_precision": int(decimal[1]), "type_scale": int(decimal[2])}
    if partition is not None:
        column["partition_index"] = partition
    comment = field["metadata"].get("comment")
    if isinstance(comment, str):
        column["comment"] = comment
    return column


def _kebab_field(field: dict[str, Any]) -> dict[str, Any]:
    # Exactly these four: the server refuses every other field.
    return {
        "name": field["name"],
        "type": _kebab_type(field["type"]),
        "nullable": field["nullable"],
        "metadata": field["metadata"],
    }


def _kebab_type(kind: Any) -> Any:
    if not isinstance(kind, dict):
        return kind
    match kind["type"]:
        case "struct":
            return {"type": "struct", "fields": [_kebab_field(each) for each in kind["fields"]]}
        case "array":
            return {
                "type": "array",
                "element-type": _kebab_type(kind["elementType"]),
                "contains-null": kind["containsNull"],
            }
        case "map":
            return {
                "type": "map",
                "key-type": _kebab_type(kind["keyType"]),
                "value-type": _kebab_type(kind["valueType"]),
                "value-contains-null": kind["valueContainsNull"],
            }
        case _:
            return kind


def _typed(fields: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the fields that have a type, with all attributes that the server requires."""
    return [
        {
            **field,
            "type": _plain(field["type"]),
            "nullable": field.get("nullable", True),
            "metadata": field.get("metadata") or {},
        }
        for field in fields
        if field["type"] != "void"
    ]


def _plain(kind: Any) -> Any:
    """Return a type as the server accepts it: without spaces and user-defined types."""
    if not isinstance(kind, dict):
        decimal = _DECIMAL.fullmatch(kind)
        return f"decimal({decimal[1]},{decimal[2]})" if decimal else kind
    match kind["type"]:
        case "struct":
            return {**kind, "fields": _typed(kind["fields"])}
        case "array":
            return {**kind, "elementType": _plain(kind["elementType"])}
        case "map":
            return {
                **kind,
                "keyType": _plain(kind["keyType"]),
                "valueType": _plain(kind["valueType"]),
            }
        case "udt":
            return _plain(kind["sqlType"])
        case _:
            return kind


def _type_name(kind: Any) -> str:
    if isinstance(kind, dict):
        return _NESTED.get(kind["type"], _OTHER)
    if kind.startswith("decimal"):
        return "DECIMAL"
    return _TYPES[kind][0] if kind in _TYPES else _OTHER


def type_text(kind: Any) -> str:
    """Return a type of a Delta schema as Spark's catalogs write it."""
    if not isinstance(kind, dict):
        return _TYPES[kind][1] if kind in _TYPES else str(kind).replace(" ", "")
    match kind["type"]:
        case "struct":
            inside = (f"{each['name']}:{type_text(each['type'])}" for each in kind["fields"])
            return f"struct<{','.join(inside)}>"
        case "array":
            return f"array<{type_text(kind['elementType'])}>"
        case "map":
            return f"map<{type_text(kind['keyType'])},{type_text(kind['valueType'])}>"
        case other:
            return str(other)
