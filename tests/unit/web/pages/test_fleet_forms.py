"""The forms of ``/fleet``: what they take, what they begin, and which command they name."""

from __future__ import annotations

from pathlib import Path

import pytest

from lakeferry.fleet.fleet_states import FleetState
from tests.unit.web.console_for_tests import Visitor, local_visitor, record


@pytest.fixture
def visitor(tmp_path: Path) -> Visitor:
    return local_visitor(tmp_path)


@pytest.mark.parametrize(
    ("path", "fields", "said"),
    [
        ("/fleet/demo", {"folder": "demo"}, "begin it with /"),
        ("/fleet/demo", {"folder": "~nobody-has-this-name/demo"}, "begin it with /"),
        ("/fleet/demo", {"folder": "/tmp/\0demo"}, "begin it with /"),
        ("/fleet/plan", {"to": "/new", "mode": "none"}, "use reader-writer or writer-only"),
        ("/fleet/plan", {}, "give a new place for the tables"),
        ("/fleet/plan", {"to": "/new", "waves": "0"}, "isn’t a whole number"),
        ("/fleet/plan", {"to": "/new", "waves": "2.5"}, "isn’t a whole number"),
        ("/fleet/run", {"wave": "x"}, "isn’t a whole number"),
        ("/fleet/run", {"parallel": "65"}, "at most 64 tables"),
    ],
)
def test_a_form_with_a_wrong_value_says_what_is_right(
    visitor: Visitor, path: str, fields: dict[str, str], said: str
) -> None:
    status, text = visitor.post(path, None, confirmed="yes", **fields)
    assert status == 400
    assert said in text.replace("&#39;", "’")
    assert visitor.console.work.running() == []


def test_a_scan_and_a_plan_name_their_commands(visitor: Visitor, tmp_path: Path) -> None:
    place = f"{tmp_path}/it's here"
    assert visitor.post("/fleet/scan", place=place)[0] == 303
    assert visitor.console.work.wait(30)
    scan = visitor.console.work.newest("scan")
    assert scan is not None
    assert scan.command == f"lakeferry fleet scan '{tmp_path}/it'\"'\"'s here'"
    assert scan.error is not None
    assert scan.error["code"] == "table_not_found"
    assert "it&#39;s here" in visitor.page("/fleet")
    visitor.post("/fleet/plan", to="/new", waves="3", mode="writer-only", select="eu/*")
    assert visitor.console.work.wait(30)
    plan = visitor.console.work.newest("plan")
    assert plan is not None
    wanted = "fleet plan --to /new --waves 3 --mode writer-only --select 'eu/*'"
    assert plan.command == f"lakeferry {wanted}"


def test_a_plan_that_plans_nothing_says_why(visitor: Visitor) -> None:
    record(visitor.console, "file:///lake/a")
    visitor.post("/fleet/plan", to="/lake")
    assert visitor.console.work.wait(30)
    assert "at the new place already" in visitor.page("/fleet")


def test_a_run_names_how_many_tables_it_moves(visitor: Visitor) -> None:
    record(visitor.console, "file:///lake/a", "file:///lake/b", plans=True)
    status, text = visitor.post("/fleet/run", wave="1", parallel="2", window="22:00-05:00")
    assert status == 200
    assert "Move 2 tables?" in text
    assert "lakeferry fleet run --wave 1 --parallel 2 --window 22:00-05:00 --wait" in text
    assert visitor.console.work.running() == []


def test_a_table_is_taken_out_of_the_plan_alone(visitor: Visitor) -> None:
    record(visitor.console, "file:///lake/a", "file:///lake/[ab]", plans=True)
    assert visitor.post("/fleet/withdraw", uri="file:///lake/[ab]", confirmed="yes")[0] == 303
    states = {each.uri: each.state for each in visitor.console.records.tables().tables}
    assert states == {
        "file:///lake/a": FleetState.PLANNED,
        "file:///lake/[ab]": FleetState.FOUND,
    }
