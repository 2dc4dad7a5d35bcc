"""``feature``: lists a table's features and drops one."""

from __future__ import annotations

from collections.abc import Mapping

import click

from lakeferry import config
from lakeferry.api.plan_sentences import sentence
from lakeferry.cli import progress
from lakeferry.cli.options import (
    TABLE,
    Session,
    command,
    dry_run_option,
    engine_option,
    group,
    storage_option,
)
from lakeferry.cli.render import counted


@group(
    examples=(
        ("lakeferry feature list ./orders", "what clients must support"),
        ("lakeferry feature drop ./orders deletionVectors", "let older clients read the table"),
    )
)
def feature() -> None:
    """List the features of a table, and drop one without losing history."""


@command(examples=(("lakeferry feature list ./orders", "what clients must support"),))
@click.argument("table", type=TABLE)
@storage_option
def list_(session: Session, table: str, storage_options: Mapping[str, str]) -> None:
    """List the features that clients of TABLE must support."""
    settings = config.load(storage_options=storage_options)
    with progress.waiting(session.output, "reading the log"):
        found = session.table(table, settings).features()
    if session.output.json:
        session.output.document({"features": [each.as_document() for each in found]})
        return
    rows = [
        (each.name, each.kind, _yes(each.supported), _yes(each.droppable), each.how)
        for each in found
    ]
    columns = ("feature", "for", "supported", "droppable", "how")
    session.output.page().table("Features", columns, rows)


@command(
    examples=(
        ("lakeferry feature drop ./orders deletionVectors", "let older clients read the table"),
        ("lakeferry feature drop ./orders v2Checkpoint --dry-run", "what would be done"),
        (
            "lakeferry feature drop ./orders checkpointProtection --truncate-history",
            "once all protected history is a day old",
        ),
    )
)
@click.argument("table", type=TABLE)
@click.argument("feature")
@click.option(
    "--truncate-history",
    is_flag=True,
    help="Delete the history that uses the feature, once it is old enough, instead of "
    "protecting it.",
)
@engine_option
@dry_run_option
@storage_option
def drop(
    session: Session,
    table: str,
    feature: str,
    truncate_history: bool,
    engine: str | None,
    dry_run: bool,
    storage_options: Mapping[str, str],
) -> None:
    """Drop FEATURE from TABLE, and keep its history readable.

    Clients that don't support the feature can then read the newest version, and each older version
    whose features they support. If readers had to support the feature, the table gets the feature
    checkpointProtection: a writer that doesn't support it (delta-rs 1.6) can read the table, but
    can't write to it until history is truncated.
    """
    settings = config.load(storage_options=storage_options, engine=engine)
    with progress.watching(session.output) as observer:
        done = session.table(table, settings).drop_feature(
            feature,
            truncate_history=truncate_history,
            dry_run=dry_run,
            engine=settings.engine,
            observer=observer,
        )
    page = session.output.page
    if isinstance(done, list):
        if session.output.json:
            session.output.document({"dry_run": True, "plan": done})
            return
        for step in done:
            page().line(sentence(step))
        return
    if session.output.json:
        session.output.document(done.as_document())
        return
    page().line(f"dropped {feature} at version {done.version}")
    if done.boundary is not None:
        page().line(f"history before version {done.boundary} is protected, and readable as before")
        if done.checkpoints:
            page().line(f"{counted(len(done.checkpoints), 'barrier checkpoint')} in front of it")
            page().line("writers have to know checkpointProtection from now on")


def _yes(value: bool) -> str:
    return "yes" if value else "no"


list_.name = "list"
for each in (list_, drop):
    feature.add_command(each)
