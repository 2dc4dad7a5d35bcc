"""The commands that pages show: what they are, how they are run, and how outputs are compared.

A page shows a session in a block of the kind ``console``: lines that begin with ``$`` (or with
``#``, for root) are commands, the others what they print. A comment before a block says what has
happened before it; ``tests/scenario/documented_worlds.py`` knows these events::

    <!-- run: append acme/orders 500 -->

Numbers, sizes, hashes and tokens differ from run to run, so outputs are compared loosely: each
line that the page shows has to be printed, with the same words. ``…`` stands for anything.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import click

from lakeferry.cli.app import lakeferry, take_json
from lakeferry.cli.options import Session
from lakeferry.cli.output import Output

_BLOCK = re.compile(
    r"^<!-- run: (?P<event>.*?) -->$|^```(?P<kind>\w*)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
_PROMPT = re.compile(r"^[$#] (.*)$")
# What a line may have before the program: variables, another user, a shell's evaluation.
_BEFORE = re.compile(r"[A-Z_]+=.*|sudo|--user=\w+")
_JOB = re.compile(r'lakeferry\.jobs path\)" ')
_COLUMNS = re.compile(r"\t|: +| {2,}")
# What differs from run to run: hashes and ids, sizes, numbers, and durations.
_VARYING = re.compile(
    r"lf_[0-9a-f]{16}_\S+|\b[0-9a-f]{8,}(?:-[0-9a-f]+)*\b|\b[\d,.]*\d(?: (?:B|[KMGT]iB|ms|s)\b)?"
)
_ANY = "…"
_ASKED = "[y/N]: y"
"""How a question ends, which is asked on a terminal alone."""


@dataclass(frozen=True, slots=True)
class ShownCommand:
    """A command on a page, and the lines below it."""

    line: str
    output: tuple[str, ...] = ()

    @property
    def fails(self) -> bool:
        """Whether the page shows that it is refused."""
        return any(line.startswith("error: ") for line in self.output)


@dataclass(frozen=True, slots=True)
class ShownBlock:
    """A block of commands, and what has to happen before it."""

    commands: tuple[ShownCommand, ...]
    events: tuple[str, ...] = ()
    number: int = field(default=0, compare=False)

    @property
    def first(self) -> str:
        """The first command, by which a list knows the block."""
        return self.commands[0].line


def blocks(page: str) -> list[ShownBlock]:
    """Return the blocks of commands of a page."""
    found: list[ShownBlock] = []
    events: list[str] = []
    for each in _BLOCK.finditer(page):
        if each["event"] is not None:
            events.append(each["event"])
        elif each["kind"] in ("console", "sh"):
            commands = tuple(_commands(each["text"], prompts=each["kind"] == "console"))
            found.append(ShownBlock(commands, tuple(events), len(found)))
            events = []
    if events:
        raise ValueError(f"no block of commands comes after {events}")
    return found


def _commands(text: str, *, prompts: bool) -> Iterator[ShownCommand]:
    line, output = "", list[str]()
    goes_on = False
    for each in text.splitlines():
        prompt = _PROMPT.match(each) if prompts else None
        if goes_on:
            line += "\n" + each
        elif prompt or not prompts:
            if line:
                yield ShownCommand(line, tuple(output))
            line, output = (prompt[1] if prompt else each), []
        else:
            if not line:
                raise ValueError(f"a session begins with a command, and not with {each!r}")
            output.append(each)
        goes_on = each.endswith("\\") and not output
    if line.strip():
        yield ShownCommand(line, tuple(output))


def calls(line: str) -> Iterator[list[str]]:
    """Yield the words of each call of Lakeferry in a command line."""
    line = line.replace("\\\n", " ")
    if job := _JOB.search(line):
        line = f"lakeferry {line[job.end() :]}"
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;>")
    lexer.whitespace_split = True
    words: list[str] = []
    for word in (*lexer, ";"):
        if word.strip("|&;>"):
            words.append(word)
            continue
        while words and _BEFORE.fullmatch(words[0]):
            del words[0]
        if words and words[0].rpartition("/")[2] == "lakeferry":
            yield words[1:]
        # What comes after ">" is a file, and no program.
        words = [">"] if word == ">" else []


def parse(words: list[str]) -> click.Context:
    """Let click parse a command line as the program would; raise its error if it is wrong."""
    left, as_json = take_json(words)
    ctx = lakeferry.make_context("lakeferry", list(left), obj=Session(Output(json=as_json)))
    command: click.Command = lakeferry
    while isinstance(command, click.Group):
        name, found, rest = command.resolve_command(ctx, [*ctx._protected_args, *ctx.args])
        assert found is not None
        ctx = found.make_context(name, rest, parent=ctx)
        command = found
    return ctx


def missing(shown: tuple[str, ...], printed: str, names: Mapping[str, str]) -> list[str]:
    """Return the lines that a page shows and a command didn't print.

    ``names`` are texts of the run, each with what the page has in its place.
    """
    for real, name in sorted(names.items(), key=lambda pair: -len(pair[0])):
        printed = printed.replace(real, name)
    lines = [_words(line) for line in printed.splitlines()]
    found = []
    for line in shown:
        if not line.strip(f"{_ANY}─ ") or line.endswith(_ASKED):
            continue
        wanted = re.compile(_pattern(line))
        if not any(wanted.fullmatch(each) for each in lines):
            found.append(line)
    return found


def _words(line: str) -> str:
    """Return a line without what varies; a label and its value are written in one way."""
    line = _COLUMNS.sub(" | ", line.strip())
    return _VARYING.sub("#", line)


def _pattern(line: str) -> str:
    # A page shortens what is long, and hashes also where they vary.
    line = re.sub(rf"\b[0-9a-f]{{6,}}{_ANY}", _ANY, line)
    return ".*".join(re.escape(each) for each in _words(line).split(_ANY))
