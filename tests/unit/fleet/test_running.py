"""Runs of jobs: their order, leases, pauses and windows, and a database that goes away."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from lakeferry.api.move_list import MovedTable, Mover
from lakeferry.api.move_list_file import Wanted
from lakeferry.api.redirects import Redirects
from lakeferry.engine import Observer, unobserved
from lakeferry.errors import CatalogUnavailable, Interrupted
from lakeferry.fleet.fleet_database import FleetDatabase
from lakeferry.fleet.fleet_states import FleetState
from lakeferry.fleet.inventory import FoundTable, MovePlan, TableMark, TableSurvey
from lakeferry.fleet.inventory_changes import InventoryChanges
from lakeferry.fleet.job_changes import JobChanges
from lakeferry.fleet.records import FleetRecords, TableQuery
from lakeferry.fleet.running import FleetRun, FleetRunner, RunOptions, TableMover
from lakeferry.fleet.waves import RunWindow
from lakeferry.redirect.outcome import Outcome
from lakeferry.redirect.states import RedirectState
from lakeferry.storage import open_store
from tests.support.history import Append, History

ENDED = "00000000-1-1/another machine"
PATIENCE_S = 30.0


@dataclass
class World:
    """Tables in memory, planned in a database of their own."""

    root: str
    database: FleetDatabase

    def make(self, *names: str, wave: int = 1, with_table: bool = True) -> None:
        tables = []
        for name in names:
            if with_table:
                History().then(Append(2)).write(open_store(self.old(name)), with_data=True)
            found = FoundTable(self.old(name), self.root)
            tables.append((found, TableSurvey(TableMark(1, 1, 1))))
        self.inventory.record(tables)
        self.inventory.plan([MovePlan(self.old(name), self.new(name), wave) for name in names])

    def old(self, name: str) -> str:
        return f"{self.root}/old/{name}"

    def new(self, name: str) -> str:
        return f"{self.root}/new/{name}"

    @property
    def inventory(self) -> InventoryChanges:
        return InventoryChanges(self.database)

    @property
    def jobs(self) -> JobChanges:
        return JobChanges(self.database)

    @property
    def records(self) -> FleetRecords:
        return FleetRecords(self.database)

    def states(self) -> dict[str, str]:
        tables = self.records.tables(TableQuery(limit=None)).tables
        return {table.uri.rpartition("/")[2]: table.state.value for table in tables}

    def kinds(self, name: str) -> list[str]:
        kinds = [e.kind for e in self.records.history() if e.uri == self.old(name)]
        return [kind for kind in kinds if kind not in ("found", "plan", "step")]

    def runner(
        self,
        mover: TableMover | None = None,
        changes: JobChanges | None = None,
        clock: Callable[[], int] | None = None,
        **options: Any,
    ) -> FleetRunner:
        more = {key: options.pop(key) for key in _OF_RUNNER & options.keys()}
        if clock is not None:
            more["clock_ms"] = clock
        return FleetRunner(
            changes or self.jobs,
            (lambda: mover) if mover is not None else Mover,
            RunOptions(**options),
            report_s=0.01,
            **more,
        )

    def run(self, mover: TableMover | None = None, **options: Any) -> FleetRun:
        return self.runner(mover, **options).run()


_OF_RUNNER = {"locate", "observer", "warn", "blocks_writers", "patience_s", "stop"}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with FleetDatabase(f"sqlite:///{tmp_path}/catalog.sqlite") as database:
        yield World(f"memory://{uuid.uuid4().hex}", database)


class GatedMover:
    """Moves nothing, and says that it did when it is let through."""

    def __init__(self, *, is_open: bool = False) -> None:
        self.begun: list[str] = []
        self.changed = threading.Condition()
        self.gate = threading.Event()
        self.stopped = threading.Event()
        if is_open:
            self.gate.set()

    def move(self, wanted: Wanted, observer: Observer = unobserved) -> MovedTable:
        with self.changed:
            self.begun.append(wanted.source.rpartition("/")[2])
            self.changed.notify_all()
        observer("copying data", 1, 2)
        while not self.gate.wait(0.005):
            if self.stopped.is_set():
                return MovedTable(
                    wanted.source, wanted.target, None, Interrupted("interrupted").as_document()
                )
        outcome = Outcome(RedirectState.READY, wanted.source, wanted.target, 3, changed=True)
        return MovedTable(wanted.source, wanted.target, outcome)

    def stop(self) -> None:
        self.stopped.set()

    def wait_for(self, count: int) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.begun) >= count, PATIENCE_S)


class FailingChanges(JobChanges):
    """A way to a database that can be cut."""

    def __init__(self, database: FleetDatabase) -> None:
        super().__init__(database)
        self.is_cut = False
        self.refused = threading.Event()

    def report(self, *arguments: Any, **named: Any) -> Any:
        self._check()
        return super().report(*arguments, **named)

    def take(self, *arguments: Any, **named: Any) -> Any:
        self._check()
        return super().take(*arguments, **named)

    def _check(self) -> None:
        if self.is_cut:
            self.refused.set()
            raise CatalogUnavailable("the database is gone", remedy="wait")


def in_thread(runner: FleetRunner) -> Callable[[], FleetRun]:
    """Begin a run, and return the function that waits for its end."""
    pool = ThreadPoolExecutor(1)
    future = pool.submit(runner.run)
    pool.shutdown(wait=False)
    return lambda: future.result(PATIENCE_S)


def test_tables_are_moved_wave_by_wave_and_recorded(world: World) -> None:
    world.make("c", "d", wave=2)
    world.make("a", "b", wave=1)
    ended = world.run(parallel=2)
    assert sorted(ended.moved) == [world.old(name) for name in "abcd"]
    assert world.states() == dict.fromkeys("abcd", "DONE")
    history = [e for e in world.records.history() if e.kind in ("take", "finish")]
    order = [(e.kind, (e.uri or "")[-1]) for e in history]
    first_of_two = min(order.index(("take", name)) for name in "cd")
    assert max(order.index(("finish", name)) for name in "ab") < first_of_two
    table = world.records.table(world.old("a"))
    assert table is not None
    assert table.job is not None
    assert table.job.outcome is not None
    assert table.job.outcome["state"] == "READY"
    assert table.survey.redirect_target == world.new("a")
    with Redirects() as redirects:
        assert redirects.status(world.old("a")).target == world.new("a")
    again = world.run()
    assert (again.uris, again.errors) == ((), ())
    assert world.kinds("a") == ["queue", "take", "finish"]


def test_the_steps_of_a_move_are_in_its_history(world: World) -> None:
    world.make("a")
    world.run()
    (job,) = world.records.jobs(world.old("a"))
    steps = [e.detail["step"] for e in world.records.history(job_id=job.id) if e.kind == "step"]
    assert "copying data" in steps


def test_a_failed_move_leaves_the_others_of_its_wave_and_blocks_later_ones(world: World) -> None:
    world.make("missing", with_table=False)
    world.make("a")
    world.make("later", wave=2)
    ended = world.run()
    assert (ended.failed, ended.moved) == ((world.old("missing"),), (world.old("a"),))
    assert ended.blocked_by_wave == 1
    assert [error["code"] for error in ended.errors] == ["table_not_found"]
    assert world.states() == {"missing": "FAILED", "a": "DONE", "later": "QUEUED"}
    # A wave that is asked for by its number doesn't wait.
    assert world.run(wave=2).moved == (world.old("later"),)
    # What failed is tried again by the next run.
    History().then(Append(1)).write(open_store(world.old("missing")), with_data=True)
    assert world.run().moved == (world.old("missing"),)
    assert world.kinds("missing") == ["queue", "take", "fail", "queue", "take", "finish"]


@pytest.mark.parametrize(
    ("spoil", "code"),
    [
        ("target", "redirect_target_not_empty"),
        ("elsewhere", "redirect_illegal_transition"),
        ("gone", "table_not_found"),
    ],
)
def test_what_changed_since_the_plan_is_an_error_of_that_table(
    world: World, spoil: str, code: str
) -> None:
    world.make("a", "b")
    if spoil == "target":
        History().write(open_store(world.new("a")))
    elif spoil == "gone":
        store = open_store(world.old("a"))
        store.delete_many([info.path for info in store.list("")])
    else:
        with Redirects() as redirects:
            redirects.enable(world.old("a"), f"{world.root}/elsewhere")
    ended = world.run()
    assert [error["code"] for error in ended.errors] == [code]
    assert ended.moved == (world.old("b"),)
    table = world.records.table(world.old("a"))
    assert table is not None
    assert table.problems[-1].code == code


@pytest.mark.parametrize("leads_there", [True, False])
def test_a_name_that_leads_elsewhere_by_now_moves_nothing(
    world: World, *, leads_there: bool
) -> None:
    world.make("a")
    name = "unity:x.y.a"
    plan = MovePlan(world.old("a"), world.new("a"), 1, source=name)
    world.inventory.plan([plan])
    mover = GatedMover(is_open=True)
    place = world.old("a") if leads_there else world.old("b")
    ended = world.run(mover, locate=lambda _: place)
    assert bool(ended.moved) is leads_there
    assert len(mover.begun) == int(leads_there)
    assert [error["code"] for error in ended.errors] == ["table_not_found"] * (not leads_there)


def test_a_move_whose_run_was_killed_before_it_was_recorded_is_closed(world: World) -> None:
    world.make("a", "b")
    world.jobs.begin_run(ENDED, None, {})
    taken = world.jobs.take(ENDED, 1, 2, 1)
    with Mover() as mover:
        moved = mover.move(Wanted(0, taken[0].uri, taken[0].target, taken[0].options))
        assert moved.error is None
    version = _newest(world.old("a"))
    ended = world.run()
    assert (ended.unchanged, ended.moved) == ((world.old("a"),), (world.old("b"),))
    assert world.states() == {"a": "DONE", "b": "DONE"}
    assert _newest(world.old("a")) == version


def _newest(uri: str) -> int:
    names = [info.path for info in open_store(uri).list("_delta_log/0")]
    return len([name for name in names if name.endswith(".json")])


def test_runs_on_one_database_share_the_jobs(world: World) -> None:
    names = [f"t{number}" for number in range(12)]
    world.make(*names)
    movers = [GatedMover(), GatedMover()]
    ends = [in_thread(world.runner(mover, parallel=2)) for mover in movers]
    for mover in movers:
        mover.wait_for(2)
    for mover in movers:
        mover.gate.set()
    moved = [uri for end in ends for uri in end().moved]
    assert sorted(moved) == sorted(world.old(name) for name in names)
    assert set(world.states().values()) == {"DONE"}
    begun = movers[0].begun + movers[1].begun
    assert sorted(begun) == sorted(names)


def test_a_job_whose_lease_ends_meanwhile_is_taken_by_the_run_that_waits_for_it(
    world: World,
) -> None:
    world.make("a", "later")
    world.inventory.plan([MovePlan(world.old("later"), world.new("later"), 2)])
    world.jobs.begin_run(ENDED, None, {})
    world.jobs.take(ENDED, 1, 1, 60_000)
    mover = GatedMover(is_open=True)
    end = in_thread(world.runner(mover))
    _until(lambda: [e.kind for e in world.records.history()].count("run_began") == 2)
    with world.database.write() as connection:
        connection.execute(sa.text("UPDATE lakeferry_fleet_jobs SET lease_until_ms = 1"))
    assert end().moved == (world.old("a"), world.old("later"))


def test_a_pause_lets_no_move_begin_and_running_ones_end(world: World) -> None:
    names = [f"t{number}" for number in range(8)]
    world.make(*names)
    mover = GatedMover()
    end = in_thread(world.runner(mover, parallel=2))
    mover.wait_for(2)
    world.jobs.pause(stops_running=False)
    # The moves that were taken and haven't begun are given back.
    _until(lambda: list(world.states().values()).count("RUNNING") == 2)
    mover.gate.set()
    ended = end()
    assert ended.paused
    assert (len(ended.moved), len(mover.begun)) == (2, 2)
    assert sorted(world.states().values()) == ["DONE"] * 2 + ["QUEUED"] * 6
    assert len(world.run(GatedMover(is_open=True)).moved) == 6


def _until(holds: Callable[[], bool]) -> None:
    pause = threading.Event()
    for _ in range(int(PATIENCE_S / 0.01)):
        if holds():
            return
        pause.wait(0.01)
    raise AssertionError("it didn't happen")


def test_a_pause_may_stop_running_moves_and_the_next_run_continues_them(world: World) -> None:
    world.make("a", "b")
    mover = GatedMover()
    end = in_thread(world.runner(mover, parallel=1))
    mover.wait_for(1)
    world.jobs.pause(stops_running=True)
    ended = end()
    assert (ended.stopped, ended.moved, ended.failed) == ((world.old("a"),), (), ())
    assert world.states() == {"a": "STOPPED", "b": "QUEUED"}
    assert len(world.run(GatedMover(is_open=True)).moved) == 2


def test_a_run_that_is_told_to_stop_stops_its_own_moves_alone(world: World) -> None:
    world.make("a", "b")
    stop, mine, others = threading.Event(), GatedMover(), GatedMover()
    ends = in_thread(world.runner(mine, parallel=1, stop=stop))
    mine.wait_for(1)
    goes_on = in_thread(world.runner(others, parallel=1))
    others.wait_for(1)
    stop.set()
    ended = ends()
    assert (ended.stopped, ended.paused) == ((world.old("a"),), True)
    assert not world.records.summary().paused
    others.gate.set()
    assert world.old("b") in goes_on().moved


def test_a_move_that_makes_writers_wait_is_not_stopped_by_a_pause(world: World) -> None:
    world.make("a")
    movers = [GatedMover(), GatedMover(is_open=True)]
    made: Iterator[GatedMover] = iter(movers)
    runner = FleetRunner(
        world.jobs,
        lambda: next(made),
        RunOptions(),
        blocks_writers=lambda uri: uri == world.old("a"),
        report_s=0.01,
    )
    end = in_thread(runner)
    movers[0].wait_for(1)
    world.jobs.pause(stops_running=True)
    ended = end()
    assert (ended.moved, ended.stopped) == ((world.old("a"),), ())


def test_outside_of_its_window_a_run_begins_nothing(world: World) -> None:
    world.make("a")
    noon = 12 * 3_600_000
    window = RunWindow.parse("22:00-05:00", "UTC")
    mover = GatedMover(is_open=True)
    ended = world.run(mover, window=window, clock=lambda: noon)
    assert (ended.uris, ended.opens_ms) == ((), 22 * 3_600_000)
    assert mover.begun == []
    assert world.states() == {"a": "QUEUED"}


def test_a_window_that_closes_lets_running_moves_end(world: World) -> None:
    world.make("a", "b", "c")
    now = 4 * 3_600_000
    window = RunWindow.parse("22:00-05:00", "UTC")
    mover = GatedMover()
    end = in_thread(world.runner(mover, window=window, parallel=1, clock=lambda: now))
    mover.wait_for(1)
    now = 5 * 3_600_000
    _until(lambda: list(world.states().values()).count("RUNNING") == 1)
    mover.gate.set()
    ended = end()
    assert (ended.moved, ended.opens_ms) == ((world.old("a"),), 22 * 3_600_000)


def test_a_run_that_waits_goes_on_when_its_window_opens(world: World) -> None:
    world.make("a")
    now = 12 * 3_600_000
    window = RunWindow.parse("22:00-05:00", "UTC")
    mover = GatedMover(is_open=True)
    end = in_thread(world.runner(mover, window=window, waits=True, clock=lambda: now))
    _until(lambda: world.states() == {"a": "QUEUED"})
    now = 22 * 3_600_000
    assert end().moved == (world.old("a"),)


def test_a_database_that_comes_back_gets_the_results(world: World) -> None:
    world.make("a", "b")
    mover, changes = GatedMover(), FailingChanges(world.database)
    warnings: list[str] = []
    end = in_thread(world.runner(mover, changes, parallel=2, warn=warnings.append))
    mover.wait_for(2)
    changes.is_cut = True
    assert changes.refused.wait(PATIENCE_S)
    mover.gate.set()
    changes.refused.clear()
    assert changes.refused.wait(PATIENCE_S)
    changes.is_cut = False
    ended = end()
    assert (sorted(ended.moved), ended.unrecorded, ended.lost_database) == (
        [world.old("a"), world.old("b")],
        (),
        None,
    )
    assert world.states() == {"a": "DONE", "b": "DONE"}
    assert len(warnings) == 1
    assert "running moves continue" in warnings[0]


@pytest.mark.parametrize("more", [(), ("later",)])
def test_a_database_that_stays_away_makes_no_move_a_failure(
    world: World, more: Sequence[str]
) -> None:
    world.make("a")
    if more:
        world.make(*more, wave=2)
    mover, changes = GatedMover(), FailingChanges(world.database)
    warnings: list[str] = []
    runner = world.runner(mover, changes, warn=warnings.append, patience_s=0.05)
    end = in_thread(runner)
    mover.wait_for(1)
    changes.is_cut = True
    mover.gate.set()
    ended = end()
    assert (ended.moved, ended.failed) == ((world.old("a"),), ())
    assert ended.unrecorded == (world.old("a"),)
    assert any("couldn't be recorded" in text for text in warnings)
    # It is an error only if it isn't known that everything is done.
    assert (ended.lost_database is not None) is bool(more)


def test_an_interrupt_lets_nothing_begin_and_tells_what_is_done(world: World) -> None:
    world.make("a", "b", "c")
    mover = GatedMover()

    def interrupt(_what: str, _done: int, _total: int) -> None:
        if mover.begun:
            raise KeyboardInterrupt

    ended = world.run(mover, parallel=1, observer=interrupt)
    assert ended.interrupted
    assert ended.stopped == (world.old("a"),)
    assert world.states() == {"a": "STOPPED", "b": "QUEUED", "c": "QUEUED"}
    assert FleetState.STOPPED in world.records.summary().counts
