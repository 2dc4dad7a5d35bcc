"""Locks the target of a redirect that is to end: its *M+1* says DROPPING.

All writes go to the target, so this stops them. The lock is permanent: two writable tables with
one id are dangerous.
"""

from __future__ import annotations

from dataclasses import replace

from lakeferry.errors import (
    CatalogManaged,
    CorruptLog,
    InvalidInput,
    LakeferryError,
    RedirectIllegalTransition,
    RedirectTargetMissing,
    RedirectTargetReplaced,
    TableNotFound,
)
from lakeferry.log import actions, protocols
from lakeferry.log.conflicts import Conflict
from lakeferry.log.replay import TableState as TableState
from lakeferry.redirect import dialects, read_entry, received_entries, redirect_commits, steps
from lakeferry.redirect.disable import lost_files, source_divergence, target_removal
from lakeferry.redirect.disable.withdrawal import Withdrawal
from lakeferry.redirect.disable.withdrawn_target import is_closed
from lakeferry.redirect.entry import Journal, Redirect
from lakeferry.redirect.following_errors import target_missing
from lakeferry.redirect.states import RedirectState
from lakeferry.storage.uris import same_place, shell_safe
from lakeferry.table.put_commit import Committed

_MAX_ATTEMPTS = 10
_REPLACED = (RedirectTargetReplaced, RedirectTargetMissing, CorruptLog)
"""The errors which mean that the target isn't the table that moved."""


def lock_target(way: Withdrawal) -> None:
    """Commit DROPPING on top of the target's newest version, unless it is locked already."""
    txn_id = way.setting.new_id()
    conflict: Conflict | None = None
    for _ in range(_MAX_ATTEMPTS):
        try:
            state = way.target_state()
            way.check_lineage()
        except _REPLACED:
            # It was replaced while we put the lock there.
            if conflict is not None:
                _retract(way, conflict.version, txn_id)
                way.check_lineage()
            raise
        if (lock := own_lock(way, state)) is not None:
            way.follow(lock)
            way.locked_version = state.version
            target_removal.check_removal(way)
            lost_files.fill_source(way, state.version - 1)
            return
        read_entry.check_no_stray(state.protocol, state.metadata, way.target.store.uri)
        # A lock is permanent, so it isn't set if source and target have diverged.
        source_divergence.own_commits_since_ready(way, way.source.state())
        if conflict is None:
            target_removal.check_removal(way)
        if not way.filled:
            lost_files.fill_source(way, state.version)
        result = _put_lock(way, state, txn_id)
        if isinstance(result, Committed):
            try:
                way.check_lineage()
            except _REPLACED:
                # Only for these errors: otherwise another process may rely on the lock.
                _retract(way, result.version, txn_id)
                raise
            way.locked_version = result.version
            place, dropping = way.target.store.uri, RedirectState.DROPPING
            way.setting.step(steps.commit_step(place, result.version, dropping))
            return
        conflict = result
    assert conflict is not None
    raise conflict.error()


def _put_lock(way: Withdrawal, state: TableState, txn_id: str) -> Committed | Conflict:
    """Commit the lock on top of ``state`` of the target."""
    entry = redirect_commits.lock(
        way.source.store.uri,
        way.target.store.uri,
        RedirectState.DROPPING,
        replace(
            way.journal,
            protocol=protocols.versions(state.protocol),
            returns=way.data,
            removes_target=way.removes_target,
            compares=way.compares,
        ),
    )
    received_entries.locked(way.target.store, entry)
    # Remove an old entry that a RESTORE brought back.
    configuration = dialects.without_redirect(state.metadata)
    if way.managed is not None:
        # The catalog looks at these when a protocol changes. By name they may have got other
        # values, or be gone since a RESTORE of a version from before the move.
        configuration |= way.managed.properties
    plain = actions.changed(state.metadata, configuration=configuration)
    after = redirect_commits.Bare(state.protocol, plain).carrying(entry)
    move_id = way.journal.move_id
    wanted = redirect_commits.transition(state, after, RedirectState.DROPPING, move_id, txn_id)
    try:
        result = way.target.commit(wanted, state)
    except (InvalidInput, TableNotFound) as refused:
        if way.managed is None:
            raise
        raise _refusal(way, refused) from refused
    received_entries.locked(way.target.store, entry)
    return result


def _refusal(way: Withdrawal, refused: LakeferryError) -> LakeferryError:
    """Return the error for a catalog that doesn't accept the lock; nothing has changed then."""
    home, target = way.source.store.uri, way.redirect.target
    if isinstance(refused, TableNotFound):
        return target_missing(home, str(target), refused)
    return CatalogManaged(
        f"the redirect of {home} can't be disabled",
        cause=f"the catalog refuses the commit that locks {target} ({refused}); nothing was "
        "changed",
        remedy="continue to use the table, by its old path or by its name, and ask the catalog's "
        "administrator whether it accepts the table feature redirectWriterOnly",
        features=["catalogManaged"],
        name=target.name if target is not None else None,
        location=home,
    )


def _retract(way: Withdrawal, version: int, txn_id: str) -> None:
    """Delete our lock from another table that replaced the target just before the commit.

    A catalog is asked for a table by its id, so no other managed table gets the lock.
    """
    if way.managed is not None:
        return
    redirect_commits.retract(way.target.store, version, txn_id, way.journal.move_id)


def own_lock(way: Withdrawal, state: TableState) -> Journal | None:
    """Return this withdrawal's lock, if the target has it; refuse another redirect.

    An entry that was written for the source is an old one, which a RESTORE at the target
    has brought back. It is ignored.
    """
    place = way.target.store.uri
    found = read_entry.read(state.protocol, state.metadata, place)
    if found is None:
        return None
    # Anyone who received the table's history knows the move's id and could forge an entry.
    arrived = not received_entries.counts(way.target.store, found)
    journal = found.journal
    if journal is not None and found.is_target(place) and not arrived:
        is_lock = found.state is RedirectState.DROPPING and journal.move_id == way.journal.move_id
        if is_lock:
            return journal
    home = way.source.store.uri
    if found.source is not None and same_place(found.source, home) and not arrived:
        return None
    if is_closed(found, place) and not arrived:
        raise RedirectIllegalTransition(
            f"{place}, to which {home} leads, is closed",
            cause=f"it was the target of {found.source} too, and its rows were brought back to "
            "that source",
            remedy=f"'lakeferry redirect disable {shell_safe(home)} --abandon-target' makes "
            f"{home} an ordinary table again, with the rows that it had at READY; then disable "
            f"the redirect of {found.source} too",
            location=home,
            target=place,
            state=found.state.value,
        )
    # A managed table is opened by its name alone.
    opened = shell_safe(place) if way.managed is None else way.redirect.target
    raise RedirectIllegalTransition(
        f"{place} has a redirect of its own",
        cause=f"it leads to {found.target or 'nowhere'}, its state is {found.state.value}",
        remedy=f"end that redirect first: lakeferry redirect {_ending(found, arrived)} "
        f"{opened}; then run the same command again",
        location=place,
        state=found.state.value,
    )


def _ending(redirect: Redirect, arrived: bool) -> str:
    """Return the command that ends a redirect, depending on its state."""
    if redirect.state is RedirectState.ENABLING and not arrived:
        return "thaw" if redirect.is_frozen else "cancel"
    return "disable"
