"""Values of the fleet: tables, what was found out about them, plans, jobs and their history.

All are frozen. ``as_document`` returns what ``--json`` prints.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lakeferry.errors import LakeferryError
from lakeferry.fleet.fleet_states import FleetState
from lakeferry.log.commit_writer import CommitWriter, KnownWriter

TABLE_GONE = "table_not_found"
"""The problem of a table that the last scan didn't find any more."""


@dataclass(frozen=True, slots=True)
class FleetProblem:
    """Something that stands in the way of a move, or that its owner should know."""

    code: str
    message: str
    remedy: str | None = None

    @classmethod
    def of(cls, error: LakeferryError) -> FleetProblem:
        """Return an error as a problem."""
        return cls(error.code, str(error), error.remedy)

    def as_document(self) -> dict[str, Any]:
        """Return one element of ``problems``."""
        return {"code": self.code, "message": self.message, "remedy": self.remedy}


@dataclass(frozen=True, slots=True)
class FleetWriter:
    """A client that wrote some of a table's newest commits."""

    name: str | None
    client: str | None
    client_version: str | None
    commits: int
    last_version: int
    last_written_ms: int

    @property
    def commit_writer(self) -> CommitWriter:
        """The writer as commits name it."""
        kind = KnownWriter(self.client) if self.client is not None else None
        return CommitWriter(self.name, kind, self.client_version)

    def as_document(self) -> dict[str, Any]:
        """Return one element of ``writers``."""
        return {
            "name": self.name,
            "client": self.client,
            "client_version": self.client_version,
            "commits": self.commits,
            "last_version": self.last_version,
            "last_written_ms": self.last_written_ms,
        }


@dataclass(frozen=True, slots=True)
class FoundTable:
    """A place where a scan found a table. ``root`` is the prefix or catalog that was scanned."""

    uri: str
    root: str
    name: str | None = None


@dataclass(frozen=True, slots=True)
class TableMark:
    """Recognizes the newest commit of a log from its listing: a second survey isn't needed."""

    version: int
    commit_ms: int
    commit_bytes: int


@dataclass(frozen=True, slots=True)
class TableSurvey:
    """What was found out about a table; ``None`` stands for what isn't known."""

    mark: TableMark | None = None
    table_id: str | None = None
    size_bytes: int | None = None
    num_files: int | None = None
    commits_per_day: float | None = None
    features: tuple[str, ...] = ()
    writers: tuple[FleetWriter, ...] = ()
    problems: tuple[FleetProblem, ...] = ()
    redirect_state: str | None = None
    redirect_target: str | None = None


@dataclass(frozen=True, slots=True)
class ClientForecast:
    """What a client that wrote the table can do before, during and after the move."""

    name: str | None
    version: str | None
    before: str
    during: str
    after: str
    source: str
    breaks: bool | None = None
    """Whether it loses the old path, or reads rows there that don't change any more."""

    def as_document(self) -> dict[str, Any]:
        """Return one element of ``clients``."""
        return {
            "name": self.name,
            "version": self.version,
            "before": self.before,
            "during": self.during,
            "after": self.after,
            "source": self.source,
            "breaks": self.breaks,
        }


@dataclass(frozen=True, slots=True)
class MoveForecast:
    """What a move is expected to copy, how long it takes, and how long writers wait."""

    files: int | None = None
    bytes: int | None = None
    duration_ms: int | None = None
    pause_ms: int | None = None
    pause_basis: str | None = None
    clients: tuple[ClientForecast, ...] = ()

    def as_document(self) -> dict[str, Any]:
        """Return the object ``forecast``."""
        return {
            "files": self.files,
            "bytes": self.bytes,
            "duration_ms": self.duration_ms,
            "pause_ms": self.pause_ms,
            "pause_basis": self.pause_basis,
            "clients": [each.as_document() for each in self.clients],
        }


@dataclass(frozen=True, slots=True)
class MovePlan:
    """Where a table is to be moved, how, and in which wave.

    ``options`` are those of :meth:`lakeferry.api.redirects.Redirects.enable`. ``source`` is the
    table's name if its catalog has to be asked for credentials, else its URI.
    """

    uri: str
    target: str
    wave: int
    options: Mapping[str, Any] = field(default_factory=dict)
    forecast: MoveForecast = field(default_factory=MoveForecast)
    source: str = ""

    @property
    def named_source(self) -> str:
        """How the table is named to the move."""
        return self.source or self.uri


@dataclass(frozen=True, slots=True)
class FleetTable:
    """A table of the inventory, with its plan if it has one."""

    id: int
    uri: str
    root: str
    name: str | None
    state: FleetState
    survey: TableSurvey
    scanned_ms: int
    plan_problems: tuple[FleetProblem, ...] = ()
    """Why it couldn't be planned."""
    job: FleetJob | None = None
    """Its newest job; a table that was only found has none."""

    @property
    def problems(self) -> tuple[FleetProblem, ...]:
        """What was found by the survey, and by the plan; a failed job's error last."""
        found = (*self.survey.problems, *self.plan_problems)
        if self.state is FleetState.FAILED and self.job is not None and self.job.error is not None:
            error = self.job.error
            found += (FleetProblem(str(error["code"]), str(error["message"]), error["remedy"]),)
        return tuple(dict.fromkeys(found))

    def as_document(self) -> dict[str, Any]:
        """Return one element of ``tables``."""
        survey, job = self.survey, self.job
        return {
            "uri": self.uri,
            "name": self.name,
            "state": self.state.value,
            "version": None if survey.mark is None else survey.mark.version,
            "size_bytes": survey.size_bytes,
            "num_files": survey.num_files,
            "commits_per_day": survey.commits_per_day,
            "features": list(survey.features),
            "engines": [each.name for each in survey.writers if each.name is not None],
            "writers": [each.as_document() for each in survey.writers],
            "problems": [each.as_document() for each in self.problems],
            "redirect_state": survey.redirect_state,
            "redirect_target": survey.redirect_target,
            "scanned_ms": self.scanned_ms,
            "target": None if job is None else job.target,
            "wave": None if job is None else job.wave,
            "forecast": None if job is None else job.forecast.as_document(),
            "job": None if job is None else job.as_document(),
        }


@dataclass(frozen=True, slots=True)
class FleetJob:
    """One move of one table: what was planned, who works on it, and how it ended."""

    id: int
    uri: str
    source: str
    target: str
    wave: int
    options: Mapping[str, Any]
    state: FleetState
    forecast: MoveForecast = field(default_factory=MoveForecast)
    holder: str | None = None
    lease_until_ms: int | None = None
    attempts: int = 0
    started_ms: int | None = None
    ended_ms: int | None = None
    step: str | None = None
    done: int | None = None
    total: int | None = None
    outcome: Mapping[str, Any] | None = None
    error: Mapping[str, Any] | None = None

    def as_document(self) -> dict[str, Any]:
        """Return the object ``job``."""
        return {
            "id": self.id,
            "state": self.state.value,
            "attempts": self.attempts,
            "started_ms": self.started_ms,
            "ended_ms": self.ended_ms,
            "step": self.step,
            "done": self.done,
            "total": self.total,
            "outcome": self.outcome,
            "error": self.error,
        }


@dataclass(frozen=True, slots=True)
class FleetHistoryEntry:
    """One thing that happened, in the order in which it was recorded.

    ``uri`` and ``job_id`` are ``None`` for what concerns the whole fleet.
    """

    id: int
    at_ms: int
    kind: str
    uri: str | None
    job_id: int | None
    detail: Mapping[str, Any]

    def as_document(self) -> dict[str, Any]:
        """Return one element of ``history``."""
        return {
            "id": self.id,
            "at_ms": self.at_ms,
            "kind": self.kind,
            "uri": self.uri,
            "job_id": self.job_id,
            "detail": self.detail,
        }
