"""Reports the progress of Spark jobs to an observer while they run.

A thread asks Spark a few times a second. The reported unit is tasks, which read similar amounts
and are bounded, so that progress is live. If tasks have counters, these are reported instead:
they also advance inside a large object.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pyspark import SparkContext, TaskContext

from lakeferry.engine import Observer, Volume, unobserved
from lakeferry.engines.copy_progress import CopyProgress
from lakeferry.engines.spark.tasks.counters import Counters, slot
from lakeferry.storage.byte_rate import ByteRate

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
    counters: Counters | None = None,
) -> Iterator[None]:
    """Report the jobs that this thread runs meanwhile to the observer, as ``what``.

    ``total`` is the number of tasks in the plan. Spark's own stages may have more, which aren't
    reported, and ``preceding`` of them run first. If ``amount`` is given, it is divided among
    the tasks and reported instead of tasks; with ``counters`` their value is reported. The jobs
    are cancelled if the caller leaves by an exception.
    """

    def amount_of(done: int) -> int:
        if amount is None:
            return done
        if counters is None:
            return Volume(amount * done // total, amount.objects * done // total)
        size_bytes, objects = counters.totals()
        return Volume(min(size_bytes, amount), min(objects, amount.objects))

    def tell(done: int) -> None:
        observer(what, done, total if amount is None else amount)

    group = f"lakeferry-{uuid.uuid4()}"
    before = (context.getLocalProperty(_GROUP), context.getLocalProperty(_DESCRIPTION))
    context.setJobGroup(group, what, interruptOnCancel=False)
    ended = threading.Event()
    watch = threading.Thread(
        target=_watch,
        args=(context, group, preceding, total, amount_of, tell, ended),
        daemon=True,
    )
    tell(amount_of(0))
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
    tell(total if amount is None else amount)


@contextmanager
def task_slot(counters: Counters | None) -> Iterator[Callable[[int, int], None]]:
    """Yield what stores the bytes and objects of the running task, in its partition's slot."""
    context = TaskContext.get()
    with slot(counters, context.partitionId() if context else 0) as tell:
        yield tell


@contextmanager
def task_progress(
    counters: Counters | None, rate: ByteRate | None = None
) -> Iterator[CopyProgress]:
    """Yield what counts the objects of the running task, which may be limited to a rate."""
    with task_slot(counters) as tell:
        yield CopyProgress(tell, rate)


def _watch(
    context: SparkContext,
    group: str,
    preceding: int,
    total: int,
    amount_of: Callable[[int], int],
    tell: Callable[[int], None],
    ended: threading.Event,
) -> None:
    """Report progress repeatedly; a repeated task doesn't reduce it."""
    told = 0
    while not ended.wait(_EVERY_S):
        tasks = max(0, min(_tasks_done(context, group) - preceding, total))
        if (done := amount_of(tasks)) >= told:
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
