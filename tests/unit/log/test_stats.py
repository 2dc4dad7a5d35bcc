"""Statistics and partition values as text and as values.

Types, texts and values of ``EVERY_TYPE`` are those of a checkpoint that
delta-spark 4.4.0 wrote for a table with these columns.
"""

from __future__ import annotations

import json
import math
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from lakeferry.errors import CorruptLog
from lakeferry.log.stats import (
    format_stats,
    parse_partition_values,
    parse_stats,
    partition_type,
    stats_type,
)

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
TEXT = (
    '{"numRecords":3,"minValues":{"i8":-1,"i16":-2,"i32":-3,"i64":-9223372036854775808,"f":1.5,'
    '"d":"-Infinity","dec9":-12.34,"dec38":1234567890123456789012345678.0123456789,'
    '"s":"abc\\"\\\\ü","dt":"0001-01-01","ts":"0001-01-01T00:00:00.000Z",'
    '"ntz":"2020-01-02T03:04:05.678","st":{"x":1,"yz":"q","inner":'
    '{"q":"1969-12-31T23:59:59.999Z"}},"weird":7},"maxValues":{"f":"NaN","st":{"inner":{}}},'
    '"nullCount":{"b":1,"arr":0,"st":{"x":2,"inner":{"a":1}},"only":{"aa":1}},"tightBounds":true}'
)


def _schema(columns: dict[str, Any]) -> str:
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
    kind = stats_type(_schema(EVERY_TYPE), {}, tight_bounds=True)
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
    kind = stats_type(_schema({"p": "string", "x": "long"}), {}, ["p"])
    assert [child.name for child in kind] == ["numRecords", "minValues", "maxValues", "nullCount"]
    assert _names(kind, "nullCount") == ["x"]


def test_physical_names_and_collations() -> None:
    schema = json.loads(_schema({"a": "string", "b": "string"}))
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
    schema = _schema({"a": "long", "st": {"x": "long", "y.z": "long"}, "c": "long"})
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


def test_json_becomes_values_and_comes_back_as_the_same_text() -> None:
    kind = stats_type(_schema(EVERY_TYPE), {}, tight_bounds=True)
    parsed = parse_stats(pa.array([TEXT, None]), kind)
    parsed.validate(full=True)
    first, second = parsed.to_pylist()
    assert second is None
    assert first["minValues"] == {
        "i8": -1,
        "i16": -2,
        "i32": -3,
        "i64": -(2**63),
        "f": 1.5,
        "d": -math.inf,
        "dec9": Decimal("-12.34"),
        "dec38": Decimal("1234567890123456789012345678.0123456789"),
        "s": 'abc"\\ü',
        "dt": date(1, 1, 1),
        "ts": datetime(1, 1, 1, tzinfo=UTC),
        "ntz": datetime(2020, 1, 2, 3, 4, 5, 678000),  # noqa: DTZ001
        "st": {
            "x": 1,
            "yz": "q",
            "inner": {"q": datetime(1969, 12, 31, 23, 59, 59, 999000, UTC)},
        },
        "weird": 7,
    }
    assert math.isnan(first["maxValues"]["f"])
    assert first["maxValues"]["st"] == {"x": None, "yz": None, "inner": {"q": None}}
    assert first["tightBounds"] is True
    assert format_stats(parsed).to_pylist() == [TEXT, None]


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (pa.int8(), "128", None),
        (pa.int64(), "9223372036854775808", None),
        (pa.int64(), "true", None),
        (pa.int64(), "1.0", None),
        (pa.int64(), '"1"', None),
        (pa.float64(), "1", 1.0),
        (pa.float64(), "Infinity", math.inf),
        (pa.float64(), '"Infinity"', math.inf),
        (pa.float64(), '"INF"', math.inf),
        (pa.float64(), '"seven"', None),
        (pa.float32(), "1e39", None),
        (pa.float32(), "3.4028235e38", 3.4028234663852886e38),
        (pa.decimal128(5, 2), "123.45", Decimal("123.45")),
        (pa.decimal128(5, 2), "1.5E1", Decimal("15.00")),
        (pa.decimal128(5, 2), "1234.5", None),
        (pa.decimal128(5, 2), "0.001", None),
        (pa.decimal128(5, 2), "NaN", None),
        (pa.string(), "5", None),
        (pa.date32(), '"2020-02-29"', date(2020, 2, 29)),
        (pa.date32(), '"2021-02-29"', None),
        (pa.date32(), '"20200229"', None),
        (pa.date32(), "18000", None),
        (INSTANT, '"2020-01-02T03:04:05.678+02:00"', datetime(2020, 1, 2, 1, 4, 5, 678000, UTC)),
        (INSTANT, '"2020-01-02T03:04:05.1234567Z"', datetime(2020, 1, 2, 3, 4, 5, 123456, UTC)),
        # Without a zone it could be any of two dozen instants.
        (INSTANT, '"2020-01-02T03:04:05"', None),
        (INSTANT, '"0001-01-01T00:00:00+18:00"', None),
        (pa.timestamp("us"), '"2020-01-02T03:04:05"', datetime(2020, 1, 2, 3, 4, 5)),  # noqa: DTZ001
        (pa.timestamp("us"), '"2020-01-02T03:04:05Z"', None),
        (pa.struct([("x", pa.int64())]), "5", None),
    ],
)
def test_what_can_not_be_understood_is_null(kind: pa.DataType, text: str, value: Any) -> None:
    stats = pa.struct([("minValues", pa.struct([("a", kind), ("b", pa.int64())]))])
    # The decimal beside it asks for all digits, which changes how numbers are read.
    exact = pa.struct([*stats, pa.field("z", pa.decimal128(5))])
    for parsed_as in (stats, exact):
        texts = pa.array([f'{{"minValues":{{"a":{text},"b":1}}}}'])
        (row,) = parse_stats(texts, parsed_as).to_pylist()
        assert row["minValues"] == {"a": value, "b": 1}


@pytest.mark.parametrize("text", ["", "{", "[]", "5", pytest.param("[" * 100_000, id="too deep")])
def test_a_text_that_is_no_object_is_null(text: str) -> None:
    kind = stats_type(_schema({"a": "long"}), {})
    assert parse_stats(pa.array([text]), kind).to_pylist() == [None]


def test_chunks_are_put_together_again() -> None:
    kind = stats_type(_schema({"a": "long"}), {})
    texts = [f'{{"numRecords":{number}}}' for number in range(40_000)]
    parsed = parse_stats(pa.chunked_array([texts[:7], texts[7:]]), kind)
    assert parsed.field("numRecords").to_pylist() == list(range(40_000))
    assert format_stats(parsed).to_pylist() == texts
    assert len(parse_stats(pa.array([], pa.string()), kind)) == 0


def test_text_of_what_other_writers_left() -> None:
    kind = pa.struct(
        [
            ("numRecords", pa.int64()),
            ("minValues", pa.struct([("v", pa.struct([("value", pa.binary())])), ("s", "string")])),
            ("maxValues", pa.struct([("t", INSTANT), ("f", pa.float32()), ("b", pa.binary())])),
        ]
    )
    row = {
        "numRecords": 1,
        "minValues": {"v": {"value": b"x"}, "s": "tab\tand,"},
        "maxValues": {"t": datetime(1969, 12, 31, 23, 59, 59, 999999, UTC), "f": 0.1, "b": b"x"},
    }
    (text, empty) = format_stats(pa.array([row, {}], kind)).to_pylist()
    assert text == (
        '{"numRecords":1,"minValues":{"v":{},"s":"tab\\tand,"},'
        '"maxValues":{"t":"1969-12-31T23:59:59.999Z","f":0.1}}'
    )
    assert empty == "{}"


PARTITIONS = {
    "s": "string",
    "bin": "binary",
    "b": "boolean",
    "i": "integer",
    "f": "double",
    "dec": "decimal(10,2)",
    "dt": "date",
    "ts": "timestamp",
    "ntz": "timestamp_ntz",
}


def test_partition_values_become_what_delta_spark_makes_of_them() -> None:
    kind = partition_type(_schema({**PARTITIONS, "x": "long"}), PARTITIONS)
    assert kind is not None
    texts = {
        "s": "p x",
        "bin": "A\ufffd",
        "b": "true",
        "i": "5",
        "f": "NaN",
        "dec": "12.30",
        "dt": "2021-02-03",
        "ts": "2021-02-03T04:05:06.500000Z",
        "ntz": "2021-02-03 04:05:06.5",
    }
    rows: list[list[tuple[str, str | None]] | None] = [
        list(texts.items()),
        [(name, None) for name in texts],
        [(name, "") for name in texts],
        [],
        None,
    ]
    maps = pa.array(rows, pa.map_(pa.string(), pa.string()))
    first, *others, nothing = parse_partition_values(maps, kind).to_pylist()
    assert math.isnan(first.pop("f"))
    assert first == {
        "s": "p x",
        "bin": b"A\xef\xbf\xbd",
        "b": True,
        "i": 5,
        "dec": Decimal("12.30"),
        "dt": date(2021, 2, 3),
        "ts": datetime(2021, 2, 3, 4, 5, 6, 500000, UTC),
        "ntz": datetime(2021, 2, 3, 4, 5, 6, 500000),  # noqa: DTZ001
    }
    assert others == [dict.fromkeys(PARTITIONS)] * 3
    assert nothing is None


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        ("integer", " 7 ", 7),
        ("integer", "1_000", None),
        ("integer", "٣", None),
        ("byte", "300", None),
        ("boolean", "yes please", None),
        ("double", "1.5E3", 1500.0),
        ("double", "-Infinity", -math.inf),
        ("double", "0x1", None),
        ("decimal(3,1)", "12.34", None),
        ("date", "tomorrow", None),
        ("date", "2021-7-1", date(2021, 7, 1)),
        ("date", "2021-7-32", None),
        ("timestamp", "2021-7-1 2:0:0", datetime(2021, 7, 1, 0, 0, tzinfo=UTC)),
        ("timestamp", "2021-7-1T2:00:00.5Z", datetime(2021, 7, 1, 2, 0, 0, 500000, UTC)),
        ("timestamp", "2021-07-01 02:00:00", datetime(2021, 7, 1, 0, 0, tzinfo=UTC)),
        ("timestamp", "2021-07-01", datetime(2021, 6, 30, 22, 0, tzinfo=UTC)),
        ("geometry(4326)", "POINT", "POINT"),
    ],
)
def test_single_partition_values(kind: str, text: str, value: Any) -> None:
    typed = partition_type(_schema({"p": kind}), ["p"])
    maps = pa.array([[("p", text)]], pa.map_(pa.string(), pa.string()))
    assert parse_partition_values(maps, typed, "Europe/Berlin").to_pylist() == [{"p": value}]


def test_tables_without_partitions_have_no_partition_type() -> None:
    assert partition_type(_schema({"a": "long"}), []) is None
    with pytest.raises(CorruptLog, match="nobody"):
        partition_type(_schema({"a": "long"}), ["nobody"])


@pytest.mark.parametrize(
    ("text", "value"),
    [("inf", math.inf), ("-inf", -math.inf), ("Infinity", math.inf), ("+INF", math.inf)],
)
def test_every_spelling_of_an_infinite_partition_value_is_read(text: str, value: float) -> None:
    maps = pa.array([[("p", text)]], pa.map_(pa.string(), pa.string()))
    for kind in (pa.float32(), pa.float64()):
        typed = pa.struct([("p", kind)])
        assert parse_partition_values(maps, typed).to_pylist() == [{"p": value}]
