"""``/jobs``: moves that run now, for how long writers waited, and every job with its history."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from starlette.responses import Response

from lakeferry.errors import ObjectNotFound
from lakeferry.fleet.fleet_states import FleetState
from lakeferry.fleet.inventory import FleetHistoryEntry, FleetJob
from lakeferry.fleet.job_changes import MOVES_TO_SETTLE
from lakeferry.web.background_work import ConsoleWork
from lakeferry.web.page_filters import (
    command_line,
    shown_duration,
    shown_number,
    shown_place,
    shown_size,
)
from lakeferry.web.page_routes import Consequence, ConsolePage, act, page_at
from lakeferry.web.pages.fleet_overview import median_pause_ms, shown_works, waiting_jobs
from lakeferry.web.visit import Visit

JOBS_ON_A_PAGE = 50
_RUNNING_SHOWN = 20
_ENTRIES_SHOWN = 200
_IN_BYTES = ("copying", "comparing", "reading digests", "verifying")
"""How the steps begin whose progress is counted in bytes."""
_RATE_AFTER_MS = 500


@dataclass(frozen=True, slots=True)
class ShownJob:
    """A job with its progress in words; ``rate`` and ``left_ms`` are known while bytes move."""

    job: FleetJob
    step: str
    amount: str
    rate: str
    left_ms: float | None

    @property
    def is_running(self) -> bool:
        """Whether it runs now."""
        return self.job.state is FleetState.RUNNING


@dataclass(frozen=True, slots=True)
class ShownEntry:
    """An entry of a job's history, in words."""

    at_ms: int
    kind: str
    text: str


def shown_job(job: FleetJob, began_ms: int | None, now_ms: int) -> ShownJob:
    """Return a job's progress in words. Its rate is the average since its step began."""
    step = job.step or "starting"
    if not job.total or job.done is None:
        return ShownJob(job, step, "", "", None)
    if not step.startswith(_IN_BYTES):
        amount = f"{shown_number(job.done)} of {shown_number(job.total)}"
        return ShownJob(job, step, amount, "", None)
    amount = f"{shown_size(job.done)} of {shown_size(job.total)}"
    spent_ms = now_ms - began_ms if began_ms is not None else 0
    if spent_ms < _RATE_AFTER_MS or job.done <= 0:
        return ShownJob(job, step, amount, "", None)
    per_ms = job.done / spent_ms
    left_ms = max(0, job.total - job.done) / per_ms
    return ShownJob(job, step, amount, f"{shown_size(per_ms * 1000)}/s", left_ms)


def move_jobs(visit: Visit) -> Response:
    """Show what runs, the pauses of writers, and a page of jobs."""
    console = visit.console
    name = visit.asked("state").upper()
    state = next((each for each in FleetState if each.value == name), None)
    wave = visit.asked_number("wave", 0, 1) or None
    offset = visit.asked_number("offset", 0)
    summary = console.records.summary()
    running = console.jobs.page((FleetState.RUNNING,), limit=_RUNNING_SHOWN)
    page = console.jobs.page(
        () if state is None else (state,), wave=wave, limit=JOBS_ON_A_PAGE, offset=offset
    )
    asked = {"state": "" if state is None else state.value, "wave": wave}
    return visit.page(
        "jobs.html",
        title="Jobs",
        summary=summary,
        running=_shown(visit, running.jobs),
        running_total=running.total,
        is_moving=running.total > 0 and console.jobs.is_moving(),
        works=[each for each in shown_works(visit, ("run",)) if each.is_running or each.error],
        to_run=waiting_jobs(summary),
        pauses=console.jobs.pauses(),
        pause_ms=median_pause_ms(summary),
        page=page,
        total=sum(sum(each.counts.values()) for each in summary.waves),
        state=state,
        wave=wave,
        states=tuple(FleetState),
        offset=offset,
        size=JOBS_ON_A_PAGE,
        page_link=lambda at: visit.link("/jobs", **asked, offset=at or ""),
    )


def _shown(visit: Visit, jobs: tuple[FleetJob, ...]) -> list[ShownJob]:
    began = visit.console.jobs.step_began_ms(tuple(each.id for each in jobs))
    now_ms = time.time_ns() // 1_000_000
    return [shown_job(each, began.get(each.id), now_ms) for each in jobs]


def one_job(visit: Visit) -> Response:
    """Show one job: its progress, how it ended, and all its steps."""
    job = visit.console.records.job(visit.path_number("id"))
    if job is None:
        raise ObjectNotFound("there is no such job")
    newest = visit.console.records.newest_history(_ENTRIES_SHOWN, job_id=job.id)
    (shown,) = _shown(visit, (job,))
    return visit.page(
        "job.html",
        title=f"Job {job.id}",
        job=job,
        shown=shown,
        can_resume=job.state in MOVES_TO_SETTLE,
        refused=_refused_work(visit, job),
        entries=[_entry(each) for each in newest],
        is_cut=len(newest) == _ENTRIES_SHOWN,
        command=command_line(("lakeferry", "fleet", "history", "--job", job.id)),
    )


def _refused_work(visit: Visit, job: FleetJob) -> list[ConsoleWork]:
    """Return what was asked for here and could not be done, where the job doesn't say it itself."""
    told = (job.error or {}).get("message")
    asked = (("resume", _resume_command(job)), ("cancel", _cancel_command(job)))
    found = [(visit.console.work.newest(kind), command) for kind, command in asked]
    return [
        work
        for work, command in found
        if work is not None
        and work.command == command
        and work.error is not None
        and work.error.get("message") != told
        and job.state is not FleetState.DONE
    ]


def _entry(entry: FleetHistoryEntry) -> ShownEntry:
    return ShownEntry(entry.at_ms, entry.kind, _detail(entry.detail))


def _detail(detail: Mapping[str, Any]) -> str:
    if (error := detail.get("error")) is not None:
        return str(error.get("message"))
    if (outcome := detail.get("outcome")) is not None:
        waited = shown_duration(outcome.get("blocked_ms"))
        return f"{shown_size(outcome.get('bytes_copied'))} copied, writers waited {waited}"
    if (target := detail.get("target")) is not None:
        return f"to {shown_place(str(target))}"
    return str(detail.get("step", ""))


def resume_job(visit: Visit) -> Response:
    """Go on with one move in a thread of this process."""
    job = _job(visit)
    console = visit.console

    def resume(work: ConsoleWork) -> str:
        moved = console.fleet(work.observe, work.warn).resume(job.id)
        if moved.error is not None:
            work.error = dict(moved.error)
        return "It has moved."

    title = f"Resume the move of {shown_place(job.uri)}"
    console.work.start("resume", title, _resume_command(job), resume, not_beside=("cancel",))
    visit.note(f"{title}: it continues in the background.")
    return visit.go(f"/jobs/{job.id}")


def _resume_command(job: FleetJob) -> str:
    return command_line(("lakeferry", "redirect", "resume", job.source))


def _resume_consequence(visit: Visit) -> Consequence:
    job = _job(visit)
    return Consequence(
        "Resume this move?",
        f"What is copied already isn’t copied again. At the end writers of {shown_place(job.uri)} "
        f"wait for a moment, and its path leads to {shown_place(job.target)}.",
        "Resume",
        _resume_command(job),
    )


def cancel_job(visit: Visit) -> Response:
    """Undo one move in a thread of this process, and take it out of the plan."""
    job = _job(visit)
    console = visit.console

    def cancel(work: ConsoleWork) -> str:
        undone = console.fleet(work.observe, work.warn).cancel(job.id)
        return "There was nothing to undo." if undone is None else "It is undone."

    title = f"Cancel the move of {shown_place(job.uri)}"
    console.work.start("cancel", title, _cancel_command(job), cancel, not_beside=("resume",))
    visit.note(f"{title}: it is undone in the background.")
    return visit.go(f"/jobs/{job.id}")


def _cancel_command(job: FleetJob) -> str:
    return command_line(("lakeferry", "redirect", "cancel", job.source))


def _cancel_consequence(visit: Visit) -> Consequence:
    job = _job(visit)
    return Consequence(
        "Cancel this move?",
        f"Everything that was copied to {shown_place(job.target)} is deleted, and "
        f"{shown_place(job.uri)} is as it was before. The table is taken out of the plan.",
        "Cancel the move",
        _cancel_command(job),
        is_danger=True,
    )


def _job(visit: Visit) -> FleetJob:
    job = visit.console.records.job(visit.path_number("id"))
    if job is None:
        raise ObjectNotFound("there is no such job")
    return job


JOBS_PAGE = ConsolePage(
    "Jobs",
    "/jobs",
    (
        page_at("/jobs", move_jobs),
        page_at("/jobs/{id:int}", one_job),
        act("/jobs/{id:int}/resume", resume_job, consequence=_resume_consequence),
        act("/jobs/{id:int}/cancel", cancel_job, consequence=_cancel_consequence),
    ),
)
