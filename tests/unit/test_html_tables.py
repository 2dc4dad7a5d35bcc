from __future__ import annotations

import itertools
from collections.abc import Iterator

from lakeferry.html_tables import (
    SHOWN_ROWS,
    facts_table,
    first_rows,
    html,
    joined,
    notebook_view,
    warning_list,
)

EVIL = '<script>alert("1")</script>&\u202e'
ESCAPED = "&lt;script&gt;alert(&#34;1&#34;)&lt;/script&gt;&amp;\\u202e"


def test_every_value_is_escaped_once() -> None:
    shown = notebook_view(
        EVIL,
        facts_table([(EVIL, EVIL), ("number", 12), ("nothing", None)]),
        first_rows([EVIL], [[EVIL]], 1, EVIL, title=EVIL),
        warning_list([EVIL]),
        EVIL,
    )
    assert "<script" not in shown
    assert shown.count(ESCAPED) == 8
    assert "\u202e" not in shown
    assert "<td" in shown
    assert "&lt;td" not in shown
    assert ">12</td>" in shown
    assert ">–</td>" in shown


def test_bytes_of_a_name_that_are_not_utf_8_can_be_sent() -> None:
    shown = notebook_view("a", facts_table([("file", "\udcff.parquet")]), html("{}", "\udcff"))
    assert shown.encode().count(b"\\udcff") == 2


def test_a_long_table_shows_its_first_rows_and_reads_no_more() -> None:
    read = itertools.count()

    def rows() -> Iterator[tuple[int, str]]:
        while True:
            yield next(read), "x"

    shown = first_rows(("number", "text"), rows(), 1_000_000, "file")
    assert shown.count("<tr>") == SHOWN_ROWS + 1
    assert f"the first {SHOWN_ROWS} of 1,000,000 files" in shown
    assert next(read) == SHOWN_ROWS


def test_a_table_that_is_whole_says_no_count_and_an_empty_one_nothing() -> None:
    assert "of" not in first_rows(("a",), [["b"]], 1, "file")
    assert first_rows(("a",), [], 0, "file", title="Files") == ""


def test_long_values_are_shortened() -> None:
    shown = notebook_view("t" * 9_000, facts_table([("p", "v" * 9_000_000)]), "w" * 9_000)
    assert len(shown) < 2_000
    assert shown.count("…") == 3


def test_very_many_warnings_are_counted() -> None:
    shown = warning_list(["odd"] * 1_000)
    assert shown.count("odd") == SHOWN_ROWS
    assert "1,000 warnings in all" in shown


def test_a_view_sets_no_colours_and_typesets_no_formulas() -> None:
    shown = notebook_view("a", facts_table([("$x$", 1)]), first_rows(["b"], [["c"]], 5, "row"))
    assert "color" not in shown
    assert "background" not in shown
    assert "mathjax_ignore" in shown


def test_parts_are_joined_by_what_is_theirs() -> None:
    assert joined([html("<b>{}</b>", "<"), html("<i></i>")], "\n") == "<b>&lt;</b>\n<i></i>"
