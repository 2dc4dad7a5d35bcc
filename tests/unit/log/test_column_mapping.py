"""Data files under the names that users see."""

from __future__ import annotations

import io
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakeferry.errors import CorruptLog
from lakeferry.log.column_mapping import served_footer
from lakeferry.log.schema import Array, Column, Map, Struct, Type


def tagged(name: str, kind: pa.DataType, number: int) -> pa.Field:
    return pa.field(name, kind, metadata={"PARQUET:field_id": str(number)})


def written(table: pa.Table, **options: Any) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, **options)
    return sink.getvalue()


def read(data: bytes, columns: Struct, mode: str = "name") -> pa.Table:
    start, footer = served_footer(data, len(data), columns, mode)
    return pq.read_table(io.BytesIO(data[:start] + footer))


def column(name: str, physical: str, number: int, kind: Type | None = None) -> Column:
    return Column(name, physical, number, pa.int64() if kind is None else kind)


NESTED = pa.struct([tagged("p-x", pa.int64(), 4), tagged("p-y", pa.string(), 5)])
FILE = pa.table(
    [
        [1, 2],
        [{"p-x": 1, "p-y": "a"}, None],
        [[{"p-x": 2, "p-y": "b"}], []],
        [[("k", {"p-x": 3, "p-y": "c"})], None],
    ],
    schema=pa.schema(
        [
            tagged("p-a", pa.int64(), 1),
            tagged("p-s", NESTED, 2),
            tagged("p-l", pa.list_(NESTED), 3),
            tagged("p-m", pa.map_(pa.string(), NESTED), 6),
        ]
    ),
)
INNER = Struct((column("x", "p-x", 4), column("ein sehr langer Name " * 9, "p-y", 5, pa.string())))
TABLE = Struct(
    (
        column("a", "p-a", 1),
        column("s", "p-s", 2, INNER),
        column("l", "p-l", 3, Array(INNER)),
        column("m", "p-m", 6, Map(pa.string(), INNER)),
    )
)


@pytest.mark.parametrize("mode", ["name", "id"])
@pytest.mark.parametrize("arrow_schema", [True, False])
def test_names_are_replaced_at_every_depth(mode: str, arrow_schema: bool) -> None:
    long = INNER.columns[1].name
    found = read(written(FILE, store_schema=arrow_schema), TABLE, mode)
    assert found.to_pydict() == {
        "a": [1, 2],
        "s": [{"x": 1, long: "a"}, None],
        "l": [[{"x": 2, long: "b"}], []],
        "m": [[("k", {"x": 3, long: "c"})], None],
    }


def test_names_in_the_file_count_for_nothing_where_ids_do() -> None:
    table = Struct((column("s", "p-a", 1), column("a", "p-s", 2, INNER)))
    assert read(written(FILE), table, "id")["s"].to_pylist() == [1, 2]


def test_a_dropped_column_does_not_come_back_under_its_old_name() -> None:
    data = written(pa.table({"a": [1], "b": [2]}))
    table = Struct((column("a", "col-1", 3), column("c", "b", 2), column("dropped 0", "x", 4)))
    found = read(data, table)
    assert found.column_names == ["dropped 0'", "c"]
    assert found["c"].to_pylist() == [2]


def test_filters_and_projections_reach_the_file() -> None:
    table = pa.table({"p-a": list(range(1000)), "p-b": ["x"] * 1000})
    data = written(table, row_group_size=100)
    columns = Struct((column("a", "p-a", 1), column("b", "p-b", 2, pa.string())))
    start, footer = served_footer(data, len(data), columns, "name")
    found = pq.read_table(
        io.BytesIO(data[:start] + footer), columns=["a"], filters=[("a", ">=", 950)]
    )
    assert found.to_pydict() == {"a": list(range(950, 1000))}
    names = pq.ParquetFile(io.BytesIO(data[:start] + footer)).metadata.row_group(3).column(0)
    assert names.statistics.min == 300


def test_what_is_no_parquet_file_is_refused() -> None:
    data = written(FILE)
    for wrong in (b"", b"PAR1", data[:-1], b"x" * 100 + data[-8:]):
        with pytest.raises(CorruptLog):
            served_footer(wrong, len(wrong), TABLE, "name")
    start, _ = served_footer(data, len(data), TABLE, "name")
    for at in range(start, start + 400):
        broken = data[:at] + b"\xff" + data[at + 1 :]
        try:
            served_footer(broken, len(broken), TABLE, "name")
        except CorruptLog:
            continue
