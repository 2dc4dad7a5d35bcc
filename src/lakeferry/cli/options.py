"""Options, help and the session that commands share."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.shell_completion import CompletionItem

from lakeferry import config
from lakeferry.cli import progress
from lakeferry.cli.output import Output, encode_document
from lakeferry.cli.screen import lines_of
from lakeferry.config import Config
from lakeferry.errors import InvalidInput

if TYPE_CHECKING:
    from lakeferry.api.table import Table

_Function = TypeVar("_Function", bound=Callable[..., Any])
Examples = Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Session:
    """One run of the program, as its commands see it."""

    output: Output

    @staticmethod
    def of(ctx: click.Context) -> Session:
        """Return the session of a context; completion has none, and gets a silent one."""
        found = ctx.find_object(Session)
        return found if found is not None else Session(Output(json=False))

    def table(
        self, name: str, settings: Config, warn: Callable[[str], None] | None = None
    ) -> Table:
        """Open a table by path, URI or catalog name."""
        from lakeferry.api.table import Places, Table

        environment = settings.catalog_environment()
        places = Places(environment=environment, layered=settings.storage_options)
        opened = Table(name, places, environment=environment, warn=warn or self.output.warn)
        if name.startswith(CATALOGS):
            with progress.waiting(self.output, "asking the catalog"):
                # The place is looked up now, and kept.
                opened.look_up()
        return opened


class Command(click.Command):
    """A command whose help ends with examples, and is a document under ``--json``."""

    def __init__(self, *args: Any, examples: Examples = (), **kwargs: Any) -> None:
        """Make a command; ``examples`` are command lines and what each of them does."""
        super().__init__(*args, **kwargs)
        self.examples = examples

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; its engine finds the Spark Connect server of the settings."""
        if "engine" in ctx.params and (remote := config.load().spark_remote):
            os.environ[config.SPARK_REMOTE_VARIABLE] = remote
        return super().invoke(ctx)

    def get_help(self, ctx: click.Context) -> str:
        """Return the help as text, or as a document."""
        return self.as_asked(ctx, super().get_help(ctx))

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples as they are."""
        self.write_examples(formatter, self.examples)
        super().format_epilog(ctx, formatter)

    @staticmethod
    def as_asked(ctx: click.Context, text: str) -> str:
        """Return a help text in the session's format."""
        return encode_document({"help": text}).decode() if Session.of(ctx).output.json else text

    @staticmethod
    def write_examples(formatter: click.HelpFormatter, examples: Examples) -> None:
        """Write command lines that a reader can paste, each with what it is for.

        If a line and its purpose don't fit side by side, the purpose is written above.
        """
        if not examples:
            return
        width = max(len(line) for line, _ in examples)
        side_by_side = all(width + len(why) + _BESIDE <= formatter.width for _, why in examples)
        with formatter.section("Examples"):
            for line, purpose in examples:
                if side_by_side:
                    formatter.write(f"  {line:{width}}  # {purpose}\n")
                else:
                    formatter.write(f"  # {purpose}\n")
                    formatter.write(" \\\n".join(_folded(line, formatter.width)) + "\n")


_BESIDE = len("    # ")
_QUOTED_OR_NOT = re.compile(r"(?:'[^']*'|\S)+")


def _folded(line: str, width: int) -> list[str]:
    """Return a command line as several lines, joined for the shell by backslashes."""
    # Quoted text isn't divided: the line break would become part of it.
    first = lines_of(_QUOTED_OR_NOT.findall(line), width - len("   \\"))[0]
    rest = line.removeprefix(first)
    more = lines_of(_QUOTED_OR_NOT.findall(rest), width - len("      \\"))
    return [f"  {first}", *(f"      {each}" for each in more)]


def unknown_command(name: str, known: Iterable[str], ctx: click.Context) -> click.UsageError:
    """Return the error for a misspelt command, with a suggestion."""
    near = difflib.get_close_matches(name, known, 1)
    hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}"
    return click.UsageError(f"there is no command {name!r}: {hint}", ctx)


class Group(click.Group):
    """Commands under one word, whose help ends with examples as a command's does."""

    def __init__(self, *args: Any, examples: Examples = (), **kwargs: Any) -> None:
        """Make a group; ``examples`` are command lines and what each of them does."""
        super().__init__(*args, **kwargs)
        self.examples = examples

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """Return the commands in the order in which they were added."""
        return list(self.commands)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command, or say which one may have been meant."""
        if args[0] not in self.commands and not args[0].startswith("-"):
            raise unknown_command(args[0], self.commands, ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write the list of commands, each with the first sentence of its help."""
        with formatter.section("Commands"):
            formatter.write_dl(
                [
                    (name, command.get_short_help_str(limit=200))
                    for name, command in self.commands.items()
                ]
            )

    def get_help(self, ctx: click.Context) -> str:
        """Return the help as text, or as a document."""
        return Command.as_asked(ctx, super().get_help(ctx))

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples as they are."""
        Command.write_examples(formatter, self.examples)
        super().format_epilog(ctx, formatter)


class TableType(click.ParamType[str]):
    """A table's name; a shell completes folders."""

    name = "table"

    def shell_complete(
        self,
        ctx: click.Context,  # noqa: ARG002
        param: click.Parameter,  # noqa: ARG002
        incomplete: str,
    ) -> list[CompletionItem]:
        """Leave it to the shell to complete a folder."""
        return [CompletionItem(incomplete, type="dir")]


class CatalogNameType(click.ParamType[str]):
    """A name in a catalog; a shell completes which catalog."""

    name = "name"

    def shell_complete(
        self,
        ctx: click.Context,  # noqa: ARG002
        param: click.Parameter,  # noqa: ARG002
        incomplete: str,
    ) -> list[CompletionItem]:
        """Offer the prefixes of names."""
        return [CompletionItem(kind) for kind in CATALOGS if kind.startswith(incomplete)]


class WholeNumber(click.ParamType[int]):
    """A whole number with a minimum."""

    name = "number"

    def __init__(self, least: int) -> None:
        """Set the bound."""
        self._least = least

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the number."""
        try:
            number = int(value)
        except ValueError:
            number = self._least - 1
        if number < self._least:
            self.fail(f"{value!r} isn't a whole number from {self._least} on.", param, ctx)
        return number


class Duration(click.ParamType[int]):
    """A length of time, in milliseconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the milliseconds."""
        from lakeferry.api.table import duration_ms

        found = duration_ms(str(value))
        if found is None:
            self.fail(f"{value!r} isn't a duration: write 90s, 15m, 12h, 7d or 2w.", param, ctx)
        return found


class RateType(click.ParamType[int]):
    """A number of bytes per second."""

    name = "rate"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the number."""
        from lakeferry.api.table import parse_rate

        try:
            return parse_rate(str(value))
        except InvalidInput as wrong:
            self.fail(f"{wrong.message}: {wrong.remedy}.", param, ctx)


TABLE = TableType()
CATALOGS = ("sql:", "unity:")
CATALOG_NAME = CatalogNameType()


def _options(_: click.Context, __: click.Parameter, pairs: tuple[str, ...]) -> Mapping[str, str]:
    return config.parse_options(pairs)


json_option = click.option(
    "--json",
    is_flag=True,
    expose_value=False,
    help="Print one JSON document; allowed anywhere on the line.",
)
storage_option = click.option(
    "--storage-option",
    "storage_options",
    multiple=True,
    metavar="KEY=VALUE",
    callback=_options,
    help="An option for the store, such as aws_region=eu-central-1; may be repeated.",
)
engine_option = click.option(
    "--engine",
    type=click.Choice(config.ENGINES),
    default=None,
    help="Where the work is done: in this process (local) or in Spark; auto uses this process for "
    "small jobs and without Spark.",
)


def limit_rate_option(text: str) -> Callable[[_Function], _Function]:
    """Return the option ``--limit-rate`` with its help."""
    return click.option("--limit-rate", type=RateType(), default=None, metavar="R", help=text)


copy_rate_option = limit_rate_option(
    "The most bytes per second that this machine copies, such as 512K or 10MB. Copies that an "
    "object store makes itself aren't limited: they don't pass through this machine."
)
verify_option = click.option(
    "--verify",
    type=click.Choice(("store", "full")),
    default=None,
    help="How copies are verified: by what the store says about them (store, the default), or by "
    "reading every file at both ends (full).",
)
version_option = click.option(
    "--version",
    type=WholeNumber(0),
    default=None,
    metavar="N",
    help="The version of the table; by default the newest.",
)
dry_run_option = click.option(
    "--dry-run", is_flag=True, help="Show what would be done, and do nothing."
)
no_follow_option = click.option(
    "--no-follow", is_flag=True, help="Use this table itself, even if it is redirected."
)


def command(*, examples: Examples) -> Callable[[Callable[..., Any]], Command]:
    """Make a command of a function; its first argument is the session."""

    def decorate(function: Callable[..., Any]) -> Command:
        made = click.command(cls=Command, examples=examples)(click.pass_obj(function))
        return json_option(made)

    return decorate


def group(*, examples: Examples) -> Callable[[Callable[..., Any]], Group]:
    """Make a group of a function that does nothing; ``add_command`` gives it its commands."""

    def decorate(function: Callable[..., Any]) -> Group:
        return json_option(click.group(cls=Group, examples=examples)(function))

    return decorate
