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
from typing import Protocol

from pyspark import SparkContext, TaskContext

from lakeferry.engine import Observer, Volume, unobserved
from lakeferry.engines.copy_progress import CopyProgress
from lakeferry.engines.spark.tasks.counters import Counters, slot
from lakeferry.storage.byte_rate import ByteRate

_EVERY_S = 0.25
_GROUP = "spark.jobGroup.id"
_DESCRIPTION = "spark.job.description"


class JobGroups(Protocol):
    """What runs the jobs of this thread as a group, counts its tasks, and cancels it."""

    def begin(self, group: str, what: str) -> Callable[[], None]:
        """Let this thread's jobs belong to a group; return what ends that."""
        ...

    def cancel(self, group: str) -> None:
        """Cancel the jobs of a group."""
        ...

    def tasks_done(self, group: str) -> int:
        """Return how many tasks of the group have ended."""
        ...


class ContextJobs:
    """The jobs of a Spark context in this process."""

    def __init__(self, context: SparkContext) -> None:
        self._context = context

    def begin(self, group: str, what: str) -> Callable[[], None]:
        """Let this thread's jobs belong to a group; return what ends that."""
        context = self._context
        before = (context.getLocalProperty(_GROUP), context.getLocalProperty(_DESCRIPTION))
        context.setJobGroup(group, what, interruptOnCancel=False)

        def end() -> None:
            context.setLocalProperty(_GROUP, before[0])  # type: ignore[arg-type]
            context.setLocalProperty(_DESCRIPTION, before[1])  # type: ignore[arg-type]

        return end

    def cancel(self, group: str) -> None:
        """Cancel the jobs of a group."""
        self._context.cancelJobGroup(group)

    def tasks_done(self, group: str) -> int:
        """Return how many tasks of the group have ended."""
        tracker = self._context.statusTracker()
        done = 0
        for job in tracker.getJobIdsForGroup(group):
            info = tracker.getJobInfo(job)
            for stage in info.stageIds if info else ():
                found = tracker.getStageInfo(stage)
                done += found.numCompletedTasks if found else 0
        return done


@contextmanager
def watched(
    jobs: JobGroups,
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
    end = jobs.begin(group, what)
    ended = threading.Event()
    watch = threading.Thread(
        target=_watch,
        args=(jobs, group, preceding, total, amount_of, tell, ended),
        daemon=True,
    )
    tell(amount_of(0))
    if observer is not unobserved:
        watch.start()
    try:
        yield
    except BaseException:
        jobs.cancel(group)
        raise
    finally:
        ended.set()
        if watch.ident is not None:
            watch.join()
        end()
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
    jobs: JobGroups,
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
        tasks = max(0, min(jobs.tasks_done(group) - preceding, total))
        if (done := amount_of(tasks)) >= told:
            told = done
            tell(done)
