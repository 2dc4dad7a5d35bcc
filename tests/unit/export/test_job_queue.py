"""The queue of exports: nothing is lost, nothing is replayed, nobody is in another's way."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pytest

from lakeferry.errors import LimitExceeded, StorageUnavailable
from lakeferry.export import job_queue as queues
from lakeferry.export.job_queue import (
    _MOST_ATTEMPTS,
    DONE_KEPT_MS,
    FAILURES_KEPT_MS,
    LEASE_MS,
    PAUSES_MS,
    QUEUE_FOLDER,
    REMEMBERED_MS,
    Attempt,
    Job,
    JobTable,
    Queue,
)
from lakeferry.export.webhook import CommitEvent
from tests.support.clock import ManualClock
from tests.support.stores import DictStore, Fault, FaultyStore, Stopped, StoreCall, at, on

BROKEN = {"table": "t", "code": "storage_unavailable", "message": "no answer", "remedy": None}


def event(number: int = 0, ref: str = "main", kind: str = "post-commit") -> CommitEvent:
    return CommitEvent(kind, "sales", ref, f"{number:064x}", 0, f"{number:064x}")


class Lake:
    """A store with a clock of its own, and servers that share it."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = DictStore(clock=self.clock)

    def server(self, holder: str = "one") -> Queue:
        return Queue(self.store, clock=self.clock, holder=holder)

    def names(self, folder: str = "") -> list[str]:
        lead = f"{QUEUE_FOLDER}{folder}"
        return [name.removeprefix(lead) for name in self.store.objects if name.startswith(lead)]


@pytest.fixture
def lake() -> Lake:
    return Lake()


def accepted(server: Queue, *events: CommitEvent) -> list[Job]:
    jobs = [server.accept(each) for each in events]
    assert all(job is not None for job in jobs)
    return [job for job in jobs if job is not None]


def claimed(server: Queue) -> tuple[Job, Attempt]:
    found = server.claim()
    assert found is not None
    return found


# --- Arrival ------------------------------------------------------------------------


def test_what_is_accepted_is_there_for_the_server_after_it(lake: Lake) -> None:
    (job,) = accepted(lake.server(), event(7, "v1.0", "post-create-tag"))
    assert lake.server("two").pending() == [job]
    assert (job.repository, job.ref, job.commit) == ("sales", "v1.0", f"{7:064x}")
    assert job.is_tag


def test_jobs_are_done_in_the_order_of_their_arrival(lake: Lake) -> None:
    server = lake.server()
    # All in one millisecond, and with identities that would sort them otherwise.
    events = [event(number, f"b{number}") for number in (5, 3, 9, 1)]
    jobs = accepted(server, *events)
    assert server.pending() == jobs
    done = []
    while (found := server.claim()) is not None:
        done.append(found[0])
        server.finish(found[0])
    assert done == jobs
    assert lake.names("jobs/") == lake.names("attempts/") == []


def test_an_event_is_accepted_once_by_all_servers_together(lake: Lake) -> None:
    first, second = lake.server("one"), lake.server("two")
    (job,) = accepted(first, event())
    assert first.accept(event()) is None
    assert second.accept(event()) is None
    assert second.pending() == [job]
    first.finish(job)
    assert second.accept(event()) is None
    assert second.pending() == []


@pytest.mark.parametrize("later_ms", [0, 1])
def test_of_two_servers_that_get_one_event_at_once_one_accepts_it(
    lake: Lake, later_ms: int
) -> None:
    others: list[Job | None] = []

    def rule(call: StoreCall) -> None:
        if call.verb == "PUT_IF_ABSENT" and "seen/" in call.paths[0] and not others:
            lake.clock.advance(later_ms)
            others.append(lake.server("two").accept(event()))

    late = Queue(FaultyStore(lake.store, rule), clock=lake.clock, holder="one")
    assert late.accept(event()) is None
    assert others[0] is not None
    assert late.pending() == others


def test_a_put_that_seems_to_have_been_made_before_is_ones_own(lake: Lake) -> None:
    """As a client does that tries again by itself after an answer was lost."""

    class Twice(FaultyStore):
        def put_if_absent(self, path: str, data: bytes) -> bool:
            super().put_if_absent(path, data)
            return super().put_if_absent(path, data)

    server = Queue(Twice(lake.store), clock=lake.clock, holder="one")
    (job,) = accepted(server, event())
    assert server.claim() is not None
    assert server.pending() == [job]


def test_only_so_many_may_wait(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queues, "MOST_JOBS", 3)
    server = lake.server()
    accepted(server, *(event(number) for number in range(3)))
    with pytest.raises(LimitExceeded):
        server.accept(event(3))
    server.finish(server.pending()[0])
    accepted(server, event(3))


# --- Attempts -----------------------------------------------------------------------


def test_a_job_is_held_by_one_server_for_as_long_as_it_says_so(lake: Lake) -> None:
    first, second = lake.server("one"), lake.server("two")
    (job,) = accepted(first, event())
    _, attempt = claimed(first)
    assert second.claim() is None
    lake.clock.advance(LEASE_MS - 1)
    assert second.claim() is None
    first.renew(attempt)
    lake.clock.advance(LEASE_MS - 1)
    assert second.claim() is None
    lake.clock.advance(1)
    taken, again = claimed(second)
    assert (taken, again.number, again.holder) == (job, 2, "two")


def test_of_two_servers_that_take_a_job_at_once_one_gets_it(lake: Lake) -> None:
    others: list[object] = []

    def rule(call: StoreCall) -> None:
        if call.verb == "PUT_IF_ABSENT" and not others:
            others.append(lake.server("two").claim())

    accepted(lake.server(), event())
    slow = Queue(FaultyStore(lake.store, rule), clock=lake.clock, holder="one")
    assert slow.claim() is None
    assert others[0] is not None


def test_jobs_of_one_ref_are_not_worked_on_side_by_side(lake: Lake) -> None:
    first, second = lake.server("one"), lake.server("two")
    jobs = accepted(first, event(1, "main"), event(2, "main"), event(3, "dev"))
    assert claimed(first)[0] == jobs[0]
    assert claimed(second)[0] == jobs[2]
    assert second.claim() is None
    first.finish(jobs[0])
    assert claimed(second)[0] == jobs[1]


def test_of_two_jobs_of_one_ref_that_are_taken_at_once_one_is_given_back(lake: Lake) -> None:
    jobs = accepted(lake.server(), event(1, "main"), event(2, "main"))
    others: list[tuple[Job, Attempt] | None] = []

    def rule(call: StoreCall) -> None:
        if call.verb == "PUT_IF_ABSENT" and not others:
            others.append(None)
            # The other has listed before the first job was there.
            quick = lake.server("two")
            lake.store.delete_many([f"{QUEUE_FOLDER}jobs/{jobs[0].id}.json"])
            others.append(quick.claim())

    slow = Queue(FaultyStore(lake.store, rule), clock=lake.clock, holder="one")
    assert slow.claim() is None
    taken = others[1]
    assert taken is not None
    assert taken[0] == jobs[1]
    assert lake.names("attempts/") == [f"{jobs[1].id}/001.json"]


def test_a_job_that_is_given_back_may_be_taken_at_once_and_costs_no_attempt(lake: Lake) -> None:
    first, second = lake.server("one"), lake.server("two")
    accepted(first, event())
    first.release(claimed(first)[1])
    assert claimed(second)[1].number == 1


def test_what_failed_rests_longer_each_time_and_is_then_given_up_with_its_errors(
    lake: Lake,
) -> None:
    server = lake.server()
    (job,) = accepted(server, event())
    for number, pause_ms in enumerate(PAUSES_MS, 1):
        _, attempt = claimed(server)
        assert attempt.number == number
        assert server.fail(job, attempt, [BROKEN], again=True) == pause_ms
        lake.clock.advance(pause_ms - 1)
        assert server.claim() is None
        lake.clock.advance(1)
    _, attempt = claimed(server)
    assert server.fail(job, attempt, [BROKEN], again=True) is None
    assert server.pending() == []
    (failure,) = server.failures()
    assert failure["errors"] == [BROKEN]
    assert (failure["job"]["id"], failure["attempts"]) == (job.id, _MOST_ATTEMPTS)
    assert failure["failed_ms"] == lake.clock()
    assert lake.names("attempts/") == []


def test_what_cannot_succeed_is_given_up_at_once(lake: Lake) -> None:
    server = lake.server()
    (job,) = accepted(server, event())
    assert server.fail(job, claimed(server)[1], [BROKEN], again=False) is None
    assert [failure["attempts"] for failure in server.failures()] == [1]
    assert server.claim() is None


def test_a_job_that_rests_does_not_hold_up_its_ref(lake: Lake) -> None:
    server = lake.server()
    jobs = accepted(server, event(1), event(2))
    server.fail(jobs[0], claimed(server)[1], [BROKEN], again=True)
    assert claimed(server)[0] == jobs[1]


def test_a_job_that_ends_its_server_each_time_is_given_up(lake: Lake) -> None:
    accepted(lake.server(), event())
    for number in range(_MOST_ATTEMPTS):
        assert claimed(lake.server(f"server {number}"))[1].number == number + 1
        lake.clock.advance(LEASE_MS)
    last = lake.server("last")
    assert last.claim() is None
    assert [failure["attempts"] for failure in last.failures()] == [_MOST_ATTEMPTS]
    assert last.pending() == []


# --- A server ends anywhere ---------------------------------------------------------


def work_off(server: Queue, clock: ManualClock, done: set[str], fails: bool = False) -> None:
    """Do what there is, with one failure of each first if asked for."""
    for _ in range(50):
        found = server.claim()
        if found is None:
            if not server.pending():
                return
            clock.advance(max(LEASE_MS, *PAUSES_MS))
            continue
        job, attempt = found
        server.renew(attempt)
        if fails and attempt.number == 1:
            server.fail(job, attempt, [BROKEN], again=True)
            continue
        done.add(job.id)
        server.finish(job)
    raise AssertionError("the queue never ends")


@pytest.mark.parametrize("fault", [Fault.STOP_BEFORE, Fault.STOP_AFTER, Fault.STOP_HALFWAY])
@pytest.mark.parametrize("fails", [False, True])
def test_a_server_may_end_at_any_call_and_no_job_is_lost(fault: Fault, fails: bool) -> None:
    def story(store: FaultyStore, clock: ManualClock) -> None:
        server = Queue(store, clock=clock, holder="one")
        for number in range(2):
            answered.extend(accepted(server, event(number)))
        work_off(server, clock, done, fails)

    answered: list[Job] = []
    done: set[str] = set()
    clean = Lake()
    calls = FaultyStore(clean.store)
    story(calls, clean.clock)
    assert len(calls.history) > 20
    for index in range(len(calls.history)):
        lake = Lake()
        answered.clear()
        done.clear()
        # A call that finds nothing ends with that.
        with suppress(Stopped):
            story(FaultyStore(lake.store, at(index, fault)), lake.clock)
        again = lake.server("two")
        work_off(again, lake.clock, done)
        assert {job.id for job in answered} <= done
        assert again.failures() == []
        assert lake.names("jobs/") == []
        for job in answered:
            assert again.accept(event(int(job.identity, 16))) is None
        lake.clock.advance(2 * 3600 * 1000)
        again.prune()
        assert lake.names("attempts/") == []


def test_an_event_whose_answer_was_lost_is_in_the_queue(lake: Lake) -> None:
    for folder in ("jobs/", "seen/"):
        lake = Lake()
        rule = on("PUT_IF_ABSENT", Fault.LOSE_ANSWER, containing=folder)
        server = Queue(FaultyStore(lake.store, rule), clock=lake.clock)
        with pytest.raises(StorageUnavailable):
            server.accept(event())
        assert len(server.pending()) == 1


# --- Bounds and leftovers -----------------------------------------------------------


def test_events_are_remembered_for_a_while_and_failures_for_longer(lake: Lake) -> None:
    server = lake.server()
    jobs = accepted(server, event(1), event(2, "dev"))
    server.fail(jobs[0], claimed(server)[1], [BROKEN], again=False)
    lake.clock.advance(REMEMBERED_MS)
    accepted(server, event(3))
    server.prune()
    assert len(lake.names("seen/")) == 3
    lake.clock.advance(1)
    server.prune()
    assert lake.names("seen/") == [f"{event(3).identity}.json"]
    assert len(server.failures()) == 1
    assert len(server.pending()) == 2
    lake.clock.advance(FAILURES_KEPT_MS)
    server.prune()
    assert server.failures() == []
    assert len(server.pending()) == 2


def test_pruning_leaves_the_attempts_of_jobs_that_wait(lake: Lake) -> None:
    server = lake.server()
    accepted(server, event())
    claimed(server)
    lake.clock.advance(REMEMBERED_MS + 1)
    server.prune()
    assert claimed(server)[1].number == 2


def spoil_job(lake: Lake, job: Job) -> None:
    lake.store.put(f"{QUEUE_FOLDER}jobs/{job.id}.json", b"{")


def spoil_names(lake: Lake, _: Job) -> None:
    for name in ("jobs/readme.txt", "jobs/x-y.json", "attempts/x/1.json", "attempts/x", "failed/x"):
        lake.store.put(f"{QUEUE_FOLDER}{name}", b"?")


@pytest.mark.parametrize("spoil", [spoil_job, spoil_names])
def test_what_somebody_spoilt_does_not_hold_up_the_others(
    lake: Lake, spoil: Callable[[Lake, Job], None]
) -> None:
    server = lake.server()
    jobs = accepted(server, event(1), event(2, "dev"))
    spoil(lake, jobs[0])
    done = []
    while (found := server.claim()) is not None:
        done.append(found[0])
        server.finish(found[0])
    assert jobs[1] in done
    assert server.failures() == []
    server.prune()
    if spoil is spoil_job:
        assert lake.store.get(f"{QUEUE_FOLDER}failed/{jobs[0].id}.json") == b"{"


def test_finished_jobs_are_recorded_for_a_week() -> None:
    clock = ManualClock()
    store = DictStore(clock=clock)
    server = Queue(store, clock=clock)
    for number in range(3):
        server.accept(event(number))
        clock.advance(1)
    for number, job in enumerate(server.pending()):
        server.finish(job, [JobTable(f"t{number}", "s3://lake/t", changed=number > 0)])
    done = server.newest_done(2)
    assert [each.tables[0].table for each in done] == ["t2", "t1"]
    assert done[0].tables[0].changed
    clock.advance(DONE_KEPT_MS - 1)
    server.prune()
    assert len(server.newest_done(10)) == 3
    clock.advance(2)
    server.prune()
    assert server.newest_done(10) == []


def test_a_job_whose_record_cannot_be_written_is_done() -> None:
    clock = ManualClock()
    store = FaultyStore(DictStore(clock=clock))
    server = Queue(store, clock=clock)
    server.accept(event(1))
    (job,) = server.pending()
    store.rule = on("PUT", Fault.FAIL, times=1)
    server.finish(job, [])
    assert server.pending() == []
    assert server.newest_done(10) == []


def test_a_waiting_job_has_its_last_attempt() -> None:
    clock = ManualClock()
    server = Queue(DictStore(clock=clock), clock=clock)
    server.accept(event(1))
    (waiting,) = server.waiting(10)
    assert waiting.attempt is None
    claimed = server.claim()
    assert claimed
    server.fail(*claimed, [{"message": "no"}], again=True)
    (waiting,) = server.waiting(10)
    assert waiting.attempt
    assert (waiting.attempt.number, waiting.attempt.is_running) == (1, False)
    clock.advance(PAUSES_MS[0])
    second = server.claim()
    assert second
    server.fail(*second, [{"message": "never"}], again=False)
    assert server.waiting(10) == []
    (failed,) = server.newest_failed(10)
    assert (failed.attempts, failed.errors) == (2, ({"message": "never"},))
