"""Makes the commits of a redirect, at the source and at the target.

A transition is committed at source and target, at the same version. The two commits
differ only in the redirect's entry, so one follows from the other: a process that
resumes a move produces the same bytes again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from lakeferry.errors import CorruptLog, ObjectNotFound
from lakeferry.log import actions, commit, features, paths, protocols
from lakeferry.log.actions import CommitInfo, Metadata, Protocol, Txn
from lakeferry.log.commit import Transaction
from lakeferry.log.conflicts import Conflict
from lakeferry.log.lines import Lines
from lakeferry.log.replay import TableState as TableState
from lakeferry.redirect import dialects, steps
from lakeferry.redirect.entry import (
    Data,
    Dialect,
    Journal,
    Mode,
    Redirect,
    RedirectTarget,
    TargetKind,
)
from lakeferry.redirect.redirect_context import Setting
from lakeferry.redirect.states import RedirectState
from lakeferry.storage import Store
from lakeferry.table import DeltaLog
from lakeferry.table.log_source import LogSource

REDIRECT_OPERATION = "REDIRECT"
MARK = "lakeferryRedirect"
"""The field of ``commitInfo`` that marks the commits of a redirect."""


@dataclass(frozen=True, slots=True)
class Bare:
    """A table without its redirect: what both ends have in common."""

    protocol: Protocol
    metadata: Metadata

    def carrying(self, redirect: Redirect) -> Bare:
        """Return the protocol and the metadata of the table with that redirect."""
        configuration = dict(self.metadata.configuration) | dialects.properties(redirect)
        return Bare(
            protocols.adding(self.protocol, redirect.features),
            actions.changed(self.metadata, configuration=configuration),
        )


def bare(protocol: Protocol, metadata: Metadata, journal: Journal | None) -> Bare:
    """Return a table's protocol and metadata without any redirect."""
    before = journal.protocol if journal is not None else None
    return Bare(
        protocols.without_features(protocol, features.REDIRECT_FEATURES, before),
        actions.changed(metadata, configuration=dialects.without_redirect(metadata)),
    )


def lock(source: str, target: str, state: RedirectState, journal: Journal) -> Redirect:
    """Return the entry that keeps writers away from the target: it leads to the target itself."""
    return Redirect(
        Mode.WRITER_ONLY,
        state,
        TargetKind.OBJECT_STORE,
        RedirectTarget(TargetKind.OBJECT_STORE, target),
        (Dialect.RFC,),
        source,
        (),
        Journal(
            Data.EXISTING,
            journal.protocol,
            move_id=journal.move_id,
            dropping=state is RedirectState.DROPPING,
            returns=journal.returns,
            removes_target=journal.removes_target,
            compares=journal.compares,
        ),
    )


def transition(
    before: TableState,
    after: Bare,
    state: RedirectState,
    move_id: str | None,
    txn_id: str,
    parameters: dict[str, str] | None = None,
    txns: tuple[Txn, ...] = (),
) -> Transaction:
    """Return the transaction that takes a table to ``after``."""
    changes_protocol = after.protocol.unordered != before.protocol.unordered
    return Transaction(
        REDIRECT_OPERATION,
        txn_id,
        {"state": state.value, **(parameters or {})},
        protocol=after.protocol if changes_protocol else None,
        metadata=after.metadata,
        txns=txns,
        info={MARK: {"state": state.value, "moveId": move_id}},
    )


def check_both_ways(log: DeltaLog, state: TableState, redirect: Redirect) -> None:
    """Refuse a redirect whose first or last commit a table can't have; write nothing.

    A table is kept from its writers in between, so that would be late to find out.
    """
    after = Bare(state.protocol, state.metadata).carrying(redirect)
    begun = log.check_commit(transition(state, after, redirect.state, None, ""), state)
    carried = TableState(begun.version, after.protocol, after.metadata)
    without = bare(after.protocol, after.metadata, redirect.journal)
    commit.plan_commit(transition(carried, without, RedirectState.NORMAL, None, ""), begun, 0, "")


def locked_body(commit_info: CommitInfo, locked: Bare) -> bytes:
    """Return the target's commit of the version at which the source began to move."""
    parts = (commit_info, locked.protocol, locked.metadata)
    return b"\n".join(actions.encode_line(part) for part in parts) + b"\n"


def read_commit(store: LogSource, version: int) -> tuple[bytes, Lines] | None:
    """Return a version's commit, as bytes and read, or ``None`` where there is none."""
    path = paths.commit(version)
    try:
        body = store.get(path)
    except ObjectNotFound:
        return None
    lines = Lines()
    lines.read(body, path)
    return body, lines


def retract(store: Store, version: int, txn_id: str, move_id: str | None) -> None:
    """Delete a commit of ours that was put onto another table, which appeared at that moment."""
    found = read_commit(store, version)
    info = found[1].commit_info if found else None
    if info is not None and info.txn_id == txn_id:
        if read_commit(store, version + 1) is not None:
            # Somebody has built on it: without it their table would have a gap.
            return
        store.delete_many([paths.commit(version)])
    # Its checksum file comes after it, perhaps onto the other table alone.
    checksum = paths.checksum(version)
    try:
        ours = (move_id or "").encode() in store.get(checksum)
    except ObjectNotFound:
        return
    if ours:
        store.delete_many([checksum])


def state_after(lines: Lines, version: int, before: TableState) -> TableState:
    """Return a table's state after a commit that was read."""
    return TableState(
        version,
        lines.protocol or before.protocol,
        lines.metadata or before.metadata,
        lines.commit_info,
    )


def mark_of(info: CommitInfo | None) -> dict[str, object] | None:
    """Return what a commit of a redirect says of itself; ``None`` for any other commit."""
    value = info.values.get(MARK) if info is not None else None
    return value if isinstance(value, dict) else None


def commit_time(info: CommitInfo | None, version: int) -> int:
    """Return the time that a commit of ours states."""
    value = info.values.get("timestamp") if info is not None else None
    if not isinstance(value, int):
        raise CorruptLog(
            f"the commit of version {version} doesn't say when it was made",
            cause="its commitInfo has no timestamp, which each commit of a redirect has",
            version=version,
        )
    return value


def without_raw_text(metadata: Metadata) -> Metadata:
    """Return metadata without the text that it was read from."""
    return replace(metadata, raw=None)


def remove_entry(setting: Setting, source: DeltaLog, state: TableState, redirect: Redirect) -> int:
    """Commit the table without its entry and without its feature."""
    after = bare(state.protocol, state.metadata, redirect.journal)
    move_id = redirect.journal.move_id if redirect.journal else None
    wanted = transition(state, after, RedirectState.NORMAL, move_id, setting.new_id())
    result = source.commit(wanted, state)
    if isinstance(result, Conflict):
        raise result.error()
    setting.step(steps.commit_step(source.store.uri, result.version, RedirectState.NORMAL))
    return result.version
