"""Copies a target's changes back in one commit, if version numbers can't match.

The source adds the target's live files that it lacks, and removes those that the
target doesn't have any more. Metadata, protocol, transactions and metadata domains
become the target's. Rows get new ids above all ids that either side has assigned.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from lakeferry.log import file_actions, file_identity, row_ids
from lakeferry.log.actions import CommitInfo, DomainMetadata, Txn
from lakeferry.log.commit import Reads, Transaction
from lakeferry.log.conflicts import Conflict
from lakeferry.log.replay import Snapshot
from lakeferry.log.replay import TableState as TableState
from lakeferry.log.rewrite import Rewrite, rewrite_vectors
from lakeferry.redirect import read_entry, redirect_commits, steps
from lakeferry.redirect.disable.managed_return import ManagedReturn, has_vectors
from lakeferry.redirect.disable.withdrawal import Withdrawal
from lakeferry.redirect.redirect_commits import Bare
from lakeferry.redirect.redirect_context import Setting
from lakeferry.table import DeltaLog

BROUGHT = "SYNC"
"""What a commit that brings changes back says of itself."""
_BROUGHT_VERSION = "targetVersion"


@dataclass(frozen=True, slots=True)
class _Change:
    """The actions of the one commit at the source."""

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


def bring(way: Withdrawal, state: TableState, own: int) -> TableState:
    """Commit the changes of a target that a move created; return the source's new state.

    ``own`` is how many commits of its own the source has since READY.
    """
    way.setting.warn(
        f"{way.source.store.uri} has {own} commits of its own since READY, or commits of "
        "the target were cleaned up: all changes are brought back in one commit with a new "
        "version number"
    )
    last = way.locked_version - 1
    if not way.by_reference:
        way.tell_changes()
        way.target.working_around(way.target.segment(last), partial(way.copy, resumed=True))
    theirs = way.target.snapshot(last)
    way.check_still_there()
    if way.managed is not None:
        back = ManagedReturn(way.managed, way.ready, way.journal.protocol)
        merged = back.merged(
            Bare(theirs.protocol, theirs.metadata),
            Bare(state.protocol, state.metadata),
            vectors=has_vectors(theirs.files),
        )
        theirs = replace(theirs, protocol=merged.protocol, metadata=merged.metadata)
    return commit_net_change(way.setting, way.source, theirs, way.rewrite, state)


def commit_net_change(
    setting: Setting, source: DeltaLog, theirs: Snapshot, rewrite: Rewrite, state: TableState
) -> TableState:
    """Commit at the source what makes it equal to ``theirs``; return its new state."""
    mine = source.snapshot(state.version)
    redirect = read_entry.read(mine.protocol, mine.metadata, source.store.uri)
    assert redirect is not None
    bare = redirect_commits.bare(theirs.protocol, theirs.metadata, redirect.journal)
    after = bare.carrying(redirect)
    change = change_of(setting, mine, theirs, rewrite, source.store.uri, after)
    if change.is_empty:
        return state
    protocol_changes = after.protocol.unordered != mine.protocol.unordered
    marks = (row_ids.high_water_mark(each.domains) for each in (mine, theirs))
    move_id = redirect.journal.move_id if redirect.journal else None
    result = source.commit(
        Transaction(
            redirect_commits.REDIRECT_OPERATION,
            setting.new_id(),
            {"state": BROUGHT, _BROUGHT_VERSION: str(theirs.version)},
            protocol=after.protocol if protocol_changes else None,
            metadata=after.metadata if change.metadata_changes else None,
            domains=change.domains,
            txns=change.txns,
            adds=change.adds if change.adds.num_rows else None,
            removes=change.removes if change.removes.num_rows else None,
            reads=Reads.FILES,
            row_ids_above=max(marks),
            info={redirect_commits.MARK: {"state": BROUGHT, "moveId": move_id}},
        ),
        mine.state,
    )
    if isinstance(result, Conflict):
        raise result.error()
    setting.step(steps.commit_changes(source.store.uri, result.version))
    return source.state()


def brought_version(info: CommitInfo) -> int:
    """Return the version of the target that such a commit has brought back."""
    told = info.values.get("operationParameters")
    text = told.get(_BROUGHT_VERSION) if isinstance(told, dict) else None
    return int(text) if isinstance(text, str) and text.isdecimal() else 0


def change_of(
    setting: Setting,
    mine: Snapshot,
    theirs: Snapshot,
    rewrite: Rewrite,
    root: str,
    after: Bare,
) -> _Change:
    """Return the changes with which the source becomes equal to the target."""
    coming = rewritten_files(theirs.files, rewrite)
    my_keys, their_keys = (
        file_identity.table_keys(mine.files, root),
        file_identity.table_keys(coming, root),
    )
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
        row_ids.without_row_ids(adds, data_change=True),
        file_actions.as_removes(gone, setting.clock(), data_change=True),
        tuple(txn for app, txn in theirs.txns.items() if mine.txns.get(app) != txn),
        tuple(domains),
        after.metadata != redirect_commits.without_raw_text(mine.metadata)
        or after.protocol.unordered != mine.protocol.unordered,
    )


def rewritten_files(table: pa.Table, rewrite: Rewrite) -> pa.Table:
    """Return file actions with the paths and the vectors that a rewrite gives them."""
    paths = rewrite(table["path"].combine_chunks().cast(pa.string()))
    table = file_actions.with_column(table, "path", paths)
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
    return file_actions.with_column(table, "deletionVector", pa.array(rows, vectors.type))
