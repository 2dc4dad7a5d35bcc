"""Puts a received run's commits into the log; survives a crash.

::

    _delta_log/_lakeferry/transfer/refs/next    the head of the run, what lies beside it

The intent is written when all objects of the run exist, so that another process can finish the
run after a crash. It is deleted when the head has moved. In between the commits become versions,
in order, by put-if-absent. If another writer takes one of the versions, the run ends before it.

Checkpoints are written on the way (``receiver_checkpoints.py``). The dataset decides which head the
chain has, and who may change it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from lakeferry.errors import (
    CheckpointProtected,
    CorruptLog,
    InvalidInput,
    ObjectNotFound,
    UnsupportedFeature,
    VersionNotAvailable,
)
from lakeferry.log import paths
from lakeferry.storage import Store
from lakeferry.table import DeltaLog
from lakeferry.transfer.chain.hashes import LONGEST_TEXT, Multihash
from lakeferry.transfer.datasets import checkpoint_notes
from lakeferry.transfer.datasets.checkpoint_notes import NOTHING, Beside
from lakeferry.transfer.datasets.dataset import Dataset
from lakeferry.transfer.datasets.delta import root_checkpoints
from lakeferry.transfer.datasets.delta.receiver_checkpoints import Rebuilding, guarded
from lakeferry.transfer.datasets.delta.root_checkpoints import CHAIN_FOLDER
from lakeferry.transfer.datasets.delta.version_blocks import DeltaBlock

NEXT = f"{CHAIN_FOLDER}/refs/next"
_INTENT_BYTES = 64 << 10
_MS_NS = 1_000_000
_INTERVAL = 10
"""A checkpoint is written when a run passes a version that is a multiple of it."""


@dataclass(frozen=True, slots=True)
class Intent:
    """The head that a run gives the table, and what its sender has beside it."""

    head: Multihash
    beside: Beside

    def declare(self, table: Store) -> None:
        """Write the intent, replacing any other."""
        table.put(NEXT, f"{self.head.text}\n".encode() + checkpoint_notes.encode_note(self.beside))

    @classmethod
    def declared(cls, table: Store) -> Intent | None:
        """Return a table's intent, or ``None``.

        A damaged intent is deleted: nobody can tell which run it meant, and the chain gets blocks
        for the versions of it that are in the log.
        """
        try:
            text = table.get_range(NEXT, 0, _INTENT_BYTES)
        except ObjectNotFound:
            return None
        try:
            head = Dataset.head_of(text)
        except CorruptLog:
            table.delete_many([NEXT])
            return None
        assert head is not None
        return cls(head, _beside_in(text))


def is_declared(table: Store) -> bool:
    """Return True if a table has an intent, for any head."""
    return table.exists(NEXT)


def withdraw_published(table: Store, head: Multihash) -> None:
    """Delete the intent to publish a head; an intent for another one stays."""
    with suppress(ObjectNotFound):
        if Dataset.head_of(table.get_range(NEXT, 0, LONGEST_TEXT + 2)) == head:
            table.delete_many([NEXT])


class RunPublication:
    """Publishes a run once, with the files that are written besides its commits."""

    def __init__(self, log: DeltaLog, run: Sequence[DeltaBlock], beside: Beside) -> None:
        """Prepare for a run whose objects all exist; no request is sent yet."""
        self._log = log
        self._run = run
        self._guarded = guarded(run)
        self._rebuilding = Rebuilding(log, run, beside)
        self._last: DeltaBlock | None = None

    @property
    def last(self) -> DeltaBlock | None:
        """The last block that is a version."""
        return self._last

    @property
    def is_complete(self) -> bool:
        """True if all blocks are versions."""
        return self._last is self._run[-1]

    def publish(self) -> None:
        """Publish the blocks as versions, in order, until another writer has taken one.

        If this raises, the run isn't complete. What belongs to its last version follows in
        :meth:`settle`.
        """
        self._rebuilding.begin()
        for block in self._run:
            if block.root is not None:
                root_checkpoints.publish_root_checkpoint(self._log.store, block.root)
            version, commit = block.sequence_number, block.commit
            if commit is not None and self._log.backfill(version, commit) is not None:
                break
            self._last = block
            if not self.is_complete:
                self._complete(block)

    def settle(self) -> None:
        """Complete the run's last version: its time, and the checkpoints that readers need.

        Call it before the intent is deleted: if it fails, a later process repeats it.
        """
        if self._last is not None and self.is_complete:
            self._complete(self._last)

    def _complete(self, block: DeltaBlock) -> None:
        if block.commit is not None:
            path = paths.commit(block.sequence_number)
            self._log.store.restore_time(path, block.time_ns // _MS_NS)
        self._rebuilding.take(block)
        self._guard(block.sequence_number)

    def write_checkpoint(self) -> None:
        """Write a checkpoint after enough versions; without it a table is only slower to read."""
        if self._last is None:
            return
        newest, last = self._rebuilding.newest, self._last.sequence_number
        before = self._run[0].sequence_number - 1 if newest is None else newest
        if last // _INTERVAL != before // _INTERVAL:
            # The run is published, so an error here must not make it fail.
            with suppress(Exception):
                self._log.checkpoint(last)

    def _guard(self, newest: int) -> None:
        """Write the barrier checkpoints up to a version, which protect readers from older ones.

        If we may not write to the table, another writer does it; versions that were cleaned up
        need none.
        """
        for version in sorted(version for version in self._guarded if version <= newest):
            with suppress(UnsupportedFeature, CheckpointProtected, VersionNotAvailable):
                self._log.checkpoint(version)
            self._guarded.discard(version)


def last_published(table: Store, run: Iterable[DeltaBlock]) -> DeltaBlock | None:
    """Return the last block of a run up to which the log has exactly its commits."""
    last: DeltaBlock | None = None
    for block in run:
        try:
            if table.get(paths.commit(block.sequence_number)) != block.commit:
                break
        except ObjectNotFound:
            break
        last = block
    return last


def _beside_in(intent: bytes) -> Beside:
    """Return the note about a run from its intent; an empty one if it can't be read."""
    try:
        return checkpoint_notes.parse_note(intent.partition(b"\n")[2])
    except InvalidInput:
        return NOTHING
