"""The tasks of a copy: read references, group them into tasks, copy objects.

Rows are references with their names at the target (:data:`REFERRED`). They are shuffled by
``key``: the name at the target, or the path if the object isn't copied. Equal paths have equal
keys, and a row's key is also the key of its entry in a listing of the target.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain, pairwise

import pyarrow as pa
import pyarrow.compute as pc

from lakeferry.engine import CopyPlan, LogCopyPlan, LogExportPlan
from lakeferry.engines import objects_to_copy
from lakeferry.engines.copy_progress import CopyProgress
from lakeferry.engines.object_copy import CopyPlaces, Hands, LogExporter, copy_log_file
from lakeferry.engines.spark.tasks.log_plan import CheckpointTask, CommitTask, Piece
from lakeferry.errors import CorruptLog, ObjectNotFound
from lakeferry.log import checkpoint_read, parquet, references
from lakeferry.storage import Store, StoreConfig, open_config
from lakeferry.table import load

_TASK_BYTES = 128 * 1024 * 1024
TASK_OBJECTS = 2_000
"""About the most that one task copies, so that progress is live and a retry is cheap."""
_SMALLEST_TASK_BYTES = 8 * 1024 * 1024
_SMALLEST_TASK_OBJECTS = 100
_TASKS_PER_CORE = 4
_MOST_TASKS = 100_000
_BATCH_ROWS = 16_384
_WHOLE_BELOW_BYTES = 1024 * 1024

REFERRED = pa.schema([pa.field("key", pa.string()), *objects_to_copy.NAMED])
PACKED = objects_to_copy.WANTED.append(pa.field("task", pa.int32()))
COPIED = pa.schema(
    [
        pa.field("objects", pa.int64()),
        pa.field("bytes", pa.int64()),
        pa.field("missing_count", pa.int64()),
        pa.field("missing", pa.list_(pa.string())),
    ]
)


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


@dataclass(frozen=True, slots=True)
class Packing:
    """How rows are packed into tasks, by weight: bytes plus a constant per object.

    ``starts`` has the total weight of the rows before each partition.
    """

    limit_bytes: int
    limit_objects: int
    tasks: int
    starts: Mapping[int, float]


def packing(parts: Mapping[int, tuple[int, int]], cores: int) -> Packing:
    """Plan tasks for partitions with known numbers of objects and bytes."""
    objects = sum(count for count, _ in parts.values())
    size = sum(size for _, size in parts.values())
    share = max(1, _TASKS_PER_CORE * cores)
    limit_bytes = min(_TASK_BYTES, max(_SMALLEST_TASK_BYTES, size // share))
    limit_objects = min(TASK_OBJECTS, max(_SMALLEST_TASK_OBJECTS, objects // share))
    starts: dict[int, float] = {}
    weight = 0.0
    for part, (count, part_bytes) in sorted(parts.items()):
        starts[part] = weight
        weight += part_bytes / limit_bytes + count / limit_objects
    return Packing(limit_bytes, limit_objects, min(_MOST_TASKS, int(weight) + 1), starts)


def pack_batches(plan: Packing, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Assign each row to the task that copies it; ``part`` is the row's partition.

    Rows must come in the same order every time. Otherwise a row might change its task between
    two evaluations and be lost.
    """
    weight: float | None = None
    for batch in batches:
        if not len(batch):
            continue
        if weight is None:
            weight = plan.starts[batch.column("part")[0].as_py()]
        tasks, weight = task_numbers(plan, batch.column("size"), weight)
        columns = [*(batch.column(name) for name in objects_to_copy.WANTED.names), tasks]
        yield pa.RecordBatch.from_arrays(columns, schema=PACKED)


def task_numbers(plan: Packing, sizes: pa.Array, weight: float) -> tuple[pa.Array, float]:
    """Return the tasks of objects that follow ``weight``, and the total weight after them."""
    own = pc.divide(pc.fill_null(sizes, 0).cast(pa.float64()), float(plan.limit_bytes))
    own = pc.add(own, 1 / plan.limit_objects)
    running = pc.add(pc.cumulative_sum(own), weight)
    # An object belongs to the task in which it begins.
    tasks = pc.floor(pc.subtract(running, own)).cast(pa.int64())
    tasks = pc.min_element_wise(tasks, plan.tasks - 1).cast(pa.int32())
    return tasks, running[-1].as_py()


def parts(table: pa.Table, cores: int) -> list[pa.Table]:
    """Divide rows with a ``size`` among tasks; neighbours stay together."""
    if not table.num_rows:
        return []
    sizes = table["size"].combine_chunks()
    plan = packing({0: (table.num_rows, pc.sum(sizes).as_py() or 0)}, cores)
    tasks, _ = task_numbers(plan, sizes, 0.0)
    ends = pc.indices_nonzero(pc.not_equal(tasks[1:], tasks[:-1])).to_pylist()
    bounds = [0, *(end + 1 for end in ends), table.num_rows]
    return [table.slice(start, end - start) for start, end in pairwise(bounds)]


def copy_batches(
    source: StoreConfig,
    target_config: StoreConfig,
    batches: Iterable[pa.RecordBatch],
    tell: Callable[[int, int], None] = lambda _bytes, _objects: None,
) -> Iterator[pa.RecordBatch]:
    """Copy a task's objects, and yield one row with the results, if there are any objects.

    ``tell`` is called with the bytes and objects copied so far.
    """
    filled = (batch for batch in batches if len(batch))
    first = next(filled, None)
    if first is None:
        return
    tally = objects_to_copy.CopyTally()
    places, target = CopyPlaces(source, open_config), open_config(target_config)
    progress = CopyProgress(tell)
    with Hands(moved=progress.moved) as hands:
        for path, size, copied in objects_to_copy.copy_each(
            hands, places, target, chain([first], filled)
        ):
            tally.add(path, copied)
            progress.ended(size or 0, copied)
    row = [[tally.objects], [tally.size_bytes], [tally.missing_count], [tally.missing]]
    yield pa.RecordBatch.from_arrays(
        [pa.array(value, kind.type) for value, kind in zip(row, COPIED, strict=True)],
        schema=COPIED,
    )


def copy_log_batches(plan: LogCopyPlan, numbers: Sequence[int]) -> list[int]:
    """Put the log files with these numbers at the target, and return their sizes."""
    source, target = open_config(plan.source), open_config(plan.target)
    with Hands() as hands:
        return list(
            hands.each(
                lambda number: copy_log_file(hands, source, target, plan, plan.files[number]),
                numbers,
            )
        )


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


def export_log_batches(plan: LogExportPlan, numbers: Sequence[int]) -> pa.RecordBatch:
    """Export the log files with these numbers, and describe each."""
    source, target, listed = (
        open_config(plan.source),
        open_config(plan.target),
        plan.listed.opened(),
    )
    with Hands() as hands:
        exporter = LogExporter(hands, source, target, plan, listed)
        told = exporter.each(plan.files[number] for number in numbers)
        rows = [{"id": number, **asdict(each)} for number, each in zip(numbers, told, strict=True)]
    return pa.RecordBatch.from_pylist(rows, schema=EXPORTED)
