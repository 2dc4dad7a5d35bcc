"""Writes the reference of the command line: each command with its help, options and examples.

Everything is read from click, so the page can't differ from ``--help``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import click

from lakeferry.cli.app import lakeferry

_EVERYWHERE = "--json"
"""An option of every command, which the page names once."""


def commands() -> Iterator[tuple[list[str], click.Command]]:
    """Yield every command and group with its words, in the order of the help."""
    ctx = click.Context(lakeferry, info_name="lakeferry")
    for name in lakeferry.list_commands(ctx):
        command = lakeferry.get_command(ctx, name)
        assert command is not None
        yield [name], command
        if isinstance(command, click.Group):
            for inner in command.list_commands(ctx):
                found = command.get_command(ctx, inner)
                assert found is not None
                yield [name, inner], found


def command_page() -> str:
    """Return the reference as Markdown."""
    parts = []
    for words, command in commands():
        level = "##" if len(words) == 1 else "###"
        parts.append(f"{level} lakeferry {' '.join(words)}\n")
        parts += _described(words, command)
    return "\n".join(parts)


def _described(words: list[str], command: click.Command) -> Iterator[str]:
    if not isinstance(command, click.Group):
        ctx = click.Context(command, info_name=" ".join(["lakeferry", *words]))
        pieces = " ".join(command.collect_usage_pieces(ctx))
        yield f"```text\nlakeferry {' '.join(words)} {pieces}\n```\n"
    yield _prose(command.help or "")
    options = [
        each
        for each in command.params
        if isinstance(each, click.Option) and _EVERYWHERE not in each.opts
    ]
    if options:
        yield "| option | |\n|---|---|"
        yield from (_row(option) for option in options)
        yield ""
    examples = getattr(command, "examples", ())
    if examples:
        lines = "\n".join(f"# {purpose}\n{line}" for line, purpose in examples)
        yield f"```sh\n{lines}\n```\n"


def _prose(text: str) -> str:
    """Return a help text as Markdown, one line for each paragraph."""
    paragraphs = (" ".join(each.split()) for each in text.replace("\b\n", "").split("\n\n"))
    return "\n\n".join(_escaped(each) for each in paragraphs) + "\n"


def _row(option: click.Option) -> str:
    ctx = click.Context(click.Command("x"))
    names = ", ".join(f"`{name}`" for name in [*option.opts, *option.secondary_opts])
    value = "" if option.is_flag else f" `{_in_cell(option.make_metavar(ctx))}`"
    text = _escaped(option.help or "")
    shown = option.get_help_extra(ctx)
    notes = []
    if "default" in shown:
        notes.append(f"By default `{_in_cell(shown['default'])}`.")
    if option.multiple and "repeated" not in text:
        notes.append("May be repeated.")
    if option.required:
        notes.append("Required.")
    return f"| {names}{value} | {' '.join([text, *notes])} |"


def _in_cell(text: str) -> str:
    return text.replace("|", "\\|")


def _escaped(text: str) -> str:
    for character in "\\<>*_[]|":
        text = text.replace(character, f"\\{character}")
    return re.sub(r"(?<![\w-])--[a-z][a-z-]*", r"`\g<0>`", text)
