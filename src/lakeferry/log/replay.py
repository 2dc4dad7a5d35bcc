"""Replays a segment's files into a snapshot.

Implements the protocol's "Action Reconciliation": the newest protocol and metadata win, the
newest reference to each logical file wins, a ``remove`` leaves a tombstone. Commits are read
first; a checkpoint's rows are then compared only with the files in those commits, so they cost
little more than reading them.

A snapshot without a protocol or without metadata is :class:`~lakeferry.errors.CorruptLog`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from lakeferry.errors import CorruptLog
from lakeferry.log import checkpoint_read, file_actions, file_identity, stats
from lakeferry.log.actions import CommitInfo, DomainMetadata, Metadata, Protocol, Txn
from lakeferry.log.checkpoint_read import Rows
from lakeferry.log.latest_actions import LatestActions
from lakeferry.log.lines import ORDER, Lines

MOST_CHECKED = 200_000
"""Largest number of file actions for which every snapshot is checked for duplicate logical files.

The check costs as much time and memory as reading the checkpoint. A larger table is checked
before a new checkpoint is written, which would make the mistake permanent.
"""
_MAX_LONG = 2**63 - 1
_MOST_CHUNKS = 8


@dataclass(frozen=True, slots=True)
class TableState:
    """A version without its files: protocol, metadata and other small actions."""

    version: int
    protocol: Protocol
    metadata: Metadata
    commit_info: CommitInfo | None = None
    """The version's own commit info, if its commit was read."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A version of a table. The tables have the columns of :mod:`lakeferry.log.file_actions`."""

    version: int
    protocol: Protocol
    metadata: Metadata
    commit_info: CommitInfo | None
    txns: Mapping[str, Txn]
    domains: Mapping[str, DomainMetadata]
    files: pa.Table
    tombstones: pa.Table

    @property
    def state(self) -> TableState:
        """The version without its files."""
        return TableState(self.version, self.protocol, self.metadata, self.commit_info)

    @property
    def num_files(self) -> int:
        """Number of live files."""
        return int(self.files.num_rows)

    @property
    def num_rows(self) -> int | None:
        """Number of rows, from the files' statistics; ``None`` if one has none."""
        return stats.num_rows(self.files)

    @property
    def size_bytes(self) -> int:
        """Total size of all live files."""
        sizes = self.files["size"]
        bounds = pc.min_max(sizes).as_py()
        largest = max(abs(bounds["min"] or 0), abs(bounds["max"] or 0))
        if largest * self.num_files > _MAX_LONG:
            # Arrow's sum would overflow. No real table is so large.
            return sum(size or 0 for size in sizes.to_pylist())
        return int(pc.sum(sizes).as_py() or 0)


class Reconciliation:
    """Replays one version: commits first, then the checkpoint's rows in any order.

    Mutable while it collects; :meth:`snapshot` is the result.
    """

    def __init__(self, version: int, root: str, lines: Lines) -> None:
        """Start with all commits after the checkpoint, already read into ``lines``."""
        self._version = version
        self._root = root
        self._lines = lines
        self._protocol = lines.protocol
        self._metadata = lines.metadata
        self._checkpoint_path: str | None = None
        self._txns = dict(lines.txns)
        self._domains = dict(lines.domains)
        self._keys = self._paths = pa.array([], pa.string())
        self._checkpoint = LatestActions()
        self._is_checked = True
        self._adds: list[pa.Table] = []
        self._removes: list[pa.Table] = []
        if lines.has_files:
            # Grouping needs an import of 30 ms, which state() shouldn't pay for.
            self._take_files(lines.adds, lines.removes)

    def _take_files(self, adds: pa.Table, removes: pa.Table) -> None:
        both = (adds, removes)
        paths = [file_identity.identities(_whole(table["path"]), self._root) for table in both]
        vectors = [_whole(table["deletionVector"]) for table in both]
        self._keys = pa.concat_arrays(list(map(file_identity.keys_of, paths, vectors)))
        self._paths = pc.unique(pa.concat_arrays(paths))
        newest = _newest(self._keys, _both(adds[ORDER.name], removes[ORDER.name]))
        self._adds = [_only(adds, newest)]
        self._removes = [_only(removes, newest)]

    def take(self, rows: Rows) -> None:
        """Add the rows of a checkpoint file that no commit overrides."""
        self._is_checked = self._is_checked and not rows.adds and not rows.removes
        self._check_agrees(rows)
        self._protocol = self._protocol or rows.protocol
        self._metadata = self._metadata or rows.metadata
        self._checkpoint_path = rows.path or self._checkpoint_path
        self._txns = rows.txns | self._txns
        self._domains = rows.domains | self._domains
        for batches, kept in ((rows.adds, self._adds), (rows.removes, self._removes)):
            kept += [
                pa.Table.from_batches([file_actions.lean(self._untouched(batch))])
                for batch in batches
            ]
        rows.adds, rows.removes = [], []

    def _check_agrees(self, rows: Rows) -> None:
        """Raise an error if rows contradict earlier rows of the same checkpoint."""
        small = [rows.protocol, rows.metadata, *rows.txns.values(), *rows.domains.values()]
        try:
            for action in small:
                if action is not None:
                    checkpoint_read.check_agrees(self._checkpoint, action)
        except CorruptLog as broken:
            raise checkpoint_read.corrupt(rows.path or "", str(broken)) from broken
        self._checkpoint.absorb(rows)

    def _untouched(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows whose logical file isn't in any commit."""
        if not len(self._keys):
            return batch
        paths = file_identity.identities(batch.column("path"), self._root)
        near = pc.is_in(paths, value_set=self._paths)
        if not pc.any(near).as_py():
            return batch
        vectors = batch.column("deletionVector").filter(near)
        keys = file_identity.keys_of(paths.filter(near), vectors)
        stays = pc.invert(pc.is_in(keys, value_set=self._keys))
        return batch.filter(pc.replace_with_mask(pc.invert(near), near, stays))

    def state(self) -> TableState:
        """Return the protocol and the metadata; raise an error if the log has none."""
        if self._protocol is None or self._metadata is None:
            lacking = "protocol" if self._protocol is None else "metaData"
            raise CorruptLog(
                f"version {self._version} can't be rebuilt",
                cause=f"the log has no {lacking} action",
                remedy="restore the log from a copy",
                version=self._version,
            )
        return TableState(self._version, self._protocol, self._metadata, self._lines.commit_info)

    def snapshot(self, *, is_checked: bool = False) -> Snapshot:
        """Return the version; set ``is_checked`` if no logical file can be in two of the rows."""
        state = self.state()
        if not (is_checked or self._is_checked) and self._rows <= MOST_CHECKED:
            check_distinct((*self._adds, *self._removes), self._root, self._checkpoint_path)
        return Snapshot(
            state.version,
            state.protocol,
            state.metadata,
            state.commit_info,
            self._txns,
            {name: domain for name, domain in self._domains.items() if not domain.removed},
            self._joined(self._adds, file_actions.ADD),
            self._joined(self._removes, file_actions.REMOVE),
        )

    @property
    def _rows(self) -> int:
        return sum(table.num_rows for table in (*self._adds, *self._removes))

    def _joined(self, tables: Iterable[pa.Table], schema: pa.Schema) -> pa.Table:
        present = [table for table in tables if table.num_rows]
        if not present:
            return schema.append(file_actions.RAW).empty_table()
        # Two checkpoint files may have different types for an unknown field.
        for promotion in ("default", "permissive"):
            try:
                return pa.concat_tables(present, promote_options=promotion)
            except (pa.ArrowInvalid, pa.ArrowTypeError) as broken:
                disagreement = str(broken)
        why = f"its fields have other types than those of the files beside it: {disagreement}"
        # Commits have only known columns, so only checkpoint files can differ.
        raise checkpoint_read.corrupt(self._checkpoint_path or "", why)


def check_distinct(tables: Iterable[pa.Table], root: str, checkpoint_path: str | None) -> None:
    """Raise an error if a checkpoint has two actions for one logical file.

    ``tables`` are its file actions that later commits don't override. It isn't known which of
    the two counts.
    """
    keys = [file_identity.table_keys(table, root) for table in tables if table.num_rows]
    whole = pa.chunked_array(keys, pa.string())
    if pc.count_distinct(whole).as_py() < len(whole):
        raise checkpoint_read.corrupt(checkpoint_path or "", "it has two actions of one file")


def advanced(before: Snapshot, version: int, root: str, lines: Lines) -> Snapshot:
    """Return a later version, given the commits between the two, read into ``lines``."""
    replay = Reconciliation(version, root, lines)
    replay.take(
        Rows(
            protocol=before.protocol,
            metadata=before.metadata,
            txns=dict(before.txns),
            domains=dict(before.domains),
            adds=_in_few(before.files),
            removes=_in_few(before.tombstones),
        )
    )
    return replay.snapshot(is_checked=True)


def _in_few(table: pa.Table) -> list[pa.RecordBatch]:
    """Return a table's rows in few batches: each added version brings some."""
    if table.column(0).num_chunks > _MOST_CHUNKS:
        table = table.combine_chunks()
    batches: list[pa.RecordBatch] = table.to_batches()
    return batches


def _whole(column: pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks()


def _both(first: pa.ChunkedArray, second: pa.ChunkedArray) -> pa.Array:
    return pa.concat_arrays([_whole(first), _whole(second)])


def _newest(keys: pa.Array, order: pa.Array) -> pa.Array:
    """Return, for each key, the position of its newest action."""
    grouped = pa.table({"key": keys, "order": order}).group_by("key").aggregate([("order", "max")])
    return _whole(grouped["order_max"])


def _only(table: pa.Table, newest: pa.Array) -> pa.Table:
    """Return the rows at these positions, without the position; no copy if that is all of them."""
    stays = pc.is_in(table[ORDER.name], value_set=newest)
    kept = table if pc.all(stays, min_count=0).as_py() else table.filter(stays)
    return kept.drop_columns([ORDER.name])
