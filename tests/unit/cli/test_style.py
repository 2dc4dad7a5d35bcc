"""The style of what the program says: help, messages, and the sentences of a dry run."""

from __future__ import annotations

import ast
import importlib
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

import lakeferry
from lakeferry.api.plan_sentences import _SENTENCES, sentence, travel
from lakeferry.cli.app import COMMANDS
from lakeferry.cli.options import Command, Group

STEP = re.compile(r'(?:"op": |RedirectStep\(\s*|steps\.(?:at|copy_step|name)\(\s*)"(\w+)"')
SOURCES = sorted(Path(lakeferry.__file__).parent.rglob("*.py"))
NAMES = ("Delta", "Java", "Lakeferry", "Maven", "Parquet", "PySpark", "Python", "Spark", "Unity")
"""Words that have a capital wherever they stand."""


def _commands(name: str) -> Iterator[Command | Group]:
    """Yield a command and those below it."""
    module, _, attribute = COMMANDS[name][0].partition(":")
    command = getattr(importlib.import_module(module), attribute)
    yield command
    for inner in command.commands.values() if isinstance(command, Group) else ():
        assert isinstance(inner, Command)
        yield inner


def _is_sentence(text: str) -> bool:
    return text.endswith(".") and not text.endswith("..") and not text[0].islower()


@pytest.mark.parametrize("name", list(COMMANDS))
def test_help_is_in_sentences_and_examples_are_not(name: str) -> None:
    for command in _commands(name):
        _check_help(command)


def _check_help(command: Command | Group) -> None:
    assert _is_sentence((command.help or "").strip())
    for option in command.params:
        if isinstance(option, click.Option):
            assert _is_sentence(option.help or ""), option.opts
    for line, purpose in command.examples:
        assert not purpose.endswith("."), line


@pytest.mark.parametrize("columns", [50, 80, 120])
@pytest.mark.parametrize("name", list(COMMANDS))
def test_examples_fit_the_screen_and_can_be_pasted(name: str, columns: int) -> None:
    for command in _commands(name):
        formatter = click.HelpFormatter(width=columns)
        command.format_epilog(click.Context(command), formatter)
        shown = formatter.getvalue()
        assert all(len(line) <= columns for line in shown.splitlines())
        # A shell takes a line that ends with a backslash and the next one for one line.
        lines = shown.replace("\\\n", "").splitlines()
        pasted = [words for line in lines if (words := shlex.split(line, comments=True))]
        assert [shlex.split(line) for line, _ in command.examples] == [
            words for words in pasted if words != ["Examples:"]
        ]
        assert all(f"# {purpose}" in shown for _, purpose in command.examples)


def test_the_list_of_commands_is_in_sentences() -> None:
    assert all(_is_sentence(line) for _, line in COMMANDS.values())


def _text(node: ast.expr | None) -> str:
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=values):
            return "".join(
                _text(each) if isinstance(each, ast.Constant) else "{}" for each in values
            )
    return ""


def _messages(source: Path) -> Iterator[str]:
    """Yield the problems, causes and remedies of a module's errors."""
    for node in ast.walk(ast.parse(source.read_text())):
        if isinstance(node, ast.Call):
            words = {word.arg: word.value for word in node.keywords}
            if {"cause", "remedy"} & words.keys():
                yield from filter(
                    None, map(_text, (*node.args[:1], words.get("cause"), words.get("remedy")))
                )


def test_errors_have_no_capital_and_no_full_stop() -> None:
    found = [text for source in SOURCES for text in _messages(source)]
    assert len(found) > 500
    for text in found:
        assert not text.endswith("."), text
        assert not re.match(r"[A-Z][a-z']+ ", text) or text.startswith(NAMES), text


def test_every_step_of_a_plan_has_a_sentence() -> None:
    # Those that commands tell by themselves, beside what they make of them.
    elsewhere = {
        "add_remote",
        "commit_action_file",
        "create_token",
        "delete_dataset",
        "fetch_jars",
        "keep",
        "remove",
        "remove_remote",
        "rename_dataset",
        "revoke_token",
        "set_visibility",
    }
    found = {op for source in SOURCES for op in STEP.findall(source.read_text())}
    assert {"copy_data", "copy_rest", "register", "delete", "commit"} <= found
    assert found - elsewhere <= _SENTENCES.keys()


@pytest.mark.parametrize(
    ("step", "told"),
    [
        (
            {"op": "commit", "table": "T", "version": 3, "state": "READY", "rules": ["a:WRITE"]},
            "would commit version 3 (new rules: a:WRITE) to T",
        ),
        (
            {
                "op": "create",
                "name": "unity:c.s.t",
                "table": "T",
                "features": ["catalogManaged"],
                "properties": {"delta.checkpointPolicy": "v2"},
            },
            (
                "would create the managed table unity:c.s.t at T, and add what its catalog "
                "requires: the table features catalogManaged and the properties "
                "delta.checkpointPolicy = v2"
            ),
        ),
        (
            {"op": "create", "name": "unity:c.s.t", "table": "T", "features": [], "properties": {}},
            "would create the managed table unity:c.s.t at T",
        ),
        (
            {
                "op": "add_features",
                "table": "T",
                "features": ["f"],
                "clients": [{"name": "A", "reads": ["f"], "writes": ["f"]}],
            },
            "would add table features to T: f; A can't read or write it any more",
        ),
        (
            {"op": "abandon", "table": "sql:a.b.t", "lost_versions": 1},
            "would abandon the target sql:a.b.t, and lose 1 version",
        ),
        (
            {"op": "delete", "path": "d/data/x", "bytes": 1, "because": "unreached"},
            "would delete d/data/x (no dataset needs it)",
        ),
        ({"op": "delete", "table": "T"}, "would delete the table at T"),
        (
            {"op": "export_log", "to": "T", "version": 3, "files": ["a"]},
            "would write 1 log file of version 3 to T",
        ),
        ({"op": "other_work", "table": "T", "x": None}, "would other work: table T"),
    ],
)
def test_steps_are_told(step: dict[str, object], told: str) -> None:
    assert sentence(step) == told


FORESEEN = {
    "op": "copy_data",
    "from": "s3://old/t",
    "to": "s3://new/t",
    "files": 5000,
    "bytes": 1203 << 30,
    "ways": [
        {
            "way": "store",
            "from": "s3://old/t",
            "certain": False,
            "files": 4990,
            "bytes": 1200 << 30,
        },
        {"way": "stream", "from": "gs://other", "certain": True, "files": 10, "bytes": 3 << 30},
    ],
    "requests": {"COPY": 24_000, "GET": 384, "HEAD": 9990, "LIST": 5},
    "request_cost_usd": 0.1241,
    "price_basis": "the prices of a day",
    "duration_ms": 1_330_000,
    "duration_basis": "assuming 1 MB/s",
}


def test_a_copy_is_told_with_its_ways() -> None:
    first, second, duration, requests = travel(FORESEEN)
    assert first == (
        "4,990 files, 1.2 TiB: copied by the store if it can, otherwise streamed through this "
        "machine"
    )
    assert second == "10 files, 3.0 GiB in gs://other: streamed through this machine"
    assert duration == "about 22 minutes, assuming 1 MB/s"
    assert requests == (
        "about 34,379 requests (24,000 COPY, 384 GET, 9,990 HEAD, 5 LIST); "
        "~$0.12 by the prices of a day"
    )
    assert [*travel({"op": "claim"})] == []
    on_disk = {**FORESEEN, "requests": {}, "duration_ms": 1}
    assert [*travel(on_disk)][2:] == ["about 1 second, assuming 1 MB/s"]


@pytest.mark.parametrize(
    ("usd", "told"),
    [
        (12345.678, "~$12,345.68"),
        (0.0123, "~$0.01"),
        (0.00123, "~$0.0012"),
        (2e-6, "less than $0.0001"),
    ],
)
def test_prices_have_digits_that_count(usd: float, told: str) -> None:
    step = {**FORESEEN, "request_cost_usd": usd, "requests": {"PUT": 1}}
    assert [*travel(step)][-1].startswith(f"about 1 request (1 PUT); {told} by")
