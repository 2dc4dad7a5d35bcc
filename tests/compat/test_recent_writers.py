"""The clients that are installed here are recognized by what they really write."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import polars
import pyarrow as pa
from deltalake import write_deltalake

import lakeferry
from lakeferry.clients.client_lines import OPTION
from lakeferry.log.commit_writer import KnownWriter
from tests.support import engines

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = pa.table({"id": pa.array([1], pa.int64())})


def found_at(place: Path) -> dict[str | None, tuple[KnownWriter | None, str | None]]:
    found = lakeferry.Table(str(place)).recent_writers("memory://new", mode="writer-only") or ()
    return {each.writer.name: (each.writer.kind, each.writer.version) for each in found}


def test_delta_rs_polars_and_duckdb_are_recognized(tmp_path: Path) -> None:
    write_deltalake(str(tmp_path), ROWS)
    polars.from_arrow(ROWS).write_delta(str(tmp_path), mode="append")  # type: ignore[union-attr]
    with engines.duckdb_with_delta() as connection:
        connection.execute(f"ATTACH '{tmp_path}' AS t (TYPE delta)")
        connection.execute("INSERT INTO t VALUES (2)")
    rust = version("deltalake")
    assert found_at(tmp_path) == {
        f"delta-rs:py-{rust}": (KnownWriter.DELTA_RS, rust),
        "DuckDB": (KnownWriter.DUCKDB, None),
    }


def test_lakeferry_is_recognized(tmp_path: Path) -> None:
    write_deltalake(str(tmp_path), ROWS)
    table = lakeferry.Table(str(tmp_path))
    table.freeze()
    table.thaw()
    assert (KnownWriter.LAKEFERRY, version("lakeferry")) in found_at(tmp_path).values()


def test_this_delta_spark_is_recognized_and_its_option_is_a_fact(
    spark: SparkSession, tmp_path: Path
) -> None:
    place = tmp_path / "t"
    spark.range(1).write.format("delta").save(str(place))
    (found,) = lakeferry.Table(str(place)).recent_writers("memory://new", mode="writer-only") or ()
    name = f"Apache-Spark/{spark.version} Delta-Lake/{found.writer.version}"
    assert (found.writer.name, found.writer.kind) == (name, KnownWriter.DELTA_SPARK)
    assert found.as_document()["follows_if"] == OPTION
