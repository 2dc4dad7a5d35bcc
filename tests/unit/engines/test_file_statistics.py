"""Statistics of written files: bounds that hold for every row, in the text that others write."""

from __future__ import annotations

import json
import math
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakeferry.engines.file_statistics import FileStatistics
from lakeferry.log import stats
from lakeferry.log.actions import Metadata
from lakeferry.log.stats_columns import stats_type

INSTANT, LOCAL = pa.timestamp("us", "UTC"), pa.timestamp("us")


def metadata(
    columns: dict[str, Any],
    partitions: tuple[str, ...] = (),
    configuration: dict[str, str] | None = None,
) -> Metadata:
    fields = [
        {"name": name, "type": kind, "nullable": True, "metadata": {}}
        for name, kind in columns.items()
    ]
    schema = json.dumps({"type": "struct", "fields": fields})
    return Metadata("t", schema, partitions, configuration or {})


def said(kind: Any, *batches: pa.Array) -> dict[str, Any]:
    """Return what is said of one column."""
    seen = FileStatistics(metadata({"c": kind}))
    for values in batches:
        seen.see(pa.record_batch({"c": values}))
    found: dict[str, Any] = json.loads(seen.text())
    return found


def bounds(kind: Any, *batches: pa.Array) -> tuple[Any, Any]:
    found = said(kind, *batches)
    return found["minValues"].get("c"), found["maxValues"].get("c")


@pytest.mark.parametrize(
    ("kind", "values", "expected"),
    [
        ("byte", pa.array([-128, None, 127], pa.int8()), (-128, 127)),
        ("long", pa.array([2**63 - 1, -(2**63)]), (-(2**63), 2**63 - 1)),
        ("float", pa.array([0.1, -1.5], pa.float32()), (-1.5, 0.1)),
        ("double", pa.array([1e300, -1e-300]), (-1e-300, 1e300)),
        ("double", pa.array([math.inf, -math.inf]), ("-Infinity", "Infinity")),
        ("double", pa.array([1.0, math.nan]), (None, None)),
        ("string", pa.array(["b", "", "ü"]), ("", "ü")),
        ("date", pa.array([date(1, 1, 1), date(9999, 12, 31)]), ("0001-01-01", "9999-12-31")),
        ("date", pa.array([-800_000, 3_000_000], pa.int32()).view(pa.date32()), (None, None)),
        ("boolean", pa.array([True, False]), (None, None)),
        ("binary", pa.array([b"a"]), (None, None)),
    ],
)
def test_bounds_are_those_of_the_values(kind: str, values: pa.Array, expected: Any) -> None:
    found = said(kind, values)
    assert found["numRecords"] == len(values)
    assert found["nullCount"] == {"c": values.null_count}
    if kind in ("boolean", "binary"):
        assert "minValues" not in found
    else:
        assert bounds(kind, values) == expected


def test_decimals_keep_every_digit() -> None:
    seen = FileStatistics(metadata({"c": "decimal(38,10)"}))
    least, greatest = Decimal("-1234567890123456789012345678.0123456789"), Decimal("0.0000000001")
    seen.see(pa.record_batch({"c": pa.array([greatest, least], pa.decimal128(38, 10))}))
    text = seen.text()
    assert '"minValues":{"c":-1234567890123456789012345678.0123456789}' in text
    assert Decimal(json.loads(text, parse_float=str)["maxValues"]["c"]) == greatest


@pytest.mark.parametrize(
    ("micros", "expected"),
    [
        (0, ("1970-01-01T00:00:00.000", "1970-01-01T00:00:00.000")),
        (1, ("1970-01-01T00:00:00.000", "1970-01-01T00:00:00.001")),
        (-1, ("1969-12-31T23:59:59.999", "1970-01-01T00:00:00.000")),
        (999_999, ("1970-01-01T00:00:00.999", "1970-01-01T00:00:01.000")),
        (-1_500, ("1969-12-31T23:59:59.998", "1969-12-31T23:59:59.999")),
    ],
)
def test_instants_are_rounded_away_from_each_other(micros: int, expected: tuple[str, str]) -> None:
    assert bounds("timestamp_ntz", pa.array([micros], LOCAL)) == expected
    least, greatest = expected
    assert bounds("timestamp", pa.array([micros], INSTANT)) == (f"{least}Z", f"{greatest}Z")


def test_instants_beyond_the_years_of_four_digits_have_no_bound() -> None:
    last = datetime(9999, 12, 31, 23, 59, 59, 999_000, UTC)
    micros = pa.array([last], INSTANT).view(pa.int64())[0].as_py()
    assert bounds("timestamp", pa.array([micros], INSTANT))[1] == "9999-12-31T23:59:59.999Z"
    assert bounds("timestamp", pa.array([micros + 1], INSTANT)) == (
        "9999-12-31T23:59:59.999Z",
        None,
    )
    first = pa.array([datetime(1, 1, 1, tzinfo=UTC)], INSTANT).view(pa.int64())[0].as_py()
    assert bounds("timestamp", pa.array([first], INSTANT))[0] == "0001-01-01T00:00:00.000Z"
    assert bounds("timestamp", pa.array([first - 1], INSTANT))[0] is None


@pytest.mark.parametrize(
    ("text", "least", "greatest"),
    [
        ("x" * 32, "x" * 32, "x" * 32),
        ("x" * 33, "x" * 32, "x" * 32 + "\x7f"),
        ("x" * 32 + "\x7f", "x" * 32, "x" * 32 + "\U0010ffff"),
        ("ü" * 40, "ü" * 32, "ü" * 32 + "\U0010ffff"),
        ("😀" * 40, "😀" * 32, "😀" * 32 + "\U0010ffff"),
        ("x" * 32 + "\U0010ffff" * 9, "x" * 32, None),
    ],
)
def test_long_texts_are_cut_to_bounds(text: str, least: str, greatest: str | None) -> None:
    assert bounds("string", pa.array([text])) == (least, greatest)


@given(st.lists(st.text(alphabet=st.sampled_from("ax\x7fü￿😀\U0010ffff"), max_size=40), min_size=1))
def test_every_text_lies_within_its_bounds(texts: list[str]) -> None:
    least, greatest = bounds("string", pa.array(texts, pa.string()))
    encoded = [text.encode() for text in texts]
    assert least.encode() <= min(encoded)
    assert greatest is None or max(encoded) <= greatest.encode()


def test_batches_are_taken_together() -> None:
    batches = pa.array([5, None]), pa.array([None, None], pa.int64()), pa.array([7, 3])
    assert said("long", *batches) == {
        "numRecords": 6,
        "minValues": {"c": 3},
        "maxValues": {"c": 7},
        "nullCount": {"c": 3},
    }
    numbers = pa.array([1.0]), pa.array([math.nan]), pa.array([2.0])
    assert bounds("double", *numbers) == (None, None)


def test_a_column_of_nulls_has_a_count_and_no_bounds() -> None:
    found = said("string", pa.nulls(3, pa.string()))
    assert found == {"numRecords": 3, "minValues": {}, "maxValues": {}, "nullCount": {"c": 3}}


def test_a_file_without_indexed_columns_counts_its_rows() -> None:
    seen = FileStatistics(metadata({"c": "long"}, (), {"delta.dataSkippingNumIndexedCols": "0"}))
    seen.see(pa.record_batch({"c": [1, 2]}))
    assert seen.text() == '{"numRecords":2}'


def test_structs_are_nested_and_their_nulls_are_their_fields() -> None:
    inner = {
        "type": "struct",
        "fields": [
            {"name": "x", "type": "long", "nullable": True, "metadata": {}},
            {
                "name": "y",
                "type": {"type": "array", "elementType": "long", "containsNull": True},
                "nullable": True,
                "metadata": {},
            },
        ],
    }
    kind = pa.struct([("x", pa.int64()), ("y", pa.list_(pa.int64()))])
    values = pa.array([{"x": 1, "y": [1]}, None, {"x": None, "y": None}, {"x": 4, "y": []}], kind)
    assert said(inner, values.slice(0, 2), values.slice(2)) == {
        "numRecords": 4,
        "minValues": {"c": {"x": 1}},
        "maxValues": {"c": {"x": 4}},
        "nullCount": {"c": {"x": 2, "y": 2}},
    }


def test_only_indexed_columns_are_spoken_of() -> None:
    batch = pa.record_batch({"a": [1], "b": [2], "c": [3], "p": [4]})
    kinds = dict.fromkeys("apbc", "long")
    first = metadata(kinds, ("p",), {"delta.dataSkippingNumIndexedCols": "2"})
    named = metadata(kinds, ("p",), {"delta.dataSkippingStatsColumns": "c,`a`"})
    for wanted, names in ((first, {"a", "b"}), (named, {"a", "c"})):
        seen = FileStatistics(wanted, tight_bounds=True)
        seen.see(batch)
        found = json.loads(seen.text())
        assert set(found["nullCount"]) == set(found["minValues"]) == names
        assert found["tightBounds"] is True


def test_physical_names_count_only_where_columns_are_mapped() -> None:
    field = {
        "name": "c",
        "type": "long",
        "nullable": True,
        "metadata": {"delta.columnMapping.id": 1, "delta.columnMapping.physicalName": "col-1"},
    }
    schema = json.dumps({"type": "struct", "fields": [field]})
    for configuration, name in (({}, "c"), ({"delta.columnMapping.mode": "name"}, "col-1")):
        seen = FileStatistics(Metadata("t", schema, (), configuration))
        seen.see(pa.record_batch({name: [5]}))
        assert json.loads(seen.text())["minValues"] == {name: 5}


def test_the_text_is_read_back_as_it_was_meant() -> None:
    kinds = {"d": "decimal(10,2)", "t": "timestamp", "n": "timestamp_ntz", "s": "string"}
    wanted = metadata(kinds)
    seen = FileStatistics(wanted)
    moment = datetime(2024, 2, 29, 12, 30, 15, 250_000, UTC)
    row = {"d": Decimal("1.50"), "t": moment, "n": moment.replace(tzinfo=None), "s": 'q"\\\n'}
    types = [pa.decimal128(10, 2), INSTANT, LOCAL, pa.string()]
    arrays = [pa.array([value], kind) for value, kind in zip(row.values(), types, strict=True)]
    seen.see(pa.record_batch(arrays, names=list(row)))
    kind = stats_type(wanted.schema_string, {})
    (parsed,) = stats.parse_stats(pa.array([seen.text()]), kind).to_pylist()
    assert parsed["minValues"] == parsed["maxValues"] == row
