"""The page of exports: what waits, runs, has failed, and is done."""

from __future__ import annotations

from pathlib import Path

import pytest

from lakeferry.export.job_queue import LEASE_MS, Attempt, Job, JobTable, Queue, WaitingJob
from lakeferry.export.webhook import CommitEvent
from lakeferry.web.pages.served_exports import shown_export
from tests.unit.web.console_for_tests import ConsoleServer

JOB = Job("1", "post-commit", "sales", "main", "c" * 64, 0, "i")
NOW_MS = 1_000_000


@pytest.fixture
def server(tmp_path: Path) -> ConsoleServer:
    return ConsoleServer(tmp_path)


def event(number: int, repository: str = "sales") -> CommitEvent:
    identity = f"{number:064x}"
    return CommitEvent("post-commit", repository, "main", identity, 0, identity)


def queue(server: ConsoleServer) -> Queue:
    return Queue(server.store, clock=server.store.clock)


def test_an_empty_queue_says_what_comes_next(server: ConsoleServer) -> None:
    assert "lakeferry lakefs init" in server.signed_in().page("/exports")


def test_a_job_is_shown_in_each_of_its_states(server: ConsoleServer) -> None:
    made = queue(server)
    for number, repository in enumerate(("first", "second", "third", "fourth")):
        assert made.accept(event(number, repository))
    first, second, third = (made.claim() for _ in range(3))
    assert first
    assert second
    assert third
    location = "s3://lake/_lakefs/exported/main/t"
    made.finish(first[0], [JobTable("<b>orders</b>", location, changed=True)])
    error = {"table": "returns", "code": "corrupt_log", "message": "a gap", "remedy": "repair it"}
    made.fail(*second, [error], again=False)
    again = {"code": "timeout", "message": "no <i>answer</i>"}
    made.fail(*third, [again], again=True)
    page = server.signed_in().page("/exports")
    assert "&lt;b&gt;orders&lt;/b&gt;" in page
    assert "<b>orders" not in page
    for text in ("repair it", "corrupt_log", "no &lt;i&gt;answer", "fourth", "after 1 attempt"):
        assert text in page, text


def test_it_is_for_those_who_see_all_datasets(server: ConsoleServer) -> None:
    assert server.signed_in(dataset="orders").get("/exports")[0] == 404


@pytest.mark.parametrize(
    ("attempt", "state", "text"),
    [
        (None, "queued", "waits for its turn"),
        (Attempt("1", 2, "h", NOW_MS + LEASE_MS), "running", "attempt 2"),
        (Attempt("1", 2, "h", NOW_MS), "queued", "attempt 2 was broken off"),
        (
            Attempt("1", 1, "h", NOW_MS + 2_000, is_running=False, errors=({"message": "oh"},)),
            "stopped",
            "attempt 1 failed, tried again in 2 s: oh",
        ),
        (
            Attempt("1", 1, "h", NOW_MS, is_running=False, errors=({},)),
            "stopped",
            "attempt 1 failed, tried again now: ",
        ),
    ],
)
def test_what_an_unfinished_job_does_now(attempt: Attempt | None, state: str, text: str) -> None:
    shown = shown_export(WaitingJob(JOB, attempt), NOW_MS)
    assert (shown.state, shown.text) == (state, text)
