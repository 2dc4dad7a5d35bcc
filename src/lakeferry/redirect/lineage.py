"""Checks that the table at a redirect's target is still the table that moved.

A path or a name stays when the table behind it is deleted and another one is created
there. So a client that follows a redirect checks the target's history. The id isn't enough:
CREATE OR REPLACE gives a table another id, and a copy of the source has the same one.

* A target that was created by a move is recognized by the commit that opened it, the
  target's *N+1*: it names the move. That costs one GET. If log cleanup has deleted that
  commit, its ``txn`` action is looked up in the newest version: ``txn`` actions survive
  checkpoints, log cleanup, CREATE OR REPLACE and RESTORE.
* A target that existed before is recognized by the digest of its newest commit at READY;
  if that commit was cleaned up, by its table id.
* Redirects of other programs record nothing, so nothing can be checked.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from lakeferry.errors import ObjectNotFound, RedirectTargetReplaced
from lakeferry.log import paths
from lakeferry.log.actions import Txn
from lakeferry.log.lines import Lines
from lakeferry.redirect import dialects, read_entry, redirect_commits
from lakeferry.redirect.entry import Data, Journal, Redirect, TargetCommit
from lakeferry.redirect.states import RedirectState
from lakeferry.storage import Store
from lakeferry.storage.uris import shell_safe
from lakeferry.table import DeltaLog
from lakeferry.table.log_source import LogSource

APP_ID = "lakeferry.redirect:"
"""Prefix of the application id in a move's ``txn`` action; the id of the move follows."""
_NEVER_EXPIRES_MS = 253_402_300_799_999
"""The end of the year 9999. ``delta.setTransactionRetentionDuration`` deletes ``txn`` actions
with an old ``lastUpdated``; delta-spark also deletes those without one."""


@dataclass(frozen=True, slots=True)
class Anchor:
    """A commit of the moved table. If it is still there, the table wasn't replaced."""

    version: int
    sha256: str

    def holds(self, store: LogSource) -> bool:
        """Return whether the commit is still there with the same bytes; costs one GET."""
        body = _body(store, self.version)
        return body is not None and _digest(body) == self.sha256


def opening_txns(journal: Journal, version: int) -> tuple[Txn, ...]:
    """Return the ``txn`` action of version *N+1*, for the commits at source and target."""
    if not journal.traced or journal.move_id is None:
        return ()
    return (Txn(f"{APP_ID}{journal.move_id}", version, _NEVER_EXPIRES_MS),)


def newest_commit(target: DeltaLog) -> TargetCommit:
    """Return the newest commit of an existing target, which identifies it from now on."""
    state = target.state()
    digest = commit_digest(target.source, state.version)
    return TargetCommit(state.version, state.metadata.id, digest)


def commit_digest(store: LogSource, version: int) -> str | None:
    """Return the digest of a version's commit, or ``None`` if it doesn't exist."""
    body = _body(store, version)
    return None if body is None else _digest(body)


def check_lineage(
    redirect: Redirect, source: str, table_id: str, target: DeltaLog
) -> Anchor | None:
    """Refuse a target that isn't the table that moved; return a commit that identifies it.

    ``source`` is the place of the table that has the redirect, ``table_id`` its id.
    Returns ``None`` if nothing is recorded, or if the commit was cleaned up. Raises the
    error of reading the target if it isn't a table.
    """
    journal = redirect.journal
    if journal is None or not redirect.state.sends_readers_on:
        return None
    if journal.data is Data.EXISTING:
        why, anchor = _of_existing(journal, target)
    elif journal.ready_version is None:
        return None
    else:
        why, anchor = _of_moved(journal, table_id, target)
    if why is not None:
        raise replaced(source, target.store.uri, why)
    return anchor


def is_recorded(redirect: Redirect) -> bool:
    """Return whether a redirect records what identifies its target."""
    journal = redirect.journal
    if journal is None:
        return False
    if journal.data is Data.EXISTING:
        return journal.target_commit is not None
    return journal.ready_version is not None


def is_opened(store: Store, version: int, move_id: str | None) -> bool:
    """Return whether the target has the commit that opened it for a move; costs one GET."""
    found = redirect_commits.read_commit(store, version)
    return found is not None and opens_target(found[1], move_id)


def replaced(source: str, target: str, why: str) -> RedirectTargetReplaced:
    """Return the error for a target that was replaced by another table."""
    return RedirectTargetReplaced(
        f"the redirect of {source} leads to {target}, where there is another table now",
        cause=why,
        remedy=f"if the table that moved was kept elsewhere, put it back there; {way_out(source)}",
        location=source,
        target=target,
    )


def way_out(source: str) -> str:
    """Return the remedy for a lost target."""
    return (
        f"if the target is lost, 'lakeferry redirect disable {shell_safe(source)} "
        "--abandon-target' makes the source an ordinary table again, without what was written to "
        "the target since READY"
    )


def _of_moved(
    journal: Journal, table_id: str, target: DeltaLog
) -> tuple[str | None, Anchor | None]:
    """Return why the table isn't the moved one, or a commit that identifies it."""
    version = journal.ready_version
    assert version is not None
    found = redirect_commits.read_commit(target.source, version)
    if found is not None:
        if opens_target(found[1], journal.move_id):
            return None, Anchor(version, _digest(found[0]))
        return f"its version {version} isn't the commit that opened this move's target", None
    there = target.small_snapshot()
    if there.version < version:
        return f"its newest version is {there.version}, but the move ended at {version}", None
    entry = read_entry.read(there.protocol, there.metadata, target.store.uri)
    own = entry.journal if entry is not None else None
    # If the target's own entry is a lock, it has no ready_version.
    if own is not None and own.move_id == journal.move_id and own.ready_version is not None:
        return "it is a copy of the source, with the source's redirect", None
    if journal.traced:
        if f"{APP_ID}{journal.move_id}" not in there.txns:
            return "it doesn't have the transaction of this move", None
    elif there.metadata.id != table_id:
        # Moved by an older Lakeferry, which recorded only the id.
        why = f"its table id is {there.metadata.id}, but the table that moved has the id {table_id}"
        return why, None
    return None, _newest(target.source, there.version)


def _of_existing(journal: Journal, target: DeltaLog) -> tuple[str | None, Anchor | None]:
    """Return why the table isn't the existing target of the redirect, or a commit of it."""
    known = journal.target_commit
    if known is None:
        return None, None
    body = None if known.sha256 is None else _body(target.source, known.version)
    if body is not None and known.sha256 is not None:
        if _digest(body) == known.sha256:
            return None, Anchor(known.version, known.sha256)
        return f"its version {known.version} isn't what it was at READY", None
    state = target.state()
    if state.version < known.version:
        why = f"its newest version is {state.version}, but it had version {known.version} at READY"
        return why, None
    if state.metadata.id != known.table_id:
        return f"its table id is {state.metadata.id}, but was {known.table_id} at READY", None
    return None, _newest(target.source, state.version)


def opens_target(lines: Lines, move_id: str | None) -> bool:
    """Return whether a commit opened the target of a move.

    The source's commit of the same version has the same mark, but also the redirect entry.
    """
    mark = {"state": RedirectState.READY.value, "moveId": move_id}
    if redirect_commits.mark_of(lines.commit_info) != mark or lines.metadata is None:
        return False
    return dialects.without_redirect(lines.metadata) == dict(lines.metadata.configuration)


def _newest(store: LogSource, version: int) -> Anchor | None:
    body = _body(store, version)
    return None if body is None else Anchor(version, _digest(body))


def _body(store: LogSource, version: int) -> bytes | None:
    try:
        return store.get(paths.commit(version))
    except ObjectNotFound:
        return None


def _digest(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()
