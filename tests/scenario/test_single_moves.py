"""One job of a fleet that failed or was stopped is resumed or cancelled by itself."""

from __future__ import annotations

import os
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest

import lakeferry
from lakeferry.api.move_list import Mover
from lakeferry.api.move_list_file import Wanted
from lakeferry.api.redirects import Redirects
from lakeferry.errors import (
    Interrupted,
    InvalidInput,
    RedirectInProgress,
    StorageUnavailable,
)
from lakeferry.fleet import single_moves
from lakeferry.fleet.fleet_states import FleetEvent, FleetState
from lakeferry.fleet.inventory import FleetTable
from lakeferry.fleet.job_changes import JobChanges, JobEnd
from tests.support.forked import ForkedRun
from tests.support.lake import Lake, on_disk
from tests.unit.cli.program import environment


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return on_disk(tmp_path)


def fleet_of(lake: Lake) -> lakeferry.Fleet:
    return lakeferry.Fleet(environment=environment(lake.home))


def only_table(fleet: lakeferry.Fleet) -> FleetTable:
    (table,) = fleet.status().tables
    assert table.job is not None
    return table


def stopped_while_it_copied(lake: Lake) -> int:
    """Stop the move of a table when it has begun to copy; return its job."""
    lake.make("old/t")
    fleet_of(lake).scan(lake.uri("old"))
    fleet_of(lake).plan(to=lake.uri("new"))

    fleet = fleet_of(lake)
    job = only_table(fleet).job
    assert job is not None
    with fleet.database() as database:

        def stop(what: str, done: int, total: int) -> None:
            if what == "copying the log":
                raise Interrupted("interrupted")

        changes = JobChanges(database)
        changes.begin_run("somebody", None, {})
        changes.take("somebody", 1, 1, 60_000)
        with Mover(environment=environment(lake.home)) as mover:
            moved = mover.move(Wanted(0, job.source, job.target, job.options), stop)
        assert moved.error is not None
        changes.report(
            "somebody", [], [JobEnd(job.id, job.uri, FleetEvent.STOP, None, moved.error)], [], 0
        )
    assert only_table(fleet).state is FleetState.STOPPED
    assert lake.done("redirect", "status", lake.uri("old/t"))["unfinished"] is not None
    return job.id


def test_a_stopped_move_is_resumed_and_recorded(lake: Lake) -> None:
    job_id = stopped_while_it_copied(lake)
    fleet = fleet_of(lake)
    moved = fleet.resume(job_id)
    assert moved.error is None
    assert only_table(fleet).state is FleetState.DONE
    assert fleet.history(job_id=job_id)[-1].kind == "finish"
    assert lake.done("redirect", "resolve", lake.uri("old/t"))["location"] == lake.uri("new/t")
    assert lake.done("fleet", "run")["moved"] == 0


def test_a_stopped_move_is_cancelled_and_not_planned_any_more(lake: Lake) -> None:
    job_id = stopped_while_it_copied(lake)
    fleet = fleet_of(lake)
    outcome = fleet.cancel(job_id)
    assert outcome is not None
    (table,) = fleet.status().tables
    assert (table.state, table.job) == (FleetState.FOUND, None)
    assert fleet.history(job_id=job_id)[-1].kind == "withdraw"
    left = [each for each in (lake.folder / "new").rglob("*") if each.is_file()]
    assert left == []
    assert lake.done("redirect", "status", lake.uri("old/t"))["unfinished"] is None


def test_a_move_that_failed_before_it_began_is_tried_again(lake: Lake) -> None:
    lake.make("old/t")
    fleet = fleet_of(lake)
    fleet.scan(lake.uri("old"))
    fleet.plan(to=lake.uri("new"))
    lake.make("new/t")
    fleet.run()
    table = only_table(fleet)
    assert table.state is FleetState.FAILED
    assert table.job is not None
    assert fleet.resume(table.job.id).error is not None
    assert only_table(fleet).state is FleetState.FAILED
    shutil.rmtree(lake.folder / "new" / "t")
    assert fleet.resume(table.job.id).error is None
    assert only_table(fleet).state is FleetState.DONE


def test_a_failed_move_that_left_nothing_is_only_taken_out_of_the_plan(lake: Lake) -> None:
    lake.make("old/t")
    fleet = fleet_of(lake)
    fleet.scan(lake.uri("old"))
    fleet.plan(to=lake.uri("new"))
    lake.make("new/t")
    fleet.run()
    table = only_table(fleet)
    assert table.job is not None
    before = lake.tree().keys()
    assert fleet.cancel(table.job.id) is None
    assert {each for each in before if "/lake/" in each} <= lake.tree().keys()
    (after,) = fleet.status().tables
    assert after.state is FleetState.FOUND


@pytest.mark.parametrize("others", ["copying", "enabling", "frozen"])
def test_what_somebody_else_does_with_the_table_isnt_cancelled(lake: Lake, others: str) -> None:
    lake.make("old/t")
    fleet = fleet_of(lake)
    fleet.scan(lake.uri("old"))
    fleet.plan(to=lake.uri("new"))
    moments = {
        "copying": "precopy/target/PUT/after",
        "enabling": "tail/target/PUT_IF_ABSENT/before",
    }
    if others in moments:
        places = [str(lake.folder / "old" / "t"), str(lake.folder / "elsewhere" / "t")]
        with ForkedRun(
            ["killed_move", "enable", *places, "--at", moments[others]],
            cwd=lake.folder,
            env={**os.environ, "PYTHONWARNINGS": "error"},
            module="tests.support.killed_move",
        ) as process:
            assert process.wait(120.0).returncode == -signal.SIGKILL
    else:
        lake.done("redirect", "freeze", lake.uri("old/t"))
    begun = lake.done("redirect", "status", lake.uri("old/t"))
    assert (begun["unfinished"] is None) == (others != "copying")
    fleet.run()
    table = only_table(fleet)
    assert table.state is FleetState.FAILED
    assert table.job is not None
    assert fleet.cancel(table.job.id) is None
    assert lake.done("redirect", "status", lake.uri("old/t")) == begun
    assert only_state(fleet) is FleetState.FOUND


def only_state(fleet: lakeferry.Fleet) -> FleetState:
    (table,) = fleet.status().tables
    return table.state


@pytest.mark.parametrize(
    ("what", "ends"), [("cancel", FleetState.FOUND), ("resume", FleetState.DONE)]
)
def test_a_move_that_is_being_settled_is_begun_by_nobody_else(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, what: str, ends: FleetState
) -> None:
    job_id = stopped_while_it_copied(lake)
    begun: list[FleetState] = []
    kind, name = (Redirects, "cancel") if what == "cancel" else (Mover, "move")
    work = getattr(kind, name)

    def beside_others(*given: object) -> object:
        begun.append(only_table(fleet_of(lake)).state)
        for settle in (fleet_of(lake).resume, fleet_of(lake).cancel):
            with pytest.raises(RedirectInProgress, match="can't be resumed or cancelled alone"):
                settle(job_id)
        with fleet_of(lake).database() as database:
            changes = JobChanges(database)
            changes.begin_run("somebody", None, {})
            assert changes.take("somebody", 1, 1, 60_000) == ()
        return work(*given)

    monkeypatch.setattr(kind, name, beside_others)
    getattr(fleet_of(lake), what)(job_id)
    assert begun == [FleetState.RUNNING]
    (table,) = fleet_of(lake).status().tables
    assert table.state is ends


@pytest.mark.parametrize("what", ["cancel", "resume"])
def test_the_progress_of_a_move_that_is_settled_is_recorded(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Pages show it as that of a run, and other processes see that it goes on."""
    job_id = stopped_while_it_copied(lake)
    seen: list[tuple[str | None, int | None, int | None]] = []
    observed: list[str] = []
    monkeypatch.setattr(single_moves, "_REPORT_S", 0.01)

    def progress() -> tuple[str | None, int | None, int | None]:
        job = only_table(fleet_of(lake)).job
        assert job is not None
        # How it ended before isn't said of it any more.
        assert (job.error, job.ended_ms) == (None, None)
        return job.step, job.done, job.total

    def until(*wanted: object) -> None:
        deadline = time.monotonic() + 60
        while progress() != wanted:
            assert time.monotonic() < deadline, progress()
        seen.append(progress())

    kind, name = (Redirects, "cancel") if what == "cancel" else (Mover, "move")
    work = getattr(kind, name)

    def slowly(self: Any, *given: Any) -> object:
        until({"cancel": "cancelling", "resume": "resuming"}[what], 0, 0)
        observe = self.setting.observer if what == "cancel" else given[1]
        for done in (1, 2):
            observe("copying files", done, 2)
            until("copying files", done, 2)
        return work(self, *given)

    monkeypatch.setattr(kind, name, slowly)
    fleet = lakeferry.Fleet(
        environment=environment(lake.home), observer=lambda step, *_: observed.append(step)
    )
    getattr(fleet, what)(job_id)
    assert len(seen) == 3
    assert "copying files" in observed
    steps = [e.detail["step"] for e in fleet.history(job_id=job_id) if e.kind == "step"]
    assert "copying files" in steps


def test_a_job_that_could_not_be_cancelled_says_why(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = stopped_while_it_copied(lake)

    def refuse(*_: object) -> None:
        raise StorageUnavailable("the store doesn't answer")

    monkeypatch.setattr(Redirects, "cancel", refuse)
    with pytest.raises(StorageUnavailable):
        fleet_of(lake).cancel(job_id)
    monkeypatch.undo()
    job = only_table(fleet_of(lake)).job
    assert job is not None
    assert job.state is FleetState.FAILED
    assert job.error is not None
    assert job.error["message"] == "the store doesn't answer"
    assert fleet_of(lake).cancel(job_id) is not None


def test_a_job_that_is_not_there_is_refused(lake: Lake) -> None:
    with pytest.raises(InvalidInput):
        fleet_of(lake).resume(7)
