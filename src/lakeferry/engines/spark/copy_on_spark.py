"""Copies what a range of log versions refers to, on Spark.

For up to :data:`PLANNED_HERE_BYTES` of log the driver itself collects the references, as the
engine in one process does, because Spark would take longer to plan a query. For a longer log
executors read the files, as in a replay. References are grouped by name at the target, so that
each object occurs once, and objects that the target already has are removed; the driver sees
only counters.

In both cases the copy is divided into tasks of bounded size, which use the same functions as the
engine in one process (:mod:`lakeferry.engines.object_copy`), from store to executor to store. A
task may be repeated, and may still run after the driver was killed: it always writes the same
bytes under the same names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import StorageLevel
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as sql
from pyspark.sql.pandas.types import from_arrow_schema

from lakeferry.engine import (
    LISTED_FINDINGS,
    CopyPlan,
    CopyTotals,
    LogCopyPlan,
    LogExported,
    LogExportPlan,
    Observer,
    Volume,
)
from lakeferry.engines import object_copier, objects_to_copy
from lakeferry.engines.copy_progress import CopyProgress
from lakeferry.engines.spark import presence_on_spark, replay_on_spark, spark_calls
from lakeferry.engines.spark.job_progress import task_progress, watched
from lakeferry.engines.spark.spark_session import EngineSession, map_in_arrow
from lakeferry.engines.spark.tasks import copy_tasks, log_plan, task_sizes
from lakeferry.engines.spark.tasks.counters import Counters
from lakeferry.engines.spark.tasks.log_plan import CheckpointTask, CommitTask
from lakeferry.engines.spark.tasks.task_failures import telling_the_driver
from lakeferry.errors import LakeferryError
from lakeferry.storage import open_config
from lakeferry.storage.byte_rate import ByteRate

PLANNED_HERE_BYTES = 16 * 1024 * 1024
_LOG_SIZE = pa.schema([("id", pa.int64()), ("size", pa.int64())])
_LOG_FILES_PER_TASK = 500
_TASKS_PER_CORE = 4

_Task = CommitTask | CheckpointTask


def copy_objects_on_spark(
    session: EngineSession, plan: CopyPlan, observer: Observer, limit_rate: int | None = None
) -> CopyTotals:
    """Copy the objects that the plan's part of the log refers to.

    ``limit_rate`` is the most bytes per second that all tasks move together.
    """
    surveys = replay_on_spark.survey_on_spark(session, plan.source, plan.segment, observer)
    log_bytes = sum(file.size_bytes for file in plan.segment.deltas)
    log_bytes += sum(looked.size_bytes for looked in surveys)
    limit = log_plan.task_bytes(log_bytes, session.cores)
    tasks: list[_Task] = [
        *log_plan.commit_tasks(plan.segment, limit),
        *log_plan.checkpoint_tasks(surveys, limit),
    ]
    if log_bytes <= PLANNED_HERE_BYTES:
        return _copy_little(session, plan, tasks, observer, limit_rate)
    rows = _referred(session, plan, tasks, replay_on_spark.partitions_for(log_bytes))
    rows = rows.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        with watched(session.jobs, "reading the log", len(tasks), observer):
            partitions = _counted(rows).collect()
        return _copy_rows(session, plan, rows, partitions, observer, limit_rate)
    finally:
        rows.unpersist()


# --- Little log: the driver reads it ------------------------------------------


def _copy_little(
    session: EngineSession,
    plan: CopyPlan,
    tasks: Sequence[_Task],
    observer: Observer,
    limit_rate: int | None,
) -> CopyTotals:
    store = open_config(plan.source)
    batches = [batch for task in tasks for batch in copy_tasks.referred(store, task, plan)]
    named = copy_tasks.distinct_batches(pa.Table.from_batches(batches, copy_tasks.REFERRED))
    table = all_wanted = objects_to_copy.to_copy(named)
    if plan.resumed and plan.compares != "all":
        table = objects_to_copy.without_present(table, open_config(plan.target))
    told = _copied_parts(session, plan, table, observer, limit_rate) if table.num_rows else []
    renamed = pc.sum(named["renamed"]).as_py() or 0
    total = CopyTotals(0, 0, all_wanted.num_rows - table.num_rows, 0, (), renamed)
    for row in told:
        total = total.plus(copy_tasks.totals_of(row.asDict()))
    return replace(total, missing=total.missing[: objects_to_copy.LISTED_MISSING])


def _copied_parts(
    session: EngineSession,
    plan: CopyPlan,
    table: pa.Table,
    observer: Observer,
    limit_rate: int | None,
) -> list[Row]:
    """Copy the table's rows, and return each task's result.

    The rows are few, so they are sent in the function's closure.
    """
    parts = task_sizes.parts(table, session.cores)
    limit = session.task_rate(limit_rate, len(parts))
    plan = copy_tasks.of_task(plan)
    numbers = session.spark.range(0, len(parts), 1, len(parts))
    amount = object_copier.volume_of(plan, table)
    with session.counters() as counters:

        def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            rate = _rate_of(limit)
            with telling_the_driver(), task_progress(counters, rate) as progress:
                for batch in batches:
                    for number in batch.column("id").to_pylist():
                        rows = parts[number].to_batches()
                        yield from copy_tasks.copy_batches(plan, rows, progress, rate)

        count, title = len(parts), object_copier.title_of(plan)
        with watched(session.jobs, title, count, observer, amount=amount, counters=counters):
            return map_in_arrow(numbers, run, from_arrow_schema(copy_tasks.COPIED)).collect()


def _rate_of(limit: int | None) -> ByteRate | None:
    """Return the rate of one task, in its executor."""
    return None if limit is None else ByteRate(limit)


# --- Much log: executors read it ----------------------------------------------


def _referred(
    session: EngineSession, plan: CopyPlan, tasks: Sequence[_Task], partitions: int
) -> DataFrame:
    """Return the log's references, each path once; ``present`` marks the target's objects."""

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with telling_the_driver():
            store = open_config(plan.source)
            for batch in batches:
                for number in batch.column("id").to_pylist():
                    yield from copy_tasks.referred(store, tasks[number], plan)

    numbers = session.spark.range(0, len(tasks), 1, len(tasks))
    found = map_in_arrow(numbers, read, from_arrow_schema(copy_tasks.REFERRED))
    by_key = found.repartition(partitions, "key").groupBy("key", "path")
    rows = by_key.agg(
        sql.first("name").alias("name"),
        sql.max("size").alias("size"),
        sql.first("renamed").alias("renamed"),
    )
    if not plan.resumed or plan.compares == "all":
        return rows.withColumn("present", sql.lit(False))
    size, there = sql.col("size"), sql.col("there")
    same = sql.coalesce((there == size) | (size.isNull() & (there > 0)), sql.lit(False))
    listed = presence_on_spark.listing_frame(session, plan.target)
    joined = rows.join(listed.repartition(partitions, "key"), "key", "left")
    # ``wanted.without_present`` explains why these are the same.
    return joined.withColumn("present", sql.col("name").isNotNull() & same).drop("there")


def _counted(rows: DataFrame) -> DataFrame:
    """Return counters of each partition, with the objects and bytes to copy."""
    to_copy = sql.col("name").isNotNull() & ~sql.col("present")
    return rows.groupBy(sql.spark_partition_id().alias("part")).agg(
        sql.count_if(to_copy).alias("todo"),
        sql.sum(sql.when(to_copy, sql.col("size"))).alias("todo_bytes"),
        sql.count_if("present").alias("present"),
        sql.count_if("renamed").alias("renamed"),
    )


def _copy_rows(
    session: EngineSession,
    plan: CopyPlan,
    rows: DataFrame,
    partitions: Sequence[Row],
    observer: Observer,
    limit_rate: int | None,
) -> CopyTotals:
    todo = {row["part"]: (row["todo"], row["todo_bytes"] or 0) for row in partitions}
    skipped, renamed = (sum(row[name] for row in partitions) for name in ("present", "renamed"))
    objects = sum(count for count, _ in todo.values())
    amount = object_copier.amount_of(plan, objects, sum(size for _, size in todo.values()))
    before = CopyTotals(0, 0, skipped, 0, (), renamed)
    if not objects:
        return before
    packing = task_sizes.packing(todo, session.cores)
    limit = session.task_rate(limit_rate, packing.tasks)
    with session.counters() as counters:
        results = _copied(_packed(rows, packing), plan, counters, limit)
        results = results.persist(StorageLevel.MEMORY_AND_DISK)
        try:
            with watched(
                session.jobs,
                object_copier.title_of(plan),
                packing.tasks,
                observer,
                preceding=len(partitions),
                amount=amount,
                counters=counters,
            ):
                counts = [sql.sum(name).alias(name) for name in copy_tasks.COUNTS]
                (row,) = results.agg(*counts).collect()
            named = {name: _named(results, name, row) for name in copy_tasks.NAMED_PATHS}
        finally:
            results.unpersist()
    total = copy_tasks.totals_of({**row.asDict(), **named})
    done = total.objects + total.skipped + total.missing_count
    if done != objects:
        raise LakeferryError(
            "Spark reports a wrong number of objects",
            cause=f"{objects} had to be copied, but it reports {done}",
            remedy="try again: what was copied isn't copied again",
        )
    return before.plus(total)


def _packed(rows: DataFrame, packing: task_sizes.Packing) -> DataFrame:
    """Return the rows to copy, each in the partition of the task that copies it."""

    def pack(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with telling_the_driver():
            yield from task_sizes.pack_batches(packing, batches)

    to_copy = rows.where(sql.col("name").isNotNull() & ~sql.col("present"))
    placed = to_copy.select("path", "name", "size", sql.spark_partition_id().alias("part"))
    ordered = placed.sortWithinPartitions("name", "path")
    packed = map_in_arrow(ordered, pack, from_arrow_schema(task_sizes.PACKED))
    return spark_calls.place_by_task(packed, packing.tasks, "task")


def _copied(
    packed: DataFrame, plan: CopyPlan, counters: Counters | None, limit: int | None
) -> DataFrame:
    """Return the results of each task's objects."""
    plan = copy_tasks.of_task(plan)

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rate = _rate_of(limit)
        with telling_the_driver(), task_progress(counters, rate) as progress:
            yield from copy_tasks.copy_batches(plan, batches, progress, rate)

    return map_in_arrow(packed, run, from_arrow_schema(copy_tasks.COPIED))


def _named(results: DataFrame, name: str, counts: Row) -> tuple[str, ...]:
    """Return some of the paths that the tasks have named as ``missing``, ``unequal``, ..."""
    if not counts[f"{name}_count"]:
        return ()
    limit = objects_to_copy.LISTED_MISSING if name == "missing" else LISTED_FINDINGS
    paths = results.select(sql.explode(name).alias("path")).limit(limit)
    return tuple(row["path"] for row in paths.collect())


# --- The log itself -----------------------------------------------------------


def copy_log_on_spark(
    session: EngineSession, plan: LogCopyPlan, observer: Observer, limit_rate: int | None = None
) -> tuple[int, ...]:
    """Put log files at the target, divided among executors."""

    def act(numbers: list[int], progress: CopyProgress, rate: ByteRate | None) -> pa.RecordBatch:
        sizes = copy_tasks.copy_log_batches(plan, numbers, progress, rate)
        return pa.RecordBatch.from_pydict({"id": numbers, "size": sizes})

    title = "copying the log"
    found = _by_number(session, plan.amount, title, act, _LOG_SIZE, observer, limit_rate)
    return tuple(row["size"] for row in found)


def export_log_on_spark(
    session: EngineSession, plan: LogExportPlan, observer: Observer, limit_rate: int | None = None
) -> tuple[LogExported, ...]:
    """Put log files at the target with the listed URIs, divided among executors."""
    act, schema = partial(copy_tasks.export_log_batches, plan), copy_tasks.EXPORTED
    title = "exporting the log"
    found = _by_number(session, plan.amount, title, act, schema, observer, limit_rate)
    return tuple(map(_exported, found))


def _by_number(
    session: EngineSession,
    amount: Volume,
    title: str,
    act: Callable[[list[int], CopyProgress, ByteRate | None], pa.RecordBatch],
    schema: pa.Schema,
    observer: Observer,
    limit_rate: int | None,
) -> list[Row]:
    """Run tasks for the numbers of all log files; return the row of each number, in order."""
    count = amount.objects
    if not count:
        return []
    tasks = min(count, max(_TASKS_PER_CORE * session.cores, count // _LOG_FILES_PER_TASK))
    limit = session.task_rate(limit_rate, tasks)
    numbers = session.spark.range(0, count, 1, tasks)
    with session.counters() as counters:

        def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            rate = _rate_of(limit)
            with telling_the_driver(), task_progress(counters, rate) as progress:
                for batch in batches:
                    yield act(batch.column("id").to_pylist(), progress, rate)

        with watched(session.jobs, title, tasks, observer, amount=amount, counters=counters):
            found = map_in_arrow(numbers, run, from_arrow_schema(schema)).collect()
    rows = {row["id"]: row for row in found}
    return [rows[number] for number in range(count)]


def _exported(row: Row) -> LogExported:
    values = row.asDict()
    values["gone"] = tuple(values["gone"])
    for name in ("protocol", "metadata"):
        values[name] = None if values[name] is None else bytes(values[name])
    return LogExported(**{name: value for name, value in values.items() if name != "id"})
