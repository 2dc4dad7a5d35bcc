from __future__ import annotations

import threading

import pytest

from lakeferry.errors import CommitConflict, InvalidInput
from lakeferry.web.background_work import KEPT_WORK, BackgroundWork, ConsoleWork


def test_one_of_a_kind_runs_at_a_time_and_some_not_beside_each_other() -> None:
    work, go_on = BackgroundWork(), threading.Event()

    def wait(_: ConsoleWork) -> str:
        assert go_on.wait(10)
        return "done"

    first = work.start("scan", "Scan", "lakeferry", wait)
    with pytest.raises(CommitConflict):
        work.start("scan", "Scan", "lakeferry", wait)
    with pytest.raises(CommitConflict):
        work.start("plan", "Plan", "lakeferry", wait, not_beside=("scan",))
    work.start("run", "Run", "lakeferry", wait)
    go_on.set()
    assert work.wait(10)
    assert (first.result, first.error, first.is_running) == ("done", None, False)
    work.start("scan", "Scan", "lakeferry", wait)
    assert work.wait(10)


def test_failures_are_told_without_what_others_must_not_see() -> None:
    work = BackgroundWork()

    def refuse(_: ConsoleWork) -> str:
        raise InvalidInput("no", remedy="yes")

    def fail(_: ConsoleWork) -> str:
        raise ValueError("a secret")

    one, two = work.start("a", "A", "", refuse), work.start("b", "B", "", fail)
    assert work.wait(10)
    assert one.error == {"code": "invalid_input", "message": "no", "remedy": "yes"}
    assert "a secret" not in str(two.error)


def test_little_is_kept_and_marks_change() -> None:
    def warn(each: ConsoleWork) -> str:
        for _ in range(99):
            each.warn("x")
        return ""

    work = BackgroundWork()
    before = work.mark()
    for number in range(KEPT_WORK + 5):
        work.start("a", str(number), "", warn)
        assert work.wait(10)
    assert len(work.mark()) == KEPT_WORK
    assert work.mark() != before
    newest = work.newest("a")
    assert newest is not None
    assert len(newest.warnings) < 99


def test_work_is_asked_to_end() -> None:
    work = BackgroundWork()
    stopped = work.start("run", "Run", "", lambda each: str(each.stop.wait(10)))
    assert not work.wait(0)
    work.ask_to_end()
    assert work.wait(10)
    assert stopped.result == "True"
