from __future__ import annotations

import shlex

import pytest

from lakeferry.web.page_filters import (
    breakable,
    command_line,
    shown_age,
    shown_duration,
    shown_moment,
    shown_place,
    shown_size,
)


@pytest.mark.parametrize(
    ("duration_ms", "said"),
    [(None, "–"), (0, "0 ms"), (36, "36 ms"), (4_200, "4.2 s"), (185_000, "3:05 min"),
     (7_200_000, "2:00 h"), (360_000_000, "100:00 h")],
)  # fmt: skip
def test_durations(duration_ms: int | None, said: str) -> None:
    assert shown_duration(duration_ms) == said


@pytest.mark.parametrize(
    ("age_s", "said"),
    [(-5, "just now"), (0, "just now"), (7, "7 seconds ago"), (60, "1 minute ago"),
     (7_300, "2 hours ago"), (90_000, "1 day ago")],
)  # fmt: skip
def test_ages(age_s: int, said: str) -> None:
    now_ms = 1_700_000_000_000
    assert f">{said}</time>" in str(shown_age(now_ms - age_s * 1000, now_ms))


def test_unknown_values_are_a_dash() -> None:
    assert {str(each(None)) for each in (shown_age, shown_moment, shown_place, shown_size)} == {"–"}


def test_places_are_read_as_they_are_written() -> None:
    assert shown_place("file:///lake/a%20b") == "/lake/a b"
    assert shown_place("s3://lake/a%20b") == "s3://lake/a%20b"
    assert shown_place("file:///lake/a%0Ab") == "file:///lake/a%0Ab"


def test_a_path_stays_escaped_where_lines_may_break() -> None:
    assert str(breakable("/a_<b>.c")) == "/<wbr>a_<wbr>&lt;b&gt;.<wbr>c"


def test_a_command_can_be_pasted() -> None:
    words = ["lakeferry", "fleet", "scan", "/a b/$(rm -r x)'"]
    assert shlex.split(command_line(words)) == words
