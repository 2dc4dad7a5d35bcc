"""Runs a function over rows in Spark's executors, in tasks of similar size.

The results stay in the executors until they are requested, in the order of the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql.pandas.types import from_arrow_schema

from lakeferry.engine import Observer, Volume
from lakeferry.engines.copy_progress import CopyProgress
from lakeferry.engines.spark import replay_on_spark, spark_calls
from lakeferry.engines.spark.job_progress import task_progress, watched
from lakeferry.engines.spark.spark_errors import our_errors
from lakeferry.engines.spark.spark_session import EngineSession, map_in_arrow
from lakeferry.engines.spark.tasks import task_sizes
from lakeferry.engines.spark.tasks.task_failures import telling_the_driver

RunTask = Callable[[Iterator[pa.RecordBatch], CopyProgress], Iterator[pa.RecordBatch]]
"""What a task does with its rows. It travels to executors, so it must not hold all rows."""


@dataclass(frozen=True, slots=True)
class ExecutorJob:
    """Rows that have a ``size``, the columns of the results, and what to report.

    Without ``amount`` the finished tasks are reported.
    """

    rows: pa.Table
    schema: pa.Schema
    title: str
    amount: Volume | None


def on_executors(
    session: EngineSession, job: ExecutorJob, run_task: RunTask, observer: Observer
) -> Iterator[pa.RecordBatch]:
    """Yield the results of ``run_task`` for a job's rows, after executors have done all."""
    if not job.rows.num_rows:
        return
    parts = task_sizes.parts(job.rows, session.cores)
    tasks = [(number, _packed(part)) for number, part in enumerate(parts)]
    spark = session.spark
    with session.counters() as counters:

        def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            with telling_the_driver(), task_progress(counters) as progress:
                for packed in batches:
                    for part in packed.column("rows"):
                        with pa.ipc.open_stream(part.as_buffer()) as reader:
                            yield from run_task(reader, progress)

        with our_errors():
            frame = spark.createDataFrame(tasks, "task int, rows binary")
            placed = spark_calls.place_by_task(frame, len(tasks), "task")
            done = map_in_arrow(placed, run, from_arrow_schema(job.schema))
            done = done.persist(StorageLevel.MEMORY_AND_DISK)
        try:
            with (
                our_errors(),
                watched(
                    session.jobs,
                    job.title,
                    len(tasks),
                    observer,
                    preceding=session.cores,
                    amount=job.amount,
                    counters=counters,
                ),
            ):
                done.count()
            yield from replay_on_spark.batches_of_frame(done)
        finally:
            done.unpersist()


def _packed(rows: pa.Table) -> bytearray:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    return bytearray(sink.getvalue())
