"""Changes a table's redirect for a command, and prints the result."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from lakeferry.cli import progress
from lakeferry.cli.options import Session
from lakeferry.cli.redirect_pages import show_outcome, show_plan
from lakeferry.config import Config

if TYPE_CHECKING:
    from lakeferry.api.table import Outcome, Plan, Table

_AGAIN = "run the same command again: it continues from here"


def change_redirect(
    session: Session,
    name: str,
    settings: Config,
    change: Callable[[Table, Mapping[str, Any]], Outcome | Plan],
    before: Callable[[Table], Mapping[str, Any]] = lambda _: {},
    limit_rate: int | None = None,
) -> None:
    """Change a table's redirect and print the result.

    ``change`` gets the table, and the arguments of methods that move data; ``before`` may ask
    the user something, and returns more fields of the document.
    """
    work: dict[str, Any] = {"engine": settings.engine}
    if limit_rate is not None:
        work["limit_rate"] = limit_rate
    warnings: list[str] = []

    def warn(text: str) -> None:
        warnings.append(text)
        session.output.warn(text)

    session.output.after_interrupt = _AGAIN
    table = session.table(name, settings, warn)
    fields = before(table)
    with progress.watching(session.output) as observer:
        result = change(table, work | {"observer": observer})
    if isinstance(result, list):
        show_plan(session.output, result, warnings, fields)
    else:
        show_outcome(session.output, result, warnings, fields)
