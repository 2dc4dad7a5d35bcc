"""Divides objects among tasks of bounded size, so that progress is reported while a job runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

import pyarrow as pa
import pyarrow.compute as pc

from lakeferry.engines import objects_to_copy

_TASK_BYTES = 128 * 1024 * 1024
TASK_OBJECTS = 2_000
"""About the most that one task copies, so that progress is live and a retry is cheap."""
_SMALLEST_TASK_BYTES = 8 * 1024 * 1024
_SMALLEST_TASK_OBJECTS = 100
_TASKS_PER_CORE = 4
_MOST_TASKS = 100_000

PACKED = objects_to_copy.WANTED.append(pa.field("task", pa.int32()))


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
