"""Data files written anew: which rows, names, ids and types they have, and what is said of them."""

from __future__ import annotations

import io
import json
import re
import struct
import uuid
import zlib
from collections.abc import Iterable, Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakeferry.engine import REWRITTEN, RewritePlan, Volume
from lakeferry.engines import file_rewrite, object_copy
from lakeferry.engines.local_engine import LocalEngine
from lakeferry.errors import CorruptLog, MissingFile, UnsupportedFeature
from lakeferry.log import arrow_versions, file_actions
from lakeferry.log.actions import Metadata
from lakeferry.storage import Store
from tests.support.history import bitmap, z85
from tests.support.stores import DictStore

Row = dict[str, Any]
NEW_NAME = r"part-00000-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\.c000\.snappy\.parquet"
FIELD_ID = b"PARQUET:field_id"
ROW_TRACKING = {
    "delta.enableRowTracking": "true",
    "delta.rowTracking.materializedRowIdColumnName": "_row-id",
    "delta.rowTracking.materializedRowCommitVersionColumnName": "_row-version",
}


# --- Tables to order -----------------------------------------------------------


def column(name: str, kind: Any, field_id: int | None = None, physical: str | None = None) -> Row:
    mapped: Row = {}
    if field_id is not None:
        mapped["delta.columnMapping.id"] = field_id
        mapped["delta.columnMapping.physicalName"] = physical or name
    return {"name": name, "type": kind, "nullable": True, "metadata": mapped}


def record(*fields: Row) -> Row:
    return {"type": "struct", "fields": list(fields)}


def array(element: Any) -> Row:
    return {"type": "array", "elementType": element, "containsNull": True}


def mapping(key: Any, value: Any) -> Row:
    return {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": True}


def metadata(*columns: Row, partitions: tuple[str, ...] = (), **configuration: str) -> Metadata:
    settings = {key.replace("__", "."): value for key, value in configuration.items()}
    return Metadata("t", json.dumps(record(*columns)), partitions, settings)


def mapped(mode: str, *columns: Row, partitions: tuple[str, ...] = ()) -> Metadata:
    return metadata(*columns, partitions=partitions, delta__columnMapping__mode=mode)


def put(store: Store, path: str, table: pa.Table, *, name: str | None = None, **more: Any) -> Row:
    """Write a data file, and return the row of its ``add``."""
    options = {key: more.pop(key) for key in list(more) if key not in file_actions.ADD.names}
    sink = io.BytesIO()
    pq.write_table(table, sink, **options)
    store.put(name or path, sink.getvalue())
    common = {"path": path, "size": len(sink.getvalue()), "partitionValues": {}}
    return common | {"modificationTime": 1, "dataChange": True} | more


def vector(rows: Iterable[int], storage: str = "i", store: Store | None = None) -> Row:
    """Return the descriptor of a deletion vector; its file is put where it isn't inline."""
    chosen = list(rows)
    data = bitmap(chosen)
    described: Row = {"sizeInBytes": len(data), "cardinality": len(chosen)}
    if storage == "i":
        return described | {"storageType": "i", "pathOrInlineDv": z85(data)}
    assert store is not None
    name = uuid.UUID(int=7)
    framed = struct.pack(">I", len(data)) + data + struct.pack(">I", zlib.crc32(data))
    store.put(f"deletion_vector_{name}.bin", b"\1" + framed)
    where = z85(name.bytes) if storage == "u" else f"{store.uri}/deletion_vector_{name}.bin"
    return described | {"storageType": storage, "pathOrInlineDv": where, "offset": 1}


def rewrite(
    stores: Store | Iterable[Store],
    rows: Iterable[Row],
    before: Metadata,
    after: Metadata | None = None,
    *,
    parallel: int = 4,
    **options: Any,
) -> list[Row]:
    """Return what became of files, in the plan's order."""
    known = [stores] if isinstance(stores, Store) else list(stores)
    by_uri = {store.uri: store for store in known}
    table = pa.Table.from_pylist(list(rows), file_actions.ADD)
    plan = RewritePlan(known[0].config, table, before, after or before, **options)
    engine = LocalEngine(lambda config: by_uri[config.uri], parallel=parallel)
    batches = list(engine.rewrite(plan))
    assert all(batch.schema == REWRITTEN for batch in batches)
    found = [row for batch in batches for row in arrow_versions.to_rows(batch)]
    return sorted(found, key=lambda row: int(row["row"]))


def read(store: Store, row: Mapping[str, Any]) -> pa.Table:
    data = store.get(row["path"])
    assert len(data) == row["size"]
    return pq.read_table(io.BytesIO(data))


def opened(store: Store, row: Mapping[str, Any]) -> pq.ParquetFile:
    return pq.ParquetFile(io.BytesIO(store.get(row["path"])))


def field_ids(kind: pa.Schema | pa.DataType) -> list[int]:
    """Return all field ids of a schema, outer ones first."""
    if isinstance(kind, pa.MapType):
        children = [kind.key_field, kind.item_field]
    elif isinstance(kind, pa.Schema):
        children = list(kind)
    else:
        children = [kind.field(at) for at in range(kind.num_fields)]
    found: list[int] = []
    for each in children:
        found += [int(each.metadata[FIELD_ID])] if FIELD_ID in (each.metadata or {}) else []
        found += field_ids(each.type)
    return found


def local(*when: int) -> datetime:
    """Return a time without a zone."""
    return datetime(*when, tzinfo=UTC).replace(tzinfo=None)  # type: ignore[misc,arg-type]


IDS = metadata(column("id", "long"), column("name", "string"))
TEN = pa.table({"id": list(range(10)), "name": [f"n{n}" for n in range(10)]})


# --- Deleted rows --------------------------------------------------------------


@pytest.mark.parametrize("storage", ["i", "u", "p"])
def test_deleted_rows_are_not_written(storage: str) -> None:
    store = DictStore()
    row = put(
        store, "a.parquet", TEN, deletionVector=vector([0, 3, 9], storage, store), row_group_size=4
    )
    (found,) = rewrite(store, [row], IDS, tight_bounds=True)
    assert found["outcome"] == "rewritten"
    assert found["deletionVector"] is None
    left = [1, 2, 4, 5, 6, 7, 8]
    assert read(store, found).to_pydict() == {"id": left, "name": [f"n{n}" for n in left]}
    assert json.loads(found["stats"]) == {
        "numRecords": 7,
        "minValues": {"id": 1, "name": "n1"},
        "maxValues": {"id": 8, "name": "n8"},
        "nullCount": {"id": 0, "name": 0},
        "tightBounds": True,
    }


def test_a_file_and_its_vector_elsewhere_become_a_file_of_the_table() -> None:
    here, there = DictStore(uri="memory://here"), DictStore(uri="memory://there")
    row = put(there, "memory://there/x=1/a.parquet", TEN, name="x=1/a.parquet")
    row["deletionVector"] = vector(range(9), "p", there)
    before = set(there.objects)
    (found,) = rewrite([here, there], [row], IDS)
    assert re.fullmatch(NEW_NAME, found["path"])
    assert read(here, found)["id"].to_pylist() == [9]
    assert set(there.objects) == before


def test_a_file_of_which_no_row_is_left_has_no_successor() -> None:
    store = DictStore()
    row = put(store, "a.parquet", TEN, deletionVector=vector(range(10)), baseRowId=5)
    (found,) = rewrite(store, [row], IDS)
    assert found.pop("outcome") == "emptied"
    assert found.pop("row") == 0
    assert set(found.values()) == {None}
    assert list(store.objects) == ["a.parquet"]


def test_a_vector_of_another_file_is_refused() -> None:
    store = DictStore()
    row = put(store, "a.parquet", TEN, deletionVector=vector([10]))
    with pytest.raises(CorruptLog, match="belongs to another file") as refused:
        rewrite(store, [row], IDS)
    assert refused.value.fields["path"] == "a.parquet"


# --- Column mapping ------------------------------------------------------------


def with_id(field: pa.Field, number: int) -> pa.Field:
    return field.with_metadata({FIELD_ID: str(number)})


def nested(mode: str) -> Metadata:
    inner = record(column("x", "integer", 5, "col-5"), column("y", "string", 6, "col-6"))
    return mapped(
        mode,
        column("id", "long", 1, "col-1"),
        column("point", inner, 2, "col-2"),
        column("many", array(record(column("z", "integer", 7, "col-7"))), 3, "col-3"),
        column("by key", mapping("string", record(column("w", "long", 8, "col-8"))), 4, "col-4"),
    )


UNMAPPED_NESTED = metadata(
    column("id", "long"),
    column("point", record(column("x", "integer"), column("y", "string"))),
    column("many", array(record(column("z", "integer")))),
    column("by key", mapping("string", record(column("w", "long")))),
)
NESTED_ROWS: list[Row] = [
    {"id": 1, "point": {"x": 1, "y": "a"}, "many": [{"z": 1}, None], "by key": [("k", {"w": 1})]},
    {"id": 2, "point": None, "many": None, "by key": None},
    {"id": 3, "point": {"x": None, "y": "b"}, "many": [], "by key": []},
    {"id": 4, "point": {"x": 4, "y": None}, "many": [{"z": None}], "by key": [("l", None)]},
]


def nested_file() -> pa.Table:
    """The rows as a file with column mapping has them, and a column that was dropped."""
    inner = pa.struct(
        [
            with_id(pa.field("col-6", pa.string()), 6),
            with_id(pa.field("dropped", pa.int32()), 60),
            with_id(pa.field("col-5", pa.int32()), 5),
        ]
    )
    many = pa.list_(pa.field("element", pa.struct([with_id(pa.field("col-7", pa.int32()), 7)])))
    by_key = pa.map_(pa.string(), pa.struct([with_id(pa.field("col-8", pa.int64()), 8)]))
    schema = pa.schema(
        [
            with_id(pa.field("col-3", many), 3),
            with_id(pa.field("gone", pa.string()), 30),
            with_id(pa.field("col-1", pa.int64()), 1),
            with_id(pa.field("col-2", inner), 2),
            with_id(pa.field("col-4", by_key), 4),
        ]
    )
    rows = [
        {
            "col-1": row["id"],
            "gone": "x",
            "col-2": row["point"]
            and {"col-5": row["point"]["x"], "col-6": row["point"]["y"], "dropped": 9},
            "col-3": row["many"] and [each and {"col-7": each["z"]} for each in row["many"]],
            "col-4": row["by key"] and [(k, v and {"col-8": v["w"]}) for k, v in row["by key"]],
        }
        for row in NESTED_ROWS
    ]
    rows[2] |= {"col-3": [], "col-4": []}
    return pa.Table.from_pylist(rows, schema)


@pytest.mark.parametrize("mode", ["name", "id"])
@pytest.mark.parametrize("deleted", [[], [0, 2]])
def test_without_mapping_columns_have_the_names_that_users_see(
    mode: str, deleted: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Batches of fewer rows than a row group has begin inside of it.
    monkeypatch.setattr(file_rewrite, "_BATCH_ROWS", 2)
    store = DictStore()
    row = put(store, "a.parquet", nested_file(), row_group_size=3)
    if deleted:
        row["deletionVector"] = vector(deleted)
    (found,) = rewrite(store, [row], nested(mode), UNMAPPED_NESTED)
    table = read(store, found)
    expected = [each for number, each in enumerate(NESTED_ROWS) if number not in deleted]
    assert table.to_pylist() == expected
    assert table.schema.names == ["id", "point", "many", "by key"]
    assert field_ids(table.schema) == []
    said = json.loads(found["stats"])
    assert set(said["nullCount"]) == {"id", "point", "many", "by key"}
    assert set(said["nullCount"]["point"]) == {"x", "y"}


@pytest.mark.parametrize("mode", ["name", "id"])
def test_where_mapping_stays_names_and_ids_stay(mode: str) -> None:
    store = DictStore()
    row = put(store, "a.parquet", nested_file(), deletionVector=vector([1]))
    (found,) = rewrite(store, [row], nested(mode))
    table = read(store, found)
    assert table.schema.names == ["col-1", "col-2", "col-3", "col-4"]
    assert field_ids(table.schema) == [1, 2, 5, 6, 3, 7, 4, 8]
    assert table["col-2"].to_pylist()[0] == {"col-5": 1, "col-6": "a"}
    assert set(json.loads(found["stats"])["nullCount"]) == set(table.schema.names)


def test_ids_inside_of_lists_and_maps_stay_where_mapping_stays() -> None:
    element = with_id(pa.field("element", pa.int32()), 100)
    store = DictStore()
    schema = pa.schema([with_id(pa.field("c", pa.list_(element)), 1)])
    row = put(store, "a.parquet", pa.table({"c": [[1], [2]]}, schema), deletionVector=vector([0]))
    before = mapped("name", column("list", array("integer"), 1, "c"))
    (found,) = rewrite(store, [row], before)
    assert field_ids(read(store, found).schema) == [1, 100]
    (found,) = rewrite(store, [row], before, metadata(column("list", array("integer"))))
    assert field_ids(read(store, found).schema) == []


def test_a_dropped_column_does_not_come_back_under_its_name() -> None:
    """A new column has the name of one that was dropped; old files have only the dropped one."""
    store = DictStore()
    before = mapped("name", column("id", "long", 1), column("name", "string", 3, "col-3"))
    row = put(store, "a.parquet", TEN.slice(0, 2))
    (found,) = rewrite(
        store, [row], before, metadata(column("id", "long"), column("name", "string"))
    )
    assert found["outcome"] == "rewritten"
    assert read(store, found).to_pydict() == {"id": [0, 1], "name": [None, None]}


def test_partition_values_have_the_names_that_are_wanted() -> None:
    store = DictStore()
    columns = column("id", "long", 1), column("day", "string", 2, "col-2")
    before = mapped("name", *columns, partitions=("day",))
    after = metadata(column("id", "long"), column("day", "string"), partitions=("day",))
    table = pa.table({"id": [1, 2]})
    rows = [
        put(store, "a.parquet", table, partitionValues={"col-2": "x"}),
        put(store, "b.parquet", table, partitionValues={"col-2": None}),
    ]
    found = rewrite(store, rows, before, after)
    assert [each["partitionValues"] for each in found] == [{"day": "x"}, {"day": None}]
    # Their data needs nothing, but under mapping their partition has another name.
    assert {each["outcome"] for each in found} == {"rewritten"}
    assert set(json.loads(found[0]["stats"])["nullCount"]) == {"id"}
    kept = rewrite(store, rows, before)
    assert [each["outcome"] for each in kept] == ["kept", "kept"]
    assert kept[0]["partitionValues"] == {"col-2": "x"}


def test_a_file_without_field_ids_is_refused_where_they_decide() -> None:
    store = DictStore()
    row = put(store, "a.parquet", TEN)
    with pytest.raises(CorruptLog, match="no field ids"):
        rewrite(store, [row], mapped("id", column("id", "long", 1)))


def test_a_partition_column_that_is_in_the_files_stays_in_them() -> None:
    store = DictStore()
    before = metadata(column("id", "long"), column("name", "string"), partitions=("name",))
    row = put(store, "a.parquet", TEN, deletionVector=vector([0]), partitionValues={"name": "x"})
    (found,) = rewrite(store, [row], before)
    assert read(store, found).schema.names == ["id", "name"]
    assert set(json.loads(found["stats"])["nullCount"]) == {"id"}


def test_without_mapping_a_column_is_found_in_any_case() -> None:
    store = DictStore()
    row = put(store, "a.parquet", TEN.rename_columns(["ID", "name"]), deletionVector=vector([1]))
    (found,) = rewrite(store, [row], IDS)
    assert read(store, found)["id"].to_pylist()[:2] == [0, 2]


def test_names_with_dots_are_not_paths() -> None:
    store = DictStore()
    table = pa.table({"a.b": [1, 2], "a": [{"b": 3, "c": 4}, None], "x.y": ["x", "y"]})
    inner = record(column("c", "long", 4), column("b", "long", 3))
    before = mapped("name", column("a.b", "long", 1), column("a", inner, 2))
    row = put(store, "a.parquet", table, deletionVector=vector([1]))
    (found,) = rewrite(store, [row], before)
    assert read(store, found).to_pylist() == [{"a.b": 1, "a": {"c": 4, "b": 3}}]


# --- Types ---------------------------------------------------------------------

WIDENED: dict[str, tuple[pa.Array, str, list[Any]]] = {
    "byte to short": (pa.array([-128, None], pa.int8()), "short", [-128, None]),
    "byte to long": (pa.array([127], pa.int8()), "long", [127]),
    "int to long": (pa.array([-(2**31)], pa.int32()), "long", [-(2**31)]),
    "int to double": (pa.array([2**31 - 1], pa.int32()), "double", [2.0**31 - 1]),
    "int to decimal": (pa.array([7], pa.int32()), "decimal(12,2)", [Decimal("7.00")]),
    "long to decimal": (
        pa.array([2**63 - 1]),
        "decimal(22,2)",
        [Decimal(2**63 - 1).quantize(Decimal("0.01"))],
    ),
    "float to double": (pa.array([0.5], pa.float32()), "double", [0.5]),
    "decimal to decimal": (
        pa.array([Decimal("1.25")], pa.decimal128(5, 2)),
        "decimal(12,4)",
        [Decimal("1.2500")],
    ),
    "date to timestamp_ntz": (
        pa.array([date(1, 1, 1), date(9999, 12, 31)]),
        "timestamp_ntz",
        [local(1, 1, 1), local(9999, 12, 31)],
    ),
}


@pytest.mark.parametrize("name", WIDENED)
def test_values_are_cast_to_the_type_that_is_wanted(name: str) -> None:
    values, kind, expected = WIDENED[name]
    store = DictStore()
    table = pa.table({"c": values, "s": pa.StructArray.from_arrays([values], ["c"])})
    row = put(store, "a.parquet", table)
    wanted = metadata(column("c", kind), column("s", record(column("c", kind))))
    (found,) = rewrite(store, [row], wanted)
    assert found["outcome"] == "rewritten"
    there = read(store, found)
    assert there["c"].to_pylist() == expected
    assert there["s"].to_pylist() == [{"c": value} for value in expected]
    # Once it is written so, there is nothing left to do.
    assert [each["outcome"] for each in rewrite(store, [found], wanted)] == ["kept"]


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (pa.array([1]), "integer"),
        (pa.array(["a"]), "long"),
        (pa.array([1.5]), "float"),
        (pa.array([Decimal("1.25")], pa.decimal128(5, 2)), "decimal(5,1)"),
        (pa.array([local(2020, 1, 1)]), "date"),
        (pa.array([datetime(2020, 1, 1, tzinfo=UTC)]), "timestamp_ntz"),
        (pa.array([[1]]), "long"),
        (pa.array([1]), array("long")),
    ],
)
def test_a_type_that_the_column_never_had_is_refused(values: pa.Array, kind: Any) -> None:
    store = DictStore()
    row = put(store, "a.parquet", pa.table({"c": values}))
    with pytest.raises(CorruptLog, match="contradicts") as refused:
        rewrite(store, [row], metadata(column("c", kind)))
    assert refused.value.fields == {"column": "c", "path": "a.parquet"}
    assert list(store.objects) == ["a.parquet"]


def test_a_value_that_does_not_fit_is_refused() -> None:
    store = DictStore()
    row = put(store, "a.parquet", pa.table({"c": pa.array([300], pa.int32())}))
    with pytest.raises(CorruptLog, match="data file a"):
        rewrite(store, [row], metadata(column("c", "byte")), only_where_needed=False)


def test_a_file_is_written_as_spark_writes_it() -> None:
    store = DictStore()
    table = pa.table(
        {
            "ts": pa.array([datetime(850, 1, 1, tzinfo=UTC)], pa.timestamp("us", "UTC")),
            "ntz": pa.array([local(2024, 1, 1, 1, 2, 3, 4)], pa.timestamp("us")),
            "small": pa.array([Decimal("1.25")], pa.decimal128(9, 2)),
            "text": pa.array(["a"]).dictionary_encode(),
            "large": pa.array(["b"], pa.large_string()),
            "list": pa.array([[1]], pa.large_list(pa.int32())),
        }
    ).replace_schema_metadata({"pandas": "{}", "org.apache.spark.version": "4.0.0"})
    wanted = metadata(
        column("ts", "timestamp"),
        column("ntz", "timestamp_ntz"),
        column("small", "decimal(9,2)"),
        column("text", "string"),
        column("large", "string"),
        column("list", array("integer")),
    )
    row = put(store, "a.parquet", table, compression="zstd")
    assert rewrite(store, [row], wanted)[0]["outcome"] == "kept"
    (found,) = rewrite(store, [row], wanted, only_where_needed=False)
    file = opened(store, found)
    assert file.metadata.metadata == {b"org.apache.spark.version": b"4.0.0"}
    columns = [file.schema.column(at) for at in range(len(file.schema))]
    logical = {each.path: json.loads(each.logical_type.to_json()) for each in columns}
    assert {each.path: each.physical_type for each in columns} == {
        "ts": "INT64",
        "ntz": "INT64",
        "small": "INT32",
        "text": "BYTE_ARRAY",
        "large": "BYTE_ARRAY",
        "list.list.element": "INT32",
    }
    assert (logical["ts"]["isAdjustedToUTC"], logical["ts"]["timeUnit"]) == (True, "microseconds")
    assert logical["ntz"]["isAdjustedToUTC"] is False
    assert logical["text"] == logical["large"] == {"Type": "String"}
    group = file.metadata.row_group(0)
    codecs = {group.column(at).compression for at in range(group.num_columns)}
    assert codecs == {"SNAPPY"}
    assert file.read().to_pylist() == table.to_pylist()


def test_int96_is_read_as_the_instants_it_means() -> None:
    store = DictStore()
    moments = [datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, 999999, UTC)]
    table = pa.table({"t": pa.array(moments, pa.timestamp("us", "UTC"))})
    row = put(store, "a.parquet", table, use_deprecated_int96_timestamps=True, store_schema=False)
    wanted = metadata(column("t", "timestamp"))
    assert rewrite(store, [row], wanted)[0]["outcome"] == "kept"
    (found,) = rewrite(store, [row], wanted, only_where_needed=False)
    assert opened(store, found).schema.column(0).physical_type == "INT64"
    assert read(store, found)["t"].to_pylist() == moments


@pytest.mark.parametrize(("day", "fits"), [(date(1582, 10, 15), True), (date(1582, 10, 4), False)])
def test_days_of_sparks_old_calendar_are_never_taken_for_others(day: date, fits: bool) -> None:
    store = DictStore()
    table = pa.table({"d": [day]}).replace_schema_metadata(
        {"org.apache.spark.version": "3.5.0", "org.apache.spark.legacyDateTime": ""}
    )
    row = put(store, "a.parquet", table)
    if fits:
        (found,) = rewrite(store, [row], metadata(column("d", "date")), only_where_needed=False)
        assert opened(store, found).metadata.metadata is None
        return
    with pytest.raises(UnsupportedFeature, match="calendar"):
        rewrite(store, [row], metadata(column("d", "date")), only_where_needed=False)


@pytest.mark.parametrize("kind", ["variant", "geometry(OGC:CRS84)", "interval day", "ofTheFuture"])
def test_a_type_that_cannot_be_carried_is_named_before_anything_is_written(kind: str) -> None:
    store = DictStore()
    row = put(store, "a.parquet", TEN, deletionVector=vector([0]))
    deep = column("deep", record(column("v", array(kind))))
    with pytest.raises(UnsupportedFeature) as refused:
        rewrite(store, [row], metadata(column("id", "long"), deep))
    assert refused.value.fields["column"] == "deep"
    assert list(store.objects) == ["a.parquet"]


# --- Which files ---------------------------------------------------------------


def test_a_file_that_is_as_it_should_be_is_left_alone_for_one_request() -> None:
    store = DictStore()
    rows = [put(store, f"{number}.parquet", TEN, stats='{"numRecords":10}') for number in range(3)]
    rows[1]["deletionVector"] = vector([5])
    (first, second, third) = rewrite(store, rows, IDS, parallel=1)
    assert [each["outcome"] for each in (first, second, third)] == ["kept", "rewritten", "kept"]
    assert {name: first[name] for name in rows[0]} == rows[0]
    assert store.calls["RANGE"] == 3
    assert len(store.objects) == 4


def test_a_column_that_a_file_lacks_is_null_and_no_reason_to_write_it() -> None:
    store = DictStore()
    wanted = metadata(
        column("id", "long"),
        column("name", "string"),
        column("late", record(column("x", array("integer")), column("y", mapping("long", "date")))),
        column("void", "void"),
    )
    row = put(store, "a.parquet", TEN)
    assert rewrite(store, [row], wanted)[0]["outcome"] == "kept"
    (found,) = rewrite(store, [row], wanted, only_where_needed=False)
    table = read(store, found)
    assert table.schema.names == ["id", "name", "late"]
    assert table["late"].null_count == 10
    said = json.loads(found["stats"])
    assert said["nullCount"]["late"] == {"x": 10, "y": 10}
    assert said["nullCount"]["void"] == 10


def test_field_ids_are_traces_of_a_mapping_that_goes() -> None:
    """Names are the same with and without it; files from before it have no ids."""
    store = DictStore()
    before = mapped("name", column("id", "long", 1), column("name", "string", 2))
    marked = pa.schema([with_id(field, at + 1) for at, field in enumerate(TEN.schema)])
    rows = [put(store, "old.parquet", TEN), put(store, "new.parquet", TEN.cast(marked))]
    found = rewrite(store, rows, before, IDS)
    assert [each["outcome"] for each in found] == ["kept", "rewritten"]
    assert field_ids(read(store, found[1]).schema) == []


def test_an_empty_plan_does_nothing() -> None:
    store = DictStore()
    assert rewrite(store, [], IDS) == []
    assert store.calls.log == ()


# --- Row ids -------------------------------------------------------------------


def tracked(**configuration: str) -> Metadata:
    return Metadata("t", IDS.schema_string, (), ROW_TRACKING | configuration)


def test_rows_that_move_take_their_ids_along() -> None:
    store = DictStore()
    row = put(store, "a.parquet", TEN, row_group_size=3, baseRowId=100, defaultRowCommitVersion=7)
    row["deletionVector"] = vector([0, 4, 9])
    (found,) = rewrite(store, [row], tracked())
    table = read(store, found)
    assert table["_row-id"].to_pylist() == [101, 102, 103, 105, 106, 107, 108]
    assert set(table["_row-version"].to_pylist()) == {7}
    assert found["baseRowId"] is None
    assert found["defaultRowCommitVersion"] is None
    assert set(json.loads(found["stats"])["nullCount"]) == {"id", "name"}


def test_ids_that_are_written_already_count_more_than_a_place() -> None:
    store = DictStore()
    table = pa.table(
        {
            "id": [1, 2, 3, 4],
            "name": list("abcd"),
            "_row-id": [50, None, 40, None],
            "_row-version": pa.array([None, 3, 2, None], pa.int64()),
        }
    )
    row = put(store, "a.parquet", table, baseRowId=100, defaultRowCommitVersion=7)
    row["deletionVector"] = vector([0])
    (found,) = rewrite(store, [row], tracked())
    there = read(store, found)
    assert there["_row-id"].to_pylist() == [101, 40, 103]
    assert there["_row-version"].to_pylist() == [3, 2, 7]


def test_rows_that_stay_in_place_need_no_ids_of_their_own() -> None:
    store = DictStore()
    plain = put(store, "a.parquet", TEN, baseRowId=100, defaultRowCommitVersion=7)
    own = TEN.append_column("_row-id", pa.array([None, 5] * 5, pa.int64()))
    rows = [plain, put(store, "b.parquet", own, baseRowId=200, defaultRowCommitVersion=8)]
    found = rewrite(store, rows, tracked(), only_where_needed=False)
    assert [each["baseRowId"] for each in found] == [100, 200]
    assert [each["defaultRowCommitVersion"] for each in found] == [7, 8]
    assert read(store, found[0]).schema.names == ["id", "name"]
    assert read(store, found[1]).to_pydict() == own.to_pydict()


@pytest.mark.parametrize("mode", ["name", "id"])
def test_ids_are_kept_when_a_mapping_goes(mode: str) -> None:
    store = DictStore()
    columns = [with_id(pa.field("col-1", pa.int64()), 1), pa.field("_row-id", pa.int64())]
    table = pa.table({"col-1": [1, 2, 3], "_row-id": [7, None, 9]}, pa.schema(columns))
    row = put(store, "a.parquet", table, baseRowId=100, defaultRowCommitVersion=4)
    row["deletionVector"] = vector([0])
    before = mapped(mode, column("id", "long", 1, "col-1"))
    before.configuration.update(ROW_TRACKING)  # type: ignore[attr-defined]
    after = Metadata("t", json.dumps(record(column("id", "long"))), (), ROW_TRACKING)
    (found,) = rewrite(store, [row], before, after)
    assert read(store, found).to_pydict() == {
        "id": [2, 3],
        "_row-id": [101, 9],
        "_row-version": [4, 4],
    }


def test_without_row_tracking_fresh_ids_are_the_committers_to_give() -> None:
    store = DictStore()
    rows = [
        put(store, "a.parquet", TEN, baseRowId=100, deletionVector=vector([0])),
        put(store, "b.parquet", TEN, baseRowId=200),
    ]
    found = rewrite(store, rows, IDS, only_where_needed=False)
    assert [each["baseRowId"] for each in found] == [None, 200]
    assert read(store, found[0]).schema.names == ["id", "name"]


def test_row_tracking_without_what_it_needs_is_refused() -> None:
    store = DictStore()
    row = put(store, "a.parquet", TEN, deletionVector=vector([0]))
    with pytest.raises(CorruptLog, match="baseRowId") as refused:
        rewrite(store, [row], tracked())
    assert refused.value.fields["path"] == "a.parquet"
    bare = metadata(column("id", "long"), delta__enableRowTracking="true")
    with pytest.raises(CorruptLog, match="materializedRowIdColumnName"):
        rewrite(store, [row], bare)


# --- Names, tags and sizes -----------------------------------------------------


def test_a_new_file_lies_beside_the_old_one_under_a_name_of_its_own() -> None:
    store = DictStore()
    path = "p=a%2520b%2Fc/x%20y.parquet"
    name = "p=a%20b/c/x y.parquet"
    row = put(store, path, TEN, name=name, deletionVector=vector([0]))
    inside = put(store, "memory://dict/q=1/b.parquet", TEN, name="q=1/b.parquet")
    found = rewrite(store, [row, inside, inside], IDS, only_where_needed=False)
    assert re.fullmatch(re.escape("p=a%2520b%2Fc/") + NEW_NAME, found[0]["path"])
    assert re.fullmatch("q=1/" + NEW_NAME, found[1]["path"])
    assert found[1]["path"] != found[2]["path"]
    new = set(store.objects) - {name, "q=1/b.parquet"}
    assert len(new) == 3
    assert sum(each.startswith("p=a%20b/c/part-") for each in new) == 1


def test_what_is_said_of_a_file_besides_its_rows_is_carried_over() -> None:
    store = DictStore()
    tags = {"ZCUBE_ID": "z", "ICEBERG_COMPAT_VERSION": "2"}
    row = put(
        store,
        "a.parquet",
        TEN,
        tags=tags,
        clusteringProvider="liquid",
        partitionValues={"p": "1"},
        deletionVector=vector([0]),
    )
    (found,) = rewrite(store, [row], IDS)
    assert found["tags"] == {"ZCUBE_ID": "z"}
    assert found["clusteringProvider"] == "liquid"
    assert found["partitionValues"] == {"p": "1"}
    assert found["dataChange"] is False
    assert found["modificationTime"] > 1_600_000_000_000


def test_a_file_of_any_size_is_written_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_rewrite, "_IN_MEMORY_BYTES", 1_000)
    monkeypatch.setattr(file_rewrite, "SMALL_COPY_BYTES", 1_000)
    monkeypatch.setattr(file_rewrite, "CHUNK_BYTES", 700)
    monkeypatch.setattr(file_rewrite, "_BATCH_BYTES", 2_000)
    monkeypatch.setattr(file_rewrite, "_ROW_GROUP_BYTES", 10_000)
    store = DictStore()
    many = pa.table({"id": list(range(5_000)), "name": [f"name {n}" for n in range(5_000)]})
    row = put(store, "a.parquet", many, row_group_size=900)
    row["deletionVector"] = vector([0, 899, 900, 4_999])
    (found,) = rewrite(store, [row], IDS)
    left = [n for n in range(5_000) if n not in (0, 899, 900, 4_999)]
    assert read(store, found).to_pydict() == {"id": left, "name": [f"name {n}" for n in left]}
    assert opened(store, found).metadata.num_row_groups > 3
    said = json.loads(found["stats"])
    assert (said["numRecords"], said["minValues"]["id"], said["maxValues"]["id"]) == (
        4_996,
        1,
        4998,
    )


def test_batches_are_bounded_and_progress_is_told_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_rewrite, "BATCH_FILES", 2)
    store = DictStore()
    rows = [put(store, f"{number}.parquet", TEN) for number in range(5)]
    table = pa.Table.from_pylist(rows, file_actions.ADD)
    told: list[tuple[str, int, int]] = []
    engine = LocalEngine(lambda _: store)
    batches = engine.rewrite(
        RewritePlan(store.config, table, IDS, IDS), lambda *event: told.append(event)
    )
    assert not told
    assert [batch.num_rows for batch in batches] == [2, 2, 1]
    total = sum(row["size"] for row in rows)
    assert [(what, done, whole) for what, done, whole in told] == [
        ("rewriting files", total // 5 * number, total) for number in range(6)
    ]
    last = told[-1][1]
    assert isinstance(last, Volume)
    assert last.objects == 5


def test_progress_is_told_within_a_large_file(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (object_copy, file_rewrite):
        monkeypatch.setattr(module, "SMALL_COPY_BYTES", 1000)
    monkeypatch.setattr(file_rewrite, "CHUNK_BYTES", 1000)
    monkeypatch.setattr(file_rewrite, "_BATCH_ROWS", 100)
    store = DictStore()
    row = put(store, "large.parquet", pa.table({"id": pa.array(range(2000), pa.int64())}))
    size = row["size"]
    assert size > 10_000
    told: list[int] = []
    plan = RewritePlan(
        store.config,
        pa.Table.from_pylist([row], file_actions.ADD),
        IDS,
        IDS,
        only_where_needed=False,
    )
    engine = LocalEngine(lambda _: store, parallel=1)
    list(engine.rewrite(plan, lambda _what, done, _total: told.append(done)))
    assert told == sorted(told)
    assert (told[0], told[-1]) == (0, size)
    # Rows are converted in 20 batches, and the new file is sent in pieces of 1,000 bytes.
    assert len({done for done in told if done <= size // 2}) >= 20
    assert len({done for done in told if done > size // 2}) >= 5


# --- What goes wrong -----------------------------------------------------------


def test_a_missing_file_is_named() -> None:
    store = DictStore()
    row = put(store, "a%20b.parquet", TEN, name="a b.parquet")
    store.delete_many(["a b.parquet"])
    with pytest.raises(MissingFile) as missing:
        rewrite(store, [row], IDS)
    assert missing.value.fields["path"] == "a%20b.parquet"


def test_a_file_that_vanishes_while_it_is_read_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_rewrite, "SMALL_COPY_BYTES", 0)
    many = pa.table({"id": list(range(50_000)), "name": [str(n) for n in range(50_000)]})

    class Vanishing(DictStore):
        def get_range(self, path: str, start: int, length: int) -> bytes:
            if start == 4:
                self.delete_many([path])
            return super().get_range(path, start, length)

    store = Vanishing()
    row = put(store, "a.parquet", many, deletionVector=vector([0]))
    with pytest.raises(MissingFile) as missing:
        rewrite(store, [row], IDS)
    assert missing.value.fields["path"] == "a.parquet"
    assert store.objects == {}


def test_a_missing_vector_is_named() -> None:
    store = DictStore()
    row = put(store, "a.parquet", TEN, deletionVector=vector([0], "u", store))
    name = next(each for each in store.objects if each.endswith(".bin"))
    store.delete_many([name])
    with pytest.raises(MissingFile) as missing:
        rewrite(store, [row], IDS)
    assert missing.value.fields["path"] == name


@pytest.mark.parametrize("spoil", ["footer", "data", "shorter"])
def test_a_file_that_cannot_be_read_is_named(spoil: str) -> None:
    store = DictStore()
    row = put(store, "a.parquet", TEN, deletionVector=vector([0]))
    data = bytearray(store.get("a.parquet"))
    if spoil == "footer":
        data[-20:-8] = b"\xff" * 12
    elif spoil == "data":
        data[4:60] = b"\xff" * 56
    else:
        del data[-30:]
    store.put("a.parquet", bytes(data))
    with pytest.raises(CorruptLog) as broken:
        rewrite(store, [row], IDS)
    assert broken.value.fields["path"] == "a.parquet"
    assert list(store.objects) == ["a.parquet"]
