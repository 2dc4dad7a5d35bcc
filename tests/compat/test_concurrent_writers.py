"""Eight writers at once on one table: every commit is there once, and nobody's is lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
import pytest
from deltalake import write_deltalake

from lakeferry.log import paths
from lakeferry.storage import Store, StoreConfig, open_config
from lakeferry.table import DeltaLog
from tests.support import concurrent_writers as writers
from tests.support import engines, opinions, processes
from tests.support.servers import S3Bucket

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TIMES = 6


def work(
    spark: SparkSession, config: StoreConfig, spark_location: str, lock: Path
) -> tuple[list[tuple[str, int]], list[int]]:
    """Let them all work; return our acknowledged commits and everybody's acknowledged rows."""
    location, options = config.uri, config.options
    acknowledged: list[tuple[str, int]] = []
    rows: list[int] = []
    with processes.pool(7) as pool:
        ours = [pool.submit(writers.commit_metadata, config, lock, who, TIMES) for who in (1, 2)]
        ours.append(pool.submit(writers.commit_nothing, config, lock, 3, TIMES))
        checkpoints = pool.submit(writers.write_checkpoints, config, lock, TIMES)
        theirs = [
            pool.submit(writers.append_with_delta_rs, location, options, lock, who, TIMES)
            for who in (4, 5, 6)
        ]
        # This process is the eighth writer.
        for turn in range(TIMES):
            row = 7_000_000 + turn
            with writers.turnstile(lock, alone=True):
                frame = spark.range(row, row + 1).coalesce(1)
                frame.write.format("delta").mode("append").save(spark_location)
            rows.append(row)
        for future in ours:
            acknowledged += future.result()
        for appended in theirs:
            rows += appended.result()
        assert len(checkpoints.result()) == TIMES
    return acknowledged, rows


def check(
    spark: SparkSession,
    store: Store,
    spark_location: str,
    acknowledged: list[tuple[str, int]],
    rows: list[int],
    options: Mapping[str, str],
) -> None:
    """Every commit is there once and every version is the same to every engine."""
    log = DeltaLog(store)
    newest = log.segment().version
    listing = log.listing()
    assert sorted(listing.commits) == list(range(newest + 1))
    seen: Counter[str] = Counter()
    place: dict[str, int] = {}
    for version in range(newest + 1):
        first = store.get(paths.commit(version)).split(b"\n")[0]
        info = msgspec.json.decode(first, type=dict[str, dict[str, object]]).get("commitInfo", {})
        txn_id = info.get("txnId")
        if isinstance(txn_id, str):
            seen[txn_id] += 1
            place[txn_id] = version
    for txn_id, version in acknowledged:
        assert seen[txn_id] == 1
        assert place[txn_id] == version
    assert newest == 3 * TIMES + 4 * TIMES

    expected = sorted((row,) for row in [0, *rows])
    assert sorted(engines.by_spark(spark, spark_location)) == expected
    assert sorted(engines.by_delta_rs(store.uri, options=options)) == expected
    assert sorted(engines.by_polars(store.uri, options=options)) == expected
    if store.uri.startswith("file:"):
        assert sorted(engines.by_duckdb(spark_location)) == expected
    for version in range(0, newest + 1, 7):
        ours = opinions.ours(log.snapshot(version), store.uri)
        assert ours == opinions.delta_spark(spark, spark_location, version)
        count = len(engines.by_delta_rs(store.uri, version=version, options=options))
        assert count == len(ours.live)


def test_on_local_disk(spark: SparkSession, tmp_path: Path) -> None:
    """Ours, delta-rs and Spark on one local table."""
    location = tmp_path / "table"
    write_deltalake(str(location), pa.table({"id": pa.array([0], pa.int64())}))
    config = StoreConfig(location.as_uri())
    acknowledged, rows = work(spark, config, str(location), tmp_path / "lock")
    check(spark, open_config(config), str(location), acknowledged, rows, {})


def test_on_s3(spark_s3: SparkSession, s3_bucket: S3Bucket, tmp_path: Path) -> None:
    """Ours, delta-rs and Spark on one table in a bucket."""
    config = StoreConfig(f"{s3_bucket.uri}/table", s3_bucket.storage_options)
    rows_zero = pa.table({"id": pa.array([0], pa.int64())})
    write_deltalake(config.uri, rows_zero, storage_options=s3_bucket.storage_options)
    spark_location = f"s3a://{s3_bucket.name}/table"
    acknowledged, rows = work(spark_s3, config, spark_location, tmp_path / "lock")
    check(
        spark_s3, open_config(config), spark_location, acknowledged, rows, s3_bucket.storage_options
    )


@pytest.fixture(autouse=True)
def _no_leftover_cache(spark: SparkSession) -> None:
    opinions.forget(spark)
