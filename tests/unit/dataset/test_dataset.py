"""Versions of tables as Arrow datasets: which rows they have, and what reading them opens."""

from __future__ import annotations

import itertools
import json
import pickle
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import quote

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

import lakeferry
from lakeferry.dataset import arrow_files, scanning
from lakeferry.errors import CorruptLog, MissingFile, UnsupportedFeature, VersionNotAvailable
from lakeferry.log.deletion_vectors import relative_path
from lakeferry.storage import open_store
from tests.support.history import (
    Append,
    Delete,
    DeleteRows,
    History,
    Layout,
    SetProperties,
    Upgrade,
)
from tests.unit.cli.program import make

ID = pc.field("id")
LAYOUTS = [
    Layout(partitioned=partitioned, deletion_vectors=vectors, column_mapping=mapping)
    for partitioned, vectors, mapping in itertools.product(
        (False, True), (None, "u", "i", "p"), (None, "name", "id")
    )
]


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths of the files that Arrow opens."""
    paths: list[str] = []
    original = arrow_files.TableFiles.open_input_file

    def noting(self: arrow_files.TableFiles, path: str) -> pa.NativeFile:
        paths.append(path)
        return original(self, path)

    monkeypatch.setattr(arrow_files.TableFiles, "open_input_file", noting)
    return paths


def ids(table: pa.Table) -> list[int]:
    return sorted(table["id"].to_pylist())


def commit(place: Path, version: int, *actions: Mapping[str, Any]) -> None:
    log = place / "_delta_log"
    log.mkdir(parents=True, exist_ok=True)
    lines = "".join(f"{json.dumps(action)}\n" for action in actions)
    (log / f"{version:020d}.json").write_text(lines)


def metadata(fields: Mapping[str, str], partition_columns: list[str]) -> dict[str, Any]:
    columns = [
        {"name": name, "type": kind, "nullable": True, "metadata": {}}
        for name, kind in fields.items()
    ]
    return {
        "metaData": {
            "id": "t",
            "format": {"provider": "parquet", "options": {}},
            "schemaString": json.dumps({"type": "struct", "fields": columns}),
            "partitionColumns": partition_columns,
            "configuration": {},
        }
    }


def add(path: str, size: int, **values: str | None) -> dict[str, Any]:
    common = {"modificationTime": 0, "dataChange": True}
    return {"add": {"path": path, "size": size, "partitionValues": values, **common}}


PROTOCOL = {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_rows_are_those_that_are_live(layout: Layout, tmp_path: Path) -> None:
    """Six files of three rows: three lose a row, then another one does, then a whole one goes.

    Without vectors a file that loses a row is replaced by a new one.
    """
    history = History(layout).then(Append(6), DeleteRows(3), DeleteRows(1), Delete(1))
    orders = lakeferry.open(str(make(history, tmp_path / "t")))
    whole = range(5, 6) if layout.deletion_vectors else range(5, 10)
    expected = [number * 10 + row for number in whole for row in range(3)]
    if layout.deletion_vectors:
        expected = [1, 2, 11, 12, 21, 22, 31, 32, *expected]
    found = orders.to_table()
    assert ids(found) == expected
    assert orders.schema.names == list(layout.columns)
    assert orders.count_rows() == found.num_rows
    for query in (ID > 11, ID == 21, (ID < 15) | (pc.field("value") == "c")):
        wanted = ids(found.filter(query))
        assert ids(orders.to_table(filter=query)) == wanted
        assert ids(orders.to_table(columns=["id"], filter=query)) == wanted
        assert orders.count_rows(query) == len(wanted)
        assert ids(ds.Scanner.from_dataset(orders, filter=query).to_table()) == wanted
    assert orders.head(2).num_rows == 2


def test_versions_are_those_of_the_log(tmp_path: Path) -> None:
    place = str(make(History().then(Append(1), Append(1), Delete(1)), tmp_path / "t"))
    counts = [lakeferry.open(place, version=version).count_rows() for version in range(4)]
    assert counts == [0, 3, 6, 3]
    with pytest.raises(VersionNotAvailable):
        lakeferry.open(place, version=4)


def test_partitions_are_typed_by_the_log(tmp_path: Path) -> None:
    kinds = {
        "id": "long",
        "string": "string",
        "integer": "integer",
        "byte": "byte",
        "float": "float",
        "decimal": "decimal(5,2)",
        "boolean": "boolean",
        "binary": "binary",
        "date": "date",
        "timestamp": "timestamp",
        "local": "timestamp_ntz",
    }
    values = {
        "string": "a/b=ü %",
        "integer": "-7",
        "byte": "3",
        "float": "1.5",
        "decimal": "12.50",
        "boolean": "true",
        "binary": "\u0001\u0002",
        "date": "2024-02-29",
        "timestamp": "2024-01-01T10:20:30.123456Z",
        "local": "2024-01-01 10:20:30.5",
    }
    partitions = list(values)
    pq.write_table(pa.table({"id": [1]}), tmp_path / "a b%20.parquet")
    size = (tmp_path / "a b%20.parquet").stat().st_size
    pq.write_table(pa.table({"id": [2]}), tmp_path / "two.parquet")
    empty: dict[str, str | None] = dict.fromkeys(partitions, "") | {"integer": None}
    del empty["byte"]
    protocol = {
        "protocol": {
            "minReaderVersion": 3,
            "minWriterVersion": 7,
            "readerFeatures": ["timestampNtz"],
            "writerFeatures": ["timestampNtz"],
        }
    }
    commit(
        tmp_path,
        0,
        protocol,
        metadata(kinds, partitions),
        add("a%20b%2520.parquet", size, **values),
        add("two.parquet", size, **empty),
    )
    found = lakeferry.open(str(tmp_path)).to_table().sort_by("id").to_pylist()
    assert found[0] == {
        "id": 1,
        "string": "a/b=ü %",
        "integer": -7,
        "byte": 3,
        "float": 1.5,
        "decimal": Decimal("12.50"),
        "boolean": True,
        "binary": b"\x01\x02",
        "date": date(2024, 2, 29),
        "timestamp": datetime(2024, 1, 1, 10, 20, 30, 123456, UTC),
        "local": datetime(2024, 1, 1, 10, 20, 30, 500000),  # noqa: DTZ001
    }
    assert found[1] == {"id": 2} | dict.fromkeys(partitions)


def test_a_partition_value_of_another_type_is_corrupt_and_not_null(tmp_path: Path) -> None:
    kinds = {"id": "long", "p": "integer"}
    commit(tmp_path, 0, PROTOCOL, metadata(kinds, ["p"]), add("x.parquet", 9, p="seven"))
    with pytest.raises(CorruptLog, match="seven"):
        lakeferry.open(str(tmp_path))


def test_files_of_other_partitions_are_not_opened(tmp_path: Path, opened: list[str]) -> None:
    layout = Layout(partitioned=True, deletion_vectors="u")
    place = f"memory://{tmp_path.name}"
    History(layout).then(Append(5), DeleteRows(2)).write(open_store(place), with_data=True)
    orders = lakeferry.open(place)
    assert not opened
    part = pc.field("part")
    for query, number in ((part == "a b", 1), (part == "x:y", 2), (part.is_null(), 3)):
        opened.clear()
        found = ids(orders.to_table(filter=query))
        assert {row // 10 for row in found} == {number}
        assert len(opened) == 1


def test_of_files_with_vectors_only_what_is_asked_for_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = Layout(deletion_vectors="i")
    orders = lakeferry.open(str(make(History(layout).then(Append(1), DeleteRows(1)), tmp_path)))
    seen: list[frozenset[str] | None] = []
    original = arrow_files.TableFiles._copy_rows

    def noting(self: arrow_files.TableFiles, *given: Any) -> None:
        seen.append(self.files.wanted)
        original(self, *given)

    monkeypatch.setattr(arrow_files.TableFiles, "_copy_rows", noting)
    orders.to_table(columns=["value"])
    orders.to_table(columns=["value"], filter=ID > 0)
    orders.to_table(columns={"x": pc.add(ID, 1)})
    orders.count_rows()
    orders.to_table(columns=["value"], filter=pc.field(0) > 0)
    orders.to_table()
    assert [wanted and sorted(wanted) for wanted in seen] == [
        ["value"],
        ["id", "value"],
        ["id"],
        frozenset(),
        ["id", "value"],
        None,
    ]


def test_columns_of_an_expression_are_found_among_many() -> None:
    schema = pa.schema([(f"c{n}", pa.int64()) for n in range(200)])
    query = (pc.field("c7") > 1) & (pc.field("c150").isin([1, 2]) | pc.field("c199").is_null())
    assert scanning.columns_asked_for(schema, ["c3"], query) == ["c3", "c7", "c150", "c199"]
    assert scanning.columns_asked_for(schema, [], None) == []
    assert scanning.columns_asked_for(schema, {"x": pc.field("c5")}, None) == ["c5"]


def test_copies_of_a_dataset_have_the_same_rows(tmp_path: Path) -> None:
    layout = Layout(deletion_vectors="u", column_mapping="name")
    place = make(History(layout).then(Append(3), DeleteRows(2)), tmp_path / "t")
    orders = lakeferry.open(str(place))
    expected = ids(orders.to_table())
    filtered = orders.filter(ID > 11)
    assert ids(filtered.to_table(columns=["id"])) == [n for n in expected if n > 11]
    other = pa.schema([orders.schema.field("id"), pa.field("new", pa.string())])
    replaced = orders.replace_schema(other)
    assert replaced.schema == other
    assert replaced.to_table()["new"].null_count == len(expected)
    for copy in (orders, replaced):
        travelled = pickle.loads(pickle.dumps(copy))
        assert travelled.schema == copy.schema
        for each in (copy, travelled):
            assert ids(each.to_table()) == ids(each.to_table(columns=["id"])) == expected
            assert each.count_rows(ID > 11) == filtered.count_rows()
    with pytest.raises(pa.ArrowTypeError):
        orders.replace_schema(pa.schema([pa.field("id", pa.string())]))
    rows = [fragment.to_table(schema=orders.schema) for fragment in orders.get_fragments()]
    assert ids(pa.concat_tables(rows)) == expected


def test_large_files_with_vectors_are_written_anew_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrow_files, "_IN_MEMORY_BYTES", 10)
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    layout = Layout(deletion_vectors="u")
    place = make(History(layout).then(Append(3), DeleteRows(3)), tmp_path / "t")
    assert ids(lakeferry.open(str(place)).to_table()) == [1, 2, 11, 12, 21, 22]
    assert list(folder.iterdir()) == []


def test_many_files_with_vectors_are_read_at_once(tmp_path: Path) -> None:
    """More files than Arrow has threads, each of which reads a file while Arrow waits."""
    layout = Layout(deletion_vectors="u")
    place = make(History(layout).then(Append(60), DeleteRows(60)), tmp_path / "t")
    orders = lakeferry.open(str(place))
    assert orders.scanner(columns=["id"], fragment_readahead=60).to_table().num_rows == 120


def test_files_elsewhere_are_read_by_their_absolute_paths(tmp_path: Path) -> None:
    layout = Layout(partitioned=True, deletion_vectors="u")
    source = make(History(layout).then(Append(5), DeleteRows(2)), tmp_path / "a b%20")
    shutil.copytree(source / "_delta_log", tmp_path / "clone" / "_delta_log")
    root = (tmp_path / "a b%20").as_uri()
    for version in (1, 2):
        log = tmp_path / "clone" / "_delta_log" / f"{version:020d}.json"
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        for value in (value for line in lines for value in line.values() if "path" in value):
            value["path"] = f"{root}/{value['path']}"
            vector = value.get("deletionVector")
            if vector:
                data = (source / relative_path(vector["pathOrInlineDv"])).as_uri()
                vector |= {"storageType": "p", "pathOrInlineDv": data}
        log.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    clone = lakeferry.open(str(tmp_path / "clone")).to_table()
    original = lakeferry.open(str(source)).to_table()
    assert clone.sort_by("id") == original.sort_by("id")
    assert clone.num_rows == 13


def test_a_file_that_is_gone_is_named(tmp_path: Path) -> None:
    """Also where Arrow opens files by itself."""
    cases = [(tmp_path / "a", None), (tmp_path / "b", "name"), (f"memory://{tmp_path.name}", None)]
    for place, mapping in cases:
        history = History(Layout(column_mapping=mapping)).then(Append(2))
        store = history.write(open_store(str(place)), with_data=True)
        orders = lakeferry.open(str(place))
        store.delete_many([found.path for found in store.list("part-00001")])
        with pytest.raises(MissingFile, match="part-00001"):
            orders.to_table()


def test_a_vector_that_is_not_its_files_own_is_corrupt(tmp_path: Path) -> None:
    layout = Layout(deletion_vectors="u")
    place = make(History(layout).then(Append(1), DeleteRows(1)), tmp_path / "t")
    log = place / "_delta_log" / f"{2:020d}.json"
    original = log.read_text()
    for wrong in (
        original.replace('"cardinality":1', '"cardinality":2'),
        original.replace('"offset":1', '"offset":2'),
        original.replace('"storageType":"u"', '"storageType":"x"'),
    ):
        log.write_text(wrong)
        with pytest.raises(CorruptLog):
            lakeferry.open(str(place)).to_table()
    log.write_text(original)
    (vector,) = place.rglob("deletion_vector_*.bin")
    vector.write_bytes(b"\x02" + vector.read_bytes()[1:])
    with pytest.raises(CorruptLog, match="version"):
        lakeferry.open(str(place)).to_table()
    vector.unlink()
    with pytest.raises(MissingFile, match="deletion_vector"):
        lakeferry.open(str(place)).to_table()


def test_a_vector_for_more_rows_than_there_are_is_corrupt(tmp_path: Path) -> None:
    layout = Layout(deletion_vectors="i")
    place = make(History(layout).then(Append(1), DeleteRows(1)), tmp_path / "t")
    (file,) = place.glob("part-*")
    pq.write_table(pa.table({"id": pa.array([], pa.int64())}), file)
    with pytest.raises(CorruptLog, match="has 0"):
        lakeferry.open(str(place)).to_table()


def test_tables_that_cannot_be_read_right_are_refused(tmp_path: Path) -> None:
    unknown = Upgrade(reader=("teleport",), writer=("teleport",))
    with pytest.raises(UnsupportedFeature, match="teleport"):
        lakeferry.open(str(make(History().then(unknown), tmp_path / "a")))
    odd = SetProperties((("delta.columnMapping.mode", "telepathy"),))
    with pytest.raises(UnsupportedFeature, match="telepathy"):
        lakeferry.open(str(make(History().then(odd), tmp_path / "b")))


def test_schemas_that_grew_are_read(tmp_path: Path) -> None:
    """Columns that a file lacks are null, and narrower ones are cast, at every depth."""
    place = tmp_path / "t"
    place.mkdir()
    old = pa.table({"id": pa.array([1], pa.int16()), "s": [{"a": 1}]})
    new = pa.table({"id": [70_000], "s": [{"a": 2, "b": "x"}], "more": ["y"]})
    for name, table in (("old.parquet", old), ("new.parquet", new)):
        pq.write_table(table, place / name)
    inner = {
        "type": "struct",
        "fields": [
            {"name": "a", "type": "long", "nullable": True, "metadata": {}},
            {"name": "b", "type": "string", "nullable": True, "metadata": {}},
        ],
    }
    described = metadata({"id": "long", "more": "string"}, [])
    schema = json.loads(described["metaData"]["schemaString"])
    schema["fields"].insert(1, {"name": "s", "type": inner, "nullable": True, "metadata": {}})
    described["metaData"]["schemaString"] = json.dumps(schema)
    adds = [add(path.name, path.stat().st_size) for path in place.glob("*.parquet")]
    commit(place, 0, PROTOCOL, described, *adds)
    orders = lakeferry.open(str(place))
    assert orders.to_table().sort_by("id").to_pylist() == [
        {"id": 1, "s": {"a": 1, "b": None}, "more": None},
        {"id": 70_000, "s": {"a": 2, "b": "x"}, "more": "y"},
    ]
    assert ids(orders.to_table(filter=ID > 40_000)) == [70_000]


@pytest.mark.parametrize("mapping", [None, "name"])
def test_files_of_object_stores_are_read_by_ranges(mapping: str | None, tmp_path: Path) -> None:
    layout = Layout(partitioned=True, deletion_vectors="u", column_mapping=mapping)
    history = History(layout).then(Append(6), DeleteRows(3))
    root = f"memory://{tmp_path.name}/{mapping}"
    history.write(open_store(root), with_data=True)
    found = lakeferry.open(root)
    local = lakeferry.open(str(make(history, tmp_path / "t")))
    assert found.to_table().sort_by("id") == local.to_table().sort_by("id")
    assert found.count_rows(ID > 20) == local.count_rows(ID > 20)


def test_a_file_system_of_a_table_is_only_read(tmp_path: Path) -> None:
    root = f"memory://{tmp_path.name}"
    History().then(Append(1)).write(open_store(root), with_data=True)
    orders = lakeferry.open(root)
    (path,) = orders.files
    assert path.startswith(f"{root}/part-00000")
    system = orders.filesystem
    assert system.get_file_info(path).is_file
    assert system.get_file_info("file:///nowhere").type.name == "NotFound"
    with pytest.raises(OSError, match="nothing else"):
        system.delete_file(path)


def test_duckdb_scans_without_keeping_arrows_threads_from_python(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    scans: list[ds.Scanner] = []
    to_reader = scanning._Scanner.to_reader

    def noting(self: scanning._Scanner) -> pa.RecordBatchReader:
        scans.append(self._scanner)
        return to_reader(self)

    monkeypatch.setattr(scanning._Scanner, "to_reader", noting)
    history = History().then(Append(3))
    root = f"memory://{tmp_path.name}"
    history.write(open_store(root), with_data=True)
    with duckdb.connect() as connection:

        def rows(orders: ds.Dataset, columns: str, where: str = "true") -> list[Any]:
            connection.register("orders", orders)
            query = f"SELECT {columns} FROM orders WHERE {where} ORDER BY ALL"
            return connection.execute(query).fetchall()

        elsewhere, local = (
            lakeferry.open(place) for place in (root, str(make(history, tmp_path / "t")))
        )
        for columns, where in (("*", "true"), ("id", "id > 3"), ("count(*)", "true")):
            assert rows(elsewhere, columns, where) == rows(local, columns, where) != []
        # So do its copies, and a table whose files Arrow opens alone needn't.
        assert rows(elsewhere.filter(ID > 3), "id") == rows(local, "id", "id > 3")
        for copy in (
            elsewhere.replace_schema(elsewhere.schema),
            pickle.loads(pickle.dumps(elsewhere)),
        ):
            assert rows(copy, "id") == rows(local, "id")
    assert len(scans) == 6
    assert scans[1].projected_schema.names == ["id"]
    # Everybody else asks the dataset, and gets what pyarrow can write.
    ds.write_dataset(elsewhere.scanner(columns=["id"]), tmp_path / "copy", format="parquet")
    assert ds.dataset(tmp_path / "copy").count_rows() == elsewhere.count_rows()


AT_ANY_PACE = """
import random, time
import duckdb, lakeferry
from lakeferry.dataset.arrow_files import TableFiles, _GuestFile
from lakeferry.storage import open_store
from tests.support.history import Append, History


def at_any_pace(method):
    def after_a_while(self, *args):
        time.sleep(random.random() / 500)
        return method(self, *args)

    return after_a_while


_GuestFile.read = at_any_pace(_GuestFile.read)
TableFiles.open_input_file = at_any_pace(TableFiles.open_input_file)
History().then(Append(16)).write(open_store("memory://t"), with_data=True)
for _ in range(100):
    orders = lakeferry.open("memory://t")
    assert duckdb.sql("SELECT count(id) FROM orders").fetchall() == [(48,)]
"""


def output_of(program: str, within_s: int) -> str:
    """Run a program that has to end by itself, and return what it prints."""
    ended = subprocess.run(
        [sys.executable, "-c", program],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        timeout=within_s,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_duckdb_waits_for_nobody_who_waits_for_it() -> None:
    """Arrow's threads open files by Python, at moments when the scan may still be beginning."""
    assert output_of(AT_ANY_PACE, 120) == ""


ABANDONED = """
import lakeferry
from lakeferry.storage import open_store
from tests.support.history import Append, History

History().then(Append(100)).write(open_store("memory://t"), with_data=True)
print(lakeferry.open("memory://t").head(1).num_rows)
"""


def test_a_process_ends_though_a_scan_was_left_behind() -> None:
    """Arrow goes on reading ahead in threads of its own, which Python doesn't know of."""
    for _ in range(3):
        assert output_of(ABANDONED, 60) == "1\n"


# --- Files that are missing ------------------------------------------------------------


WAYS: dict[str, Callable[[ds.Dataset], object]] = {
    "to_table": lambda dataset: dataset.to_table(),
    "some columns": lambda dataset: dataset.to_table(columns=["id"]),
    "count_rows": lambda dataset: dataset.count_rows(),
    "count what a filter lets through": lambda dataset: dataset.count_rows(pc.field("id") >= 0),
    "head": lambda dataset: dataset.head(1_000),
    "take": lambda dataset: dataset.take(list(range(9))),
    "to_batches": lambda dataset: list(dataset.to_batches()),
    "scanner": lambda dataset: dataset.scanner(columns=["id"]).to_table(),
    "filter": lambda dataset: dataset.filter(pc.field("id") >= 0).to_table(),
    "sort_by": lambda dataset: dataset.sort_by("id"),
    "join": lambda dataset: dataset.join(dataset, "id"),
    "another schema": lambda dataset: dataset.replace_schema(dataset.schema).to_table(),
}


def lacking(place: Path, layout: Layout) -> tuple[ds.Dataset, str]:
    """Return the dataset of a table that lacks a data file, and the file's name."""
    make(History(layout).then(Append(3), DeleteRows(1)), place)
    found = sorted(path for path in place.rglob("*.parquet") if "_delta_log" not in path.parts)
    dataset = lakeferry.open(str(place))
    found[1].unlink()
    return dataset, quote(found[1].name)


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("layout", [Layout(), Layout(deletion_vectors="u")], ids=str)
def test_a_file_that_is_missing_is_named_whichever_way_rows_are_read(
    way: Callable[[ds.Dataset], object], layout: Layout, tmp_path: Path
) -> None:
    dataset, name = lacking(tmp_path, layout)
    with pytest.raises(MissingFile, match=re.escape(name)):
        way(dataset)


def test_duckdb_says_which_file_is_missing(tmp_path: Path) -> None:
    dataset, name = lacking(tmp_path, Layout())
    with pytest.raises(duckdb.Error, match=f"MissingFile.*{re.escape(name)}"):
        duckdb.from_arrow(dataset).aggregate("count(*)").fetchall()


def test_a_missing_file_of_another_partition_keeps_nobody_from_reading(tmp_path: Path) -> None:
    dataset, _ = lacking(tmp_path, Layout(partitioned=True))
    fragments = list(dataset.get_fragments())
    there = [each for each in fragments if Path(each.path).exists()]
    assert len(there) < len(fragments)
    for each in there:
        rows = dataset.scanner(filter=each.partition_expression).to_table()
        assert rows.num_rows == each.to_table().num_rows
