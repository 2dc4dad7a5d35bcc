"""``gc``: deletes objects below a server's root that no dataset needs."""

from __future__ import annotations

from collections.abc import Mapping

import click

from lakeferry import config
from lakeferry.api.plan_sentences import sentence
from lakeferry.cli import progress
from lakeferry.cli.options import (
    Duration,
    Session,
    command,
    dry_run_option,
    engine_option,
    storage_option,
)
from lakeferry.cli.render import counted, size

DEFAULT_GRACE = "24h"


@command(
    examples=(
        ("lakeferry gc ./server --dry-run", "what would be deleted"),
        ("lakeferry gc s3://lake/server", "older than a day"),
        ("lakeferry gc s3://lake/server --unfinished-only", "quick: what pushes have left"),
        ("lakeferry gc ./server --grace 7d --engine local", "keep more, without Spark"),
    )
)
@click.argument("root")
@click.option(
    "--grace",
    type=Duration(),
    default=DEFAULT_GRACE,
    show_default=True,
    metavar="D",
    help="How old a file has to be before it is deleted.",
)
@click.option(
    "--unfinished-only",
    is_flag=True,
    help="Delete only what unfinished pushes have left; don't list all objects.",
)
@dry_run_option
@engine_option
@storage_option
def gc(
    session: Session,
    root: str,
    grace: int,
    unfinished_only: bool,
    dry_run: bool,
    engine: str | None,
    storage_options: Mapping[str, str],
) -> None:
    """Delete objects below ROOT that no dataset needs, and what unfinished pushes have left.

    The server may keep running: what a running push needs stays, whatever its age.
    """
    from lakeferry.api import server_root

    settings = config.load(storage_options=storage_options, engine=engine)
    with progress.watching(session.output) as observer:
        done = server_root.gc(
            root,
            storage_options=settings.storage_options(root),
            grace=f"{grace} milliseconds",
            unfinished_only=unfinished_only,
            dry_run=dry_run,
            engine=settings.engine,
            observer=observer,
            warn=session.output.warn,
        )
    if isinstance(done, list):
        if session.output.json:
            session.output.document({"dry_run": True, "plan": done})
            return
        page, total = session.output.page(), size(sum(step["bytes"] for step in done))
        for step in done:
            page.line(sentence(step))
        if done:
            page.line(f"would delete {counted(len(done), 'object')} of {total}")
        else:
            page.line("nothing would be deleted")
    elif session.output.json:
        session.output.document(done.as_document())
    elif not done.deleted:
        session.output.page().line("nothing had to be deleted")
    else:
        session.output.page().line(
            f"deleted {counted(len(done.deleted), 'object')} of {size(done.bytes)}"
        )
