"""Pushes and pulls whose client, server or store ends or fails at any storage call.

Each is run once for every call that either end makes, and every way in which that call can go
wrong, or for this run's share of those. Whatever is left, the receiver's head is the old one or
the new one and its chain is whole; and to do it once more completes it, with only those objects
sent that are missing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from lakeferry.errors import CommitStateUnknown, LakeferryError, StorageUnavailable
from lakeferry.transfer.client.remote_dataset import Terms
from lakeferry.transfer.repository.repository import ROOT_MARK, Repository, Visibility
from tests.simulation.transfer_cases import (
    ENDS,
    TransferRun,
    chain_of,
    collect_weeks_later,
    from_call,
    objects_named,
    terms_of,
)
from tests.support.hosting import Files
from tests.support.odf import Chain, SetInfo
from tests.support.reference_client import files_of
from tests.support.shares import Share
from tests.support.stores import Fault, Stopped
from tests.support.transfer_world import NAME

FAULTS = (Fault.STOP_BEFORE, Fault.STOP_AFTER, Fault.FAIL, Fault.LOSE_ANSWER)


def base(*steps: str) -> Files:
    built = Chain().append(checkpoint="a").append(checkpoint="b")
    for step in steps:
        built.add(SetInfo(step)).append(checkpoint=step).append()
    return files_of(built)


@dataclass(frozen=True, slots=True)
class Case:
    """Who has what before, and where it goes."""

    operation: str
    sender: Files
    receiver: Files
    force: bool = False
    puts_prove: bool = True
    visibility: str = "private"


OLD, NEW, OTHER, SEED = base(), base("new"), base("other"), files_of(Chain())
CASES = {
    "a new dataset is pushed": Case("push", NEW, {}),
    "a new empty dataset is pushed": Case("push", SEED, {}),
    "an advanced dataset is pushed": Case("push", NEW, OLD),
    "a diverged dataset is pushed by force": Case("push", NEW, OTHER, force=True),
    "a dataset is pushed to a store that takes anything": Case("push", NEW, OLD, puts_prove=False),
    "a new dataset is pulled": Case("pull", NEW, {}),
    "an advanced dataset is pulled": Case("pull", NEW, OLD),
    "a diverged dataset is pulled by force": Case("pull", NEW, OTHER, force=True),
}


class Run(TransferRun):
    """Transfers between two ends that have what the case says."""

    def __init__(self, case: Case) -> None:
        self.case = case
        super().__init__(case.operation, case.sender, case.receiver, case.puts_prove)

    def terms(self, *, once: bool) -> Terms:
        return terms_of(once=once, force=self.case.force, visibility=self.case.visibility)

    def check(self) -> bool:
        """See that the receiver is whole, and tell whether it has the new head."""
        received = self.received
        head = received.get("refs/head")
        assert head in (self.case.receiver.get("refs/head"), self.case.sender["refs/head"])
        if head is not None:
            assert objects_named(chain_of(received)) <= received.keys()
        # Whatever was there stays.
        kept = self.case.receiver.items() - {("refs/head", self.case.receiver.get("refs/head"))}
        assert kept <= received.items()
        return head == self.case.sender["refs/head"]


def broken_off(share: Share, case: Case, end: str, fault: Fault) -> Iterator[tuple[Run, bool]]:
    """Yield what is left by every run with one fault, and whether the client was told it is done.

    It goes on until nothing goes wrong any more.
    """
    for index in share.each(range(1000)):
        run = Run(case)
        ended: BaseException | None = None
        try:
            run.transfer({end: from_call(index, fault)})
        except (StorageUnavailable, CommitStateUnknown, Stopped) as failed:
            ended = failed
        # A client that is there is told why; one that isn't, isn't.
        assert end == "client" or not isinstance(ended, Stopped)
        assert not isinstance(ended, LakeferryError) or ended.cause
        if index >= len(run.stores[end].history):
            return
        yield run, ended is None


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_whatever_is_left_is_whole_and_the_retry_sends_only_what_is_missing(
    case: Case, end: str, share: Share
) -> None:
    ended = taken = 0
    for fault in FAULTS:
        for run, is_done in broken_off(share, case, end, fault):
            ended += 1
            is_taken = run.check()
            assert is_taken or not is_done
            taken += is_taken and not is_done
            named = objects_named(chain_of(case.sender))
            there = named & run.received.keys()
            again = run.transfer()
            assert run.check()
            assert again.changed is not is_taken
            assert again.objects == (0 if is_taken else len(named - there))
            expected = run.received.keys() & case.sender.keys()
            assert expected == case.sender.keys()
    assert ended >= 20 or not share.is_whole
    # Where the receiver ended, some did between the new head and the word of it.
    receiver_ended = (end == "server") == (case.operation == "push")
    assert receiver_ended or not taken
    assert taken or not receiver_ended or not share.is_whole


@pytest.mark.parametrize("fault", [Fault.FAIL, Fault.LOSE_ANSWER], ids=lambda fault: fault.name)
@pytest.mark.parametrize("operation", ["push", "pull"])
def test_one_call_that_fails_at_the_server_is_no_failure_of_the_transfer(
    operation: str, fault: Fault, share: Share
) -> None:
    case = Case(operation, NEW, OLD)
    for index in share.each(range(1000)):
        run = Run(case)
        done = run.transfer({"server": from_call(index, fault)}, once=False)
        assert run.check()
        named = len(objects_named(chain_of(NEW)) - objects_named(chain_of(OLD)))
        assert done.objects + done.skipped >= named
        if index >= len(run.stores["server"].history):
            return
    raise AssertionError("it has no end")


@pytest.mark.parametrize("fault", [Fault.STOP_BEFORE, Fault.STOP_AFTER], ids=lambda f: f.name)
@pytest.mark.parametrize("visibility", ["public", "private"])
def test_a_dataset_is_as_visible_as_it_was_pushed_wherever_its_server_ended(
    visibility: str, fault: Fault, share: Share
) -> None:
    pushed = Case("push", NEW, {}, visibility=visibility)
    for run, _ in broken_off(share, pushed, "server", fault):
        seen = Repository(run.disks["server"]).visibility(NAME)
        # Nobody sees it too early, and those who may see it do.
        assert seen is Visibility.PRIVATE or visibility == "public"
        run.transfer()
        assert Repository(run.disks["server"]).visibility(NAME) is Visibility(visibility)


@pytest.mark.parametrize("end", ENDS)
def test_a_push_of_a_new_dataset_that_is_given_up_leaves_nothing_behind(
    end: str, share: Share
) -> None:
    pushed = Case("push", OLD, {})
    for fault in FAULTS:
        for run, _ in broken_off(share, pushed, end, fault):
            disk = run.disks["server"]
            collect_weeks_later(disk)
            assert run.check() or disk.objects.keys() == {ROOT_MARK}
            assert not any(path.startswith(".lakeferry/pushes/") for path in disk.objects)
