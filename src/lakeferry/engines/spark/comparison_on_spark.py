"""Compares the files of two tables on Spark, or computes digests of objects."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from lakeferry.engine import HASHED, LOOKED, HashPlan, LookPlan, Observer
from lakeferry.engines.copy_progress import CopyProgress
from lakeferry.engines.file_comparison import Looker
from lakeferry.engines.hashing import hashed
from lakeferry.engines.object_copy import CopyPlaces, Hands
from lakeferry.engines.spark.executor_jobs import ExecutorJob, on_executors
from lakeferry.engines.spark.spark_session import EngineSession
from lakeferry.storage import open_config


def look_on_spark(
    session: EngineSession, plan: LookPlan, observer: Observer
) -> Iterator[pa.RecordBatch]:
    """Yield the result of each pair, in the plan's order, after executors have read all."""
    # The plan itself, with all of its pairs, must not travel with the function.
    plan_a, plan_b, what = plan.a, plan.b, plan.what

    def look(batches: Iterator[pa.RecordBatch], progress: CopyProgress) -> Iterator[pa.RecordBatch]:
        a, b = CopyPlaces(plan_a, open_config), CopyPlaces(plan_b, open_config)
        with Hands(moved=progress.moved) as hands:
            yield from Looker(hands, a, b, what, progress.ended).each(batches)

    # To count rows, only footers are read.
    amount = plan.amount if what == "digest" else None
    job = ExecutorJob(_weighed(plan), LOOKED[what], plan.title, amount)
    yield from on_executors(session, job, look, observer)


def hash(session: EngineSession, plan: HashPlan, observer: Observer) -> Iterator[pa.RecordBatch]:
    """Yield each object's digest, once executors have read all."""
    config = plan.store

    def digest(
        batches: Iterator[pa.RecordBatch], progress: CopyProgress
    ) -> Iterator[pa.RecordBatch]:
        with Hands(moved=progress.moved) as hands:
            yield from hashed(hands, open_config(config), batches, progress.ended)

    job = ExecutorJob(plan.objects, HASHED, plan.title, plan.amount)
    yield from on_executors(session, job, digest, observer)


def _weighed(plan: LookPlan) -> pa.Table:
    """Return the pairs with the number of bytes to read for each."""
    pairs = plan.pairs
    sizes = pc.add(pc.fill_null(pairs["size_a"], 0), pc.fill_null(pairs["size_b"], 0))
    if plan.what == "rows":
        # Only footers are read, whatever the size.
        sizes = pc.multiply(sizes, 0)
    return pairs.append_column("size", sizes)
