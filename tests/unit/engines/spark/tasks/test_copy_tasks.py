"""What Spark's tasks do for a copy, without Spark."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakeferry.engine import Compared, CopyPlan, CopyTotals, LogCopy, LogCopyPlan
from lakeferry.engines import objects_to_copy
from lakeferry.engines.copy_progress import CopyProgress
from lakeferry.engines.local_engine import LocalEngine
from lakeferry.engines.spark.tasks import copy_tasks, log_plan, task_sizes
from lakeferry.engines.spark.tasks.log_plan import CheckpointTask, CommitTask
from lakeferry.engines.spark.tasks.task_sizes import _TASK_BYTES, TASK_OBJECTS
from lakeferry.errors import CorruptLog
from lakeferry.log.rewrite import Absolute, Adopted
from lakeferry.storage import Store, open_store
from lakeferry.storage.byte_rate import ByteRate
from lakeferry.table import DeltaLog
from tests.support.corrupting import flipped
from tests.support.history import (
    Append,
    Change,
    Checkpoint,
    Delete,
    DeleteRows,
    History,
    Kind,
    Layout,
)

MIB = 1024 * 1024
V2 = Layout(partitioned=True, deletion_vectors="u", change_data=True, v2_checkpoints=True)
HISTORY = History(V2).then(
    Append(40), DeleteRows(9), Checkpoint(Kind.V2_PARQUET, sidecars=3), Change(), Delete(1)
)

Rows = list[tuple[str, int | None]]
PLACED = pa.schema([*objects_to_copy.WANTED, pa.field("part", pa.int32())])


def placed(rows: Rows, part: int, chunk: int = 3) -> list[pa.RecordBatch]:
    batch = pa.RecordBatch.from_arrays(
        [
            pa.array([path for path, _ in rows], pa.string()),
            pa.array([path for path, _ in rows], pa.string()),
            pa.array([size for _, size in rows], pa.int64()),
            pa.array([part] * len(rows), pa.int32()),
        ],
        schema=PLACED,
    )
    return [batch.slice(start, chunk) for start in range(0, len(rows), chunk)]


def packed(parts: dict[int, Rows], cores: int) -> tuple[task_sizes.Packing, dict[str, int]]:
    """Return the packing, and the task of each path."""
    counted = {
        part: (len(rows), sum(size or 0 for _, size in rows)) for part, rows in parts.items()
    }
    plan = task_sizes.packing(counted, cores)
    tasks: dict[str, int] = {}
    for part, rows in parts.items():
        for batch in task_sizes.pack_batches(plan, placed(rows, part)):
            tasks |= dict(zip(batch["path"].to_pylist(), batch["task"].to_pylist(), strict=True))
    return plan, tasks


SIZES = st.one_of(st.none(), st.integers(0, 100), st.integers(0, 3 * _TASK_BYTES))


@given(st.lists(st.lists(SIZES, max_size=300), min_size=1, max_size=4), st.integers(1, 64))
def test_every_object_is_in_one_task_and_no_task_is_too_large(
    sizes: list[list[int | None]], cores: int
) -> None:
    parts = {
        part * 2: [(f"{part}/{number}", size) for number, size in enumerate(each)]
        for part, each in enumerate(sizes)
    }
    plan, tasks = packed(parts, cores)
    every = dict(row for rows in parts.values() for row in rows)
    assert tasks.keys() == every.keys()
    assert all(0 <= task < plan.tasks for task in tasks.values())
    counted = Counter(tasks.values())
    largest = max((size or 0 for size in every.values()), default=0)
    for task, count in counted.items():
        total = sum(every[path] or 0 for path, its_task in tasks.items() if its_task == task)
        # The last object of a task may reach beyond its end.
        assert count <= TASK_OBJECTS + 1
        assert total <= _TASK_BYTES + largest + 1


def test_small_work_is_shared_among_all_cores_and_large_work_is_bounded() -> None:
    few = task_sizes.packing({0: (5_000, 80 * MIB)}, 2)
    assert 8 <= few.tasks <= 20
    assert task_sizes.packing({0: (3, 100)}, 64).tasks == 1
    large = task_sizes.packing({0: (8, 1024 * MIB)}, 2)
    assert (large.limit_bytes, large.tasks) == (128 * MIB, 9)
    huge = task_sizes.packing({0: (10**9, 10**18)}, 1_000)
    assert (huge.limit_bytes, huge.limit_objects, huge.tasks) == (
        _TASK_BYTES,
        TASK_OBJECTS,
        100_000,
    )


def test_packing_again_gives_the_same_tasks() -> None:
    rows: Rows = [(f"{number}", number * 10_000_000) for number in range(50)]
    assert packed({0: rows[:20], 3: rows[20:]}, 2) == packed({0: rows[:20], 3: rows[20:]}, 2)


def plan_of(source: Store, target: Store) -> CopyPlan:
    return CopyPlan(source.config, target.config, DeltaLog(source).segment(), Adopted(source.uri))


def tasks_of(source: Store, plan: CopyPlan, limit: int) -> list[CommitTask | CheckpointTask]:
    assert plan.segment.checkpoint is not None
    top = [log_plan.survey_file(source, file) for file in plan.segment.checkpoint.files]
    sidecars = [
        log_plan.survey_sidecar(source, sidecar) for looked in top for sidecar in looked.sidecars
    ]
    return [
        *log_plan.commit_tasks(plan.segment, limit),
        *log_plan.checkpoint_tasks(top + sidecars, limit),
    ]


@pytest.mark.parametrize("limit", [1, 10**9])
@pytest.mark.parametrize("whole_below", [0, 10**9])
def test_tasks_find_what_one_process_copies(
    limit: int, whole_below: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copy_tasks, "_WHOLE_BELOW_BYTES", whole_below)
    source = HISTORY.write(open_store(str(tmp_path / "source")))
    target = open_store(str(tmp_path / "target"))
    plan = plan_of(source, target)
    batches = [
        batch
        for task in tasks_of(source, plan, limit)
        for batch in copy_tasks.referred(source, task, plan)
    ]
    assert all(batch.schema == copy_tasks.REFERRED for batch in batches)
    rows = [row for batch in batches for row in batch.to_pylist()]
    LocalEngine().copy(plan)
    assert {row["name"] for row in rows} == {info.path for info in target.list("")}
    assert all(row["key"] == row["name"] for row in rows)


def test_what_stays_is_known_by_its_path(tmp_path: Path) -> None:
    source = HISTORY.write(open_store(str(tmp_path)))
    plan = replace(plan_of(source, source), rename=Absolute(source.uri))
    (task, *_) = tasks_of(source, plan, 10**9)
    for batch in copy_tasks.referred(source, task, plan):
        assert batch["name"].null_count == len(batch)
        assert batch["key"] == batch["path"]
        assert all(batch["renamed"].to_pylist())


def test_a_log_file_that_is_gone_or_broken_is_named(tmp_path: Path) -> None:
    source = HISTORY.write(open_store(str(tmp_path)))
    plan = plan_of(source, source)
    for task in tasks_of(source, plan, 1):
        is_commit = isinstance(task, CommitTask)
        path = task.files[0].path if is_commit else task.pieces[0].path  # type: ignore[union-attr]
        source.put(path, b'{"add":7}' * 100)
        with pytest.raises(CorruptLog) as broken:
            list(copy_tasks.referred(source, task, plan))
        source.delete_many([path])
        with pytest.raises(CorruptLog) as gone:
            list(copy_tasks.referred(source, task, plan))
        assert broken.value.fields["path"] == gone.value.fields["path"] == path


def test_a_task_copies_its_rows_and_tells_of_them_once(tmp_path: Path) -> None:
    source = History().then(Append(3)).write(open_store(str(tmp_path / "source")))
    target = open_store(str(tmp_path / "target"))
    plan = plan_of(source, target)
    names = [info.path for info in source.list("part-")]
    sizes = [source.head(name).size_bytes for name in names]
    paths = DeltaLog(source).snapshot().files.sort_by("path")["path"].to_pylist()
    table = pa.table(
        [[*paths, "gone"], [*names, "gone"], [*sizes, 5]], schema=objects_to_copy.WANTED
    )
    empty = table.slice(0, 0).to_batches() or [
        pa.RecordBatch.from_pylist([], objects_to_copy.WANTED)
    ]
    batches = [*empty, *table.to_batches(max_chunksize=2)]
    counted: list[tuple[int, int]] = []
    progress = CopyProgress(lambda *amounts: counted.append(amounts))
    (told,) = copy_tasks.copy_batches(plan, batches, progress)
    assert counted[-1] == (sum(sizes) + 5, 4)
    (row,) = told.to_pylist()
    assert copy_tasks.totals_of(row) == CopyTotals(
        3, sum(sizes), 0, 1, ("gone",), by_store_bytes=sum(sizes)
    )
    assert [info.path for info in target.list("")] == names
    assert list(copy_tasks.copy_batches(plan, empty, progress)) == []


def test_a_task_tells_what_it_has_compared(tmp_path: Path) -> None:
    source = History().then(Append(4)).write(open_store(str(tmp_path / "source")))
    target = open_store(str(tmp_path / "target"))
    names = [info.path for info in source.list("part-")]
    sizes = [source.head(name).size_bytes for name in names]
    equal, other, gone, absent = names
    for name in (equal, other, gone):
        target.put(name, source.get(name))
    target.put(other, flipped(source.get(other)))
    source.delete_many([gone])
    table = pa.table([names, names, sizes], schema=objects_to_copy.WANTED)
    plan = replace(plan_of(source, target), compares="all")
    progress = CopyProgress(lambda *_: None)
    (told,) = copy_tasks.copy_batches(copy_tasks.of_task(plan), table.to_batches(), progress)
    (row,) = told.to_pylist()
    total = copy_tasks.totals_of(row)
    assert (total.objects, total.skipped, total.missing_count) == (1, 3, 0)
    compared = Compared(3, sizes[0] + sizes[1] + sizes[3], 1, (other,), 0, (), 1, (gone,))
    assert total.compared == compared
    assert target.get(absent) == source.get(absent)


def test_a_task_keeps_to_its_share_of_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[int] = []

    def reserve(_: ByteRate, size_bytes: int) -> float:
        taken.append(size_bytes)
        return 0.0

    monkeypatch.setattr(ByteRate, "reserve", reserve)
    source = History().then(Append(3)).write(open_store(str(tmp_path / "source")))
    target = open_store(str(tmp_path / "target"))
    names = [info.path for info in source.list("")]
    sizes = [source.head(name).size_bytes for name in names]
    rate = ByteRate(1 << 20)
    progress = CopyProgress(lambda *_: None, rate)
    table = pa.table([names, names, sizes], schema=objects_to_copy.WANTED)
    plan = plan_of(source, target)
    (told,) = copy_tasks.copy_batches(plan, table.to_batches(), progress, rate)
    assert sum(taken) == told.column("bytes")[0].as_py() == sum(sizes)
    # Under a limit, local files pass through the task.
    assert told.column("by_store_bytes")[0].as_py() == 0


def test_log_files_are_copied_by_their_numbers(tmp_path: Path) -> None:
    source = HISTORY.write(open_store(str(tmp_path / "source")))
    target = open_store(str(tmp_path / "target"))
    names = [info.path for info in source.list("_delta_log/") if info.path.endswith(".json")]
    sizes = [len(source.get(name)) for name in names]
    files = tuple(
        LogCopy(name, f"copy/{name}", size_bytes=size)
        for name, size in zip(names, sizes, strict=True)
    )
    plan = LogCopyPlan(source.config, target.config, files)
    told: list[tuple[int, int]] = []
    progress = CopyProgress(lambda *amounts: told.append(amounts))
    assert copy_tasks.copy_log_batches(plan, [2, 0], progress) == [sizes[2], sizes[0]]
    assert told == [(0, 0), (sizes[2], 1), (sizes[2] + sizes[0], 2)]
    assert {info.path for info in target.list("")} == {f"copy/{names[n]}" for n in (0, 2)}
