"""Writes the fleet's report as one HTML file.

Strings from tables, paths and engines are escaped. The page has no script, loads nothing, and
follows the reader's light or dark setting.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence

from markupsafe import Markup

from lakeferry.fleet.fleet_states import FleetState
from lakeferry.fleet.inventory import FleetHistoryEntry, FleetTable
from lakeferry.fleet.records import FleetSummary
from lakeferry.html_tables import html, joined
from lakeferry.readable import moment, size
from lakeferry.version import LAKEFERRY_VERSION

_STYLE = """
:root { color-scheme: light dark; --ink: #1b2733; --quiet: #566575; --paper: #fff;
  --card: #f4f7fa; --line: #dbe3ea; --bad: #b3261e; --good: #1a7f4b; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --quiet: #9aa9b8;
  --paper: #12181f; --card: #1b242e; --line: #2d3a47; --bad: #ff8a80; --good: #6fdc9f; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
main { max-width: 76rem; margin: 0 auto; padding: 2.5rem 1.25rem 4rem; }
h1 { font-size: 1.9rem; line-height: 1.2; margin: 0 0 .5rem; }
h2 { font-size: 1.15rem; margin: 2.5rem 0 .6rem; }
.quiet { color: var(--quiet); font-size: .9rem; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(9rem, 1fr));
  gap: .75rem; margin: 1.5rem 0 0; padding: 0; list-style: none; }
.tiles li { background: var(--card); border: 1px solid var(--line); border-radius: .6rem;
  padding: .8rem 1rem; }
.tiles b { display: block; font-size: 1.5rem; font-variant-numeric: tabular-nums; }
.tiles span { color: var(--quiet); font-size: .85rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; }
th { text-align: left; color: var(--quiet); font-weight: 500; font-size: .85rem; }
th, td { padding: .4rem .8rem .4rem 0; border-bottom: 1px solid var(--line);
  vertical-align: top; overflow-wrap: anywhere; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums;
  white-space: nowrap; }
.done { color: var(--good); } .failed { color: var(--bad); font-weight: 650; }
"""
_STATE_CLASSES = {FleetState.DONE: "done", FleetState.FAILED: "failed"}


def report_html(
    tables: Sequence[FleetTable],
    summary: FleetSummary,
    newest: Sequence[FleetHistoryEntry],
    place: str,
) -> str:
    """Return the report; ``newest`` is the end of the history, the newest entry first."""
    made_ms = max((entry.at_ms for entry in newest), default=None)
    when = "nothing is recorded yet" if made_ms is None else f"as of {moment(made_ms)}"
    about = html('<p class="quiet">{} · {} · Lakeferry {}</p>', place, when, LAKEFERRY_VERSION)
    body = joined(
        [
            html("<h1>The fleet</h1>"),
            about,
            _tiles(summary),
            html("<h2>Problems</h2>"),
            _problems(tables),
            html("<h2>Moves</h2>"),
            _moves(tables),
            html("<h2>Who wrote, and what the move means for them</h2>"),
            _clients(tables),
            html("<h2>All tables</h2>"),
            _inventory(tables),
            html("<h2>What happened</h2>"),
            _history(newest),
        ],
        "\n",
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
        "style-src 'unsafe-inline'\">\n"
        f"<title>Lakeferry: the fleet</title>\n<style>{_STYLE}</style>\n</head>\n"
        f"<body>\n<main>\n{body}\n</main>\n</body>\n</html>\n"
    )


def _tiles(summary: FleetSummary) -> Markup:
    pauses = summary.pauses_ms
    median = f"{round(statistics.median(pauses))} ms" if pauses else "–"
    tiles = [
        (f"{summary.total:,}", "tables"),
        (size(summary.size_bytes), "in all"),
        *((f"{summary.counts.get(state, 0):,}", state.value.lower()) for state in _SHOWN_STATES),
        (f"{summary.with_problems:,}", "with problems"),
        (median, "writers waited (median)"),
    ]
    shown = (html("<li><b>{}</b><span>{}</span></li>", *tile) for tile in tiles)
    return html('<ul class="tiles">{}</ul>', joined(shown))


_SHOWN_STATES = (
    FleetState.DONE,
    FleetState.RUNNING,
    FleetState.QUEUED,
    FleetState.PLANNED,
    FleetState.STOPPED,
    FleetState.FAILED,
)


def _problems(tables: Sequence[FleetTable]) -> Markup:
    rows = (
        (_text(table.uri), _text(each.message), _text(each.remedy))
        for table in tables
        for each in table.problems
    )
    return _table(("table", "problem", "what to do"), rows, "No table has a problem.")


def _moves(tables: Sequence[FleetTable]) -> Markup:
    rows = []
    for table in tables:
        if (job := table.job) is None:
            continue
        outcome = job.outcome or {}
        rows.append(
            (
                _text(table.uri),
                _text(job.target),
                _number(job.wave),
                _state(table.state),
                _text(None if job.started_ms is None else moment(job.started_ms)),
                _text(None if job.ended_ms is None else moment(job.ended_ms)),
                _number(outcome.get("files_copied")),
                _size_cell(outcome.get("bytes_copied")),
                _number(outcome.get("blocked_ms")),
            )
        )
    columns = ("from", "to", "#wave", "state", "begun", "ended", "#files", "#bytes", "#pause, ms")
    return _table(columns, rows, "No move is planned.")


def _clients(tables: Sequence[FleetTable]) -> Markup:
    rows = (
        (_text(table.uri), _text(each.name or "unnamed"), _text(each.during), _text(each.after))
        for table in tables
        if table.job is not None
        for each in table.job.forecast.clients
    )
    return _table(("table", "client", "during the move", "after it"), rows, "Nobody is known.")


def _inventory(tables: Sequence[FleetTable]) -> Markup:
    rows = (
        (
            _text(table.uri if table.name is None else f"{table.name} ({table.uri})"),
            _state(table.state),
            _number(table.survey.num_files),
            _size_cell(table.survey.size_bytes),
            _number(table.survey.commits_per_day),
            _text(", ".join(table.survey.features) or None),
            _text(", ".join(each.name or "unnamed" for each in table.survey.writers) or None),
        )
        for table in tables
    )
    columns = ("table", "state", "#files", "#size", "#commits a day", "features", "written by")
    return _table(columns, rows, "No table was found.")


def _history(newest: Sequence[FleetHistoryEntry]) -> Markup:
    rows = (
        (
            _text(moment(entry.at_ms)),
            _text(entry.kind),
            _text(entry.uri),
            _text(_detail(entry)),
        )
        for entry in newest
    )
    return _table(("when", "what", "table", "detail"), rows, "Nothing has happened yet.")


def _detail(entry: FleetHistoryEntry) -> str | None:
    detail = entry.detail
    if (error := detail.get("error")) is not None:
        return str(error.get("message"))
    for key in ("step", "target", "holder", "root"):
        if detail.get(key) is not None:
            return str(detail[key])
    return None


def _table(columns: Sequence[str], rows: Iterable[Sequence[Markup]], empty: str) -> Markup:
    """Return a table of cells that are HTML already; ``#`` begins the name of numbers."""
    body = joined((html("<tr>{}</tr>", joined(row)) for row in rows), "\n")
    if not body:
        return html('<p class="quiet">{}</p>', empty)
    head = joined(
        html('<th class="number">{}</th>', name[1:])
        if name.startswith("#")
        else html("<th>{}</th>", name)
        for name in columns
    )
    return html(
        '<div class="scroll"><table>\n<thead><tr>{}</tr></thead>\n'
        "<tbody>\n{}\n</tbody></table></div>",
        head,
        body,
    )


def _text(value: str | None) -> Markup:
    return html("<td>{}</td>", value or "–")


def _number(value: float | None) -> Markup:
    return html('<td class="number">{}</td>', "–" if value is None else f"{value:,}")


def _size_cell(value: int | None) -> Markup:
    return html('<td class="number">{}</td>', "–" if value is None else size(value))


def _state(state: FleetState) -> Markup:
    return html('<td class="{}">{}</td>', _STATE_CLASSES.get(state, ""), state.value.lower())
