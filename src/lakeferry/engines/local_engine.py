"""The engine in this process, for jobs too small to start a JVM for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa

from lakeferry.engine import (
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
    ReplayTotals,
    RewritePlan,
    unobserved,
)
from lakeferry.engines import file_rewrite, local_copy, objects_to_copy, orphans, presence_check
from lakeferry.engines.copy_progress import observed
from lakeferry.engines.file_comparison import Looker
from lakeferry.engines.hashing import hashed
from lakeferry.engines.log_reading import LogReading
from lakeferry.engines.object_copy import OBJECTS_AT_ONCE, CopyPlaces, Hands, OpenConfig
from lakeferry.log.replay import Snapshot
from lakeferry.log.rewrite import Rewrite, Unchanged
from lakeferry.storage import StoreConfig, open_config
from lakeferry.storage.byte_rate import ByteRate
from lakeferry.table import load

_BATCH_ROWS = 65_536


class LocalEngine(Engine):
    """Executes plans with the same functions as Spark's tasks."""

    name = "local"

    def __init__(
        self,
        open_store: OpenConfig = open_config,
        *,
        parallel: int = OBJECTS_AT_ONCE,
        rate: ByteRate | None = None,
    ) -> None:
        """Open places with ``open_store``, and process ``parallel`` objects at a time.

        ``rate`` limits what copies and exports move.
        """
        self._open = open_store
        self._parallel = parallel
        self._rate = rate

    def replay(self, plan: ReplayPlan, observer: Observer = unobserved) -> Replayed:
        """Replay the log in memory."""
        reading = LogReading(self._open(plan.store), plan.segment, self._parallel, observer)
        with reading.running() as store:
            return LocalReplayed(load.snapshot(store, plan.segment, store.decoded))

    def copy(self, plan: CopyPlan, observer: Observer = unobserved) -> CopyTotals:
        """Copy with a few threads."""
        return local_copy.copy_locally(plan, self._open, self._parallel, observer, self._rate)

    def copy_log(self, plan: LogCopyPlan, observer: Observer = unobserved) -> tuple[int, ...]:
        """Copy with a few threads."""
        return local_copy.copy_log_locally(plan, self._open, self._parallel, observer, self._rate)

    def export_log(
        self, plan: LogExportPlan, observer: Observer = unobserved
    ) -> tuple[LogExported, ...]:
        """Export with a few threads."""
        return local_copy.export_log_locally(plan, self._open, self._parallel, observer, self._rate)

    def check(self, plan: CheckPlan, observer: Observer = unobserved) -> CheckTotals:
        """Replay in memory, and compare with a listing or the other log."""
        root, here = plan.target.uri, ReplayPlan(plan.source, plan.segment)
        if plan.there is None:
            with self.replay(here, observer) as replayed:
                rows = _table(presence_check.objects(replayed.files(), plan.rename, root))
            return presence_check.against_objects(rows, self.objects_at(plan.target))

        def live(replay: ReplayPlan, rename: Rewrite) -> Iterator[pa.RecordBatch]:
            with self.replay(replay, observer) as replayed:
                yield from presence_check.live(replayed.files(), rename, root)

        # One of the two versions is in memory at a time.
        there = ReplayPlan(plan.target, plan.there)
        return presence_check.against_version(
            lambda: live(here, plan.rename), lambda: live(there, Unchanged())
        )

    def objects_at(self, place: StoreConfig) -> Iterator[pa.Table]:
        """Yield names and sizes of everything at a place."""
        return objects_to_copy.list_place(self._open(place))

    def look(self, plan: LookPlan, observer: Observer = unobserved) -> Iterator[pa.RecordBatch]:
        """Read several pairs at a time."""
        a, b = CopyPlaces(plan.a, self._open), CopyPlaces(plan.b, self._open)
        batches = plan.pairs.to_batches()
        if plan.what == "digest":
            progress = observed(plan.title, plan.amount, observer)
            with Hands(self._parallel, progress.moved) as hands:
                yield from Looker(hands, a, b, plan.what, progress.ended).each(batches)
            return
        done, total = 0, plan.pairs.num_rows
        observer(plan.title, done, total)
        with Hands(self._parallel) as hands:
            for batch in Looker(hands, a, b, plan.what).each(batches):
                yield batch
                done += len(batch)
                observer(plan.title, done, total)

    def hash(self, plan: HashPlan, observer: Observer = unobserved) -> Iterator[pa.RecordBatch]:
        """Read several objects at a time."""
        store = self._open(plan.store)
        progress = observed(plan.title, plan.amount, observer)
        with Hands(self._parallel, progress.moved) as hands:
            yield from hashed(hands, store, plan.objects.to_batches(), progress.ended)

    def rewrite(
        self, plan: RewritePlan, observer: Observer = unobserved
    ) -> Iterator[pa.RecordBatch]:
        """Rewrite a few files at a time."""
        rewriter = file_rewrite.Rewriter(plan, self._open)
        progress = observed(file_rewrite.REWRITE_TITLE, plan.amount, observer)
        with Hands(min(self._parallel, file_rewrite.FILES_AT_ONCE)) as hands:
            files = file_rewrite.numbered(plan.files).to_batches()
            yield from rewriter.each(hands, files, progress)

    def orphans(
        self, plan: OrphanPlan, observer: Observer = unobserved
    ) -> Iterator[pa.RecordBatch]:
        """Merge listings with the references, a shelf at a time."""
        store = self._open(plan.store)
        observer(orphans.ORPHANS_TITLE, 0, len(plan.shelves))
        for done, shelf in enumerate(plan.shelves, 1):
            yield from orphans.merged(store, shelf, plan.until_ms)
            observer(orphans.ORPHANS_TITLE, done, len(plan.shelves))

    def close(self) -> None:
        """Do nothing: nothing was started."""


def _table(rows: Iterator[pa.RecordBatch]) -> pa.Table:
    return pa.Table.from_batches(rows, schema=presence_check.ROWS)


class LocalReplayed(Replayed):
    """A version in this process's memory."""

    def __init__(self, snapshot: Snapshot) -> None:
        """Keep the version's tables; ``small`` describes it without them."""
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
        yield from self._files.to_batches(_BATCH_ROWS)

    def tombstones(self) -> Iterator[pa.RecordBatch]:
        """Yield slices of the table; nothing is copied."""
        yield from self._tombstones.to_batches(_BATCH_ROWS)

    def close(self) -> None:
        """Release the tables."""
        self._files = self._files.slice(0, 0)
        self._tombstones = self._tombstones.slice(0, 0)
