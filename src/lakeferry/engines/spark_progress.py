"""How far Spark's jobs have come, told to an observer while they run.

Spark is asked a few times a second by a thread of its own. What is told are
tasks, of which each reads about the same; they are bounded so that this is live.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark import SparkContext

from lakeferry.engine import Observer, unobserved

_EVERY_S = 0.25
_GROUP = "spark.jobGroup.id"
_DESCRIPTION = "spark.job.description"


@contextmanager
def watched(context: SparkContext, what: str, total: int, observer: Observer) -> Iterator[None]:
    """Tell the observer of the jobs that this thread runs meanwhile, as ``what``.

    ``total`` is the number of tasks that the plan has; Spark's own stages may
    have more, which aren't told. The jobs are cancelled if the caller leaves by
    an exception.
    """
    group = f"lakeferry-{uuid.uuid4()}"
    before = (context.getLocalProperty(_GROUP), context.getLocalProperty(_DESCRIPTION))
    context.setJobGroup(group, what, interruptOnCancel=False)
    ended = threading.Event()
    watch = threading.Thread(
        target=_watch, args=(context, group, what, total, observer, ended), daemon=True
    )
    observer(what, 0, total)
    if observer is not unobserved:
        watch.start()
    try:
        yield
    except BaseException:
        context.cancelJobGroup(group)
        raise
    finally:
        ended.set()
        if watch.ident is not None:
            watch.join()
        context.setLocalProperty(_GROUP, before[0])  # type: ignore[arg-type]
        context.setLocalProperty(_DESCRIPTION, before[1])  # type: ignore[arg-type]
    observer(what, total, total)


def _watch(
    context: SparkContext,
    group: str,
    what: str,
    total: int,
    observer: Observer,
    ended: threading.Event,
) -> None:
    told = 0
    while not ended.wait(_EVERY_S):
        done = min(_tasks_done(context, group), total)
        if done > told:
            told = done
            observer(what, done, total)


def _tasks_done(context: SparkContext, group: str) -> int:
    tracker = context.statusTracker()
    done = 0
    for job in tracker.getJobIdsForGroup(group):
        info = tracker.getJobInfo(job)
        for stage in info.stageIds if info else ():
            found = tracker.getStageInfo(stage)
            done += found.numCompletedTasks if found else 0
    return done
