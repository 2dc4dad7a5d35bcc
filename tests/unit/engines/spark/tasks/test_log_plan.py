"""What Spark's tasks read, without Spark."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakeferry.engines.spark.tasks import log_plan, log_rows
from lakeferry.engines.spark.tasks.log_plan import FileSurvey
from lakeferry.engines.spark.tasks.log_rows import SMALL
from lakeferry.engines.spark.tasks.task_failures import TaskFailed, found_in, telling_the_driver
from lakeferry.errors import CorruptLog, LakeferryError, StorageUnavailable
from lakeferry.log.paths import LogFile, LogFileKind
from lakeferry.log.segment import Segment
from lakeferry.storage import Store, open_store
from lakeferry.table import DeltaLog, load
from tests.support import history
from tests.support.history import Append, Checkpoint, Delete, History, Layout, Stream


def commits(*sizes: int) -> Segment:
    deltas = tuple(
        LogFile(LogFileKind.COMMIT, version, f"{version}.json", version, size_bytes=size)
        for version, size in enumerate(sizes)
    )
    return Segment(len(sizes) - 1, None, deltas, deltas[-1], None)


def test_commits_are_divided_into_runs_of_neighbours() -> None:
    tasks = log_plan.commit_tasks(commits(4, 4, 4, 20, 1), 8)
    assert [[file.version for file in task.files] for task in tasks] == [[0, 1], [2], [3], [4]]
    assert [task.position for task in tasks] == [0, 2, 3, 4]


def test_large_files_are_divided_between_row_groups_and_small_ones_put_together() -> None:
    surveys = [
        FileSurvey("small", 3, False, (3,)),
        FileSurvey("large", 30, False, (10, 10, 10)),
        FileSurvey("tiny", 1, True, (1,)),
        FileSurvey("mini", 1, True, (1,)),
    ]
    tasks = log_plan.checkpoint_tasks(surveys, 20)
    pieces = [
        [(piece.path, piece.row_groups, piece.is_whole) for piece in task.pieces] for task in tasks
    ]
    assert pieces == [
        [("small", (0,), True)],
        [("large", (0, 1), False)],
        [("large", (2,), False), ("tiny", (0,), True), ("mini", (0,), True)],
    ]
    assert [task.position for task in tasks] == [0, 1, 2]


def test_tasks_are_bounded_and_give_all_cores_work() -> None:
    mib = 1024**2
    assert log_plan.task_bytes(100 * 1024 * mib, 2) == 128 * mib
    assert log_plan.task_bytes(160 * mib, 4) == 20 * mib
    assert log_plan.task_bytes(mib, 64) == 8 * mib


def rows_of(store: Store, limit_bytes: int) -> pa.Table:
    """Return what all tasks together read."""
    segment = DeltaLog(store).segment()
    assert segment.checkpoint is not None
    surveys = [log_plan.survey_file(store, file) for file in segment.checkpoint.files]
    surveys += [
        log_plan.survey_sidecar(store, sidecar) for looked in surveys for sidecar in looked.sidecars
    ]
    # Executors get all of it through a pickle.
    surveys = pickle.loads(pickle.dumps(surveys))
    shape = log_rows.shape_of(surveys)
    batches: list[pa.RecordBatch] = []
    for commit_task in log_plan.commit_tasks(segment, limit_bytes):
        batches += log_rows.read_commits(store, commit_task, shape)
    for checkpoint_task in log_plan.checkpoint_tasks(surveys, limit_bytes):
        batches += log_rows.read_checkpoint(store, checkpoint_task, shape)
    return pa.Table.from_batches(batches, shape.schema)


@pytest.mark.parametrize("kind", list(history.Kind))
def test_however_a_log_is_divided_its_rows_are_the_same(kind: history.Kind) -> None:
    log = History(Layout(v2_checkpoints=kind.is_v2, partitioned=True)).then(
        Append(20),
        Stream(),
        Delete(2),
        Checkpoint(kind, row_group_rows=5),
        Append(2),
        Delete(3, respell=True),
    )
    store = log.store()
    whole, divided = (rows_of(store, limit).to_pylist() for limit in (10**9, 1))
    assert file_actions(whole) == file_actions(divided)
    # Each run of commits says what is newest in it, so more runs may say more.
    small = [{row["raw"] for row in rows if row["kind"] in SMALL} for rows in (whole, divided)]
    assert small[0] <= small[1]


def file_actions(rows: list[dict[str, Any]]) -> list[str]:
    """Return file actions: those of commits in the order of their ranks, then the others."""
    chosen = [row for row in rows if row["kind"] not in SMALL]
    ranked = sorted((row for row in chosen if row["rank"] is not None), key=lambda row: row["rank"])
    others = sorted((row for row in chosen if row["rank"] is None), key=repr)
    return [repr({**row, "rank": None}) for row in ranked + others]


def test_our_errors_come_back_from_executors_as_they_were() -> None:
    original = CorruptLog("it's broken", cause="a\nbit <flipped>", remedy="restore", path="x", n=3)
    with pytest.raises(TaskFailed) as raised, telling_the_driver():
        raise original
    text = f"Job aborted:\n  Traceback…\n{raised.value}\n\tat org.apache.spark"
    found = found_in(text)
    assert isinstance(found, CorruptLog)
    assert found.as_document() == original.as_document()


def test_a_field_that_is_no_plain_value_comes_back_as_text() -> None:
    with pytest.raises(TaskFailed) as raised, telling_the_driver():
        raise StorageUnavailable("away", path=Path("a/b"), outcome_unknown=True)
    found = found_in(str(raised.value))
    assert isinstance(found, StorageUnavailable)
    assert found.fields == {"path": "a/b", "outcome_unknown": True}


def test_what_is_not_ours_is_not_found() -> None:
    assert found_in("java.lang.OutOfMemoryError: heap") is None


def test_an_error_of_another_module_arrives_as_what_it_is_a_kind_of() -> None:
    with pytest.raises(TaskFailed) as raised, telling_the_driver():
        raise load.vanished("_delta_log/x")
    found = found_in(str(raised.value))
    assert type(found) is CorruptLog
    assert found.fields["path"] == "_delta_log/x"


def test_other_exceptions_pass_as_they_are() -> None:
    with pytest.raises(ZeroDivisionError), telling_the_driver():
        raise ZeroDivisionError


def test_a_sidecar_that_is_gone_is_a_corrupt_log() -> None:
    store = (
        History(Layout(v2_checkpoints=True))
        .then(Append(2), Checkpoint(history.Kind.V2_PARQUET))
        .store()
    )
    for entry in list(store.list("_delta_log/_sidecars/")):
        store.delete_many([entry.path])
    with pytest.raises(CorruptLog, match="is gone"):
        rows_of(store, 10**9)


def test_a_checkpoint_that_is_no_parquet_is_a_corrupt_log_with_its_path(tmp_path: Path) -> None:
    store = History().then(Append(2), Checkpoint()).write(open_store(str(tmp_path)))
    name = next(
        entry.path for entry in store.list("_delta_log/") if entry.path.endswith(".parquet")
    )
    store.put(name, b"not parquet" * 10)
    with pytest.raises(LakeferryError) as raised:
        rows_of(store, 10**9)
    assert raised.value.code == "corrupt_log"
    assert raised.value.fields["path"] == name
