"""Putting commits: one winner for each version, and no doubt about who it was.

The store's put-if-absent decides. When the name is taken, what is there is
compared with what we sent: a client below that retried may have won against
itself. When the answer is lost, the same comparison settles it; only if the
store can't be asked either is the outcome unknown, and then that is said.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from lakeferry import __version__
from lakeferry.errors import (
    CommitStateUnknown,
    CorruptLog,
    ObjectNotFound,
    StorageError,
    StorageUnavailable,
)
from lakeferry.log import checksum, commit, paths, timestamps
from lakeferry.log.actions import DomainMetadata
from lakeferry.log.commit import CommitPlan, Conflict, Head, Transaction
from lakeferry.log.lines import Lines
from lakeferry.log.replay import State
from lakeferry.storage import Store

ENGINE = f"Lakeferry/{__version__}"
MAX_ATTEMPTS = 1_000
"""How many commits of others we follow before giving up; each attempt is progress for somebody."""
_MAX_ASKS = 5


@dataclass(frozen=True, slots=True)
class Committed:
    """A commit that is in the log."""

    version: int
    body: bytes
    head: Head


def commit_transaction(
    store: Store, transaction: Transaction, head: Head, clock: Callable[[], int]
) -> Committed | Conflict:
    """Commit on top of ``head``, or of whatever came after it, as far as the rules allow."""
    for _ in range(MAX_ATTEMPTS):
        planned = commit.plan(transaction, head, clock(), ENGINE)
        winner = put_commit(store, planned.path, planned.body)
        if winner is None:
            _put_checksum(store, planned)
            return Committed(planned.version, planned.body, planned.head)
        lines = Lines()
        lines.read(winner, planned.path)
        after = commit.rebase(transaction, head, lines, store.uri)
        if isinstance(after, Conflict):
            return after
        head = _complete(store, after, transaction)
    return Conflict(
        head.version,
        "too_many_attempts",
        f"{MAX_ATTEMPTS} commits of others came first",
    )


def backfill(store: Store, version: int, body: bytes) -> Conflict | None:
    """Put the commit of ``version`` as it is; the same bytes there already are fine."""
    winner = put_commit(store, paths.commit(version), body)
    if winner is None:
        return None
    lines = Lines()
    lines.read(winner, paths.commit(version))
    return Conflict(version, "version_taken", "another commit is there", lines.commit_info)


def put_commit(store: Store, path: str, body: bytes) -> bytes | None:
    """Put a commit; ``None`` means that ours is there, else what is there instead is returned."""
    in_doubt = False
    for _ in range(_MAX_ASKS):
        try:
            if store.put_if_absent(path, body):
                return None
        except StorageError as lost:
            # A request whose answer was lost may still be under way. From then on no
            # failure can say that nothing was committed.
            if in_doubt:
                raise _unknown(path, str(lost)) from lost
            if not lost.fields.get("outcome_unknown"):
                raise
            in_doubt = True
        try:
            there = store.get(path)
        except ObjectNotFound:
            # Nothing is there yet: ask again, with the same bytes.
            continue
        except StorageError as down:
            raise _unknown(path, str(down)) from down
        return None if there == body else there
    raise _unknown(path, "the store kept losing its answer")


def head_of(
    store: Store,
    state: State,
    transaction: Transaction,
    domains: Mapping[str, DomainMetadata],
) -> Head:
    """Return ``state`` as a head, with its time and its checksum read where the table has them."""
    info = state.commit_info
    moment = info.in_commit_timestamp if info else None
    bare = Head(state.version, state.protocol, state.metadata, moment, domains)
    return _complete(store, bare, transaction)


def _complete(store: Store, head: Head, transaction: Transaction) -> Head:
    """Fill in what the next commit needs of this one and the log has in other files."""
    try:
        known = checksum.decode_checksum(store.get(paths.checksum(head.version)))
    except (ObjectNotFound, CorruptLog):
        known = None
    moment = head.commit_time_ms
    if moment is None and timestamps.in_commit_timestamps(head.metadata) is not None:
        moment = known.in_commit_timestamp if known else None
        if moment is None:
            moment = _commit_time(store, head.version)
    elif moment is None and _keeps_time(transaction):
        # The first in-commit timestamp must lie after the file time of the commit before.
        moment = store.head(paths.commit(head.version)).modified_ms
    return replace(head, commit_time_ms=moment, checksum=known)


def _keeps_time(transaction: Transaction) -> bool:
    metadata = transaction.metadata
    return metadata is not None and timestamps.in_commit_timestamps(metadata) is not None


def _commit_time(store: Store, version: int) -> int | None:
    path = paths.commit(version)
    lines = Lines()
    try:
        lines.read(store.get(path), path)
    except ObjectNotFound:
        return None
    return lines.commit_info.in_commit_timestamp if lines.commit_info else None


def _put_checksum(store: Store, planned: CommitPlan) -> None:
    """Write the checksum file, if the table has them; the commit stands without it."""
    known = planned.head.checksum
    if known is None:
        return
    try:
        store.put_if_absent(paths.checksum(planned.version), checksum.encode_checksum(known))
    except StorageUnavailable:
        # The commit is made and confirmed; a missing checksum file breaks nobody.
        return


def _unknown(path: str, why: str) -> CommitStateUnknown:
    return CommitStateUnknown(
        f"whether {path} was committed isn't known",
        cause=why,
        remedy=f"when the store answers again, look whether {path} is there and is ours",
        path=path,
    )
