"""``fleet``: finds many tables, plans their moves, and moves them in waves."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lakeferry import config
from lakeferry.cli import progress, render
from lakeferry.cli.confirmation import confirm, may_ask, yes_option
from lakeferry.cli.exit_codes import FAILED
from lakeferry.cli.fleet_pages import show_fleet, show_history, show_run, show_steps
from lakeferry.cli.options import (
    TABLE,
    RateType,
    Session,
    WholeNumber,
    command,
    copy_rate_option,
    dry_run_option,
    engine_option,
    group,
    storage_option,
)
from lakeferry.cli.redirect_enable import DATA, DialectsType
from lakeferry.cli.redirect_pages import MODES
from lakeferry.errors import Interrupted

if TYPE_CHECKING:
    from lakeferry.fleet.fleet import Fleet
    from lakeferry.fleet.running import FleetRun

STATES = ("FOUND", "PLANNED", "QUEUED", "RUNNING", "DONE", "FAILED", "STOPPED")
_SORTS = (
    *("uri", "state", "size_bytes", "num_files", "commits_per_day"),
    *("problems", "wave", "target", "scanned_ms"),
)
_wave_option = click.option(
    "--wave", type=WholeNumber(1), metavar="N", help="Only the tables of this wave."
)


@group(
    examples=(
        ("lakeferry fleet scan s3://warehouse", "find tables"),
        ("lakeferry fleet plan --to s3://new/warehouse --waves 4", "choose targets, and forecast"),
        ("lakeferry fleet run --wave 1 --parallel 4", "move the tables of a wave"),
        ("lakeferry fleet report fleet.html", "write a report as one HTML file"),
    )
)
def fleet() -> None:
    """Find many tables, plan their moves, and move them in waves.

    What is found, planned and done is kept in the database of the SQL catalog (LAKEFERRY_SQL_URL),
    which several people can share.
    """


def _fleet(
    session: Session,
    storage_options: Mapping[str, str] | None = None,
    engine: str | None = None,
    observer: progress.ProgressObserver | None = None,
) -> Fleet:
    from lakeferry.fleet.fleet import Fleet

    settings = config.load(storage_options=storage_options, engine=engine)
    return Fleet(
        storage_options=settings.storage_options,
        engine=settings.engine,
        environment=settings.catalog_environment(),
        warn=session.output.warn,
        observer=observer or (lambda _what, _done, _total: None),
    )


@command(
    examples=(
        ("lakeferry fleet scan s3://warehouse s3://archive", "all tables below two prefixes"),
        ("lakeferry fleet scan unity:main.sales", "the tables of a schema"),
        ("lakeferry fleet scan --dry-run", "what has changed since the last scans?"),
    )
)
@click.argument("prefixes", type=TABLE, nargs=-1, metavar="[PREFIX|CATALOG]...")
@dry_run_option
@storage_option
def scan(
    session: Session, prefixes: tuple[str, ...], dry_run: bool, storage_options: Mapping[str, str]
) -> None:
    """Find the tables below prefixes or in catalogs, and record what a plan has to know.

    A CATALOG is sql: or unity:, and the beginning of names. Tables that are unchanged since the
    last scan aren't read again. Without prefixes, everything that was scanned before is scanned
    again.
    """
    with progress.watching(session.output, "looking for tables") as observer:
        found = _fleet(session, storage_options, observer=observer).scan(*prefixes, dry_run=dry_run)
    if isinstance(found, list):
        show_steps(session.output, found)
    else:
        show_fleet(session.output, found)


@command(
    examples=(
        ("lakeferry fleet plan --to s3://new/warehouse", "the same paths below another prefix"),
        (
            "lakeferry fleet plan --to 'unity:main.sales.{name}' --managed --select 'sales/*'",
            "managed tables, for a part of the fleet",
        ),
        ("lakeferry fleet plan --from-file moves.csv --wave 2", "targets from a list"),
        ("lakeferry fleet plan --waves 4", "divide what is planned into waves by size"),
        ("lakeferry fleet plan --remove --select 'tmp/*'", "don't move these"),
    )
)
@click.option(
    "--to",
    metavar="PREFIX|TEMPLATE",
    help="Where the tables go: a prefix, below which each keeps its path, or a place or name with "
    "{name} or {path} in it.",
)
@click.option(
    "--from-file",
    type=click.Path(exists=True, dir_okay=False),
    metavar="MOVES.csv",
    help="Targets and options of each table, as for 'redirect enable'.",
)
@click.option(
    "--location",
    type=TABLE,
    metavar="PREFIX",
    help="Where the files go if targets are new names in a catalog.",
)
@click.option(
    "--select",
    multiple=True,
    metavar="GLOB",
    help="Only tables whose URI, name, or path below the scanned prefix matches; may be repeated.",
)
@click.option(
    "--min-size", type=RateType(), metavar="SIZE", help="Only tables of SIZE or more, such as 10GB."
)
@click.option(
    "--max-size", type=RateType(), metavar="SIZE", help="Only tables of SIZE or less, such as 10GB."
)
@click.option("--wave", type=WholeNumber(1), metavar="N", help="Put them all into this wave.")
@click.option(
    "--waves",
    type=WholeNumber(1),
    metavar="K",
    help="Divide them into K waves, the smallest tables first.",
)
@click.option(
    "--mode",
    type=click.Choice(MODES),
    default=MODES[0],
    show_default=True,
    help="Which clients without support for redirects are blocked at the old paths.",
)
@click.option(
    "--data",
    type=click.Choice(DATA),
    default=DATA[0],
    show_default=True,
    help="Copy the data files, or leave them where they are.",
)
@click.option(
    "--dialect",
    "dialects",
    type=DialectsType(),
    default=(),
    metavar="DIALECT[,DIALECT]",
    help="The format of the redirects; by default the one that most clients support.",
)
@click.option("--managed", is_flag=True, help="Make them managed tables of Unity Catalog.")
@click.option("--remove", is_flag=True, help="Take the tables out of the plan instead.")
@engine_option
@dry_run_option
@storage_option
def plan(
    session: Session,
    min_size: int | None,
    max_size: int | None,
    engine: str | None,
    dry_run: bool,
    storage_options: Mapping[str, str],
    **options: Any,
) -> None:
    """Choose targets and waves of the tables that were found, and forecast their moves.

    Each move is tested with a dry run. If the dry run fails, the table isn't planned, and the
    reason is shown as a problem of the table, with a remedy. Without targets, the command shows
    the existing plan.
    """
    if options["to"] is not None and options["from_file"] is not None:
        raise click.UsageError("--from-file replaces --to: leave that out.")
    if options["remove"] and (options["to"] is not None or options["from_file"] is not None):
        raise click.UsageError("--remove needs no targets.")
    if options["wave"] is not None and options["waves"] is not None:
        raise click.UsageError("--wave and --waves can't be combined.")
    given = {key: value for key, value in options.items() if value or key == "mode"}
    with progress.watching(session.output, "planning moves") as observer:
        found = _fleet(session, storage_options, engine, observer).plan(
            dry_run=dry_run, min_bytes=min_size, max_bytes=max_size, **given
        )
    if isinstance(found, list):
        show_steps(session.output, found)
    else:
        show_fleet(session.output, found, planned=True)


@command(
    examples=(
        ("lakeferry fleet run --wave 1 --parallel 4", "the tables of one wave"),
        (
            "lakeferry fleet run --window 22:00-05:00 --time-zone Europe/Berlin --wait",
            "all waves, at night only",
        ),
        ("lakeferry fleet run --dry-run", "which tables would be moved?"),
    )
)
@click.option(
    "--wave",
    type=WholeNumber(1),
    metavar="N",
    help="Only this wave, even if moves of earlier waves failed.",
)
@click.option(
    "--parallel",
    type=WholeNumber(1),
    default=4,
    show_default=True,
    metavar="P",
    help="How many tables to move at a time.",
)
@click.option(
    "--window",
    metavar="HH:MM-HH:MM",
    help="The time of day in which moves may start, such as 22:00-05:00. Moves that are running "
    "when it closes finish.",
)
@click.option(
    "--time-zone",
    metavar="ZONE",
    help="The time zone of the window, such as Europe/Berlin; by default this machine's.",
)
@click.option("--wait", "waits", is_flag=True, help="If the window is closed, wait until it opens.")
@yes_option
@engine_option
@copy_rate_option
@dry_run_option
@storage_option
def run(
    session: Session,
    wave: int | None,
    parallel: int,
    window: str | None,
    time_zone: str | None,
    waits: bool,
    yes: bool,
    engine: str | None,
    limit_rate: int | None,
    dry_run: bool,
    storage_options: Mapping[str, str],
) -> None:
    """Move the tables that are planned, wave by wave; continue what failed or was stopped.

    If a run was interrupted or killed, run the command again: it continues. Several runs on one
    database share the tables. A wave starts when all moves of the earlier waves have succeeded.
    """
    if window is None and (waits or time_zone is not None):
        raise click.UsageError("--wait and --time-zone need --window.")
    output = session.output
    output.after_interrupt = "to continue, run 'lakeferry fleet run' again"
    if not dry_run and may_ask(output, yes=yes):
        steps = _fleet(session, storage_options, engine).run(wave=wave, dry_run=True)
        assert isinstance(steps, list)
        if steps:
            confirm(output, f"Move {render.counted(len(steps), 'table')}?", yes=yes)
    with progress.watching(output) as observer:
        found = _fleet(session, storage_options, engine, observer).run(
            wave=wave,
            parallel=parallel,
            window=window,
            time_zone=time_zone,
            waits=waits,
            limit_rate=limit_rate,
            dry_run=dry_run,
        )
    if isinstance(found, list):
        show_steps(output, found)
        return
    show_run(output, found)
    if found.run is not None:
        _end(session, found.run)


def _end(session: Session, ended: FleetRun) -> None:
    """End the command as the run did; the document shows every table."""
    if ended.interrupted:
        cause = f"{len(ended.moved)} tables moved, {len(ended.stopped)} were stopped"
        remedy = session.output.after_interrupt
        raise Interrupted("interrupted", cause=cause, remedy=remedy)
    if ended.errors:
        first = ended.errors[0]
        total = render.counted(len(ended.uris), "move")
        said = f"{len(ended.errors)} of {total} failed, the first because {first['message']}"
        counts = {"failed": len(ended.errors), "total": len(ended.uris)}
        session.output.fail(
            {"code": first["code"], "message": said, "remedy": first["remedy"], **counts}
        )
        raise click.exceptions.Exit(FAILED)
    if ended.lost_database is not None:
        raise ended.lost_database


@command(
    examples=(
        ("lakeferry fleet pause --json", "start no more moves"),
        ("lakeferry fleet pause --stop-running", "and stop those that run"),
    )
)
@click.option(
    "--stop-running",
    is_flag=True,
    help="Stop running moves, too, where they next report progress; the next run continues them.",
)
@dry_run_option
def pause(session: Session, stop_running: bool, dry_run: bool) -> None:
    """Ask all runs to start no more moves. To continue, use 'lakeferry fleet run'.

    Running moves finish, unless --stop-running is given. A move that already makes writers wait
    always finishes.
    """
    changed = _fleet(session).pause(stop_running=stop_running, dry_run=dry_run)
    output = session.output
    if dry_run:
        show_steps(output, [{"op": "pause", "stop_running": stop_running}] if changed else [])
    elif output.json:
        output.document({"paused": True, "changed": changed})
    else:
        said = "runs start no more moves" if changed else "nothing had to be changed"
        output.page().line(said)


@command(
    examples=(
        ("lakeferry fleet status --json", "all tables, for programs"),
        ("lakeferry fleet status --state failed --problems", "what went wrong?"),
        ("lakeferry fleet status --sort size_bytes --descending --limit 20", "the largest ones"),
    )
)
@click.option(
    "--state",
    "states",
    type=click.Choice(STATES, case_sensitive=False),
    multiple=True,
    help="Only tables in this state; may be repeated.",
)
@click.option("--match", metavar="TEXT", help="Only tables with this text in path, name or target.")
@_wave_option
@click.option("--problems", is_flag=True, help="Only tables with problems.")
@click.option("--sort", type=click.Choice(_SORTS), default="uri", help="The column to sort by.")
@click.option("--descending", is_flag=True, help="Sort in descending order.")
@click.option("--limit", type=WholeNumber(1), metavar="N", help="Show at most N tables.")
@click.option(
    "--offset", type=WholeNumber(0), default=0, metavar="N", help="Skip the first N tables."
)
def status(
    session: Session,
    states: tuple[str, ...],
    match: str | None,
    wave: int | None,
    problems: bool,
    sort: str,
    descending: bool,
    limit: int | None,
    offset: int,
) -> None:
    """Show the tables of the fleet and their moves, as they are recorded.

    'lakeferry fleet scan' looks at the tables themselves.
    """
    from lakeferry.fleet.fleet_states import FleetState
    from lakeferry.fleet.records import TableQuery

    query = TableQuery(
        states=tuple(FleetState(each.upper()) for each in states),
        text=match or "",
        wave=wave,
        has_problems=True if problems else None,
        sort=sort,
        descending=descending,
        limit=limit,
        offset=offset,
    )
    found = _fleet(session).status(query)
    show_fleet(session.output, found, planned=any(table.job for table in found.tables))


@command(
    examples=(
        ("lakeferry fleet history --limit 50", "what happened first"),
        ("lakeferry fleet history --job 7", "the steps of one move"),
        ("lakeferry fleet history --since 1200 --json", "what is new, for programs"),
    )
)
@click.option(
    "--since", type=WholeNumber(0), default=0, metavar="ID", help="Only entries after the entry ID."
)
@click.option("--job", "job_id", type=WholeNumber(1), metavar="ID", help="Only one job's entries.")
@click.option(
    "--limit",
    type=WholeNumber(1),
    default=1_000,
    show_default=True,
    metavar="N",
    help="Show at most N entries.",
)
def history(session: Session, since: int, job_id: int | None, limit: int) -> None:
    """Show what happened to the tables of the fleet, the oldest first."""
    show_history(session.output, _fleet(session).history(since, job_id=job_id, limit=limit))


@command(examples=(("lakeferry fleet report fleet.html", "one file, without scripts"),))
@click.argument("file", type=click.Path(dir_okay=False, writable=True))
@dry_run_option
def report(session: Session, file: str, dry_run: bool) -> None:
    """Write a report about the whole fleet to FILE, one HTML page."""
    if dry_run:
        show_steps(session.output, [{"op": "write_report", "path": str(Path(file).absolute())}])
        return
    written = _fleet(session).report(file)
    if session.output.json:
        session.output.document({"report": str(written.absolute()), "changed": True})
    else:
        session.output.page().line(f"wrote {written}")


for _each in (scan, plan, run, pause, status, history, report):
    fleet.add_command(_each)
