"""Asks before a change on a terminal; never asks a program.

Nothing is asked with ``--json``, with ``--yes``, or where standard input or standard error isn't
a terminal: a program can't answer.
"""

from __future__ import annotations

import sys

import click

from lakeferry.cli.output import Output
from lakeferry.errors import Interrupted

yes_option = click.option("--yes", "-y", is_flag=True, help="Don't ask for confirmation.")


def may_ask(output: Output, *, yes: bool) -> bool:
    """Return True if a person can answer."""
    return not (yes or output.json) and sys.stdin.isatty() and sys.stderr.isatty()


def confirm(output: Output, question: str, *, yes: bool) -> None:
    """Ask a person whether to go ahead; raise ``Interrupted`` for any answer but yes."""
    if not may_ask(output, yes=yes):
        return
    try:
        if click.confirm(question, default=False, err=True):
            return
        cause = "the answer was no"
    except click.Abort:
        # The user didn't end the line of the question, so end it here.
        click.echo(err=True)
        cause = "the question wasn't answered"
    raise Interrupted(
        "nothing was changed",
        cause=cause,
        remedy="run the command again and answer y, or give --yes",
    )
