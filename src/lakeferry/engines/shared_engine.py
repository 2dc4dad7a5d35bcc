"""One engine shared by several threads, one job at a time."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pyarrow as pa

from lakeferry.engine import (
    CarryPlan,
    CheckPlan,
    CheckTotals,
    CopyPlan,
    CopyTotals,
    Engine,
    HashPlan,
    LogCopyPlan,
    LogExported,
    LogExportPlan,
    LookPlan,
    Observer,
    OrphanPlan,
    Replayed,
    ReplayPlan,
    RewritePlan,
    unobserved,
)


class SharedEngine(Engine):
    """An engine that runs one job at a time, for several threads.

    ``close`` doesn't close the shared engine: its creator closes it.
    """

    name = "spark"

    def __init__(self, engine: Engine) -> None:
        """Share ``engine``."""
        self.engine = engine
        self._turn = threading.RLock()

    def replay(self, plan: ReplayPlan, observer: Observer = unobserved) -> Replayed:
        """Rebuild a version; the engine belongs to this thread until the result is closed."""
        self._turn.acquire()
        try:
            return _Turn(self.engine.replay(plan, observer), self._turn)
        except BaseException:
            self._turn.release()
            raise

    def copy(self, plan: CopyPlan, observer: Observer = unobserved) -> CopyTotals:
        """Copy when it is this thread's turn."""
        with self._turn:
            return self.engine.copy(plan, observer)

    def copy_log(self, plan: LogCopyPlan, observer: Observer = unobserved) -> tuple[int, ...]:
        """Copy when it is this thread's turn."""
        with self._turn:
            return self.engine.copy_log(plan, observer)

    def export_log(
        self, plan: LogExportPlan, observer: Observer = unobserved
    ) -> tuple[LogExported, ...]:
        """Export when it is this thread's turn."""
        with self._turn:
            return self.engine.export_log(plan, observer)

    def check(self, plan: CheckPlan, observer: Observer = unobserved) -> CheckTotals:
        """Check when it is this thread's turn."""
        with self._turn:
            return self.engine.check(plan, observer)

    def look(self, plan: LookPlan, observer: Observer = unobserved) -> Iterator[pa.RecordBatch]:
        """Look when it is this thread's turn, which lasts until the last batch."""
        with self._turn:
            yield from self.engine.look(plan, observer)

    def hash(self, plan: HashPlan, observer: Observer = unobserved) -> Iterator[pa.RecordBatch]:
        """Read objects with the shared engine."""
        with self._turn:
            yield from self.engine.hash(plan, observer)

    def rewrite(
        self, plan: RewritePlan, observer: Observer = unobserved
    ) -> Iterator[pa.RecordBatch]:
        """Rewrite when it is this thread's turn, which lasts until the last batch."""
        with self._turn:
            yield from self.engine.rewrite(plan, observer)

    def orphans(
        self, plan: OrphanPlan, observer: Observer = unobserved
    ) -> Iterator[pa.RecordBatch]:
        """Look for orphans when it is this thread's turn, which lasts until the last batch."""
        with self._turn:
            yield from self.engine.orphans(plan, observer)

    def carry(self, plan: CarryPlan, observer: Observer = unobserved) -> Iterator[tuple[int, str]]:
        """Move objects when it is this thread's turn, which lasts until the last one."""
        with self._turn:
            yield from self.engine.carry(plan, observer)

    def close(self) -> None:
        """Do nothing: other threads still use the engine."""


class _Turn(Replayed):
    """A version whose files are still in the engine, so its job hasn't finished."""

    def __init__(self, inner: Replayed, turn: threading.RLock) -> None:
        self.small = inner.small
        self.totals = inner.totals
        self._inner = inner
        self._turn = turn

    def files(self) -> Iterator[pa.RecordBatch]:
        return self._inner.files()

    def tombstones(self) -> Iterator[pa.RecordBatch]:
        return self._inner.tombstones()

    def close(self) -> None:
        try:
            self._inner.close()
        finally:
            self._turn.release()
