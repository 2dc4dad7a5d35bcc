"""``plan``: says what a change of a table means for its clients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import click

from lakeferry import config
from lakeferry.api.plan_sentences import sentence
from lakeferry.cli import progress
from lakeferry.cli.options import CATALOGS, TABLE, Session, command, storage_option
from lakeferry.cli.redirect_enable import DATA, DIALECTS, DialectsType
from lakeferry.cli.redirect_pages import MODES

if TYPE_CHECKING:
    from lakeferry.api.change_plan import ClientEffects, TablePlan
    from lakeferry.cli.render import Page

_WISHES = ("move", "protect", "share", "drop")
_COLUMNS = ("client", "version", "before", "during", "after", "source")


@command(
    examples=(
        ("lakeferry plan ./orders move --mode writer-only", "who follows, who is blocked?"),
        ("lakeferry plan ./orders move --managed", "to a managed table of Unity Catalog"),
        ("lakeferry plan ./orders drop deletionVectors", "who can read it then?"),
        ("lakeferry plan ./orders protect", "who can't write any more?"),
    )
)
@click.argument("table", type=TABLE)
@click.argument("wish", type=click.Choice(_WISHES))
@click.argument("feature", required=False)
@click.option("--mode", type=click.Choice(MODES), help=f"Of a move; by default {MODES[0]}.")
@click.option("--data", type=click.Choice(DATA), help=f"Of a move; by default {DATA[0]}.")
@click.option(
    "--dialect",
    "dialects",
    type=DialectsType(),
    metavar="DIALECT[,DIALECT]",
    help=f"Of a move, the format of the redirect: {', '.join(DIALECTS)}.",
)
@click.option("--to", type=TABLE, metavar="TARGET", help="Of a move: a place, or a catalog's name.")
@click.option("--managed", is_flag=True, help="Of a move: to a managed table of Unity Catalog.")
@click.option(
    "--truncate-history", is_flag=True, help="Of a drop: history is deleted, and not protected."
)
@storage_option
def plan(
    session: Session,
    table: str,
    wish: str,
    feature: str | None,
    mode: str | None,
    data: str | None,
    dialects: tuple[str, ...] | None,
    to: str | None,
    managed: bool,
    truncate_history: bool,
    storage_options: Mapping[str, str],
) -> None:
    """Show what each client of TABLE can do before, during and after a change.

    The change is move, protect, share, or drop FEATURE. The clients that wrote the newest 100
    commits are listed first, then all clients that Lakeferry knows. Nothing is changed. Each
    line names its source: a test, or a document with its version.
    """
    if (feature is not None) is not (wish == "drop"):
        raise click.UsageError(
            "drop needs the name of a FEATURE." if wish == "drop" else f"{wish} takes no FEATURE."
        )
    of_move = any(each is not None for each in (mode, data, dialects, to)) or managed
    if of_move and wish != "move":
        raise click.UsageError("--mode, --data, --dialect, --to and --managed are for move.")
    if truncate_history and wish != "drop":
        raise click.UsageError("--truncate-history is for drop.")
    settings = config.load(storage_options=storage_options)
    with progress.waiting(session.output, "reading the log"):
        found = session.table(table, settings).plan_for(
            wish,
            feature,
            mode=mode or MODES[0],
            data=data or DATA[0],
            dialects=dialects or (),
            to_name=to is not None and to.startswith(CATALOGS),
            managed=managed,
            truncate_history=truncate_history,
        )
    if session.output.json:
        session.output.document(found.as_document())
        return
    _show(found, session.output.page())


def _show(found: TablePlan, page: Page) -> None:
    for step in found.steps:
        page.line(sentence(step))
    wrote = [each for each in found.clients if each.commits is not None]
    known = [each for each in found.clients if each.commits is None]
    page.line(f"Clients that wrote versions {found.since} to {found.version}:")
    page.table("", _COLUMNS, map(_row, wrote))
    page.line("Known clients:")
    page.table("", _COLUMNS, map(_row, known))
    broken = [each for each in wrote if each.breaks]
    for each in broken:
        page.line(f"warning: {each.name} {_verdict(each)}", style="bold yellow")


def _verdict(client: ClientEffects) -> str:
    return f"wrote {client.commits} of these commits; afterwards: {client.after}"


def _row(client: ClientEffects) -> tuple[str | None, ...]:
    return (
        client.name,
        client.version,
        client.before,
        client.during,
        client.after,
        client.source,
    )
