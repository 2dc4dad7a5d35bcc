"""Compares the files of two tables on Spark, or computes digests of objects.

Pairs are sent to executors in tasks of similar size. Results stay there until they are
requested, in the plan's order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import StorageLevel
from pyspark.sql import functions as sql
from pyspark.sql.pandas.types import from_arrow_schema

from lakeferry.engine import HASHED, LOOKED, HashPlan, LookPlan, Observer
from lakeferry.engines.file_comparison import Looker
from lakeferry.engines.hashing import hashed
from lakeferry.engines.object_copy import CopyPlaces, Hands
from lakeferry.engines.spark import replay_on_spark
from lakeferry.engines.spark.job_progress import watched
from lakeferry.engines.spark.spark_errors import our_errors
from lakeferry.engines.spark.spark_session import EngineSession, map_in_arrow
from lakeferry.engines.spark.tasks import task_sizes
from lakeferry.engines.spark.tasks.task_failures import telling_the_driver
from lakeferry.storage import open_config


def look_on_spark(
    session: EngineSession, plan: LookPlan, observer: Observer
) -> Iterator[pa.RecordBatch]:
    """Yield the result of each pair, in the plan's order, after executors have read all."""
    # The plan itself, with all of its pairs, must not travel with the function.
    plan_a, plan_b, what = plan.a, plan.b, plan.what

    def act(hands: Hands, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        a, b = CopyPlaces(plan_a, open_config), CopyPlaces(plan_b, open_config)
        return Looker(hands, a, b, what).each(batches)

    yield from _on_executors(session, _weighed(plan), act, LOOKED[what], plan.title, observer)


def hash(session: EngineSession, plan: HashPlan, observer: Observer) -> Iterator[pa.RecordBatch]:
    """Yield each object's digest, once executors have read all."""
    config = plan.store

    def act(hands: Hands, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return hashed(hands, open_config(config), batches)

    yield from _on_executors(session, plan.objects, act, HASHED, plan.title, observer)


def _on_executors(
    session: EngineSession,
    rows: pa.Table,
    act: Callable[[Hands, Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]],
    schema: pa.Schema,
    title: str,
    observer: Observer,
) -> Iterator[pa.RecordBatch]:
    """Yield the results of ``act`` for rows that have a ``size``, in tasks of similar size."""
    if not rows.num_rows:
        return

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with telling_the_driver():
            for packed in batches:
                for part in packed.column("rows"):
                    with Hands() as hands, pa.ipc.open_stream(part.as_buffer()) as reader:
                        yield from act(hands, reader)

    parts = task_sizes.parts(rows, session.cores)
    tasks = [(number, _packed(part)) for number, part in enumerate(parts)]
    spark = session.spark
    with our_errors():
        frame = spark.createDataFrame(tasks, "task int, rows binary")
        placed = frame.repartitionById(len(tasks), sql.col("task"))
        looked = map_in_arrow(placed, run, from_arrow_schema(schema))
        looked = looked.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        with our_errors(), watched(spark.sparkContext, title, len(tasks), observer):
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
