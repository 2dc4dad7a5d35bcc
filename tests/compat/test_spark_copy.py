"""Copying on Spark: the same objects and the same log as one process copies, wherever they are."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

import pytest

from lakeferry.engine import (
    CheckPlan,
    CheckTotals,
    CopyPlan,
    CopyTotals,
    Engine,
    LogCopy,
    LogCopyPlan,
    Volume,
)
from lakeferry.engines.local_engine import LocalEngine
from lakeferry.errors import CorruptLog, InvalidInput, MissingFile
from lakeferry.log.rewrite import Absolute, Adopted, Rewrite, Unchanged
from lakeferry.storage import Store, StoreConfig, open_store
from lakeferry.table import DeltaLog
from tests.support import components
from tests.support.corrupting import flipped
from tests.support.history import (
    Append,
    Change,
    Checkpoint,
    Compact,
    Delete,
    DeleteRows,
    History,
    Kind,
    Layout,
    Lines,
    Optimize,
)
from tests.support.servers import S3Bucket
from tests.support.shares import Share

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RICH = Layout(partitioned=True, deletion_vectors="u", change_data=True)
V2 = Layout(partitioned=True, deletion_vectors="p", change_data=True, v2_checkpoints=True)
STEPS = (Append(12), DeleteRows(4), Change(), Delete(3), Optimize(2))
HISTORIES = {
    "commits alone": History(RICH).then(*STEPS),
    "classic": History(RICH).then(*STEPS, Checkpoint(row_group_rows=4), Append(2)),
    "multi-part": History(RICH).then(*STEPS, Checkpoint(Kind.MULTI_PART, parts=11), DeleteRows(1)),
    "V2 in JSON": History(V2).then(*STEPS, Checkpoint(Kind.V2_JSON), Append(2)),
    "V2 in Parquet": History(V2).then(*STEPS, Checkpoint(Kind.V2_PARQUET, sidecars=9), Change()),
    "compacted": History(RICH).then(*STEPS, Compact(3), Append(1)),
    "absolute paths": History(replace(RICH, absolute_paths=True)).then(*STEPS, Checkpoint()),
    "nothing": History(),
}
ELSEWHERE = '{"add":{"path":"%s","size":3,"partitionValues":{},"dataChange":true}}'


@pytest.fixture(params=["the driver reads the log", "executors read the log"])
def engine(
    spark: SparkSession, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Engine]:
    """Spark, with a log that is little to it, and with one that is much."""
    from lakeferry.engines.spark import copy_on_spark
    from lakeferry.engines.spark.spark_engine import SparkEngine

    if request.param.startswith("executors"):
        monkeypatch.setattr(copy_on_spark, "PLANNED_HERE_BYTES", -1)
    with SparkEngine() as running:
        yield running


def tree(store: Store) -> dict[str, bytes]:
    names = [info.path for info in store.list("")]
    return dict(zip(names, store.get_many(names), strict=True))


def plan_of(
    source: Store, target: Store, rename: Rewrite | None = None, *, resumed: bool = False
) -> CopyPlan:
    segment = DeltaLog(source).segment()
    return CopyPlan(source.config, target.config, segment, rename or Unchanged(), resumed)


def log_plan_of(source: Store, target: Store, rewrite: Rewrite | None = None) -> LogCopyPlan:
    files = tuple(
        LogCopy(info.path, info.path, info.modified_ms)
        for info in source.list("_delta_log/")
        if info.path.endswith((".json", ".parquet"))
    )
    return LogCopyPlan(source.config, target.config, files, rewrite, {})


def copied_by(
    engines: Sequence[Engine], source: Store, folder: Path, rename: Rewrite
) -> list[tuple[CopyTotals, tuple[int, ...], dict[str, bytes]]]:
    """Return what each engine says and leaves behind."""
    results = []
    for number, engine in enumerate(engines):
        target = open_store(str(folder / f"target {number}"))
        totals = engine.copy(plan_of(source, target, rename))
        rewrite = None if isinstance(rename, Unchanged) else rename
        sizes = engine.copy_log(log_plan_of(source, target, rewrite))
        results.append((totals, sizes, tree(target)))
    return results


def agreed(engines: Sequence[Engine], plan: CheckPlan) -> CheckTotals:
    """Return what all engines find; which of many are named is theirs to choose."""
    found = [engine.check(plan) for engine in engines]
    assert len({replace(each, missing=(), unequal=()) for each in found}) == 1
    assert len({(frozenset(each.missing), frozenset(each.unequal)) for each in found}) == 1
    return found[0]


def test_a_check_finds_what_one_process_finds(spark: SparkSession, tmp_path: Path) -> None:
    from lakeferry.engines.spark.spark_engine import SparkEngine

    source, target = (open_store(str(tmp_path / name)) for name in ("source", "target"))
    for name, data in HISTORIES["V2 in Parquet"].objects(source.uri).items():
        source.put(name, data)
    segment = DeltaLog(source).segment()
    objects = CheckPlan(source.config, segment, Adopted(source.uri), target.config)
    with SparkEngine() as on_spark:
        engines = (LocalEngine(), on_spark)
        engines[0].copy(plan_of(source, target, Adopted(source.uri)))
        whole = agreed(engines, objects)
        assert whole.wanted > 0
        assert whole.missing_count == whole.unequal_count == 0
        live = DeltaLog(source).snapshot().files["path"].to_pylist()
        lost, longer = (tmp_path / "target" / unquote(path) for path in live[:2])
        lost.unlink()
        longer.write_bytes(longer.read_bytes() + b"more")
        damaged = agreed(engines, objects)
        assert (damaged.missing, damaged.unequal) == ((live[0],), (live[1],))

        absolute = Absolute(source.uri)
        engines[0].copy_log(log_plan_of(source, target, absolute))
        there = DeltaLog(target).segment()
        logs = CheckPlan(source.config, segment, absolute, target.config, there)
        assert agreed(engines, logs) == CheckTotals(len(live), 0, (), 0, (), 0)
        other = replace(logs, rename=Unchanged())
        assert agreed(engines, other).missing_count == agreed(engines, other).extra_count > 0


@pytest.mark.parametrize("name", HISTORIES)
@pytest.mark.parametrize(
    "rename", [Unchanged(), Adopted("file:///")], ids=lambda rename: type(rename).__name__
)
def test_both_engines_leave_the_same_tree(
    engine: Engine, tmp_path: Path, name: str, rename: Rewrite
) -> None:
    source = HISTORIES[name].write(open_store(str(tmp_path / "a table, 100% ü")))
    there, here = copied_by([engine, LocalEngine()], source, tmp_path, rename)
    assert there == here
    if name == "commits alone":
        assert there[0].objects == 19
        assert there[2] == {
            name: data for name, data in tree(source).items() if not name.endswith("_checkpoint")
        }


def test_what_gets_an_absolute_path_stays_where_it_is(engine: Engine, tmp_path: Path) -> None:
    source = HISTORIES["classic"].write(open_store(str(tmp_path / "source")))
    results = copied_by([engine, LocalEngine()], source, tmp_path, Absolute(source.uri))
    assert results[0] == results[1]
    assert results[0][0].objects == 0
    assert results[0][0].renamed > 0


def test_files_of_other_places_come_along(engine: Engine, tmp_path: Path) -> None:
    other = tmp_path / "else where"
    other.mkdir()
    (other / "a b").write_bytes(b"abc")
    line = ELSEWHERE % f"{other.as_uri()}/a%20b"
    source = History().then(Append(1), Lines((line,))).write(open_store(str(tmp_path / "source")))
    there, here = copied_by([engine, LocalEngine()], source, tmp_path, Adopted(source.uri))
    assert there == here
    assert there[0].objects == 2
    assert b"abc" in there[2].values()


def test_a_repeated_copy_leaves_alone_what_is_there(engine: Engine, tmp_path: Path) -> None:
    source = HISTORIES["V2 in Parquet"].write(open_store(str(tmp_path / "source")))
    target = open_store(str(tmp_path / "target"))
    plan = plan_of(source, target, Adopted(source.uri))
    first = engine.copy(plan)
    whole = tree(target)
    assert engine.copy(replace(plan, resumed=True)) == CopyTotals(
        0, 0, first.objects, 0, (), first.renamed
    )
    names = sorted(whole)
    vector = next(name for name in names if name.endswith(".bin"))
    file = next(name for name in names if name.endswith(".parquet"))
    target.put(vector, b"")
    target.put(file, b"half of it")
    target.delete_many(names[-3:])
    again = engine.copy(replace(plan, resumed=True))
    assert again.objects == len({vector, file, *names[-3:]})
    assert again.skipped == first.objects - again.objects
    assert tree(target) == whole


def test_both_ends_are_read_as_one_process_reads_them(engine: Engine, tmp_path: Path) -> None:
    source = HISTORIES["V2 in Parquet"].write(open_store(str(tmp_path / "source")))
    told = []
    for number, each in enumerate((engine, LocalEngine())):
        target = open_store(str(tmp_path / f"target {number}"))
        plan = plan_of(source, target)
        first = each.copy(replace(plan, compares="copied"))
        wrong, missing, lost, *_ = (info.path for info in target.list(""))
        right = target.get(wrong)
        target.put(wrong, flipped(right))
        target.delete_many([missing])
        data = source.get(lost)
        source.delete_many([lost])
        both = replace(plan, compares="all", resumed=True)
        other, again = each.copy(both), each.copy(replace(both, replaces=True))
        assert target.get(wrong) == right
        source.put(lost, data)
        told.append((first, other, again))
    assert told[0] == told[1]
    first, other, again = told[0]
    assert (first.compared.objects, first.compared.unequal_count) == (first.objects, 0)
    assert (other.compared.unequal_count, other.compared.unread_count, other.objects) == (1, 1, 1)
    assert (again.compared.replaced_count, again.objects) == (1, 1)
    assert again.skipped == first.objects - 1


def test_tasks_share_a_limit(spark: SparkSession, tmp_path: Path) -> None:
    from lakeferry.engines.spark.spark_engine import SparkEngine

    source, target = open_store(str(tmp_path / "source")), open_store(str(tmp_path / "target"))
    History().then(Append(4)).write(source)
    with SparkEngine(limit_rate=1 << 20) as engine:
        cores = engine.session.cores
        assert [engine.session.at_once(tasks) for tasks in (1, 1_000)] == [1, cores]
        assert engine.session.task_rate(1000, 1_000) == 1000 // cores
        assert (engine.session.task_rate(None, 5), engine.session.task_rate(1, 5)) == (None, 1)
        totals = engine.copy(plan_of(source, target))
    # Under a limit, files on local disk pass through the tasks.
    assert totals.objects == 4
    assert totals.bytes > 0 == totals.by_store_bytes


def test_what_is_missing_is_counted_and_named(engine: Engine, tmp_path: Path) -> None:
    source = History().then(Append(1_200)).write(open_store(str(tmp_path / "source")))
    paths = DeltaLog(source).snapshot().files["path"].to_pylist()
    source.delete_many(
        [info.path for info in source.list("part-") if "part-00000" not in info.path]
    )
    totals = engine.copy(plan_of(source, open_store(str(tmp_path / "target"))))
    assert (totals.objects, totals.missing_count, len(totals.missing)) == (1, 1_199, 1_000)
    assert set(totals.missing) < set(paths)


@pytest.mark.parametrize("which", ["source", "target", "both"])
def test_places_are_on_s3(engine: Engine, tmp_path: Path, s3_bucket: S3Bucket, which: str) -> None:
    source, target = (
        open_store(f"{s3_bucket.uri}/{name}", s3_bucket.storage_options)
        if which in (name, "both")
        else open_store(str(tmp_path / name))
        for name in ("source", "target")
    )
    HISTORIES["V2 in Parquet"].write(source)
    plan = plan_of(source, target, Adopted(source.uri))
    totals = engine.copy(plan)
    sizes = engine.copy_log(log_plan_of(source, target, Adopted(source.uri)))
    expected = open_store(str(tmp_path / "expected"))
    assert totals.by_store_bytes == (totals.bytes if which == "both" else 0)
    here = LocalEngine().copy(replace(plan, target=expected.config))
    assert replace(totals, by_store_bytes=0) == replace(here, by_store_bytes=0)
    assert sizes == LocalEngine().copy_log(log_plan_of(source, expected, Adopted(source.uri)))
    assert tree(target) == tree(expected)
    assert engine.copy(replace(plan, resumed=True)).skipped == totals.objects


def test_a_large_object_is_copied_in_parts(
    engine: Engine, tmp_path: Path, s3_bucket: S3Bucket
) -> None:
    source = History().then(Append(1)).write(open_store(str(tmp_path / "source")))
    (file,) = [info.path for info in source.list("part-")]
    large = os.urandom(1024 * 1024) * 70
    source.put(file, large)
    target = open_store(f"{s3_bucket.uri}/t", s3_bucket.storage_options)
    # The log says that it is small; the copy is of what is there.
    assert engine.copy(plan_of(source, target)).bytes == len(large)
    assert target.get(file) == large


def test_progress_is_told_in_bytes_and_objects(engine: Engine, tmp_path: Path) -> None:
    source = History().then(Append(30)).write(open_store(str(tmp_path / "source")))
    told: list[tuple[str, int, int]] = []
    totals = engine.copy(
        plan_of(source, open_store(str(tmp_path / "target"))), lambda *event: told.append(event)
    )
    events = [(done, total) for what, done, total in told if what == "copying data"]
    assert events[0] == (0, totals.bytes)
    assert events[-1] == (totals.bytes, totals.bytes)
    assert events == sorted(events)
    done = events[-1][0]
    assert isinstance(done, Volume)
    assert done.objects == 30


def test_nothing_stays_in_sparks_storage(
    engine: Engine, spark: SparkSession, tmp_path: Path
) -> None:
    source = HISTORIES["classic"].write(open_store(str(tmp_path / "source")))
    before = spark.sparkContext._jsc.getPersistentRDDs().size()
    engine.copy(plan_of(source, open_store(str(tmp_path / "target"))))
    assert spark.sparkContext._jsc.getPersistentRDDs().size() == before


def test_what_an_executor_cannot_read_is_named(engine: Engine, tmp_path: Path) -> None:
    source = HISTORIES["V2 in Parquet"].write(open_store(str(tmp_path / "source")))
    target = open_store(str(tmp_path / "target"))
    plan, log_plan = plan_of(source, target), log_plan_of(source, target)
    commit = plan.segment.deltas[-1].path
    source.put(commit, b'{"add":{"path":7}}')
    with pytest.raises(CorruptLog) as corrupt:
        engine.copy(plan)
    assert corrupt.value.fields["path"] == commit
    source.delete_many([commit])
    with pytest.raises(CorruptLog, match="is gone"):
        engine.copy(plan)
    with pytest.raises(MissingFile) as missing:
        engine.copy_log(log_plan)
    assert missing.value.fields["path"] == commit


def test_stores_in_memory_are_refused(engine: Engine, tmp_path: Path) -> None:
    source = HISTORIES["classic"].write(open_store(str(tmp_path)))
    plan = plan_of(source, source)
    memory = StoreConfig("memory://here")
    for refused in (replace(plan, source=memory), replace(plan, target=memory)):
        with pytest.raises(InvalidInput, match="executors can't reach"):
            engine.copy(refused)
        with pytest.raises(InvalidInput, match="executors can't reach"):
            engine.copy_log(LogCopyPlan(refused.source, refused.target, ()))


def test_tasks_tell_how_far_they_are_while_they_run(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lakeferry.engines.spark import spark_session
    from lakeferry.engines.spark.tasks.counters import Counters

    source, target = (open_store(str(tmp_path / name)) for name in ("source", "target"))
    History().then(Append(6)).write(source, with_data=True)
    counters = Counters(str(tmp_path / "counters"))
    Path(counters.path).touch()
    monkeypatch.setattr(spark_session, "kept", lambda: nullcontext(counters))
    told: list[int] = []
    totals = engine.copy(plan_of(source, target), lambda _, done, __: told.append(done))
    assert counters.totals() == (totals.bytes, totals.objects)
    assert totals.objects == 6
    assert told[-1] == totals.bytes


PROGRAM = """
import json, os, signal, sys
from lakeferry.engine import CopyPlan, LogCopy, LogCopyPlan
from lakeferry.engines.spark import copy_on_spark, job_progress
from lakeferry.engines.spark.spark_engine import SparkEngine
from lakeferry.engines.spark.tasks import copy_tasks, task_sizes
from lakeferry.log.rewrite import Adopted
from lakeferry.storage import open_store
from lakeferry.table import DeltaLog

source, target = open_store(sys.argv[1]), open_store(sys.argv[2])
settings, dies = json.loads(sys.argv[3]), sys.argv[4] == "dies"
# Many small tasks, and one who looks often, so that there is a middle to die in.
job_progress._EVERY_S = 0.005
task_sizes.TASK_OBJECTS = task_sizes._SMALLEST_TASK_OBJECTS = 2
copy_on_spark.PLANNED_HERE_BYTES = int(sys.argv[5])

def observe(what, done, total):
    if dies and what == "copying data" and 0 < done < total:
        os.kill(os.getpid(), signal.SIGKILL)

with SparkEngine(settings) as engine:
    segment = DeltaLog(source).segment()
    plan = CopyPlan(source.config, target.config, segment, Adopted(source.uri), resumed=not dies)
    totals = engine.copy(plan, observe)
    files = tuple(
        LogCopy(info.path, info.path)
        for info in source.list("_delta_log/")
        if info.path.endswith((".json", ".parquet"))
    )
    adopted = Adopted(source.uri)
    sizes = engine.copy_log(LogCopyPlan(source.config, target.config, files, adopted, {}))
print(json.dumps([totals.objects + totals.skipped, len(sizes)]))
"""


@contextmanager
def master(kind: str, folder: Path) -> Iterator[tuple[str, Path]]:
    """Give the address of a Spark of that kind, and the folder that it is in."""
    from tests.support.spark_cluster import spark_home, standalone

    if kind == "standalone":
        with standalone(folder) as url:
            yield url, folder / "spark-home"
    else:
        yield kind, spark_home(folder)


# Which Spark copies, and how many bytes of the log the driver may read itself.
KILLED = (
    ("local-cluster[2,1,1024]", -1),
    ("standalone", 1_000_000),
    ("local[2]", 1_000_000),
    ("standalone", -1),
    ("local-cluster[2,1,1024]", 1_000_000),
)


@pytest.mark.spark
@pytest.mark.xdist_group("spark of its own")
def test_a_driver_that_is_killed_leaves_a_copy_that_can_be_completed(
    tmp_path: Path, share: Share
) -> None:
    """A run takes its share, after five cases of `test_redirect_killed_on_spark.py`.

    Each case starts two drivers, and what they drive.
    """
    components.require("spark-jars")
    for number, (kind, planned_here_bytes) in enumerate(share.each(KILLED, before=5)):
        folder = tmp_path / str(number)
        folder.mkdir()
        _killed_and_completed(kind, planned_here_bytes, folder)


def _killed_and_completed(kind: str, planned_here_bytes: int, folder: Path) -> None:
    source = HISTORIES["V2 in Parquet"].write(open_store(str(folder / "source")))
    target, expected = (open_store(str(folder / name)) for name in ("target", "expected"))

    def run(url: str, home: Path, how: str) -> subprocess.CompletedProcess[str]:
        settings = {"spark.master": url, "spark.executor.memory": "512m"}
        return subprocess.run(
            [
                *(sys.executable, "-c", PROGRAM, source.uri, target.uri),
                *(json.dumps(settings), how, str(planned_here_bytes)),
            ],
            capture_output=True,
            text=True,
            env={**os.environ, "SPARK_HOME": str(home), "TMPDIR": str(folder)},
            cwd=folder,
            check=False,
        )

    with master(kind, folder) as (url, home):
        killed = run(url, home, "dies")
        assert killed.returncode == -9, (kind, killed.stderr)
        done = run(url, home, "lives")
    assert done.returncode == 0, (kind, done.stderr)
    plan = plan_of(source, expected, Adopted(source.uri))
    totals = LocalEngine().copy(plan)
    sizes = LocalEngine().copy_log(log_plan_of(source, expected, Adopted(source.uri)))
    assert json.loads(done.stdout) == [totals.objects, len(sizes)], kind
    assert tree(target) == tree(expected), kind
