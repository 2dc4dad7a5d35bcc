"""Puts commits: exactly one writer wins each version.

The store's put-if-absent decides. If the name is taken, the existing commit is
compared with ours: the underlying client may have retried a put that had already
succeeded. If the answer is lost, the same comparison settles it. If that fails too,
an error says that the outcome is unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from lakeferry.errors import (
    CatalogUnavailable,
    CommitStateUnknown,
    CorruptLog,
    ObjectNotFound,
    StorageError,
)
from lakeferry.log import checksum, commit, conflicts, features, paths, timestamps
from lakeferry.log.actions import DomainMetadata
from lakeferry.log.commit import CommitPlan, LogHead, Transaction
from lakeferry.log.conflicts import Conflict
from lakeferry.log.lines import Lines
from lakeferry.log.replay import TableState
from lakeferry.storage import Store
from lakeferry.storage.uris import shell_safe
from lakeferry.table import load
from lakeferry.version import LAKEFERRY_VERSION

ENGINE = f"Lakeferry/{LAKEFERRY_VERSION}"
_MAX_ATTEMPTS = 100
"""How often we retry after other writers' commits before we give up."""
_MAX_ASKS = 5


@dataclass(frozen=True, slots=True)
class Committed:
    """A commit that is in the log."""

    version: int
    body: bytes
    head: LogHead


def commit_transaction(
    store: Store, transaction: Transaction, head: LogHead, clock: Callable[[], int]
) -> Committed | Conflict:
    """Commit on top of ``head`` or of later commits, as far as Delta's rules allow."""
    read_version = head.version
    for _ in range(_MAX_ATTEMPTS):
        found = _follow(store, transaction, head)
        if isinstance(found, Conflict):
            return found
        head, has_commit = found
        planned = commit.plan_commit(transaction, head, clock(), ENGINE, read_version)
        _check_asks(store, head, planned.head)
        if put_commit(store, planned.path, planned.body) is not None:
            continue
        if has_commit and not _is_there(store, paths.commit(head.version)):
            return _cleaned(planned.version)
        _put_checksum(store, planned)
        return Committed(planned.version, planned.body, planned.head)
    return Conflict(
        head.version + 1, "too_many_attempts", f"others came first {_MAX_ATTEMPTS} times"
    )


def commit_exactly(
    store: Store, transaction: Transaction, head: LogHead, now_ms: int
) -> Committed | Conflict:
    """Commit as the version right after ``head``, with that time, or not at all.

    Idempotent, also across processes: the bytes depend only on the arguments.
    """
    wanted = planned(store, transaction, head, now_ms)
    winner = put_commit(store, wanted.path, wanted.body)
    if winner is not None:
        lines = Lines(keeps_files=False)
        lines.read(winner, wanted.path)
        return Conflict(
            wanted.version, "version_taken", "another commit is there", lines.commit_info
        )
    _put_checksum(store, wanted)
    return Committed(wanted.version, wanted.body, wanted.head)


def planned(store: Store, transaction: Transaction, head: LogHead, now_ms: int) -> CommitPlan:
    """Return the plan of a transaction's commit right after ``head``; write nothing."""
    wanted = commit.plan_commit(transaction, _complete(store, head, transaction), now_ms, ENGINE)
    _check_asks(store, head, wanted.head)
    return wanted


def _check_asks(store: Store, *heads: LogHead) -> None:
    """Refuse to commit to a managed table without its catalog, or to make a table one."""
    for head in heads:
        features.check_writable(head.protocol, asks_catalog=store.asks_catalog)


def _follow(
    store: Store, transaction: Transaction, head: LogHead
) -> tuple[LogHead, bool] | Conflict:
    """Return the newest head and whether its commit is in the log, or the conflict.

    One listing shows all commits after ``head``. A missing commit was cleaned up:
    then the log continues at a later version, and no reader would see a commit
    that is put into the gap.
    """
    listing = load.list_log(store, head.version)
    newest = max(listing.newest_version, head.version)
    winners = [listing.commits.get(version) for version in range(head.version + 1, newest + 1)]
    if None in winners:
        return _cleaned(head.version + 1 + winners.index(None))
    has_commit = newest in listing.commits
    try:
        for file, data in load.contents(store, [file for file in winners if file]):
            lines = Lines()
            lines.read(data, file.path)
            after = conflicts.rebase(transaction, head, lines, store.uri)
            if isinstance(after, Conflict):
                return after
            head = after
    except load.Vanished:
        return _cleaned(head.version + 1)
    return _complete(store, head, transaction), has_commit


def _cleaned(version: int) -> Conflict:
    return Conflict(version, "history_cleaned", "the log was cleaned up meanwhile")


def _is_there(store: Store, path: str) -> bool:
    try:
        store.head(path)
    except ObjectNotFound:
        return False
    except (StorageError, CatalogUnavailable):
        # The commit is made; this check only detects a log that was cleaned up meanwhile.
        return True
    return True


def backfill(store: Store, version: int, body: bytes) -> Conflict | None:
    """Put the commit of ``version`` unchanged; succeed if the same bytes are there already.

    The caller chooses the order of versions: a log under construction can be opened
    once its first checkpoint or its first commit is put.
    """
    Lines(keeps_files=False).read(body, paths.commit(version))
    winner = put_commit(store, paths.commit(version), body)
    if winner is None:
        return None
    lines = Lines(keeps_files=False)
    lines.read(winner, paths.commit(version))
    return Conflict(version, "version_taken", "another commit is there", lines.commit_info)


def put_commit(store: Store, path: str, body: bytes) -> bytes | None:
    """Put a commit; return ``None`` if ours is there, else the bytes of the existing one."""
    in_doubt = False
    for _ in range(_MAX_ASKS):
        try:
            if store.put_if_absent(path, body):
                return None
        except (StorageError, CatalogUnavailable) as lost:
            # A request whose answer was lost may still succeed later. From then on a
            # failure doesn't prove that nothing was committed.
            if in_doubt:
                raise _unknown(store, path, str(lost)) from lost
            if not lost.fields.get("outcome_unknown"):
                raise
            in_doubt = True
        try:
            there = store.get(path)
        except ObjectNotFound:
            # Nothing is there yet: retry with the same bytes.
            continue
        except (StorageError, CatalogUnavailable) as down:
            raise _unknown(store, path, str(down)) from down
        return None if there == body else there
    raise _unknown(store, path, "the store kept losing its answer")


def head_of(state: TableState, domains: Mapping[str, DomainMetadata]) -> LogHead:
    """Return ``state`` as the head for the next commit."""
    info = state.commit_info
    moment = info.in_commit_timestamp if info else None
    return LogHead(state.version, state.protocol, state.metadata, moment, domains)


def _complete(store: Store, head: LogHead, transaction: Transaction) -> LogHead:
    """Return ``head`` with the values for the next commit that other log files have."""
    try:
        known = checksum.decode_checksum(store.get(paths.checksum(head.version)))
    except (ObjectNotFound, CorruptLog):
        known = None
    moment = head.commit_time_ms
    if timestamps.in_commit_timestamps(head.metadata) is not None:
        moment = moment or (known.in_commit_timestamp if known else None)
        moment = moment or _commit_time(store, head.version)
    elif _keeps_time(transaction):
        # The first in-commit timestamp must be later than the file time of the previous commit.
        moment = _file_time(store, head.version)
    else:
        return replace(head, commit_time_ms=None, checksum=known)
    if moment is None:
        is_there = _is_there(store, paths.commit(head.version))
        why = "has no inCommitTimestamp" if is_there else "was cleaned up"
        raise CorruptLog(
            f"the time of version {head.version} is unknown",
            cause=f"its commit {why}, and each in-commit timestamp has to be later than the one "
            "before",
            remedy="set the property delta.enableInCommitTimestamps to false with the engine that "
            "wrote that commit"
            if is_there
            else f"restore {paths.commit(head.version)} from a copy, or commit once more with "
            "an engine that has the table open",
            version=head.version,
        )
    return replace(head, commit_time_ms=moment, checksum=known)


def _keeps_time(transaction: Transaction) -> bool:
    metadata = transaction.metadata
    return metadata is not None and timestamps.in_commit_timestamps(metadata) is not None


def _commit_time(store: Store, version: int) -> int | None:
    path = paths.commit(version)
    lines = Lines(keeps_files=False)
    try:
        lines.read(store.get(path), path)
    except ObjectNotFound:
        return None
    return lines.commit_info.in_commit_timestamp if lines.commit_info else None


def _file_time(store: Store, version: int) -> int | None:
    try:
        return store.head(paths.commit(version)).modified_ms
    except ObjectNotFound:
        return None


def _put_checksum(store: Store, planned: CommitPlan) -> None:
    """Write the checksum file, if the table uses them; it is optional."""
    known = planned.head.checksum
    if known is None:
        return
    try:
        store.put_if_absent(paths.checksum(planned.version), checksum.encode_checksum(known))
    except (StorageError, CatalogUnavailable):
        # The commit is confirmed; a missing checksum file does no harm.
        return


def _unknown(store: Store, path: str, why: str) -> CommitStateUnknown:
    return CommitStateUnknown(
        f"Lakeferry doesn't know whether {path} was committed",
        cause=why,
        remedy="run the same command again when the store answers: if the commit is there, the "
        "command continues from it or says how to continue; 'lakeferry history "
        f"{shell_safe(store.uri)} --no-follow' "
        "shows it",
        path=path,
    )
