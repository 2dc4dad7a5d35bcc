"""``verify`` on Spark: the same differences, in the same order, as one process finds."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lakeferry import Table
from lakeferry.engine import PAIR, LookPlan
from lakeferry.errors import InvalidInput
from lakeferry.storage import StoreConfig, open_store
from tests.support.history import Append, DeleteRows, History, Layout
from tests.support.servers import S3Bucket

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HISTORY = History(Layout(partitioned=True, deletion_vectors="u")).then(Append(25), DeleteRows(4))


def spoil(table: Path) -> None:
    """Change, shorten, lose and break files, each in another way."""
    files = sorted(table.rglob("*.parquet"))
    data = bytearray(files[0].read_bytes())
    data[20] ^= 1
    files[0].write_bytes(data)
    files[1].unlink()
    files[2].write_bytes(b"no parquet at all" * 100)
    vectors = sorted(table.rglob("*.bin"))
    vector = bytearray(vectors[0].read_bytes())
    vector[-6] ^= 1
    vectors[0].write_bytes(vector)
    vectors[1].unlink()


def test_spark_finds_what_one_process_finds(spark: SparkSession, tmp_path: Path) -> None:
    HISTORY.write(open_store(str(tmp_path / "a")), with_data=True)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    a, b = Table(str(tmp_path / "a")), Table(str(tmp_path / "b"))
    same = a.verify(b, digest=True, rows=True, engine="spark")
    assert same.equal
    assert same == a.verify(b, digest=True, rows=True, engine="local")
    spoil(tmp_path / "b")
    told: list[tuple[str, int, int]] = []
    there = a.verify(
        b, digest=True, rows=True, engine="spark", observer=lambda *event: told.append(event)
    )
    assert there == a.verify(b, digest=True, rows=True, engine="local")
    assert {each.kind for each in there.differences} == {
        "digest",
        "missing_file",
        "deletion_vector_digest",
        "unreadable_file",
        "row_count",
    }
    assert {what for what, _, _ in told} == {"comparing digests", "counting rows"}


def test_pairs_come_back_in_order_from_many_tasks(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lakeferry.engines.spark.tasks import task_sizes

    monkeypatch.setattr(task_sizes, "TASK_OBJECTS", 3)
    monkeypatch.setattr(task_sizes, "_SMALLEST_TASK_OBJECTS", 3)
    HISTORY.write(open_store(str(tmp_path / "a")), with_data=True)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    for number, file in enumerate(sorted((tmp_path / "b").rglob("*.parquet"))):
        file.write_bytes(b"%d" % number)
    a, b = Table(str(tmp_path / "a")), Table(str(tmp_path / "b"))
    there = a.verify(b, digest=True, rows=True, engine="spark")
    assert there.difference_count > 50
    assert there == a.verify(b, digest=True, rows=True, engine="local")


def test_a_table_on_s3_is_compared_with_one_on_disk(
    spark: SparkSession, tmp_path: Path, s3_bucket: S3Bucket
) -> None:
    HISTORY.write(open_store(str(tmp_path / "a")), with_data=True)
    options = s3_bucket.storage_options
    far = open_store(f"{s3_bucket.uri}/b", options)
    for info in open_store(str(tmp_path / "a")).list(""):
        far.put(info.path, (tmp_path / "a" / info.path).read_bytes())
    a, b = Table(str(tmp_path / "a")), Table(far.uri, storage_options=options)
    assert a.verify(b, digest=True, rows=True, engine="spark").equal


def test_stores_in_memory_are_refused(spark: SparkSession) -> None:
    from lakeferry.engines.spark.spark_engine import SparkEngine

    here, memory = StoreConfig("file:///x"), StoreConfig("memory://here")
    for plan in (
        LookPlan(here, memory, PAIR.empty_table(), "rows"),
        LookPlan(memory, here, PAIR.empty_table(), "rows"),
    ):
        with pytest.raises(InvalidInput, match="executors can't reach"):
            SparkEngine().look(plan)
    assert list(SparkEngine().look(LookPlan(here, here, PAIR.empty_table(), "rows"))) == []
