"""Replays a segment's files into a snapshot.

Implements the protocol's "Action Reconciliation": the newest protocol and metadata win, the
newest reference to each logical file wins, a ``remove`` leaves a tombstone. Commits are read
first; a checkpoint's rows are then compared only with the files in those commits, so they cost
little more than reading them.

A snapshot without a protocol or without metadata is :class:`~lakeferry.errors.CorruptLog`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from lakeferry.errors import CorruptLog
from lakeferry.log import checkpoint_read, file_actions, file_identity, fingerprints, stats
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
_CHECKED_ROWS = 65_536
FileTable = tuple[str, pa.Table]
"""Some file actions of a version: ``add`` or ``remove``, and a table of them."""


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
        return total_bytes(self.files["size"])


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

    @property
    def of_commits(self) -> tuple[FileTable, ...]:
        """The file actions of the commits, tombstones first."""
        return tuple(
            (name, table)
            for name, tables in (("remove", self._removes), ("add", self._adds))
            for table in tables
        )

    def take(self, rows: Rows) -> None:
        """Add the rows of a checkpoint file that no commit overrides."""
        self._is_checked = self._is_checked and not rows.adds and not rows.removes
        for name, table in self.pass_on(rows):
            (self._adds if name == "add" else self._removes).append(table)

    def pass_on(self, rows: Rows) -> Iterator[FileTable]:
        """Add the small actions of a checkpoint file; return its rows that no commit overrides.

        The rows aren't kept here: there may be a million of them.
        """
        self._check_agrees(rows)
        self._protocol = self._protocol or rows.protocol
        self._metadata = self._metadata or rows.metadata
        self._checkpoint_path = rows.path or self._checkpoint_path
        self._txns = rows.txns | self._txns
        self._domains = rows.domains | self._domains
        batches = {"add": rows.adds, "remove": rows.removes}
        rows.adds, rows.removes = [], []
        return (
            (name, pa.Table.from_batches([file_actions.lean(self._untouched(batch))]))
            for name, found in batches.items()
            for batch in found
        )

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
            tables = (*self._adds, *self._removes)
            check_distinct(lambda: tables, self._root, self._checkpoint_path)
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


def total_bytes(sizes: pa.ChunkedArray) -> int:
    """Return the sum of sizes, of which none may be stated."""
    bounds = pc.min_max(sizes).as_py()
    largest = max(abs(bounds["min"] or 0), abs(bounds["max"] or 0))
    if largest * len(sizes) > _MAX_LONG:
        # Arrow's sum would overflow. No real table is so large.
        return sum(size or 0 for size in sizes.to_pylist())
    return int(pc.sum(sizes).as_py() or 0)


class DistinctFiles:
    """Checks that no two actions of a version are about one logical file, a table at a time.

    It keeps eight bytes of each: the hashes of their keys.
    """

    def __init__(self, root: str) -> None:
        """Begin with no actions; ``root`` is the URI of the log's table."""
        self._root = root
        self._hashes: list[pa.Array] = []

    @property
    def count(self) -> int:
        """How many actions were added."""
        return sum(map(len, self._hashes))

    def add(self, table: pa.Table) -> None:
        """Add further actions."""
        self._hashes += (fingerprints.of_texts(keys) for keys in self._keys(table))

    def check(self, again: Callable[[], Iterable[pa.Table]], checkpoint_path: str | None) -> None:
        """Raise an error if two actions are about one file; it isn't known which of them counts.

        ``again`` returns the same actions once more. They are looked at only if hashes are equal.
        """
        doubtful = fingerprints.repeated(self._hashes)
        if not len(doubtful):
            return
        found = [
            keys.filter(pc.is_in(fingerprints.of_texts(keys), value_set=doubtful))
            for table in again()
            for keys in self._keys(table)
        ]
        equal = pa.chunked_array(found, pa.string())
        if pc.count_distinct(equal).as_py() < len(equal):
            raise checkpoint_read.corrupt(checkpoint_path or "", "it has two actions of one file")

    def _keys(self, table: pa.Table) -> Iterator[pa.Array]:
        for batch in table.select(["path", "deletionVector"]).to_batches(_CHECKED_ROWS):
            paths, vectors = batch.columns
            yield file_identity.keys(paths, vectors, self._root)


def check_distinct(
    tables: Callable[[], Iterable[pa.Table]], root: str, checkpoint_path: str | None
) -> None:
    """Raise an error if a checkpoint has two actions for one logical file.

    ``tables`` returns its file actions that later commits don't override.
    """
    files = DistinctFiles(root)
    for table in tables():
        files.add(table)
    files.check(tables, checkpoint_path)


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
