"""``export``: publishes a table's log with absolute paths."""

from __future__ import annotations

from collections.abc import Mapping

import click

from lakeferry import config
from lakeferry.api.plan_sentences import sentence, travel
from lakeferry.cli import progress
from lakeferry.cli.options import (
    CATALOG_NAME,
    TABLE,
    Session,
    WholeNumber,
    command,
    copy_rate_option,
    dry_run_option,
    engine_option,
    no_follow_option,
    storage_option,
    verify_option,
)
from lakeferry.cli.render import counted, size


@command(
    examples=(
        ("lakeferry export lakefs://sales/main/orders", "into the repository's storage namespace"),
        ("lakeferry export lakefs://sales/v1.0/orders --keep 3", "a tag; delete older exports"),
        ("lakeferry export s3://warehouse/orders --to s3://partners/orders", "any table"),
        (
            "lakeferry export lakefs://sales/main@/orders --register sql:pub.eu.orders",
            "with a name",
        ),
    )
)
@click.argument("source", type=TABLE)
@click.option("--to", type=TABLE, default=None, metavar="URI", help="Where the log is written to.")
@click.option(
    "--table",
    default=None,
    metavar="NAME",
    help="The name of the export; by default SOURCE's last folder.",
)
@click.option(
    "--keep",
    type=WholeNumber(1),
    default=None,
    metavar="N",
    help="How many exports of this ref and table to keep, including this one.",
)
@click.option(
    "--register",
    type=CATALOG_NAME,
    default=None,
    metavar="NAME",
    help="Register this name for the export in a catalog.",
)
@no_follow_option
@engine_option
@copy_rate_option
@verify_option
@dry_run_option
@storage_option
def export(
    session: Session,
    source: str,
    to: str | None,
    table: str | None,
    keep: int | None,
    register: str | None,
    no_follow: bool,
    engine: str | None,
    limit_rate: int | None,
    verify: str | None,
    dry_run: bool,
    storage_options: Mapping[str, str],
) -> None:
    """Publish SOURCE's log with the absolute URIs of its files. No data is copied.

    A table in lakeFS (lakefs://repository/ref/path) is exported to the repository's storage
    namespace, any other table to the place that --to names. Readers also need access to the data
    files. Spark can read an export. Polars, DuckDB and Arrow can't follow absolute paths: use
    lakeferry.open in Python.
    """
    settings = config.load(storage_options=storage_options, engine=engine)
    with progress.watching(session.output) as observer:
        done = session.table(source, settings).export(
            to,
            table=table,
            keep=keep,
            register=register,
            follow=not no_follow,
            dry_run=dry_run,
            engine=settings.engine,
            observer=observer,
            limit_rate=limit_rate,
            verify=verify or "store",
        )
    page = session.output.page
    if isinstance(done, list):
        if session.output.json:
            session.output.document({"dry_run": True, "plan": done})
            return
        for step in done:
            page().line(sentence(step))
            for line in travel(step):
                page().line(line, indent=2)
        if not done:
            page().line("nothing would be changed")
        return
    if session.output.json:
        session.output.document(done.as_document())
        return
    if not done.changed:
        page().line(f"version {done.version} is at {done.location} already")
        return
    went_on = f", continuing from version {done.incremental_from}"
    by_store = f", of which the store copied {size(done.by_store_bytes)}"
    page().line(
        f"exported version {done.version} to {done.location}: "
        f"{counted(done.files_written, 'file')} written, {size(done.bytes_copied)}"
        f"{by_store if done.by_store_bytes else ''}"
        f"{went_on if done.incremental_from is not None else ''}"
    )
    if done.actions_skipped:
        page().line(f"{counted(done.actions_skipped, 'change file')} left out: deleted by VACUUM")
