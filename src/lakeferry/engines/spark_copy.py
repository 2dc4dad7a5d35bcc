"""Copying a stretch of log on Spark: executors read what it refers to, and copy it.

The log's files are read by tasks, as for a replay, and what they refer to is
brought together by its name at the target, so that each object is there once and
what the target has already falls away. Then it is packed into tasks of bounded
size, which copy with the same functions as the engine in one process
(:mod:`lakeferry.engines.objects`). Objects go from store to executor to store;
the driver sees plans, counters, and the paths of some objects that are missing.

A task may be repeated, and may still run after the driver was killed: what it
writes are the bytes that are wanted there, under the names they are wanted under.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import DataFrame
from pyspark.sql import functions as sql
from pyspark.sql.pandas.types import from_arrow_schema

from lakeferry.engine import CopyPlan, CopyTotals, LogCopyPlan, Observer, Volume
from lakeferry.engines import spark_replay, wanted
from lakeferry.engines.spark_jobs import copy_tasks, log_plan
from lakeferry.engines.spark_jobs.failures import telling_the_driver
from lakeferry.engines.spark_jobs.log_plan import CheckpointTask, CommitTask
from lakeferry.engines.spark_progress import watched
from lakeferry.engines.spark_session import Session, map_in_arrow
from lakeferry.errors import LakeferryError
from lakeferry.storage import open_config

_LOG_FILES_PER_TASK = 500
_TASKS_PER_CORE = 4
_ROWS = "key string, path string, name string, size long, renamed boolean, present boolean"


def copy(session: Session, plan: CopyPlan, observer: Observer) -> CopyTotals:
    """Copy the objects that the plan's stretch of log refers to."""
    kept: list[DataFrame] = []
    try:
        return _copy(session, plan, observer, kept)
    finally:
        for frame in kept:
            frame.unpersist()


def _copy(
    session: Session, plan: CopyPlan, observer: Observer, kept: list[DataFrame]
) -> CopyTotals:
    rows, partitions = _referred(session, plan, observer, kept)
    parts = _counted(rows).collect()
    todo = {row["part"]: (row["todo"], row["todo_bytes"] or 0) for row in parts}
    skipped, renamed = (sum(row[name] for row in parts) for name in ("present", "renamed"))
    counts, sizes = zip(*todo.values(), strict=True) if todo else ((), ())
    amount = Volume(sum(sizes), sum(counts))
    if not amount.objects:
        return CopyTotals(0, 0, skipped, 0, (), renamed)
    packing = copy_tasks.packing(todo, session.cores)
    results = _copied(_packed(rows, packing), plan).persist(StorageLevel.MEMORY_AND_DISK)
    kept.append(results)
    context, what = session.spark.sparkContext, "copying data"
    with watched(context, what, packing.tasks, observer, preceding=partitions, amount=amount):
        sums = [sql.sum(name).alias(name) for name in ("objects", "bytes", "missing_count")]
        (total,) = results.agg(*sums).collect()
    if total["objects"] + total["missing_count"] != amount.objects:
        raise LakeferryError(
            "Spark lost count of the objects",
            cause=f"{amount.objects} were to be copied, and it tells of {total['objects']} "
            f"that were and {total['missing_count']} that are missing",
            remedy="try again: what is there is left alone",
        )
    return CopyTotals(
        total["objects"],
        total["bytes"],
        skipped,
        total["missing_count"],
        _missing(results) if total["missing_count"] else (),
        renamed,
    )


def _referred(
    session: Session, plan: CopyPlan, observer: Observer, kept: list[DataFrame]
) -> tuple[DataFrame, int]:
    """Return what the log refers to, each path once, and in about how many partitions it is.

    ``present`` says whether the target has it already.
    """
    surveys = spark_replay.survey(session, plan.source, plan.segment, observer)
    log_bytes = sum(file.size_bytes for file in plan.segment.deltas)
    log_bytes += sum(looked.size_bytes for looked in surveys)
    limit = log_plan.task_bytes(log_bytes, session.cores)
    tasks: list[CommitTask | CheckpointTask] = [
        *log_plan.commit_tasks(plan.segment, limit),
        *log_plan.checkpoint_tasks(surveys, limit),
    ]
    if not tasks:
        return session.spark.createDataFrame([], _ROWS), 0
    partitions = spark_replay.partitions_for(log_bytes)

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with telling_the_driver():
            store = open_config(plan.source)
            for batch in batches:
                for number in batch.column("id").to_pylist():
                    yield from copy_tasks.referred(store, tasks[number], plan)

    numbers = session.spark.range(0, len(tasks), 1, len(tasks))
    found = map_in_arrow(numbers, read, from_arrow_schema(copy_tasks.REFERRED))
    rows = (
        found.repartition(partitions, "key")
        .groupBy("key", "path")
        .agg(
            sql.first("name").alias("name"),
            sql.max("size").alias("size"),
            sql.first("renamed").alias("renamed"),
        )
    )
    rows = _with_present(session, plan, rows, partitions).persist(StorageLevel.MEMORY_AND_DISK)
    kept.append(rows)
    with watched(session.spark.sparkContext, "reading the log", len(tasks), observer):
        rows.count()
    return rows, partitions


def _with_present(session: Session, plan: CopyPlan, rows: DataFrame, partitions: int) -> DataFrame:
    """Say of each row whether the target has it: see :func:`wanted.without_present`."""
    if not plan.resumed:
        return rows.withColumn("present", sql.lit(False))

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with telling_the_driver():
            for batch in batches:
                if len(batch):
                    yield from copy_tasks.listing(plan)

    # A listing goes from page to page, so one task is as fast as several.
    one = session.spark.range(0, 1, 1, 1)
    listed = map_in_arrow(one, read, from_arrow_schema(wanted.LISTED))
    listed = listed.select(sql.col("name").alias("key"), sql.col("size").alias("there"))
    size, there = sql.col("size"), sql.col("there")
    same = (there == size) | (size.isNull() & (there > 0))
    joined = rows.join(listed.repartition(partitions, "key"), "key", "left")
    present = sql.col("name").isNotNull() & sql.coalesce(same, sql.lit(False))
    return joined.withColumn("present", present).drop("there")


def _counted(rows: DataFrame) -> DataFrame:
    """Return counters of each partition, with what of it is to be copied."""
    to_copy = sql.col("name").isNotNull() & ~sql.col("present")
    return rows.groupBy(sql.spark_partition_id().alias("part")).agg(
        sql.count_if(to_copy).alias("todo"),
        sql.sum(sql.when(to_copy, sql.col("size"))).alias("todo_bytes"),
        sql.count_if("present").alias("present"),
        sql.count_if("renamed").alias("renamed"),
    )


def _packed(rows: DataFrame, packing: copy_tasks.Packing) -> DataFrame:
    """Return the rows to copy, each in the partition of the task that copies it."""

    def pack(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with telling_the_driver():
            yield from copy_tasks.pack(packing, batches)

    to_copy = rows.where(sql.col("name").isNotNull() & ~sql.col("present"))
    placed = to_copy.select("path", "name", "size", sql.spark_partition_id().alias("part"))
    ordered = placed.sortWithinPartitions("name", "path")
    packed = map_in_arrow(ordered, pack, from_arrow_schema(copy_tasks.PACKED))
    return packed.repartitionById(packing.tasks, sql.col("task"))


def _copied(packed: DataFrame, plan: CopyPlan) -> DataFrame:
    """Return what becomes of each task's objects."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with telling_the_driver():
            yield from copy_tasks.copy(plan, batches)

    return map_in_arrow(packed, run, from_arrow_schema(copy_tasks.COPIED))


def _missing(results: DataFrame) -> tuple[str, ...]:
    named = results.select(sql.explode("missing").alias("path")).limit(wanted.LISTED_MISSING)
    return tuple(row["path"] for row in named.collect())


def copy_log(session: Session, plan: LogCopyPlan, observer: Observer) -> tuple[int, ...]:
    """Put log files at the target, divided among executors."""
    count = len(plan.files)
    if not count:
        return ()

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with telling_the_driver():
            for batch in batches:
                numbers = batch.column("id").to_pylist()
                sizes = copy_tasks.copy_log(plan, numbers)
                yield pa.RecordBatch.from_pydict({"id": numbers, "size": sizes})

    tasks = min(count, max(_TASKS_PER_CORE * session.cores, count // _LOG_FILES_PER_TASK))
    numbers = session.spark.range(0, count, 1, tasks)
    with watched(session.spark.sparkContext, "copying the log", tasks, observer):
        found = map_in_arrow(numbers, run, "id long, size long").collect()
    sizes = {row["id"]: row["size"] for row in found}
    return tuple(sizes[number] for number in range(count))
