"""``redirect enable``: moves a table, or every table of a list."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from lakeferry import config
from lakeferry.cli import progress
from lakeferry.cli.confirmation import confirm, may_ask, yes_option
from lakeferry.cli.options import (
    TABLE,
    Session,
    WholeNumber,
    command,
    copy_rate_option,
    dry_run_option,
    engine_option,
    storage_option,
    verify_option,
)
from lakeferry.cli.output import Output
from lakeferry.cli.redirect_change import change_redirect
from lakeferry.cli.redirect_list import enable_all
from lakeferry.cli.redirect_pages import MODES, MoveChoice, show_clients, show_writers
from lakeferry.errors import LakeferryError, RedirectTargetNotEmpty

if TYPE_CHECKING:
    from lakeferry.api.table import Outcome, Plan, RecentWriter, Table

DATA = ("copy", "reference")
DIALECTS = ("rfc", "catalog", "delta-spark")
_NORMAL, _READY = "NORMAL", "READY"


class DialectsType(click.ParamType[tuple[str, ...]]):
    """Dialects, separated by commas."""

    name = "dialect"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, ...]:
        """Return the dialects, each of them known."""
        if isinstance(value, tuple):
            return value
        found = tuple(each.strip() for each in str(value).split(","))
        for each in found:
            if each not in DIALECTS:
                self.fail(f"{each!r} isn't one of {', '.join(DIALECTS)}.", param, ctx)
        return found

    def shell_complete(
        self,
        ctx: click.Context,  # noqa: ARG002
        param: click.Parameter,  # noqa: ARG002
        incomplete: str,
    ) -> list[CompletionItem]:
        """Offer the dialects, after the last comma."""
        before, comma, begun = incomplete.rpartition(",")
        return [
            CompletionItem(before + comma + each) for each in DIALECTS if each.startswith(begun)
        ]


@command(
    examples=(
        ("lakeferry redirect enable s3://old/orders s3://new/orders", "copy and redirect"),
        (
            "lakeferry redirect enable ./orders s3://new/orders --mode writer-only",
            "readers may still use the old place",
        ),
        (
            "lakeferry redirect enable ./orders sql:sales.eu.orders --location s3://new/orders",
            "to a name in a catalog",
        ),
        (
            "lakeferry redirect enable ./orders unity:sales.eu.orders --managed",
            "to a managed table",
        ),
        ("lakeferry redirect enable ./orders ./new --dry-run", "what would be done?"),
        ("lakeferry redirect enable --from-file moves.csv --parallel 8", "many tables"),
    )
)
@click.argument("source", type=TABLE, required=False)
@click.argument("target", type=TABLE, required=False)
@click.option(
    "--mode",
    type=click.Choice(MODES),
    default=MODES[0],
    show_default=True,
    help="Which clients without support for redirects are blocked at SOURCE: all, or only writers.",
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
    help="The format of the redirect in SOURCE's table properties: "
    f"{', '.join(DIALECTS)}; by default the one that most clients support.",
)
@click.option(
    "--to-existing", is_flag=True, help="TARGET already has a copy of the table; copy nothing."
)
@click.option(
    "--unverified", is_flag=True, help="With --to-existing: don't compare the two tables first."
)
@click.option(
    "--location",
    type=TABLE,
    metavar="URI",
    help="Where the files go if TARGET is a new name in a catalog.",
)
@click.option(
    "--managed",
    is_flag=True,
    help="Make TARGET a managed table of Unity Catalog: the catalog chooses the place and decides "
    "about commits. TARGET is a new name unity:catalog.schema.table.",
)
@click.option(
    "--replace-closed-target",
    is_flag=True,
    help="First delete the closed table that an earlier redirect of SOURCE left at TARGET.",
)
@click.option(
    "--rule",
    "rules",
    multiple=True,
    metavar="APP:OP,OP",
    help="Sessions of the application APP keep using SOURCE. There they may commit only the "
    "operations OP; may be repeated.",
)
@click.option(
    "--from-file",
    type=click.Path(exists=True, dir_okay=False),
    metavar="MOVES.csv",
    help="Move every table of a list. Its columns are source, target and any of these options.",
)
@click.option(
    "--parallel",
    type=WholeNumber(1),
    metavar="N",
    help="With --from-file: how many tables to move at a time (4).",
)
@yes_option
@engine_option
@copy_rate_option
@verify_option
@dry_run_option
@storage_option
def enable(
    session: Session,
    source: str | None,
    target: str | None,
    from_file: str | None,
    parallel: int | None,
    yes: bool,
    engine: str | None,
    limit_rate: int | None,
    verify: str | None,
    dry_run: bool,
    storage_options: Mapping[str, str],
    **options: Any,
) -> None:
    """Move the table at SOURCE to TARGET while it is used, and redirect SOURCE there.

    First shows what happens to each client that uses SOURCE. On a terminal it then asks whether to
    continue; --yes skips the question. Without a terminal, or with --json, it doesn't ask.
    """
    settings = config.load(storage_options=storage_options, engine=engine)
    if verify is not None:
        options["verify"] = verify
    if options["unverified"] and not options["to_existing"]:
        raise click.UsageError("--unverified needs --to-existing.")
    if from_file is not None:
        if source is not None:
            raise click.UsageError("--from-file replaces SOURCE and TARGET: leave those out.")
        enable_all(
            session,
            settings,
            from_file,
            options,
            parallel,
            limit_rate=limit_rate,
            dry_run=dry_run,
            yes=yes,
        )
        return
    if source is None or target is None:
        missing = "SOURCE" if source is None else "TARGET"
        raise click.UsageError(f"Missing argument '{missing}'.")
    if parallel is not None:
        raise click.UsageError("--parallel needs --from-file.")

    def move(table: Table, work: Mapping[str, Any]) -> Outcome | Plan:
        with _going_on(session.output, table, source):
            try:
                return table.redirect(target, dry_run=dry_run, **work, **options)
            except RedirectTargetNotEmpty as refused:
                if not (refused.fields.get("closed") and may_ask(session.output, yes=yes)):
                    raise
            confirm(session.output, f"Delete the closed table at {target} first?", yes=yes)
            replacing = {**options, "replace_closed_target": True}
            return table.redirect(target, dry_run=dry_run, **work, **replacing)

    def ask(table: Table) -> Mapping[str, Any]:
        with progress.waiting(session.output, "reading the log"):
            writers = _recent_writers(table, target, options)
        if writers is not None and not session.output.json:
            show_clients([MoveChoice.of(options, target)])
            show_writers(writers)
            if not dry_run:
                confirm(session.output, f"Move {source} to {target}?", yes=yes)
        return {"writers": [each.as_document() for each in writers or ()]}

    change_redirect(session, source, settings, move, ask, limit_rate=limit_rate)


def _recent_writers(
    table: Table, target: str, options: Mapping[str, Any]
) -> tuple[RecentWriter, ...] | None:
    """Return who wrote lately; ``None`` if the table has a redirect.

    Also if that can't be read: the move itself reports errors.
    """
    with suppress(LakeferryError):
        return table.recent_writers(target, mode=options["mode"], dialects=options["dialects"])
    return None


@contextmanager
def _going_on(output: Output, table: Table, source: str) -> Iterator[None]:
    """Tell a user who interrupts a move how to resume it, and how to undo it."""
    quoted = shlex.quote(source)
    output.after_interrupt = (
        f"'lakeferry redirect resume {quoted}' continues the move, "
        f"'lakeferry redirect cancel {quoted}' undoes it"
    )
    try:
        yield
    except KeyboardInterrupt:
        with suppress(LakeferryError):
            found = table.redirect_status()
            if found.state.value == _NORMAL and found.unfinished is None:
                output.after_interrupt = "nothing was started; run the same command again"
            elif found.state.value == _READY:
                output.after_interrupt = (
                    f"the table had already moved; 'lakeferry redirect disable {quoted}' "
                    "brings it back"
                )
        raise
