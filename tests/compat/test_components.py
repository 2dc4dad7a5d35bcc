"""The real components work here, alone and together, before anything of ours."""

from __future__ import annotations

import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import duckdb
import duckdb_extension_delta
import polars
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from obstore.exceptions import AlreadyExistsError
from obstore.store import S3Store
from pyspark.sql import SparkSession

from tests.support.servers import LakeFSServer, S3Bucket, S3Server


def rows_by_delta_rs(location: str, options: dict[str, str] | None = None) -> list[int]:
    table = pa.table(DeltaTable(location, storage_options=options).to_pyarrow_table())
    return sorted(table["id"].to_pylist())


def rows_by_polars(location: str, options: dict[str, str] | None = None) -> list[int]:
    return polars.read_delta(location, storage_options=options)["id"].sort().to_list()


def rows_by_duckdb(location: str, options: dict[str, str] | None = None) -> list[int]:
    extensions = Path(duckdb_extension_delta.__file__).parent / "extensions"
    (extension,) = extensions.glob("*/delta.duckdb_extension")
    with duckdb.connect() as connection:
        connection.execute(f"LOAD '{extension}'")
        found = connection.execute("SELECT id FROM delta_scan(?) ORDER BY id", [location])
        return [row[0] for row in found.fetchall()]


def test_put_if_absent_on_versitygw_has_one_winner(s3_bucket: S3Bucket) -> None:
    server = s3_bucket.server
    store = S3Store(
        s3_bucket.name,
        endpoint=server.endpoint,
        access_key_id=server.access_key,
        secret_access_key=server.secret_key,
        region=server.region,
        client_options={"allow_http": True},
    )

    def wins(writer: int) -> bool:
        try:
            store.put("one/object", str(writer).encode(), mode="create")
        except AlreadyExistsError:
            return False
        return True

    with ThreadPoolExecutor(8) as writers:
        winners = [writer for writer, won in enumerate(writers.map(wins, range(32))) if won]

    assert len(winners) == 1
    assert bytes(store.get("one/object").bytes()) == str(winners[0]).encode()


@pytest.mark.parametrize("rows_by", [rows_by_delta_rs, rows_by_polars, rows_by_duckdb])
def test_engines_read_from_local_disk_what_spark_writes(
    spark: SparkSession, tmp_path: Path, rows_by: Callable[[str], list[int]]
) -> None:
    location = str(tmp_path / "table")

    spark.range(5).coalesce(1).write.format("delta").save(location)
    spark.range(5, 8).coalesce(1).write.format("delta").mode("append").save(location)

    assert spark.read.format("delta").load(location).count() == 8
    assert rows_by(location) == list(range(8))


@pytest.mark.parametrize("rows_by", [rows_by_delta_rs, rows_by_polars])
def test_engines_read_from_s3_what_spark_writes(
    spark_s3: SparkSession,
    s3_bucket: S3Bucket,
    rows_by: Callable[[str, dict[str, str]], list[int]],
) -> None:
    key = "some/table"

    spark_s3.range(5).coalesce(1).write.format("delta").save(f"s3a://{s3_bucket.name}/{key}")

    assert spark_s3.read.format("delta").load(f"{s3_bucket.uri}/{key}").count() == 5
    assert rows_by(f"{s3_bucket.uri}/{key}", s3_bucket.storage_options) == list(range(5))


def test_spark_reads_from_s3_what_delta_rs_writes(
    spark_s3: SparkSession, s3_bucket: S3Bucket
) -> None:
    rows = pa.table({"id": pa.array(range(5), pa.int64())})

    write_deltalake(f"{s3_bucket.uri}/table", rows, storage_options=s3_bucket.storage_options)

    found = spark_s3.read.format("delta").load(f"s3a://{s3_bucket.name}/table").collect()
    assert sorted(row.id for row in found) == list(range(5))


def test_lakefs_is_healthy(lakefs: LakeFSServer) -> None:
    with urllib.request.urlopen(f"{lakefs.endpoint}/_health", timeout=10) as response:
        assert response.status in (200, 204)


def test_delta_rs_writes_through_the_gateway_of_lakefs(lakefs: LakeFSServer) -> None:
    check_gateway(lakefs)


def test_delta_rs_writes_through_the_gateway_of_lakefs_on_s3(
    lakefs_on_s3: LakeFSServer, versitygw: S3Server
) -> None:
    check_gateway(lakefs_on_s3)


def check_gateway(server: LakeFSServer) -> None:
    repository = server.create_repository("gateway-writes")
    location = f"{repository.uri}/main/table"
    rows = pa.table({"id": pa.array(range(5), pa.int64())})

    write_deltalake(location, rows, storage_options=repository.storage_options)
    server.call("POST", "/repositories/gateway-writes/branches/main/commits", {"message": "rows"})

    assert rows_by_delta_rs(location, repository.storage_options) == list(range(5))
    objects = server.call(
        "GET", "/repositories/gateway-writes/refs/main/objects/ls?prefix=table/_delta_log/"
    )
    assert "table/_delta_log/00000000000000000000.json" in [o["path"] for o in objects["results"]]
