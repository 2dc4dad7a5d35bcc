"""``token``: creates, lists and revokes access tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from lakeferry import config
from lakeferry.cli import progress
from lakeferry.cli.options import Duration, Session, command, dry_run_option, group, storage_option
from lakeferry.cli.render import moment

_root_option = click.option("--root", required=True, metavar="URI", help="The server's root.")


@group(
    examples=(
        ("lakeferry token create --root ./server", "read every dataset of a server"),
        (
            "lakeferry token create --root ./server --scope write --dataset acc/orders",
            "push one dataset",
        ),
        ("lakeferry token list --root ./server", "list them"),
        ("lakeferry token revoke c83440a0819d4e17 --root ./server", "revoke one"),
    )
)
def token() -> None:
    """Create, list and revoke the access tokens of a server."""


@command(
    examples=(
        ("lakeferry token create --root ./server", "read every dataset"),
        (
            "lakeferry token create --root s3://lake/server --scope write --expires 30d",
            "read and push",
        ),
        ("lakeferry token create --root ./server --dataset acc/orders", "read one dataset"),
        (
            "lakeferry token create --root ./server --name nightly --note 'asked for by Ana'",
            "say what it is for",
        ),
    )
)
@_root_option
@click.option(
    "--scope",
    type=click.Choice(["read", "write"]),
    default="read",
    show_default=True,
    help="What the token allows; write includes read.",
)
@click.option(
    "--dataset", default=None, metavar="D", help="The only dataset that the token is for."
)
@click.option(
    "--expires", type=Duration(), default=None, metavar="D", help="How long the token is valid."
)
@click.option("--name", default=None, metavar="N", help="A name, which 'token list' shows.")
@click.option("--note", default=None, metavar="T", help="A note, which 'token list' shows.")
@dry_run_option
@storage_option
def create(
    session: Session,
    root: str,
    scope: str,
    dataset: str | None,
    expires: int | None,
    name: str | None,
    note: str | None,
    dry_run: bool,
    storage_options: Mapping[str, str],
) -> None:
    """Create a token for the server at a root, and print it once.

    The server stores only a hash of the token, and accepts the token within a second. Without
    --dataset the token is for all datasets, without --expires it is valid for ever. A duration is
    90s, 15m, 12h, 7d or 2w. Several tokens may have the same name: each has an id of its own.
    """
    from lakeferry.api import server_root

    with progress.waiting(session.output, "reading the root"):
        made = server_root.create_token(
            root,
            scope=scope,
            dataset=dataset,
            expires=None if expires is None else f"{expires} milliseconds",
            name=name,
            note=note,
            storage_options=_options(root, storage_options),
            dry_run=dry_run,
        )
    if isinstance(made, list):
        _show(session, made, f"would create a token to {scope} {dataset or 'all datasets'}")
    elif session.output.json:
        allows = {"scope": scope, "dataset": dataset, "lasts_ms": expires}
        session.output.document(
            {"token": made, **allows, "name": name, "note": note, "changed": True}
        )
    else:
        session.output.text(f"{made}\n")


@command(examples=(("lakeferry token list --root ./server", "expired ones too"),))
@_root_option
@storage_option
def list_(session: Session, root: str, storage_options: Mapping[str, str]) -> None:
    """List the tokens of the server at a root by their ids."""
    from lakeferry.api import server_root

    with progress.waiting(session.output, "reading the root"):
        found = server_root.list_tokens(root, storage_options=_options(root, storage_options))
    documents = [each.as_document() for each in found]
    if session.output.json:
        session.output.document({"tokens": documents})
        return
    columns = ("id", "name", "scope", "dataset", "created", "expires", "note")
    rows = [
        (
            each["id"],
            each["name"],
            each["scope"],
            each["dataset"],
            moment(each["created_ms"]),
            None if each["expires_ms"] is None else moment(each["expires_ms"]),
            each["note"],
        )
        for each in documents
    ]
    session.output.page().table("", columns, rows)


@command(
    examples=(("lakeferry token revoke c83440a0819d4e17 --root ./server", "by its id"),),
)
@click.argument("token_id", metavar="ID")
@_root_option
@dry_run_option
@storage_option
def revoke(
    session: Session,
    token_id: str,
    root: str,
    dry_run: bool,
    storage_options: Mapping[str, str],
) -> None:
    """Revoke the token with this ID: the part between lf_ and the next _.

    The server refuses the token within a second. URLs that the server gave out before stay valid
    until they expire.
    """
    from lakeferry.api import server_root

    with progress.waiting(session.output, "reading the root"):
        done = server_root.revoke_token(
            root, token_id, storage_options=_options(root, storage_options), dry_run=dry_run
        )
    if isinstance(done, list):
        _show(
            session,
            done,
            f"would revoke the token {done[0]['id']}" if done else "there is no such token",
        )
    elif session.output.json:
        # If the user gave the whole token, don't print it again.
        shown = token_id.removeprefix("lf_").partition("_")[0]
        session.output.document({"id": shown, "changed": done})
    else:
        session.output.page().line("revoked" if done else "there is no such token")


def _options(root: str, storage_options: Mapping[str, str]) -> Mapping[str, str]:
    return config.load(storage_options=storage_options).storage_options(root)


def _show(session: Session, plan: list[dict[str, Any]], words: str) -> None:
    if session.output.json:
        session.output.document({"dry_run": True, "plan": plan})
    else:
        session.output.page().line(words)


list_.name = "list"
for each in (create, list_, revoke):
    token.add_command(each)
