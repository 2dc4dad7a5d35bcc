"""Reads the fleet's records: tables, jobs, and the history since an entry. The interface for views.

::

    with FleetDatabase(url) as database:
        records = FleetRecords(database)
        page = records.tables(TableQuery(states=(FleetState.FAILED,), sort="size_bytes", limit=50))
        for entry in records.history(since=last_id):
            ...

Each method is one transaction with a fixed number of statements, however many tables there are.
Nothing is written here (``inventory_changes.py`` and ``job_changes.py`` do), and a database without
a fleet is an empty one. Ids of history entries grow in the order in which entries become visible,
so ``history(since=…)`` misses none.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
import sqlalchemy as sa

from lakeferry.errors import InvalidInput
from lakeferry.fleet.fleet_database import FleetDatabase
from lakeferry.fleet.fleet_schema import FLEET_HISTORY, FLEET_JOBS, FLEET_TABLES
from lakeferry.fleet.fleet_states import FleetState
from lakeferry.fleet.inventory import (
    FleetHistoryEntry,
    FleetJob,
    FleetProblem,
    FleetTable,
    FleetWriter,
    MoveForecast,
    TableMark,
    TableSurvey,
)
from lakeferry.fleet.waves import WaveProgress
from lakeferry.readable import counted, size

PAUSED, RUN_BEGAN = "paused", "run_began"
"""Kinds of history entries that decide whether the fleet is paused: the last one counts."""

_WRITERS = msgspec.json.Decoder(list[FleetWriter])
_PROBLEMS = msgspec.json.Decoder(list[FleetProblem])
_FORECAST = msgspec.json.Decoder(MoveForecast)
_T, _J, _H = FLEET_TABLES.c, FLEET_JOBS.c, FLEET_HISTORY.c
# The error of a failed move is one of the table's problems.
_PROBLEM_COUNT = _T.problem_count + sa.case((_T.state == FleetState.FAILED.value, 1), else_=0)
_SORTS: Mapping[str, sa.ColumnElement[Any]] = {
    "uri": _T.uri,
    "state": _T.state,
    "size_bytes": _T.size_bytes,
    "num_files": _T.num_files,
    "commits_per_day": _T.commits_per_day,
    "problems": _PROBLEM_COUNT,
    "wave": _J.wave,
    "target": _J.target,
    "scanned_ms": _T.scanned_ms,
}
TABLE_SORTS = tuple(_SORTS)
"""What tables can be sorted by."""
_JOB_COLUMNS = [column.label(f"job_{column.name}") for column in FLEET_JOBS.columns]
# The job's own id takes the place of the reference to it.
_TABLE_COLUMNS = [column for column in FLEET_TABLES.columns if column is not _T.job_id]


@dataclass(frozen=True, slots=True)
class TableQuery:
    """Which tables to return: all conditions together, then an order, then a page.

    ``text`` is part of a URI, a name or a target. ``uris`` are whole. ``limit=None`` is all.
    """

    states: tuple[FleetState, ...] = ()
    text: str = ""
    uris: tuple[str, ...] = ()
    wave: int | None = None
    has_problems: bool | None = None
    sort: str = "uri"
    descending: bool = False
    limit: int | None = 100
    offset: int = 0


@dataclass(frozen=True, slots=True)
class TablePage:
    """A page of tables, and how many there are on all pages."""

    tables: tuple[FleetTable, ...]
    total: int


@dataclass(frozen=True, slots=True)
class FleetSummary:
    """The whole fleet in numbers."""

    counts: Mapping[FleetState, int]
    size_bytes: int
    with_problems: int
    paused: bool
    waves: tuple[WaveProgress, ...] = ()
    pauses_ms: tuple[int, ...] = field(default=(), repr=False)
    """For how long writers waited in the newest finished moves."""

    @property
    def total(self) -> int:
        """How many tables there are."""
        return sum(self.counts.values())

    def sentence(self) -> str:
        """Return the summary for people."""
        counts = ", ".join(
            f"{count:,} {state.value.lower()}" for state, count in self.counts.items()
        )
        told = f"{counted(self.total, 'table')}, {size(self.size_bytes)}"
        return f"{told}: {counts}" if counts else told

    def as_document(self) -> dict[str, Any]:
        """Return the summary as documents show it."""
        return {
            "counts": {state.value: self.counts.get(state, 0) for state in FleetState},
            "size_bytes": self.size_bytes,
            "with_problems": self.with_problems,
            "paused": self.paused,
            "waves": [
                {"wave": each.wave, **{state.value: n for state, n in each.counts.items()}}
                for each in self.waves
            ],
        }


class FleetRecords:
    """What is recorded of a fleet. Safe to use from several threads."""

    def __init__(self, database: FleetDatabase) -> None:
        """Read from a database, which the caller closes."""
        self._database = database

    def tables(self, query: TableQuery | None = None) -> TablePage:
        """Return the tables that a query asks for."""
        asked = query or TableQuery()
        if asked.sort not in _SORTS:
            raise InvalidInput(
                f"tables can't be sorted by {asked.sort!r}",
                remedy=f"use one of {', '.join(TABLE_SORTS)}",
            )
        joined = FLEET_TABLES.outerjoin(FLEET_JOBS, _T.job_id == _J.id)
        where = _conditions(asked)
        order = _SORTS[asked.sort]
        sorted_by = order.desc() if asked.descending else order.asc()
        wanted = (
            sa.select(*_TABLE_COLUMNS, *_JOB_COLUMNS)
            .select_from(joined)
            .where(*where)
            .order_by(order.is_(None), sorted_by, _T.id)
            .offset(asked.offset)
        )
        if asked.limit is not None:
            wanted = wanted.limit(asked.limit)
        with self._database.read() as connection:
            if connection is None:
                return TablePage((), 0)
            rows = connection.execute(wanted).all()
            total = len(rows)
            if asked.limit is not None or asked.offset:
                counted = sa.select(sa.func.count()).select_from(joined).where(*where)
                total = connection.execute(counted).scalar_one()
        return TablePage(tuple(map(_table, rows)), total)

    def table(self, uri: str) -> FleetTable | None:
        """Return the table at a place."""
        return next(iter(self.tables(TableQuery(uris=(uri,))).tables), None)

    def table_by_id(self, table_id: int) -> FleetTable | None:
        """Return the table with an id, which stays the same as long as it is in the inventory."""
        joined = FLEET_TABLES.outerjoin(FLEET_JOBS, _T.job_id == _J.id)
        wanted = sa.select(*_TABLE_COLUMNS, *_JOB_COLUMNS).select_from(joined)
        with self._database.read() as connection:
            if connection is None:
                return None
            row = connection.execute(wanted.where(_T.id == table_id)).one_or_none()
        return None if row is None else _table(row)

    def marks(self) -> dict[str, tuple[str, TableMark | None, bool]]:
        """Return root, mark, and whether a survey found problems, of every table by its URI."""
        columns = (_T.uri, _T.root, _T.version, _T.commit_ms, _T.commit_bytes, _T.problems)
        with self._database.read() as connection:
            rows = [] if connection is None else connection.execute(sa.select(*columns)).all()
        return {
            uri: (root, None if version is None else TableMark(version, ms, size), problems != "[]")
            for uri, root, version, ms, size, problems in rows
        }

    def job(self, job_id: int) -> FleetJob | None:
        """Return a job by its id."""
        with self._database.read() as connection:
            if connection is None:
                return None
            row = connection.execute(sa.select(*_JOB_COLUMNS).where(_J.id == job_id)).one_or_none()
        return None if row is None else job_of(row)

    def jobs(self, uri: str) -> tuple[FleetJob, ...]:
        """Return all jobs that a table ever had, the newest first."""
        wanted = sa.select(*_JOB_COLUMNS).where(_J.uri == uri).order_by(_J.id.desc())
        with self._database.read() as connection:
            rows = [] if connection is None else connection.execute(wanted).all()
        return tuple(map(job_of, rows))

    def history(
        self, since: int = 0, *, job_id: int | None = None, limit: int = 1_000
    ) -> tuple[FleetHistoryEntry, ...]:
        """Return what was recorded after the entry ``since``, the oldest first."""
        wanted = sa.select(FLEET_HISTORY).where(_H.id > since)
        if job_id is not None:
            wanted = wanted.where(_H.job_id == job_id)
        with self._database.read() as connection:
            if connection is None:
                return ()
            rows = connection.execute(wanted.order_by(_H.id).limit(limit)).all()
        return tuple(map(_entry, rows))

    def newest_history(
        self, limit: int, *, job_id: int | None = None
    ) -> tuple[FleetHistoryEntry, ...]:
        """Return what was recorded last, the newest first; with ``job_id``, of one job."""
        wanted = sa.select(FLEET_HISTORY).order_by(_H.id.desc()).limit(limit)
        if job_id is not None:
            wanted = wanted.where(_H.job_id == job_id)
        with self._database.read() as connection:
            rows = [] if connection is None else connection.execute(wanted).all()
        return tuple(map(_entry, rows))

    def summary(self) -> FleetSummary:
        """Return the whole fleet in numbers."""
        with self._database.read() as connection:
            if connection is None:
                return FleetSummary({}, 0, 0, paused=False)
            by_state = connection.execute(
                sa.select(
                    _T.state,
                    sa.func.count(),
                    sa.func.coalesce(sa.func.sum(_T.size_bytes), 0),
                    sa.func.sum(sa.case((_PROBLEM_COUNT > 0, 1), else_=0)),
                ).group_by(_T.state)
            ).all()
            pauses = connection.execute(
                sa.select(_J.blocked_ms)
                .where(_J.blocked_ms.is_not(None))
                .order_by(_J.id.desc())
                .limit(100)
            ).scalars()
            last = pauses_and_runs(connection)
            return FleetSummary(
                {FleetState(state): count for state, count, _, _ in by_state},
                sum(int(size) for _, _, size, _ in by_state),
                sum(int(problems) for _, _, _, problems in by_state),
                paused=last[0] > last[1],
                waves=wave_progress(connection),
                pauses_ms=tuple(pauses),
            )


def pauses_and_runs(connection: sa.Connection) -> tuple[int, int]:
    """Return the ids of the last pause and of the last beginning of a run; 0 if there is none."""
    found = connection.execute(
        sa.select(_H.kind, sa.func.max(_H.id))
        .where(_H.kind.in_([PAUSED, RUN_BEGAN]))
        .group_by(_H.kind)
    ).all()
    last = {kind: int(newest) for kind, newest in found}
    return last.get(PAUSED, 0), last.get(RUN_BEGAN, 0)


def wave_progress(connection: sa.Connection) -> tuple[WaveProgress, ...]:
    """Return how many jobs of each wave are in each state."""
    rows = connection.execute(
        sa.select(_J.wave, _J.state, sa.func.count()).group_by(_J.wave, _J.state)
    ).all()
    waves: dict[int, dict[FleetState, int]] = {}
    for wave, state, count in rows:
        waves.setdefault(wave, {})[FleetState(state)] = count
    return tuple(WaveProgress(wave, counts) for wave, counts in sorted(waves.items()))


def _conditions(asked: TableQuery) -> list[sa.ColumnElement[bool]]:
    found: list[sa.ColumnElement[bool]] = []
    if asked.states:
        found.append(_T.state.in_([state.value for state in asked.states]))
    if asked.text:
        columns = (_T.uri, _T.name, _J.target)
        found.append(sa.or_(*(c.icontains(asked.text, autoescape=True) for c in columns)))
    if asked.uris:
        found.append(_T.uri.in_(asked.uris))
    if asked.wave is not None:
        found.append(_J.wave == asked.wave)
    if asked.has_problems is not None:
        found.append(_PROBLEM_COUNT > 0 if asked.has_problems else _PROBLEM_COUNT == 0)
    return found


def _entry(row: sa.Row[Any]) -> FleetHistoryEntry:
    detail = msgspec.json.decode(row.detail)
    return FleetHistoryEntry(row.id, row.at_ms, row.kind, row.uri, row.job_id, detail)


def _table(row: sa.Row[Any]) -> FleetTable:
    mark = None
    if row.version is not None:
        mark = TableMark(row.version, row.commit_ms, row.commit_bytes)
    survey = TableSurvey(
        mark,
        row.table_id,
        row.size_bytes,
        row.num_files,
        row.commits_per_day,
        tuple(msgspec.json.decode(row.features)),
        tuple(_WRITERS.decode(row.writers)),
        _problems(row.problems),
        row.redirect_state,
        row.redirect_target,
    )
    return FleetTable(
        row.id,
        row.uri,
        row.root,
        row.name,
        FleetState(row.state),
        survey,
        row.scanned_ms,
        _problems(row.plan_problems),
        None if row.job_id is None else job_of(row),
    )


def _problems(text: str) -> tuple[FleetProblem, ...]:
    return tuple(_PROBLEMS.decode(text))


def job_of(row: sa.Row[Any]) -> FleetJob:
    """Return a job from the columns of :data:`FLEET_JOBS`, whose names begin with ``job_``."""
    return FleetJob(
        row.job_id,
        row.job_uri,
        row.job_source,
        row.job_target,
        row.job_wave,
        msgspec.json.decode(row.job_options),
        FleetState(row.job_state),
        _FORECAST.decode(row.job_forecast),
        row.job_holder,
        row.job_lease_until_ms,
        row.job_attempts,
        row.job_started_ms,
        row.job_ended_ms,
        row.job_step,
        row.job_done,
        row.job_total,
        None if row.job_outcome is None else msgspec.json.decode(row.job_outcome),
        None if row.job_error is None else msgspec.json.decode(row.job_error),
    )


def jobs_where(*conditions: sa.ColumnElement[bool]) -> sa.Select[Any]:
    """Return the statement that selects jobs for :func:`job_of`."""
    return sa.select(*_JOB_COLUMNS).where(*conditions)


def encoded(value: object) -> str:
    """Return a value as the JSON text that is kept in a column."""
    try:
        return msgspec.json.encode(value, enc_hook=str).decode()
    except UnicodeEncodeError:
        # Bytes of a file's name that aren't UTF-8 are lone surrogates in Python.
        text = json.dumps(msgspec.to_builtins(value, enc_hook=str), ensure_ascii=False)
        return text.encode("utf-8", "replace").decode()
