"""``ls``: lists the datasets of a server."""

from __future__ import annotations

from collections.abc import Mapping

import click

from lakeferry.cli import progress
from lakeferry.cli.dataset_options import PLACE, place_options, token_option
from lakeferry.cli.options import Session, command, storage_option
from lakeferry.cli.render import size


@command(
    examples=(
        ("lakeferry ls https://data.example.com", "what may this token read?"),
        ("lakeferry ls acme", "a server that has a name"),
        ("lakeferry ls s3://lake/server", "everything in a server's root"),
        ("lakeferry ls ./server --json", "for programs"),
    )
)
@click.argument("place", type=PLACE, metavar="URL|ROOT")
@token_option
@storage_option
def ls(session: Session, place: str, token: str | None, storage_options: Mapping[str, str]) -> None:
    """List the datasets of the server at URL, or in a server's ROOT.

    A server shows the datasets that the token may read; without a token, the public datasets.
    A value is left out if Lakeferry would have to read the whole dataset to find it. URL may be
    the name of a remote.
    """
    from lakeferry.api import datasets

    with progress.waiting(session.output, "listing datasets"):
        found = datasets.ls(place, **place_options(place, token, storage_options))
    if session.output.json:
        session.output.document({"datasets": [each.as_document() for each in found]})
        return
    columns = ("name", "kind", "visibility", "blocks", "size", "head")
    rows = [
        (
            each.name,
            each.kind,
            each.visibility,
            each.blocks,
            None if each.bytes is None else size(each.bytes),
            each.head,
        )
        for each in found
    ]
    session.output.page().table("datasets", columns, rows)
    if not rows:
        session.output.note("there are no datasets that you may see")
