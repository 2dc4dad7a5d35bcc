"""``/fleet``: a page of many tables, filters, and what a newcomer does next."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import sqlalchemy as sa

from lakeferry.fleet.fleet_states import FleetState
from lakeferry.fleet.records import FleetSummary
from lakeferry.web.pages.fleet_overview import ROWS_ON_A_PAGE, next_step
from tests.unit.web.console_for_tests import Visitor, local_visitor, record

MANY = 10_000
PAYLOAD_BYTES = 200_000


@pytest.fixture
def visitor(tmp_path: Path) -> Visitor:
    return local_visitor(tmp_path)


def rows(text: str) -> list[str]:
    found = re.findall(r'<th scope="row"><a href="[^"]*">(.*?)</a>', text)
    return [each.replace("<wbr>", "") for each in found]


def link(text: str, rel: str) -> str:
    found = re.search(rf'<a href="/-([^"]*)" rel="{rel}"', text)
    assert found is not None
    return found[1].replace("&amp;", "&")


def test_ten_thousand_tables_are_a_small_page_each(visitor: Visitor) -> None:
    record(visitor.console, *(f"file:///lake/t{number:05}" for number in range(MANY)))
    statements: list[str] = []
    engine = visitor.console.database._engine()
    sa.event.listen(engine, "before_cursor_execute", lambda *said: statements.append(said[2]))
    text = visitor.page("/fleet?sort=uri")
    selects = [each for each in statements if each.startswith("SELECT")]
    assert len(selects) < 15
    assert len(text.encode()) < PAYLOAD_BYTES
    assert rows(text) == [f"/lake/t{number:05}" for number in range(ROWS_ON_A_PAGE)]
    assert "1–50 of 10,000" in text
    second = visitor.page(link(text, "next"))
    assert rows(second)[0] == "/lake/t00050"
    assert rows(visitor.page(link(second, "prev"))) == rows(text)
    assert rows(visitor.page(f"/fleet?offset={MANY - 5}"))[-1] == "/lake/t09999"
    assert rows(visitor.page("/fleet?text=t0999&sort=uri&down=yes"))[0] == "/lake/t09999"


def test_filters_are_combined_and_kept_by_links(visitor: Visitor) -> None:
    record(visitor.console, "file:///lake/a", size=5)
    record(visitor.console, "file:///lake/b", size=50, problems=("it is broken",))
    record(visitor.console, "file:///lake/c", size=500, plans=True)
    assert rows(visitor.page("/fleet?state=PLANNED")) == ["/lake/c"]
    assert rows(visitor.page("/fleet?wave=1")) == ["/lake/c"]
    assert rows(visitor.page("/fleet?problems=yes")) == ["/lake/b"]
    assert rows(visitor.page("/fleet?text=%2Fb&state=FOUND")) == ["/lake/b"]
    assert rows(visitor.page("/fleet?text=new%2Fc")) == ["/lake/c"]
    assert rows(visitor.page("/fleet?sort=size_bytes&down=yes")) == [
        "/lake/c",
        "/lake/b",
        "/lake/a",
    ]
    text = visitor.page("/fleet?text=%2Fb&problems=yes")
    assert "text=%2Fb&amp;problems=yes&amp;sort=size_bytes&amp;down=yes" in text
    assert "No table fits" in visitor.page("/fleet?text=%25")


@pytest.mark.parametrize(
    "query",
    ["sort=;drop", "state=NONE", "wave=-1", "wave=x", "offset=-5", "offset=9e9", "down=1&down=2"],
)
def test_what_makes_no_sense_is_left_out(visitor: Visitor, query: str) -> None:
    record(visitor.console, "file:///lake/a")
    assert rows(visitor.page(f"/fleet?{query}")) == ["/lake/a"]


def test_live_regions_are_the_same_as_on_the_page(visitor: Visitor) -> None:
    record(visitor.console, "file:///lake/a", plans=True)
    regions = re.compile(r'id="([^"]+)" data-live')
    for path in ("/fleet", "/jobs", "/jobs/1", "/fleet/tables/1"):
        whole = visitor.page(path)
        status, live = visitor.get(path, **{"Lakeferry-Live": "1"})
        assert status == 200
        assert regions.findall(live) == regions.findall(whole) != []
        assert "<header" not in live


def test_a_note_is_shown_once(visitor: Visitor) -> None:
    visitor.post("/fleet/pause", confirmed="yes")
    assert "already paused" in visitor.page("/jobs")
    assert "already paused" not in visitor.page("/jobs")


def test_the_next_step_follows_the_states() -> None:
    def step(is_running: bool = False, **counts: int) -> str:
        states = {FleetState[name]: count for name, count in counts.items()}
        return next_step(FleetSummary(states, 0, 0, paused=False), is_running=is_running)

    assert step() == "scan"
    assert step(FOUND=3) == "plan"
    assert step(FOUND=3, PLANNED=1) == "run"
    assert step(FAILED=1, DONE=2) == "run"
    # Its run was killed.
    assert step(RUNNING=1, DONE=2) == "run"
    assert step(PLANNED=1, is_running=True) == "running"
    assert step(DONE=2) == "done"


def test_the_report_is_a_download(visitor: Visitor) -> None:
    record(visitor.console, "file:///lake/a")
    answer = visitor.client.get("/-/fleet/report")
    assert answer.headers["content-disposition"] == 'attachment; filename="fleet.html"'
    assert "/lake/a" in answer.text
