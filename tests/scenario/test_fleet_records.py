"""What the fleet's records promise, on SQLite and on a real PostgreSQL."""

from __future__ import annotations

import multiprocessing
import os
import sqlite3
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from lakeferry.catalogs.sql import SqlCatalog
from lakeferry.errors import CatalogUnavailable, IncompatibleVersion, InvalidInput
from lakeferry.fleet.fleet_database import MIGRATIONS, FleetDatabase
from lakeferry.fleet.fleet_schema import FLEET_METADATA, VERSION_TABLE
from lakeferry.fleet.fleet_states import FleetEvent, FleetState
from lakeferry.fleet.inventory import (
    TABLE_GONE,
    FleetProblem,
    FleetWriter,
    FoundTable,
    MoveForecast,
    MovePlan,
    TableMark,
    TableSurvey,
)
from lakeferry.fleet.inventory_changes import InventoryChanges
from lakeferry.fleet.job_changes import JobChanges, JobEnd, JobStep
from lakeferry.fleet.job_records import JobRecords
from lakeferry.fleet.records import FleetRecords, TableQuery
from lakeferry.storage.process_identity import this_process
from tests.support.servers import PostgreSQLServer

ROOT = "s3://old"
LEASE_MS = 60_000
OTHER = "00000000-1-1/other"
"""A run on another machine: nobody here can tell whether it has ended."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """A fleet under test: its database, and both ways to its records."""

    url: str
    database: FleetDatabase

    @property
    def records(self) -> FleetRecords:
        return FleetRecords(self.database)

    @property
    def inventory(self) -> InventoryChanges:
        return InventoryChanges(self.database)

    @property
    def jobs(self) -> JobChanges:
        return JobChanges(self.database)

    def planned(self, *names: str, wave: int = 1) -> None:
        self.inventory.record([found(name) for name in names])
        self.inventory.plan([plan(name, wave) for name in names])

    def begun(self, holder: str, wave: int | None = None) -> int:
        return self.jobs.begin_run(holder, wave, {})

    def states(self) -> dict[str, str]:
        tables = self.records.tables(TableQuery(limit=None)).tables
        return {table.uri.rpartition("/")[2]: table.state.value for table in tables}

    def kinds(self, job_id: int | None = None) -> list[str]:
        return [entry.kind for entry in self.records.history(job_id=job_id)]

    def end(self, holder: str, job_id: int, name: str, event: FleetEvent, **more: Any) -> None:
        end = JobEnd(job_id, f"{ROOT}/{name}", event, **more)
        self.jobs.report(holder, [], [end], [], LEASE_MS)

    def expire_leases(self) -> None:
        with self.database.write() as connection:
            connection.execute(sa.text("UPDATE lakeferry_fleet_jobs SET lease_until_ms = 1"))


def found(name: str, version: int = 3, **values: Any) -> tuple[FoundTable, TableSurvey]:
    survey = TableSurvey(TableMark(version, 1, 2), "id", 100, 7, 2.5, ("appendOnly",))
    return FoundTable(f"{ROOT}/{name}", ROOT), replace(survey, **values)


def plan(name: str, wave: int = 1, target: str = "s3://new") -> MovePlan:
    forecast = MoveForecast(1, 2, 3, 4, "guessed")
    return MovePlan(f"{ROOT}/{name}", f"{target}/{name}", wave, {"mode": "writer-only"}, forecast)


@pytest.fixture(
    params=[
        "sqlite",
        pytest.param(
            "postgresql", marks=[pytest.mark.postgresql, pytest.mark.xdist_group("postgresql")]
        ),
    ]
)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/some/folder/catalog.sqlite"
    server: PostgreSQLServer = request.getfixturevalue("postgresql")
    # To empty a schema is quicker than to create a database.
    server.execute("postgres", "DROP SCHEMA public CASCADE; CREATE SCHEMA public")
    return server.url("postgres")


@pytest.fixture
def fleet(url: str) -> Iterator[Fleet]:
    with FleetDatabase(url) as database:
        yield Fleet(url, database)


@contextmanager
def connected(fleet: Fleet) -> Iterator[sa.Connection]:
    """Yield a connection that isn't the fleet's own."""
    engine = sa.create_engine(fleet.url.replace("postgresql:", "postgresql+psycopg:"))
    try:
        with engine.begin() as connection:
            yield connection
    finally:
        engine.dispose()


def test_reading_creates_nothing(fleet: Fleet, tmp_path: Path) -> None:
    assert fleet.records.tables().total == 0
    assert fleet.records.summary().total == 0
    assert fleet.records.history() == ()
    assert fleet.records.newest_history(5) == ()
    assert fleet.records.marks() == {}
    assert fleet.records.job(1) is None
    assert not (tmp_path / "some").exists()
    if fleet.url.startswith("postgresql"):
        with connected(fleet) as connection:
            assert sa.inspect(connection).get_table_names() == []


def test_the_migrations_make_the_tables_of_the_schema(fleet: Fleet) -> None:
    fleet.planned("t")
    with connected(fleet) as connection:
        inspector = sa.inspect(connection)
        for table in FLEET_METADATA.sorted_tables:
            there = {column["name"]: column for column in inspector.get_columns(table.name)}
            assert list(there) == [column.name for column in table.columns]
            for column in table.columns:
                wanted = column.type.compile(connection.dialect)
                assert str(there[column.name]["type"].compile(connection.dialect)) == wanted
                assert there[column.name]["nullable"] == column.nullable
            names = {index["name"] for index in inspector.get_indexes(table.name)}
            assert names >= {index.name for index in table.indexes}
        version = connection.execute(sa.text(f"SELECT version_num FROM {VERSION_TABLE}")).scalar()
        assert version == MIGRATIONS[-1]


def test_a_catalog_from_before_the_fleet_keeps_its_names(fleet: Fleet) -> None:
    catalog = SqlCatalog(fleet.url)
    made = catalog.register("a.b.t", "/place")
    assert fleet.records.tables().total == 0
    fleet.planned("t")
    assert catalog.get("a.b.t") == made
    assert catalog.register("a.b.u", "/other").name == "a.b.u"


def test_a_fleet_from_before_the_catalog_lets_names_be_registered(fleet: Fleet) -> None:
    fleet.planned("t")
    made = SqlCatalog(fleet.url).register("a.b.t", "/place")
    assert SqlCatalog(fleet.url).get("a.b.t") == made
    assert fleet.states() == {"t": "PLANNED"}


def test_a_database_of_a_newer_version_is_refused_and_not_changed(fleet: Fleet) -> None:
    fleet.planned("t")
    with connected(fleet) as connection:
        connection.execute(sa.text(f"UPDATE {VERSION_TABLE} SET version_num = '9999'"))
    with FleetDatabase(fleet.url) as database:
        for use in (
            lambda: FleetRecords(database).tables(),
            lambda: InventoryChanges(database).record([found("u")]),
            lambda: JobChanges(database).take("me", 1, 1, LEASE_MS),
        ):
            with pytest.raises(IncompatibleVersion, match="9999") as refused:
                use()
            assert "upgrade" in str(refused.value.remedy)


def test_several_that_write_first_make_the_tables_once(fleet: Fleet) -> None:
    def record(number: int) -> None:
        with FleetDatabase(fleet.url) as database:
            InventoryChanges(database).record([found(f"t{number}")])

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(record, range(6)))
    assert len(fleet.states()) == 6


def test_what_is_recorded_comes_back(fleet: Fleet) -> None:
    writer = FleetWriter("delta-rs:py-1.6.6", "delta-rs", "1.6.6", 3, 9, 1_700)
    problem = FleetProblem("corrupt_log", "it is broken", "mend it")
    name = "sql:a.b.t"
    known, survey = found("t", writers=(writer,), problems=(problem,), commits_per_day=0.25)
    fleet.inventory.record([(replace(known, name=name), survey)])
    table = fleet.records.table(f"{ROOT}/t")
    assert table is not None
    assert (table.survey, table.name, table.root) == (survey, name, ROOT)
    assert table.as_document()["engines"] == ["delta-rs:py-1.6.6"]
    # A later scan of the folder doesn't know the name.
    fleet.inventory.record([(known, replace(survey, problems=()))])
    again = fleet.records.table(f"{ROOT}/t")
    assert again is not None
    assert (again.id, again.name, again.problems) == (table.id, name, ())
    assert fleet.kinds() == ["found"]


def test_tables_are_filtered_sorted_and_paged(fleet: Fleet) -> None:
    sizes = {"a": 30, "b": None, "c": 10, "d%": 20}
    fleet.inventory.record([found(name, size_bytes=size) for name, size in sizes.items()])
    fleet.inventory.record([found("c", size_bytes=10, problems=(FleetProblem("x", "y"),))])
    fleet.inventory.plan([plan("a", 2), plan("b", 1)])

    def names(**query: Any) -> list[str]:
        page = fleet.records.tables(TableQuery(**query))
        return [table.uri.rpartition("/")[2] for table in page.tables]

    assert names() == ["a", "b", "c", "d%25"] or names() == ["a", "b", "c", "d%"]
    last = names()[-1]
    assert names(sort="size_bytes") == ["c", last, "a", "b"]
    assert names(sort="size_bytes", descending=True) == ["a", last, "c", "b"]
    assert names(sort="wave") == ["b", "a", "c", last]
    assert names(states=(FleetState.PLANNED,)) == ["a", "b"]
    assert names(wave=2) == ["a"]
    assert names(has_problems=True) == ["c"]
    assert names(has_problems=False) == ["a", "b", last]
    assert names(text="%") == [last]
    assert names(text="NEW/A") == ["a"]
    assert names(uris=(f"{ROOT}/b",)) == ["b"]
    page = fleet.records.tables(TableQuery(limit=2, offset=1))
    assert [table.uri[-1] for table in page.tables] == ["b", "c"]
    assert page.total == 4
    with pytest.raises(InvalidInput, match="sorted"):
        fleet.records.tables(TableQuery(sort="holder"))


def test_a_job_goes_from_plan_to_done(fleet: Fleet) -> None:
    fleet.planned("t")
    fleet.begun("me")
    assert fleet.states() == {"t": "QUEUED"}
    (job,) = fleet.jobs.take("me", 1, 5, LEASE_MS)
    assert (job.uri, job.target, job.options) == (
        f"{ROOT}/t",
        "s3://new/t",
        {"mode": "writer-only"},
    )
    assert (job.state, job.attempts, job.holder) == (FleetState.RUNNING, 1, "me")
    fleet.jobs.report(
        "me", [JobStep(job.id, job.uri, "copying", 3, 9, ("listing", "copying"))], [], [], LEASE_MS
    )
    running = fleet.records.job(job.id)
    assert running is not None
    assert (running.step, running.done, running.total) == ("copying", 3, 9)
    outcome = {"state": "READY", "target": "s3://new/t", "blocked_ms": 12, "changed": True}
    fleet.end("me", job.id, "t", FleetEvent.FINISH, outcome=outcome, warnings=("old readers",))
    done = fleet.records.job(job.id)
    assert done is not None
    assert (done.state, done.outcome, done.holder) == (FleetState.DONE, outcome, None)
    assert fleet.states() == {"t": "DONE"}
    assert fleet.kinds(job.id) == ["plan", "queue", "take", "step", "step", "finish"]
    summary = fleet.records.summary()
    assert (summary.counts, summary.pauses_ms) == ({FleetState.DONE: 1}, (12,))
    # Nothing more happens to what is done.
    fleet.begun("me")
    assert fleet.jobs.take("me", 1, 5, LEASE_MS) == ()
    assert fleet.inventory.plan([plan("t", 2)]) == 0


def test_history_is_read_from_an_entry_on(fleet: Fleet) -> None:
    fleet.planned("t", "u")
    history = fleet.records.history()
    assert [entry.kind for entry in history] == ["found", "found", "plan", "plan"]
    assert fleet.records.history(history[1].id) == history[2:]
    assert fleet.records.history(limit=1) == history[:1]
    assert fleet.records.newest_history(2) == history[:1:-1]
    assert history[-1].as_document()["detail"] == {"target": "s3://new/u", "wave": 1}
    assert history[0].at_ms > 1_600_000_000_000


def test_a_job_has_one_holder(fleet: Fleet) -> None:
    names = [f"t{number}" for number in range(30)]
    fleet.planned(*names)
    fleet.begun(OTHER)

    def take(number: int) -> list[int]:
        taken: list[int] = []
        with FleetDatabase(fleet.url) as database:
            changes = JobChanges(database)
            while jobs := changes.take(f"{OTHER}{number}", 1, 2, LEASE_MS):
                taken += [job.id for job in jobs]
        return taken

    with ThreadPoolExecutor(4) as pool:
        taken = [job for jobs in pool.map(take, range(4)) for job in jobs]
    assert sorted(taken) == list(range(1, 31))


def test_a_lease_that_has_ended_lets_another_run_take_the_job(fleet: Fleet) -> None:
    fleet.planned("t")
    fleet.begun(OTHER)
    (job,) = fleet.jobs.take(OTHER, 1, 1, LEASE_MS)
    assert fleet.jobs.take("me", 1, 1, LEASE_MS) == ()
    fleet.expire_leases()
    (again,) = fleet.jobs.take("me", 1, 1, LEASE_MS)
    assert (again.id, again.attempts, again.holder) == (job.id, 2, "me")
    # The first holder wasn't dead, only slow.
    state = fleet.jobs.report(OTHER, [], [], [job.id], LEASE_MS)
    assert state.lost == {job.id}
    fleet.end(OTHER, job.id, "t", FleetEvent.FAIL, error={"code": "x", "message": "y"})
    assert fleet.states() == {"t": "RUNNING"}
    fleet.end(OTHER, job.id, "t", FleetEvent.FINISH, outcome={"changed": True})
    assert fleet.states() == {"t": "DONE"}
    fleet.end("me", job.id, "t", FleetEvent.FAIL, error={"code": "x", "message": "y"})
    assert fleet.states() == {"t": "DONE"}


def test_reporting_renews_the_leases_of_a_run(fleet: Fleet) -> None:
    fleet.planned("t")
    fleet.begun(OTHER)
    (job,) = fleet.jobs.take(OTHER, 1, 1, LEASE_MS)
    fleet.expire_leases()
    assert fleet.jobs.report(OTHER, [], [], [job.id], LEASE_MS).lost == frozenset()
    assert fleet.jobs.take("me", 1, 1, LEASE_MS) == ()


def _take_and_end(url: str, holders: Any) -> None:
    with FleetDatabase(url) as database:
        holder = f"{this_process()}/x"
        JobChanges(database).take(holder, 1, 1, LEASE_MS)
        holders.put(holder)
    os._exit(9)


def test_the_job_of_a_process_that_was_killed_is_taken_at_once(fleet: Fleet) -> None:
    fleet.planned("t", "u")
    fleet.begun("me")
    context = multiprocessing.get_context("spawn")
    holders = context.Queue()
    process = context.Process(target=_take_and_end, args=(fleet.url, holders))
    process.start()
    process.join()
    (job,) = fleet.records.tables(TableQuery(states=(FleetState.RUNNING,))).tables
    own = f"{this_process()}/me"
    taken = {each.uri for each in fleet.jobs.take(own, 1, 5, LEASE_MS)}
    assert job.uri in taken
    assert len(taken) == 2
    assert fleet.jobs.take(f"{this_process()}/you", 1, 5, LEASE_MS) == ()


def test_what_failed_or_was_stopped_is_queued_by_the_next_run(fleet: Fleet) -> None:
    fleet.planned("a", "b", "c")
    fleet.begun("me")
    jobs = {job.uri[-1]: job.id for job in fleet.jobs.take("me", 1, 3, LEASE_MS)}
    error = {"code": "forbidden", "message": "no", "remedy": "ask"}
    fleet.end("me", jobs["a"], "a", FleetEvent.FAIL, error=error)
    fleet.end("me", jobs["b"], "b", FleetEvent.STOP, error=error)
    fleet.end("me", jobs["c"], "c", FleetEvent.RELEASE)
    assert fleet.states() == {"a": "FAILED", "b": "STOPPED", "c": "QUEUED"}
    table = fleet.records.table(f"{ROOT}/a")
    assert table is not None
    assert table.problems == (FleetProblem("forbidden", "no", "ask"),)
    fleet.begun("me", wave=2)
    assert fleet.states()["a"] == "FAILED"
    fleet.begun("me", wave=1)
    assert set(fleet.states().values()) == {"QUEUED"}


def test_a_pause_is_for_the_runs_that_have_begun(fleet: Fleet) -> None:
    fleet.planned("t")
    first = fleet.begun("me")

    def seen() -> tuple[bool, bool]:
        state = fleet.jobs.report("me", [], [], [], LEASE_MS)
        return state.paused > first, state.stops_running

    assert seen() == (False, False)
    assert fleet.jobs.pause(stops_running=False)
    assert not fleet.jobs.pause(stops_running=False)
    assert seen() == (True, False)
    assert fleet.records.summary().paused
    assert fleet.jobs.pause(stops_running=True)
    assert not fleet.jobs.pause(stops_running=False)
    assert seen() == (True, True)
    # The first run sees it also if another one begins before it has looked.
    second = fleet.begun("you")
    assert seen() == (True, True)
    assert fleet.jobs.report("you", [], [], [], LEASE_MS).paused < second
    assert not fleet.records.summary().paused


def test_a_scan_settles_what_was_moved_or_came_back(fleet: Fleet) -> None:
    fleet.planned("planned", "elsewhere")
    fleet.inventory.record([found("unplanned")])
    ready = {"redirect_state": "READY"}
    fleet.inventory.record(
        [
            found("planned", 4, **ready, redirect_target="s3a://new/planned/"),
            found("elsewhere", 4, **ready, redirect_target="s3://other/place"),
            found("unplanned", 4, **ready, redirect_target="s3://other/unplanned"),
        ]
    )
    assert set(fleet.states().values()) == {"DONE"}
    jobs = [fleet.records.jobs(f"{ROOT}/{name}")[0] for name in ("planned", "elsewhere")]
    assert [job.state for job in jobs] == [FleetState.DONE, FleetState.DONE]
    assert jobs[0].error is None
    assert "moved to s3://other/place" in str(jobs[1].error)
    fleet.inventory.record([found("planned", 6)])
    assert fleet.states()["planned"] == "FOUND"
    fleet.inventory.plan([plan("planned")])
    assert len(fleet.records.jobs(f"{ROOT}/planned")) == 2


def test_a_scan_that_looked_before_the_move_changes_nothing_after_it(fleet: Fleet) -> None:
    fleet.planned("t")
    fleet.begun("me")
    (job,) = fleet.jobs.take("me", 1, 1, LEASE_MS)
    outcome = {"changed": True, "version": 5, "state": "READY", "target": "s3://new/t"}
    fleet.end("me", job.id, "t", FleetEvent.FINISH, outcome=outcome)
    fleet.inventory.record([found("t", 3)])
    assert fleet.states() == {"t": "DONE"}
    # Another table at the same place is another matter, and so is one that came back.
    fleet.inventory.record([found("t", 5, redirect_state="READY", redirect_target="s3://new/t")])
    fleet.inventory.record([found("t", 0, table_id="another")])
    assert fleet.states() == {"t": "FOUND"}


@pytest.mark.parametrize("odd", ["a\0b", "a\ud800b", "ä😀'\"<>"])
def test_whatever_a_log_says_can_be_recorded(fleet: Fleet, odd: str) -> None:
    writer = FleetWriter(odd, None, odd, 1, 1, 1)
    problem = FleetProblem("x", odd, odd)
    values: dict[str, Any] = {"features": (odd,), "writers": (writer,), "problems": (problem,)}
    survey = found("t", table_id=odd, redirect_target=odd, redirect_state="READY", **values)
    fleet.inventory.record([(replace(survey[0], name=odd), survey[1]), found("u")])
    table = fleet.records.table(f"{ROOT}/t")
    assert table is not None
    assert table.as_document()["engines"][0].startswith(odd[0])
    assert fleet.states()["u"] == "FOUND"


def test_a_scan_leaves_a_running_job_to_its_holder(fleet: Fleet) -> None:
    fleet.planned("t")
    fleet.begun("me")
    (job,) = fleet.jobs.take("me", 1, 1, LEASE_MS)
    fleet.inventory.record([found("t", 4, redirect_state="READY", redirect_target="s3://new/t")])
    assert fleet.states() == {"t": "RUNNING"}
    fleet.end("me", job.id, "t", FleetEvent.FINISH, outcome={"changed": True})
    assert fleet.states() == {"t": "DONE"}


def test_a_table_that_is_gone_is_forgotten_and_its_plan_withdrawn(fleet: Fleet) -> None:
    fleet.planned("planned")
    fleet.inventory.record([found("found")])
    gone = [f"{ROOT}/planned", f"{ROOT}/found"]
    fleet.inventory.lose(gone)
    (table,) = fleet.records.tables().tables
    assert (table.uri, [each.code for each in table.problems]) == (gone[0], [TABLE_GONE])
    assert (table.state, table.survey.mark, table.job) == (FleetState.FOUND, None, None)
    fleet.begun("me")
    assert fleet.jobs.take("me", 1, 1, LEASE_MS) == ()
    assert fleet.kinds(1) == ["plan", "withdraw"]
    fleet.inventory.lose(gone)
    assert fleet.records.tables().total == 0
    assert fleet.kinds(1) == ["plan", "withdraw"]


def test_a_table_whose_move_runs_keeps_its_job(fleet: Fleet) -> None:
    fleet.planned("runs", "waits")
    fleet.begun("me")
    (job,) = fleet.jobs.take("me", 1, 1, LEASE_MS)
    both = [f"{ROOT}/runs", f"{ROOT}/waits"]
    assert fleet.inventory.withdraw(both) == 1
    assert fleet.inventory.withdraw(both) == 0
    assert fleet.states() == {"runs": "RUNNING", "waits": "FOUND"}
    fleet.inventory.lose(both[:1])
    fleet.end("me", job.id, "runs", FleetEvent.FINISH, outcome={"changed": True})
    assert fleet.states()["runs"] == "DONE"
    fleet.inventory.plan([plan("waits", 2)])
    assert [each.id for each in fleet.records.jobs(both[1])] == [3, 2]


def test_why_a_table_was_not_planned_is_kept_until_it_is(fleet: Fleet) -> None:
    fleet.inventory.record([found("t", problems=(FleetProblem("a", "b"),))])
    problem = FleetProblem("redirect_target_not_empty", "it is taken", "choose another")
    fleet.inventory.plan([], {f"{ROOT}/t": (problem,)})
    assert len(fleet.records.tables(TableQuery(has_problems=True)).tables) == 1
    table = fleet.records.table(f"{ROOT}/t")
    assert table is not None
    assert table.problems[-1] == problem
    fleet.inventory.record([found("t")])
    assert fleet.records.summary().with_problems == 1
    fleet.inventory.plan([plan("t")])
    assert fleet.records.summary().with_problems == 0


def test_a_plan_is_replaced_until_it_begins(fleet: Fleet) -> None:
    fleet.planned("t")
    assert fleet.inventory.plan([plan("t")]) == 0
    assert fleet.kinds() == ["found", "plan"]
    assert fleet.inventory.plan([plan("t", 3, "s3://newer")]) == 1
    fleet.begun("me")
    assert fleet.inventory.plan([plan("t", 4)]) == 1
    assert fleet.states() == {"t": "PLANNED"}
    fleet.begun("me")
    (job,) = fleet.jobs.take("me", 4, 1, LEASE_MS)
    assert fleet.inventory.plan([plan("t", 5)]) == 0
    assert fleet.records.job(job.id) == job
    assert fleet.inventory.plan([plan("nobody knows it")]) == 0


def test_many_tables_cost_few_statements(fleet: Fleet) -> None:
    names = [f"t{number:05}" for number in range(1_200)]
    fleet.planned(*names[:1])
    statements = 0

    def count(*_: object) -> None:
        nonlocal statements
        statements += 1

    with fleet.database.write() as connection:
        engine = connection.engine
    sa.event.listen(engine, "before_cursor_execute", count)
    fleet.planned(*names)
    fleet.begun("me")
    page = fleet.records.tables(TableQuery(limit=None))
    assert page.total == 1_200
    assert statements < 100
    assert fleet.records.summary().total == 1_200


def test_waves_are_counted_by_state(fleet: Fleet) -> None:
    fleet.planned("a", "b", wave=2)
    fleet.planned("c", wave=1)
    fleet.begun("me", wave=2)
    first, second = fleet.records.summary().waves
    assert (first.wave, first.counts) == (1, {FleetState.PLANNED: 1})
    assert (second.wave, second.counts) == (2, {FleetState.QUEUED: 2})


def test_a_forked_process_uses_connections_of_its_own(fleet: Fleet) -> None:
    fleet.planned("t")
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            total = fleet.records.tables().total
            os.write(writer, str(total).encode())
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    assert os.read(reader, 9) == b"1"
    os.close(reader)
    os.close(writer)
    assert fleet.records.tables().total == 1


def sqlite_fleet(folder: Path, **options: Any) -> Fleet:
    url = f"sqlite:///{folder}/catalog.sqlite"
    return Fleet(url, FleetDatabase(url, **options))


@pytest.mark.parametrize("replaced", [False, True])
def test_a_run_does_not_go_on_with_another_file(tmp_path: Path, *, replaced: bool) -> None:
    fleet = sqlite_fleet(tmp_path)
    fleet.planned("t")
    fleet.begun("me")
    for file in tmp_path.iterdir():
        file.unlink()
    if replaced:
        (tmp_path / "catalog.sqlite").touch()
    for use in (
        lambda: fleet.jobs.take("me", 1, 1, LEASE_MS),
        lambda: fleet.jobs.report("me", [], [], [], LEASE_MS),
    ):
        with pytest.raises(CatalogUnavailable, match="gone") as refused:
            use()
        assert refused.value.remedy
    assert fleet.records.tables().total == 0
    fleet.inventory.record([found("t")])
    assert fleet.states() == {"t": "FOUND"}
    fleet.database.close()


def test_a_database_that_is_locked_for_too_long_is_unavailable(tmp_path: Path) -> None:
    fleet = sqlite_fleet(tmp_path, patience_s=0.05)
    fleet.planned("t")
    with closing(sqlite3.connect(tmp_path / "catalog.sqlite", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(CatalogUnavailable, match="locked") as refused:
            fleet.begun("me")
        assert "try again" in str(refused.value.remedy)
        # Reading doesn't wait for who writes.
        assert fleet.states() == {"t": "PLANNED"}
    fleet.begun("me")
    fleet.database.close()


def test_a_writer_waits_for_another_one(tmp_path: Path) -> None:
    fleet = sqlite_fleet(tmp_path)
    fleet.planned("t")
    began = threading.Event()
    with closing(sqlite3.connect(tmp_path / "catalog.sqlite", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")

        def write() -> None:
            began.set()
            fleet.begun("me")

        thread = threading.Thread(target=write)
        thread.start()
        began.wait()
        other.execute("COMMIT")
        thread.join()
    assert fleet.states() == {"t": "QUEUED"}
    fleet.database.close()


def test_pages_of_jobs_are_read_without_the_others(fleet: Fleet) -> None:
    empty = JobRecords(fleet.database)
    assert (empty.page().total, empty.pulse(), empty.roots(), empty.pauses()) == (
        0,
        (0, ()),
        (),
        (),
    )
    assert empty.step_began_ms((1,)) == {}
    assert fleet.records.table_by_id(1) is None
    fleet.planned("a", "b", "c")
    fleet.planned("d", wave=2)
    fleet.begun("me")
    first, second = fleet.jobs.take("me", 1, 2, LEASE_MS)
    step = JobStep(first.id, first.uri, "copying data", 5, 9, ("reading the log", "copying data"))
    fleet.jobs.report("me", [step], [], [second.id], LEASE_MS)
    records = JobRecords(fleet.database)
    running = records.page((FleetState.RUNNING,))
    assert {job.id for job in running.jobs} == {first.id, second.id}
    assert records.page(limit=1).total == 4
    assert records.page(wave=2).jobs[0].uri == f"{ROOT}/d"
    newest, steps = records.pulse()
    assert newest == fleet.records.history()[-1].id
    assert (first.id, "copying data", 5, 9) in steps
    (began,) = records.step_began_ms((first.id, second.id)).items()
    (last,) = fleet.records.newest_history(1, job_id=first.id)
    assert began == (first.id, last.at_ms)
    assert last.detail == {"step": "copying data"}
    outcome = {"blocked_ms": 36, "changed": True}
    fleet.end("me", first.id, "a", FleetEvent.FINISH, outcome=outcome)
    assert records.page().jobs[0].id == first.id
    (pause,) = records.pauses()
    assert (pause.job_id, pause.uri, pause.blocked_ms) == (first.id, f"{ROOT}/a", 36)
    assert records.roots() == (ROOT,)
    table = fleet.records.table(f"{ROOT}/b")
    assert table is not None
    assert fleet.records.table_by_id(table.id) == table
