"""The tasks of a copy: read references, group them into tasks, copy objects.

Rows are references with their names at the target (:data:`REFERRED`). They are shuffled by
``key``: the name at the target, or the path if the object isn't copied. Equal paths have equal
keys, and a row's key is also the key of its entry in a listing of the target.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lakeferry.engine import Compared, CopyPlan, CopyTotals, LogCopyPlan, LogExportPlan
from lakeferry.engines import objects_to_copy
from lakeferry.engines.copy_progress import CopyProgress
from lakeferry.engines.log_file_copy import LogExporter, copy_log_file
from lakeferry.engines.object_copier import CopyTally, ObjectCopier
from lakeferry.engines.object_copy import CopyPlaces, Hands
from lakeferry.engines.spark.tasks.log_plan import CheckpointTask, CommitTask, Piece
from lakeferry.errors import CorruptLog, ObjectNotFound
from lakeferry.log import checkpoint_read, parquet, references
from lakeferry.log.segment import Segment
from lakeferry.storage import Store, open_config
from lakeferry.storage.byte_rate import ByteRate
from lakeferry.table import load

_BATCH_ROWS = 16_384
_WHOLE_BELOW_BYTES = 1024 * 1024

REFERRED = pa.schema([pa.field("key", pa.string()), *objects_to_copy.NAMED])
_FINDINGS = ("unequal", "replaced", "unread")
COUNTS = (
    "objects",
    "bytes",
    "by_store_bytes",
    "skipped",
    "missing_count",
    "compared_objects",
    "compared_bytes",
    *(f"{finding}_count" for finding in _FINDINGS),
)
NAMED_PATHS = ("missing", *_FINDINGS)
COPIED = pa.schema(
    [
        *(pa.field(name, pa.int64()) for name in COUNTS),
        *(pa.field(name, pa.list_(pa.string())) for name in NAMED_PATHS),
    ]
)
"""The result of a task: counts and paths of its totals, and of what it has compared."""


def referred(
    store: Store, task: CommitTask | CheckpointTask, plan: CopyPlan
) -> Iterator[pa.RecordBatch]:
    """Yield the references of a task's log files; each path once per task."""
    tables = _of_commits(store, task) if isinstance(task, CommitTask) else _of_pieces(store, task)
    found = objects_to_copy.named_objects(
        references.distinct_references(tables), plan.rename, plan.target.uri
    )
    key = pc.coalesce(found["name"], found["path"])
    yield from found.add_column(0, REFERRED.field("key"), key).to_batches(_BATCH_ROWS)


def distinct_batches(rows: pa.Table) -> pa.Table:
    """Return the rows of several tasks as one table of :data:`wanted.NAMED`, each path once."""
    if not rows.num_rows:
        return objects_to_copy.NAMED.empty_table()
    grouped = rows.group_by("path", use_threads=False).aggregate(
        [("name", "first"), ("size", "max"), ("renamed", "first")]
    )
    columns = {"name_first": "name", "size_max": "size", "renamed_first": "renamed"}
    return grouped.rename_columns(columns).select(objects_to_copy.NAMED.names)


def _of_commits(store: Store, task: CommitTask) -> Iterator[pa.Table]:
    for file, data in load.contents(store, task.files):
        yield references.of_lines(data, file.path)


def _of_pieces(store: Store, task: CheckpointTask) -> Iterator[pa.Table]:
    for piece in task.pieces:
        try:
            source = _fetch(store, piece)
        except ObjectNotFound as gone:
            raise load.vanished(piece.path) from gone
        except (CorruptLog, pa.ArrowException, OSError) as broken:
            raise checkpoint_read.corrupt(piece.path, str(broken)) from broken
        if piece.path.endswith(".json"):
            assert isinstance(source, bytes)
            yield references.of_lines(source, piece.path)
        else:
            yield from references.of_parquet(source, piece.path, piece.row_groups)


def _fetch(store: Store, piece: Piece) -> bytes | parquet.SparseFile:
    """Fetch a piece: all of it if it is small, else only the needed columns."""
    if piece.path.endswith(".json") or piece.size_bytes <= _WHOLE_BELOW_BYTES:
        return store.get(piece.path)
    start, tail = load.fetch_footer(store, piece.path, piece.size_bytes)
    footer = parquet.read_footer(tail, piece.size_bytes)
    fetched = [(start, tail)]
    for span in references.needed_ranges(footer, piece.row_groups):
        if span.start < start:
            length = min(span.end, start) - span.start
            fetched.append((span.start, store.get_range(piece.path, span.start, length)))
    return parquet.SparseFile(piece.size_bytes, fetched)


def of_task(plan: CopyPlan) -> CopyPlan:
    """Return a plan as tasks need it, without the log."""
    return replace(plan, segment=Segment(plan.segment.version, None, (), None, None))


def copy_batches(
    plan: CopyPlan,
    batches: Iterable[pa.RecordBatch],
    progress: CopyProgress,
    rate: ByteRate | None = None,
) -> Iterator[pa.RecordBatch]:
    """Copy a task's objects, and yield one row with the results, if there are any objects.

    ``rate`` is this task's share of a limit.
    """
    filled = (batch for batch in batches if len(batch))
    first = next(filled, None)
    if first is None:
        return
    tally = CopyTally()
    places, target = CopyPlaces(plan.source, open_config), open_config(plan.target)
    with Hands(moved=progress.moved, rate=rate) as hands:
        copier = ObjectCopier(hands, places, target, plan)
        for outcome in copier.each(chain([first], filled), progress):
            tally.add(outcome)
    yield pa.RecordBatch.from_pylist([_row_of(tally.totals(0, 0))], schema=COPIED)


def _row_of(totals: CopyTotals) -> dict[str, object]:
    compared = asdict(totals.compared)
    of_both = {f"compared_{name}": compared.pop(name) for name in ("objects", "bytes")}
    own = (name for name in COPIED.names if name not in compared and name not in of_both)
    return {name: getattr(totals, name) for name in own} | compared | of_both


def totals_of(row: Mapping[str, Any]) -> CopyTotals:
    """Return the totals that a row of :data:`COPIED` has."""
    findings: dict[str, Any] = {
        name: tuple(row[name] or ()) if name in _FINDINGS else row[name] or 0
        for finding in _FINDINGS
        for name in (f"{finding}_count", finding)
    }
    compared = Compared(row["compared_objects"], row["compared_bytes"], **findings)
    return CopyTotals(
        row["objects"],
        row["bytes"],
        row["skipped"],
        row["missing_count"],
        tuple(row["missing"] or ()),
        0,
        row["by_store_bytes"],
        compared,
    )


def copy_log_batches(
    plan: LogCopyPlan,
    numbers: Sequence[int],
    progress: CopyProgress,
    rate: ByteRate | None = None,
) -> list[int]:
    """Put the log files with these numbers at the target, and return their sizes."""
    source, target = open_config(plan.source), open_config(plan.target)
    files = [plan.files[number] for number in numbers]
    with Hands(moved=progress.moved, rate=rate) as hands:
        copied = hands.each(partial(copy_log_file, hands, source, target, plan), files)
        return list(progress.of_files(files, copied))


EXPORTED = pa.schema(
    [
        pa.field("id", pa.int64()),
        *(
            pa.field(name, pa.int64())
            for name in ("size_bytes", "actions", "unlisted", "elsewhere", "skipped")
        ),
        pa.field("gone", pa.list_(pa.string())),
        pa.field("gone_count", pa.int64()),
        pa.field("kin", pa.int64()),
        pa.field("protocol", pa.binary()),
        pa.field("metadata", pa.binary()),
    ]
)
"""A file's number in the plan, and the fields of :class:`lakeferry.engine.LogExported`."""


def export_log_batches(
    plan: LogExportPlan,
    numbers: Sequence[int],
    progress: CopyProgress,
    rate: ByteRate | None = None,
) -> pa.RecordBatch:
    """Export the log files with these numbers, and describe each."""
    source, target, listed = (
        open_config(plan.source),
        open_config(plan.target),
        plan.listed.opened(),
    )
    files = [plan.files[number] for number in numbers]
    with Hands(moved=progress.moved, rate=rate) as hands:
        exporter = LogExporter(hands, source, target, plan, listed)
        told = progress.of_files(files, exporter.each(files))
        rows = [{"id": number, **asdict(each)} for number, each in zip(numbers, told, strict=True)]
    return pa.RecordBatch.from_pylist(rows, schema=EXPORTED)
