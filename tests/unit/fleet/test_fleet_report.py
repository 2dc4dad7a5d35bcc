"""The report: whatever tables are called, it is one page without scripts."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser

from lakeferry.fleet.fleet_report import report_html
from lakeferry.fleet.fleet_states import FleetState
from lakeferry.fleet.inventory import (
    ClientForecast,
    FleetHistoryEntry,
    FleetJob,
    FleetProblem,
    FleetTable,
    FleetWriter,
    MoveForecast,
    TableMark,
    TableSurvey,
)
from lakeferry.fleet.records import FleetSummary

EVIL = "<script>alert(1)</script>\"'&"


class Parsed(HTMLParser):
    """The tags and the text of a page; a tag that isn't closed is an error."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.text = ""
        self._open: list[str] = []
        self.feed(page)
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        assert not [name for name, _ in attrs if name.startswith("on") or name in ("src", "href")]
        if tag != "meta":
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def table(state: FleetState = FleetState.FAILED) -> FleetTable:
    writer = FleetWriter(EVIL, None, None, 1, 1, 1)
    survey = TableSurvey(TableMark(1, 1, 1), "id", 5 << 30, 7, 1.5, (EVIL,), (writer,))
    client = ClientForecast(EVIL, None, "a", EVIL, EVIL, "c")
    job = FleetJob(
        1,
        f"s3://a/{EVIL}",
        f"s3://a/{EVIL}",
        f"s3://b/{EVIL}",
        2,
        {},
        state,
        MoveForecast(1, 2, 3, 4, "x", (client,)),
        started_ms=1_700_000_000_000,
        outcome={"files_copied": 3, "bytes_copied": 2048, "blocked_ms": 12},
        error={"code": "forbidden", "message": EVIL, "remedy": EVIL},
    )
    return FleetTable(1, job.uri, EVIL, f"sql:{EVIL}", state, survey, 1, (), job)


def test_names_from_anywhere_are_shown_as_they_are_and_run_nothing() -> None:
    entry = FleetHistoryEntry(1, 1_700_000_000_000, EVIL, EVIL, 1, {"step": EVIL})
    summary = FleetSummary({FleetState.FAILED: 1}, 5 << 30, 1, paused=False, pauses_ms=(12,))
    page = report_html([table()], summary, [entry], f"sqlite:///{EVIL}")
    found = Parsed(page)
    assert "script" not in found.tags
    assert page.count("<script") == 0
    assert found.text.count(EVIL) >= 10
    assert "5.0 GiB" in found.text
    assert "2023-11-14 22:13:20 UTC" in found.text
    assert not re.search(r"https?://", page)


def test_an_empty_fleet_has_a_report() -> None:
    page = report_html([], FleetSummary({}, 0, 0, paused=False), [], "sqlite:///x")
    assert "No table was found." in Parsed(page).text


def test_a_problem_is_listed_with_what_to_do() -> None:
    problem = FleetProblem("corrupt_log", "it is broken", "mend it")
    broken = replace(table(FleetState.FOUND), job=None, plan_problems=(problem,))
    text = Parsed(report_html([broken], FleetSummary({}, 0, 1, paused=False), [], "x")).text
    assert "it is broken" in text
    assert "mend it" in text
