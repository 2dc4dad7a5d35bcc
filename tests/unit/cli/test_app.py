from __future__ import annotations

import importlib

import click
import pytest

from lakeferry.cli.app import COMMANDS, take_json
from lakeferry.cli.files import TimestampType
from lakeferry.cli.options import Command, Group, WholeNumber


@pytest.mark.parametrize(
    ("words", "kept", "found"),
    [
        ([], [], False),
        (["--json"], [], True),
        (["a", "--json", "b", "--json"], ["a", "b"], True),
        (["a", "--", "--json"], ["a", "--", "--json"], False),
        (["--json", "--", "--json"], ["--", "--json"], True),
    ],
)
def test_json_is_taken_out_of_the_line(words: list[str], kept: list[str], found: bool) -> None:
    assert take_json(words) == (kept, found)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_teaches_by_example(name: str) -> None:
    module, _, attribute = COMMANDS[name][0].partition(":")
    command = getattr(importlib.import_module(module), attribute)
    assert isinstance(command, Command | Group)
    assert command.name == name
    assert command.help
    assert any(name in line for line, _ in command.examples)
    for inner in command.commands.values() if isinstance(command, Group) else ():
        assert isinstance(inner, Command)
        assert inner.help
        assert all(f"{name} {inner.name} " in line for line, _ in inner.examples)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1700000000000", 1_700_000_000_000),
        ("1970-01-01", 0),
        ("1970-01-01T00:00:01Z", 1000),
        ("1970-01-01T01:00:00+01:00", 0),
    ],
)
def test_times_are_milliseconds_or_iso(text: str, expected: int) -> None:
    assert TimestampType().convert(text, None, None) == expected


def test_numbers_below_their_bound_are_refused() -> None:
    assert WholeNumber(0).convert("0", None, None) == 0
    for text in ("-1", "one", "1.5", ""):
        with pytest.raises(click.BadParameter):
            WholeNumber(0).convert(text, None, None)


def test_lists_of_commands_are_not_cut_off() -> None:
    from lakeferry.cli.redirect import redirect

    shown = redirect.get_help(click.Context(redirect, info_name="redirect"))
    assert "..." not in shown.partition("Commands:")[2]
