"""Values of datasets that statistics, type changes or odd types could make wrong."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import polars
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import lakeferry
from lakeferry.dataset import arrow_files
from lakeferry.errors import CorruptLog, PackageMissing, UnsupportedFeature
from lakeferry.log.arrow_versions import CASTS_STRUCTS_OF_ANY_ORDER
from lakeferry.log.type_changes import is_supported
from tests.support.history import bitmap, z85
from tests.unit.dataset.test_dataset import PROTOCOL, add, commit, metadata

NAN = math.nan
X, Y, NESTED, WIDE = pc.field("x"), pc.field("y"), pc.field("s", "f"), pc.field("wide")
FILTERS = [
    test
    for field in (X, NESTED, WIDE)
    for test in (
        field.is_nan(),
        ~field.is_nan(),
        field > 0.5,
        ~(field > 0.5),
        field < 9,
        ~(field < 9),
        field == 1.0,
        field != 1.0,
        field <= 2.0,
        ~(field <= 2.0),
        field.isin([1.0, 2.0]),
        (field > 0.5) & (Y > 1),
    )
]
MAPPED = {
    "protocol": {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": ["columnMapping", "deletionVectors", "typeWidening", "timestampNtz"],
        "writerFeatures": ["columnMapping", "deletionVectors", "typeWidening", "timestampNtz"],
    }
}


def float_table(values: list[float | None]) -> pa.Table:
    return pa.table(
        {
            "x": pa.array(values, pa.float64()),
            "y": pa.array(range(len(values)), pa.int64()),
            "s": pa.array([{"f": v} for v in values], pa.struct([("f", pa.float32())])),
            "wide": pa.array(values, pa.float32()),
        }
    )


def mapped_metadata(table: pa.Table, mode: str) -> dict[str, Any]:
    kinds: dict[str, Any] = {"x": "double", "y": "long", "s": None, "wide": "double"}
    fields = []
    for index, name in enumerate(table.schema.names, 1):
        ids = {"delta.columnMapping.id": index, "delta.columnMapping.physicalName": name}
        inner = {"delta.columnMapping.id": 9, "delta.columnMapping.physicalName": "f"}
        nested = {
            "type": "struct",
            "fields": [{"name": "f", "type": "float", "nullable": True, "metadata": inner}],
        }
        kind = kinds[name] or nested
        fields.append({"name": name, "type": kind, "nullable": True, "metadata": ids})
    found = metadata({}, [])
    found["metaData"]["schemaString"] = as_json({"type": "struct", "fields": fields})
    if mode != "none":
        found["metaData"]["configuration"] = {"delta.columnMapping.mode": mode}
    return found


def as_json(value: Any) -> str:
    return json.dumps(value)


@pytest.mark.parametrize("mode", ["none", "name"])
@pytest.mark.parametrize("has_vector", [False, True])
def test_filters_find_rows_with_nan(mode: str, has_vector: bool, tmp_path: Path) -> None:
    """Parquet's statistics leave NaN out, so bounds of 1 and 2 say nothing about it."""
    parts: list[list[float | None]] = [
        [1.0, NAN, 2.0, NAN],
        [1.0, NAN],
        [NAN, NAN],
        [None, NAN, 3.0],
        [0.0, -0.0, NAN],
    ]
    actions, rows = [], []
    for number, values in enumerate(parts):
        table = float_table(values)
        path = tmp_path / f"{number}.parquet"
        pq.write_table(table, path)
        action = add(path.name, path.stat().st_size)
        if has_vector:
            gone = bitmap([0])
            action["add"]["deletionVector"] = {
                "storageType": "i",
                "pathOrInlineDv": z85(gone),
                "sizeInBytes": len(gone),
                "cardinality": 1,
            }
        actions.append(action)
        rows.append(table.slice(1) if has_vector else table)
    commit(tmp_path, 0, MAPPED, mapped_metadata(rows[0], mode), *actions)
    orders = lakeferry.open(str(tmp_path))
    expected = pa.concat_tables(rows).cast(orders.schema)
    for test in FILTERS:
        wanted = expected.filter(test).num_rows
        assert orders.count_rows(filter=test) == wanted, test
        assert orders.to_table(filter=test).num_rows == wanted, test
        assert orders.to_table(columns=["y"], filter=test).num_rows == wanted, test
        assert orders.filter(test).count_rows() == wanted, test
        assert orders.filter(test).to_table().num_rows == wanted, test
    for where in ("isnan(x)", "x > 0.5", "not x > 0.5", "x < 3", "x = 'nan'", "isnan(s.f)"):
        theirs = duckdb.sql(f"SELECT count(*) FROM expected WHERE {where}").fetchone()
        assert duckdb.sql(f"SELECT count(*) FROM orders WHERE {where}").fetchone() == theirs
    frame = polars.from_arrow(expected.select(["x", "y"]))
    assert isinstance(frame, polars.DataFrame)
    scanned = polars.scan_pyarrow_dataset(orders).select("x", "y")
    whole = polars.scan_pyarrow_dataset(orders, allow_pyarrow_filter=False).select("x", "y")
    is_nan = polars.col("x").is_nan()
    assert scanned.filter(is_nan).collect().height == frame.filter(is_nan).height
    larger = polars.col("x") > 0.5
    assert whole.filter(larger).collect().height == frame.filter(larger).height


def test_only_filters_by_floats_cost_local_files_a_detour(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    original = arrow_files.TableFiles.open_input_file

    def noting(self: arrow_files.TableFiles, path: str) -> pa.NativeFile:
        opened.append(path)
        return original(self, path)

    monkeypatch.setattr(arrow_files.TableFiles, "open_input_file", noting)
    pq.write_table(pa.table({"x": [1.0, NAN], "y": [1, 2]}), tmp_path / "a.parquet")
    kinds = {"x": "double", "y": "long"}
    size = (tmp_path / "a.parquet").stat().st_size
    commit(tmp_path, 0, PROTOCOL, metadata(kinds, []), add("a.parquet", size))
    orders = lakeferry.open(str(tmp_path))
    assert orders.to_table().num_rows == 2
    assert orders.to_table(filter=Y > 1).num_rows == 1
    assert orders.count_rows() == 2
    assert not opened
    assert orders.to_table(filter=X.is_nan()).num_rows == 1
    assert opened


def test_partition_values_may_be_nan(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": [1, 2]}), tmp_path / "a.parquet")
    size = (tmp_path / "a.parquet").stat().st_size
    (tmp_path / "b.parquet").write_bytes((tmp_path / "a.parquet").read_bytes())
    kinds = {"id": "long", "p": "double"}
    given = [add("a.parquet", size, p="NaN"), add("b.parquet", size, p="1.0")]
    commit(tmp_path, 0, PROTOCOL, metadata(kinds, ["p"]), *given)
    orders = lakeferry.open(str(tmp_path))
    p = pc.field("p")
    expected = orders.to_table()
    assert sum(map(math.isnan, expected["p"].to_pylist())) == 2
    for test in (p.is_nan(), p > 0.5, ~(p > 0.5), p == 1.0, p != 1.0):
        assert orders.count_rows(filter=test) == expected.filter(test).num_rows, test


@pytest.mark.parametrize("kind", ["float", "double"])
def test_partitions_of_zero_and_minus_zero_are_two(kind: str, tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": [1]}), tmp_path / "a.parquet")
    size = (tmp_path / "a.parquet").stat().st_size
    (tmp_path / "b.parquet").write_bytes((tmp_path / "a.parquet").read_bytes())
    given = [add("a.parquet", size, p="-0.0"), add("b.parquet", size, p="0.0")]
    commit(tmp_path, 0, PROTOCOL, metadata({"id": "long", "p": kind}, ["p"]), *given)
    orders = lakeferry.open(str(tmp_path))
    assert sorted(map(str, orders.to_table()["p"].to_pylist())) == ["-0.0", "0.0"]
    assert orders.count_rows(filter=pc.field("p") == 0.0) == 2


# --- Type changes ---------------------------------------------------------------


def changed(name: str, kind: Any, *changes: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "name": name,
        "type": kind,
        "nullable": True,
        "metadata": {"delta.typeChanges": list(changes)},
    }


def change(before: str, after: str, path: str | None = None) -> dict[str, str]:
    found = {"fromType": before, "toType": after}
    return found if path is None else found | {"fieldPath": path}


@pytest.mark.parametrize(
    ("before", "after", "supported"),
    [
        ("byte", "short", True),
        ("byte", "long", True),
        ("integer", "double", True),
        ("long", "double", False),
        ("float", "double", True),
        ("double", "float", False),
        ("date", "timestamp_ntz", True),
        ("date", "timestamp", False),
        ("decimal(5,2)", "decimal(10,4)", True),
        ("decimal(5, 2)", "decimal(6,3)", True),
        ("decimal(5,2)", "decimal(6,4)", False),
        ("decimal(5,2)", "decimal(5,1)", False),
        ("integer", "decimal(10,0)", True),
        ("integer", "decimal(12,2)", True),
        ("byte", "decimal(4,1)", True),
        ("byte", "decimal(3,1)", False),
        ("short", "decimal(5,0)", True),
        ("integer", "decimal(9,0)", False),
        ("long", "decimal(20,0)", True),
        ("long", "decimal(20,2)", False),
        ("string", "integer", False),
        ("integer", "string", False),
        ("long", "integer", False),
        ("something", "else", False),
    ],
)
def test_type_changes_are_those_of_the_protocol(before: str, after: str, supported: bool) -> None:
    assert is_supported(before, after) is supported


def nested(kind: str, field: dict[str, Any]) -> dict[str, Any]:
    inner = {"type": "struct", "fields": [field]}
    whole: Any = {
        "struct": inner,
        "array": {"type": "array", "elementType": inner, "containsNull": True},
        "map": {"type": "map", "keyType": "string", "valueType": inner, "valueContainsNull": True},
    }[kind]
    return {"name": "outer", "type": whole, "nullable": True, "metadata": {}}


def committed(place: Path, fields: list[dict[str, Any]], *actions: Mapping[str, Any]) -> None:
    action = metadata({}, [])
    action["metaData"]["schemaString"] = as_json({"type": "struct", "fields": fields})
    commit(place, 0, MAPPED, action, *actions)


@pytest.mark.parametrize("where", ["top", "struct", "array", "map"])
def test_type_changes_that_are_not_supported_fail_the_read(where: str, tmp_path: Path) -> None:
    field = changed("a", "string", change("short", "integer"), change("integer", "string"))
    committed(tmp_path, [field if where == "top" else nested(where, field)])
    with pytest.raises(UnsupportedFeature, match="integer to string"):
        lakeferry.open(str(tmp_path))
    table = lakeferry.Table(str(tmp_path))
    assert table.inspect().version == 0
    with pytest.raises(UnsupportedFeature, match="integer to string"):
        table.verify(table, rows=True)
    element = {"type": "array", "elementType": "string", "containsNull": True}
    (tmp_path / "b").mkdir()
    committed(tmp_path / "b", [changed("a", element, change("long", "string", "element"))])
    with pytest.raises(UnsupportedFeature, match="long to string"):
        lakeferry.open(str(tmp_path / "b"))


def test_supported_type_changes_give_the_values(tmp_path: Path) -> None:
    cases: list[tuple[str, str, pa.Array, Any]] = [
        ("byte", "long", pa.array([1, 2], pa.int8()), [1, 2]),
        ("integer", "double", pa.array([1, 2], pa.int32()), [1.0, 2.0]),
        ("float", "double", pa.array([1.5, NAN], pa.float32()), [1.5, NAN]),
        ("date", "timestamp_ntz", pa.array([date(2020, 1, 2), None]), None),
        ("decimal(5,2)", "decimal(10,4)", pa.array([Decimal("1.25"), None]), None),
        ("integer", "decimal(12,2)", pa.array([7, -8], pa.int32()), None),
        ("long", "decimal(22,2)", pa.array([7, -(2**63)], pa.int64()), None),
    ]
    columns = {f"c{number}": values for number, (_, _, values, _) in enumerate(cases)}
    columns["l"] = pa.array([[1], [2, None]], pa.list_(pa.int16()))
    columns["m"] = pa.array([[("a", 1.5)], []], pa.map_(pa.string(), pa.float32()))
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    fields = [changed(f"c{n}", after, change(b, after)) for n, (b, after, _, _) in enumerate(cases)]
    element = {"type": "array", "elementType": "long", "containsNull": True}
    entries = {"type": "map", "keyType": "string", "valueType": "double", "valueContainsNull": True}
    fields.append(changed("l", element, change("short", "long", "element")))
    fields.append(changed("m", entries, change("float", "double", "value")))
    committed(tmp_path, fields, add("a.parquet", (tmp_path / "a.parquet").stat().st_size))
    orders = lakeferry.open(str(tmp_path))
    found = orders.to_table()
    assert found["c0"].to_pylist() == [1, 2]
    assert found["c1"].to_pylist() == [1.0, 2.0]
    assert found["c2"][0].as_py() == 1.5
    assert math.isnan(found["c2"][1].as_py())
    assert found["c3"].to_pylist() == [datetime(2020, 1, 2), None]  # noqa: DTZ001
    assert found["c4"].to_pylist() == [Decimal("1.25"), None]
    assert found["c5"].to_pylist() == [7, -8]
    assert found["c6"].to_pylist() == [7, -(2**63)]
    assert found["l"].to_pylist() == [[1], [2, None]]
    assert found["m"].to_pylist() == [[("a", 1.5)], []]
    c = {name: pc.field(name) for name in found.schema.names}
    for test in (
        c["c0"] > 1,
        c["c1"] > 1.5,
        c["c2"] > 1.0,
        c["c3"] == datetime(2020, 1, 2),  # noqa: DTZ001
        c["c3"] < datetime(2020, 1, 2, 1),  # noqa: DTZ001
        c["c4"] == Decimal("1.2500"),
        c["c5"] < Decimal("0.00"),
        c["c6"] < Decimal("0.00"),
    ):
        assert orders.count_rows(filter=test) == found.filter(test).num_rows == 1, test
        assert orders.to_table(filter=test).num_rows == 1, test


# --- Types that Arrow doesn't have ----------------------------------------------


def test_variants_are_their_two_parts(tmp_path: Path) -> None:
    parts = [{"value": b"\x0c\x01", "metadata": b"\x01\x00\x00"}, None]
    kind = pa.struct([("value", pa.binary()), ("metadata", pa.binary())])
    pq.write_table(pa.table({"id": [1, 2], "v": pa.array(parts, kind)}), tmp_path / "a.parquet")
    size = (tmp_path / "a.parquet").stat().st_size
    commit(
        tmp_path, 0, PROTOCOL, metadata({"id": "long", "v": "variant"}, []), add("a.parquet", size)
    )
    opened = lakeferry.open(str(tmp_path))
    if CASTS_STRUCTS_OF_ANY_ORDER:
        assert opened.to_table()["v"].to_pylist() == parts
        return
    for read in (opened.to_table, lambda: opened.head(1), lambda: list(opened.to_batches())):
        with pytest.raises(PackageMissing, match="can't read a struct") as refused:
            read()
        assert refused.value.remedy == "pip install 'pyarrow>=21'"
    with pytest.raises(duckdb.Error, match="can't read a struct"):
        duckdb.sql("SELECT v FROM opened").fetchall()
    assert opened.to_table(columns=["id"])["id"].to_pylist() == [1, 2]


@pytest.mark.parametrize("kind", ["geometry(OGC:CRS84)", "shredded"])
def test_only_scans_of_unreadable_columns_are_refused(kind: str, tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": [1, 2], "g": [b"", b""]}), tmp_path / "a.parquet")
    size = (tmp_path / "a.parquet").stat().st_size
    name = "variantShredding" if kind == "shredded" else "geospatial"
    names = ["variantType", name]
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7}
    lists = {"readerFeatures": names, "writerFeatures": names}
    kinds = {"id": "long", "g": "variant" if kind == "shredded" else kind}
    commit(tmp_path, 0, {"protocol": protocol | lists}, metadata(kinds, []), add("a.parquet", size))
    orders = lakeferry.open(str(tmp_path))
    assert orders.count_rows() == 2
    assert orders.to_table(columns=["id"], filter=pc.field("id") > 1).num_rows == 1
    assert duckdb.sql("SELECT sum(id) FROM orders").fetchone() == (3,)
    for asked in (None, ["g"], {"h": pc.field("g").is_null()}):
        with pytest.raises(UnsupportedFeature, match="'g'"):
            orders.to_table(columns=asked)
    with pytest.raises(UnsupportedFeature, match="'g'"):
        orders.count_rows(filter=pc.field("g").is_valid())


# --- Days that Python doesn't know -----------------------------------------------

FAR = {
    "-9999-12-31 23:59:59.999999": "-9999-12-31 23:59:59.999999",
    "+10000-01-01 00:00:00": "10000-01-01 00:00:00.000000",
    "10000-01-01T00:00:00Z": "10000-01-01 00:00:00.000000",
    "0000-02-29 00:00:00": "0000-02-29 00:00:00.000000",
    "-0001-12-31": "-0001-12-31 00:00:00.000000",
    "2024-02-29 01:02:03": "2024-02-29 01:02:03.000000",
}


@pytest.mark.parametrize("kind", ["timestamp", "timestamp_ntz", "date"])
def test_partitions_lie_outside_of_the_years_of_python(kind: str, tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": [1]}), tmp_path / "0.parquet")
    size = (tmp_path / "0.parquet").stat().st_size
    spelled = {text[: text.index("-", 2) + 6] if kind == "date" else text for text in FAR}
    actions = []
    for number, text in enumerate(sorted(spelled)):
        (tmp_path / f"{number}.parquet").write_bytes((tmp_path / "0.parquet").read_bytes())
        actions.append(add(f"{number}.parquet", size, p=text))
    commit(tmp_path, 0, MAPPED, metadata({"id": "long", "p": kind}, ["p"]), *actions)
    orders = lakeferry.open(str(tmp_path))
    found = orders.to_table()
    assert found.num_rows == len(spelled)
    assert found["p"].null_count == 0
    if kind != "date":
        shown = pc.strftime(found["p"].cast(pa.timestamp("us")), "%Y-%m-%d %H:%M:%S")
        assert {text.lstrip("+") for text in shown.to_pylist()} == set(FAR.values())
    lakeferry.Table(str(tmp_path)).checkpoint()
    assert lakeferry.open(str(tmp_path)).count_rows() == len(spelled)


@pytest.mark.parametrize(
    "text", ["2024-02-30 00:00:00", "2023-02-29 00:00:00", "x", "2024-01-01 24:00:00"]
)
def test_days_that_no_calendar_has_are_corrupt(text: str, tmp_path: Path) -> None:
    kinds = {"id": "long", "p": "timestamp"}
    commit(tmp_path, 0, PROTOCOL, metadata(kinds, ["p"]), add("x.parquet", 9, p=text))
    with pytest.raises(CorruptLog):
        lakeferry.open(str(tmp_path))
