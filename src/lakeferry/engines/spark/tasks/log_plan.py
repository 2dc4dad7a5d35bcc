"""Divides the files of a log segment into tasks of bounded size.

Commits are divided into runs of neighbours, so that a later commit wins over an earlier one
within a task and between tasks. A checkpoint's large Parquet files are divided between row
groups, and small ones are combined. For this, each file is *surveyed* first: its footer has the
places of its row groups and its unknown fields, and a top-level file names its sidecars. A
survey reads some kilobytes of a file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from lakeferry.errors import CorruptLog, ObjectNotFound
from lakeferry.log import checkpoint_read, file_actions, parquet
from lakeferry.log.actions import Sidecar
from lakeferry.log.checkpoint_read import Rows
from lakeferry.log.lines import Lines
from lakeferry.log.paths import LogFile, LogFileKind
from lakeferry.log.segment import Checkpoint, Segment
from lakeferry.storage import Store
from lakeferry.table import load

_TASK_BYTES = 128 * 1024 * 1024
"""About how much a task reads: small enough that progress is visible and a retry is cheap."""
_SMALLEST_TASK_BYTES = 8 * 1024 * 1024
FILE_ACTIONS = ("add", "remove")

_Item = TypeVar("_Item")


@dataclass(frozen=True, slots=True)
class Piece:
    """A checkpoint's file, or some row groups of it: all of them where ``is_whole``."""

    path: str
    size_bytes: int
    row_groups: tuple[int, ...]
    is_whole: bool
    is_sidecar: bool


@dataclass(frozen=True, slots=True)
class CommitTask:
    """A run of commits and compacted logs. ``position`` is that of the first in the segment."""

    position: int
    files: tuple[LogFile, ...]


@dataclass(frozen=True, slots=True)
class CheckpointTask:
    """Some of a checkpoint's rows. ``position`` orders tasks like the checkpoint's files."""

    position: int
    pieces: tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class FileSurvey:
    """A checkpoint file's own description: row groups, unknown fields, sidecars."""

    path: str
    size_bytes: int
    is_sidecar: bool
    row_group_bytes: tuple[int, ...] = ()
    unknown: tuple[tuple[str, pa.Field], ...] = ()
    """Unknown fields, each with the action it belongs to."""
    sidecars: tuple[Sidecar, ...] = ()


def survey_file(store: Store, file: LogFile) -> FileSurvey:
    """Look at one listed file of a checkpoint."""
    if file.path.endswith(".json"):
        rows = Rows()
        checkpoint_read.read_json(rows, _get(store, file.path), file.path)
        return FileSurvey(file.path, file.size_bytes, False, sidecars=tuple(rows.sidecars))
    looked = _survey_parquet(store, file.path, file.size_bytes, False)
    alone = Segment(
        file.version, Checkpoint(file.version, file.kind, (file,), True), (), None, None
    )
    found = load.small_rows(store, alone, Lines(), ("sidecar",))
    return replace(looked, sidecars=tuple(found.sidecars))


def survey_sidecar(store: Store, sidecar: Sidecar) -> FileSurvey:
    """Look at one sidecar."""
    name = load.sidecar_name(store.uri, sidecar)
    # The size stated in a checkpoint may be wrong; byte ranges need the file's own.
    try:
        size_bytes = store.head(name).size_bytes
    except ObjectNotFound as gone:
        raise load.vanished(name) from gone
    return _survey_parquet(store, name, size_bytes, True)


def _survey_parquet(store: Store, path: str, size_bytes: int, is_sidecar: bool) -> FileSurvey:
    try:
        end = parquet.SparseFile(size_bytes, [load.fetch_footer(store, path, size_bytes)])
        schema = pq.read_schema(end)
        wanted = checkpoint_read.columns_to_read(schema, end, FILE_ACTIONS)
        sizes = tuple(
            sum(chunk.span.length for chunk in chunks)
            for chunks in parquet.footer_of(end).row_groups
        )
    except ObjectNotFound as gone:
        raise load.vanished(path) from gone
    except (CorruptLog, pa.ArrowException, OSError, ValueError) as broken:
        raise checkpoint_read.corrupt(path, str(broken)) from broken
    unknown = []
    for column in wanted:
        action, _, name = column.partition(".")
        if name not in file_actions.SCHEMAS[action].names:
            unknown.append((action, schema.field(action).type.field(name)))
    return FileSurvey(path, size_bytes, is_sidecar, sizes, tuple(unknown))


def _get(store: Store, path: str) -> bytes:
    try:
        return store.get(path)
    except ObjectNotFound as gone:
        raise load.vanished(path) from gone


def task_bytes(total_bytes: int, cores: int) -> int:
    """Return how much each task should read, so that all cores have something to do."""
    share = total_bytes // max(1, 2 * cores)
    return min(_TASK_BYTES, max(_SMALLEST_TASK_BYTES, share))


def commit_tasks(segment: Segment, limit_bytes: int) -> list[CommitTask]:
    """Divide the segment's commits into runs of about ``limit_bytes``."""
    tasks: list[CommitTask] = []
    for run in _runs(segment.deltas, [file.size_bytes for file in segment.deltas], limit_bytes):
        position = sum(len(task.files) for task in tasks)
        tasks.append(CommitTask(position, tuple(run)))
    return tasks


def checkpoint_tasks(surveys: Sequence[FileSurvey], limit_bytes: int) -> list[CheckpointTask]:
    """Divide a checkpoint's files, in their order, into tasks of about ``limit_bytes``."""
    pieces = [piece for looked in surveys for piece in _pieces(looked, limit_bytes)]
    runs = _runs([piece for piece, _ in pieces], [size for _, size in pieces], limit_bytes)
    return [CheckpointTask(position, tuple(run)) for position, run in enumerate(runs)]


def _pieces(looked: FileSurvey, limit_bytes: int) -> Iterator[tuple[Piece, int]]:
    """Yield a file's pieces, each with the bytes it takes."""
    groups = range(len(looked.row_group_bytes))
    if looked.size_bytes <= limit_bytes or len(groups) < 2:
        yield (
            Piece(looked.path, looked.size_bytes, tuple(groups), True, looked.is_sidecar),
            looked.size_bytes,
        )
        return
    for run in _runs(groups, looked.row_group_bytes, limit_bytes):
        yield (
            Piece(looked.path, looked.size_bytes, tuple(run), False, looked.is_sidecar),
            sum(looked.row_group_bytes[group] for group in run),
        )


def _runs(items: Iterable[_Item], sizes: Iterable[int], limit_bytes: int) -> Iterator[list[_Item]]:
    """Yield runs of neighbours, as many as fit the limit, and at least one."""
    run: list[_Item] = []
    total = 0
    for item, size in zip(items, sizes, strict=True):
        if run and total + size > limit_bytes:
            yield run
            run, total = [], 0
        run.append(item)
        total += size
    if run:
        yield run


def ends_with_commit(segment: Segment) -> bool:
    """Return True if the version's own commit is among the replayed files."""
    return bool(segment.deltas) and segment.deltas[-1].kind is LogFileKind.COMMIT
