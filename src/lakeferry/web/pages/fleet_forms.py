"""The forms of ``/fleet``: scan, plan, run, pause, withdraw, and making demo tables.

Each calls the function that the command line calls, and names the command.
"""

from __future__ import annotations

from glob import escape
from pathlib import Path

from starlette.responses import Response

from lakeferry.errors import InvalidInput, ObjectNotFound
from lakeferry.fleet.fleet import FleetStatus
from lakeferry.fleet.fleet_states import FleetState
from lakeferry.fleet.planning import TO_RUN
from lakeferry.fleet.targets import outer_place
from lakeferry.readable import counted
from lakeferry.web.background_work import ConsoleWork
from lakeferry.web.demo_tables import make_demo_tables
from lakeferry.web.page_filters import command_line, shown_place
from lakeferry.web.page_routes import Consequence, act
from lakeferry.web.visit import Visit

_MODES = ("reader-writer", "writer-only")
_MOST_PARALLEL = 64


def scan_fleet(visit: Visit) -> Response:
    """Begin a scan of a place, or of everything that was scanned before."""
    place = visit.form.get("place", "")
    places = (place,) if place else ()
    for each in places:
        visit.check_may_name(each)
    _start_scan(visit, places)
    return visit.go("/fleet")


def _start_scan(visit: Visit, places: tuple[str, ...]) -> None:
    console = visit.console

    def scan(work: ConsoleWork) -> str:
        found = console.fleet(work.observe, work.warn).scan(*places)
        problems = sum(1 for table in found.tables if table.problems)
        said = f"Found {counted(len(found.tables), 'table')}."
        return f"{said} {counted(problems, 'table')} with problems." if problems else said

    shown = shown_place(places[0]) if places else "all places again"
    command = command_line(("lakeferry", "fleet", "scan", *places))
    console.work.start("scan", f"Scan {shown}", command, scan)


def make_demo(visit: Visit) -> Response:
    """Write demo tables into a new folder, and scan it."""
    if not visit.viewer.names_any_place:
        raise ObjectNotFound("there is no such page")
    text = visit.form.get("folder", "")
    try:
        folder = Path(text).expanduser()
    except RuntimeError:
        # '~' and the name of nobody.
        folder = Path(text)
    if not folder.is_absolute() or "\0" in text:
        raise InvalidInput("this isn't an absolute path of a folder", remedy="begin it with /")
    old = make_demo_tables(folder)
    visit.note(f"Demo tables are in {old}.")
    _start_scan(visit, (str(old),))
    return visit.go("/fleet")


def plan_fleet(visit: Visit) -> Response:
    """Begin to plan moves to a new place, or divide what is planned into waves."""
    console, form = visit.console, visit.form
    to, select = form.get("to", ""), form.get("select", "")
    waves = visit.form_number("waves")
    mode = form.get("mode", _MODES[0])
    if mode not in _MODES:
        raise InvalidInput(f"{mode!r} isn't a mode", remedy=f"use {' or '.join(_MODES)}")
    if not to and waves is None:
        raise InvalidInput(
            "there is nothing to plan",
            cause="neither a new place nor a number of waves is given",
            remedy="give a new place for the tables",
        )
    if to:
        visit.check_may_name(outer_place(to))
    patterns = (select,) if select else ()
    words = ["lakeferry", "fleet", "plan"]
    words += ["--to", to] if to else []
    words += ["--waves", str(waves)] if waves is not None else []
    words += ["--mode", mode] if to and mode != _MODES[0] else []
    words += ["--select", select] if select else []

    def plan(work: ConsoleWork) -> str:
        fleet = console.fleet(work.observe, work.warn)
        if to:
            status = fleet.plan(to=to, waves=waves, select=patterns, mode=mode)
        else:
            status = fleet.plan(waves=waves, select=patterns)
        return _planned(status)

    title = f"Plan moves to {shown_place(to)}" if to else "Divide the plan into waves"
    console.work.start("plan", title, command_line(words), plan, not_beside=("scan",))
    return visit.go("/fleet")


def _planned(status: FleetStatus) -> str:
    planned = sum(1 for table in status.tables if table.state is FleetState.PLANNED)
    refused = sum(1 for table in status.tables if table.plan_problems)
    if not planned and not refused:
        return "No move is planned: no table fits, or all that do are at the new place already."
    said = f"{counted(planned, 'move')} planned."
    if refused:
        said += f" {counted(refused, 'table')} can’t be moved as it is: see its problems."
    return said


def run_fleet(visit: Visit) -> Response:
    """Begin a run in a thread of this process."""
    console = visit.console
    wave, parallel = visit.form_number("wave"), visit.form_number("parallel") or 4
    window = visit.form.get("window", "") or None
    if parallel > _MOST_PARALLEL:
        raise InvalidInput(f"at most {_MOST_PARALLEL} tables are moved at a time")

    def run(work: ConsoleWork) -> str:
        fleet = console.fleet(work.observe, work.warn)
        status = fleet.run(
            wave=wave,
            parallel=parallel,
            window=window,
            waits=window is not None,
            stop=work.stop,
        )
        return _ran(status)

    title = "Run all waves" if wave is None else f"Run wave {wave}"
    console.work.start("run", title, _run_command(visit), run)
    return visit.go("/jobs")


def _run_command(visit: Visit) -> str:
    wave, window = visit.form.get("wave", ""), visit.form.get("window", "")
    words = ["lakeferry", "fleet", "run"]
    words += ["--wave", wave] if wave else []
    words += ["--parallel", visit.form.get("parallel", "") or "4"]
    words += ["--window", window, "--wait"] if window else []
    return command_line(words)


def _ran(status: FleetStatus) -> str:
    run = status.run
    if run is None or not (run.uris or run.paused or run.blocked_by_wave is not None):
        return "Nothing had to be moved."
    said = f"{counted(len(run.moved), 'table')} moved."
    if run.failed:
        said += f" {counted(len(run.failed), 'move')} failed."
    if run.stopped:
        said += f" {counted(len(run.stopped), 'move')} stopped."
    if run.paused:
        said += " The run was paused."
    if run.blocked_by_wave is not None:
        said += f" Later waves wait for wave {run.blocked_by_wave}."
    return said


def _run_consequence(visit: Visit) -> Consequence | None:
    wave = visit.form_number("wave")
    waves = visit.console.records.summary().waves
    asked = [each.counts for each in waves if wave in (None, each.wave)]
    number = sum(counts.get(state, 0) for counts in asked for state in TO_RUN)
    if not number:
        return None
    tables = counted(number, "table")
    return Consequence(
        f"Move {tables}?",
        f"Files of {tables} are copied while writers work. At the end of each move its writers "
        "wait for a moment. Then the old path is a redirect: clients that don’t follow redirects "
        "can’t write there any more. Each move can be undone with 'lakeferry redirect disable'.",
        f"Move {tables}",
        _run_command(visit),
    )


def pause_fleet(visit: Visit) -> Response:
    """Ask all runs to begin no more moves."""
    stops = visit.form.get("stop_running") == "yes"
    changed = visit.console.fleet().pause(stop_running=stops)
    visit.note("No new moves start." if changed else "The fleet was already paused.")
    return visit.go("/jobs")


def _pause_consequence(visit: Visit) -> Consequence:
    if visit.form.get("stop_running") == "yes":
        return Consequence(
            "Stop the moves that run?",
            "No process starts new moves. Running moves stop where they are, and the next run "
            "continues them. A move that already makes writers wait still finishes.",
            "Stop moves",
            "lakeferry fleet pause --stop-running",
            is_danger=True,
        )
    return Consequence(
        "Pause the fleet?",
        "No process starts new moves. Running moves finish. To continue later, choose Run.",
        "Pause",
        "lakeferry fleet pause",
    )


def withdraw_table(visit: Visit) -> Response:
    """Take a table out of the plan."""
    uri = visit.form.get("uri", "")
    status = visit.console.fleet().plan(remove=True, select=[escape(uri)])
    visit.note("It is out of the plan." if status.changed else "It wasn’t planned any more.")
    table = visit.console.records.table(uri)
    return visit.go("/fleet" if table is None else f"/fleet/tables/{table.id}")


def _withdraw_consequence(visit: Visit) -> Consequence:
    uri = visit.form.get("uri", "")
    return Consequence(
        "Take the table out of the plan?",
        f"{shown_place(uri)} isn’t moved by later runs. What an interrupted move has copied stays.",
        "Take it out",
        command_line(("lakeferry", "fleet", "plan", "--remove", "--select", escape(uri))),
    )


FLEET_ACTIONS = (
    act("/fleet/scan", scan_fleet),
    act("/fleet/demo", make_demo),
    act("/fleet/plan", plan_fleet),
    act("/fleet/run", run_fleet, consequence=_run_consequence),
    act("/fleet/pause", pause_fleet, consequence=_pause_consequence),
    act("/fleet/withdraw", withdraw_table, consequence=_withdraw_consequence),
)
