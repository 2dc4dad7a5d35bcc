"""Pushes and pulls of Delta tables whose client, server or store fails at any storage call.

As in ``test_transfer_crashes.py``: each is run once for every call that either end makes, and
every way in which that call can go wrong, or for this run's share of those. Whatever is left, the
newest version that the receiver shows has its files; a client that is told "done" finds the
sender's newest version there; running it once more completes it; and what stays of it garbage
collection can delete.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from lakeferry.errors import CommitConflict, CommitStateUnknown, StorageUnavailable
from lakeferry.log import paths
from lakeferry.storage import open_store, process_identity
from lakeferry.storage.process_identity import this_process
from lakeferry.table import DeltaLog
from lakeferry.transfer.client.remote_dataset import Terms
from lakeferry.transfer.client.transfer_progress import Transferred
from lakeferry.transfer.datasets.delta import named_files
from lakeferry.transfer.datasets.delta.delta_dataset import DeltaDataset
from tests.simulation.transfer_cases import (
    ENDS,
    TransferRun,
    collect_weeks_later,
    from_call,
    terms_of,
)
from tests.support.history import Append, Checkpoint, Checksum, Delete, DeleteRows, History, Layout
from tests.support.hosting import Files
from tests.support.odf import Chain
from tests.support.reference_client import files_of
from tests.support.shares import Share
from tests.support.stores import CHANGES, DictStore, Fault, Stopped, on
from tests.support.transfer_world import DATASET, World, running, without_network
from tests.support.transfers import async_pull

BASE = History(Layout(deletion_vectors="u")).then(Append(2), DeleteRows(1), Append(1))
MORE = BASE.then(Delete(1), Checkpoint(), Checksum(), Append(2))
LONG = MORE.then(*[Append(1)] * 5)
OTHER = BASE.then(Append(3))


@dataclass(frozen=True, slots=True)
class Case:
    """Which versions each end has before, and where they go; ``None``: no table."""

    operation: str
    sender: History
    receiver: History | None
    force: bool = False
    puts_prove: bool = True


CASES = {
    "a new table is pushed": Case("push", MORE, None),
    "an advanced table is pushed": Case("push", MORE, BASE),
    "a diverged table is pushed by force": Case("push", MORE, OTHER, force=True),
    "a new table is pushed to a store that takes anything": Case(
        "push", BASE, None, puts_prove=False
    ),
    "a new table is pulled": Case("pull", MORE, None),
    "an advanced table is pulled": Case("pull", MORE, BASE),
    "a diverged table is pulled by force": Case("pull", MORE, OTHER, force=True),
}
# These pass version 10, where the receiver writes a checkpoint in any case.
LONG_CASES = {
    "a long table is pushed": Case("push", LONG, BASE),
    "a long table is pulled": Case("pull", LONG, BASE),
}


@cache
def table(past: History | None) -> Files:
    """Return a table's files with its whole chain, so that runs begin with equal ends."""
    if past is None:
        return {}
    store = past.store()
    DeltaDataset(store, "").current()
    return store.objects


class Run(TransferRun):
    """Transfers between two ends that have what the case says."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.sent, self.had = table(case.sender), table(case.receiver)
        super().__init__(case.operation, self.sent, self.had, case.puts_prove)

    def terms(self, *, once: bool) -> Terms:
        return terms_of(once=once, force=self.case.force)

    def check(self) -> bool:
        """See that the receiver is whole, and tell whether it has all that was sent."""
        received = self.received
        # Whatever was there stays, except what the transfer keeps beside the log.
        for path, data in self.had.items():
            if not path.startswith("_delta_log/_"):
                assert received[path] == data
        if not any(path.startswith("_delta_log/0") for path in received):
            return False
        for path, data in received.items():
            if not path.startswith(("_delta_log/", ".lakeferry/")):
                assert data == (self.sent | self.had)[path]
        shown = DeltaLog(DictStore(received)).snapshot()
        for path in shown.files["path"].to_pylist():
            assert named_files.decoded(path) in received
        wanted = DeltaLog(DictStore(self.sent)).snapshot()
        return set(shown.files["path"].to_pylist()) == set(wanted.files["path"].to_pylist())

    @property
    def unfinished(self) -> set[str]:
        """What the server keeps about pushes and sweeps."""
        kept = (".lakeferry/pushes/", ".lakeferry/sweeps/")
        return {path for path in self.disks["server"].objects if path.startswith(kept)}

    def collect(self) -> None:
        """Run garbage collection on the server's root, weeks later."""
        collect_weeks_later(self.disks["server"])


def accidents(case: Case, end: str) -> list[tuple[int, Fault]]:
    """Return which call goes wrong and how, for all that leave something different behind.

    A call that only reads changes nothing: to lose its answer is to fail, and to end there is to
    end before the next change.
    """
    run = Run(case)
    run.transfer()
    history = run.stores[end].history
    changes = [call.index for call in history if call.verb in CHANGES]
    return [
        *((call.index, Fault.FAIL) for call in history),
        *((index, Fault.LOSE_ANSWER) for index in changes),
        *((index, Fault.STOP_BEFORE) for index in [*changes, len(history) - 1]),
    ]


def broken_off(share: Share, case: Case, end: str) -> Iterator[tuple[Run, Transferred | None]]:
    """Yield what is left by every run with one fault, and what the client was told, if anything."""
    for index, fault in share.each(accidents(case, end)):
        run = Run(case)
        done, why = None, None
        try:
            done = run.transfer({end: from_call(index, fault)})
        except (StorageUnavailable, CommitStateUnknown) as told:
            why = told.cause
        except Stopped:
            # Only a client that has ended itself isn't told why.
            why = "ended" if end == "client" else None
        yield run, done
        assert done is not None or why


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_whatever_is_left_of_a_table_is_whole_and_the_retry_completes_it(
    case: Case, end: str, share: Share
) -> None:
    ended = 0
    for run, done in broken_off(share, case, end):
        ended += 1
        is_taken = run.check()
        assert is_taken or done is None
        if ended % 2 and case.operation == "push":
            # It may publish what was checked and not published yet, and never loses anything.
            run.collect()
            assert run.check() or not is_taken
        again = run.transfer()
        assert run.check()
        assert again.unfinished is None
        if case.operation == "push":
            run.collect()
            assert run.check()
            assert not run.unfinished
    assert ended >= 10 or not share.is_whole


def test_a_push_of_a_new_table_that_is_given_up_leaves_nothing_behind(share: Share) -> None:
    pushed = Case("push", BASE, None)
    for end in ENDS:
        for run, _ in broken_off(share, pushed, end):
            run.collect()
            # A table whose first version is there isn't given up: a push or a pull continues it.
            assert run.check() or not run.received or paths.commit(0) in run.received
            assert not run.unfinished


def deciding_call(case: Case) -> int:
    """Return the index of the receiver's call after which its readers see the new version."""
    run = Run(case)
    run.transfer()
    version = DeltaLog(DictStore(run.received)).snapshot().version
    for call in run.stores[receiver(case)].history:
        if call.verb == "PUT_IF_ABSENT" and call.paths[0].endswith(paths.commit(version)):
            return call.index
    raise AssertionError("nothing was decided")


def receiver(case: Case) -> str:
    return "server" if case.operation == "push" else "client"


@pytest.mark.parametrize("fault", [Fault.FAIL, Fault.LOSE_ANSWER], ids=lambda fault: fault.name)
@pytest.mark.parametrize("case", (CASES | LONG_CASES).values(), ids=CASES | LONG_CASES)
def test_no_call_that_fails_after_the_last_version_makes_the_transfer_fail(
    case: Case, fault: Fault, share: Share
) -> None:
    # The call itself may lose its answer, and is looked for then.
    first = deciding_call(case) + (fault is Fault.FAIL)
    for index in share.each(range(first, first + 1000)):
        run = Run(case)
        done = run.transfer({receiver(case): from_call(index, fault)}, once=False)
        assert run.check()
        assert done.changed
        # The first session was it: nothing had to be tried again.
        assert run.world.sessions == 1
        assert run.transfer().unfinished is None
        assert not any(path.endswith("refs/next") for path in run.received)
        if index >= len(run.stores[receiver(case)].history):
            return


@pytest.mark.parametrize("what", ["a new", "an advanced", "a diverged"])
def test_a_pull_whose_store_takes_nothing_after_the_last_version_succeeds_and_says_so(
    what: str,
) -> None:
    (case,) = [case for name, case in CASES.items() if name.startswith(what) and "pull" in name]
    decided = deciding_call(case)
    run = Run(case)
    done = run.transfer(
        {"client": lambda call: Fault.FAIL if call.index > decided else None}, once=False
    )
    assert run.check()
    assert done.changed
    assert isinstance(done.unfinished, StorageUnavailable)
    again = run.transfer()
    assert again.unfinished is None
    assert not any(path.endswith("refs/next") for path in run.received)
    assert run.transfer().changed is False


def test_a_pull_removes_what_a_killed_pull_has_left(tmp_path: Path) -> None:
    run = Run(Case("pull", BASE, None))
    store = open_store(tmp_path.as_uri())
    # A process with this number and another time of start has ended.
    machine, number, started = this_process().split("-")
    ended = f"{machine}-{number}-{int(started) + 1}"
    left, ours = (
        tmp_path / f".lakeferry-{process}-{'0' * 16}.tmp" for process in (ended, this_process())
    )

    def pulled() -> Transferred:
        world = World(run.disks["server"], clock=run.disks["server"].clock)
        with without_network():
            return running(world, lambda: async_pull(DATASET, store, run.terms(once=True)))

    pulled()
    for path in (left, ours):
        path.write_bytes(b"half")
    # Also if there is nothing to pull.
    assert pulled().changed is False
    assert not left.exists()
    assert ours.exists()


def test_a_name_is_held_while_the_server_of_its_first_push_may_run_and_then_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = Run(Case("push", BASE, None))
    with pytest.raises(StorageUnavailable):
        run.transfer({"server": on("PUT_IF_ABSENT", Fault.STOP_BEFORE, containing="/part-")})
    run.disks["client"] = DictStore(files_of(Chain().append()))
    with pytest.raises(CommitConflict, match="reserved by another push for 120 more seconds"):
        run.transfer()
    # The same dataset isn't another one: its push goes on.
    run.disks["client"] = DictStore(run.sent)
    with pytest.raises(StorageUnavailable):
        run.transfer({"server": on("PUT_IF_ABSENT", Fault.STOP_BEFORE, containing="/part-")})
    # Once the servers are known to have ended, the name is anybody's.
    monkeypatch.setattr(process_identity, "has_ended", lambda _: True)
    run.disks["client"] = DictStore(files_of(Chain().append()))
    assert run.transfer().changed
