"""Tables of delta-spark and delta-rs as Arrow datasets: engines find Spark's rows in them."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import polars
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest
from deltalake import write_deltalake

import lakeferry
from lakeferry.log import roaring
from lakeferry.storage import open_store
from tests.support import opinions
from tests.support.history import Append, DeleteRows, History, Layout
from tests.support.servers import S3Server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class Case:
    """A table made by delta-spark, and a filter that leaves out some of its rows."""

    schema: str
    statements: tuple[str, ...]
    query: tuple[pc.Expression, str]
    properties: dict[str, str] = field(default_factory=dict)
    partition: str = ""


INSERT = "INSERT INTO {t} SELECT id, concat('n', id), id % 3 FROM range(100)"
ID = (pc.field("id") > 40, "id > 40")
PLAIN = "id BIGINT, name STRING, part BIGINT"
EVERY_TYPE = """
    id BIGINT, by TINYINT, sh SMALLINT, i INT, f FLOAT, d DOUBLE, de DECIMAL(20,3),
    small DECIMAL(5,2), b BOOLEAN, bi BINARY, da DATE, ts TIMESTAMP, tn TIMESTAMP_NTZ,
    st STRUCT<a: INT, b: STRING>, ar ARRAY<STRUCT<a: INT>>, ma MAP<STRING, ARRAY<INT>>, vo VOID
"""
EVERY_VALUE = """
    INSERT INTO {t} VALUES
    (1, 1, 2, 3, 1.5, 2.5, 12345.678, 1.25, true, X'0102', DATE'2024-02-29',
     TIMESTAMP'1999-12-31 23:59:59.123456', TIMESTAMP_NTZ'0850-01-01 00:00:00',
     named_struct('a', 1, 'b', 'x'), array(named_struct('a', 1), null), map('k', array(1, 2)),
     null),
    (2, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null,
     null)
"""
MAPPED_BY_NAME = """
    ALTER TABLE {t} SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name',
    'delta.minReaderVersion' = '2', 'delta.minWriterVersion' = '5')
"""
WIDE_VALUES = """
    INSERT INTO {t} VALUES
    (1L << 40, 70000, 1e300, 1.2345, 1.5, TIMESTAMP_NTZ'2021-01-01 01:02:03', 0.5)
"""
CASES = {
    "deletion vectors": Case(
        PLAIN,
        (INSERT, "DELETE FROM {t} WHERE id % 7 = 3", "UPDATE {t} SET name = 'x' WHERE id = 50"),
        ID,
        {"delta.enableDeletionVectors": "true"},
        "part",
    ),
    "large deletion vectors": Case(
        PLAIN,
        (
            "INSERT INTO {t} SELECT /*+ REPARTITION(1) */ id, 'n', 0 FROM range(300000)",
            "DELETE FROM {t} WHERE id % 2 = 0 OR id BETWEEN 100000 AND 200000",
            "DELETE FROM {t} WHERE id % 1000 = 1",
        ),
        (pc.field("id") > 250_000, "id > 250000"),
        {"delta.enableDeletionVectors": "true"},
    ),
    "columns mapped by name": Case(
        PLAIN,
        (
            INSERT,
            "ALTER TABLE {t} RENAME COLUMN name TO `full name`",
            "ALTER TABLE {t} RENAME COLUMN part TO `p=t`",
            "ALTER TABLE {t} DROP COLUMN `full name`",
            "ALTER TABLE {t} ADD COLUMN name STRING",
            "INSERT INTO {t} (id, `p=t`, name) VALUES (1000, 7, 'new')",
        ),
        ID,
        {"delta.columnMapping.mode": "name"},
        "part",
    ),
    "columns mapped later": Case(
        "id BIGINT, s STRUCT<a: INT, b: ARRAY<STRUCT<x: INT>>>",
        (
            "INSERT INTO {t} VALUES (10, named_struct('a', 1, 'b', array(named_struct('x', 1))))",
            MAPPED_BY_NAME,
            "ALTER TABLE {t} RENAME COLUMN s.b.element.x TO y",
            "ALTER TABLE {t} RENAME COLUMN s.a TO `a.b`",
            "ALTER TABLE {t} ADD COLUMN s.a INT",
            "INSERT INTO {t} VALUES (60, named_struct('a', 1, 'b', array(), 'a', 5))",
        ),
        ID,
    ),
    "columns mapped by id, with vectors": Case(
        PLAIN,
        (INSERT, "DELETE FROM {t} WHERE id % 5 = 0", "ALTER TABLE {t} RENAME COLUMN name TO x"),
        ID,
        {"delta.columnMapping.mode": "id", "delta.enableDeletionVectors": "true"},
        "part",
    ),
    "widened types": Case(
        "id INT, by TINYINT, f FLOAT, de DECIMAL(5,2), toDec INT, da DATE, toDouble SMALLINT",
        (
            "INSERT INTO {t} VALUES (41, 1, 1.5, 1.25, 7, DATE'2020-01-01', 3)",
            "ALTER TABLE {t} CHANGE COLUMN id TYPE BIGINT",
            "ALTER TABLE {t} CHANGE COLUMN by TYPE INT",
            "ALTER TABLE {t} CHANGE COLUMN f TYPE DOUBLE",
            "ALTER TABLE {t} CHANGE COLUMN de TYPE DECIMAL(12,4)",
            "ALTER TABLE {t} CHANGE COLUMN toDec TYPE DECIMAL(15,2)",
            "ALTER TABLE {t} CHANGE COLUMN da TYPE TIMESTAMP_NTZ",
            "ALTER TABLE {t} CHANGE COLUMN toDouble TYPE DOUBLE",
            WIDE_VALUES,
        ),
        (pc.field("id") > 2**35, f"id > {2**35}"),
        {"delta.enableTypeWidening": "true", "delta.feature.timestampNtz": "supported"},
    ),
    "every type": Case(EVERY_TYPE, (EVERY_VALUE,), (pc.field("id") > 1, "id > 1")),
    "every type, with vectors": Case(
        EVERY_TYPE,
        (EVERY_VALUE, EVERY_VALUE, "UPDATE {t} SET i = 9 WHERE id = 1"),
        (pc.field("i") > 1, "i > 1"),
        {"delta.enableDeletionVectors": "true"},
    ),
    "v2 checkpoints": Case(
        PLAIN,
        (INSERT, INSERT, "DELETE FROM {t} WHERE id > 90"),
        ID,
        {"delta.checkpointPolicy": "v2", "delta.checkpointInterval": "1"},
        "part",
    ),
}


def by_spark(spark: SparkSession, location: str, condition: str = "true") -> pa.Table:
    """Return Spark's rows as Arrow, once it has forgotten what it knew of the table."""
    opinions.forget(spark)
    return spark.read.format("delta").load(location).where(condition).toArrow()


def rows(table: pa.Table) -> list[str]:
    return sorted(map(repr, table.to_pylist()))


def by_every_engine(
    orders: ds.Dataset, query: tuple[pc.Expression, str]
) -> Iterator[tuple[str, list[str]]]:
    """Yield the rows that a filter leaves, as each way to read a dataset finds them."""
    expression, condition = query
    yield "pyarrow", rows(orders.to_table(filter=expression))
    yield "Arrow's own scanner", rows(ds.Scanner.from_dataset(orders, filter=expression).to_table())
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        found = connection.execute(f"SELECT * FROM orders WHERE {condition}").to_arrow_table()
        yield "duckdb", rows(found)


@pytest.mark.parametrize("name", CASES)
def test_engines_find_sparks_rows_in_a_table_with(
    name: str, spark: SparkSession, tmp_path: Path
) -> None:
    case = CASES[name]
    location = str(tmp_path / "table")
    table = f"delta.`{location}`"
    properties = ", ".join(f"'{key}' = '{value}'" for key, value in case.properties.items())
    spark.sql(
        f"CREATE TABLE {table} ({case.schema}) USING delta"
        + (f" PARTITIONED BY ({case.partition})" if case.partition else "")
        + (f" TBLPROPERTIES ({properties})" if properties else "")
    )
    for statement in case.statements:
        spark.sql(statement.format(t=table))

    orders = lakeferry.open(location)

    expected = by_spark(spark, location)
    assert orders.schema.names == expected.schema.names
    assert rows(orders.to_table()) == rows(expected)
    assert orders.count_rows() == expected.num_rows
    some = by_spark(spark, location, case.query[1])
    assert 0 < some.num_rows < expected.num_rows
    for engine, found in by_every_engine(orders, case.query):
        assert found == rows(some), engine
    lazy = polars.scan_pyarrow_dataset(orders).filter(polars.sql_expr(case.query[1]))
    assert sorted(lazy.select("id").collect()["id"]) == sorted(some["id"].to_pylist())


def test_partitions_of_delta_rs_with_odd_names_are_read(
    spark: SparkSession, tmp_path: Path
) -> None:
    location = str(tmp_path / "a b ü")
    names = ["a b", "c/d", "e%2Ff", "g:h", "ü=?#&", None, "1"]
    table = pa.table(
        {"id": list(range(7)), "p art": names, "day": [date(2024, 1, 1 + n) for n in range(7)]}
    )
    write_deltalake(location, table, partition_by=["p art", "day"])
    write_deltalake(location, table, mode="append")
    orders = lakeferry.open(location)
    expected = rows(by_spark(spark, location))
    assert len(expected) == 14
    assert rows(orders.to_table()) == expected
    for query in (
        (pc.field("p art") == "c/d", "\"p art\" = 'c/d'"),
        (pc.field("day") > date(2024, 1, 4), "day > DATE '2024-01-04'"),
    ):
        wanted = rows(table.filter(query[0])) * 2
        for engine, found in by_every_engine(orders, query):
            assert sorted(found) == sorted(wanted), engine


def test_a_shallow_clone_is_read_with_its_absolute_paths(
    spark: SparkSession, tmp_path: Path
) -> None:
    """delta-rs, Polars and DuckDB don't find the files of such a table by themselves."""
    source, clone = str(tmp_path / "source"), str(tmp_path / "clone")
    spark.sql(
        f"CREATE TABLE delta.`{source}` (id BIGINT, part BIGINT) USING delta "
        "PARTITIONED BY (part) TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')"
    )
    spark.sql(f"INSERT INTO delta.`{source}` SELECT id, id % 2 FROM range(100)")
    spark.sql(f"DELETE FROM delta.`{source}` WHERE id % 10 = 3")
    spark.sql(f"CREATE TABLE delta.`{clone}` SHALLOW CLONE delta.`{source}`")
    spark.sql(f"DELETE FROM delta.`{clone}` WHERE id = 4")
    orders = lakeferry.open(clone)
    expected = by_spark(spark, clone, "id > 50")
    for engine, found in by_every_engine(orders, (pc.field("id") > 50, "id > 50")):
        assert found == rows(expected), engine
    assert orders.count_rows() == 89


def test_a_table_whose_files_are_in_two_buckets_is_read(
    versitygw: S3Server, tmp_path: Path
) -> None:
    """The log is in one bucket, data files and deletion vectors in another."""
    near, far = (versitygw.create_bucket(f"bucket-{uuid.uuid4().hex[:16]}") for _ in range(2))
    layout = Layout(partitioned=True, deletion_vectors="p", absolute_paths=True)
    history = History(layout).then(Append(6), DeleteRows(3))
    root = f"{far.uri}/da ta"
    objects = history.objects(open_store(root).uri, with_data=True)
    stores = [open_store(uri, near.storage_options) for uri in (f"{near.uri}/t", root)]
    for name, data in objects.items():
        stores[0 if name.startswith("_delta_log/") else 1].put(name, data)
    orders = lakeferry.open(f"{near.uri}/t", storage_options=near.storage_options)
    local = open_store(str(tmp_path))
    history.write(local, with_data=True)
    expected = lakeferry.open(str(tmp_path))
    assert rows(orders.to_table()) == rows(expected.to_table())
    for engine, found in by_every_engine(orders, (pc.field("id") > 20, "id > 20")):
        assert found == rows(expected.to_table(filter=pc.field("id") > 20)), engine


@pytest.mark.parametrize("native", [False, True])
def test_bitmaps_of_delta_spark_are_read(native: bool, spark: SparkSession) -> None:
    jvm: Any = spark.sparkContext._jvm
    package = jvm.org.apache.spark.sql.delta.deletionvectors
    bitmap = package.RoaringBitmapArray()
    expected = [*range(5), *range(70_000, 73_000), *range(200_000, 260_000, 12), 2**32 + 7, 2**34]
    for row in expected:
        bitmap.add(row)
    bitmap.runOptimize()
    form = package.RoaringBitmapArrayFormat
    data = bytes(bitmap.serializeAsByteArray(form.Native() if native else form.Portable()))
    found = roaring.decode_bitmap(data)
    assert found.cardinality == len(expected)
    flags = found.flags(0, 300_000).to_pylist()
    assert [row for row, flag in enumerate(flags) if flag] == expected[:-2]
    assert found.last == 2**34
    assert found.flags(2**32 + 6, 3).to_pylist() == [False, True, False]
