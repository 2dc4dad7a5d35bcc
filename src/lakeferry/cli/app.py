"""The program: loads each command when it is used, and turns errors into exit codes.

The program always ends in :func:`run_command`: with a result, a refusal, a usage error, an
interrupt, a closed output or a bug. Tracebacks are shown only if ``LAKEFERRY_DEBUG`` is set.
"""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Sequence
from typing import Any

import click

from lakeferry.cli import interrupts
from lakeferry.cli.exit_codes import DONE, FAILED, INTERRUPTED, WRONG_USAGE, exit_code
from lakeferry.cli.options import Command, Session, json_option, unknown_command
from lakeferry.cli.output import Output
from lakeferry.errors import Interrupted, LakeferryError
from lakeferry.version import LAKEFERRY_VERSION

DEBUG_VARIABLE = "LAKEFERRY_DEBUG"
COMPLETION_VARIABLE = "_LAKEFERRY_COMPLETE"

COMMANDS = {
    "inspect": ("lakeferry.cli.inspect:inspect", "Describe a table, and warn of problems."),
    "history": ("lakeferry.cli.inspect:history", "List the commits of a table, newest first."),
    "files": ("lakeferry.cli.files:files", "List the live files of a table."),
    "checkpoint": ("lakeferry.cli.checkpoint:checkpoint", "Write a checkpoint of a table."),
    "verify": ("lakeferry.cli.verify:verify", "Compare two tables."),
    "feature": ("lakeferry.cli.feature:feature", "List and drop the features of a table."),
    "cleanup": ("lakeferry.cli.cleanup:cleanup", "Delete expired log files of a table."),
    "redirect": (
        "lakeferry.cli.redirect:redirect",
        "Move a table, and redirect everyone who uses its old path.",
    ),
    "plan": ("lakeferry.cli.plan:plan", "Show what clients of a table can do around a change."),
    "fleet": (
        "lakeferry.cli.fleet:fleet",
        "Find many tables, plan their moves, and move them in waves.",
    ),
    "export": ("lakeferry.cli.export:export", "Publish a table's log at another place."),
    "push": ("lakeferry.cli.transfer:push", "Send a dataset to a server."),
    "pull": ("lakeferry.cli.transfer:pull", "Get a dataset from a server, or from its files."),
    "publish": ("lakeferry.cli.publish:publish", "Publish accepted commits of a managed table."),
    "catalog": (
        "lakeferry.cli.catalog:catalog",
        "Register names of tables, and show where names lead.",
    ),
    "serve": ("lakeferry.cli.serve:serve", "Serve datasets, and export what lakeFS commits."),
    "ui": ("lakeferry.cli.ui:ui", "Show the fleet in the browser, and run its moves."),
    "ls": ("lakeferry.cli.ls:ls", "List the datasets of a server."),
    "dataset": (
        "lakeferry.cli.dataset:dataset",
        "Rename and delete datasets of a server, and set who may read them.",
    ),
    "remote": ("lakeferry.cli.remote:remote", "Give servers short names."),
    "token": ("lakeferry.cli.token:token", "Create, list and revoke a server's access tokens."),
    "gc": ("lakeferry.cli.gc:gc", "Delete objects that no dataset of a server needs."),
    "lakefs": ("lakeferry.cli.lakefs:lakefs", "Make a lakeFS repository call the server."),
    "setup": ("lakeferry.cli.setup:setup", "Fetch the jars that Spark needs for Delta Lake."),
    "doctor": (
        "lakeferry.cli.doctor:doctor",
        "Check whether this machine has what Lakeferry needs.",
    ),
    "demo": ("lakeferry.examples.demo:demo", "See Lakeferry at work on local disk."),
    "completion": ("lakeferry.cli.completion:completion", "Print a completion script for a shell."),
}
"""Each command, its module, and its line in the help, so that help imports no command."""


class LazyGroup(click.Group):
    """A group that imports a command when it is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """Return the commands in the order of the help."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Import one command."""
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(module), name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command, or raise an error with a suggestion."""
        if args[0] not in COMMANDS and not args[0].startswith("-"):
            raise unknown_command(args[0], COMMANDS, ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write the list of commands from the table alone."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])

    def shell_complete(
        self, ctx: click.Context, incomplete: str
    ) -> list[click.shell_completion.CompletionItem]:
        """Complete a command's name, or an option."""
        from click.shell_completion import CompletionItem

        found = [
            CompletionItem(name, help=line)
            for name, (_, line) in COMMANDS.items()
            if name.startswith(incomplete)
        ]
        return found + click.Command.shell_complete(self, ctx, incomplete)

    def get_help(self, ctx: click.Context) -> str:
        """Return the help as text, or as a document."""
        return Command.as_asked(ctx, super().get_help(ctx))

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples unchanged."""
        Command.write_examples(formatter, _EXAMPLES)
        super().format_epilog(ctx, formatter)


_EXAMPLES = (
    ("lakeferry inspect s3://warehouse/orders", "what is this table?"),
    ("lakeferry history ./orders --limit 5", "what happened to it lately?"),
    ("lakeferry verify ./orders s3://backup/orders", "is the copy the same?"),
    ("lakeferry inspect ./orders --json | jq .num_files", "for programs"),
)


def _show_version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        output = Session.of(ctx).output
        if output.json:
            output.document({"version": LAKEFERRY_VERSION})
        else:
            output.text(f"lakeferry {LAKEFERRY_VERSION}\n")
        ctx.exit()


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="'lakeferry COMMAND --help' shows the options of a command and how it is used.",
)
@click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_show_version,
    help="Show the version and end.",
)
@json_option
def lakeferry() -> None:
    """Move Delta Lake tables without breaking anyone who uses them.

    A TABLE is a local path, a URI (file:// s3:// gs:// az:// lakefs://) or a name
    in a catalog (sql:cat.schema.t, unity:cat.schema.t).
    """


def run_command(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code."""
    words, as_json = take_json(arguments)
    output = Output(json=as_json)

    def report_interrupt() -> None:
        output.fail(Interrupted("interrupted", remedy=output.after_interrupt).as_document())

    with interrupts.ended_promptly(report_interrupt, INTERRUPTED):
        try:
            invoke(words, Session(output))
            return DONE
        except click.exceptions.Exit as ended:
            return ended.exit_code
        except (click.Abort, KeyboardInterrupt):
            report_interrupt()
            return INTERRUPTED
        except click.UsageError as wrong:
            output.fail(_usage(wrong, output))
            return WRONG_USAGE
        except click.ClickException as failed:
            output.fail({"code": "invalid_input", "message": failed.message, "remedy": None})
            return WRONG_USAGE
        except BrokenPipeError:
            # The reader of our output has closed it.
            output.abandon()
            return DONE
        except LakeferryError as refused:
            _trace()
            output.fail(refused.as_document())
            return exit_code(refused)
        except Exception as mistake:  # noqa: BLE001 - the last line of defence
            _trace()
            output.fail(_mistake(mistake))
            return FAILED


def invoke(words: Sequence[str], session: Session) -> None:
    """Run one command and raise every error.

    click's own ``main`` isn't used, because it handles some ways to end the program itself. It is
    used only for shell completion.
    """
    if COMPLETION_VARIABLE in os.environ:
        lakeferry.main(list(words), prog_name="lakeferry", complete_var=COMPLETION_VARIABLE)
    with lakeferry.make_context("lakeferry", list(words), obj=session) as ctx:
        lakeferry.invoke(ctx)


def take_json(arguments: Sequence[str]) -> tuple[list[str], bool]:
    """Remove ``--json`` from the command line, wherever it is; after ``--`` it is a name."""
    words = list(arguments)
    end = words.index("--") if "--" in words else len(words)
    kept = [word for word in words[:end] if word != "--json"]
    return kept + words[end:], len(kept) < end


def _usage(wrong: click.UsageError, output: Output) -> dict[str, Any]:
    where = wrong.ctx.command_path if wrong.ctx is not None else "lakeferry"
    message = wrong.format_message()
    if isinstance(wrong, click.exceptions.NoArgsIsHelpError):
        if not output.json and wrong.ctx is not None:
            output.text(f"{wrong.ctx.get_help()}\n\n")
        message = "A command is missing."
    return {
        "code": "invalid_input",
        "message": _as_ours(message),
        "remedy": f"'{where} --help' shows how it is used",
    }


def _as_ours(message: str) -> str:
    """Return click's message in our style: no capital, no full stop."""
    first = message.partition(" ")[0]
    if first.istitle():
        message = message[0].lower() + message[1:]
    # click names an invalid path in a sentence of its own.
    message = re.sub(r": (File|Directory|Path) '", lambda found: found[0].lower(), message)
    # click suggests one option in a sentence, and several in parentheses.
    message = re.sub(r"\. \(Did you mean one of: (.*)\?\)$", r": did you mean one of \1?", message)
    return message.replace(". Did you mean", ": did you mean").rstrip(".")


def _mistake(mistake: Exception) -> dict[str, Any]:
    from lakeferry.packages import package_at_fault

    if (lacking := package_at_fault(mistake)) is not None:
        return lacking.as_document()
    kind = type(mistake).__name__
    return {
        "code": "internal_error",
        "message": f"an internal error: {kind}: {mistake}",
        "remedy": f"please report it, with what {DEBUG_VARIABLE}=1 shows",
    }


def _trace() -> None:
    if os.environ.get(DEBUG_VARIABLE):
        import traceback

        traceback.print_exc()
