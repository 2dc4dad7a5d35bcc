"""``/fleet``: the inventory in numbers and as a list, one table of it, and what to do next."""

from __future__ import annotations

import os
import statistics
from pathlib import Path
from tempfile import NamedTemporaryFile

from starlette.background import BackgroundTask
from starlette.responses import FileResponse, Response

from lakeferry.errors import ObjectNotFound
from lakeferry.fleet.fleet_states import FleetState
from lakeferry.fleet.planning import TO_RUN
from lakeferry.fleet.records import TABLE_SORTS, FleetSummary, TableQuery
from lakeferry.web.background_work import ConsoleWork
from lakeferry.web.page_filters import command_line
from lakeferry.web.page_routes import ConsolePage, page_at
from lakeferry.web.pages.fleet_forms import FLEET_ACTIONS
from lakeferry.web.visit import Visit

ROWS_ON_A_PAGE = 50
_COLUMNS = (
    ("uri", "Table", ""),
    ("state", "State", ""),
    ("wave", "Wave", "numbers"),
    ("size_bytes", "Size", "numbers"),
    ("num_files", "Files", "numbers"),
    ("commits_per_day", "Commits a day", "numbers"),
    ("problems", "Problems", ""),
)
_DESCENDING_FIRST = ("size_bytes", "num_files", "commits_per_day", "problems")
_LONGEST_TEXT = 500
_ASSUMED_PAUSE_MS = 100


def fleet_overview(visit: Visit) -> Response:
    """Show the fleet: numbers, what to do next, and a page of tables."""
    console = visit.console
    query = table_query(visit)
    summary = console.records.summary()
    page = console.records.tables(query)
    to_run = waiting_jobs(summary)
    running = console.work.running()
    is_running = any(each.kind == "run" for each in running) or console.jobs.is_moving()
    asked = {
        "text": query.text,
        "state": query.states[0].value if query.states else "",
        "wave": query.wave,
        "problems": "yes" if query.has_problems else "",
    }

    def sort_link(key: str) -> str:
        is_same = query.sort == key
        down = not query.descending if is_same else key in _DESCENDING_FIRST
        return visit.link("/fleet", **asked, sort=key, down="yes" if down else "")

    def page_link(offset: int) -> str:
        down = "yes" if query.descending else ""
        return visit.link("/fleet", **asked, sort=query.sort, down=down, offset=offset or "")

    return visit.page(
        "fleet.html",
        title="Fleet",
        summary=summary,
        page=page,
        query=query,
        columns=_COLUMNS,
        sort_link=sort_link,
        page_link=page_link,
        states=tuple(FleetState),
        states_by_name=FleetState,
        works=shown_works(visit, ("scan", "plan", "run", "demo")),
        is_scanning=any(each.kind in ("scan", "demo") for each in running),
        next_step=next_step(summary, is_running=is_running),
        was_interrupted=bool(summary.counts.get(FleetState.RUNNING)) and not is_running,
        has_failures=any(
            summary.counts.get(each) for each in (FleetState.FAILED, FleetState.STOPPED)
        ),
        to_run=to_run,
        planned_total=to_run + summary.counts.get(FleetState.DONE, 0),
        pause_ms=median_pause_ms(summary),
        forecast_pause_ms=median_pause_ms(summary) or _ASSUMED_PAUSE_MS,
        demo_folder=str(Path.home() / "lakeferry-demo") if console.is_local else "",
        plan_to=_suggested_target(visit),
    )


def table_query(visit: Visit) -> TableQuery:
    """Return which tables a page was asked for; what makes no sense is left out."""
    state = visit.asked("state").upper()
    sort = visit.asked("sort")
    wave = visit.asked_number("wave", 0, 1)
    return TableQuery(
        states=tuple(each for each in FleetState if each.value == state),
        text=visit.asked("text")[:_LONGEST_TEXT],
        wave=wave or None,
        has_problems=True if visit.asked("problems") == "yes" else None,
        sort=sort if sort in TABLE_SORTS else "uri",
        descending=visit.asked("down") == "yes",
        limit=ROWS_ON_A_PAGE,
        offset=visit.asked_number("offset", 0),
    )


def waiting_jobs(summary: FleetSummary) -> int:
    """Return how many moves are planned and not done."""
    return sum(summary.counts.get(state, 0) for state in TO_RUN)


def median_pause_ms(summary: FleetSummary) -> float | None:
    """Return for how long writers waited in finished moves."""
    return statistics.median(summary.pauses_ms) if summary.pauses_ms else None


def next_step(summary: FleetSummary, *, is_running: bool) -> str:
    """Return what a newcomer does next: scan, plan, run, watch what is running, or nothing."""
    if not summary.total:
        return "scan"
    if is_running:
        return "running"
    if waiting_jobs(summary):
        return "run"
    return "plan" if summary.counts.get(FleetState.FOUND) else "done"


def shown_works(visit: Visit, kinds: tuple[str, ...]) -> list[ConsoleWork]:
    """Return the work that runs, and the one that ended last: what was done before is history."""
    newest = [visit.console.work.newest(kind) for kind in kinds]
    found = [each for each in newest if each is not None]
    ended = [each for each in found if not each.is_running]
    last = max(ended, key=lambda each: each.ended_ms or 0, default=None)
    return [each for each in found if each.is_running or each is last]


def _suggested_target(visit: Visit) -> str:
    """Return a place beside the demo's tables, where these are all that there is."""
    roots = visit.console.jobs.roots() if visit.console.is_local else ()
    demo = next((root for root in roots if root.endswith("/lakeferry-demo/old")), None)
    return f"{demo.removesuffix('/old')}/new" if demo is not None and len(roots) == 1 else ""


def fleet_table(visit: Visit) -> Response:
    """Show one table of the inventory: what was found, what is planned, and its jobs."""
    table = visit.console.records.table_by_id(visit.path_number("id"))
    if table is None:
        raise ObjectNotFound("there is no such table in the fleet")
    words = ("lakeferry", "fleet", "status", "--match", table.uri)
    return visit.page(
        "fleet_table.html",
        title=table.name or table.uri,
        table=table,
        jobs=visit.console.records.jobs(table.uri),
        command=command_line(words),
    )


def fleet_report(visit: Visit) -> Response:
    """Answer with the report that ``fleet report`` writes, as a download."""
    with NamedTemporaryFile(prefix="lakeferry-", suffix=".html", delete=False) as file:
        path = Path(file.name)
    try:
        visit.console.fleet().report(path)
    except BaseException:
        path.unlink()
        raise
    return FileResponse(
        path,
        filename="fleet.html",
        media_type="text/html",
        background=BackgroundTask(os.unlink, path),
    )


FLEET_PAGE = ConsolePage(
    "Fleet",
    "/fleet",
    (
        page_at("/fleet", fleet_overview),
        page_at("/fleet/report", fleet_report),
        page_at("/fleet/tables/{id:int}", fleet_table),
        *FLEET_ACTIONS,
    ),
)
