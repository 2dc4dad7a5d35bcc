"""``verify``: compares two tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import click

from lakeferry import config
from lakeferry.cli import progress, render
from lakeferry.cli.options import TABLE, Session, command, engine_option, storage_option
from lakeferry.cli.output import encode_document
from lakeferry.errors import NotEqual

if TYPE_CHECKING:
    from lakeferry.api.verify import Verification
    from lakeferry.cli.render import Page

_SHOWN = 20


@command(
    examples=(
        ("lakeferry verify ./orders s3://backup/orders", "do both logs agree?"),
        ("lakeferry verify ./orders ./copy --digest", "are the bytes of all files the same?"),
        ("lakeferry verify ./orders ./copy --rows", "do all files have the same number of rows?"),
    )
)
@click.argument("a", type=TABLE)
@click.argument("b", type=TABLE)
@click.option("--digest", is_flag=True, help="Compare the bytes of the files of both (SHA-256).")
@click.option(
    "--rows", is_flag=True, help="Compare each file's number of rows, without deleted rows."
)
@engine_option
@storage_option
def verify(
    session: Session,
    a: str,
    b: str,
    digest: bool,
    rows: bool,
    engine: str | None,
    storage_options: Mapping[str, str],
) -> None:
    """Compare the newest versions of two tables, A and B.

    Tables are equal if they have the same schema, partition columns, properties and live files.
    Their places, histories and version numbers don't matter. If the tables differ, the exit code is
    1.
    """
    settings = config.load(storage_options=storage_options, engine=engine)
    first, second = session.table(a, settings), session.table(b, settings)
    with progress.watching(session.output) as observer:
        result = first.verify(
            second, digest=digest, rows=rows, engine=settings.engine, observer=observer
        )
    if session.output.json:
        session.output.document(result.as_document())
    else:
        _show(result, session.output.page())
    if not result.equal:
        raise NotEqual(
            f"the tables differ in {render.counted(result.difference_count, 'way')}",
            difference_count=result.difference_count,
        )


def _show(result: Verification, page: Page) -> None:
    if result.rows is not None:
        page.facts([(f"rows in {side}", count) for side, count in result.rows.items()])
    if result.equal:
        page.line("the tables are equal", style="green")
        return
    page.table(
        "",
        ("difference", "path", "a", "b"),
        (
            (each.kind, each.path, _value(each.a), _value(each.b))
            for each in result.differences[:_SHOWN]
        ),
    )
    if result.difference_count > _SHOWN:
        page.line(f"and {result.difference_count - _SHOWN:,} more")


def _value(value: object) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return encode_document(value).decode()
