"""Copies what a range of log versions refers to, in this process."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from lakeferry.engine import (
    CopyPlan,
    CopyTotals,
    LogCopyPlan,
    LogExported,
    LogExportPlan,
    Observer,
)
from lakeferry.engines import object_copier, objects_to_copy
from lakeferry.engines.copy_progress import observed
from lakeferry.engines.log_file_copy import LogExporter, copy_log_file
from lakeferry.engines.log_reading import LogReading
from lakeferry.engines.object_copier import CopyTally, ObjectCopier
from lakeferry.engines.object_copy import CopyPlaces, Hands, OpenConfig
from lakeferry.errors import ObjectNotFound
from lakeferry.log import checkpoint_read, references
from lakeferry.log.actions import Sidecar
from lakeferry.log.checkpoint_read import Rows
from lakeferry.log.segment import Segment
from lakeferry.storage import Store
from lakeferry.storage.byte_rate import ByteRate
from lakeferry.table import load


def copy_locally(
    plan: CopyPlan,
    open_store: OpenConfig,
    parallel: int,
    observer: Observer,
    rate: ByteRate | None = None,
) -> CopyTotals:
    """Copy the objects that the plan's part of the log refers to."""
    places, target = CopyPlaces(plan.source, open_store), open_store(plan.target)
    reading = LogReading(places.table, plan.segment, parallel, observer)
    with reading.running() as store:
        named = references_of(plan, store)
    table = all_wanted = objects_to_copy.to_copy(named)
    if plan.resumed and plan.compares != "all":
        table = objects_to_copy.without_present(table, target)
    tally = CopyTally()
    amount = object_copier.volume_of(plan, table)
    progress = observed(object_copier.title_of(plan), amount, observer, rate)
    with Hands(parallel, progress.moved, rate) as hands:
        copier = ObjectCopier(hands, places, target, plan)
        for outcome in copier.each(table.to_batches(), progress):
            tally.add(outcome)
    renamed = pc.sum(named["renamed"]).as_py() or 0
    return tally.totals(all_wanted.num_rows - table.num_rows, renamed)


def references_of(plan: CopyPlan, source: Store) -> pa.Table:
    """Return the references of the plan's log files, rows of :data:`objects_to_copy.NAMED`."""
    found = references.distinct_references(_referred(source, plan.segment))
    return objects_to_copy.named_objects(found, plan.rename, plan.target.uri)


def _referred(store: Store, segment: Segment) -> Iterator[pa.Table]:
    """Yield the references of each file of the segment."""
    for file, data in load.contents(store, segment.deltas):
        yield references.of_lines(data, file.path)
    sidecars: list[Sidecar] = []
    for file, data in load.contents(store, segment.checkpoint.files if segment.checkpoint else ()):
        rows = Rows()
        if file.path.endswith(".json"):
            checkpoint_read.read_json(rows, data, file.path)
            yield references.of_lines(data, file.path)
        else:
            checkpoint_read.read_parquet(rows, data, file.path, wanted=("sidecar",))
            yield from references.of_parquet(data, file.path)
        sidecars += rows.sidecars
    for sidecar in sidecars:
        name = load.sidecar_name(store.uri, sidecar)
        try:
            data = store.get(name)
        except ObjectNotFound as gone:
            raise load.vanished(name) from gone
        yield from references.of_parquet(data, name)


def copy_log_locally(
    plan: LogCopyPlan,
    open_store: OpenConfig,
    parallel: int,
    observer: Observer,
    rate: ByteRate | None = None,
) -> tuple[int, ...]:
    """Put log files at the target."""
    source, target = open_store(plan.source), open_store(plan.target)
    progress = observed("copying the log", plan.amount, observer, rate)
    with Hands(parallel, progress.moved, rate) as hands:
        copied = hands.each(partial(copy_log_file, hands, source, target, plan), plan.files)
        return tuple(progress.of_files(plan.files, copied))


def export_log_locally(
    plan: LogExportPlan,
    open_store: OpenConfig,
    parallel: int,
    observer: Observer,
    rate: ByteRate | None = None,
) -> tuple[LogExported, ...]:
    """Put log files at the target, with the listed URIs."""
    source, target, listed = open_store(plan.source), open_store(plan.target), plan.listed.opened()
    progress = observed("exporting the log", plan.amount, observer, rate)
    with Hands(parallel, progress.moved, rate) as hands:
        exported = LogExporter(hands, source, target, plan, listed).each(plan.files)
        return tuple(progress.of_files(plan.files, exported))
