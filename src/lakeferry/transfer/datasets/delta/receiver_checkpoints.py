"""Decides which versions of a received run get a checkpoint or a checksum file, and writes them.

Readers depend on the checkpoints of protected history. ``checkpointProtection`` promises this: a
reader that doesn't know the dropped feature finds a checkpoint at the version of the drop and at
the barriers before it, and never has to read earlier versions. So whoever publishes such a version
makes sure that these checkpoints exist, whether or not the sender has any (:func:`guarded`).

All others only make reading faster: a run isn't refused if one of them can't be written. While the
commits of a run are published, its versions are replayed in memory, from what was here before and
from the commits alone. Where the sender has a checkpoint, one is written from the replayed version,
in the format that the table requires; and so is a checksum file.

A replay costs as many rows as the table has files, so it is limited: the newest checkpoints are
written that together have at most ``MOST_ROWS`` rows, and always at least one. A version is
replayed for its checksum file alone only if the whole run stays within that limit, and nothing
from before has to be read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from lakeferry.log import paths, properties
from lakeferry.log.latest_actions import LatestActions
from lakeferry.log.lines import Lines, read_protocol_and_metadata
from lakeferry.log.properties import BARRIERS, PROTECTED_BEFORE
from lakeferry.log.replay import Reconciliation, Snapshot, advanced
from lakeferry.table import DeltaLog, checkpoint, load
from lakeferry.transfer.datasets import checkpoint_notes
from lakeferry.transfer.datasets.checkpoint_notes import Beside
from lakeferry.transfer.datasets.delta.version_blocks import DeltaBlock

MOST_ROWS = 5_000_000
_MARK = PROTECTED_BEFORE.encode()


def guarded(run: Iterable[DeltaBlock]) -> set[int]:
    """Return the versions that need a checkpoint, because one of these blocks drops a feature."""
    found: set[int] = set()
    for block in run:
        version = block.sequence_number
        if _boundary(block) == version:
            found.update(range(max(0, version - BARRIERS), version + 1))
    return found


def _boundary(block: DeltaBlock) -> int | None:
    """Return the boundary of protected history that a block's commit sets."""
    if block.commit is None or _MARK not in block.commit:
        return None
    collected = LatestActions()
    read_protocol_and_metadata(collected, block.commit, paths.commit(block.sequence_number))
    if collected.metadata is None:
        return None
    return properties.protected_before(collected.metadata.configuration)


class Rebuilding:
    """Writes the files of one run, and keeps the table's state during its replay."""

    def __init__(self, log: DeltaLog, run: Sequence[DeltaBlock], beside: Beside) -> None:
        """Prepare for a run's blocks, which are taken in order; no request is sent yet."""
        self._log = log
        self._first = run[0]
        self._last = run[-1].sequence_number
        self._added = sum(len(block.files) for block in run)
        self._beside = beside
        self._checkpoints: frozenset[int] = frozenset()
        self._checksums: frozenset[int] = frozenset()
        self._snapshot: Snapshot | None = None
        self._lines = Lines()
        self.newest: int | None = None
        """The newest version that has a checkpoint."""

    def begin(self) -> None:
        """Choose what to write, and read the state before the run if that needs it."""
        if self._beside:
            self._attempt(self._choose)

    def take(self, block: DeltaBlock) -> None:
        """Continue with a version that is in the log now."""
        if block.sequence_number <= max(self._checkpoints | self._checksums, default=-1):
            self._attempt(lambda: self._go_on(block))

    def _attempt(self, step: Callable[[], None]) -> None:
        try:
            step()
        except Exception:  # noqa: BLE001 - the versions exist; checkpoints only help readers
            self._checkpoints = self._checksums = frozenset()
            self._snapshot = None

    def _choose(self) -> None:
        first = self._first.sequence_number
        begins = self._first.prev_hash is None
        lowest = first if begins else first - 1
        there = checkpoint_notes.of_listing(load.list_log(self._log.store, lowest, self._last + 1))
        self.newest = max(there.checkpoints, default=None)
        versions = range(lowest, self._last + 1)
        missing = [
            version
            for version in self._beside.checkpoints
            if version in versions and version not in there.checkpoints
        ]
        checksums = [
            version
            for version in self._beside.checksums
            if version in versions and version not in there.checksums
        ]
        if not begins and missing:
            self._snapshot = self._log.snapshot(lowest)
        rows = _rows(self._snapshot) + self._added + 1
        self._checkpoints = frozenset(missing[-max(1, MOST_ROWS // rows) :])
        is_affordable = (begins or missing) and rows * len(checksums) <= MOST_ROWS
        self._checksums = frozenset(
            checksums if is_affordable else self._checkpoints & {*checksums}
        )
        if self._snapshot is not None:
            self._write(lowest)

    def _go_on(self, block: DeltaBlock) -> None:
        version = block.sequence_number
        if block.root is not None:
            self._snapshot = self._log.snapshot(version)
        else:
            self._lines.read(block.commit or b"", paths.commit(version))
            if version not in self._checkpoints and version not in self._checksums:
                return
            self._advance(version)
        self._write(version)

    def _advance(self, version: int) -> None:
        before, root = self._snapshot, self._log.store.uri
        if before is None:
            self._snapshot = Reconciliation(version, root, self._lines).snapshot()
        else:
            self._snapshot = advanced(before, version, root, self._lines)
        self._lines = Lines()

    def _write(self, version: int) -> None:
        snapshot = self._snapshot
        assert snapshot is not None
        if version in self._checksums:
            counts = snapshot.num_files, snapshot.size_bytes
            checkpoint.write_checksum(self._log.store, snapshot, *counts)
        if version in self._checkpoints:
            store = self._log.store
            checkpoint.write(store, checkpoint.plan_of(snapshot, store.uri, self._log.clock()))
            self.newest = max(version, self.newest or 0)


def _rows(snapshot: Snapshot | None) -> int:
    return 0 if snapshot is None else snapshot.num_files + snapshot.tombstones.num_rows
