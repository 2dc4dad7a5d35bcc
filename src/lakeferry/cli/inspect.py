"""``inspect`` and ``history``: describe a table and its commits."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from lakeferry import config
from lakeferry.cli import progress, render
from lakeferry.cli.options import (
    TABLE,
    Session,
    WholeNumber,
    command,
    no_follow_option,
    storage_option,
    version_option,
)

if TYPE_CHECKING:
    from lakeferry.api.inspection import Inspection
    from lakeferry.cli.render import Page


@command(
    examples=(
        ("lakeferry inspect ./orders", "a table on local disk"),
        ("lakeferry inspect s3://warehouse/orders --version 12", "as it was at version 12"),
        ("lakeferry inspect ./orders --json | jq .warnings", "only the warnings"),
    )
)
@click.argument("table", type=TABLE)
@version_option
@storage_option
def inspect(
    session: Session, table: str, version: int | None, storage_options: Mapping[str, str]
) -> None:
    """Describe TABLE: its protocol, properties, files, checkpoints, and problems with them.

    Tables with features that Lakeferry doesn't know are shown too, with a warning. Redirects aren't
    followed.
    """
    settings = config.load(storage_options=storage_options)
    with progress.waiting(session.output, "reading the log"):
        found = session.table(table, settings).inspect(version)
    if session.output.json:
        session.output.document(found.as_document())
    else:
        _show(found, session.output.page())


def _show(found: Inspection, page: Page) -> None:
    from lakeferry.api import table_facts

    page.facts(table_facts.inspection_facts(found))
    columns = table_facts.column_rows(found.metadata.schema_string)
    page.table("Columns", table_facts.COLUMN_NAMES, columns)
    properties = sorted(found.metadata.configuration.items())
    page.table("Properties", table_facts.PROPERTY_NAMES, properties)
    for warning in found.warnings:
        page.line(f"warning: {warning.code}: {warning.message}", style="yellow")


@command(
    examples=(
        ("lakeferry history ./orders", "every commit that is still in the log"),
        ("lakeferry history ./orders --limit 5", "the newest five"),
        ("lakeferry history ./orders --json | jq '.commits[0]'", "all that is known of the newest"),
    )
)
@click.argument("table", type=TABLE)
@click.option("--limit", type=WholeNumber(1), metavar="N", help="Show at most N commits.")
@no_follow_option
@storage_option
def history(
    session: Session,
    table: str,
    limit: int | None,
    no_follow: bool,
    storage_options: Mapping[str, str],
) -> None:
    """List the commits of TABLE that are still in its log, newest first."""
    settings = config.load(storage_options=storage_options)
    with progress.waiting(session.output, "reading the log"):
        opened = session.table(table, settings)
        commits = opened.history(limit, follow=not no_follow)
        followed = opened.followed
        if followed is not None and opened.followed_name is not None:
            followed = f"{opened.followed_name} at {followed}"
    if session.output.json:
        session.output.document({"commits": [commit.as_document() for commit in commits]})
        return
    page = session.output.page()
    if followed is not None:
        session.output.note(f"{opened.shown_name} is redirected: this is the history of {followed}")
    columns = ["version", "time", "operation", "user", "engine", "parameters"]
    rows = [
        [
            commit.version,
            render.moment(commit.timestamp),
            commit.operation,
            commit.user_name or commit.user_id,
            commit.engine_info,
            _parameters(commit.operation_parameters),
        ]
        for commit in commits
    ]
    if page.is_screen and not any(row[_USER] for row in rows):
        del columns[_USER]
        rows = [row[:_USER] + row[_USER + 1 :] for row in rows]
    page.table("", columns, rows)


_USER = 3
"""The column of a history that few tables have."""


def _parameters(parameters: Any) -> str | None:
    if not isinstance(parameters, dict):
        return None if parameters is None else str(parameters)
    return ", ".join(f"{name}={_spaced(value)}" for name, value in parameters.items()) or None


def _spaced(value: Any) -> str:
    """Return a parameter's value; one in JSON with spaces in it, between which lines can break."""
    try:
        found = json.loads(value) if isinstance(value, str) and value[:1] in ("[", "{") else value
    except (RecursionError, ValueError):
        found = value
    return json.dumps(found, ensure_ascii=False) if isinstance(found, list | dict) else str(found)
