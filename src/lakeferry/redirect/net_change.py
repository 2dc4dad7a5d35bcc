"""Bringing a table's changes back in one commit, where numbers can't match.

The source gets what it lacks of the target's live files and loses what the
target doesn't have any more; metadata, protocol, transactions and metadata
domains become the target's; rows get fresh ids above all that either side has
given out. If one of the source's own commits changed data, both sides have
something that the other lacks, and nothing is done.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from lakeferry.engine import CopyPlan
from lakeferry.errors import Diverged
from lakeferry.log import files, row_ids
from lakeferry.log.actions import DomainMetadata, Txn
from lakeferry.log.commit import Conflict, Reads, Transaction
from lakeferry.log.lines import Lines
from lakeferry.log.replay import Snapshot
from lakeferry.log.replay import State as TableState
from lakeferry.log.rewrite import Rewrite, Unchanged, rewrite_vectors
from lakeferry.redirect import commits, dialects
from lakeferry.redirect.setting import Setting
from lakeferry.redirect.states import State
from lakeferry.table import DeltaLog, load

if TYPE_CHECKING:
    from lakeferry.redirect.disable import Way


@dataclass(frozen=True, slots=True)
class _Change:
    """What one commit has to do to the source."""

    adds: pa.Table
    removes: pa.Table
    txns: tuple[Txn, ...]
    domains: tuple[DomainMetadata, ...]
    metadata_changes: bool

    @property
    def is_empty(self) -> bool:
        return not (
            self.adds.num_rows
            or self.removes.num_rows
            or self.txns
            or self.domains
            or self.metadata_changes
        )


def bring(way: Way, state: TableState) -> TableState:
    """Bring back what changed at a target of ours; return the source after it."""
    own = own_commits(way, state)
    way.setting.warn(
        f"{way.source.store.uri} has {own} commits of its own since READY, or the target's were "
        "cleaned up: the net change comes back in one commit, under a number of its own"
    )
    last = way.locked_version - 1
    if not way.by_reference:
        way.copy(way.target.segment(last), resumed=True)
    theirs = way.target.snapshot(last)
    return _commit(way.setting, way.source, theirs, way.rewrite, state)


def bring_existing(
    setting: Setting, source: DeltaLog, target: DeltaLog, state: TableState
) -> tuple[TableState, int, int]:
    """Bring back what a target of its own has; return the source, and what was copied."""
    segment = target.segment()
    read = [*segment.deltas, *(segment.checkpoint.files if segment.checkpoint else ())]
    engine = setting.engine(sum(file.size_bytes for file in read) // 1_000, 0)
    totals = engine.copy(
        CopyPlan(target.store.config, source.store.config, segment, Unchanged(), True),
        setting.observer,
    )
    after = _commit(setting, source, target.snapshot_of(segment), Unchanged(), state)
    return after, totals.objects, totals.bytes


def own_commits(way: Way, state: TableState) -> int:
    """Count the source's commits since READY, and refuse where one of them changed data."""
    listing = load.list_log(way.source.store, way.ready_version)
    wanted = range(way.ready_version + 1, state.version + 1)
    lost = [version for version in wanted if version not in listing.commits]
    if lost:
        raise _diverged(way, f"its commit {lost[0]} was cleaned up, so nobody knows what it did")
    for file, body in load.contents(way.source.store, [listing.commits[v] for v in wanted]):
        lines = Lines()
        lines.read(body, file.path)
        if commits.mark_of(lines.commit_info) is not None:
            continue
        # What was brought when numbers still matched isn't the source's own.
        if _changes_data(lines) and not way.was_brought(file.version, body, lines):
            raise _diverged(way, f"its version {file.version} changed data")
    return len(wanted)


def _changes_data(lines: Lines) -> bool:
    # A flag that isn't there says that data may have changed.
    tables = (lines.adds, lines.removes)
    return any(pc.any(pc.fill_null(table["dataChange"], True)).as_py() for table in tables)


def _diverged(way: Way, why: str) -> Diverged:
    return Diverged(
        f"{way.source.store.uri} and {way.target.store.uri} have gone separate ways",
        cause=f"the source has commits of its own since READY, and {why}",
        remedy="Lakeferry won't choose between them: write the source's own changes to the target, "
        "undo them at the source (RESTORE), or keep the redirect",
        location=way.source.store.uri,
        target=way.target.store.uri,
    )


def _commit(
    setting: Setting, source: DeltaLog, theirs: Snapshot, rewrite: Rewrite, state: TableState
) -> TableState:
    mine = source.snapshot(state.version)
    redirect = dialects.read(mine.protocol, mine.metadata, source.store.uri)
    assert redirect is not None
    bare = commits.bare(theirs.protocol, theirs.metadata, redirect.journal)
    after = bare.carrying(redirect.in_state(State.READY))
    change = _change(setting, mine, theirs, rewrite, source.store.uri, after)
    if change.is_empty:
        return state
    protocol_changes = after.protocol.unordered != mine.protocol.unordered
    marks = (row_ids.high_water_mark(each.domains) for each in (mine, theirs))
    move_id = redirect.journal.move_id if redirect.journal else None
    result = source.commit(
        Transaction(
            commits.OPERATION,
            setting.new_id(),
            {"state": "SYNC", "targetVersion": str(theirs.version)},
            protocol=after.protocol if protocol_changes else None,
            metadata=after.metadata if change.metadata_changes else None,
            domains=change.domains,
            txns=change.txns,
            adds=change.adds if change.adds.num_rows else None,
            removes=change.removes if change.removes.num_rows else None,
            reads=Reads.FILES,
            row_ids_above=max(marks),
            info={commits.MARK: {"state": "SYNC", "moveId": move_id}},
        ),
        TableState(mine.version, mine.protocol, mine.metadata, mine.commit_info),
    )
    if isinstance(result, Conflict):
        raise result.error()
    return source.state()


def _change(
    setting: Setting,
    mine: Snapshot,
    theirs: Snapshot,
    rewrite: Rewrite,
    root: str,
    after: commits.Bare,
) -> _Change:
    coming = _rewritten(theirs.files, rewrite)
    my_keys, their_keys = _keys(mine.files, root), _keys(coming, root)
    adds = coming.filter(pc.invert(pc.is_in(their_keys, value_set=my_keys)))
    gone = mine.files.filter(pc.invert(pc.is_in(my_keys, value_set=their_keys)))
    domains = [
        domain
        for name, domain in theirs.domains.items()
        if name != row_ids.DOMAIN and mine.domains.get(name) != domain
    ]
    domains += [
        DomainMetadata(name, domain.configuration, removed=True)
        for name, domain in mine.domains.items()
        if name not in theirs.domains
    ]
    return _Change(
        _fresh(adds),
        _removes(gone, setting.clock()),
        tuple(txn for app, txn in theirs.txns.items() if mine.txns.get(app) != txn),
        tuple(domains),
        after.metadata != commits.plain(mine.metadata)
        or after.protocol.unordered != mine.protocol.unordered,
    )


def _rewritten(table: pa.Table, rewrite: Rewrite) -> pa.Table:
    paths = rewrite(table["path"].combine_chunks().cast(pa.string()))
    table = _with_column(table, "path", paths)
    vectors = table["deletionVector"].combine_chunks()
    if vectors.null_count == len(vectors):
        return table
    rows = vectors.to_pylist()
    there = [row for row in rows if row is not None]
    new = iter(
        rewrite_vectors([(row["storageType"], row["pathOrInlineDv"]) for row in there], rewrite)
    )
    for row in there:
        row["storageType"], row["pathOrInlineDv"] = next(new)
    return _with_column(table, "deletionVector", pa.array(rows, vectors.type))


def _keys(table: pa.Table, root: str) -> pa.Array:
    return files.keys(
        table["path"].combine_chunks(), table["deletionVector"].combine_chunks(), root
    )


def _fresh(adds: pa.Table) -> pa.Table:
    """Return added files without the row ids that they had elsewhere."""
    rows = adds.num_rows
    for name in ("baseRowId", "defaultRowCommitVersion"):
        adds = _with_column(adds, name, pa.nulls(rows, pa.int64()))
    return _with_column(adds, "dataChange", pa.array([True] * rows, pa.bool_()))


def _removes(gone: pa.Table, now_ms: int) -> pa.Table:
    rows = gone.num_rows
    columns: dict[str, pa.Array | pa.ChunkedArray] = {}
    for column in files.REMOVE:
        if column.name == "deletionTimestamp":
            columns[column.name] = pa.array([now_ms] * rows, column.type)
        elif column.name in ("dataChange", "extendedFileMetadata"):
            columns[column.name] = pa.array([True] * rows, column.type)
        elif column.name in gone.column_names:
            columns[column.name] = gone[column.name].cast(column.type)
        else:
            columns[column.name] = pa.nulls(rows, column.type)
    return pa.table(columns, schema=files.REMOVE)


def _with_column(table: pa.Table, name: str, values: pa.Array) -> pa.Table:
    return table.set_column(table.schema.get_field_index(name), name, values)
