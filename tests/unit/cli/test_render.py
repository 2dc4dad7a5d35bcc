from __future__ import annotations

import io

import pytest
from rich.text import Text

from lakeferry.api.table_facts import type_name
from lakeferry.cli import render
from lakeferry.cli.output import encode_document
from lakeferry.cli.screen import cells, longest_word, one_line, without_middle, wrapped


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
    page = render.new_page(stream)
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
    page = render.new_page(stream)
    page.table("", ("column",), [("[red]\x1b]0;title\x07[/red]",)])
    assert "[red]" in stream.getvalue()
    assert "\x1b]0" not in stream.getvalue()


@pytest.mark.parametrize("columns", [50, 80])
def test_columns_stay_aligned_under_wide_characters(
    monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    stream = Terminal()
    names = ["plain", "東京都千代田区", "😀 emoji", "日本語 の 値"]
    render.new_page(stream).table("", ("city", "rows"), [(name, "x") for name in names])
    rows = [line for line in stream.getvalue().splitlines() if line.rstrip().endswith(" x")]
    assert [any(name in row for row in rows) for name in names] == [True] * 4
    assert len({cells(row.rstrip()) for row in rows}) == 1


@pytest.mark.parametrize("columns", [50, 80])
def test_wide_words_break_between_words_only(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    stream = Terminal()
    words = "説明文の言葉 " * 15
    page = render.new_page(stream)
    page.facts([("description", words), ("名前", "x")])
    page.table("", ("text", "number"), [(words, 1)])
    page.line(words, indent=2)
    shown = Text.from_ansi(stream.getvalue()).plain
    assert shown.count("説明文の言葉") == 3 * 15
    assert max(map(cells, shown.splitlines())) <= columns


def test_texts_are_broken_and_cut_by_the_room_they_take() -> None:
    assert wrapped("ab cd ef", 5) == ["ab cd", "ef"]
    assert wrapped("東京 大阪 a", 5) == ["東京", "大阪", "a"]
    assert wrapped("a longerthanthat b", 4) == ["a", "longerthanthat", "b"]
    assert wrapped("", 4) == []
    assert longest_word("ab 東京") == 4
    assert without_middle("abcdefgh", 5) == "ab…gh"
    assert without_middle("東京都千代田区", 7) == "東…区"
    assert without_middle("東京", 4) == "東京"


def test_a_plan_within_a_plan_is_indented() -> None:
    stream = io.StringIO()
    render.new_page(stream).line("would do it", indent=2)
    assert stream.getvalue() == "  would do it\n"


def test_one_line() -> None:
    assert one_line(" a\n b\x1b[31mü ") == "a b\\x1b[31mü"


def test_names_that_are_not_utf_8_survive() -> None:
    assert encode_document({"path": "\udcff"}) == b'{"path": "\\udcff"}'


def test_types_as_sql_writes_them() -> None:
    kind = {
        "type": "struct",
        "fields": [
            {"name": "a", "type": {"type": "array", "elementType": "long"}},
            {"name": "m", "type": {"type": "map", "keyType": "string", "valueType": "date"}},
        ],
    }
    assert type_name(kind) == "struct<a: array<long>, m: map<string, date>>"
