"""The worker: jobs one after another, failures again and then no more, and a stop in between."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence

import pytest

from lakeferry.errors import InvalidInput, StorageUnavailable
from lakeferry.export.job_queue import LEASE_MS, PAUSES_MS, Job, Queue
from lakeferry.export.webhook import CommitEvent
from lakeferry.server.lakefs.export_jobs import JobFailure, JobResult
from lakeferry.server.lakefs.export_worker import Worker
from tests.support.clock import ManualClock
from tests.support.stores import DictStore, Fault, FaultyStore, StoreCall, on

WITHIN_S = 30
LATER = JobFailure("t", StorageUnavailable("no answer"))
NEVER = JobFailure("u", InvalidInput("makes no sense"))


def event(number: int, ref: str = "main") -> CommitEvent:
    return CommitEvent("post-commit", "sales", ref, f"{number:064x}", 0, f"{number:064x}")


class Shop:
    """A queue with a clock of its own, and workers that are all stopped in the end."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = FaultyStore(DictStore(clock=self.clock))
        self.queue = Queue(self.store, clock=self.clock)
        self.done: list[int] = []
        self.workers: list[Worker] = []

    def worker(
        self, run: Callable[[Job], Sequence[JobFailure]] | None = None, *, renew_s: float = WITHIN_S
    ) -> Worker:
        def record(job: Job) -> Sequence[JobFailure]:
            self.done.append(int(job.commit, 16))
            return ()

        act = run or record
        made = Worker(
            self.queue, lambda job: JobResult(tuple(act(job))), poll_s=0.01, renew_s=renew_s
        )
        self.workers.append(made)
        return made


@pytest.fixture
def shop() -> Iterator[Shop]:
    made = Shop()
    yield made
    for worker in made.workers:
        if worker.is_alive:
            assert worker.stop(WITHIN_S)


def test_jobs_are_done_once_each_in_their_order(shop: Shop) -> None:
    for number in (3, 1, 2):
        shop.queue.accept(event(number))
    worker = shop.worker()
    while worker.work_once():
        pass
    assert shop.done == [3, 1, 2]
    assert shop.queue.pending() == []


def test_a_job_is_tried_again_while_that_may_help(shop: Shop) -> None:
    shop.queue.accept(event(1))
    outcomes: list[list[JobFailure]] = [[LATER, NEVER], [LATER], []]
    worker = shop.worker(lambda _: outcomes.pop(0))
    for pause_ms in PAUSES_MS[:2]:
        assert worker.work_once()
        assert not worker.work_once()
        shop.clock.advance(pause_ms)
    assert worker.work_once()
    assert outcomes == []
    assert shop.queue.pending() == []
    assert shop.queue.failures() == []


def test_a_job_that_can_only_fail_is_given_up_at_once(shop: Shop) -> None:
    shop.queue.accept(event(1))
    assert shop.worker(lambda _: [NEVER]).work_once()
    (failure,) = shop.queue.failures()
    assert failure["errors"][0]["table"] == "u"
    assert failure["errors"][0]["code"] == "invalid_input"
    assert shop.queue.pending() == []


@pytest.mark.parametrize("error", [StorageUnavailable("no answer"), ZeroDivisionError("oh")])
def test_whatever_a_job_raises_is_kept_and_the_next_one_is_done(
    shop: Shop, error: Exception
) -> None:
    shop.queue.accept(event(1))
    shop.queue.accept(event(2))
    done: list[int] = []

    def run(job: Job) -> Sequence[JobFailure]:
        number = int(job.commit, 16)
        if number == 1:
            raise error
        done.append(number)
        return ()

    worker = shop.worker(run)
    while worker.work_once():
        pass
    assert done == [2]
    assert len(shop.queue.pending()) == 1


def test_a_store_that_fails_does_not_end_the_thread(shop: Shop) -> None:
    shop.store.rule = on("LIST", Fault.FAIL, times=3)
    done = threading.Event()

    def run(_: Job) -> Sequence[JobFailure]:
        done.set()
        return ()

    worker = shop.worker(run)
    Queue(shop.store.inner, clock=shop.clock).accept(event(1))
    worker.start()
    assert done.wait(WITHIN_S)
    assert worker.is_alive


def test_work_that_takes_long_stays_held(shop: Shop) -> None:
    shop.queue.accept(event(1))
    begun, end = threading.Event(), threading.Event()

    def run(_: Job) -> Sequence[JobFailure]:
        begun.set()
        assert end.wait(WITHIN_S)
        return ()

    renewed = threading.Event()
    worker = shop.worker(run, renew_s=0.001)
    worker.start()
    assert begun.wait(WITHIN_S)
    shop.clock.advance(LEASE_MS - 1)

    def rule(call: StoreCall) -> None:
        if call.verb == "PUT":
            renewed.set()

    shop.store.rule = rule
    # The second renewal that is seen was begun after the clock was moved.
    for _ in range(2):
        renewed.clear()
        assert renewed.wait(WITHIN_S)
    shop.clock.advance(1)
    assert Queue(shop.store, clock=shop.clock).claim() is None
    end.set()
    assert worker.stop(WITHIN_S)
    assert shop.queue.pending() == []
    assert not any("attempts/" in found.path for found in shop.store.list(""))


def test_a_stop_lets_the_job_under_way_end_and_begins_no_other(shop: Shop) -> None:
    shop.queue.accept(event(1))
    shop.queue.accept(event(2))
    begun = threading.Event()

    def run(_: Job) -> Sequence[JobFailure]:
        begun.set()
        assert worker._stopping.wait(WITHIN_S)
        return ()

    worker = shop.worker(run)
    worker.start()
    assert begun.wait(WITHIN_S)
    assert worker.stop(WITHIN_S)
    assert [int(job.commit, 16) for job in shop.queue.pending()] == [2]


def test_a_job_that_does_not_end_in_time_is_given_back_and_stays(shop: Shop) -> None:
    shop.queue.accept(event(1))
    begun, end = threading.Event(), threading.Event()

    def run(_: Job) -> Sequence[JobFailure]:
        begun.set()
        assert end.wait(WITHIN_S)
        return ()

    worker = shop.worker(run)
    worker.start()
    assert begun.wait(WITHIN_S)
    assert not worker.stop(0)
    # The server after it begins at once.
    other = Queue(shop.store, clock=shop.clock)
    found = other.claim()
    assert found is not None
    assert found[1].number == 1
    end.set()
    assert worker.stop(WITHIN_S)
    assert other.pending() == [found[0]]
