"""How far Spark's jobs have come, told to an observer while they run.

Spark is asked a few times a second by a thread of its own. What is told are
tasks, of which each reads about the same; they are bounded so that this is live.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pyspark import SparkContext

from lakeferry.engine import Observer, Volume, unobserved

_EVERY_S = 0.25
_GROUP = "spark.jobGroup.id"
_DESCRIPTION = "spark.job.description"


@contextmanager
def watched(
    context: SparkContext,
    what: str,
    total: int,
    observer: Observer,
    *,
    preceding: int = 0,
    amount: Volume | None = None,
) -> Iterator[None]:
    """Tell the observer of the jobs that this thread runs meanwhile, as ``what``.

    ``total`` is the number of tasks that the plan has; Spark's own stages may
    have more, which aren't told, and ``preceding`` of them run first. Where
    ``amount`` is given, of which each task moves about the same, that is told
    rather than tasks. The jobs are cancelled if the caller leaves by an exception.
    """

    def tell(done: int) -> None:
        if amount is None:
            observer(what, done, total)
        else:
            share = Volume(amount * done // total, amount.objects * done // total)
            observer(what, share, amount)

    group = f"lakeferry-{uuid.uuid4()}"
    before = (context.getLocalProperty(_GROUP), context.getLocalProperty(_DESCRIPTION))
    context.setJobGroup(group, what, interruptOnCancel=False)
    ended = threading.Event()
    watch = threading.Thread(
        target=_watch, args=(context, group, preceding, total, tell, ended), daemon=True
    )
    tell(0)
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
    tell(total)


def _watch(
    context: SparkContext,
    group: str,
    preceding: int,
    total: int,
    tell: Callable[[int], None],
    ended: threading.Event,
) -> None:
    told = 0
    while not ended.wait(_EVERY_S):
        done = min(_tasks_done(context, group) - preceding, total)
        if done > told:
            told = done
            tell(done)


def _tasks_done(context: SparkContext, group: str) -> int:
    tracker = context.statusTracker()
    done = 0
    for job in tracker.getJobIdsForGroup(group):
        info = tracker.getJobInfo(job)
        for stage in info.stageIds if info else ():
            found = tracker.getStageInfo(stage)
            done += found.numCompletedTasks if found else 0
    return done
