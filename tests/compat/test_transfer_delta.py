"""A long table's whole way, with engines that know nothing of us at either end of it.

Three hundred versions with deletion vectors and checkpoints of every kind: pushed, pulled,
advanced, cleaned up, pulled again; and every version read by delta-spark and delta-rs where
it came to.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable, write_deltalake

from lakeferry.engines.spark.spark_engine import SparkEngine
from lakeferry.log import paths
from lakeferry.storage import open_store
from lakeferry.table import DeltaLog
from lakeferry.transfer.datasets import checkpoint_notes
from lakeferry.transfer.datasets.delta.delta_dataset import DeltaDataset
from tests.support import engines
from tests.support import history as h
from tests.support.history import Append, Delete, DeleteRows, History, Layout, Optimize
from tests.support.hosting import NAME, Hosted, Place, hosted
from tests.support.shares import Share
from tests.support.transfers import pull, push

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

VERSIONS = 300
KINDS = (h.Kind.CLASSIC, h.Kind.V2_JSON, h.Kind.V2_PARQUET, h.Kind.V2_CLASSIC)
AT_ONCE = 25


def long_history(versions: int) -> History:
    """Return a table with a bit of everything, and few live files at any time."""
    # Its times are long past, and delta-spark lets nobody read beyond what is kept.
    keep = (("delta.deletedFileRetentionDuration", "interval 10000 days"),)
    steps: list[h.Step] = [h.SetProperties(keep)]
    commits = 2
    while commits < versions:
        step = commits % 5
        steps.append((Append(2), DeleteRows(1), Append(1), Optimize(2), Delete(1))[step])
        commits += 1
        if commits % 30 == 0:
            steps.append(h.Checkpoint(KINDS[commits // 30 % len(KINDS)]))
    return History(Layout(deletion_vectors="u", v2_checkpoints=True)).then(*steps)


def written(past: History, folder: Path) -> str:
    past.write(open_store(str(folder)), with_data=True)
    return str(folder)


def beside_of(folder: str) -> checkpoint_notes.Beside:
    """Return which versions of a table have checkpoints, and which have checksum files."""
    return checkpoint_notes.of_listing(DeltaLog(open_store(folder)).listing())


def advance(past: History, folder: str) -> None:
    store = open_store(folder)
    for name, data in past.objects(store.uri, with_data=True).items():
        store.put_if_absent(name, data)


def assert_read_alike(
    spark: SparkSession, a: str, b: str, versions: Sequence[int], share: Share
) -> None:
    """Every version has the same rows at both ends for delta-rs, and at the far end for Spark.

    delta-spark takes a second for each: it reads the first, the last, and this run's share of
    every fifth; with ``--share all`` each of them.
    """
    rows = {version: engines.by_delta_rs(a, version) for version in versions}
    assert rows == {version: engines.by_delta_rs(b, version) for version in versions}
    shared = versions if share.is_whole else versions[::5]
    chosen = sorted({*share.each(shared), versions[0], versions[-1]})
    for start in range(0, len(chosen), AT_ONCE):
        some = chosen[start : start + AT_ONCE]
        found = engines.by_spark_at(spark, b, some)
        assert found == {version: rows[version] for version in some}


def test_three_hundred_versions_travel_and_every_engine_reads_each(
    spark: SparkSession, tmp_path: Path, share: Share
) -> None:
    past = long_history(VERSIONS)
    source, target = written(past, tmp_path / "source"), str(tmp_path / "target")
    with hosted(Place((tmp_path / "root").as_uri())) as server:
        pushed = push(open_store(source), server.dataset(), server.terms())
        assert pushed.blocks == VERSIONS
        pulled = pull(server.dataset(), open_store(target), server.terms())
        assert (pulled.blocks, pulled.objects) == (VERSIONS, pushed.objects)
        assert beside_of(target) == beside_of(source)
        assert len(beside_of(target).checkpoints) == VERSIONS // 30
        assert_read_alike(spark, source, target, range(VERSIONS), share)

        # Advanced at one end: only what is new travels.
        more = past.then(Append(3), DeleteRows(2))
        advance(more, source)
        assert push(open_store(source), server.dataset(), server.terms()).objects == 5
        assert pull(server.dataset(), open_store(target), server.terms()).objects == 5

        # Cleaned up at one end: nobody has diverged, and a newcomer gets all of it.
        _clean_up(server, 270)
        assert not pull(server.dataset(), open_store(target), server.terms()).changed
        advance(more.then(Append(1)), source)
        assert push(open_store(source), server.dataset(), server.terms()).blocks == 1
        again = pull(server.dataset(), open_store(target), server.terms())
        assert (again.blocks, again.objects) == (1, 1)
        assert_read_alike(spark, source, target, range(VERSIONS - 1, VERSIONS + 3), share)
        late = str(tmp_path / "late")
        pull(server.dataset(), open_store(late), server.terms())
        assert_read_alike(spark, source, late, (0, 100, VERSIONS + 2), share)


def _clean_up(server: Hosted, before: int) -> None:
    """Do what log cleanup does at the server: a checkpoint stays, and what is before it goes."""
    store = open_store(f"{server.place.uri}/{NAME}")
    DeltaLog(store).checkpoint(before)
    old = [
        found.path for found in store.list("_delta_log/", stop_before=paths.before_version(before))
    ]
    assert len(old) >= before
    store.delete_many(old)


def test_what_arrives_is_written_to_by_everybody(spark: SparkSession, tmp_path: Path) -> None:
    source, target = str(tmp_path / "source"), str(tmp_path / "target")
    spark.range(20).write.format("delta").save(source)
    spark.sql(
        f"ALTER TABLE delta.`{source}` SET TBLPROPERTIES ('delta.enableDeletionVectors'='true',"
        " 'delta.checkpointInterval'='2', 'delta.checkpoint.writeStatsAsStruct'='true')"
    )
    spark.sql(f"DELETE FROM delta.`{source}` WHERE id = 3")
    with hosted(Place((tmp_path / "root").as_uri())) as server:
        push(open_store(source), server.dataset(), server.terms())
        pull(server.dataset(), open_store(target), server.terms())
        # Where Spark wrote checkpoints and checksum files beside its commits, there are ours.
        assert beside_of(source) == checkpoint_notes.Beside((2,), (0, 1, 2))
        assert beside_of(target) == beside_of(source)
        expected = {(number,) for number in range(20) if number != 3}
        assert set(engines.by_spark(spark, target)) == expected
        # By Spark at the far end, which cleans up behind itself, too.
        spark.range(100, 103).write.format("delta").mode("append").save(target)
        spark.sql(f"DELETE FROM delta.`{target}` WHERE id = 5")
        back = push(open_store(target), server.dataset(), server.terms())
        assert back.blocks == 2
        assert pull(server.dataset(), open_store(source), server.terms()).blocks == 2
        assert engines.by_spark(spark, source) == engines.by_spark(spark, target)
        spark.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
        try:
            spark.sql(f"VACUUM delta.`{target}` RETAIN 0 HOURS")
        finally:
            spark.conf.unset("spark.databricks.delta.retentionDurationCheck.enabled")
        # VACUUM commits what it did; the chain is still there and goes on.
        assert push(open_store(target), server.dataset(), server.terms()).blocks == 2
        late = str(tmp_path / "late")
        pull(server.dataset(), open_store(late), server.terms())
        assert engines.by_spark(spark, late) == engines.by_spark(spark, target)


def test_delta_rs_goes_on_where_a_table_came_to(tmp_path: Path) -> None:
    import pyarrow as pa

    source, target = str(tmp_path / "source"), str(tmp_path / "target")
    rows = pa.table({"id": pa.array([1, 2], pa.int64())})
    for _ in range(12):
        write_deltalake(source, rows, mode="append")
    DeltaTable(source).create_checkpoint()
    with hosted(Place((tmp_path / "root").as_uri())) as server:
        push(open_store(source), server.dataset(), server.terms())
        pull(server.dataset(), open_store(target), server.terms())
        assert beside_of(target) == beside_of(source)
        write_deltalake(target, rows, mode="append")
        table = DeltaTable(target)
        table.create_checkpoint()
        assert (table.version(), len(engines.by_delta_rs(target))) == (12, 26)
        assert push(open_store(target), server.dataset(), server.terms()).objects == 1


@pytest.mark.usefixtures("spark")
def test_digests_by_spark_make_the_same_chain(tmp_path: Path) -> None:
    past = History(Layout(deletion_vectors="u", partitioned=True)).then(
        Append(5), DeleteRows(3), Append(2), Delete(1), h.Checkpoint(), Append(1)
    )
    first, second = written(past, tmp_path / "a"), written(past, tmp_path / "b")
    with SparkEngine() as engine:
        by_spark = DeltaDataset(open_store(first), "", lambda _objects, _bytes: engine).current()
    assert by_spark == DeltaDataset(open_store(second), "").current()
