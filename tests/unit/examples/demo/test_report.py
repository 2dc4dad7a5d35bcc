"""The demo's report: of a run that went well, of one that didn't, and with odd texts in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from lakeferry.examples.demo import report
from lakeferry.examples.demo.findings import DemoCheck, Findings, Sight, TimeSpan
from lakeferry.examples.demo.writer import Acknowledged, RefusedAttempt
from lakeferry.redirect.outcome import Outcome
from lakeferry.redirect.states import RedirectState

OLD, NEW = "file:///lake/old/orders", "file:///lake/new/orders"


@pytest.fixture
def found() -> Findings:
    """A run with three appends, the second at the new place after one refusal."""
    return Findings(
        Path("/lake/old/orders"),
        Path("/lake/new/orders"),
        began_ms=1_700_000_000_000,
        enabled=Outcome(RedirectState.READY, OLD, NEW, 5, True, 7, 2048, 12),
        disabled=Outcome(RedirectState.NORMAL, OLD, NEW, 8, True, 1, 100, 34),
        sights=[Sight("delta-rs", "old/orders", 5, 1234, "no: because")],
        checks=[DemoCheck("nothing is lost", True, "0")],
        spans=[TimeSpan("enable", 1_700_000_001_000, 1_700_000_001_012)],
        versions={"enabling": 4, "ready": 5, "dropping": 7, "normal": 8, "last": 9},
        acknowledged=[
            Acknowledged(1_700_000_000_500, OLD, 1, 0),
            Acknowledged(1_700_000_001_500, NEW, 2, 77),
            Acknowledged(1_700_000_002_500, OLD, 1, 0),
        ],
        refused=[RefusedAttempt(1_700_000_001_005, "it moves")],
        rows=4321,
        ended_ms=1_700_000_003_000,
    )


def test_a_run_s_document_counts_by_place_and_by_refusal(found: Findings) -> None:
    assert found.as_document()["writer"] == {
        "commits": 3,
        "commits_at_target": 1,
        "rows_acknowledged": 30,
        "first_id": 10_000_000,
        "refused": 1,
        "retried": 1,
        "longest_wait_ms": 77,
        "lost": 0,
        "doubled": 0,
    }
    assert found.as_document()["duration_ms"] == 3000


def test_the_summary_has_the_numbers_that_matter(found: Findings) -> None:
    told = dict(report.summary(found))
    assert told["rows acknowledged to the writer"] == "30"
    assert told["refused, and retried"] == "1 commit, for 77 ms at most"
    assert told["writers blocked by the move"] == "12 ms"
    assert told["writers blocked by the return"] == "34 ms"
    assert told["copied there"] == "7 files, 2.0 KiB"
    assert told["last version"] == "9, with 4,321 rows"
    found.acknowledged = found.acknowledged[:1]
    assert dict(report.summary(found))["refused, and retried"] == "none"


def test_the_picture_has_a_dot_for_each_commit_at_its_place(found: Findings) -> None:
    page = report.report_page(found)
    assert (page.count('r="4.5" fill="var(--old)"'), page.count('r="4.5" fill="var(--new)"')) == (
        2,
        1,
    )
    assert "<title>it moves</title>" in page
    assert "enable: 12 ms" in page


def test_what_went_wrong_is_in_the_title_and_marked(found: Findings) -> None:
    assert "nobody lost a row" in report.report_page(found)
    found.lost = 10
    found.checks.append(DemoCheck("nothing is lost", False, "10 instead of 0"))
    page = report.report_page(found)
    assert "nobody lost a row" not in page
    assert '<span class="wrong">WRONG</span>' in page
    assert '<li class="bad"><b>10</b>' in page


def test_texts_of_others_are_shown_and_never_obeyed(found: Findings) -> None:
    odd = "<script>alert('&')</script>"
    found.sights = [Sight(odd, odd, 1, 1, odd)]
    found.checks = [DemoCheck(odd, True, odd)]
    found.refused = [RefusedAttempt(1_700_000_001_005, odd)]
    found.old = Path(f"/{odd}")
    page = report.report_page(found)
    assert "<script" not in page
    assert page.count("&lt;script&gt;") >= 6
