"""``publish``: publishes the commits that the catalog of a managed table has accepted."""

from __future__ import annotations

from collections.abc import Mapping

import click

from lakeferry import config
from lakeferry.cli import progress
from lakeferry.cli.options import TABLE, Session, command, storage_option


@command(
    examples=(
        ("lakeferry publish unity:main.sales.orders", "what the catalog has accepted"),
        ("lakeferry publish unity:main.sales.orders --json | jq .losers", "files to delete"),
    )
)
@click.argument("table", type=TABLE)
@storage_option
def publish(session: Session, table: str, storage_options: Mapping[str, str]) -> None:
    """Publish the accepted commits of TABLE, the name of a managed table.

    A commit to a managed table is first a staged file that the catalog accepts. Publishing copies
    it to the table's log; every writer does this after its own commits. This command publishes
    the commits that no writer has published. It also lists staged files that the catalog didn't
    accept, because another commit got their version, if they are older than the log's retention.
    """
    settings = config.load(storage_options=storage_options)
    with progress.waiting(session.output, "publishing commits"):
        done = session.table(table, settings).publish()
    if session.output.json:
        session.output.document(done.as_document())
        return
    page = session.output.page()
    if not done.published:
        page.line(f"all commits up to version {done.latest_version} are published already")
    elif len(done.published) == 1:
        page.line(f"published version {done.published[0]}")
    else:
        page.line(f"published versions {done.published[0]} to {done.published[-1]}")
    if done.losers:
        page.line("these staged files were not accepted and may be deleted:")
        for name in done.losers:
            page.line(name, indent=2)
