"""Writes checkpoints to a store.

The file that completes a checkpoint is put last, with put-if-absent: two processes
that write a checkpoint of the same version write the same content. The hint follows
afterwards.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from lakeferry.errors import CorruptLog, ObjectNotFound, StorageError
from lakeferry.log import checkpoint_write, paths, replay
from lakeferry.log.checkpoint_write import CheckpointPlan
from lakeferry.log.checksum import Checksum, encode_checksum
from lakeferry.log.last_checkpoint import Hint, decode_hint, encode_hint, moves_hint
from lakeferry.log.paths import LogFileKind
from lakeferry.log.replay import Snapshot
from lakeferry.storage import Store
from lakeferry.table import load


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


def check_against(snapshot: Snapshot, checksum: Checksum, path: str) -> None:
    """Raise if the checksum file at ``path`` contradicts the replayed snapshot.

    A checkpoint outlives the commits it was made from, so it must not contain
    doubtful content.
    """
    pairs = (
        ("numFiles", checksum.num_files, snapshot.num_files),
        ("tableSizeBytes", checksum.table_size_bytes, snapshot.size_bytes),
        ("protocol", checksum.protocol.unordered, snapshot.protocol.unordered),
        ("metadata", checksum.metadata.id, snapshot.metadata.id),
    )
    for name, stated, found in pairs:
        if stated != found:
            raise CorruptLog(
                f"version {snapshot.version} doesn't match its checksum file",
                cause=f"{name} is {found} in the log and {stated} in {path}",
                remedy="delete that checksum file if the log is right; else find out which log "
                "file was changed, and restore it from a copy",
                version=snapshot.version,
                path=path,
            )


def write(
    store: Store,
    snapshot: Snapshot,
    clock: Callable[[], int],
    *,
    sidecar_rows: int = checkpoint_write.SIDECAR_ROWS,
    replaces: bool = False,
    writer: LogFileWriter | None = None,
) -> Written:
    """Write the checkpoint of a snapshot and move the hint forward.

    ``replaces``: an unreadable file has the checkpoint's name, and is replaced.
    ``writer`` writes the files; by default the store does.
    """
    writer = writer or store
    if snapshot.files.num_rows + snapshot.tombstones.num_rows > replay.MOST_CHECKED:
        replay.check_distinct((snapshot.files, snapshot.tombstones), store.uri, None)
    planned = checkpoint_write.plan_checkpoint(
        snapshot, clock(), _uniques(), sidecar_rows=sidecar_rows
    )
    created = True
    for file in planned.files:
        if replaces:
            writer.put(file.path, file.body)
        else:
            created = writer.put_if_absent(file.path, file.body)
    _move_hint(store, planned, writer)
    return Written(
        planned.version, planned.kind.value, tuple(file.path for file in planned.files), created
    )


def write_checksum(writer: LogFileWriter, snapshot: Snapshot) -> bool:
    """Write the checksum file of a snapshot unless it exists; return whether it was written."""
    info = snapshot.commit_info
    checksum = Checksum(
        snapshot.size_bytes,
        snapshot.num_files,
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
