"""Rewrites data files in Spark's executors and returns their ``add`` actions.

If a task is repeated, because Spark decides so or an executor was lost, it writes its files again
under other names; files that no result names are unused, and VACUUM removes them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa

from lakeferry.engine import REWRITTEN, Observer, RewritePlan
from lakeferry.engines import file_rewrite
from lakeferry.engines.copy_progress import CopyProgress
from lakeferry.engines.object_copy import Hands
from lakeferry.engines.spark.executor_jobs import ExecutorJob, on_executors
from lakeferry.engines.spark.spark_session import EngineSession
from lakeferry.storage import open_config

_FILES_AT_ONCE = 2
"""Per task: while one file is sent to the store, another one is made."""


def rewrite(
    session: EngineSession, plan: RewritePlan, observer: Observer
) -> Iterator[pa.RecordBatch]:
    """Yield the result for each file, after executors have written all."""
    file_rewrite.check_rewritable(plan)
    # The plan itself, with all of its files, must not travel with the function.
    bare = replace(plan, files=plan.files.slice(0, 0))

    def write(
        batches: Iterator[pa.RecordBatch], progress: CopyProgress
    ) -> Iterator[pa.RecordBatch]:
        rewriter = file_rewrite.Rewriter(bare, open_config)
        with Hands(_FILES_AT_ONCE) as hands:
            yield from rewriter.each(hands, batches, progress)

    files = file_rewrite.numbered(plan.files)
    job = ExecutorJob(files, REWRITTEN, file_rewrite.REWRITE_TITLE, plan.amount)
    for batch in on_executors(session, job, write, observer):
        yield batch.cast(REWRITTEN)
