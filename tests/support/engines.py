"""The rows of a table as each engine reads them, in one form."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import duckdb_extension_delta
import polars
import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder

from tests.support import opinions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Rows = list[tuple[Any, ...]]


def by_spark(spark: SparkSession, location: str, version: int | None = None) -> Rows:
    """Read with delta-spark, which is told to forget what it knew of the table."""
    opinions.forget(spark)
    reader = spark.read.format("delta")
    if version is not None:
        reader = reader.option("versionAsOf", version)
    return _sorted([tuple(row) for row in reader.load(location).collect()])


def by_spark_at(spark: SparkSession, location: str, versions: Collection[int]) -> dict[int, Rows]:
    """Read versions with as many columns as each other with delta-spark, by one query."""
    opinions.forget(spark)
    reader = spark.read.format("delta")
    return of_frames(
        {version: reader.option("versionAsOf", version).load(location) for version in versions}
    )


def of_frames(frames: Mapping[int, DataFrame]) -> dict[int, Rows]:
    """Return the rows of frames with as many columns as each other, by one query."""
    from pyspark.sql import DataFrame, functions

    numbered = []
    for number, frame in frames.items():
        names = [f"c{index}" for index in range(len(frame.columns))]
        numbered.append(frame.toDF(*names).withColumn("number", functions.lit(number)))
    found: dict[int, Rows] = {number: [] for number in frames}
    for *row, number in reduce(DataFrame.union, numbered).collect() if numbered else ():
        found[number].append(tuple(row))
    return {number: _sorted(rows) for number, rows in found.items()}


def by_delta_rs(
    location: str, version: int | None = None, options: Mapping[str, str] | None = None
) -> Rows:
    """Read with delta-rs through its own query engine, which knows deletion vectors."""
    table = DeltaTable(location, version=version, storage_options=dict(options or {}) or None)
    found = pa.table(QueryBuilder().register("t", table).execute("select * from t").read_all())
    return _of_arrow(found)


def by_polars(
    location: str, version: int | None = None, options: Mapping[str, str] | None = None
) -> Rows:
    """Read with Polars."""
    frame = polars.read_delta(
        location, version=version, storage_options=dict(options or {}) or None
    )
    return _sorted(frame.rows())


def by_duckdb(location: str, version: int | None = None) -> Rows:
    """Read with DuckDB and its delta extension."""
    asked = "" if version is None else f", version = {version}"
    with duckdb_with_delta() as connection:
        found = connection.execute(f"SELECT * FROM delta_scan(?{asked})", [location])
        return _sorted(found.fetchall())


@contextmanager
def duckdb_with_delta() -> Iterator[duckdb.DuckDBPyConnection]:
    """Open DuckDB with its delta extension."""
    extensions = Path(duckdb_extension_delta.__file__).parent / "extensions"
    (extension,) = extensions.glob("*/delta.duckdb_extension")
    with duckdb.connect() as connection:
        connection.execute(f"LOAD '{extension}'")
        yield connection


def _of_arrow(table: pa.Table) -> Rows:
    columns = [column.to_pylist() for column in table.columns]
    return _sorted(list(zip(*columns, strict=True)))


def _sorted(rows: Rows) -> Rows:
    return sorted(rows, key=repr)
