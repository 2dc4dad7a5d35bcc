"""What the commands of ``redirect`` print for people."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lakeferry.api.plan_sentences import sentence, travel
from lakeferry.cli import render
from lakeferry.cli.options import CATALOGS
from lakeferry.cli.output import Output

if TYPE_CHECKING:
    from lakeferry.api.move_list import MovedTable, Report
    from lakeferry.api.table import Outcome, RecentWriter, Status

MODES = ("reader-writer", "writer-only")
"""The values of ``--mode``; the first is the default."""


def show_outcome(
    output: Output,
    outcome: Outcome,
    warnings: Sequence[str],
    fields: Mapping[str, Any] | None = None,
) -> None:
    """Show the outcome of a procedure; ``fields`` are more fields of its document."""
    if output.json:
        document = outcome.as_document() | dict(fields or {})
        output.document({**document, "warnings": list(warnings)})
        return
    page = output.page()
    page.facts(outcome.facts())
    for remark in outcome.remarks():
        page.line(remark)


def show_plan(
    output: Output,
    plan: Sequence[Mapping[str, Any]],
    warnings: Sequence[str],
    fields: Mapping[str, Any] | None = None,
) -> None:
    """Show what would be done; ``fields`` are more fields of its document."""
    if output.json:
        document = {"dry_run": True, "plan": plan, **(fields or {}), "warnings": list(warnings)}
        output.document(document)
    elif not plan:
        output.page().line("nothing would be changed")
    else:
        page = output.page()
        for step in plan:
            _show_step(page, step, 0)
            for inner in step.get("steps") or ():
                _show_step(page, inner, 2)


def _show_step(page: render.Page, step: Mapping[str, Any], indent: int) -> None:
    page.line(sentence(step), indent=indent)
    # A log is small beside its data.
    for line in travel(step) if step["op"] != "copy_log" else ():
        page.line(line, indent=indent + 2)


def show_status(output: Output, found: Status) -> None:
    """Show the state of a redirect."""
    if output.json:
        output.document(found.as_document())
        return
    page = output.page()
    page.facts(found.facts())
    page.table("Rules", found.RULE_COLUMNS, found.rule_rows())
    if found.unfinished is not None:
        page.line(
            "'lakeferry redirect resume' continues the move, 'lakeferry redirect cancel' undoes it"
        )
    for warning in found.warnings:
        page.line(f"warning: {warning}", style="yellow")


@dataclass(frozen=True, slots=True)
class MoveChoice:
    """The options that decide which clients follow a move."""

    mode: str
    data: str
    dialects: tuple[str, ...]
    to_name: bool
    managed: bool = False

    @classmethod
    def of(cls, options: Mapping[str, Any], target: str) -> MoveChoice:
        """Take it from the options of ``redirect enable``."""
        dialects = tuple(options.get("dialects") or ())
        mode, data = options.get("mode") or MODES[0], options.get("data") or "copy"
        managed = bool(options.get("managed"))
        return cls(mode, data, dialects, target.startswith(CATALOGS), managed)


def show_clients(choices: Iterable[MoveChoice]) -> None:
    """Write to standard error what happens to each client that uses the old path.

    Standard output is for the result. Choices that are the same are shown once.
    """
    from lakeferry.api.table import effects

    page = render.new_page(sys.stderr)
    for choice in dict.fromkeys(choices):
        page.line(f"Clients that use the old path after this move (--mode {choice.mode}):")
        found = effects(
            choice.mode,
            data=choice.data,
            dialects=choice.dialects,
            to_name=choice.to_name,
            managed=choice.managed,
        )
        page.table(
            "",
            ("client", "reads", "writes"),
            ((each.name, each.reads.value, each.writes.value) for each in found),
        )
        page.line("How each client gets to the new place:")
        page.facts((each.name, each.follows) for each in found)


def show_writers(writers: Sequence[RecentWriter]) -> None:
    """Write to standard error who wrote the table lately, and what happens to each.

    A client that will read old rows is a warning.
    """
    if not writers:
        return
    page = render.new_page(sys.stderr)
    page.line("Clients that wrote the newest commits:")
    for each in writers:
        if each.reads_old_rows:
            page.line(f"warning: {each.message}", style="bold yellow")
        else:
            page.line(each.message)


def show_report(output: Output, report: Report) -> None:
    """Show the results of a list."""
    if output.json:
        output.document(report.as_document())
        return
    output.page().table(
        "",
        ("source", "target", "state", "what was done"),
        ((move.source, move.target, *_ended(move)) for move in report.moves),
    )


def _ended(move: MovedTable) -> tuple[str | None, str]:
    if move.outcome is None:
        error = move.error or {}
        return None, f"{error.get('code')}: {error.get('message')}"
    if not move.outcome.changed:
        return move.outcome.state.value, "nothing had to be changed"
    copied = render.counted(move.outcome.files_copied, "file")
    told = f"{copied} copied, {render.size(move.outcome.bytes_copied)}"
    if move.outcome.by_store_bytes:
        told += f", of which the store copied {render.size(move.outcome.by_store_bytes)}"
    return move.outcome.state.value, told
