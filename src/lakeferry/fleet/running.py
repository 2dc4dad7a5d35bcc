"""Runs jobs: takes them by lease, moves their tables in threads, and records how each ends.

One thread, the caller's, talks to the database; the others move tables. Invariants:

* a job that is taken is reported as done, failed, stopped or released, or its lease ends and
  another run takes it. A run that was killed on this machine is known to have ended at once;
* correctness never depends on leases. A move is safe to begin twice: the second one resumes it, or
  finds that the table has moved already and the job is done;
* what happens after READY never turns a move into a failure. If the database can't be reached,
  moves that run go on, no other begins, and results are kept until they can be recorded. If that
  fails, it is a warning: the next run finds these tables moved, and closes their jobs;
* a pause, and the end of a window, let no job begin. Moves that run go on to their end, unless the
  pause says that they stop too: then they stop where they next report progress, and the next run
  continues them there. A move that already makes writers wait is brought to its end;
* a run ends when its waves have ended, also by the work of other runs.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

from lakeferry.api.move_list import STOPPING_S, MovedTable
from lakeferry.api.move_list_file import Wanted
from lakeferry.engine import Observer, unobserved
from lakeferry.errors import CatalogUnavailable, Interrupted, LakeferryError, TableNotFound
from lakeferry.fleet.fleet_states import FleetEvent, FleetState
from lakeferry.fleet.inventory import FleetJob
from lakeferry.fleet.job_changes import JobChanges, JobEnd, RunState
from lakeferry.fleet.move_progress import MoveProgress
from lakeferry.fleet.waves import RunWindow, choose_wave
from lakeferry.storage.process_identity import this_process
from lakeferry.storage.uris import same_place

FLEET_LEASE_MS = 60_000
"""How long a job stays with a run that doesn't report any more."""
_REPORT_S = 1.0
"""How often a run reports, and so how soon it sees a pause."""
_GATHER_S, _TICK_S = 0.25, 0.01
"""For how long a report waits for more ends, and how often it looks."""
_PATIENCE_S = 30.0
"""How long a run that has nothing else to do waits for its database."""


class TableMover(Protocol):
    """Moves tables; :class:`lakeferry.api.move_list.Mover` is one."""

    def move(self, wanted: Wanted, observer: Observer = unobserved) -> MovedTable:
        """Move one table, or resume its move; never raises."""

    def stop(self) -> None:
        """Start no further move, and end running ones when they next report progress."""


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What a run was asked for."""

    wave: int | None = None
    parallel: int = 4
    window: RunWindow | None = None
    waits: bool = False
    """Whether it waits until the window opens, instead of ending."""


@dataclass(frozen=True, slots=True)
class FleetRun:
    """What a run did."""

    moved: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()
    stopped: tuple[str, ...] = ()
    unchanged: tuple[str, ...] = ()
    """Tables that had moved before, whose jobs it closed."""
    paused: bool = False
    opens_ms: int | None = None
    """When the window opens that kept it from going on."""
    blocked_by_wave: int | None = None
    interrupted: bool = False
    unrecorded: tuple[str, ...] = ()
    """Tables that were moved, which the database couldn't be told."""
    errors: tuple[dict[str, object], ...] = ()
    lost_database: CatalogUnavailable | None = None

    @property
    def uris(self) -> tuple[str, ...]:
        """Every table that it had to do with."""
        return (*self.moved, *self.unchanged, *self.failed, *self.stopped)

    def as_document(self) -> dict[str, Any]:
        """Return the fields of ``fleet run`` beside ``tables``."""
        return {
            "moved": len(self.moved),
            "failed": len(self.failed),
            "stopped": len(self.stopped),
            "changed": bool(self.moved),
            "paused": self.paused,
            "opens_ms": self.opens_ms,
            "blocked_by_wave": self.blocked_by_wave,
            "unrecorded": list(self.unrecorded),
        }


class _Running(MoveProgress):
    """One move and its progress."""

    def __init__(self, job: FleetJob) -> None:
        super().__init__(job, "waiting")
        self.has_begun = False


@dataclass(slots=True)
class _Tally:
    """What became of the jobs so far."""

    by_event: dict[FleetEvent, dict[str, None]] = field(default_factory=dict)
    unchanged: dict[str, None] = field(default_factory=dict)
    errors: list[dict[str, object]] = field(default_factory=list)

    def add(self, end: JobEnd) -> None:
        if end.event is FleetEvent.FINISH and not (end.outcome or {}).get("changed"):
            self.unchanged[end.uri] = None
            return
        self.by_event.setdefault(end.event, {})[end.uri] = None
        if end.event is FleetEvent.FAIL:
            self.errors.append({**(end.error or {}), "source": end.uri})

    def of(self, event: FleetEvent) -> tuple[str, ...]:
        return tuple(self.by_event.get(event, ()))


class FleetRunner:
    """One run. ``changes`` is the way to the database."""

    def __init__(
        self,
        changes: JobChanges,
        open_mover: Callable[[], TableMover],
        options: RunOptions,
        *,
        blocks_writers: Callable[[str], bool] = lambda _: False,
        locate: Callable[[str], str] = lambda name: name,
        warn: Callable[[str], None] = lambda _: None,
        observer: Observer = unobserved,
        clock_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        report_s: float = _REPORT_S,
        patience_s: float = _PATIENCE_S,
        stop: threading.Event | None = None,
    ) -> None:
        """Set up a run; nothing begins before :meth:`run`.

        ``blocks_writers`` returns whether the move of a table is in the phase in which its writers
        wait, ``locate`` the place to which a name in a catalog leads. ``stop`` is set by others to
        end this run as a pause that stops running moves does.
        """
        self._changes = changes
        self._options = options
        self._open_mover = open_mover
        self._mover = open_mover()
        self._blocks_writers = blocks_writers
        self._locate = locate
        self._interrupted = False
        self._warn = warn
        self._observer = observer
        self._clock_ms = clock_ms
        self._report_s = report_s
        self._patience_s = patience_s
        self.holder = f"{this_process()}/{uuid.uuid4().hex[:8]}"
        self._running: dict[Future[MovedTable], _Running] = {}
        self._ended: list[JobEnd] = []
        """Ends that aren't recorded yet."""
        self._tally = _Tally()
        self._state: RunState | None = None
        self._reported_s = self._progressed_s = 0.0
        self._ahead = 0
        self._tick = threading.Event()
        self._stop = stop or threading.Event()
        self._lost_since_s: float | None = None
        self._trouble: CatalogUnavailable | None = None
        self._began = 0
        self._reason = _Reason()

    def run(self) -> FleetRun:
        """Move tables until there is nothing more to do, or until something stops the run.

        An interrupt (Ctrl-C) isn't raised: running moves get a moment to end, and the result says
        how far each has come.
        """
        options = self._options
        detail = {"wave": options.wave, "parallel": options.parallel}
        self._began = self._changes.begin_run(self.holder, options.wave, detail)
        pool = ThreadPoolExecutor(options.parallel, thread_name_prefix="fleet")
        try:
            self._loop(pool)
        except KeyboardInterrupt:
            self._interrupted = True
            self._mover.stop()
            with suppress(KeyboardInterrupt):
                self._end_soon()
        finally:
            pool.shutdown(wait=not self._interrupted, cancel_futures=True)
        unrecorded = self._last_report()
        lost = self._trouble if self._lost_since_s is not None else None
        return FleetRun(
            self._tally.of(FleetEvent.FINISH),
            self._tally.of(FleetEvent.FAIL),
            self._tally.of(FleetEvent.STOP),
            tuple(self._tally.unchanged),
            self._reason.paused,
            self._reason.opens_ms,
            self._reason.blocked_by,
            self._interrupted,
            unrecorded,
            tuple(self._tally.errors),
            lost if self._has_more() else None,
        )

    def _loop(self, pool: ThreadPoolExecutor) -> None:
        while True:
            self._collect()
            self._report()
            self._take(pool)
            if not self._running and not self._goes_on():
                return
            if not self._running:
                self._tick.wait(self._report_s)
                continue
            wait(self._running, self._report_s, return_when=FIRST_COMPLETED)
            self._gather()

    def _gather(self) -> None:
        """While threads have enough to do, let some more moves end: one report tells of all."""
        deadline = time.monotonic() + min(_GATHER_S, self._report_s)
        while any(not each.has_begun for each in self._running.values()):
            if time.monotonic() >= deadline:
                return
            self._tick.wait(_TICK_S)

    def _goes_on(self) -> bool:
        """Return whether a run without running moves has something to wait for."""
        if self._lost_since_s is not None:
            return time.monotonic() - self._lost_since_s < self._patience_s
        if self._ended:
            return True
        if self._reason.paused or self._reason.blocked_by is not None:
            return False
        if self._reason.opens_ms is not None:
            return self._options.waits
        # Other runs have the rest: if one is killed, its jobs come back.
        return self._reason.wave is not None

    def _collect(self) -> None:
        done = [future for future in self._running if future.done()]
        # Where moves are short, as many as end between two reports are taken in advance. Where
        # they are long, other runs may have the rest.
        self._ahead = min(2 * len(done), 4 * self._options.parallel)
        for future in done:
            running = self._running.pop(future)
            end = _end_of(running, future)
            self._ended.append(end)
            self._tally.add(end)

    def _report(self) -> None:
        """Report what ended and how far the others are, and learn how things stand."""
        now = time.monotonic()
        if not self._ended and self._state is not None and now - self._reported_s < self._report_s:
            return
        held = list(self._running.values())
        is_due = now - self._progressed_s >= self._report_s
        steps = [each.progress() for each in held if each.has_begun] if is_due else []
        ended, self._ended = self._ended, []
        ids = [each.job.id for each in held]
        try:
            self._state = self._changes.report(self.holder, steps, ended, ids, FLEET_LEASE_MS)
        except CatalogUnavailable as lost:
            self._ended = [*ended, *self._ended]
            self._lose_database(lost)
            return
        self._lost_since_s = None
        self._reported_s = now
        if is_due:
            self._progressed_s = now
        self._heed(self._state)

    def _heed(self, state: RunState) -> None:
        counts = [each.counts.get(FleetState.DONE, 0) for each in state.waves]
        totals = [sum(each.counts.values()) for each in state.waves]
        self._observer("moving tables", sum(counts), sum(totals))
        is_paused = state.paused > self._began
        if is_paused or self._stop.is_set():
            self._reason.paused = True
            if state.stops_running or self._stop.is_set():
                self._mover.stop()
        for future, running in list(self._running.items()):
            # Another run has it by now. What has begun goes on: it does no harm.
            if running.job.id in state.lost and future.cancel():
                del self._running[future]

    def _take(self, pool: ThreadPoolExecutor) -> None:
        """Take jobs for threads that are free, and for those that soon will be."""
        if self._state is None or self._lost_since_s is not None:
            return
        window, now_ms = self._options.window, self._clock_ms()
        choice = choose_wave(self._state.waves, self._options.wave)
        reason = self._reason
        reason.wave, reason.blocked_by = choice.wave, choice.blocked_by
        reason.opens_ms = None
        if window is not None and choice.wave is not None and not window.is_open(now_ms):
            reason.opens_ms = window.opens_ms(now_ms)
        if reason.paused or choice.wave is None or reason.opens_ms is not None:
            self._release()
            return
        free = self._options.parallel + self._ahead - len(self._running)
        if free <= 0:
            return
        try:
            jobs = self._changes.take(self.holder, choice.wave, free, FLEET_LEASE_MS)
        except CatalogUnavailable as lost:
            self._lose_database(lost)
            return
        for job in jobs:
            running = _Running(job)
            self._running[pool.submit(self._move, running)] = running

    def _release(self) -> None:
        """Give back the jobs that haven't begun."""
        for future, running in list(self._running.items()):
            if future.cancel():
                del self._running[future]
                self._ended.append(JobEnd(running.job.id, running.job.uri, FleetEvent.RELEASE))

    def _move(self, running: _Running) -> MovedTable:
        running.has_begun = True
        job = running.job
        wanted = Wanted(0, job.source, job.target, job.options)
        if (refused := self._moved_away(job)) is not None:
            return MovedTable(job.uri, job.target, None, refused.as_document())
        moved = self._mover.move(wanted, running.observe)
        if _was_stopped(moved) and not self._interrupted and self._blocks_writers(job.uri):
            # Nobody knows when the next run begins, and writers would wait until then.
            moved = self._open_mover().move(wanted, running.observe)
        return moved

    def _moved_away(self, job: FleetJob) -> LakeferryError | None:
        """Return an error if the name of a table doesn't lead where it was found any more."""
        if job.source == job.uri:
            return None
        try:
            place = self._locate(job.source)
        except LakeferryError as failed:
            return failed
        if same_place(place, job.uri):
            return None
        return TableNotFound(
            f"{job.source} doesn't lead to the table that was planned any more",
            cause=f"it leads to {place}, and the plan is for {job.uri}",
            remedy="scan the catalog again, and plan the move of what is there now: lakeferry "
            f"fleet scan {job.source}",
            location=job.uri,
        )

    def _end_soon(self) -> None:
        self._release()
        wait(self._running, STOPPING_S)
        self._collect()

    def _last_report(self) -> tuple[str, ...]:
        """Record what isn't recorded yet; return the moved tables for which that failed."""
        if self._interrupted:
            for running in self._running.values():
                stopped = JobEnd(
                    running.job.id,
                    running.job.uri,
                    FleetEvent.STOP,
                    error=_stopped().as_document(),
                    steps=running.new_steps(),
                )
                self._ended.append(stopped)
                self._tally.add(stopped)
        ended = self._ended
        if ended:
            try:
                self._changes.report(self.holder, [], ended, [], FLEET_LEASE_MS)
                self._lost_since_s = None
                return ()
            except CatalogUnavailable as lost:
                self._lose_database(lost)
        unrecorded = tuple(end.uri for end in ended if end.event is FleetEvent.FINISH)
        if unrecorded:
            self._warn(
                f"{len(unrecorded)} moved tables couldn't be recorded: {self._trouble}; the next "
                "'lakeferry fleet run' or 'lakeferry fleet scan' records them"
            )
        return unrecorded

    def _lose_database(self, lost: CatalogUnavailable) -> None:
        self._trouble = lost
        if self._lost_since_s is None:
            self._lost_since_s = time.monotonic()
            self._warn(
                f"{lost}; running moves continue; new ones start when the database answers again"
            )

    def _has_more(self) -> bool:
        """Return whether jobs were left when the database was last seen."""
        waves = () if self._state is None else self._state.waves
        wanted = self._options.wave
        left = sum(
            count
            for each in waves
            if wanted is None or each.wave == wanted
            for state, count in each.counts.items()
            if state.is_open
        )
        return left > sum(1 for end in self._ended if end.event is FleetEvent.FINISH)


@dataclass(slots=True)
class _Reason:
    """Why no more jobs begin; ``wave`` is the one whose jobs may."""

    wave: int | None = None
    paused: bool = False
    opens_ms: int | None = None
    blocked_by: int | None = None


def _end_of(running: _Running, future: Future[MovedTable]) -> JobEnd:
    job, steps = running.job, running.new_steps()
    moved = future.result()
    if moved.error is None and moved.outcome is not None:
        outcome = moved.outcome.as_document()
        return JobEnd(
            job.id, job.uri, FleetEvent.FINISH, outcome, None, tuple(moved.warnings), steps
        )
    event = FleetEvent.STOP if _was_stopped(moved) else FleetEvent.FAIL
    return JobEnd(job.id, job.uri, event, None, moved.error, tuple(moved.warnings), steps)


def _was_stopped(moved: MovedTable) -> bool:
    return moved.error is not None and moved.error.get("code") == Interrupted.code


def _stopped() -> Interrupted:
    return Interrupted("interrupted", remedy="run it again: lakeferry fleet run")
