"""``token``: let somebody use a server's datasets."""

from __future__ import annotations

from collections.abc import Mapping

import click

from lakeferry import config
from lakeferry.cli.options import Duration, Session, command, dry_run_option, group, storage_option


@group(
    examples=(
        ("lakeferry token create --root ./server", "read every dataset of a server"),
        ("lakeferry token create --root ./server --scope write --dataset acc/orders", "push one"),
    )
)
def token() -> None:
    """Make the tokens that the users of a server need."""


@command(
    examples=(
        ("lakeferry token create --root ./server", "read every dataset"),
        ("lakeferry token create --root s3://lake/server --scope write --expires 30d", "push, too"),
        ("lakeferry token create --root ./server --dataset acc/orders", "read one dataset"),
    )
)
@click.option("--root", required=True, metavar="URI", help="The server's root.")
@click.option(
    "--scope",
    type=click.Choice(["read", "write"]),
    default="read",
    show_default=True,
    help="What it allows; who may write may also read.",
)
@click.option("--dataset", default=None, metavar="D", help="The one dataset it is for.")
@click.option(
    "--expires", type=Duration(), default=None, metavar="D", help="How long it is good for."
)
@dry_run_option
@storage_option
def create(
    session: Session,
    root: str,
    scope: str,
    dataset: str | None,
    expires: int | None,
    dry_run: bool,
    storage_options: Mapping[str, str],
) -> None:
    """Make a token for the server at a root, and show it: this once.

    The server keeps a hash of it, and knows it within a second. Without --dataset it is
    for all of them, without --expires for ever. A DURATION is 90s, 15m, 12h, 7d or 2w.
    """
    from lakeferry.server import access

    settings = config.load(storage_options=storage_options)
    make = access.create_token(settings, root, scope=scope, dataset=dataset, lasts_ms=expires)
    allows = {"scope": scope, "dataset": dataset, "lasts_ms": expires}
    if dry_run:
        if session.output.json:
            plan = [{"op": "create_token", **allows}]
            session.output.document({"dry_run": True, "plan": plan})
        else:
            session.output.page().line(f"would make a token to {scope} {dataset or 'all datasets'}")
        return
    made = make()
    if session.output.json:
        session.output.document({"token": made, **allows, "changed": True})
    else:
        session.output.text(f"{made}\n")


token.add_command(create)
