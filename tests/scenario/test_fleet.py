"""Many tables by the command line: found, planned, moved in waves while writers append."""

from __future__ import annotations

import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

import lakeferry
from lakeferry.fleet.fleet_states import FleetState
from lakeferry.fleet.records import FleetSummary
from tests.support.forked import ForkedRun
from tests.support.lake import Lake, on_disk, on_s3
from tests.support.servers import S3Bucket
from tests.support.shares import Share
from tests.support.steady_writer import SteadyWriter, append_by_lakeferry, steadily
from tests.support.unity_server import UnityServer
from tests.unit.cli.program import PROGRAM, environment, run

TABLES = 12
KILLS = 20
PATIENCE_S = 120.0


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return on_disk(tmp_path)


def make_tables(lake: Lake, count: int) -> list[str]:
    """Make tables of ten files each; the later ones are larger."""
    names = [f"old/{'ab'[number % 2]}/t{number:02}" for number in range(count)]
    for number, name in enumerate(names):
        for part in range(10):
            ids = pa.array(range(part * 10, part * 10 + 4 + number), pa.int64())
            write_deltalake(str(lake.folder / name), pa.table({"id": ids}), mode="append")
    return names


def ids(lake: Lake, name: str) -> list[int]:
    moved = lake.folder / name.replace("old/", "new/", 1)
    return sorted(DeltaTable(str(moved)).to_pyarrow_table()["id"].to_pylist())


def fleet_of(lake: Lake) -> lakeferry.Fleet:
    """Return the fleet that the program of this lake uses."""
    return lakeferry.Fleet(environment=environment(lake.home))


@contextmanager
def running(lake: Lake, *words: str, **variables: str) -> Iterator[ForkedRun]:
    """Start ``fleet run``; it is killed at the end if it still runs."""
    command = [str(PROGRAM), "fleet", "run", "--json", *words]
    env = {**environment(lake.home), **variables}
    with ForkedRun(command, cwd=lake.home, env=env) as process:
        yield process


def until(process: ForkedRun, holds: Callable[[], bool]) -> bool:
    """Wait until something holds; return False if the process ended before."""
    pause = threading.Event()
    for _ in range(int(PATIENCE_S / 0.005)):
        if holds():
            return True
        if process.has_ended:
            return holds()
        pause.wait(0.005)
    raise AssertionError("it didn't happen")


def count(summary: FleetSummary, state: FleetState) -> int:
    return summary.counts.get(state, 0)


def test_a_fleet_is_moved_in_waves_paused_killed_and_completed_while_writers_append(
    lake: Lake,
) -> None:
    names = make_tables(lake, TABLES)
    before = {name: Counter(ids_at(lake, name)) for name in names}
    found = lake.done("fleet", "scan", lake.uri("old"))["tables"]
    assert [table["uri"] for table in found] == [lake.uri(name) for name in sorted(names)]
    assert {table["state"] for table in found} == {"FOUND"}
    assert all(table["num_files"] == 10 and table["engines"] for table in found)
    planned = lake.done("fleet", "plan", "--to", lake.uri("new"), "--waves", 2)["tables"]
    assert Counter(table["wave"] for table in planned) == {1: 6, 2: 6}
    assert all(table["forecast"]["bytes"] > 0 for table in planned)
    fleet = fleet_of(lake)
    with ExitStack() as stack:
        writers = {
            name: stack.enter_context(_writing(lake, name)) for name in (names[0], names[-1])
        }
        # The first run is paused when a table has moved, and ends.
        with running(lake, "--parallel", "1") as process:
            assert until(process, lambda: count(fleet.status().summary, FleetState.DONE) >= 1)
            # The command itself may take longer than all moves.
            assert fleet.pause()
            assert lake.done("fleet", "pause") == {"paused": True, "changed": False}
            assert process.wait(PATIENCE_S).returncode == 0
        paused = lake.done("fleet", "status")
        assert paused["paused"] is True
        done = count(fleet.status().summary, FleetState.DONE)
        assert 1 <= done < TABLES
        assert "RUNNING" not in {table["state"] for table in paused["tables"]}
        # The second one is killed when it has moved some more.
        with running(lake, "--parallel", "2") as process:
            assert until(process, lambda: count(fleet.status().summary, FleetState.DONE) > done)
            process.send_signal(signal.SIGKILL)
            process.wait(PATIENCE_S)
        # The third one completes what they began.
        ended = lake.done("fleet", "run", "--parallel", 2)
        assert {table["state"] for table in ended["tables"]} == {"DONE"}
        status = lake.done("fleet", "status")
        assert status["counts"]["DONE"] == TABLES
        assert status["paused"] is False
        for writer in writers.values():
            writer.goes_on()
    for name in names:
        rows = Counter(before[name])
        if name in writers:
            rows.update(writers[name].acknowledged)
        assert Counter(ids(lake, name)) == rows, name
    check_history(fleet, TABLES)
    written = lake.done("fleet", "report", lake.home / "fleet.html")["report"]
    assert all(lake.uri(name) in Path(written).read_text() for name in names)
    again = lake.done("fleet", "scan")
    assert again["counts"]["DONE"] == TABLES
    assert lake.done("fleet", "run")["changed"] is False


def ids_at(lake: Lake, name: str) -> list[int]:
    found: list[int] = DeltaTable(str(lake.folder / name)).to_pyarrow_table()["id"].to_pylist()
    return found


@contextmanager
def _writing(lake: Lake, name: str) -> Iterator[SteadyWriter]:
    table = lake.uri(name)
    with steadily(lambda row: append_by_lakeferry(table, row), 1_000_000, 0.05) as writer:
        yield writer


def check_history(fleet: lakeferry.Fleet, tables: int) -> None:
    """Check that every job was taken, had steps, and was done once."""
    history = fleet.history(limit=100_000)
    assert [entry.id for entry in history] == sorted({entry.id for entry in history})
    kinds: dict[int, Counter[str]] = {}
    for entry in history:
        if entry.job_id is not None:
            kinds.setdefault(entry.job_id, Counter())[entry.kind] += 1
    assert len(kinds) == tables
    for job, found in kinds.items():
        assert found["finish"] == 1, (job, found)
        assert found["plan"] == 1, (job, found)
        assert found["take"] >= 1, (job, found)
        assert found["fail"] == 0, (job, found)


def test_whenever_a_run_is_killed_the_next_one_completes_it(tmp_path: Path, share: Share) -> None:
    for number in share.each(range(KILLS)):
        folder = tmp_path / str(number)
        folder.mkdir()
        _kill_and_complete(on_disk(folder), number)


def _kill_and_complete(lake: Lake, number: int) -> None:
    """Kill a run when the history has grown by some entries, and let another one complete it."""
    names = make_tables(lake, 4)
    wanted = {name: ids_at(lake, name) for name in names}
    fleet = fleet_of(lake)
    fleet.scan(lake.uri("old"))
    fleet.plan(to=lake.uri("new"))
    last = len(fleet.history()) + 2 * number
    with running(lake, "--parallel", "2") as process:
        until(process, lambda: len(fleet.history()) >= last)
        process.send_signal(signal.SIGKILL)
        process.wait(PATIENCE_S)
    ended = lake.done("fleet", "run")
    assert ended["counts"]["DONE"] == len(names), number
    for name in names:
        assert ids(lake, name) == sorted(wanted[name]), (number, name)
        # The move has two commits at the source, however often it was begun.
        versions = len(list((lake.folder / name / "_delta_log").glob("*.json")))
        assert versions == 10 + 2, (number, name)
    check_history(fleet, len(names))


def test_two_runs_share_the_tables(lake: Lake) -> None:
    names = make_tables(lake, 6)
    fleet = fleet_of(lake)
    fleet.scan(lake.uri("old"))
    fleet.plan(to=lake.uri("new"))
    with running(lake, "--parallel", "1") as one, running(lake, "--parallel", "1") as two:
        ended = [process.wait(PATIENCE_S) for process in (one, two)]
        assert [process.returncode for process in ended] == [0, 0], ended
    check_history(fleet, 6)
    assert all(ids(lake, name) for name in names)


def test_tables_in_a_bucket_are_found_and_moved(tmp_path: Path, s3_bucket: S3Bucket) -> None:
    lake = on_s3(tmp_path, s3_bucket)
    for name in ("old/eu/a b", "old/us"):
        lake.make(name)
    found = lake.done("fleet", "scan", lake.uri("old"))["tables"]
    assert [table["uri"] for table in found] == [lake.uri("old/eu/a%20b"), lake.uri("old/us")]
    lake.done("fleet", "plan", "--to", lake.uri("new"))
    assert lake.done("fleet", "run")["moved"] == 2
    moved = lake.done("redirect", "resolve", lake.uri("old/eu/a%20b"))
    assert moved["location"] == lake.uri("new/eu/a%20b")
    assert lake.done("fleet", "scan")["counts"]["DONE"] == 2


def test_tables_of_unity_catalog_are_found_and_get_names_of_our_own(
    lake: Lake, unity: UnityServer
) -> None:
    variables = unity.environment()
    name = f"unity:{unity.schema}.orders"
    lake.done("catalog", "register", name, lake.make("old/orders"), **variables)
    (found,) = lake.done("fleet", "scan", f"unity:{unity.schema}", **variables)["tables"]
    assert (found["name"], found["uri"]) == (name, lake.uri("old/orders"))
    place = ("--location", lake.uri("new"))
    planned = lake.done("fleet", "plan", "--to", "sql:sales.eu.{name}", *place, **variables)
    assert planned["tables"][0]["target"] == "sql:sales.eu.orders"
    assert lake.done("fleet", "run", **variables)["moved"] == 1
    assert lake.done("inspect", "sql:sales.eu.orders")["location"] == lake.uri("new/orders")
    assert lake.done("fleet", "scan", **variables)["counts"]["DONE"] == 1


def test_external_tables_of_unity_catalog_become_managed_ones_whenever_a_run_is_killed(
    lake: Lake, unity: UnityServer
) -> None:
    variables, schema = unity.environment(), f"unity:{unity.schema}"
    old = ["items", "orders", "users"]
    for name in old:
        place = lake.make(f"old/{name}")
        lake.done("catalog", "register", f"{schema}.{name}", place, **variables)
    lake.done("fleet", "scan", schema, **variables)
    plan = ("fleet", "plan", "--to", f"{schema}.{{name}}_2", "--managed")
    assert lake.done(*plan, **variables)["counts"]["PLANNED"] == 3
    fleet = fleet_of(lake)
    with running(lake, "--parallel", "1", **variables) as process:
        assert until(process, lambda: count(fleet.status().summary, FleetState.DONE) >= 1)
        process.send_signal(signal.SIGKILL)
        process.wait(PATIENCE_S)
    assert lake.done("fleet", "run", "--parallel", 2, **variables)["counts"]["DONE"] == 3
    for name in old:
        found = (lake.uri(f"old/{name}"), f"{schema}.{name}_2")
        assert lake.done("verify", *found, "--rows", **variables)["equal"]
    # What a run has made is found by the next scan, and not planned again.
    again = lake.done("fleet", "scan", **variables)
    names = {table["name"].rpartition(".")[2]: table["state"] for table in again["tables"]}
    assert names == dict.fromkeys(old, "DONE") | {f"{name}_2": "FOUND" for name in old}
    planned = lake.done(*plan, **variables)
    assert (planned["counts"]["PLANNED"], planned["with_problems"]) == (0, 0)


def test_a_move_by_a_plain_command_is_seen_by_the_next_scan(lake: Lake) -> None:
    lake.make("old/t")
    lake.done("fleet", "scan", lake.uri("old"))
    lake.done("redirect", "enable", lake.uri("old/t"), lake.uri("new/t"))
    assert lake.done("fleet", "status")["tables"][0]["state"] == "FOUND"
    (table,) = lake.done("fleet", "scan")["tables"]
    assert (table["state"], table["redirect_target"]) == ("DONE", lake.uri("new/t"))
    lake.done("redirect", "disable", lake.uri("old/t"))
    (table,) = lake.done("fleet", "scan")["tables"]
    assert (table["state"], table["redirect_target"]) == ("FOUND", None)


def test_a_failed_move_is_the_error_of_the_run_and_is_tried_again(lake: Lake) -> None:
    lake.make("old/a")
    lake.make("old/b")
    lake.done("fleet", "scan", lake.uri("old"))
    lake.done("fleet", "plan", "--to", lake.uri("new"))
    lake.make("new/b")
    ended = lake.run("fleet", "run")
    assert (ended.code, ended.error["code"]) == (1, "redirect_target_not_empty")
    states = {table["uri"][-1]: table["state"] for table in ended.document["tables"]}
    assert states == {"a": "DONE", "b": "FAILED"}
    (failed,) = lake.done("fleet", "status", "--state", "failed")["tables"]
    assert failed["problems"][0]["remedy"]
    only = ("--select", "b")
    steps = lake.done("fleet", "plan", "--remove", *only, "--dry-run")["plan"]
    assert steps == [{"op": "withdraw_plan", "table": lake.uri("old/b")}]
    assert lake.done("fleet", "plan", "--remove", *only)["tables"][0]["state"] == "FOUND"
    assert lake.done("fleet", "run")["moved"] == 0
    lake.done("fleet", "plan", "--to", lake.uri("newer"))
    assert lake.done("fleet", "run")["counts"]["DONE"] == 2


def test_dry_runs_write_nothing(lake: Lake) -> None:
    lake.make("old/t")
    plan = lake.done("fleet", "scan", lake.uri("old"), "--dry-run")
    assert plan == {
        "dry_run": True,
        "plan": [{"op": "record_table", "table": lake.uri("old/t")}],
        "warnings": [],
    }
    assert list(lake.home.rglob("*.sqlite")) == []
    lake.done("fleet", "scan", lake.uri("old"))
    before = lake.tree()
    (step,) = lake.done("fleet", "plan", "--to", lake.uri("new"), "--dry-run")["plan"]
    assert (step["op"], step["target"]) == ("plan_move", lake.uri("new/t"))
    assert lake.done("fleet", "run", "--dry-run")["plan"] == []
    assert [each["op"] for each in lake.done("fleet", "pause", "--dry-run")["plan"]] == ["pause"]
    written = lake.done("fleet", "report", lake.home / "x.html", "--dry-run")["plan"]
    assert written[0]["op"] == "write_report"
    assert lake.tree() == before


@pytest.mark.parametrize(
    "words",
    [
        ["scan"],
        ["scan", "sql:a/b"],
        ["plan", "--to", "sql:a.b"],
        ["plan", "--wave", "1", "--waves", "2"],
        ["plan", "--wave", "0"],
        ["run", "--window", "night"],
        ["run", "--wait"],
        ["status", "--state", "lost"],
        ["status", "--sort", "holder"],
        ["history", "--since", "x"],
        ["report"],
    ],
)
def test_wrong_usage_is_2(lake: Lake, words: list[str]) -> None:
    if words != ["scan"]:
        lake.make("old/t")
        fleet_of(lake).scan(lake.uri("old"))
    ended = lake.run("fleet", *words)
    assert (ended.code, ended.out) == (2, ""), ended
    assert ended.error["code"] == "invalid_input"


def test_people_read_tables_and_problems(lake: Lake) -> None:
    lake.make("old/t")
    bad = lake.folder / "old" / "broken" / "_delta_log"
    bad.mkdir(parents=True)
    (bad / f"{0:020d}.json").write_text("{")
    for words in (
        ("scan", lake.uri("old")),
        ("plan", "--to", lake.uri("new")),
        ("run",),
        ("history",),
    ):
        told = run("fleet", *words, home=lake.home)
        assert told.code == 0, told.err
        assert told.out
        if words[0] == "scan":
            assert "old/broken: " in told.out


def _end_run_by_interrupt(lake: Lake) -> dict[str, Any]:
    fleet = fleet_of(lake)
    with running(lake, "--parallel", "1") as process:
        assert until(process, lambda: count(fleet.status().summary, FleetState.RUNNING) > 0)
        process.send_signal(signal.SIGINT)
        ended = process.wait(PATIENCE_S)
    return {"code": ended.returncode, "err": ended.stderr.decode()}


def test_an_interrupted_run_says_how_to_go_on_and_goes_on(lake: Lake) -> None:
    names = make_tables(lake, 6)
    fleet = fleet_of(lake)
    fleet.scan(lake.uri("old"))
    fleet.plan(to=lake.uri("new"))
    ended = _end_run_by_interrupt(lake)
    assert ended["code"] == 130
    assert "fleet run" in ended["err"].splitlines()[-1]
    assert lake.done("fleet", "run")["counts"]["DONE"] == len(names)
