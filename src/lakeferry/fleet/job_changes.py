"""Changes jobs: queues them, gives them to runs by lease, and records how they end.

Each method is one transaction, with its entries of the history. A transition is made only from a
state in which the table of transitions allows it, so that of two processes one wins.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from lakeferry.fleet.fleet_database import FleetDatabase
from lakeferry.fleet.fleet_schema import FLEET_HISTORY, FLEET_JOBS, FLEET_TABLES, database_now
from lakeferry.fleet.fleet_states import (
    FleetEvent,
    FleetState,
    fleet_state_after,
    fleet_state_before,
)
from lakeferry.fleet.history_writing import history_row, state_values, write_history
from lakeferry.fleet.inventory import FleetJob
from lakeferry.fleet.job_leases import free_to_take
from lakeferry.fleet.records import (
    PAUSED,
    RUN_BEGAN,
    encoded,
    job_of,
    jobs_where,
    pauses_and_runs,
    wave_progress,
)
from lakeferry.fleet.waves import WaveProgress

_T, _J, _H = FLEET_TABLES.c, FLEET_JOBS.c, FLEET_HISTORY.c
MOVES_TO_SETTLE = frozenset({FleetState.FAILED, FleetState.STOPPED})
"""The states of jobs whose moves can be resumed or cancelled one by one."""
_AT_ONCE = 500
"""How many rows one statement names: SQLite bounds its parameters."""


@dataclass(frozen=True, slots=True)
class JobStep:
    """Where a running job is. ``begun`` are the steps that began since the last report."""

    job_id: int
    uri: str
    step: str
    done: int
    total: int
    begun: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class JobEnd:
    """How a job ended: ``event`` is FINISH, FAIL, STOP or RELEASE."""

    job_id: int
    uri: str
    event: FleetEvent
    outcome: Mapping[str, Any] | None = None
    error: Mapping[str, Any] | None = None
    warnings: tuple[str, ...] = ()
    steps: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RunState:
    """What a run has to know before it takes more jobs."""

    paused: int
    """The id of the last pause."""
    stops_running: bool
    """Whether it asked running moves to stop, too."""
    waves: tuple[WaveProgress, ...] = ()
    lost: frozenset[int] = field(default_factory=frozenset)
    """The jobs that another run holds by now."""


class JobChanges:
    """Writes what happens to jobs."""

    def __init__(self, database: FleetDatabase) -> None:
        """Write to a database, which the caller closes."""
        self._database = database

    def begin_run(self, holder: str, wave: int | None, detail: Mapping[str, Any]) -> int:
        """Queue what is planned, what failed and what was stopped.

        Returns the id of the entry that begins the run: only later pauses concern it. ``wave``
        limits it to one wave.
        """
        with self._database.write() as connection:
            event = FleetEvent.QUEUE
            conditions: list[sa.ColumnElement[bool]] = [
                _J.state.in_(state_values(fleet_state_before(event)))
            ]
            if wave is not None:
                conditions.append(_J.wave == wave)
            jobs = connection.execute(sa.select(_J.id, _J.uri).where(*conditions)).all()
            for start in range(0, len(jobs), _AT_ONCE):
                ids = [job.id for job in jobs[start : start + _AT_ONCE]]
                _move_state(connection, ids, event, error=None, outcome=None, ended_ms=None)
            write_history(connection, [history_row(event.value, job.uri, job.id) for job in jobs])
            began = history_row(RUN_BEGAN, None, None, {"holder": holder, **detail})
            write_history(connection, [began])
            return pauses_and_runs(connection)[1]

    def pause(self, *, stops_running: bool) -> bool:
        """Ask all runs to take no more jobs; return whether they weren't asked before."""
        with self._database.write() as connection:
            paused, began = pauses_and_runs(connection)
            if paused > began and (not stops_running or _stops_running(connection, paused)):
                return False
            asked = history_row(PAUSED, None, None, {"stops_running": stops_running})
            write_history(connection, [asked])
            return True

    def take(self, holder: str, wave: int, count: int, lease_ms: int) -> tuple[FleetJob, ...]:
        """Take up to ``count`` jobs of a wave that nobody holds, or whose holder is gone."""
        with self._database.write(create=False) as connection:
            free = free_to_take(connection)
            ids = connection.execute(
                sa.select(_J.id).where(_J.wave == wave, free).order_by(_J.id).limit(count)
            ).scalars()
            if not (taken := list(ids)):
                return ()
            return _take(connection, taken, holder, lease_ms)

    def take_settled(self, holder: str, job_id: int, lease_ms: int) -> FleetJob | None:
        """Take a job that failed or was stopped, so that no run begins it; ``None`` if it can't."""
        with self._database.write(create=False) as connection:
            state = connection.execute(sa.select(_J.state).where(_J.id == job_id)).scalar()
            if state not in state_values(MOVES_TO_SETTLE):
                return None
            _move_state(
                connection, [job_id], FleetEvent.QUEUE, error=None, outcome=None, ended_ms=None
            )
            return _take(connection, [job_id], holder, lease_ms)[0]

    def report(
        self,
        holder: str,
        running: Sequence[JobStep],
        ended: Sequence[JobEnd],
        waiting: Iterable[int],
        lease_ms: int,
    ) -> RunState:
        """Record progress and ends, renew the leases of a run, and return how things stand.

        ``running`` and ``waiting`` are the jobs that it holds; of the latter nothing is new.
        """
        with self._database.write(create=False) as connection:
            entries = [row for end in ended for row in _end(connection, holder, end)]
            for step in running:
                connection.execute(
                    sa.update(FLEET_JOBS)
                    .where(_J.id == step.job_id, _J.holder == holder)
                    .values(step=step.step, done=step.done, total=step.total)
                )
                entries += _step_rows(step.uri, step.job_id, step.begun)
            write_history(connection, entries)
            held = {*(step.job_id for step in running), *waiting}
            mine = sa.and_(_J.holder == holder, _J.state == FleetState.RUNNING.value)
            lost: frozenset[int] = frozenset()
            if held:
                until = database_now() + lease_ms
                connection.execute(sa.update(FLEET_JOBS).where(mine).values(lease_until_ms=until))
                kept = connection.execute(sa.select(_J.id).where(mine)).scalars()
                lost = frozenset(held - set(kept))
            paused, _ = pauses_and_runs(connection)
            stops = bool(paused) and _stops_running(connection, paused)
            return RunState(paused, stops, wave_progress(connection), lost)


def _take(
    connection: sa.Connection, ids: Sequence[int], holder: str, lease_ms: int
) -> tuple[FleetJob, ...]:
    """Give queued jobs, or those whose holder is gone, to a holder."""
    _move_state(
        connection,
        ids,
        FleetEvent.TAKE,
        holder=holder,
        lease_until_ms=database_now() + lease_ms,
        attempts=_J.attempts + 1,
        started_ms=sa.func.coalesce(_J.started_ms, database_now()),
        step=None,
        done=None,
        total=None,
    )
    rows = connection.execute(jobs_where(_J.id.in_(ids)).order_by(_J.id)).all()
    jobs = tuple(map(job_of, rows))
    detail = {"holder": holder}
    write_history(
        connection,
        [history_row(FleetEvent.TAKE.value, job.uri, job.id, detail) for job in jobs],
    )
    return jobs


def _move_state(
    connection: sa.Connection,
    ids: Sequence[int],
    event: FleetEvent,
    of_table: Mapping[str, Any] | None = None,
    **values: Any,
) -> None:
    """Bring jobs and their tables to the state to which an event leads."""
    before, after = state_values(fleet_state_before(event)), fleet_state_after(event).value
    connection.execute(
        sa.update(FLEET_JOBS)
        .where(_J.id.in_(ids), _J.state.in_(before))
        .values(state=after, **values)
    )
    connection.execute(
        sa.update(FLEET_TABLES)
        .where(_T.job_id.in_(ids), _T.state.in_(before))
        .values(state=after, **(of_table or {}))
    )


def _end(connection: sa.Connection, holder: str, end: JobEnd) -> list[dict[str, Any]]:
    """Record how a job ended; return the entries of the history to write."""
    row = connection.execute(
        sa.select(_J.state, _J.holder).where(_J.id == end.job_id)
    ).one_or_none()
    if row is None or FleetState(row.state) not in fleet_state_before(end.event):
        return []
    # Success counts whoever reports it; all else is said by the one who holds the job.
    if end.event is not FleetEvent.FINISH and row.holder != holder:
        return []
    outcome = end.outcome or {}
    values: dict[str, Any] = {"holder": None, "lease_until_ms": None}
    if end.event is not FleetEvent.RELEASE:
        values |= {
            "ended_ms": database_now(),
            "outcome": encoded(outcome) if outcome else None,
            "error": None if end.error is None else encoded(end.error),
            "blocked_ms": outcome.get("blocked_ms") if outcome.get("changed") else None,
        }
    of_table: dict[str, Any] = {}
    if outcome:
        # A scan that surveyed the table before knows by the version that it comes too late.
        of_table = {
            "version": sa.func.coalesce(outcome.get("version"), _T.version),
            "commit_ms": -1,
            "commit_bytes": -1,
            "redirect_state": outcome.get("state"),
            "redirect_target": outcome.get("target"),
        }
    _move_state(connection, [end.job_id], end.event, of_table, **values)
    told = {"outcome": outcome, "error": end.error, "warnings": list(end.warnings)}
    detail = {"holder": holder, **{key: value for key, value in told.items() if value}}
    return [
        *_step_rows(end.uri, end.job_id, end.steps),
        history_row(end.event.value, end.uri, end.job_id, detail),
    ]


def _step_rows(uri: str, job_id: int, steps: Sequence[str]) -> list[dict[str, Any]]:
    return [history_row("step", uri, job_id, {"step": step}) for step in steps]


def _stops_running(connection: sa.Connection, pause_id: int) -> bool:
    detail = connection.execute(sa.select(_H.detail).where(_H.id == pause_id)).scalar_one()
    return '"stops_running":true' in detail
