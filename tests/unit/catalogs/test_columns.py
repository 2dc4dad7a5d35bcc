"""Columns as Unity Catalog keeps them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lakeferry.catalogs.columns import columns
from lakeferry.errors import CorruptLog
from lakeferry.log.actions import Metadata


def table(*fields: dict[str, Any], partitioned_by: tuple[str, ...] = ()) -> Metadata:
    return Metadata("1", json.dumps({"type": "struct", "fields": fields}), partitioned_by)


def field(name: str, kind: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, "nullable": True, "metadata": {}, **more}


INNER = {"type": "struct", "fields": [field("a", "integer"), field("b", "decimal(10,2)")]}


@pytest.mark.parametrize(
    ("kind", "name", "text"),
    [
        ("boolean", "BOOLEAN", "boolean"),
        ("byte", "BYTE", "tinyint"),
        ("short", "SHORT", "smallint"),
        ("integer", "INT", "int"),
        ("long", "LONG", "bigint"),
        ("float", "FLOAT", "float"),
        ("double", "DOUBLE", "double"),
        ("decimal(38, 18)", "DECIMAL", "decimal(38,18)"),
        ("string", "STRING", "string"),
        ("binary", "BINARY", "binary"),
        ("date", "DATE", "date"),
        ("timestamp", "TIMESTAMP", "timestamp"),
        ("timestamp_ntz", "TIMESTAMP_NTZ", "timestamp_ntz"),
        ("variant", "VARIANT", "variant"),
        ("void", "NULL", "void"),
        ("geometry(4326)", "USER_DEFINED_TYPE", "geometry(4326)"),
        (INNER, "STRUCT", "struct<a:int,b:decimal(10,2)>"),
        (
            {"type": "array", "elementType": INNER, "containsNull": True},
            "ARRAY",
            "array<struct<a:int,b:decimal(10,2)>>",
        ),
        (
            {"type": "map", "keyType": "string", "valueType": "long", "valueContainsNull": True},
            "MAP",
            "map<string,bigint>",
        ),
    ],
)
def test_types(kind: Any, name: str, text: str) -> None:
    described = field("c", kind)
    (column,) = columns(table(described))
    assert (column["type_name"], column["type_text"]) == (name, text)
    assert json.loads(column["type_json"]) == described


def test_positions_partitions_comments_and_precision() -> None:
    first = field("a", "decimal(10,2)", nullable=False)
    second = field("b", "string", metadata={"comment": "the day"})
    one, two = columns(table(first, second, partitioned_by=("b",)))
    assert (one["position"], one["nullable"]) == (0, False)
    assert (one["type_precision"], one["type_scale"]) == (10, 2)
    assert "partition_index" not in one
    assert (two["position"], two["partition_index"], two["comment"]) == (1, 0, "the day")


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"fields":[{}]}', '{"fields":[1]}', "null"])
def test_a_schema_that_cannot_be_read_is_a_corrupt_log(text: str) -> None:
    with pytest.raises(CorruptLog):
        columns(Metadata("1", text))
