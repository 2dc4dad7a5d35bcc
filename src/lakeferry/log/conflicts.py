"""Decides whether a transaction may follow a commit that somebody else made first.

Implements Delta's conflict rules for the kinds of commit that Lakeferry makes. :func:`rebase`
returns the head after that commit, or the :class:`Conflict` that prevents ours. A conflict is a
result: the caller decides whether to start again.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from lakeferry.errors import CommitConflict
from lakeferry.log import features, file_identity
from lakeferry.log.actions import CommitInfo
from lakeferry.log.commit import LogHead, Reads, Transaction, with_domains
from lakeferry.log.features import Drop
from lakeferry.log.lines import Lines

_OF_FILES = frozenset(
    name for name, row in features.FEATURES.items() if row.drop in (Drop.REWRITE, Drop.FILE_ACTIONS)
)
_OF_DOMAINS = frozenset({"domainMetadata", "rowTracking", "clustering"})
"""Features whose use shows in a commit: in its files, or in its metadata domains."""


@dataclass(frozen=True, slots=True)
class Conflict:
    """Why a transaction can't follow the commit that won."""

    version: int
    reason: str
    detail: str
    winner: CommitInfo | None = None

    def error(self) -> CommitConflict:
        """Return the conflict as an error, for callers that can't continue."""
        operation = (self.winner.operation if self.winner else None) or "another commit"
        return CommitConflict(
            f"another writer committed version {self.version} first ({operation})",
            cause=self.detail,
            remedy="'lakeferry history TABLE --limit 5' shows that commit; then run the same "
            "command again",
            version=self.version,
            reason=self.reason,
            winner=None if self.winner is None else dict(self.winner.values),
        )


def rebase(transaction: Transaction, head: LogHead, winner: Lines, root: str) -> LogHead | Conflict:
    """Return the head after ``winner``, the commit right after ``head``, or the conflict with it.

    ``root`` is the table's URI, needed to compare paths.
    """
    version = head.version + 1
    conflict = _conflict(transaction, head, winner, root)
    if conflict is not None:
        return Conflict(version, conflict[0], conflict[1], winner.commit_info)
    info = winner.commit_info
    return LogHead(
        version,
        head.protocol,
        head.metadata,
        info.in_commit_timestamp if info else None,
        with_domains(head.domains, tuple(winner.domains.values())),
        None,
    )


def _conflict(
    transaction: Transaction, head: LogHead, winner: Lines, root: str
) -> tuple[str, str] | None:
    if winner.protocol is not None:
        return "protocol_changed", "it changes the protocol"
    if winner.metadata is not None:
        return "metadata_changed", "it changes the metadata"
    for domain in transaction.domains:
        if domain.domain in winner.domains:
            return "domain_changed", f"it changes the metadata domain {domain.domain}"
    for txn in transaction.txns:
        if txn.app_id in winner.txns:
            return "transaction_changed", f"it moves the transaction id of {txn.app_id}"
    touches_files = bool(winner.adds.num_rows or winner.removes.num_rows)
    if transaction.reads is Reads.ROWS and changes_data(winner):
        return "data_changed", "it changes data that this transaction was made from"
    if transaction.reads is Reads.FILES and touches_files:
        return "data_changed", "it changes the files that this transaction was made from"
    dropped = _dropped(transaction, head)
    if touches_files and dropped & _OF_FILES:
        return "data_changed", "it may use a feature that this transaction drops"
    if winner.domains and dropped & _OF_DOMAINS:
        return "domain_changed", "it may use a feature that this transaction drops"
    ours = [table for table in (transaction.adds, transaction.removes) if table is not None]
    if ours:
        mine = pa.concat_arrays([_paths(table, root) for table in ours])
        for table in (winner.adds, winner.removes):
            touched = pc.filter(mine, pc.is_in(mine, value_set=_paths(table, root)))
            if len(touched):
                return "file_changed", f"it changes the file {touched[0].as_py()} too"
    return None


def _dropped(transaction: Transaction, head: LogHead) -> frozenset[str]:
    """Return the features that a transaction drops."""
    if transaction.protocol is None:
        return frozenset()
    kept = features.implied_features(transaction.protocol)
    return features.implied_features(head.protocol) - kept


def changes_data(commit: Lines) -> bool:
    """Return whether a commit may change data; without the flag ``dataChange`` it may."""
    return any(
        bool(pc.any(pc.fill_null(table["dataChange"], True)).as_py())
        for table in (commit.adds, commit.removes)
    )


def _paths(table: pa.Table, root: str) -> pa.Array:
    return file_identity.canonical_paths(table["path"].combine_chunks(), root)
