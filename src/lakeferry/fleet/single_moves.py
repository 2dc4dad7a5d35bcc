"""Resumes or cancels the move of one table of the fleet, as ``redirect resume`` and ``cancel`` do.

The job is held meanwhile, so that no run begins what is being undone, and its result is recorded,
so that runs and pages know of it at once. A job that a run holds is refused:
``fleet pause --stop-running`` stops it first. Meanwhile its progress is recorded as that of a run
is, and its lease renewed: if the database can't be reached for a while, the move goes on.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from lakeferry.api.move_list import MovedTable
from lakeferry.api.move_list_file import Wanted
from lakeferry.api.redirects import Redirects
from lakeferry.engine import Observer, unobserved
from lakeferry.errors import CatalogUnavailable, InvalidInput, LakeferryError, RedirectInProgress
from lakeferry.fleet.fleet_database import FleetDatabase
from lakeferry.fleet.fleet_states import FleetEvent
from lakeferry.fleet.inventory import FleetJob
from lakeferry.fleet.inventory_changes import InventoryChanges, same_target
from lakeferry.fleet.job_changes import JobChanges, JobEnd
from lakeferry.fleet.move_progress import MoveProgress
from lakeferry.fleet.records import FleetRecords
from lakeferry.fleet.running import TableMover
from lakeferry.redirect.outcome import Outcome
from lakeferry.redirect.states import RedirectState
from lakeferry.redirect.status import Status
from lakeferry.storage.process_identity import this_process

_LEASE_MS = 600_000
"""How long a job stays with a process on another machine that doesn't report any more."""
_REPORT_S = 1.0


def resume_move(
    database: FleetDatabase, mover: TableMover, job_id: int, observer: Observer = unobserved
) -> MovedTable:
    """Go on with the move of a job that failed or was stopped; record how it ends."""
    with _HeldJob(database, job_id, "resuming", observer) as held:
        job = held.job
        moved = mover.move(Wanted(0, job.source, job.target, job.options), held.observe)
        if moved.error is None and moved.outcome is not None:
            held.end(FleetEvent.FINISH, outcome=moved.outcome.as_document())
        else:
            held.end(FleetEvent.FAIL, error=moved.error)
    return moved


def cancel_move(
    database: FleetDatabase,
    open_redirects: Callable[[Observer], Redirects],
    job_id: int,
    observer: Observer = unobserved,
) -> Outcome | None:
    """Undo the move of a job that failed or was stopped, and take its table out of the plan.

    Returns ``None`` if the move had left nothing to undo. Another move of the table isn't undone.
    """
    outcome: Outcome | None = None
    with (
        _HeldJob(database, job_id, "cancelling", observer) as held,
        open_redirects(held.observe) as redirects,
    ):
        job = held.job
        if _has_begun(redirects.status(job.source), job):
            undone = redirects.cancel(job.source)
            assert isinstance(undone, Outcome)
            outcome = undone
        held.end(FleetEvent.STOP)
    if not InventoryChanges(database).withdraw([job.uri]):
        raise RedirectInProgress(
            f"the move of {job.uri} was cancelled, but a run has started it again",
            remedy="'lakeferry fleet pause --stop-running' stops the move; then cancel it again",
        )
    return outcome


def _has_begun(status: Status, job: FleetJob) -> bool:
    """Return whether a table's unfinished move is that of the job.

    Somebody may have begun another move of the table, or have frozen it, which made the job fail.
    """
    if status.unfinished is not None:
        return same_target(job.target, status.unfinished.target)
    is_moving = status.state is RedirectState.ENABLING and not status.frozen
    ends = (status.name, status.target)
    return is_moving and any(same_target(job.target, each) for each in ends)


class _HeldJob:
    """Holds a job that failed or was stopped; given back as it ended, or with the error."""

    def __init__(self, database: FleetDatabase, job_id: int, step: str, observer: Observer) -> None:
        self._changes = JobChanges(database)
        self._holder = f"{this_process()}/{uuid.uuid4().hex[:8]}"
        self._has_ended = False
        found = FleetRecords(database).job(job_id)
        if found is None:
            raise InvalidInput(f"there is no job {job_id}", remedy="see 'lakeferry fleet status'")
        taken = self._changes.take_settled(self._holder, job_id, _LEASE_MS)
        if taken is None:
            found = FleetRecords(database).job(job_id) or found
            raise RedirectInProgress(
                f"the move of {found.uri} can't be resumed or cancelled alone: its state is "
                f"{found.state.value}",
                cause="only a move that failed or was stopped can be",
                remedy="if the move is running, 'lakeferry fleet pause --stop-running' stops it; "
                "then try again",
            )
        self.job: FleetJob = taken
        self._progress = MoveProgress(taken, step)
        self._observer = observer
        self._ends = threading.Event()
        self._reporter = threading.Thread(target=self._report, name="fleet-report", daemon=True)

    def __enter__(self) -> Self:
        self._reporter.start()
        return self

    def observe(self, what: str, done: int, total: int) -> None:
        """Note how far the move is."""
        self._progress.observe(what, done, total)
        self._observer(what, done, total)

    def _report(self) -> None:
        while True:
            # What isn't recorded is told by the next report, or not at all: the move goes on.
            with suppress(CatalogUnavailable):
                step = self._progress.progress()
                self._changes.report(self._holder, [step], [], [], _LEASE_MS)
            if self._ends.wait(_REPORT_S):
                return

    def _end_reports(self) -> None:
        self._ends.set()
        self._reporter.join()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._end_reports()
        if isinstance(error, LakeferryError):
            self.end(FleetEvent.FAIL, error=error.as_document())
        elif error is not None:
            self.end(FleetEvent.STOP)

    def end(
        self,
        event: FleetEvent,
        *,
        outcome: Mapping[str, Any] | None = None,
        error: Mapping[str, Any] | None = None,
    ) -> None:
        """Give the job back, once."""
        if not self._has_ended:
            self._end_reports()
            steps = self._progress.new_steps()
            ended = JobEnd(self.job.id, self.job.uri, event, outcome, error, steps=steps)
            self._changes.report(self._holder, [], [ended], [], 0)
            self._has_ended = True
