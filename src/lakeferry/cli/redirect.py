"""``redirect``: moves a table, and brings it back."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping
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
    dry_run_option,
    engine_option,
    group,
    storage_option,
)
from lakeferry.cli.output import Output
from lakeferry.cli.redirect_list import enable_all
from lakeferry.cli.redirect_pages import (
    MODES,
    MoveChoice,
    show_clients,
    show_outcome,
    show_plan,
    show_status,
)
from lakeferry.config import Config
from lakeferry.errors import LakeferryError, RedirectTargetNotEmpty

if TYPE_CHECKING:
    from lakeferry.api.table import Outcome, Plan, Table

DATA = ("copy", "reference")
DIALECTS = ("rfc", "catalog", "delta-spark")
_NORMAL, _READY = "NORMAL", "READY"
_AGAIN = "run the same command again: it continues from here"


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


@group(
    examples=(
        ("lakeferry redirect enable s3://old/orders s3://new/orders", "move a table"),
        ("lakeferry redirect status s3://old/orders", "how far is it?"),
        ("lakeferry redirect resume s3://old/orders", "continue after an interruption"),
        ("lakeferry redirect disable s3://old/orders", "bring the table back"),
    )
)
def redirect() -> None:
    """Move a table, and redirect everyone who uses its old path.

    SOURCE is the table's old path, TARGET its new place: a path, or a name in a catalog. A command
    that was interrupted can be run again, and continues.
    """


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
    help=f"How the entry is written: {', '.join(DIALECTS)}; by default what most clients follow.",
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
    help="Make it a managed table of Unity Catalog: the catalog chooses the place and decides "
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
    help="Don't redirect sessions of APP; at SOURCE, they may commit these operations; may be "
    "repeated.",
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
    dry_run: bool,
    storage_options: Mapping[str, str],
    **options: Any,
) -> None:
    """Move the table at SOURCE to TARGET while it is used, and redirect SOURCE there.

    First shows what happens to each client that uses SOURCE. On a terminal it then asks whether to
    continue; --yes skips the question. Without a terminal, or with --json, it doesn't ask.
    """
    settings = config.load(storage_options=storage_options, engine=engine)
    if options["unverified"] and not options["to_existing"]:
        raise click.UsageError("--unverified needs --to-existing.")
    if from_file is not None:
        if source is not None:
            raise click.UsageError("--from-file replaces SOURCE and TARGET: leave those out.")
        enable_all(session, settings, from_file, options, parallel, dry_run=dry_run, yes=yes)
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

    def ask(table: Table) -> None:
        if session.output.json:
            return
        with progress.waiting(session.output, "reading the log"):
            is_new = _is_new(table)
        if not is_new:
            return
        show_clients([MoveChoice.of(options, target)])
        if not dry_run:
            confirm(session.output, f"Move {source} to {target}?", yes=yes)

    _change(session, source, settings, move, ask)


def _is_new(table: Table) -> bool:
    """Return True if the table has no redirect yet; the move itself reports errors."""
    with suppress(LakeferryError):
        return table.redirect_status().state.value == "NORMAL"
    return False


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
                output.after_interrupt = "nothing has begun; run the same command again"
            elif found.state.value == _READY:
                output.after_interrupt = (
                    f"the table had already moved; 'lakeferry redirect disable {quoted}' "
                    "brings it back"
                )
        raise


@command(
    examples=(
        ("lakeferry redirect resume s3://old/orders", "continue a move or a withdrawal"),
        ("lakeferry redirect resume s3://old/orders --dry-run", "what is left to do?"),
    )
)
@click.argument("source", type=TABLE)
@click.option(
    "--name",
    metavar="unity:CATALOG.SCHEMA.TABLE",
    help="Another name for a managed target, if its name was taken meanwhile.",
)
@engine_option
@dry_run_option
@storage_option
def resume(
    session: Session,
    source: str,
    name: str | None,
    engine: str | None,
    dry_run: bool,
    storage_options: Mapping[str, str],
) -> None:
    """Continue a move or a withdrawal of SOURCE that was interrupted."""
    settings = config.load(storage_options=storage_options, engine=engine)
    _change(
        session,
        source,
        settings,
        lambda table, work: table.redirect_resume(name=name, dry_run=dry_run, **work),
    )


@command(
    examples=(
        ("lakeferry redirect cancel s3://old/orders", "undo a move that isn't finished"),
        ("lakeferry redirect cancel s3://old/orders --dry-run", "what would be deleted?"),
    )
)
@click.argument("source", type=TABLE)
@click.option(
    "--leave-copies",
    is_flag=True,
    help="Undo the move without its target, if the target can't be reached; the copies stay there.",
)
@engine_option
@dry_run_option
@storage_option
def cancel(
    session: Session,
    source: str,
    leave_copies: bool,
    engine: str | None,
    dry_run: bool,
    storage_options: Mapping[str, str],
) -> None:
    """Undo a move of SOURCE whose target isn't open yet.

    Deletes what was copied to the target, and nothing else there.
    """
    settings = config.load(storage_options=storage_options, engine=engine)
    _change(
        session,
        source,
        settings,
        lambda table, work: table.redirect_cancel(
            leave_copies=leave_copies, dry_run=dry_run, **work
        ),
    )


@command(
    examples=(
        ("lakeferry redirect disable s3://old/orders", "bring the table back"),
        ("lakeferry redirect disable s3://old/orders --remove-target", "and delete the target"),
        ("lakeferry redirect disable ./clone --bring-back", "with what changed at the original"),
        ("lakeferry redirect disable ./orders --abandon-target", "the target is lost"),
    )
)
@click.argument("source", type=TABLE)
@click.option(
    "--bring-back",
    is_flag=True,
    help="Bring changes back also from a target that was there before the redirect.",
)
@click.option(
    "--remove-target", is_flag=True, help="Delete the target after all changes were brought back."
)
@click.option(
    "--data",
    type=click.Choice(DATA),
    default=None,
    help="Copy new data files back (the default), or leave them at the target, which must then "
    "stay.",
)
@click.option(
    "--abandon-target",
    is_flag=True,
    help="End the redirect without its target, which is gone, replaced or unreachable. What was "
    "written there since READY is lost.",
)
@yes_option
@engine_option
@dry_run_option
@storage_option
def disable(
    session: Session,
    source: str,
    bring_back: bool,
    remove_target: bool,
    data: str | None,
    abandon_target: bool,
    yes: bool,
    engine: str | None,
    dry_run: bool,
    storage_options: Mapping[str, str],
) -> None:
    """End the redirect of SOURCE, and bring all changes back to it."""
    settings = config.load(storage_options=storage_options, engine=engine)
    options: dict[str, Any] = {
        "bring_back": bring_back,
        "remove_target": remove_target,
        "data": data,
        "abandon_target": abandon_target,
    }
    if abandon_target and not dry_run and may_ask(session.output, yes=yes):
        # Making the plan checks the request, and warns of what is lost.
        table = session.table(source, settings, session.output.warn)
        with progress.waiting(session.output, "looking for the target"):
            plan = table.redirect_disable(dry_run=True, **options)
        if plan:
            confirm(session.output, f"End the redirect of {source} without its target?", yes=yes)
    _change(
        session,
        source,
        settings,
        lambda table, work: table.redirect_disable(dry_run=dry_run, **options, **work),
    )


@command(
    examples=(
        ("lakeferry redirect freeze ./orders", "nobody may write to it"),
        ("lakeferry redirect freeze ./orders --mode reader-writer", "only Lakeferry can read it"),
    )
)
@click.argument("table", type=TABLE)
@click.option(
    "--mode",
    type=click.Choice(MODES),
    default=MODES[1],
    show_default=True,
    help="Which clients without support for redirects are blocked: writers, or readers too.",
)
@dry_run_option
@storage_option
def freeze(
    session: Session, table: str, mode: str, dry_run: bool, storage_options: Mapping[str, str]
) -> None:
    """Make TABLE read-only."""
    settings = config.load(storage_options=storage_options)
    _change(session, table, settings, lambda found, _: found.freeze(mode=mode, dry_run=dry_run))


@command(examples=(("lakeferry redirect thaw ./orders", "everybody may write to it again"),))
@click.argument("table", type=TABLE)
@dry_run_option
@storage_option
def thaw(session: Session, table: str, dry_run: bool, storage_options: Mapping[str, str]) -> None:
    """Make TABLE writable again after a freeze."""
    settings = config.load(storage_options=storage_options)
    _change(session, table, settings, lambda found, _: found.thaw(dry_run=dry_run))


@command(
    examples=(
        ("lakeferry redirect status s3://old/orders", "does it lead elsewhere, and since when?"),
        ("lakeferry redirect status ./orders --json | jq -r .state", "for programs"),
    )
)
@click.argument("source", type=TABLE)
@storage_option
def status(session: Session, source: str, storage_options: Mapping[str, str]) -> None:
    """Show the state of SOURCE's redirect."""
    settings = config.load(storage_options=storage_options)
    with progress.waiting(session.output, "reading the log"):
        found = session.table(source, settings).redirect_status()
    show_status(session.output, found)


@command(
    examples=(
        ("lakeferry redirect resolve s3://old/orders", "where is the table now?"),
        ("lakeferry redirect resolve ./orders --app-name nightly", "for a session of that name"),
    )
)
@click.argument("table", type=TABLE)
@click.option(
    "--app-name",
    metavar="NAME",
    help="The application name of the session; no-redirect rules depend on it.",
)
@storage_option
def resolve(
    session: Session, table: str, app_name: str | None, storage_options: Mapping[str, str]
) -> None:
    """Follow redirects, and show where TABLE is."""
    from lakeferry.api.table import names

    settings = config.load(storage_options=storage_options)
    with progress.waiting(session.output, "following redirects"), names.name_in_errors(table):
        found = session.table(table, settings).resolve(app_name)
    if session.output.json:
        session.output.document(
            {
                "location": found.location,
                "redirected": found.redirected,
                "name": found.name,
                "chain": list(found.chain),
                "rule": found.rule.as_document() if found.rule else None,
            }
        )
        return
    facts = [("location", found.location), ("redirected", "yes" if found.redirected else "no")]
    if found.name is not None:
        facts.insert(0, ("name", found.name))
    if found.rule is not None:
        facts.append(("kept there by the rule", str(found.rule)))
    session.output.page().facts(facts)


def _change(
    session: Session,
    name: str,
    settings: Config,
    change: Callable[[Table, Mapping[str, Any]], Outcome | Plan],
    before: Callable[[Table], None] = lambda _: None,
) -> None:
    """Change a table's redirect and print the result.

    ``change`` gets the table, and the arguments of methods that move data; ``before`` may ask
    the user something.
    """
    warnings: list[str] = []

    def warn(text: str) -> None:
        warnings.append(text)
        session.output.warn(text)

    session.output.after_interrupt = _AGAIN
    table = session.table(name, settings, warn)
    before(table)
    with progress.watching(session.output) as observer:
        result = change(table, {"engine": settings.engine, "observer": observer})
    if isinstance(result, list):
        show_plan(session.output, result, warnings)
    else:
        show_outcome(session.output, result, warnings)


for each in (enable, resume, cancel, disable, status, resolve, freeze, thaw):
    redirect.add_command(each)
