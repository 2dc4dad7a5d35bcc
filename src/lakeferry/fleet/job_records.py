"""Reads what pages show of jobs: pages of them, their steps, and whether anything has changed.

As in :mod:`lakeferry.fleet.records`, each method is one transaction with a fixed number of
statements, and a database without a fleet is an empty one.
"""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa

from lakeferry.fleet.fleet_database import FleetDatabase
from lakeferry.fleet.fleet_schema import FLEET_HISTORY, FLEET_JOBS, FLEET_TABLES, database_now
from lakeferry.fleet.fleet_states import FleetState
from lakeferry.fleet.inventory import FleetJob
from lakeferry.fleet.job_leases import ended_holders
from lakeferry.fleet.records import job_of, jobs_where

_T, _J, _H = FLEET_TABLES.c, FLEET_JOBS.c, FLEET_HISTORY.c
_MOST_RUNNING = 200
_MOST_ROOTS = 1_000


@dataclass(frozen=True, slots=True)
class JobPage:
    """A page of jobs, and how many there are on all pages."""

    jobs: tuple[FleetJob, ...]
    total: int


@dataclass(frozen=True, slots=True)
class WriterPause:
    """For how long writers waited in a finished move."""

    job_id: int
    uri: str
    ended_ms: int
    blocked_ms: int


class JobRecords:
    """What is recorded of jobs. Safe to use from several threads."""

    def __init__(self, database: FleetDatabase) -> None:
        """Read from a database, which the caller closes."""
        self._database = database

    def page(
        self,
        states: tuple[FleetState, ...] = (),
        *,
        wave: int | None = None,
        limit: int = 50,
        offset: int = 0,
    ) -> JobPage:
        """Return jobs, those that began or ended last first, then those that wait."""
        conditions: list[sa.ColumnElement[bool]] = []
        if states:
            conditions.append(_J.state.in_([state.value for state in states]))
        if wave is not None:
            conditions.append(_J.wave == wave)
        latest = sa.func.coalesce(_J.ended_ms, _J.started_ms)
        wanted = (
            jobs_where(*conditions)
            .order_by(latest.is_(None), latest.desc(), _J.wave, _J.id)
            .limit(limit)
            .offset(offset)
        )
        counted = sa.select(sa.func.count()).select_from(FLEET_JOBS).where(*conditions)
        with self._database.read() as connection:
            if connection is None:
                return JobPage((), 0)
            rows = connection.execute(wanted).all()
            return JobPage(tuple(map(job_of, rows)), connection.execute(counted).scalar_one())

    def step_began_ms(self, job_ids: tuple[int, ...]) -> dict[int, int]:
        """Return when the newest step of each job began."""
        newest = (
            sa.select(sa.func.max(_H.id))
            .where(_H.kind == "step", _H.job_id.in_(job_ids))
            .group_by(_H.job_id)
        )
        with self._database.read() as connection:
            if connection is None or not job_ids:
                return {}
            rows = connection.execute(sa.select(_H.job_id, _H.at_ms).where(_H.id.in_(newest))).all()
        return {row.job_id: row.at_ms for row in rows}

    def pauses(self, limit: int = 60) -> tuple[WriterPause, ...]:
        """Return for how long writers waited in the newest finished moves, the oldest first."""
        wanted = (
            sa.select(_J.id, _J.uri, _J.ended_ms, _J.blocked_ms)
            .where(_J.blocked_ms.is_not(None), _J.ended_ms.is_not(None))
            .order_by(_J.ended_ms.desc(), _J.id.desc())
            .limit(limit)
        )
        with self._database.read() as connection:
            rows = [] if connection is None else connection.execute(wanted).all()
        return tuple(WriterPause(*row) for row in reversed(rows))

    def pulse(self) -> tuple[int, tuple[tuple[object, ...], ...]]:
        """Return the newest entry's id, and where running jobs are: both change with the fleet."""
        running = (
            sa.select(_J.id, _J.step, _J.done, _J.total)
            .where(_J.state == FleetState.RUNNING.value)
            .order_by(_J.id)
            .limit(_MOST_RUNNING)
        )
        with self._database.read() as connection:
            if connection is None:
                return 0, ()
            newest = connection.execute(sa.select(sa.func.max(_H.id))).scalar_one()
            return newest or 0, tuple(tuple(row) for row in connection.execute(running).all())

    def is_moving(self) -> bool:
        """Return whether a run holds a job now.

        Jobs of a run that was killed are RUNNING, too, until another run takes them.
        """
        with self._database.read() as connection:
            if connection is None:
                return False
            held = sa.and_(
                _J.state == FleetState.RUNNING.value,
                _J.lease_until_ms >= database_now(),
                _J.holder.not_in(ended_holders(connection)),
            )
            return connection.execute(sa.select(sa.exists().where(held))).scalar_one()

    def roots(self) -> tuple[str, ...]:
        """Return the prefixes and catalogs that were scanned."""
        wanted = sa.select(_T.root).distinct().order_by(_T.root).limit(_MOST_ROOTS)
        with self._database.read() as connection:
            return () if connection is None else tuple(connection.execute(wanted).scalars())
