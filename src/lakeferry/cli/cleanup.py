"""``cleanup``: deletes expired log files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

from lakeferry import config
from lakeferry.cli import progress
from lakeferry.cli.options import (
    TABLE,
    Duration,
    Session,
    WholeNumber,
    command,
    dry_run_option,
    storage_option,
)
from lakeferry.cli.render import counted


@command(
    examples=(
        ("lakeferry cleanup ./orders --dry-run", "what would be deleted, what stays and why"),
        ("lakeferry cleanup s3://warehouse/orders", "older than the table's own retention"),
        ("lakeferry cleanup ./orders --retention 60d", "keep more"),
        ("lakeferry cleanup ./orders --before 400", "version 400 becomes the oldest"),
    )
)
@click.argument("table", type=TABLE)
@click.option(
    "--retention",
    type=Duration(),
    default=None,
    help="How long history stays readable, such as 30d; by default the table's own retention.",
)
@click.option(
    "--before",
    type=WholeNumber(0),
    default=None,
    metavar="N",
    help="The oldest version to keep.",
)
@click.option("--force", is_flag=True, help="Allow a retention shorter than the table's own.")
@dry_run_option
@storage_option
def cleanup(
    session: Session,
    table: str,
    retention: int | None,
    before: int | None,
    force: bool,
    dry_run: bool,
    storage_options: Mapping[str, str],
) -> None:
    """Delete expired log files of TABLE. Every version within the retention stays readable.

    Checkpoints that protect dropped features stay until all history before them is deleted. If the
    oldest version that stays needs a checkpoint, it is written first.
    """
    from lakeferry.api.table import Foreseen

    settings = config.load(storage_options=storage_options)
    with progress.watching(session.output) as observer:
        done = session.table(table, settings).cleanup(
            retention=None if retention is None else f"{retention} milliseconds",
            before=before,
            force=force,
            dry_run=dry_run,
            observer=observer,
        )
    page = session.output.page
    if isinstance(done, Foreseen):
        if session.output.json:
            session.output.document({"dry_run": True, "plan": done.as_steps()})
            return
        if done.create is not None:
            page().line(f"would write a checkpoint of version {done.create}")
        gone = sum(map(len, done.waves))
        page().line(f"would delete {counted(gone, 'file')}" if gone else "nothing would be deleted")
        _show_kept(session, [each.as_document() for each in done.kept])
        return
    if session.output.json:
        session.output.document(done.as_document())
        return
    for name in done.created:
        page().line(f"wrote {name}")
    gone = len(done.deleted)
    page().line(f"deleted {counted(gone, 'file')}" if gone else "nothing had to be deleted")
    _show_kept(session, [each.as_document() for each in done.kept])


def _show_kept(session: Session, kept: Sequence[Mapping[str, Any]]) -> None:
    rows = [(each["from"], each["to"], each["reason"]) for each in kept]
    session.output.page().table("Versions that stay", ("from", "to", "because"), rows)
