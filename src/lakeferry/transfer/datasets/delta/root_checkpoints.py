"""Checks a received checkpoint that begins a chain.

A chain whose first versions were cleaned up begins with a *root*, a block that names the files
of a checkpoint. They are received under their hashes, beside the chain. Their content is compared
with the block's, and only then are they copied to their names in the log.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from lakeferry.errors import CommitConflict, InvalidInput, LimitExceeded, ObjectNotFound
from lakeferry.log import features, paths
from lakeferry.log.lines import Lines
from lakeferry.log.parquet import FileBounds
from lakeferry.log.paths import LogFile
from lakeferry.log.replay import Reconciliation, Snapshot
from lakeferry.log.segment import arrange
from lakeferry.storage import Store
from lakeferry.storage.folder import FolderStore
from lakeferry.table import load
from lakeferry.transfer.chain import hashes
from lakeferry.transfer.chain.hashes import Multihash
from lakeferry.transfer.chain.odf_blocks import ObjectKind, ObjectRef
from lakeferry.transfer.datasets.delta.blocks_of_log import live_names
from lakeferry.transfer.datasets.delta.version_blocks import DeltaBlock, Root

CHAIN_FOLDER = f"{paths.OWN_DIR}/transfer"
"""The folder of the chain and its files, in a table."""

_LARGEST_BYTES = 1 << 30
# A checkpoint also has tombstones, which its block doesn't list.
_ROWS_PER_FILE, _ROWS_AT_LEAST = 10, 100_000
_BYTES_PER_FILE, _BYTES_AT_LEAST = 16 << 10, 256 << 20
_ALL_ROWS = ("protocol", "metaData", "txn", "domainMetadata", "add", "remove", "sidecar")


def staged_checkpoints(name: Multihash) -> str:
    """Return the path of a root checkpoint's file in a table before it is published."""
    return f"{CHAIN_FOLDER}/checkpoints/{name.text}"


def check_checkpoint_size(refs: Iterable[ObjectRef]) -> None:
    """Refuse a checkpoint that is too large to be checked in memory."""
    size = sum(ref.size_bytes for ref in refs if ref.kind is ObjectKind.CHECKPOINT)
    if size > _LARGEST_BYTES:
        raise LimitExceeded(
            "the checkpoint of a chain root is too large",
            cause=f"{size:,} bytes",
            limit=_LARGEST_BYTES,
        )


def check_root_checkpoint(table: Store, block: DeltaBlock) -> Snapshot:
    """Return the snapshot of a root's checkpoint; refuse one that differs from its block."""
    root = block.root
    assert root is not None
    files = _checkpoint_files(root)
    _check_sidecars(table, block, files)
    snapshot = state_of(table, [block])
    if files[0].version != block.sequence_number or snapshot.metadata.id != block.table_id:
        raise InvalidInput(
            "the checkpoint of a chain root is of another version or another table",
            hash=block.hash.text,
        )
    live = live_names(snapshot)
    listed = {ref.path for ref in block.files} | set(block.gone)
    if set(live.sizes) != listed or live.vectors != root.vectors:
        raise InvalidInput(
            "the checkpoint of a chain root names other files than its block",
            cause=f"{len(live.sizes):,} and {len(listed):,} of them",
            remedy="ask the owner of the sender's dataset: its chain is damaged",
            hash=block.hash.text,
        )
    return snapshot


def state_of(table: Store, run: Iterable[DeltaBlock]) -> Snapshot:
    """Return the snapshot after a run that begins with a root, from the received files."""
    lines = Lines()
    first: DeltaBlock | None = None
    version = 0
    for block in run:
        version = block.sequence_number
        if block.root is not None:
            first = block
        elif block.commit is not None:
            lines.read(block.commit, paths.commit(version))
    replay = Reconciliation(version, table.uri, lines)
    if first is not None and first.root is not None:
        files, bounds = _checkpoint_files(first.root), _bounds(first)
        staged_log = _Staged.of(table, first.root)
        for rows in load.checkpoint_rows(staged_log, files, _ALL_ROWS, bounds=bounds):
            replay.take(rows)
    snapshot = replay.snapshot()
    features.check_carriable(snapshot.protocol)
    return snapshot


def publish_root_checkpoint(table: Store, root: Root) -> None:
    """Copy a root's checkpoint into the log: first the files that other files refer to."""
    sidecars_first = sorted(root.files, key=lambda ref: not (ref.path or "").startswith("_"))
    for ref in sidecars_first:
        path = f"{paths.LOG_DIR}/{ref.path}"
        try:
            there = table.head(path).size_bytes
        except ObjectNotFound:
            table.copy_within(staged_checkpoints(ref.hash), path)
            continue
        if there != ref.size_bytes:
            raise CommitConflict(
                "somebody else is making a table here",
                cause=f"{path} is there, but differs from what would be published",
                remedy="look at what is there, and choose another place",
            )


def _bounds(block: DeltaBlock) -> FileBounds:
    """Return limits for a root checkpoint's content: the block's objects, and tombstones."""
    count = len(block.files) + len(block.gone)
    return FileBounds(
        count * _ROWS_PER_FILE + _ROWS_AT_LEAST, count * _BYTES_PER_FILE + _BYTES_AT_LEAST
    )


def _check_sidecars(table: Store, block: DeltaBlock, files: Sequence[LogFile]) -> None:
    """Refuse sidecars that a reader might look for in another place than the checkpoint's."""
    root, bounds = block.root, _bounds(block)
    assert root is not None
    there = {ref.path for ref in root.files}
    for rows in load.checkpoint_rows(_Staged.of(table, root), files, ("sidecar",), bounds=bounds):
        for sidecar in rows.sidecars:
            if f"_sidecars/{sidecar.path}" not in there:
                raise InvalidInput(
                    "the checkpoint of a chain root names a sidecar that wasn't sent with it",
                    cause=repr(sidecar.path[:200]),
                )


def _checkpoint_files(root: Root) -> tuple[LogFile, ...]:
    found = [
        file
        for ref in root.files
        if (file := paths.parse(f"{paths.LOG_DIR}/{ref.path}", ref.size_bytes)) is not None
    ]
    checkpoints = arrange(found).checkpoints
    if len(checkpoints) != 1 or not checkpoints[0].complete:
        raise InvalidInput("a chain root needs exactly one complete checkpoint")
    return checkpoints[0].files


class _Staged(FolderStore):
    """A table in whose log some files are stored under other names, and checked by hash."""

    def __init__(self, table: Store, refs: Mapping[str, ObjectRef]) -> None:
        self._table = table
        self._refs = refs
        self.config = table.config
        self.calls = table.calls

    @classmethod
    def of(cls, table: Store, root: Root) -> _Staged:
        """Return the table as it will be once a root's checkpoint is in its log."""
        return cls(table, {f"{paths.LOG_DIR}/{ref.path}": ref for ref in root.files})

    def get(self, path: str) -> bytes:
        """Return a file by its future name; raise if its bytes have another hash."""
        ref = self._refs.get(path)
        if ref is None:
            return self._table.get(path)
        data = self._table.get_range(staged_checkpoints(ref.hash), 0, ref.size_bytes + 1)
        hashes.check_hash(Multihash.sha3_256(data), ref.hash)
        return data
