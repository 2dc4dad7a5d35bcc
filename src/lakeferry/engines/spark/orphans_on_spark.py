"""Finds objects that nothing refers to, as an anti-join on Spark.

Executors list folders, split by the first letter of a name, and follow chains, one task for
each; the driver sees only the result of the join.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema

from lakeferry.engine import ORPHAN, Observer, OrphanPlan
from lakeferry.engines import orphans as found
from lakeferry.engines.spark import replay_on_spark
from lakeferry.engines.spark.job_progress import watched
from lakeferry.engines.spark.spark_errors import our_errors
from lakeferry.engines.spark.spark_session import EngineSession, map_in_arrow
from lakeferry.engines.spark.tasks.task_failures import telling_the_driver
from lakeferry.storage import open_config

_MOST_TASKS = 1_000


def orphans(
    session: EngineSession, plan: OrphanPlan, observer: Observer
) -> Iterator[pa.RecordBatch]:
    """Yield unreferenced objects, after executors have found them."""
    if not plan.shelves:
        return
    with our_errors():
        reached = _reached(session, plan).persist(StorageLevel.MEMORY_AND_DISK)
    try:
        with our_errors():
            untold = reached.where("path is null").select("folder").distinct()
            left = (
                _listed(session, plan)
                .join(reached.where("path is not null"), ["folder", "path"], "left_anti")
                .join(untold, "folder", "left_anti")
                .select(*ORPHAN.names)
                .persist(StorageLevel.MEMORY_AND_DISK)
            )
        try:
            with (
                our_errors(),
                watched(session.jobs, found.ORPHANS_TITLE, 1, observer),
            ):
                left.count()
                folders = [row["folder"] for row in untold.collect()]
            for folder in folders:
                yield found.untold(folder)
            yield from replay_on_spark.batches_of_frame(left)
        finally:
            left.unpersist()
    finally:
        reached.unpersist()


def _tasks(session: EngineSession, count: int) -> DataFrame:
    return session.spark.range(0, count, 1, min(count, _MOST_TASKS))


def _reached(session: EngineSession, plan: OrphanPlan) -> DataFrame:
    place, shelves = plan.store, plan.shelves

    def walk(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with telling_the_driver():
            for batch in batches:
                for index in batch.column(0).to_pylist():
                    yield from found.reached(open_config(place), shelves[index])

    return map_in_arrow(_tasks(session, len(shelves)), walk, from_arrow_schema(found.REACHED))


def _listed(session: EngineSession, plan: OrphanPlan) -> DataFrame:
    place, shelves, until_ms = plan.store, plan.shelves, plan.until_ms
    # A local folder is always listed completely, so splitting saves nothing.
    is_split = not place.uri.startswith("file:")
    parts = [
        (number, prefix + letter)
        for number, shelf in enumerate(shelves)
        for prefix in shelf.prefixes
        for letter in (shelf.splits if is_split else ("",))
    ]

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with telling_the_driver():
            for batch in batches:
                for index in batch.column(0).to_pylist():
                    number, prefix = parts[index]
                    yield from found.listed_objects(
                        open_config(place), shelves[number], [prefix], until_ms
                    )

    return map_in_arrow(_tasks(session, len(parts)), read, from_arrow_schema(ORPHAN))
