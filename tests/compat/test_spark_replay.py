"""Replay on Spark: the same version as in one process, row by row, whatever the log looks like."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from lakeferry.engine import Replayed, ReplayPlan
from lakeferry.engines.local_engine import LocalEngine
from lakeferry.errors import CorruptLog, InvalidInput
from lakeferry.log import file_identity
from lakeferry.storage import Store, StoreConfig, open_store
from lakeferry.table import DeltaLog
from tests.support import components
from tests.support.history import (
    FUTURE,
    Append,
    Checkpoint,
    Clean,
    Compact,
    Delete,
    DeleteRows,
    Domain,
    History,
    Kind,
    Layout,
    Optimize,
    Restore,
    SetProperties,
    Stream,
)
from tests.support.shares import Share

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MANY_FILES = 20_000
TAIL = (
    Append(3),
    Delete(4, respell=True),
    DeleteRows(3),
    Stream(),
    Domain("lakeferry.test", "{}"),
    SetProperties((("delta.appendOnly", "false"),)),
    Restore(1),
    Optimize(2),
)
RICH = Layout(partitioned=True, deletion_vectors="u", domains=True, row_tracking=True)
V2 = Layout(partitioned=True, deletion_vectors="p", domains=True, v2_checkpoints=True)

HISTORIES = {
    "commits alone": History(RICH).then(Append(12), DeleteRows(3), *TAIL),
    "a checkpoint alone": History(RICH).then(Append(12), DeleteRows(3), Checkpoint(), Clean()),
    "classic": History(RICH).then(Append(12), DeleteRows(3), Checkpoint(), *TAIL),
    "row groups": History(RICH).then(Append(30), Delete(2), Checkpoint(row_group_rows=4), *TAIL),
    "multi-part": History(RICH).then(
        Append(30), Delete(2), Checkpoint(Kind.MULTI_PART, parts=11), *TAIL
    ),
    "V2 in JSON": History(V2).then(Append(12), Delete(2), Checkpoint(Kind.V2_JSON), *TAIL),
    "V2 in JSON without sidecars": History(V2).then(
        Append(12), Delete(2), Checkpoint(Kind.V2_JSON, sidecars=0), *TAIL
    ),
    "V2 in Parquet": History(V2).then(
        Append(30), DeleteRows(4), Checkpoint(Kind.V2_PARQUET, sidecars=10), *TAIL
    ),
    "V2 in a classic name": History(V2).then(Append(12), Checkpoint(Kind.V2_CLASSIC), *TAIL),
    "compacted": History(RICH).then(Append(12), Checkpoint(), *TAIL, Compact(4)),
    "inline vectors": History(Layout(deletion_vectors="i")).then(
        Append(6), DeleteRows(4), Checkpoint(), DeleteRows(2), Delete(1)
    ),
    "absolute paths": History(Layout(partitioned=True, absolute_paths=True)).then(
        Append(6), Checkpoint(), Delete(3, respell=True), Append(2)
    ),
    "fields of the future": History(RICH, dialect=FUTURE).then(
        Append(6), Delete(2), Checkpoint(unknown=True), *TAIL
    ),
    "parsed statistics": History(RICH).then(Append(6), Checkpoint(stats="parsed"), *TAIL),
    "structs that can't be null": History(RICH).then(
        Append(6), Delete(1), Checkpoint(empty_structs=True), *TAIL
    ),
}


def rows(batches: Iterable[pa.RecordBatch], root: str) -> list[tuple[str, dict[str, Any]]]:
    """Return rows by logical file. A column that isn't there is as good as null."""
    found = []
    for batch in batches:
        keys = file_identity.keys(batch["path"], batch["deletionVector"], root).to_pylist()
        for key, row in zip(keys, batch.to_pylist(), strict=True):
            present = {name: value for name, value in row.items() if value is not None}
            found.append((key, present))
    return sorted(found, key=repr)


def content(replayed: Replayed, root: str) -> dict[str, Any]:
    """Return all that a replayed version says."""
    small = replayed.small
    return {
        "version": small.version,
        "protocol": (small.protocol, small.protocol.raw),
        "metadata": (small.metadata, small.metadata.raw),
        "commit_info": small.commit_info,
        "txns": dict(small.txns),
        "domains": dict(small.domains),
        "totals": replayed.totals,
        "files": rows(replayed.files(), root),
        "tombstones": rows(replayed.tombstones(), root),
    }


def both(store: Store, **limits: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what Spark says of the newest version, and what one process does."""
    from lakeferry.engines.spark import replay_on_spark
    from lakeferry.engines.spark.spark_engine import SparkEngine

    plan = ReplayPlan(store.config, DeltaLog(store).segment())
    with LocalEngine().replay(plan) as replayed:
        here = content(replayed, store.uri)
    session = SparkEngine().session
    with replay_on_spark.replay(session, plan, lambda *_: None, **limits) as replayed:
        there = content(replayed, store.uri)
    return there, here


def log_only(history: History, folder: Path) -> Store:
    """Write a history's log without its data files."""
    store = open_store(str(folder))
    for name, data in history.objects(store.uri).items():
        if name.startswith("_delta_log/"):
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
    return store


@pytest.mark.parametrize("name", HISTORIES)
def test_spark_and_one_process_rebuild_the_same_version(
    spark: SparkSession, tmp_path: Path, name: str
) -> None:
    there, here = both(log_only(HISTORIES[name], tmp_path / "a table, 100% ü"))
    assert there == here


def test_dividing_the_log_and_shuffling_changes_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    history = HISTORIES["row groups"]
    there, here = both(log_only(history, tmp_path), limit_bytes=1_000, broadcast_bytes=0)
    assert there == here


def test_a_table_of_many_files(spark: SparkSession, tmp_path: Path) -> None:
    history = History(Layout(partitioned=True)).then(
        Append(MANY_FILES), Checkpoint(row_group_rows=4_000), Delete(500, respell=True), Append(100)
    )
    there, here = both(log_only(history, tmp_path), limit_bytes=200_000)
    assert len(there["files"]) == MANY_FILES - 500 + 100
    assert len(there["tombstones"]) == 500
    assert there == here


@pytest.mark.parametrize("there_is_pandas", [True, False])
def test_with_pandas_and_without_it_spark_does_the_same(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    there_is_pandas: bool,
) -> None:
    from pyspark.errors import PySparkImportError

    from lakeferry.engines.spark import spark_calls

    refusal = {"package_name": "Pandas", "minimum_version": "2.2.0"}
    direct: list[str] = []
    directly = spark_calls.map_in_arrow_without_pandas

    def ask() -> None:
        if not there_is_pandas:
            raise PySparkImportError(errorClass="PACKAGE_NOT_INSTALLED", messageParameters=refusal)

    def noted(frame: DataFrame, *arguments: Any) -> DataFrame:
        direct.append("mapped")
        return directly(frame, *arguments)

    # What PySpark asks, and not what is installed: so both ways are always tested.
    monkeypatch.setattr("pyspark.sql.pandas.functions.require_minimum_pandas_version", ask)
    monkeypatch.setattr(spark_calls, "map_in_arrow_without_pandas", noted)
    there, here = both(log_only(HISTORIES["V2 in Parquet"], tmp_path))
    assert there == here
    assert bool(direct) is not there_is_pandas


def test_a_broken_checkpoint_is_named_by_the_error_of_an_executor(
    spark: SparkSession, tmp_path: Path
) -> None:
    from lakeferry.engines.spark.spark_engine import SparkEngine

    store = log_only(HISTORIES["classic"], tmp_path)
    plan = ReplayPlan(store.config, DeltaLog(store).segment())
    (checkpoint,) = tmp_path.glob("_delta_log/*.checkpoint.parquet")
    data = bytearray(checkpoint.read_bytes())
    # The footer stays whole, so that the driver's plan finds nothing wrong.
    data[4:200] = b"\xff" * 196
    checkpoint.write_bytes(data)
    with pytest.raises(CorruptLog) as raised:
        SparkEngine().replay(plan)
    assert raised.value.fields["path"] == f"_delta_log/{checkpoint.name}"
    assert raised.value.remedy


def test_a_checkpoint_with_a_file_twice_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    from lakeferry.engines.spark.spark_engine import SparkEngine

    store = log_only(HISTORIES["a checkpoint alone"], tmp_path)
    (checkpoint,) = tmp_path.glob("_delta_log/*.checkpoint.parquet")
    rows = pq.read_table(checkpoint)
    present = rows.filter(pc.is_valid(pc.struct_field(rows["add"].combine_chunks(), "path")))
    # In a row group of its own.
    twice = pa.concat_tables([rows, present.slice(0, 1)])
    pq.write_table(twice, checkpoint, row_group_size=rows.num_rows)
    listed = DeltaLog(store).segment()
    with pytest.raises(CorruptLog, match="two actions of one file") as raised:
        SparkEngine().replay(ReplayPlan(store.config, listed))
    assert raised.value.fields["path"] == f"_delta_log/{checkpoint.name}"


def test_a_compacted_log_with_a_file_twice_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    from lakeferry.engines.spark.spark_engine import SparkEngine

    store = log_only(HISTORIES["compacted"], tmp_path)
    (compacted,) = tmp_path.glob("_delta_log/*.compacted.json")
    lines = compacted.read_bytes().splitlines(keepends=True)
    added = next(line for line in lines if b'"add"' in line)
    compacted.write_bytes(b"".join([*lines, added]))
    with pytest.raises(CorruptLog, match="two actions of one file") as raised:
        SparkEngine().replay(ReplayPlan(store.config, DeltaLog(store).segment()))
    assert raised.value.fields["path"] == f"_delta_log/{compacted.name}"


def test_progress_is_told_in_tasks(spark: SparkSession, tmp_path: Path) -> None:
    from lakeferry.engines.spark.spark_engine import SparkEngine

    store = log_only(HISTORIES["classic"], tmp_path)
    told: list[tuple[str, int, int]] = []
    plan = ReplayPlan(store.config, DeltaLog(store).segment())
    SparkEngine().replay(plan, lambda *event: told.append(event)).close()
    for what in ("reading commits", "reading the checkpoint"):
        events = [(done, total) for name, done, total in told if name == what]
        assert events[0] == (0, 1)
        assert events[-1] == (1, 1)
        assert events == sorted(events)


def test_nothing_stays_in_sparks_storage_after_close(spark: SparkSession, tmp_path: Path) -> None:
    from lakeferry.engines.spark.spark_engine import SparkEngine

    def kept() -> int:
        return int(spark.sparkContext._jsc.getPersistentRDDs().size())

    before = kept()
    store = log_only(HISTORIES["classic"], tmp_path)
    plan = ReplayPlan(store.config, DeltaLog(store).segment())
    with SparkEngine() as engine, engine.replay(plan):
        assert kept() > before
    assert kept() == before
    # The session was ours to use, and not ours to stop.
    assert spark.range(3).count() == 3


def test_a_store_in_memory_is_refused(spark: SparkSession) -> None:
    from lakeferry.engines.spark.spark_engine import SparkEngine

    plan = ReplayPlan(
        StoreConfig("memory://here"), DeltaLog(HISTORIES["classic"].store()).segment()
    )
    with pytest.raises(InvalidInput, match="executors can't reach"):
        SparkEngine().replay(plan)


PROGRAM = """
import json, sys
from lakeferry.engine import ReplayPlan
from lakeferry.engines.spark.spark_engine import SparkEngine
from lakeferry.storage import open_store
from lakeferry.table import DeltaLog

store = open_store(sys.argv[1])
settings = json.loads(sys.argv[2])
told = []
with SparkEngine(settings) as engine:
    plan = ReplayPlan(store.config, DeltaLog(store).segment())
    with engine.replay(plan, lambda *event: told.append(event)) as replayed:
        totals = replayed.totals
        paths = sorted(path for batch in replayed.files() for path in batch["path"].to_pylist())
    context = engine.session.spark.sparkContext
    shown = dict(context.getConf().getAll())
print(json.dumps({"files": totals.num_files, "paths": paths, "told": told, "shown": shown}))
sys.stderr.write("the last word\\n")
"""


@pytest.mark.spark
@pytest.mark.xdist_group("spark of its own")
def test_a_session_of_our_own_is_quiet_and_ends(tmp_path: Path, share: Share) -> None:
    components.require("spark-jars")
    for master in share.some(["local[*]", "local-cluster[2,1,1024]"]):
        folder = tmp_path / master.partition("[")[0]
        folder.mkdir()
        _is_quiet_and_ends(master, folder)


def _is_quiet_and_ends(master: str, folder: Path) -> None:
    from tests.support.spark_cluster import spark_home

    table = folder / "table"
    store = log_only(HISTORIES["V2 in Parquet"], table)
    settings = {"spark.master": master, "spark.executor.memory": "1g"}
    environment = {
        **os.environ,
        "AWS_SECRET_ACCESS_KEY": "not-for-everybody",
        "SPARK_HOME": str(spark_home(folder)),
        "TMPDIR": str(folder),
    }
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(table), json.dumps(settings)],
        capture_output=True,
        text=True,
        env=environment,
        cwd=folder,
        check=False,
    )
    assert done.stderr == "the last word\n"
    assert done.returncode == 0
    document = json.loads(done.stdout)
    expected = DeltaLog(store).snapshot().files["path"].to_pylist()
    assert document["paths"] == sorted(expected)
    assert document["files"] == len(expected)
    assert document["told"][:2] == [["starting Spark", 0, 1], ["starting Spark", 1, 1]]
    assert ["reading the checkpoint", 0] in [event[:2] for event in document["told"]]
    assert document["shown"]["spark.driver.extraClassPath"].endswith("/*")
    assert "not-for-everybody" not in json.dumps(document["shown"])
    assert not list(folder.glob("lakeferry-spark-*"))
    assert not list(folder.glob("spark-warehouse"))
