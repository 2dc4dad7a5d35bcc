"""The engine in this process, for work that is over before a JVM would have started."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa

from lakeferry.engine import Engine, Observer, Replayed, ReplayPlan, ReplayTotals, unobserved
from lakeferry.log.replay import Snapshot
from lakeferry.storage import open_config
from lakeferry.table import load

BATCH_ROWS = 65_536


class LocalEngine(Engine):
    """Executes plans with the functions that Spark's tasks are made of, one after the other."""

    name = "local"

    def replay(self, plan: ReplayPlan, observer: Observer = unobserved) -> Replayed:
        """Replay the log in memory."""
        what = "reading the log"
        observer(what, 0, 1)
        snapshot = load.snapshot(open_config(plan.store), plan.segment)
        observer(what, 1, 1)
        return LocalReplayed(snapshot)

    def close(self) -> None:
        """Nothing was started."""


class LocalReplayed(Replayed):
    """A version in this process's memory."""

    def __init__(self, snapshot: Snapshot) -> None:
        """Keep the version's tables, and describe it without them."""
        self._files: pa.Table = snapshot.files
        self._tombstones: pa.Table = snapshot.tombstones
        self.totals = ReplayTotals(
            snapshot.num_files, snapshot.size_bytes, int(snapshot.tombstones.num_rows)
        )
        self.small = replace(
            snapshot,
            files=snapshot.files.slice(0, 0),
            tombstones=snapshot.tombstones.slice(0, 0),
        )

    def files(self) -> Iterator[pa.RecordBatch]:
        """Yield slices of the table; nothing is copied."""
        yield from self._files.to_batches(BATCH_ROWS)

    def tombstones(self) -> Iterator[pa.RecordBatch]:
        """Yield slices of the table; nothing is copied."""
        yield from self._tombstones.to_batches(BATCH_ROWS)

    def close(self) -> None:
        """Let go of the tables."""
        self._files = self._files.slice(0, 0)
        self._tombstones = self._tombstones.slice(0, 0)
