"""Many moves at a time: each for itself, in the list's order, until somebody stops them."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from lakeferry.api import move_list
from lakeferry.api.move_list import MovedTable, Mover, Wanted, move_all
from lakeferry.api.redirects import Redirects
from lakeferry.engine import (
    CheckPlan,
    CheckTotals,
    CopyPlan,
    CopyTotals,
    Engine,
    HashPlan,
    LogCopyPlan,
    LogExported,
    LogExportPlan,
    LookPlan,
    Name,
    Observer,
    OrphanPlan,
    Replayed,
    ReplayPlan,
    RewritePlan,
    unobserved,
)
from lakeferry.engines import open_engine
from lakeferry.engines.shared_engine import SharedEngine
from lakeferry.errors import MissingFile
from lakeferry.log.replay import TableState
from lakeferry.redirect.enable.preflight import Request
from lakeferry.redirect.move import Move
from lakeferry.storage import open_store
from lakeferry.storage.byte_rate import ByteRate
from tests.support.history import Append, History


@pytest.fixture
def root() -> str:
    return f"memory://{uuid.uuid4().hex}"


def orders(root: str, count: int) -> tuple[Wanted, ...]:
    """Make tables, and ask for each to be moved."""
    for number in range(count):
        History().then(Append(2)).write(open_store(f"{root}/old{number}"), with_data=True)
    return tuple(
        Wanted(number + 2, f"{root}/old{number}", f"{root}/new{number}") for number in range(count)
    )


def state(wanted: Wanted) -> str:
    with Redirects() as redirects:
        return redirects.status(wanted.source).state.name


def codes(moves: tuple[MovedTable, ...]) -> list[object]:
    return [move.error["code"] if move.error else None for move in moves]


def test_clients_that_will_read_old_rows_are_warnings_of_each_table(root: str) -> None:
    (wanted,) = orders(root, 1)
    told: list[str] = []
    with Mover(warn=told.append) as mover:
        plain = mover.move(wanted)
        assert not [text for text in plain.warnings if text.startswith(wanted.source)]
    (wanted,) = orders(f"{root}/b", 1)
    stale = replace(wanted, options={"mode": "writer-only"})
    with Mover(warn=told.append) as mover:
        mover.plan(stale)
        foreseen = [text for text in told if text.startswith(wanted.source)]
        moved = mover.move(stale)
        again = mover.move(stale)
    (warning,) = foreseen
    assert warning.startswith(f"{wanted.source}: history wrote on ")
    assert warning in moved.warnings
    assert again.warnings == ()


def test_a_list_is_moved_in_parallel_and_reported_in_its_order(root: str) -> None:
    wanted = orders(root, 5)
    seen: list[tuple[str, int, int]] = []
    with Mover() as mover:
        report = move_all(mover, wanted, parallel=3, observer=lambda *event: seen.append(event))
        again = move_all(mover, wanted)
    assert [move.source for move in report.moves] == [each.source for each in wanted]
    assert all(move.outcome and move.outcome.changed for move in report.moves)
    assert (report.failed, report.interrupted) == ((), False)
    assert {state(each) for each in wanted} == {"READY"}
    assert [done for _, done, _ in seen] == sorted({done for _, done, _ in seen})
    assert (seen[0][1:], seen[-1][1:]) == ((0, 5), (5, 5))
    assert again.as_document()["changed"] is False
    document = report.moves[0].as_document()
    assert (document["state"], document["version"], document["error"]) == ("READY", 3, None)


def test_what_fails_is_reported_and_the_others_go_on(root: str) -> None:
    wanted = orders(root, 3)
    open_store(wanted[1].target).put("notes.txt", b"mine")
    with Mover() as mover:
        report = move_all(mover, wanted, parallel=1)
    assert codes(report.moves) == [None, "redirect_target_not_empty", None]
    assert [each.source for each in report.failed] == [wanted[1].source]
    document = report.moves[1].as_document()
    assert (document["state"], document["changed"], document["blocked_ms"]) == (None, False, None)


def test_a_mistake_of_ours_doesn_t_keep_the_others(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = orders(root, 2)
    enable = Redirects.enable

    def broken(self: Redirects, source: str, *args: str, **options: object) -> object:
        if source == wanted[0].source:
            raise ZeroDivisionError("oh")
        return enable(self, source, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Redirects, "enable", broken)
    with Mover() as mover:
        report = move_all(mover, wanted)
    assert codes(report.moves) == ["internal_error", None]


def begun(wanted: Wanted, monkeypatch: pytest.MonkeyPatch) -> None:
    """Begin a move that is broken off while writers wait."""

    def fail(_: Move) -> None:
        raise MissingFile("gone")

    with monkeypatch.context() as patch, Redirects() as redirects:
        patch.setattr(Move, "put_lock", fail)
        with pytest.raises(MissingFile):
            redirects.enable(wanted.source, wanted.target, **wanted.options)
    assert state(wanted) == "ENABLING"


def test_a_move_that_has_begun_is_resumed_if_it_is_the_one_that_is_asked_for(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    same, elsewhere, otherwise = orders(root, 3)
    for each in (same, elsewhere, otherwise):
        begun(each, monkeypatch)
    wanted = (
        same,
        Wanted(3, elsewhere.source, f"{root}/elsewhere"),
        Wanted(4, otherwise.source, otherwise.target, {"mode": "writer-only"}),
    )
    with Mover() as mover:
        plan = mover.plan(same)
        assert [step["state"] for step in plan if "state" in step][-1] == "READY"
        report = move_all(mover, wanted)
    refused = "redirect_in_progress"
    assert codes(report.moves) == [None, refused, refused]
    assert [state(each) for each in wanted] == ["READY", "ENABLING", "ENABLING"]


def test_what_every_move_warns_of_is_told_once(root: str) -> None:
    wanted = [
        Wanted(each.line, each.source, each.target, {"mode": "writer-only"})
        for each in orders(root, 3)
    ]
    told: list[str] = []
    with Mover(warn=told.append) as mover:
        report = move_all(mover, wanted)
    assert told
    assert len(told) == len(set(told))
    assert all(set(move.warnings) <= set(told) and move.warnings for move in report.moves)


def test_an_interrupt_lets_nothing_begin_and_tells_what_is_done(root: str) -> None:
    wanted = orders(root, 4)

    def interrupt(_what: str, done: int, _total: int) -> None:
        if done:
            raise KeyboardInterrupt

    with Mover() as mover:
        report = move_all(mover, wanted, parallel=1, observer=interrupt)
        assert report.interrupted
        assert codes(report.moves)[0] is None
        assert codes(report.moves)[-1] == "interrupted"
        assert state(wanted[-1]) == "NORMAL"
        assert mover.move(wanted[-1]).error is not None
    with Mover() as mover:
        again = move_all(mover, wanted)
    assert {state(each) for each in wanted} == {"READY"}
    assert again.failed == ()


def test_a_stopped_move_ends_where_it_next_tells_how_far_it_is(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (wanted,) = orders(root, 1)
    mover = Mover()
    warn = Redirects._warn_of_dangers

    def stopping(self: Redirects, request: Request, state: TableState) -> None:
        mover.stop()
        warn(self, request, state)

    monkeypatch.setattr(Redirects, "_warn_of_dangers", stopping)
    with mover:
        moved = mover.move(wanted)
    assert codes((moved,)) == ["interrupted"]
    assert state(wanted) == "NORMAL"


# --- One engine for all -------------------------------------------------------


class Busy(Engine):
    """An engine that notices when two threads use it at once."""

    name = "spark"

    def __init__(self) -> None:
        self.inside = 0
        self.most = 0
        self.closed = False

    def enter(self) -> None:
        self.inside += 1
        self.most = max(self.most, self.inside)

    def replay(self, plan: ReplayPlan, observer: Observer = unobserved) -> Replayed:
        observer("replaying", 0, 1)
        self.enter()
        return Kept(self)

    def copy(self, plan: CopyPlan, observer: Observer = unobserved) -> CopyTotals:
        self.enter()
        observer("copying", 0, 1)
        self.inside -= 1
        return CopyTotals(1, 1, 0, 0, ())

    def copy_log(self, plan: LogCopyPlan, observer: Observer = unobserved) -> tuple[int, ...]:
        self.copy(plan, observer)  # type: ignore[arg-type]
        return (1,)

    def export_log(
        self, plan: LogExportPlan, observer: Observer = unobserved
    ) -> tuple[LogExported, ...]:
        self.copy(plan, observer)  # type: ignore[arg-type]
        return ()

    def check(self, plan: CheckPlan, observer: Observer = unobserved) -> CheckTotals:
        self.copy(plan, observer)  # type: ignore[arg-type]
        return CheckTotals(1, 0, (), 0, (), 0)

    def look(self, plan: LookPlan, observer: Observer = unobserved) -> Iterator[pa.RecordBatch]:
        yield from self.rewrite(plan, observer)  # type: ignore[arg-type]

    def hash(self, plan: HashPlan, observer: Observer = unobserved) -> Iterator[pa.RecordBatch]:
        yield from self.rewrite(plan, observer)  # type: ignore[arg-type]

    def rewrite(
        self, plan: RewritePlan, observer: Observer = unobserved
    ) -> Iterator[pa.RecordBatch]:
        self.enter()
        yield pa.record_batch({"n": [1]})
        self.inside -= 1

    def orphans(
        self, plan: OrphanPlan, observer: Observer = unobserved
    ) -> Iterator[pa.RecordBatch]:
        yield from self.rewrite(plan, observer)  # type: ignore[arg-type]

    def close(self) -> None:
        self.closed = True


class Kept(Replayed):
    def __init__(self, engine: Busy) -> None:
        self.engine = engine
        self.small = self.totals = None  # type: ignore[assignment]

    def files(self) -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"n": [1]})

    def tombstones(self) -> Iterator[pa.RecordBatch]:
        yield from ()

    def close(self) -> None:
        self.engine.inside -= 1


def test_threads_take_turns_at_a_shared_engine_until_a_replay_is_closed() -> None:
    busy = Busy()
    shared = SharedEngine(busy)
    go = threading.Barrier(8)
    plan = None

    def replay() -> None:
        go.wait()
        with shared.replay(plan) as replayed:  # type: ignore[arg-type]
            assert [batch.num_rows for batch in replayed.files()] == [1]
            # What belongs to the same job may be done meanwhile.
            shared.copy(plan)  # type: ignore[arg-type]

    def copy() -> None:
        go.wait()
        shared.copy(plan)  # type: ignore[arg-type]
        assert shared.copy_log(plan) == (1,)  # type: ignore[arg-type]
        assert shared.export_log(plan) == ()  # type: ignore[arg-type]
        assert [batch.num_rows for batch in shared.rewrite(plan)] == [1]  # type: ignore[arg-type]

    with ThreadPoolExecutor(8) as pool:
        for future in [pool.submit(job) for job in (replay, copy) * 4]:
            future.result()
    # Two, where a thread copies inside of its own replay, and never more.
    assert (busy.inside, busy.most) == (0, 2)
    shared.close()
    assert not busy.closed


def test_a_replay_that_fails_leaves_the_engine_to_the_others() -> None:
    shared = SharedEngine(Busy())

    def fail(_what: str, _done: int, _total: int) -> None:
        raise MissingFile("gone")

    with pytest.raises(MissingFile):
        shared.replay(None, fail)  # type: ignore[arg-type]
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(shared.copy, None).result(10).objects == 1  # type: ignore[arg-type]


def test_one_spark_serves_every_move_and_is_stopped_at_the_end(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Engine] = []
    closed: list[Engine] = []

    class Stopped(SharedEngine):
        def close(self) -> None:
            closed.append(self)

    def opens(name: Name) -> Engine:
        if name != "spark":
            return open_engine(name)
        opened.append(Stopped(open_engine("local")))
        return opened[-1]

    monkeypatch.setattr(move_list, "open_engine", opens)
    wanted = orders(root, 4)
    with Mover(engine="spark") as mover:
        report = move_all(mover, wanted)
        assert closed == []
    assert report.failed == ()
    assert len(opened) == 1
    assert closed == opened


def test_all_moves_share_one_rate_and_spark_gets_half_of_it(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rates: list[tuple[Name, ByteRate]] = []

    def opens(name: Name, rate: ByteRate) -> Engine:
        rates.append((name, rate))
        return open_engine("local", rate)

    monkeypatch.setattr(move_list, "open_engine", opens)
    with Mover(engine="local", limit_rate=1 << 30) as mover:
        report = move_all(mover, orders(root, 2))
        assert report.failed == ()
        first, second = rates
        assert first[1] is second[1]
        assert first[1].bytes_per_s == 1 << 30
        mover._open_engine("spark")
        mover._open_engine("spark")
    assert [(name, rate.bytes_per_s) for name, rate in rates[2:]] == [("spark", 1 << 29)]
    assert first[1].bytes_per_s == 1 << 29


def test_a_report_says_what_the_store_copied(root: str) -> None:
    wanted = orders(root, 1)
    with Mover() as mover:
        document: Any = move_all(mover, wanted).as_document()
    (move,) = document["moves"]
    assert move["bytes_copied_by_store"] == move["bytes_copied"] > 0
