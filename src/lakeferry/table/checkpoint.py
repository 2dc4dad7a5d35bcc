"""Writes checkpoints to a store.

The file that completes a checkpoint is put last, with put-if-absent: two processes
that write a checkpoint of the same version write the same content. The hint follows
afterwards.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from lakeferry.errors import CorruptLog, ObjectNotFound, StorageError
from lakeferry.log import checkpoint_write, paths, replay
from lakeferry.log.checkpoint_rows import UnevenRows
from lakeferry.log.checkpoint_write import CheckpointPlan
from lakeferry.log.checksum import Checksum, encode_checksum
from lakeferry.log.last_checkpoint import Hint, decode_hint, encode_hint, moves_hint
from lakeferry.log.paths import LogFileKind
from lakeferry.log.replay import DistinctFiles, FileTable, Snapshot
from lakeferry.storage import Store
from lakeferry.table import load
from lakeferry.table.version_reading import VersionReading


class LogFileWriter(Protocol):
    """Writes the files of a checkpoint; every :class:`~lakeferry.storage.Store` can."""

    def put(self, path: str, data: bytes, /) -> None:
        """Write a file, replacing an older one."""

    def put_if_absent(self, path: str, data: bytes, /) -> bool:
        """Write a file unless the name is taken; return whether it was written."""


@dataclass(frozen=True, slots=True)
class Written:
    """A checkpoint in the log; ``created`` says whether it is new."""

    version: int
    kind: str
    files: tuple[str, ...]
    created: bool


def plan(reading: VersionReading, now_ms: int) -> CheckpointPlan:
    """Return the checkpoint of a version; its rows are read from the log a few at a time."""
    files = DistinctFiles(reading.source.uri)
    found = reading.file_tables()

    def tables() -> Iterator[FileTable]:
        for name, table in found:
            files.add(table)
            yield name, table

    small = reading.small_snapshot()
    try:
        planned = checkpoint_write.plan_checkpoint(small, tables(), now_ms, _uniques())
    except UnevenRows:
        # Fields that only some rows have become columns of all rows.
        return plan_of(reading.snapshot(), reading.source.uri, now_ms)
    base = reading.segment.checkpoint
    if base is not None:
        # Of a small table, another checkpoint or the commits are read instead.
        path = base.files[-1].path if files.count <= replay.MOST_CHECKED else None
        files.check(lambda: (table for _, table in reading.file_tables()), path)
    return planned


def plan_of(
    snapshot: Snapshot,
    root: str,
    now_ms: int,
    *,
    sidecar_rows: int = checkpoint_write.SIDECAR_ROWS,
) -> CheckpointPlan:
    """Return the checkpoint of a snapshot of the table at ``root``."""
    # The first table of each kind decides about its columns, and those of adds end the search.
    whole = (snapshot.tombstones, snapshot.files)
    if sum(table.num_rows for table in whole) > replay.MOST_CHECKED:
        replay.check_distinct(lambda: whole, root, None)
    return checkpoint_write.plan_checkpoint(
        snapshot,
        zip(("remove", "add"), whole, strict=True),
        now_ms,
        _uniques(),
        sidecar_rows=sidecar_rows,
    )


def check_against(planned: CheckpointPlan, checksum: Checksum, path: str) -> None:
    """Raise if the checksum file at ``path`` contradicts a version that was replayed.

    A checkpoint outlives the commits it was made from, so it must not contain
    doubtful content.
    """
    found = planned.snapshot
    pairs = (
        ("numFiles", checksum.num_files, planned.num_files),
        ("tableSizeBytes", checksum.table_size_bytes, planned.size_bytes),
        ("protocol", checksum.protocol.unordered, found.protocol.unordered),
        ("metadata", checksum.metadata.id, found.metadata.id),
    )
    for name, stated, value in pairs:
        if stated != value:
            raise CorruptLog(
                f"version {found.version} doesn't match its checksum file",
                cause=f"{name} is {value} in the log and {stated} in {path}",
                remedy="delete that checksum file if the log is right; else find out which log "
                "file was changed, and restore it from a copy",
                version=found.version,
                path=path,
            )


def write(
    store: Store,
    planned: CheckpointPlan,
    *,
    replaces: bool = False,
    writer: LogFileWriter | None = None,
) -> Written:
    """Write a checkpoint and move the hint forward.

    ``replaces``: an unreadable file has the checkpoint's name, and is replaced.
    ``writer`` writes the files; by default the store does.
    """
    writer = writer or store
    created = True
    for file in planned.files:
        if replaces:
            writer.put(file.path, file.body)
        else:
            created = writer.put_if_absent(file.path, file.body)
    _move_hint(store, planned, writer)
    names = tuple(file.path for file in planned.files)
    return Written(planned.snapshot.version, planned.kind.value, names, created)


def write_checksum(
    writer: LogFileWriter, snapshot: Snapshot, num_files: int, size_bytes: int
) -> bool:
    """Write the checksum file of a version unless it exists; return whether it was written."""
    info = snapshot.commit_info
    checksum = Checksum(
        size_bytes,
        num_files,
        snapshot.metadata,
        snapshot.protocol,
        info.txn_id if info else None,
        info.in_commit_timestamp if info else None,
        tuple(snapshot.txns.values()),
        tuple(snapshot.domains.values()),
    )
    name = paths.checksum(snapshot.version)
    return writer.put_if_absent(name, encode_checksum(checksum))


def foresee_checkpoint(snapshot: Snapshot) -> Written:
    """Return the result that :func:`write` would have, as far as it is known before."""
    kind = checkpoint_write.kind_for(snapshot)
    classic = (paths.classic_checkpoint(snapshot.version),)
    return Written(
        snapshot.version, kind.value, classic if kind is LogFileKind.CLASSIC else (), True
    )


def _uniques() -> Iterator[str]:
    while True:
        yield str(uuid.uuid4())


def _move_hint(store: Store, planned: CheckpointPlan, writer: LogFileWriter) -> None:
    try:
        if moves_hint(planned.hint, _hint(store), partial(_leads, store)):
            writer.put(paths.LAST_CHECKPOINT, encode_hint(planned.hint))
    except StorageError:
        # The checkpoint is written; a stale hint only costs readers a longer listing.
        return


def _leads(store: Store, hint: Hint) -> bool:
    """Return whether a hint's checkpoint exists."""
    listing = load.list_log(store, hint.version, hint.version + 1)
    return any(checkpoint.complete for checkpoint in listing.checkpoints)


def _hint(store: Store) -> Hint | None:
    try:
        return decode_hint(store.get(paths.LAST_CHECKPOINT))
    except ObjectNotFound:
        return None
