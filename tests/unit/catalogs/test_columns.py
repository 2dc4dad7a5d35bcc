"""Columns as Unity Catalog keeps them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lakeferry.catalogs.columns import catalog_columns
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
        ("decimal(38,18)", "DECIMAL", "decimal(38,18)"),
        ("string", "STRING", "string"),
        ("binary", "BINARY", "binary"),
        ("date", "DATE", "date"),
        ("timestamp", "TIMESTAMP", "timestamp"),
        ("timestamp_ntz", "TIMESTAMP_NTZ", "timestamp_ntz"),
        ("variant", "VARIANT", "variant"),
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
    (column,) = catalog_columns(table(described))
    assert (column["type_name"], column["type_text"]) == (name, text)
    assert json.loads(column["type_json"]) == described


def test_columns_without_a_type_are_left_out_at_every_depth() -> None:
    inner = {"type": "struct", "fields": [field("nothing", "void"), field("a", "long")]}
    found = catalog_columns(
        table(field("nothing", "void"), field("s", inner), field("b", "string"))
    )
    assert [(each["name"], each["position"]) for each in found] == [("s", 0), ("b", 1)]
    assert found[0]["type_text"] == "struct<a:bigint>"
    assert json.loads(found[0]["type_json"])["type"]["fields"] == [field("a", "long")]


def test_what_the_server_reads_strictly_is_said_in_full() -> None:
    udt = {"type": "udt", "class": "org.example.Point", "sqlType": "double"}
    points = {"type": "array", "elementType": udt, "containsNull": True}
    pairs = {"type": "map", "keyType": "decimal( 5 , 0 )", "valueType": udt}
    found = catalog_columns(
        table({"name": "a", "type": "decimal(38, 18)"}, field("b", points), field("c", pairs))
    )
    assert [each["type_text"] for each in found] == [
        "decimal(38,18)",
        "array<double>",
        "map<decimal(5,0),double>",
    ]
    assert json.loads(found[0]["type_json"]) == field("a", "decimal(38,18)")
    assert json.loads(found[1]["type_json"])["type"]["elementType"] == "double"


def test_positions_partitions_comments_and_precision() -> None:
    first = field("a", "decimal(10,2)", nullable=False)
    second = field("b", "string", metadata={"comment": "the day"})
    one, two = catalog_columns(table(first, second, partitioned_by=("b",)))
    assert (one["position"], one["nullable"]) == (0, False)
    assert (one["type_precision"], one["type_scale"]) == (10, 2)
    assert "partition_index" not in one
    assert (two["position"], two["partition_index"], two["comment"]) == (1, 0, "the day")


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"fields":[{}]}', '{"fields":[1]}', "null"])
def test_a_schema_that_cannot_be_read_is_a_corrupt_log(text: str) -> None:
    with pytest.raises(CorruptLog):
        catalog_columns(Metadata("1", text))
