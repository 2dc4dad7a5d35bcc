"""Statistics as text and as values.

Texts and values of ``EVERY_TYPE`` are those of a checkpoint that delta-spark 4.4.0 wrote for a
table with these columns.
"""

from __future__ import annotations

import math
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from lakeferry.log.stats import format_stats, parse_stats
from lakeferry.log.stats_columns import stats_type
from tests.unit.log.test_stats_columns import EVERY_TYPE, INSTANT, schema_of

TEXT = (
    '{"numRecords":3,"minValues":{"i8":-1,"i16":-2,"i32":-3,"i64":-9223372036854775808,"f":1.5,'
    '"d":"-Infinity","dec9":-12.34,"dec38":1234567890123456789012345678.0123456789,'
    '"s":"abc\\"\\\\ü","dt":"0001-01-01","ts":"0001-01-01T00:00:00.000Z",'
    '"ntz":"2020-01-02T03:04:05.678","st":{"x":1,"yz":"q","inner":'
    '{"q":"1969-12-31T23:59:59.999Z"}},"weird":7},"maxValues":{"f":"NaN","st":{"inner":{}}},'
    '"nullCount":{"b":1,"arr":0,"st":{"x":2,"inner":{"a":1}},"only":{"aa":1}},"tightBounds":true}'
)


def test_json_becomes_values_and_comes_back_as_the_same_text() -> None:
    kind = stats_type(schema_of(EVERY_TYPE), {}, tight_bounds=True)
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
    kind = stats_type(schema_of({"a": "long"}), {})
    assert parse_stats(pa.array([text]), kind).to_pylist() == [None]


def test_chunks_are_put_together_again() -> None:
    kind = stats_type(schema_of({"a": "long"}), {})
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
