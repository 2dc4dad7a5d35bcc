"""``/exports``: what a server exports from lakeFS: what waits, runs, has failed, and is done."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.responses import Response

from lakeferry.errors import ObjectNotFound
from lakeferry.export.job_queue import WaitingJob
from lakeferry.transfer.repository.push_records import now_ms
from lakeferry.web.console import Console
from lakeferry.web.page_filters import command_line
from lakeferry.web.page_routes import ConsolePage, page_at
from lakeferry.web.viewer import Viewer
from lakeferry.web.visit import Visit

WAITING_SHOWN = 100
ENDED_SHOWN = 50


@dataclass(frozen=True, slots=True)
class ShownExport:
    """An unfinished job, with what it does now in words."""

    waiting: WaitingJob
    state: str
    text: str


def served_exports(visit: Visit) -> Response:
    """Show the queue of exports, and the jobs that ended last."""
    root = visit.console.datasets
    if root is None:
        raise ObjectNotFound("there is no such page")
    queue = root.exports
    now = now_ms()
    waiting = queue.waiting(WAITING_SHOWN)
    return visit.page(
        "exports.html",
        title="Exports",
        waiting=[shown_export(each, now) for each in waiting],
        is_cut=len(waiting) == WAITING_SHOWN,
        failed=queue.newest_failed(ENDED_SHOWN),
        done=queue.newest_done(ENDED_SHOWN),
        command=command_line(("lakeferry", "lakefs", "init", "REPOSITORY")),
        export_command=command_line(("lakeferry", "export", "lakefs://REPOSITORY/REF/PATH")),
    )


def shown_export(each: WaitingJob, now: int) -> ShownExport:
    """Return what an unfinished job does now."""
    attempt = each.attempt
    if attempt is None:
        return ShownExport(each, "queued", "waits for its turn")
    if attempt.is_running and attempt.until_ms > now:
        return ShownExport(each, "running", f"attempt {attempt.number}")
    if attempt.is_running:
        # Its server has ended; another one takes it.
        return ShownExport(each, "queued", f"attempt {attempt.number} was broken off")
    messages = [str(error.get("message", "")) for error in attempt.errors]
    wait_s = max(0, attempt.until_ms - now) // 1000
    again = f"tried again in {wait_s:,} s" if wait_s else "tried again now"
    return ShownExport(
        each, "stopped", f"attempt {attempt.number} failed, {again}: {'; '.join(messages)}"
    )


def _is_shown(console: Console, viewer: Viewer) -> bool:
    return console.datasets is not None and viewer.sees_fleet


EXPORTS_PAGE = ConsolePage(
    "Exports", "/exports", (page_at("/exports", served_exports),), is_shown=_is_shown
)
