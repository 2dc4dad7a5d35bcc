"""``push`` and ``pull``: send a dataset to a server, or fetch one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import click

from lakeferry import config
from lakeferry.api.plan_sentences import sentence
from lakeferry.cli import progress
from lakeferry.cli.exit_codes import FAILED
from lakeferry.cli.options import (
    TABLE,
    Session,
    WholeNumber,
    command,
    dry_run_option,
    engine_option,
    limit_rate_option,
    no_follow_option,
    storage_option,
)
from lakeferry.cli.render import counted, size
from lakeferry.errors import InvalidInput

if TYPE_CHECKING:
    from lakeferry.api.table import Table

_Function = TypeVar("_Function", bound=Callable[..., Any])


_SCHEMES = ("http://", "https://", "odf+http://", "odf+https://")
_TOKEN_VARIABLE = "LAKEFERRY_TOKEN"

_OPTIONS = (
    click.option(
        "--parallel",
        type=WholeNumber(1),
        default=None,
        metavar="N",
        help="How many objects to transfer at once; by default a number that suits both ends.",
    ),
    click.option(
        "--force",
        is_flag=True,
        help="Replace the receiver's history if it differs from the sender's.",
    ),
    click.option(
        "--token",
        default=None,
        metavar="T",
        help=f"The access token; by default the value of {_TOKEN_VARIABLE}.",
    ),
    click.option(
        "--allow-host",
        "allowed_hosts",
        multiple=True,
        metavar="H",
        help="Another host, besides the server's own, that may hold objects; may be repeated.",
    ),
    limit_rate_option("The most bytes of objects per second, such as 512K or 10MB."),
    engine_option,
    no_follow_option,
    dry_run_option,
    storage_option,
)


def _transfer_options(function: _Function) -> _Function:
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


@command(
    examples=(
        ("lakeferry push ./orders https://data.example.com/acc/orders", "to a server"),
        (
            "lakeferry push ./orders https://data.example.com/acc/orders --visibility public",
            "create a public dataset",
        ),
        (
            "lakeferry push s3://lake/orders http://127.0.0.1:8470/orders --force",
            "replace its history",
        ),
    )
)
@click.argument("table", type=TABLE)
@click.argument("url")
@click.option(
    "--visibility",
    type=click.Choice(["private", "public"]),
    default="private",
    show_default=True,
    help="Who may read a dataset that the push creates.",
)
@_transfer_options
def push(
    session: Session,
    table: str,
    url: str,
    visibility: str,
    storage_options: Mapping[str, str],
    **options: Any,
) -> None:
    """Send the dataset TABLE to URL.

    Only what the server doesn't have is sent. After an interruption, run the same push again: it
    continues. Objects are sent only to the server's own host and to the hosts that --allow-host
    names.
    """
    _run(
        session,
        table,
        storage_options,
        options | {"visibility": visibility},
        lambda opened, given: opened.push(url, **given),
        "pushed",
        url,
    )


@command(
    examples=(
        ("lakeferry pull https://data.example.com/acc/orders ./orders", "from a server"),
        ("lakeferry pull https://files.example.com/orders s3://lake/orders", "from plain files"),
        (
            "lakeferry pull https://h.example.com/d ./d --allow-host s3.example.com",
            "objects at another host",
        ),
    )
)
@click.argument("url")
@click.argument("table", type=TABLE)
@_transfer_options
def pull(
    session: Session, url: str, table: str, storage_options: Mapping[str, str], **options: Any
) -> None:
    """Get the dataset at URL into TABLE; only what is new is transferred.

    URL is a server of datasets, or any web server that has the dataset's files. Every
    block and object is checked against its hash. After an interruption, run the same pull again: it
    continues. Objects are fetched only from the server's own host and from the hosts that
    --allow-host names.
    """
    _run(
        session,
        table,
        storage_options,
        options,
        lambda opened, given: opened.pull(url, **given),
        "pulled",
        url,
    )


def _run(
    session: Session,
    table: str,
    storage_options: Mapping[str, str],
    options: dict[str, Any],
    work: Callable[[Table, dict[str, Any]], Any],
    done_word: str,
    url: str,
) -> None:
    if _is_swapped(table, url):
        order = "URL TABLE" if done_word == "pulled" else "TABLE URL"
        raise InvalidInput(
            f"{url!r} and {table!r} are in the wrong order",
            remedy=f"write lakeferry {done_word.removesuffix('ed')} {order}",
        )
    server = (url.partition("://")[2] or url).partition("/")[0].rpartition("@")[2]
    first = f"connecting to {server}"
    last = "waiting for the server's check" if done_word == "pushed" else "finishing"
    settings = config.load(storage_options=storage_options, engine=options.pop("engine"))
    opened = session.table(table, settings)
    follow = not options.pop("no_follow")
    session.output.after_interrupt = (
        "run the same command again: what has arrived isn't transferred again"
    )
    try:
        with progress.watching(session.output, first, last) as observer:
            # Without a token, the API uses the variable of the environment that it is given.
            given = options | {"token": options["token"] or None}
            given |= {"follow": follow, "engine": settings.engine}
            done = work(opened, given | {"observer": observer})
    except InvalidInput as wrong:
        if not wrong.fields.get("of_peer"):
            raise
        # The server's answer was invalid, not the user's request.
        session.output.fail(wrong.as_document())
        raise click.exceptions.Exit(FAILED) from None
    if isinstance(done, list):
        _show_plan(session, done)
        return
    if session.output.json:
        session.output.document(done.as_document())
        return
    page = session.output.page()
    if not done.changed:
        page.line(f"up to date: {done.head}")
        return
    page.line(
        f"{done_word} {counted(done.blocks, 'block')}, {counted(done.objects, 'object')} "
        f"of {size(done.bytes)}; {counted(done.skipped, 'object')} already there"
    )
    page.line(f"head: {done.head}")


def _is_swapped(table: str, url: str) -> bool:
    """Return True if a URL, or the name of a remote, is where the table has to be."""
    from lakeferry.api.remotes import is_remote

    if url.startswith(_SCHEMES) or ("://" not in url and is_remote(url)):
        return False
    return table.startswith(_SCHEMES) or ("://" not in table and is_remote(table))


def _show_plan(session: Session, plan: list[dict[str, Any]]) -> None:
    if session.output.json:
        session.output.document({"dry_run": True, "plan": plan})
        return
    for step in plan:
        session.output.page().line(sentence(step))
    if not plan:
        session.output.page().line("up to date")
