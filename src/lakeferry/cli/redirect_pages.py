"""What the commands of ``redirect`` show: outcomes, plans, states, and what became of a list."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lakeferry.cli import render
from lakeferry.cli.output import Output

if TYPE_CHECKING:
    from lakeferry.api import Outcome, Plan, Status
    from lakeferry.many_moves import Moved, Report


def show_outcome(output: Output, outcome: Outcome, warnings: Sequence[str]) -> None:
    """Show what a procedure led to."""
    if output.json:
        output.document({**outcome.as_document(), "warnings": list(warnings)})
        return
    facts: list[tuple[str, render.Cell]] = [
        ("source", outcome.source),
        ("state", outcome.state.value),
        ("target", outcome.target),
        ("version", outcome.version),
    ]
    if outcome.files_copied:
        copied = render.counted(outcome.files_copied, "file")
        facts.append(("copied", f"{copied}, {render.size(outcome.bytes_copied)}"))
    if outcome.blocked_ms is not None:
        facts.append(("writers waited", f"{outcome.blocked_ms} ms"))
    page = output.page()
    page.facts(facts)
    if not outcome.changed:
        page.line("nothing had to be changed")


def show_plan(output: Output, plan: Plan, warnings: Sequence[str]) -> None:
    """Show what would be done."""
    if output.json:
        output.document({"dry_run": True, "plan": plan, "warnings": list(warnings)})
    elif not plan:
        output.page().line("nothing would be changed")
    else:
        output.page().table("", ("step", "of", "details"), map(_step, plan))


def _step(step: Mapping[str, Any]) -> tuple[str, str, str | None]:
    where = str(step.get("table") or step.get("to") or step.get("b") or step.get("source"))
    shown = ("op", "table", "to", "b", "source", "steps")
    rest = {key: value for key, value in step.items() if key not in shown and value is not None}
    return str(step["op"]), where, ", ".join(f"{key} {rest[key]}" for key in rest) or None


def show_status(output: Output, found: Status) -> None:
    """Show the state of a redirect."""
    if output.json:
        output.document(found.as_document())
        return
    facts: list[tuple[str, render.Cell]] = [("state", found.state.value)]
    if found.mode is not None:
        facts += [
            ("mode", found.mode),
            ("dialect", ", ".join(found.dialect)),
            ("type", found.type),
            ("target", found.target),
        ]
    facts.append(("version of the source", found.source_version))
    if found.target_version is not None:
        facts.append(("version of the target", found.target_version))
    page = output.page()
    page.facts(facts)
    page.table(
        "Rules",
        ("application", "may commit at the source"),
        ((rule.app_name or "everybody", ", ".join(rule.operations)) for rule in found.rules),
    )
    for warning in found.warnings:
        page.line(f"warning: {warning}", style="yellow")


def show_report(output: Output, report: Report) -> None:
    """Show what became of a list."""
    if output.json:
        output.document(report.as_document())
        return
    output.page().table(
        "",
        ("source", "target", "state", "what was done"),
        ((move.source, move.target, *_ended(move)) for move in report.moves),
    )


def _ended(move: Moved) -> tuple[str | None, str]:
    if move.outcome is None:
        error = move.error or {}
        return None, f"{error.get('code')}: {error.get('message')}"
    if not move.outcome.changed:
        return move.outcome.state.value, "nothing had to be changed"
    copied = render.counted(move.outcome.files_copied, "file")
    return move.outcome.state.value, f"{copied} copied, {render.size(move.outcome.bytes_copied)}"
