"""Which tables are planned, by which dry run, and what is forecast for whom."""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import Any

import pytest

from lakeferry.api.move_list import Mover
from lakeferry.api.move_list_file import Wanted
from lakeferry.errors import InvalidInput
from lakeferry.fleet.fleet_states import FleetState
from lakeferry.fleet.inventory import (
    FleetJob,
    FleetTable,
    FleetWriter,
    MoveForecast,
    TableMark,
    TableSurvey,
)
from lakeferry.fleet.planning import (
    FleetPlanner,
    TableSelection,
    WaveRule,
    clients_of,
    may_be_planned,
    not_yet_there,
    replanned,
    wanted_by_list,
    wanted_by_rule,
)
from lakeferry.fleet.targets import NESTED, TAKEN, TargetRule
from lakeferry.storage import open_store
from lakeferry.table import DeltaLog
from tests.support.history import Append, History

DELTA_RS = FleetWriter("delta-rs:py-1.6.6", "delta-rs", "1.6.6", 1, 3, 0)
LAKEFERRY = FleetWriter("Lakeferry/0.1.0", "Lakeferry", "0.1.0", 1, 3, 0)
SPARK = FleetWriter("Apache-Spark/4.2.0 Delta-Lake/4.4.0", "delta-spark", "4.4.0", 1, 3, 0)


def table(uri: str, size: int | None = 10, **values: Any) -> FleetTable:
    survey = TableSurvey(TableMark(1, 1, 1), size_bytes=size)
    root = uri.rpartition("/")[0]
    return replace(FleetTable(1, uri, root, None, FleetState.FOUND, survey, 0), **values)


def job(of: FleetTable, wave: int = 1) -> FleetTable:
    made = FleetJob(
        1, of.uri, of.uri, f"{of.uri}-new", wave, {"mode": "writer-only"}, FleetState.PLANNED
    )
    return replace(of, job=made, state=FleetState.PLANNED)


@pytest.fixture
def root() -> str:
    return f"memory://{uuid.uuid4().hex}"


def made(root: str, *names: str) -> list[FleetTable]:
    for name in names:
        History().then(Append(2)).write(open_store(f"{root}/old/{name}"), with_data=True)
    return [table(f"{root}/old/{name}") for name in names]


def test_tables_are_selected_by_pattern_and_size() -> None:
    orders = table("s3://lake/eu/orders", 100, name="sql:sales.eu.orders")
    has = {
        TableSelection(): True,
        TableSelection(("orders",)): True,
        TableSelection(("ord*", "x")): True,
        TableSelection(("s3://lake/eu/*",)): True,
        TableSelection(("sales.*",)): True,
        TableSelection(("eu",)): False,
        TableSelection(min_bytes=100, max_bytes=100): True,
        TableSelection(min_bytes=101): False,
        TableSelection(max_bytes=99): False,
        TableSelection(("orders",), min_bytes=101): False,
    }
    assert {each: each.has(orders) for each in has} == has
    unknown = table("s3://lake/t", None)
    assert TableSelection().has(unknown)
    assert not TableSelection(max_bytes=99).has(unknown)


def test_what_is_done_runs_or_is_gone_is_not_planned() -> None:
    found = table("s3://lake/t")
    assert may_be_planned(found)
    assert may_be_planned(replace(found, state=FleetState.FAILED))
    assert not may_be_planned(replace(found, state=FleetState.DONE))
    assert not may_be_planned(replace(found, state=FleetState.RUNNING))
    assert not may_be_planned(replace(found, survey=TableSurvey()))


def test_a_rule_leaves_out_what_has_arrived_already() -> None:
    survey = TableSurvey(TableMark(2, 1, 1), redirect_state="READY", redirect_target="s3://b/t")
    moved = table("s3://a/t", survey=survey, state=FleetState.DONE)
    arrived, inside, other = table("s3://b/t"), table("s3://new/x/t"), table("s3://newer/t")
    tables = [moved, arrived, inside, other]
    assert not_yet_there(tables, tables, "s3://new") == [moved, other]
    assert not_yet_there(tables, tables, "s3://new/{name}") == [moved, inside, other]
    assert not_yet_there(tables, tables, "sql:a.b.{name}") == [moved, inside, other]


def test_a_plan_has_the_forecast_of_a_dry_run_and_changes_nothing(root: str) -> None:
    tables = made(root, "a", "b")
    moves = wanted_by_rule(tables, TargetRule(f"{root}/new"), {"mode": "writer-only"})
    with Mover() as mover:
        planner = FleetPlanner(mover.plan, pauses_ms=(10, 30, 50))
        found = planner.plan(moves, WaveRule(wave=3), [each.uri for each in tables])
    assert found.refused == {}
    first = found.plans[0]
    assert (first.uri, first.target, first.wave) == (f"{root}/old/a", f"{root}/new/a", 3)
    assert first.options == {"mode": "writer-only"}
    forecast = first.forecast
    # Files of the table alone, as the survey counts them: the log isn't among them.
    snapshot = DeltaLog(open_store(f"{root}/old/a")).snapshot()
    assert (forecast.files, forecast.bytes) == (snapshot.num_files, snapshot.size_bytes)
    assert (forecast.pause_ms, forecast.pause_basis) == (30, "the median of 3 finished moves")
    assert list(open_store(f"{root}/new").list("")) == []
    assert [step["op"] for step in found.as_steps()] == ["plan_move"] * 2


def test_what_a_dry_run_refuses_is_a_problem_with_a_remedy(root: str) -> None:
    tables = [*made(root, "a", "b"), table(f"{root}/old/nowhere")]
    History().write(open_store(f"{root}/new/b"))
    moves = wanted_by_rule(tables, TargetRule(f"{root}/new"), {})
    with Mover() as mover:
        found = FleetPlanner(mover.plan).plan(moves, WaveRule(), [])
    assert [plan.uri for plan in found.plans] == [f"{root}/old/a"]
    problems = {uri[-1]: problem for uri, (problem,) in found.refused.items()}
    assert problems["b"].code == "redirect_target_not_empty"
    assert problems["e"].code == "table_not_found"
    assert problems["b"].remedy


def test_targets_in_each_other_s_way_are_not_even_tried(root: str) -> None:
    first, second, third = (table(f"{root}/{name}/t") for name in "abc")
    places = {first: f"{root}/new", second: f"{root}/new", third: f"{root}/a/t/x"}
    moves = [(each, Wanted(0, each.uri, target)) for each, target in places.items()]

    def never(_: Wanted) -> list[dict[str, Any]]:
        raise AssertionError

    found = FleetPlanner(never).plan(moves, WaveRule(), [each.uri for each in places])
    assert {uri: problem.code for uri, (problem,) in found.refused.items()} == {
        first.uri: TAKEN,
        second.uri: TAKEN,
        third.uri: NESTED,
    }


def test_waves_are_given_chosen_by_size_or_kept() -> None:
    moves = [(table(f"s3://a/{size}", size), f"s3://b/{size}") for size in (3, 1, 2)]
    assert set(WaveRule(wave=7).assign(moves).values()) == {7}
    assert WaveRule(waves=3).assign(moves) == {"s3://a/1": 1, "s3://a/2": 2, "s3://a/3": 3}
    assert set(WaveRule().assign(moves).values()) == {1}
    kept = [(job(table("s3://a/1"), 4), "s3://b/1")]
    assert WaveRule().assign(kept) == {"s3://a/1": 4}


def test_plans_that_there_are_get_other_waves() -> None:
    tables = [job(table("s3://a/1", 1)), job(table("s3://a/2", 2)), table("s3://a/3")]
    found = replanned(tables, WaveRule(waves=2))
    (plan,) = found.plans
    assert (plan.uri, plan.target, plan.wave) == ("s3://a/2", "s3://a/2-new", 2)
    assert plan.options == {"mode": "writer-only"}


def test_a_list_names_tables_by_place_or_name() -> None:
    orders = table("s3://a/orders", name="sql:a.b.orders")
    other, done = table("s3://a/other"), table("s3://a/done", state=FleetState.DONE)
    moves = [
        Wanted(2, "sql:a.b.orders", "s3://b/orders", {"mode": "writer-only"}),
        Wanted(3, "s3://a/other", "s3://b/other"),
        Wanted(4, "s3://a/done", "s3://b/done"),
    ]
    found = wanted_by_list([orders, other, done], moves)
    assert [(each.uri, wanted.source, wanted.target) for each, wanted in found] == [
        ("s3://a/orders", "s3://a/orders", "s3://b/orders"),
        ("s3://a/other", "s3://a/other", "s3://b/other"),
    ]
    with pytest.raises(InvalidInput, match="no scan has found") as refused:
        wanted_by_list([orders], moves)
    assert refused.value.fields["sources"] == ["s3://a/other", "s3://a/done"]


def test_a_table_of_unity_catalog_is_moved_by_its_name() -> None:
    named = table("s3://a/orders", name="unity:a.b.orders")
    ((_, wanted),) = wanted_by_rule([named], TargetRule("s3://new"), {})
    assert wanted.source == "unity:a.b.orders"
    ((_, listed),) = wanted_by_list([named], [Wanted(2, "s3://a/orders", "s3://b/orders")])
    assert listed.source == "unity:a.b.orders"
    found = FleetPlanner(lambda _: []).plan([(named, wanted)], WaveRule(), [])
    assert [(plan.uri, plan.named_source) for plan in found.plans] == [
        ("s3://a/orders", "unity:a.b.orders")
    ]


def test_a_new_name_in_a_catalog_gets_a_place() -> None:
    ((_, wanted),) = wanted_by_rule(
        [table("s3://a/orders")], TargetRule("sql:x.y.{name}", "s3://new"), {"data": "reference"}
    )
    assert wanted.target == "sql:x.y.orders"
    assert wanted.options == {"data": "reference", "location": "s3://new/orders"}


def test_clients_are_told_what_the_move_means_for_them() -> None:
    def after(mode: str, **more: Any) -> list[str]:
        wanted = Wanted(0, "s3://a", "s3://b", {"mode": mode, **more})
        survey = TableSurvey(features=("appendOnly",), writers=(LAKEFERRY, DELTA_RS, SPARK))
        found = clients_of(survey, wanted, 40)
        assert {each.before for each in found} == {"reads and writes"}
        assert all("40 ms" in each.during for each in found)
        assert all(each.source for each in found)
        return [each.after for each in found]

    follows, blocked, also = after("reader-writer")
    assert follows == "reads and writes: it follows the redirect"
    assert blocked == also
    assert blocked.startswith("neither reads nor writes by the old path; by the new path: reads")
    _, frozen, option = after("writer-only")
    assert frozen.startswith("reads the frozen copy and doesn't write by the old path; by the new")
    assert "unless spark.databricks" in option
    assert "unless" not in after("writer-only", dialects=["rfc"])[2]


def test_a_first_move_s_pause_is_assumed() -> None:
    def steps(_: Wanted) -> list[dict[str, Any]]:
        return []

    def pause(source: str, target: str) -> MoveForecast:
        move = (table(source), Wanted(0, source, target))
        return FleetPlanner(steps).plan([move], WaveRule(), []).plans[0].forecast

    local, remote = pause("file:///a", "file:///b"), pause("s3://a/t", "s3://b/t")
    assert (local.pause_ms or 0) < (remote.pause_ms or 0)
    assert "no move has finished" in str(local.pause_basis)
