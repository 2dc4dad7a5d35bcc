"""What the commands of ``fleet`` print for people."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lakeferry.cli import render
from lakeferry.cli.output import Output
from lakeferry.cli.redirect_pages import show_plan

if TYPE_CHECKING:
    from lakeferry.fleet.fleet import FleetStatus
    from lakeferry.fleet.inventory import FleetHistoryEntry, FleetTable
    from lakeferry.fleet.running import FleetRun

_PROBLEMS_SHOWN = 20


def show_fleet(output: Output, status: FleetStatus, *, planned: bool = False) -> None:
    """Show tables of the fleet; ``planned`` shows their plans beside them."""
    if output.json:
        output.document(status.as_document())
        return
    page = output.page()
    if planned:
        columns, rows = _PLAN_COLUMNS, map(_plan_row, status.tables)
    else:
        columns, rows = _COLUMNS, map(_row, status.tables)
    page.table("", columns, rows)
    _show_problems(page, status.tables)
    if page.is_screen:
        page.line(status.summary.sentence())
    if status.summary.paused:
        page.line("the fleet is paused; 'lakeferry fleet run' continues it")


_COLUMNS = ("table", "state", "files", "size", "commits a day", "features", "written by")
_PLAN_COLUMNS = ("table", "to", "wave", "state", "size", "takes about", "writers wait about")


def _row(table: FleetTable) -> Sequence[render.Cell]:
    survey = table.survey
    rate = survey.commits_per_day
    return (
        table.name or table.uri,
        table.state.value,
        survey.num_files,
        None if survey.size_bytes is None else render.size(survey.size_bytes),
        None if rate is None else f"{rate:,.1f}",
        ", ".join(survey.features) or None,
        ", ".join(each.name or "unnamed" for each in survey.writers) or None,
    )


def _plan_row(table: FleetTable) -> Sequence[render.Cell]:
    job, size = table.job, table.survey.size_bytes
    forecast = None if job is None else job.forecast
    return (
        table.name or table.uri,
        None if job is None else job.target,
        None if job is None else job.wave,
        table.state.value,
        None if size is None else render.size(size),
        None if forecast is None else _seconds(forecast.duration_ms),
        None if forecast is None or forecast.pause_ms is None else f"{forecast.pause_ms} ms",
    )


def _seconds(duration_ms: int | None) -> str | None:
    if duration_ms is None:
        return None
    seconds = round(duration_ms / 1000)
    return f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}"


def _show_problems(page: render.Page, tables: Iterable[FleetTable]) -> None:
    problems = [(table, each) for table in tables for each in table.problems]
    for table, each in problems[:_PROBLEMS_SHOWN]:
        remedy = f" ({each.remedy})" if each.remedy else ""
        page.line(f"{table.name or table.uri}: {each.message}{remedy}")
    if len(problems) > _PROBLEMS_SHOWN:
        page.line(f"and {len(problems) - _PROBLEMS_SHOWN} more problems; --json shows all")


def show_run(output: Output, status: FleetStatus) -> None:
    """Show what a run did."""
    if output.json:
        output.document(status.as_document())
        return
    page = output.page()
    page.table("", ("table", "to", "state", "files", "size", "writers waited"), _run_rows(status))
    if (run := status.run) is not None:
        for line in _reasons(run):
            page.line(line)


def _run_rows(status: FleetStatus) -> Iterable[Sequence[render.Cell]]:
    for table in status.tables:
        job = table.job
        outcome: Mapping[str, Any] = (None if job is None else job.outcome) or {}
        copied, waited = outcome.get("bytes_copied"), outcome.get("blocked_ms")
        yield (
            table.name or table.uri,
            None if job is None else job.target,
            table.state.value,
            outcome.get("files_copied"),
            None if copied is None else render.size(copied),
            None if waited is None else f"{waited} ms",
        )


def _reasons(run: FleetRun) -> Iterable[str]:
    if not run.uris:
        yield "nothing had to be moved"
    if run.paused:
        yield "the fleet was paused; 'lakeferry fleet run' continues it"
    if run.opens_ms is not None:
        yield f"the window is closed; moves can start at {render.moment(run.opens_ms)}"
    if (wave := run.blocked_by_wave) is not None:
        yield (
            f"later waves wait, because moves of wave {wave} failed or were stopped: 'lakeferry "
            f"fleet run' retries these moves, 'lakeferry fleet run --wave {wave + 1}' starts "
            "the next wave without them"
        )


def show_history(output: Output, entries: Sequence[FleetHistoryEntry]) -> None:
    """Show what happened."""
    if output.json:
        output.document({"history": [entry.as_document() for entry in entries]})
        return
    output.page().table(
        "",
        ("id", "when", "what", "table", "job", "detail"),
        (
            (
                entry.id,
                render.moment(entry.at_ms),
                entry.kind,
                entry.uri,
                entry.job_id,
                _detail(entry.detail),
            )
            for entry in entries
        ),
    )


def _detail(detail: Mapping[str, Any]) -> str | None:
    if error := detail.get("error"):
        return f"{error.get('code')}: {error.get('message')}"
    return next((str(detail[key]) for key in ("step", "target", "root") if detail.get(key)), None)


def show_steps(output: Output, steps: Sequence[dict[str, Any]]) -> None:
    """Show what a dry run would do."""
    show_plan(output, steps, [])
