"""``dataset``: renames and deletes datasets of a server, and sets who may read them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import click

from lakeferry.cli import progress
from lakeferry.cli.confirmation import confirm, may_ask, yes_option
from lakeferry.cli.dataset_options import PLACE, place_options, token_option
from lakeferry.cli.options import Session, command, dry_run_option, group, storage_option
from lakeferry.cli.output import Output

if TYPE_CHECKING:
    from lakeferry.api.datasets import DatasetChanged
    from lakeferry.api.located_table import Plan


@group(
    examples=(
        ("lakeferry dataset rename https://data.example.com orders sales", "no object is moved"),
        ("lakeferry dataset visibility acme sales public", "everybody may read it"),
        ("lakeferry dataset delete ./server sales", "gc deletes its objects"),
    )
)
def dataset() -> None:
    """Rename and delete the datasets of a server, and set who may read them.

    URL is a server, or the name of a remote; ROOT is a server's root, whose server may be running.
    A server needs a token to write.
    """


@command(
    examples=(
        ("lakeferry dataset rename https://data.example.com orders sales", "at a server"),
        ("lakeferry dataset rename s3://lake/server acc/orders acc/sales", "at a root"),
    )
)
@click.argument("place", type=PLACE, metavar="URL|ROOT")
@click.argument("name")
@click.argument("new")
@token_option
@dry_run_option
@storage_option
def rename(
    session: Session,
    place: str,
    name: str,
    new: str,
    token: str | None,
    dry_run: bool,
    storage_options: Mapping[str, str],
) -> None:
    """Give the dataset NAME the name NEW. Its objects stay in their folder.

    The token you use must be valid for both names. The rename is refused while a push to the
    dataset is running. Running pulls continue. Afterwards a token for NAME isn't valid for NEW.
    """
    from lakeferry.api import datasets

    with progress.waiting(session.output, "renaming"):
        done = datasets.rename_dataset(
            place, name, new, dry_run=dry_run, **place_options(place, token, storage_options)
        )
    already = f"the dataset is named {new} already"
    _show(session.output, done, f"{name} is named {new}", already)


@command(
    examples=(
        ("lakeferry dataset delete https://data.example.com orders", "at a server"),
        ("lakeferry dataset delete ./server orders --yes", "at a root, without a question"),
        ("lakeferry dataset delete ./server orders --dry-run", "would it be refused?"),
    )
)
@click.argument("place", type=PLACE, metavar="URL|ROOT")
@click.argument("name")
@click.option(
    "--force",
    is_flag=True,
    help="Delete a table even if an old path leads to it; that path then has no table.",
)
@token_option
@dry_run_option
@yes_option
@storage_option
def delete(
    session: Session,
    place: str,
    name: str,
    force: bool,
    token: str | None,
    dry_run: bool,
    yes: bool,
    storage_options: Mapping[str, str],
) -> None:
    """Delete the dataset NAME.

    The name is free at once. 'lakeferry gc' deletes the objects after its grace period; until
    then running pulls can finish. The deletion is refused while a push to the dataset is running.
    It is also refused for a table that a redirect leads to, unless --force is given.
    """
    from lakeferry.api import datasets

    reached = place_options(place, token, storage_options)
    if not dry_run and may_ask(session.output, yes=yes):
        confirm(session.output, f"Delete the dataset {name} at {place}?", yes=yes)
    with progress.waiting(session.output, "deleting"):
        done = datasets.delete_dataset(place, name, force=force, dry_run=dry_run, **reached)
    _show(session.output, done, f"{name} is deleted", f"there is no dataset named {name}")


@command(
    examples=(
        ("lakeferry dataset visibility acme orders public", "everybody may read it"),
        ("lakeferry dataset visibility ./server orders private", "only with a token"),
    )
)
@click.argument("place", type=PLACE, metavar="URL|ROOT")
@click.argument("name")
@click.argument("who", metavar="public|private", type=click.Choice(["public", "private"]))
@token_option
@dry_run_option
@storage_option
def visibility(
    session: Session,
    place: str,
    name: str,
    who: str,
    token: str | None,
    dry_run: bool,
    storage_options: Mapping[str, str],
) -> None:
    """Set who may read the dataset NAME: everybody, or only users with a token for it.

    The change takes effect within a second. URLs of objects that the server has already given out
    stay valid until they expire. With serve --anonymous-read everybody may read private datasets,
    too.
    """
    from lakeferry.api import datasets

    with progress.waiting(session.output, "setting who may read it"):
        done = datasets.set_dataset_visibility(
            place, name, who, dry_run=dry_run, **place_options(place, token, storage_options)
        )
    _show(session.output, done, f"{name} is {who}", f"{name} is {who} already")


def _show(output: Output, done: DatasetChanged | Plan, said: str, already: str) -> None:
    if isinstance(done, list):
        if output.json:
            output.document({"dry_run": True, "plan": done})
        else:
            output.page().line(f"afterwards, {said}" if done else already)
    elif output.json:
        output.document(done.as_document())
    else:
        output.page().line(said if done.changed else already)


for each in (rename, delete, visibility):
    dataset.add_command(each)
