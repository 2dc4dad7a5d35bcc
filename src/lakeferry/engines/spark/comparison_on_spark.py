"""Compares the files of two tables on Spark, or computes digests of objects.

Pairs are sent to executors in tasks of similar size. Results stay there until they are
requested, in the plan's order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import StorageLevel
from pyspark.sql import functions as sql
from pyspark.sql.pandas.types import from_arrow_schema

from lakeferry.engine import HASHED, LOOKED, HashPlan, LookPlan, Observer, Volume
from lakeferry.engines.file_comparison import Looker
from lakeferry.engines.hashing import hashed
from lakeferry.engines.object_copy import CopyPlaces, Hands
from lakeferry.engines.spark import replay_on_spark
from lakeferry.engines.spark.job_progress import task_progress, watched
from lakeferry.engines.spark.spark_errors import our_errors
from lakeferry.engines.spark.spark_session import EngineSession, map_in_arrow
from lakeferry.engines.spark.tasks import task_sizes
from lakeferry.engines.spark.tasks.task_failures import telling_the_driver
from lakeferry.storage import open_config

Ended = Callable[[int, int | None], None]


@dataclass(frozen=True, slots=True)
class _Reading:
    """Rows that have a ``size``, the columns of the results, and what to report.

    Without ``amount`` the finished tasks are reported.
    """

    rows: pa.Table
    schema: pa.Schema
    title: str
    amount: Volume | None


def look_on_spark(
    session: EngineSession, plan: LookPlan, observer: Observer
) -> Iterator[pa.RecordBatch]:
    """Yield the result of each pair, in the plan's order, after executors have read all."""
    # The plan itself, with all of its pairs, must not travel with the function.
    plan_a, plan_b, what = plan.a, plan.b, plan.what

    def act(
        hands: Hands, batches: Iterator[pa.RecordBatch], ended: Ended
    ) -> Iterator[pa.RecordBatch]:
        a, b = CopyPlaces(plan_a, open_config), CopyPlaces(plan_b, open_config)
        return Looker(hands, a, b, what, ended).each(batches)

    # To count rows, only footers are read.
    amount = plan.amount if what == "digest" else None
    job = _Reading(_weighed(plan), LOOKED[what], plan.title, amount)
    yield from _on_executors(session, job, act, observer)


def hash(session: EngineSession, plan: HashPlan, observer: Observer) -> Iterator[pa.RecordBatch]:
    """Yield each object's digest, once executors have read all."""
    config = plan.store

    def act(
        hands: Hands, batches: Iterator[pa.RecordBatch], ended: Ended
    ) -> Iterator[pa.RecordBatch]:
        return hashed(hands, open_config(config), batches, ended)

    job = _Reading(plan.objects, HASHED, plan.title, plan.amount)
    yield from _on_executors(session, job, act, observer)


def _on_executors(
    session: EngineSession,
    job: _Reading,
    act: Callable[[Hands, Iterator[pa.RecordBatch], Ended], Iterator[pa.RecordBatch]],
    observer: Observer,
) -> Iterator[pa.RecordBatch]:
    """Yield the results of ``act`` for a job's rows, in tasks of similar size."""
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
                        with (
                            Hands(moved=progress.moved) as hands,
                            pa.ipc.open_stream(part.as_buffer()) as reader,
                        ):
                            yield from act(hands, reader, progress.ended)

        with our_errors():
            frame = spark.createDataFrame(tasks, "task int, rows binary")
            placed = frame.repartitionById(len(tasks), sql.col("task"))
            looked = map_in_arrow(placed, run, from_arrow_schema(job.schema))
            looked = looked.persist(StorageLevel.MEMORY_AND_DISK)
        try:
            with (
                our_errors(),
                watched(
                    spark.sparkContext,
                    job.title,
                    len(tasks),
                    observer,
                    preceding=session.cores,
                    amount=job.amount,
                    counters=counters,
                ),
            ):
                looked.count()
            yield from replay_on_spark.batches_of_frame(looked)
        finally:
            looked.unpersist()


def _weighed(plan: LookPlan) -> pa.Table:
    """Return the pairs with the number of bytes to read for each."""
    pairs = plan.pairs
    sizes = pc.add(pc.fill_null(pairs["size_a"], 0), pc.fill_null(pairs["size_b"], 0))
    if plan.what == "rows":
        # Only footers are read, whatever the size.
        sizes = pc.multiply(sizes, 0)
    return pairs.append_column("size", sizes)


def _packed(rows: pa.Table) -> bytearray:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    return bytearray(sink.getvalue())
