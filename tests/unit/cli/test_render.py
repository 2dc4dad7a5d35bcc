from __future__ import annotations

import io

import pytest

from lakeferry.cli import render
from lakeferry.cli.inspect import type_name
from lakeferry.cli.output import encode, one_line


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("size_bytes", "shown"),
    [
        (None, "unknown"),
        (0, "0 bytes"),
        (1, "1 byte"),
        (1023, "1,023 bytes"),
        (1024, "1.0 KiB"),
        (1536, "1.5 KiB"),
        (3 << 30, "3.0 GiB"),
        (5 << 70, "5120.0 EiB"),
    ],
)
def test_sizes(size_bytes: int | None, shown: str) -> None:
    assert render.size(size_bytes) == shown


def test_times() -> None:
    assert render.moment(0) == "1970-01-01 00:00:00 UTC"
    assert render.moment(2**62) == f"{2**62} ms"


def test_a_pipe_gets_plain_lines_with_nothing_cut_off() -> None:
    stream = io.StringIO()
    page = render.page(stream)
    page.facts([("name", "x" * 500), ("nothing", None)])
    page.table("Title", ("a", "b"), [(1, "y" * 500), (None, "two\nlines\t")])
    page.table("Empty", ("a",), [])
    assert stream.getvalue().splitlines() == [
        f"name: {'x' * 500}",
        "nothing: -",
        "a\tb",
        f"1\t{'y' * 500}",
        "-\ttwo lines",
    ]


def test_a_terminal_gets_tables_and_no_steering() -> None:
    stream = Terminal()
    page = render.page(stream)
    page.table("", ("column",), [("[red]\x1b]0;title\x07[/red]",)])
    assert "[red]" in stream.getvalue()
    assert "\x1b]0" not in stream.getvalue()


def test_one_line() -> None:
    assert one_line(" a\n b\x1b[31mü ") == "a b\\x1b[31mü"


def test_names_that_are_not_utf_8_survive() -> None:
    assert encode({"path": "\udcff"}) == b'{"path": "\\udcff"}'


def test_types_as_sql_writes_them() -> None:
    kind = {
        "type": "struct",
        "fields": [
            {"name": "a", "type": {"type": "array", "elementType": "long"}},
            {"name": "m", "type": {"type": "map", "keyType": "string", "valueType": "date"}},
        ],
    }
    assert type_name(kind) == "struct<a: array<long>, m: map<string, date>>"
