"""The thread that takes export jobs from the queue.

It takes one job at a time and holds it by renewing its attempt. A failed job is retried after a
while, up to a number of attempts. After a failure of the store it waits. Only
:meth:`Worker.stop` ends the thread.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from lakeferry.errors import LakeferryError
from lakeferry.export.job_queue import LEASE_MS, Attempt, Job, Queue
from lakeferry.server.lakefs.export_jobs import JobFailure, JobResult, mistaken
from lakeferry.server.logs import say

POLL_S = 5.0
"""How long it waits if there is no job; a new job at this server wakes it."""
PRUNE_EVERY = 720
"""After this number of waits it cleans up: about once an hour."""

_LOG = logging.getLogger(__name__)


class Worker:
    """Processes a queue with ``run``, which does one job and returns its result."""

    def __init__(
        self,
        queue: Queue,
        run: Callable[[Job], JobResult],
        *,
        poll_s: float = POLL_S,
        renew_s: float = LEASE_MS / 3000,
    ) -> None:
        """Use a queue; :meth:`start` begins to process it."""
        self._queue = queue
        self._run = run
        self._poll_s = poll_s
        self._renew_s = renew_s
        self._woken = threading.Event()
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._held: Attempt | None = None
        self._thread = threading.Thread(target=self._work, name="exports", daemon=True)

    @property
    def is_alive(self) -> bool:
        """Return True if it works, or waits for work."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Start the thread, with the jobs that an earlier server left."""
        self._thread.start()

    def wake(self) -> None:
        """Tell the thread that there is a job."""
        self._woken.set()

    def stop(self, grace_s: float) -> bool:
        """Start no more jobs; return True if the running job ended within ``grace_s``.

        A job that didn't end is given back to the queue: the caller then ends the process.
        """
        self._stopping.set()
        self._woken.set()
        self._thread.join(grace_s)
        if not self._thread.is_alive():
            return True
        with self._lock:
            held, self._held = self._held, None
            if held is not None:
                try:
                    self._queue.release(held)
                except LakeferryError as failed:
                    _LOG.warning("%s stays held for a moment: %s", held.job, failed)
        return False

    def work_once(self) -> bool:
        """Do the next job that is due, if any; return True if there was one."""
        claimed = self._queue.claim()
        if claimed is None:
            return False
        job, attempt = claimed
        _LOG.info("%s: %s, %s of %s", job.id, job.kind, job.ref, job.repository)
        with self._lock:
            self._held = attempt
        ended = threading.Event()
        renewing = threading.Thread(target=self._renew, args=(ended,), daemon=True)
        renewing.start()
        try:
            result = self._run(job)
        except LakeferryError as failed:
            result = JobResult((JobFailure("", failed),))
        except Exception as mistake:  # noqa: BLE001 - the next jobs must be done
            result = JobResult((JobFailure("", mistaken(mistake)),))
        finally:
            ended.set()
            with self._lock:
                held, self._held = self._held, None
        if held is not None:
            self._end(job, attempt, result)
        return True

    def _end(self, job: Job, attempt: Attempt, result: JobResult) -> None:
        failures = result.failures
        if not failures:
            self._queue.finish(job, result.tables)
            _LOG.info("%s: done", job.id)
            return
        for failure in failures:
            what = ": ".join(filter(None, (job.id, failure.what, str(failure.error))))
            say(_LOG, logging.ERROR, what, remedy=failure.error.remedy)
        pause_ms = self._queue.fail(
            job,
            attempt,
            [failure.as_document() for failure in failures],
            again=not all(failure.is_final for failure in failures),
        )
        if pause_ms is None:
            _LOG.error("%s: given up after %s attempt(s)", job.id, attempt.number)
        else:
            _LOG.warning("%s: will be tried again in %g s", job.id, pause_ms / 1000)

    def _renew(self, ended: threading.Event) -> None:
        while not ended.wait(self._renew_s):
            with self._lock:
                if self._held is None:
                    return
                try:
                    self._queue.renew(self._held)
                except LakeferryError as failed:
                    _LOG.warning("%s can't be held: %s", self._held.job, failed)

    def _work(self) -> None:
        rests = 0
        while not self._stopping.is_set():
            self._woken.clear()
            try:
                if self.work_once():
                    continue
                if rests % PRUNE_EVERY == 0:
                    self._queue.prune()
                rests += 1
            except LakeferryError as failed:
                _LOG.error("The queue of exports can't be read: %s", failed)
            except Exception as mistake:  # noqa: BLE001 - the thread must continue
                _LOG.error("The queue of exports can't be read: %s", mistaken(mistake))
            if not self._stopping.is_set():
                self._woken.wait(self._poll_s)
