"""``/jobs``: progress in words, pauses as a plot, and what can be done with a job."""

from __future__ import annotations

from pathlib import Path

import pytest

from lakeferry.fleet.fleet_states import FleetEvent, FleetState
from lakeferry.fleet.inventory import FleetJob
from lakeferry.fleet.job_changes import JobChanges, JobEnd, JobStep
from lakeferry.web.pages.move_jobs import shown_job
from tests.unit.web.console_for_tests import Visitor, local_visitor, record

MIB = 1 << 20


def job(step: str | None, done: int | None, total: int | None) -> FleetJob:
    return FleetJob(
        1, "file:///a", "file:///a", "file:///b", 1, {}, FleetState.RUNNING,
        step=step, done=done, total=total,
    )  # fmt: skip


def test_bytes_have_a_rate_and_a_time_that_is_left() -> None:
    shown = shown_job(job("copying data", 10 * MIB, 40 * MIB), 1_000, 6_000)
    assert (shown.amount, shown.rate) == ("10.0 MiB of 40.0 MiB", "2.0 MiB/s")
    assert shown.left_ms == pytest.approx(15_000)


@pytest.mark.parametrize(
    ("step", "done", "total", "began", "amount"),
    [
        (None, None, None, None, ""),
        ("reading the log", 3, 1_200, 0, "3 of 1,200"),
        ("copying data", 0, MIB, 0, "0 bytes of 1.0 MiB"),
        ("copying data", 512, MIB, None, "512 bytes of 1.0 MiB"),
        ("copying data", 0, 0, 0, ""),
    ],
)
def test_what_is_not_known_is_not_said(
    step: str | None, done: int | None, total: int | None, began: int | None, amount: str
) -> None:
    shown = shown_job(job(step, done, total), began, 10_000)
    assert (shown.amount, shown.rate, shown.left_ms) == (amount, "", None)


@pytest.fixture
def visitor(tmp_path: Path) -> Visitor:
    visitor = local_visitor(tmp_path)
    record(visitor.console, "file:///lake/a", "file:///lake/b", plans=True)
    return visitor


def run(visitor: Visitor) -> JobChanges:
    changes = JobChanges(visitor.console.database)
    changes.begin_run("somebody", None, {})
    assert len(changes.take("somebody", 1, 2, 60_000)) == 2
    return changes


def test_a_move_of_another_process_is_shown_with_its_progress(visitor: Visitor) -> None:
    changes = run(visitor)
    step = JobStep(1, "file:///lake/a", "copying data", 3 * MIB, 4 * MIB, ("copying data",))
    changes.report("somebody", [step], [], [], 60_000)
    text = visitor.page("/jobs")
    assert "3.0 MiB of 4.0 MiB" in text
    assert f'max="{4 * MIB}" value="{3 * MIB}"' in text
    assert "copying data" in visitor.page("/jobs/1")


def test_pauses_are_drawn_with_links_to_their_jobs(visitor: Visitor) -> None:
    changes = run(visitor)
    outcome = {"blocked_ms": 36, "changed": True, "bytes_copied": MIB, "files_copied": 2}
    end = JobEnd(1, "file:///lake/a", FleetEvent.FINISH, outcome)
    failed = {"code": "conflict", "message": "somebody <b>came</b> first", "remedy": "run it again"}
    failure = JobEnd(2, "file:///lake/b", FleetEvent.FAIL, None, failed)
    changes.report("somebody", [], [end, failure], [], 60_000)
    text = visitor.page("/jobs")
    assert 'href="/-/jobs/1" aria-label="a: writers waited 36 ms"' in text
    assert "36 ms or less" in text
    assert "&lt;b&gt;came" in text
    one, two = visitor.page("/jobs/1"), visitor.page("/jobs/2")
    assert "Resume" not in one
    assert all(word in two for word in ("Resume…", "Cancel the move…", "run it again"))


@pytest.mark.parametrize(
    ("action", "consequence"),
    [("resume", "isn’t copied again"), ("cancel", "is deleted")],
)
def test_a_confirmation_names_the_consequence_and_the_command(
    visitor: Visitor, action: str, consequence: str
) -> None:
    _, text = visitor.post(f"/jobs/1/{action}")
    assert consequence in text
    assert f"lakeferry redirect {action} file:///lake/a" in text


def test_a_job_that_does_not_stand_still_is_not_settled(visitor: Visitor) -> None:
    assert visitor.post("/jobs/1/cancel", confirmed="yes")[0] == 303
    work = visitor.console.work.newest("cancel")
    assert work is not None
    assert visitor.console.work.wait(10)
    assert work.error is not None
    assert work.error["code"] == "redirect_in_progress"
    # Its page says why nothing has happened.
    page = visitor.page("/jobs/1")
    assert str(work.error["message"]) in page.replace("&#39;", "'")
    assert "lakeferry fleet pause --stop-running" in page
    assert str(work.error["message"]) not in visitor.page("/jobs/2").replace("&#39;", "'")
