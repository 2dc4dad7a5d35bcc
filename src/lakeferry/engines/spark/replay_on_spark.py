"""Rebuilds the state of a huge table with DataFrame operations.

Follows the rules of :mod:`lakeferry.log.replay`, on rows that executors read
(:mod:`lakeferry.engines.spark.tasks.log_rows`): the commits' newest action on a logical file
counts, and a checkpoint's row counts if no commit has an action on its file. Executors read
through our own store, so every place that Lakeferry supports works without a Hadoop connector
and with credentials from the executor's environment.

The driver sees plans, totals and the few small actions. The result stays in the executors until
it is closed.
"""

from __future__ import annotations

import functools
import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as sql
from pyspark.sql.pandas.types import from_arrow_schema

from lakeferry.engine import Observer, Replayed, ReplayPlan, ReplayTotals
from lakeferry.engines.spark.job_progress import watched
from lakeferry.engines.spark.spark_errors import our_errors
from lakeferry.engines.spark.spark_session import EngineSession, map_in_arrow
from lakeferry.engines.spark.tasks import log_plan, log_rows
from lakeferry.engines.spark.tasks.log_plan import CheckpointTask, CommitTask, FileSurvey
from lakeferry.engines.spark.tasks.log_rows import SMALL, VALUE, Shape
from lakeferry.engines.spark.tasks.task_failures import telling_the_driver
from lakeferry.log import checkpoint_read, decoding, file_actions
from lakeferry.log.actions import Action, DomainMetadata, Metadata, Protocol, Txn
from lakeferry.log.checkpoint_read import Rows
from lakeferry.log.lines import Lines
from lakeferry.log.replay import Reconciliation, Snapshot
from lakeferry.log.segment import Segment
from lakeferry.storage import Store, StoreConfig, open_config

BROADCAST_BYTES = 16 * 1024 * 1024
"""Up to this size of commit text, all executors get its files' keys; else rows are shuffled."""
_PARTITION_BYTES = 32 * 1024 * 1024
_MOST_PARTITIONS = 10_000
_LOOKED_AT = 10_000
"""Of so many hashes that two keys have, one is of equal keys, if any keys are equal."""
_SURVEYED_HERE = 8
"""Fewer files than this are surveyed faster here than by a Spark job."""

_SMALL_KINDS = (Protocol, Metadata, Txn, DomainMetadata)

_Task = TypeVar("_Task", CommitTask, CheckpointTask)
Found = TypeVar("Found")
Looked = TypeVar("Looked")
Reader = Callable[[Store, _Task, Shape], Iterator[pa.RecordBatch]]


def replay(
    session: EngineSession,
    plan: ReplayPlan,
    observer: Observer,
    *,
    limit_bytes: int | None = None,
    broadcast_bytes: int = BROADCAST_BYTES,
) -> SparkReplayed:
    """Rebuild a version and keep it in Spark's storage.

    ``limit_bytes`` is how much a task reads. Commit text up to ``broadcast_bytes`` is joined by
    broadcast. The defaults depend on the plan's size.
    """
    segment = plan.segment
    surveys = survey_on_spark(session, plan.store, segment, observer)
    delta_bytes = sum(file.size_bytes for file in segment.deltas)
    total_bytes = delta_bytes + sum(looked.size_bytes for looked in surveys)
    limit = limit_bytes or log_plan.task_bytes(total_bytes, session.cores)
    shape = log_rows.shape_of(surveys)
    kept: list[DataFrame] = []
    try:
        commit_tasks = log_plan.commit_tasks(segment, limit)
        if commit_tasks:
            rows = _read(session.spark, plan.store, commit_tasks, shape, log_rows.read_commits)
            newest = _newest(rows, partitions_for(delta_bytes))
            kept.append(_keep(session, newest, "reading commits", len(commit_tasks), observer))
        checkpoint_tasks = log_plan.checkpoint_tasks(surveys, limit)
        if checkpoint_tasks:
            rows = _read(
                session.spark, plan.store, checkpoint_tasks, shape, log_rows.read_checkpoint
            )
            if kept:
                keys = kept[0].where(~sql.col("kind").isin(*SMALL)).select("key")
                if delta_bytes <= broadcast_bytes:
                    keys = sql.broadcast(keys)
                else:
                    partitions = partitions_for(total_bytes)
                    keys = keys.repartition(partitions, "key").hint("shuffle_hash")
                    rows = rows.repartition(partitions, "key")
                rows = rows.join(keys, "key", "left_anti")
            what = "reading the checkpoint"
            kept.append(_keep(session, rows, what, len(checkpoint_tasks), observer))
            _check_distinct(kept[-1], segment)
        return SparkReplayed(plan, shape, kept, [bool(commit_tasks), bool(checkpoint_tasks)])
    except BaseException:
        for frame in kept:
            frame.unpersist()
        raise


class SparkReplayed(Replayed):
    """A version in Spark's storage; further jobs can use its frames."""

    def __init__(
        self, plan: ReplayPlan, shape: Shape, kept: Sequence[DataFrame], which: Sequence[bool]
    ) -> None:
        """Take ownership of the persisted rows: those of commits and those of the checkpoint."""
        self._kept = list(kept)
        frames = iter(kept)
        commits, checkpoint = (next(frames) if there else None for there in which)
        self.small = _small_snapshot(plan, commits, checkpoint)
        whole = functools.reduce(lambda one, other: one.unionByName(other), kept)
        self.files_frame = _actions(whole, "add", shape)
        self.tombstones_frame = _actions(whole, "remove", shape)
        counted = {
            row["kind"]: row
            for row in whole.groupBy("kind")
            .agg(sql.count(sql.lit(1)).alias("rows"), sql.sum("size").alias("bytes"))
            .collect()
        }
        adds, removes = counted.get("add"), counted.get("remove")
        self.totals = ReplayTotals(
            adds["rows"] if adds else 0,
            (adds["bytes"] or 0) if adds else 0,
            removes["rows"] if removes else 0,
        )

    def files(self) -> Iterator[pa.RecordBatch]:
        """Yield the live files, one partition after the other through the driver."""
        return batches_of_frame(self.files_frame)

    def tombstones(self) -> Iterator[pa.RecordBatch]:
        """Yield the tombstones in the same way."""
        return batches_of_frame(self.tombstones_frame)

    def close(self) -> None:
        """Remove the rows from Spark's storage."""
        for frame in self._kept:
            frame.unpersist()
        self._kept = []


def survey_on_spark(
    session: EngineSession, config: StoreConfig, segment: Segment, observer: Observer
) -> list[FileSurvey]:
    """Survey all files of the segment's checkpoint, sidecars last, in replay order."""
    if segment.checkpoint is None:
        return []
    top = _look(session, config, log_plan.survey_file, segment.checkpoint.files, observer)
    sidecars = [sidecar for looked in top for sidecar in looked.sidecars]
    return top + _look(session, config, log_plan.survey_sidecar, sidecars, observer)


def _look(
    session: EngineSession,
    config: StoreConfig,
    look: Callable[[Store, Looked], FileSurvey],
    whats: Sequence[Looked],
    observer: Observer,
) -> list[FileSurvey]:
    """Survey files: here if they are few, else on executors."""
    if len(whats) <= _SURVEYED_HERE:
        store = open_config(config)
        return [look(store, what) for what in whats]

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with telling_the_driver():
            store = open_config(config)
            for batch in batches:
                numbers = batch.column("id").to_pylist()
                told = [pickle.dumps(look(store, whats[number])) for number in numbers]
                yield pa.RecordBatch.from_pydict({"id": numbers, "survey": pa.array(told)})

    tasks = min(len(whats), 4 * session.cores)
    with watched(session.jobs, "looking at the checkpoint", tasks, observer):
        numbers = session.spark.range(0, len(whats), 1, tasks)
        found = map_in_arrow(numbers, run, "id long, survey binary").collect()
    return [pickle.loads(row["survey"]) for row in sorted(found, key=lambda row: row["id"])]


def _read(
    spark: SparkSession,
    config: StoreConfig,
    tasks: Sequence[_Task],
    shape: Shape,
    reader: Reader[_Task],
) -> DataFrame:
    """Return the rows of all tasks, each read by its own Spark task.

    Tasks are sent in the function's closure: they name files, of which there are few.
    """

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with telling_the_driver():
            store = open_config(config)
            for batch in batches:
                for number in batch.column("id").to_pylist():
                    yield from reader(store, tasks[number], shape)

    numbers = spark.range(0, len(tasks), 1, len(tasks))
    return map_in_arrow(numbers, run, from_arrow_schema(shape.schema))


def _newest(rows: DataFrame, partitions: int) -> DataFrame:
    """Return the newest row of each key."""
    by_key = Window.partitionBy("key").orderBy(sql.col("rank").desc())
    placed = rows.repartition(partitions, "key").withColumn("place", sql.row_number().over(by_key))
    return placed.where(sql.col("place") == 1).drop("place")


def _keep(
    session: EngineSession, rows: DataFrame, what: str, tasks: int, observer: Observer
) -> DataFrame:
    """Compute rows now and persist them, in memory if there is room, else on disk."""
    kept = rows.persist(StorageLevel.MEMORY_AND_DISK)
    with watched(session.jobs, what, tasks, observer):
        kept.count()
    return kept


def _check_distinct(rows: DataFrame, segment: Segment) -> None:
    """Raise an error if a checkpoint has two actions for one logical file.

    Hashes of keys are compared first: they are small, and nearly always all different.
    """
    actions = rows.where(~sql.col("kind").isin(*SMALL)).withColumn("hash", sql.xxhash64("key"))
    hashes = actions.groupBy("hash").count().where(sql.col("count") > 1).select("hash")
    twice = actions.join(sql.broadcast(hashes.limit(_LOOKED_AT)), "hash").groupBy("key").count()
    if twice.where(sql.col("count") > 1).limit(1).count():
        path = segment.checkpoint.files[0].path if segment.checkpoint else ""
        raise checkpoint_read.corrupt(path, "it has two actions of one file")


def partitions_for(size_bytes: int) -> int:
    """Return the number of partitions for shuffling the rows of ``size_bytes`` of log."""
    return min(_MOST_PARTITIONS, 1 + size_bytes // _PARTITION_BYTES)


def _actions(whole: DataFrame, action: str, shape: Shape) -> DataFrame:
    """Return one kind of file action with the columns of the in-process replay."""
    known = [sql.col(name) for name in file_actions.SCHEMAS[action].names]
    within = log_rows.unknown_name(action)
    unknown = [sql.col(within).getField(name).alias(name) for name in shape.names(action)]
    return whole.where(sql.col("kind") == action).select(
        *known, sql.col("raw").alias(file_actions.RAW.name), *unknown
    )


def _small_snapshot(
    plan: ReplayPlan, commits: DataFrame | None, checkpoint: DataFrame | None
) -> Snapshot:
    """Reconcile the actions that aren't about files, with the same code as in one process."""
    lines = Lines()
    for action in _small_actions(commits):
        lines.keep(action)
    if not log_plan.ends_with_commit(plan.segment):
        lines.commit_info = None
    reconciliation = Reconciliation(plan.segment.version, plan.store.uri, lines)
    for action in _small_actions(checkpoint):
        rows = Rows()
        rows.keep(action)
        reconciliation.take(rows)
    return reconciliation.snapshot()


def _small_actions(frame: DataFrame | None) -> Iterator[Action]:
    if frame is not None:
        found = frame.where(sql.col("kind").isin(*SMALL)).select("kind", "rank", "raw").collect()
        for row in sorted(found, key=lambda row: row["rank"]):
            action = decoding.decode_line(bytes(row["raw"]))
            if row["kind"] == VALUE and isinstance(action, _SMALL_KINDS):
                action = replace(action, raw=None)
            yield action


def batches_of_frame(frame: DataFrame) -> Iterator[pa.RecordBatch]:
    """Yield a frame's rows as Arrow, in bounded batches, one partition after the other."""

    def packed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, batch.schema) as writer:
                writer.write_batch(batch)
            yield pa.RecordBatch.from_pydict({"batch": [sink.getvalue().to_pybytes()]})

    with our_errors():
        rows = map_in_arrow(frame, packed, "batch binary").toLocalIterator()
    while True:
        # Rows that were lost with an executor are read again, which may fail.
        with our_errors():
            row = next(rows, None)
        if row is None:
            return
        with pa.ipc.open_stream(bytes(row["batch"])) as reader:
            yield from reader
