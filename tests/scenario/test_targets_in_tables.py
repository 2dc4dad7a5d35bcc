"""A table isn't moved into the folder of another one: VACUUM there would delete its files."""

from __future__ import annotations

from pathlib import Path

import pytest

import lakeferry
from lakeferry.errors import Interrupted, InvalidInput
from tests.support.lake import Lake, on_disk
from tests.unit.cli.program import environment


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    made = on_disk(tmp_path)
    made.make("old/t")
    made.make("other")
    return made


@pytest.mark.parametrize("target", ["other/t", "other/deep/er/t"])
def test_a_target_in_another_table_is_refused(lake: Lake, target: str) -> None:
    before = lake.tree()
    with pytest.raises(InvalidInput, match="inside another one"):
        lakeferry.Table(lake.uri("old/t")).redirect(lake.uri(target))
    assert lake.tree() == before


def test_a_target_in_a_table_that_is_still_being_copied_is_refused(lake: Lake) -> None:
    def stop(what: str, done: int, total: int) -> None:
        if what == "copying data" and done == total:
            raise Interrupted("interrupted")

    with pytest.raises(Interrupted):
        lakeferry.Table(lake.uri("other")).redirect(lake.uri("new"), engine="local", observer=stop)
    before = lake.tree()
    move = lakeferry.Table(lake.uri("old/t")).redirect
    with pytest.raises(InvalidInput, match="inside another one") as refused:
        move(lake.uri("new/t"))
    assert "a table that is moving to" in str(refused.value.cause)
    assert lake.tree() == before
    lakeferry.Table(lake.uri("other")).redirect_cancel()
    move(lake.uri("new/t"), engine="local")


def test_a_fleet_plans_no_move_into_a_table_that_no_scan_has_found(lake: Lake) -> None:
    fleet = lakeferry.Fleet(environment=environment(lake.home))
    fleet.scan(lake.uri("old"))
    (table,) = fleet.plan(to=lake.uri("other")).tables
    assert table.job is None
    assert "inside another one" in table.plan_problems[0].message


def test_a_folder_that_only_has_the_name_of_a_log_is_no_table(lake: Lake) -> None:
    (lake.folder / "new" / "_delta_log").mkdir(parents=True)
    (lake.folder / "new" / "_delta_log" / "0notes.txt").write_text("none")
    lakeferry.Table(lake.uri("old/t")).redirect(lake.uri("new/t"))
    assert lake.done("redirect", "resolve", lake.uri("old/t"))["location"] == lake.uri("new/t")
