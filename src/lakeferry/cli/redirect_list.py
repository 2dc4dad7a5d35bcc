"""``redirect enable --from-file`` and ``redirect list``: many tables in one command."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lakeferry.cli import progress, render
from lakeferry.cli.confirmation import confirm
from lakeferry.cli.exit_codes import FAILED
from lakeferry.cli.options import Session
from lakeferry.cli.output import Output
from lakeferry.cli.redirect_pages import MoveChoice, show_clients, show_plan, show_report
from lakeferry.config import Config
from lakeferry.errors import Interrupted, LakeferryError

if TYPE_CHECKING:
    from lakeferry.api.move_list import Mover, Report, Wanted


def enable_all(
    session: Session,
    settings: Config,
    from_file: str,
    options: Mapping[str, Any],
    parallel: int | None,
    *,
    limit_rate: int | None,
    dry_run: bool,
    yes: bool,
) -> None:
    """Move every table of a list; a failed move doesn't stop the others."""
    from lakeferry.api.move_list import PARALLEL, Mover, move_all, read_moves

    output = session.output
    # Spreadsheets mark a file as UTF-8 by its first character.
    with Path(from_file).open(newline="", encoding="utf-8-sig") as lines:
        wanted = read_moves(lines, from_file, options)
    if not output.json:
        show_clients([MoveChoice.of(each.options, each.target) for each in wanted])
        if not dry_run:
            confirm(output, f"Move {render.counted(len(wanted), 'table')}?", yes=yes)
    output.after_interrupt = "run the same command again: the list continues from here"
    warnings: list[str] = []

    def warn(text: str) -> None:
        warnings.append(text)
        output.warn(text)

    mover = Mover(
        settings.storage_options,
        engine=settings.engine,
        environment=settings.catalog_environment(),
        warn=warn,
        limit_rate=limit_rate,
    )
    with mover:
        if dry_run:
            plan = _plan_all(mover, wanted)
            show_plan(output, plan, warnings)
            _fail(output, [step["error"] for step in plan if step["error"]], len(wanted))
            return
        with progress.watching(output) as observer:
            report = move_all(mover, wanted, parallel=parallel or PARALLEL, observer=observer)
        # Print this before Spark is stopped, which may take longer than the time limit after an
        # interrupt.
        show_report(output, report)
        if report.interrupted:
            raise _interrupted(report, output.after_interrupt)
        _fail(output, [move.error for move in report.failed if move.error], len(wanted))


def list_all_redirects(
    session: Session, settings: Config, where: str, parallel: int | None
) -> None:
    """Print the redirects below a place, or in a catalog."""
    from lakeferry.api.redirect_search import LOOKED_AT_ONCE, list_redirects
    from lakeferry.api.table import Places

    environment = settings.catalog_environment()
    output = session.output
    with progress.watching(output, "looking for tables") as observer:
        found = list_redirects(
            where,
            Places(environment=environment, layered=settings.storage_options),
            parallel=parallel or LOOKED_AT_ONCE,
            observer=observer,
        )
    for source, error in found.unreadable:
        output.warn(f"{source} can't be read: {error.message}")
    if output.json:
        output.document(found.as_document())
        return
    rows = [
        (each.source, each.shown_state, each.mode, each.name or each.target)
        for each in found.redirects
    ]
    output.page().table("redirects", ("source", "state", "mode", "target"), rows)
    if not rows:
        output.note(f"none of {render.counted(found.tables, 'table')} has a redirect")


def _interrupted(report: Report, remedy: str) -> Interrupted:
    done = len(report.moves) - len(report.failed)
    of_all = render.counted(len(report.moves), "table")
    return Interrupted("interrupted", cause=f"{done} of {of_all} moved", remedy=remedy)


def _plan_all(mover: Mover, wanted: Sequence[Wanted]) -> list[dict[str, Any]]:
    """Return a step for each table that would be moved, or whose move would be refused."""
    plan = []
    for each in wanted:
        step: dict[str, Any] = {"op": "move", "source": each.source, "target": each.target}
        try:
            step |= {"steps": mover.plan(each), "error": None}
        except LakeferryError as refused:
            step |= {"steps": [], "error": refused.as_document()}
        if step["steps"] or step["error"]:
            plan.append(step)
    return plan


def _fail(output: Output, errors: Sequence[Mapping[str, object]], total: int) -> None:
    """End with the first error's code; the document has all errors."""
    if not errors:
        return
    first = errors[0]
    message = f"{len(errors)} of {render.counted(total, 'move')} failed, the first because"
    output.fail(
        {
            "code": first["code"],
            "message": f"{message} {first['message']}",
            "remedy": first["remedy"],
            "failed": len(errors),
            "total": total,
        }
    )
    raise click.exceptions.Exit(FAILED)
