"""Partition values as text and as values."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from lakeferry.log.partition_values import parse_partition_values
from lakeferry.log.stats_columns import partition_type
from tests.unit.log.test_stats_columns import schema_of

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
    kind = partition_type(schema_of({**PARTITIONS, "x": "long"}), PARTITIONS)
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
    typed = partition_type(schema_of({"p": kind}), ["p"])
    maps = pa.array([[("p", text)]], pa.map_(pa.string(), pa.string()))
    assert parse_partition_values(maps, typed, "Europe/Berlin").to_pylist() == [{"p": value}]


@pytest.mark.parametrize(
    ("text", "value"),
    [("inf", math.inf), ("-inf", -math.inf), ("Infinity", math.inf), ("+INF", math.inf)],
)
def test_every_spelling_of_an_infinite_partition_value_is_read(text: str, value: float) -> None:
    maps = pa.array([[("p", text)]], pa.map_(pa.string(), pa.string()))
    for kind in (pa.float32(), pa.float64()):
        typed = pa.struct([("p", kind)])
        assert parse_partition_values(maps, typed).to_pylist() == [{"p": value}]
