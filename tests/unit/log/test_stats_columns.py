"""Which columns have statistics, and the types of statistics and partition values.

The types of ``EVERY_TYPE`` are those of a checkpoint that delta-spark 4.4.0 wrote for a table with
these columns.
"""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from lakeferry.errors import CorruptLog
from lakeferry.log.stats_columns import partition_type, stats_type

INSTANT = pa.timestamp("us", "UTC")
EVERY_TYPE: dict[str, Any] = {
    "b": "boolean",
    "i8": "byte",
    "i16": "short",
    "i32": "integer",
    "i64": "long",
    "f": "float",
    "d": "double",
    "dec9": "decimal(9,2)",
    "dec38": "decimal(38,10)",
    "s": "string",
    "bin": "binary",
    "dt": "date",
    "ts": "timestamp",
    "ntz": "timestamp_ntz",
    "arr": {"type": "array", "elementType": "integer", "containsNull": True},
    "m": {"type": "map", "keyType": "string", "valueType": "long", "valueContainsNull": True},
    "st": {"x": "integer", "yz": "string", "inner": {"q": "timestamp", "a": "variant"}},
    "only": {"aa": "interval day to second"},
    "weird": "integer",
}
BOUNDS = pa.struct(
    [
        ("i8", pa.int8()),
        ("i16", pa.int16()),
        ("i32", pa.int32()),
        ("i64", pa.int64()),
        ("f", pa.float32()),
        ("d", pa.float64()),
        ("dec9", pa.decimal128(9, 2)),
        ("dec38", pa.decimal128(38, 10)),
        ("s", pa.string()),
        ("dt", pa.date32()),
        ("ts", INSTANT),
        ("ntz", pa.timestamp("us")),
        (
            "st",
            pa.struct([("x", "int32"), ("yz", "string"), ("inner", pa.struct([("q", INSTANT)]))]),
        ),
        ("weird", pa.int32()),
    ]
)


def schema_of(columns: dict[str, Any]) -> str:
    return json.dumps(_struct(columns))


def _struct(columns: dict[str, Any]) -> dict[str, Any]:
    fields = []
    for name, kind in columns.items():
        nested = isinstance(kind, dict) and "type" not in kind
        fields.append(
            {
                "name": name,
                "type": _struct(kind) if nested else kind,
                "nullable": True,
                "metadata": {},
            }
        )
    return {"type": "struct", "fields": fields}


def _names(kind: pa.StructType, statistic: str) -> list[str]:
    return [child.name for child in kind.field(statistic).type]


def test_the_type_is_the_one_that_delta_spark_writes() -> None:
    kind = stats_type(schema_of(EVERY_TYPE), {}, tight_bounds=True)
    assert [child.name for child in kind] == [
        "numRecords",
        "minValues",
        "maxValues",
        "nullCount",
        "tightBounds",
    ]
    assert kind.field("minValues").type == BOUNDS
    assert kind.field("maxValues").type == BOUNDS
    assert _names(kind, "nullCount") == list(EVERY_TYPE)
    inner = kind.field("nullCount").type.field("st").type.field("inner").type
    assert inner == pa.struct([("q", pa.int64()), ("a", pa.int64())])


def test_partition_columns_have_no_statistics_and_tight_bounds_need_vectors() -> None:
    kind = stats_type(schema_of({"p": "string", "x": "long"}), {}, ["p"])
    assert [child.name for child in kind] == ["numRecords", "minValues", "maxValues", "nullCount"]
    assert _names(kind, "nullCount") == ["x"]


def test_physical_names_and_collations() -> None:
    schema = json.loads(schema_of({"a": "string", "b": "string"}))
    schema["fields"][0]["metadata"] = {"delta.columnMapping.physicalName": "col-1"}
    schema["fields"][1]["metadata"] = {"__COLLATIONS": {"b": "spark.UTF8_LCASE"}}
    kind = stats_type(json.dumps(schema), {})
    assert _names(kind, "minValues") == ["col-1"]
    assert _names(kind, "nullCount") == ["col-1", "b"]


@pytest.mark.parametrize(
    ("properties", "indexed"),
    [
        ({"delta.dataSkippingNumIndexedCols": "2"}, {"a": {}, "st": {"x": {}}}),
        (
            {"delta.dataSkippingNumIndexedCols": "-1"},
            {"a": {}, "st": {"x": {}, "y.z": {}}, "c": {}},
        ),
        ({"delta.dataSkippingNumIndexedCols": "?"}, {"a": {}, "st": {"x": {}, "y.z": {}}, "c": {}}),
        ({"delta.dataSkippingNumIndexedCols": "0"}, None),
        ({"delta.dataSkippingStatsColumns": "C, st.`y.z`"}, {"st": {"y.z": {}}, "c": {}}),
        ({"delta.dataSkippingStatsColumns": "st"}, {"st": {"x": {}, "y.z": {}}}),
        ({"delta.dataSkippingStatsColumns": "a.b,nobody"}, None),
    ],
)
def test_only_indexed_columns_have_statistics(
    properties: dict[str, str], indexed: dict[str, Any] | None
) -> None:
    schema = schema_of({"a": "long", "st": {"x": "long", "y.z": "long"}, "c": "long"})
    kind = stats_type(schema, properties)
    if indexed is None:
        assert [child.name for child in kind] == ["numRecords"]
    else:
        assert _tree(kind.field("nullCount").type) == indexed
        assert _tree(kind.field("minValues").type) == indexed


def _tree(kind: pa.DataType) -> dict[str, Any]:
    return {child.name: _tree(child.type) for child in kind} if pa.types.is_struct(kind) else {}


@pytest.mark.parametrize(
    "schema",
    [
        "",
        "[]",
        '{"type":"array"}',
        '{"type":"struct"}',
        '{"type":"struct","fields":[{"name":"a"}]}',
        '{"type":"struct","fields":[{"name":1,"type":"long"}]}',
        '{"type":"struct","fields":[{"name":"a","type":"decimal(99,2)"}]}',
        '{"type":"struct","fields":["a"]}',
        pytest.param('{"type":"struct","fields":' * 3000, id="too deep"),
    ],
)
def test_a_broken_schema_is_a_corrupt_log(schema: str) -> None:
    with pytest.raises(CorruptLog):
        stats_type(schema, {})


def test_tables_without_partitions_have_no_partition_type() -> None:
    assert partition_type(schema_of({"a": "long"}), []) is None
    with pytest.raises(CorruptLog, match="nobody"):
        partition_type(schema_of({"a": "long"}), ["nobody"])
