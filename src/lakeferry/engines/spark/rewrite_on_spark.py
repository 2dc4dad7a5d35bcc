"""Rewrites data files in Spark's executors and returns their ``add`` actions.

Files are sent to executors in tasks of similar size, and results stay there until they are
requested. If a task is repeated, because Spark decides so or an executor was lost, it writes its
files again under other names; files that no result names are unused, and VACUUM removes them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import functions as sql
from pyspark.sql.pandas.types import from_arrow_schema

from lakeferry.engine import REWRITTEN, Observer, RewritePlan
from lakeferry.engines import file_rewrite
from lakeferry.engines.object_copy import Hands
from lakeferry.engines.spark import replay_on_spark
from lakeferry.engines.spark.job_progress import task_progress, watched
from lakeferry.engines.spark.spark_errors import our_errors
from lakeferry.engines.spark.spark_session import EngineSession, map_in_arrow
from lakeferry.engines.spark.tasks import task_sizes
from lakeferry.engines.spark.tasks.task_failures import telling_the_driver
from lakeferry.storage import open_config

_FILES_AT_ONCE = 2
"""Per task: while one file is sent to the store, another one is made."""


def rewrite(
    session: EngineSession, plan: RewritePlan, observer: Observer
) -> Iterator[pa.RecordBatch]:
    """Yield the result for each file, after executors have written all."""
    file_rewrite.check_rewritable(plan)
    if not plan.files.num_rows:
        return

    # The plan itself, with all of its files, must not travel with the function.
    bare = replace(plan, files=plan.files.slice(0, 0))
    parts = task_sizes.parts(file_rewrite.numbered(plan.files), session.cores)
    tasks = [(number, _packed(part)) for number, part in enumerate(parts)]
    spark = session.spark
    with session.counters() as counters:

        def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            with telling_the_driver(), task_progress(counters) as progress:
                for packed in batches:
                    rewriter = file_rewrite.Rewriter(bare, open_config)
                    for files in packed.column("files"):
                        source = files.as_buffer()
                        with Hands(_FILES_AT_ONCE) as hands, pa.ipc.open_stream(source) as reader:
                            yield from rewriter.each(hands, reader, progress)

        with our_errors():
            frame = spark.createDataFrame(tasks, "task int, files binary")
            placed = frame.repartitionById(len(tasks), sql.col("task"))
            written = map_in_arrow(placed, run, from_arrow_schema(REWRITTEN))
            written = written.persist(StorageLevel.MEMORY_AND_DISK)
        try:
            with (
                our_errors(),
                watched(
                    spark.sparkContext,
                    file_rewrite.REWRITE_TITLE,
                    len(tasks),
                    observer,
                    preceding=session.cores,
                    amount=plan.amount,
                    counters=counters,
                ),
            ):
                written.count()
            for batch in replay_on_spark.batches_of_frame(written):
                yield batch.cast(REWRITTEN)
        finally:
            written.unpersist()


def _packed(files: pa.Table) -> bytearray:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, files.schema) as writer:
        writer.write_table(files)
    return bytearray(sink.getvalue())
