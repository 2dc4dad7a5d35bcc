"""Transfers that go wrong at one call, and what is true of a dataset's files at any time.

What is true is said without the code that is tested: blocks are read by the FlatBuffers runtime,
and hashed by the standard library.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from lakeferry.engines.local_engine import LocalEngine
from lakeferry.transfer.chain.odf_blocks import Block, ObjectKind
from lakeferry.transfer.client.remote_dataset import Terms
from lakeferry.transfer.client.transfer_progress import Transferred
from lakeferry.transfer.repository.garbage_collection import collect
from lakeferry.transfer.repository.repository import ROOT_MARK
from tests.support import odf
from tests.support.hosting import HASTY, ONCE, QUICK, Files
from tests.support.places import below, inside
from tests.support.stores import DictStore, Fault, FaultyStore, Rule, StoreCall
from tests.support.transfer_world import DATASET, NAME, World, running, without_network
from tests.support.transfers import async_pull, async_push

WEEKS_MS = 30 * 24 * 3600 * 1000

FOLDER = str(NAME)
ENDS = ("client", "server")
FOLDERS = {ObjectKind.DATA_SLICE: "data", ObjectKind.CHECKPOINT: "checkpoints"}


def name_of(data: bytes) -> str:
    return "f1620" + hashlib.sha3_256(data).hexdigest()


def chain_of(files: Mapping[str, bytes], head: str | None = None) -> list[Block]:
    """Return the blocks that lead to the head, newest first; each has its hash and its number."""
    current: str | None = head or files["refs/head"].decode()
    found: list[Block] = []
    while current is not None:
        data = files[f"blocks/{current}"]
        assert name_of(data) == current
        block = odf.naive(data)
        assert not found or block.sequence_number == found[-1].sequence_number - 1
        found.append(block)
        current = block.prev_hash.text if block.prev_hash else None
    assert found[-1].sequence_number == 0
    assert found[-1].seed is not None
    check_objects(files, found)
    return found


def objects_named(blocks: Sequence[Block]) -> set[str]:
    """Return the names of the objects that blocks name."""
    return {f"{FOLDERS[ref.kind]}/{ref.hash}" for block in blocks for ref in block.objects}


def check_objects(files: Mapping[str, bytes], blocks: Sequence[Block]) -> None:
    """See that every object that blocks name is there, with its size and its hash."""
    for block in blocks:
        for ref in block.objects:
            data = files[f"{FOLDERS[ref.kind]}/{ref.hash}"]
            assert (len(data), name_of(data)) == (ref.size_bytes, ref.hash.text)


def collect_weeks_later(disk: DictStore) -> None:
    """Run garbage collection on a server's root when every push that ended counts as dead."""
    now_ms = disk.clock() + WEEKS_MS
    engine = LocalEngine(lambda _: disk, parallel=1)
    collect(disk, lambda *_: engine, grace_ms=0, clock=lambda: now_ms)


# ------------------------------------------------------------------------- transfers


def terms_of(*, once: bool, **more: Any) -> Terms:
    """Return terms with which a client tries once, or again and again without waiting long."""
    return Terms(parallel=2, page=2, patience=ONCE if once else HASTY, pace=QUICK, **more)


class TransferRun(ABC):
    """Both ends' disks, and one transfer between them after another."""

    def __init__(self, operation: str, sender: Files, receiver: Files, puts_prove: bool) -> None:
        self._pushes = operation == "push"
        self._puts_prove = puts_prove
        client, server = (sender, receiver) if self._pushes else (receiver, sender)
        root = {ROOT_MARK: b"{}"} | inside(FOLDER, server)
        self.disks = {"client": DictStore(client), "server": DictStore(root)}
        self.stores: dict[str, FaultyStore] = {}

    @abstractmethod
    def terms(self, *, once: bool) -> Terms:
        """Return the client's terms."""

    def transfer(
        self, rules: Mapping[str, Rule] | None = None, *, once: bool = True
    ) -> Transferred:
        """Transfer, each end's store with a rule of its own; both ends are new processes."""
        for end, disk in self.disks.items():
            self.stores[end] = FaultyStore(disk, (rules or {}).get(end, lambda _: None))
        world = self.world = World(
            self.stores["server"], puts_prove=self._puts_prove, clock=self.disks["server"].clock
        )
        store, terms = self.stores["client"], self.terms(once=once)
        with without_network():
            if self._pushes:
                return running(world, lambda: async_push(store, DATASET, terms))
            return running(world, lambda: async_pull(DATASET, store, terms))

    @property
    def received(self) -> Files:
        """The receiver's files of the dataset."""
        if self._pushes:
            return below(self.disks["server"].objects, FOLDER)
        return self.disks["client"].objects


def from_call(index: int, fault: Fault) -> Rule:
    """Return the rule by which one call goes wrong; who has ended there makes no more."""
    ends = fault in (Fault.STOP_BEFORE, Fault.STOP_AFTER)

    def rule(call: StoreCall) -> Fault | None:
        if call.index == index:
            return fault
        return Fault.STOP_BEFORE if ends and call.index > index else None

    return rule
