"""``redirect``: moves a table, and brings it back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

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
    group,
    storage_option,
    verify_option,
)
from lakeferry.cli.redirect_change import change_redirect
from lakeferry.cli.redirect_enable import DATA, enable
from lakeferry.cli.redirect_list import list_all_redirects
from lakeferry.cli.redirect_pages import MODES, show_status


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
        ("lakeferry redirect resume s3://old/orders", "continue what was interrupted"),
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
@copy_rate_option
@verify_option
@dry_run_option
@storage_option
def resume(
    session: Session,
    source: str,
    name: str | None,
    engine: str | None,
    limit_rate: int | None,
    verify: str | None,
    dry_run: bool,
    storage_options: Mapping[str, str],
) -> None:
    """Continue an interrupted 'redirect enable' or 'redirect disable' of SOURCE."""
    settings = config.load(storage_options=storage_options, engine=engine)
    change_redirect(
        session,
        source,
        settings,
        lambda table, work: table.redirect_resume(
            name=name, verify=verify, dry_run=dry_run, **work
        ),
        limit_rate=limit_rate,
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
    """Undo an unfinished move of SOURCE: one whose target can't be used yet.

    Deletes the files that the move copied to the target, and nothing else there.
    """
    settings = config.load(storage_options=storage_options, engine=engine)
    change_redirect(
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
    help="Also bring back changes from a target that existed before the redirect.",
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
@copy_rate_option
@verify_option
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
    limit_rate: int | None,
    verify: str | None,
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
        "verify": verify,
    }
    if abandon_target and not dry_run and may_ask(session.output, yes=yes):
        # Making the plan checks the request, and warns of what is lost.
        table = session.table(source, settings, session.output.warn)
        with progress.waiting(session.output, "looking for the target"):
            plan = table.redirect_disable(dry_run=True, **options)
        if plan:
            confirm(session.output, f"End the redirect of {source} without its target?", yes=yes)
    change_redirect(
        session,
        source,
        settings,
        lambda table, work: table.redirect_disable(dry_run=dry_run, **options, **work),
        limit_rate=limit_rate,
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
    change_redirect(
        session, table, settings, lambda found, _: found.freeze(mode=mode, dry_run=dry_run)
    )


@command(examples=(("lakeferry redirect thaw ./orders", "everybody may write to it again"),))
@click.argument("table", type=TABLE)
@dry_run_option
@storage_option
def thaw(session: Session, table: str, dry_run: bool, storage_options: Mapping[str, str]) -> None:
    """Make TABLE writable again after a freeze."""
    settings = config.load(storage_options=storage_options)
    change_redirect(session, table, settings, lambda found, _: found.thaw(dry_run=dry_run))


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


@command(
    examples=(
        ("lakeferry redirect list s3://lake", "every table below a prefix"),
        ("lakeferry redirect list unity:sales", "the tables of a catalog"),
        ("lakeferry redirect list ./lake --json | jq -r '.redirects[].source'", "for programs"),
    )
)
@click.argument("where", type=TABLE, metavar="PREFIX|CATALOG")
@click.option(
    "--parallel",
    type=WholeNumber(1),
    default=None,
    metavar="N",
    help="How many folders and tables to look at at once; 16 by default.",
)
@storage_option
def list_(
    session: Session, where: str, parallel: int | None, storage_options: Mapping[str, str]
) -> None:
    """List the redirects of all tables below PREFIX, or in CATALOG.

    PREFIX is a folder or a place in a store; CATALOG is sql: or unity:, with the beginning of the
    names. The files of tables aren't listed. Frozen tables, and those with an unfinished move, are
    in the list, too.
    """
    list_all_redirects(session, config.load(storage_options=storage_options), where, parallel)


list_.name = "list"
for each in (enable, resume, cancel, disable, status, resolve, list_, freeze, thaw):
    redirect.add_command(each)
