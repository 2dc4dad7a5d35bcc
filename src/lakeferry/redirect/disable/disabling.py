"""Disables a redirect: goes from READY to NORMAL.

1. The target's *M+1* says DROPPING and locks it. All writes go to the target, so this
   stops them.
2. The data added since READY is copied to the source, then the commits, with the same
   version numbers; commits that change metadata or protocol keep the source's entry.
3. The source's *M+1* says DROPPING, its *M+2* NORMAL.

If the source has its own commits since READY, or the target's commits were cleaned up,
version numbers can't match: then the net change is brought back in one commit
(:mod:`~lakeferry.redirect.disable.net_change`). The target stays locked for ever, because
two writable tables with the same id are dangerous.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

from lakeferry.engine import NOTHING_COPIED
from lakeferry.errors import (
    CatalogUnavailable,
    CorruptLog,
    InvalidInput,
    LakeferryError,
    NotATable,
    RedirectTargetMissing,
    RedirectTargetReplaced,
    TableNotFound,
)
from lakeferry.log.replay import TableState as TableState
from lakeferry.redirect import (
    copy_comparison,
    entry,
    lineage,
    move_lookup,
    read_entry,
    received_entries,
    redirect_commits,
    settling,
    states,
)
from lakeferry.redirect.disable import (
    abandon,
    bring_back,
    bring_back_existing,
    target_lock,
    target_removal,
)
from lakeferry.redirect.disable.source_end import drop_target, remove
from lakeferry.redirect.disable.withdrawal import Withdrawal, disable_command, is_of_move
from lakeferry.redirect.disable.withdrawal import WithdrawalOptions as WithdrawalOptions
from lakeferry.redirect.disable.withdrawn_target import target_after_end, target_place
from lakeferry.redirect.enable import move_record
from lakeferry.redirect.entry import Data, Redirect
from lakeferry.redirect.outcome import Outcome
from lakeferry.redirect.redirect_context import Setting
from lakeferry.redirect.states import RedirectEvent, RedirectState
from lakeferry.table import DeltaLog

_LOOK_BACK = 20
"""How many of the newest commits are searched for an ended redirect, to delete its name."""
_FAR = 1_000
"""The same if the target itself is to be deleted."""


def disable(
    setting: Setting,
    source_uri: str,
    options: WithdrawalOptions = WithdrawalOptions(),  # noqa: B008
) -> Outcome:
    """End a redirect and copy all changes back to the source. Idempotent."""
    if options.abandon_target:
        check_alone(options)
        return abandon.abandon_target(setting, source_uri)
    source = setting.log(source_uri)
    state = source.state()
    redirect = read_entry.read(state.protocol, state.metadata, source_uri)
    if redirect is None:
        return _finish(setting, source, state, options)
    entry.check_own_redirect(redirect, source_uri)
    if redirect.state is not RedirectState.DROPPING:
        states.after(redirect.state, RedirectEvent.DISABLE, source_uri)
    if redirect.journal is None or redirect.journal.data is Data.EXISTING:
        return _disable_existing(setting, source, state, redirect, options)
    if redirect.journal.abandoned:
        version = abandon.finish_abandon(setting, source, state)
        return Outcome(RedirectState.NORMAL, source_uri, str(redirect.target), version, True)
    if move_lookup.leads_nowhere(source, redirect, state.version):
        # The redirect has ended and its old entry came back: there is nothing to copy.
        version = redirect_commits.remove_entry(setting, source, state, redirect)
        settling.settle_version(source, version, setting, disable_command(source_uri))
        return Outcome(RedirectState.NORMAL, source_uri, str(redirect.target), version, True)
    # The record isn't needed since READY; it is left over if settling was interrupted.
    move_record.forget_record(source.store, redirect.journal.move_id)
    return _withdraw(setting, source, redirect, options)


def _withdraw(
    setting: Setting, source: DeltaLog, redirect: Redirect, options: WithdrawalOptions
) -> Outcome:
    """Lock the target that a move has made, bring its changes back, and end the redirect."""
    source_uri = source.store.uri
    began = time.monotonic()
    try:
        target = setting.log(target_place(setting, redirect, source_uri))
    except RedirectTargetMissing:
        # Another process may have ended the redirect meanwhile, and had the target dropped.
        state = source.state()
        if is_of_move(state, source_uri, redirect):
            raise
        version = state.version
        return Outcome(RedirectState.NORMAL, source_uri, str(redirect.target), version, False)
    way = Withdrawal(setting, source, target, redirect, options)
    try:
        target_lock.lock_target(way)
        version = bring_back.bring_changes(way)
    except LakeferryError:
        # Another process may have ended it meanwhile: then its result counts.
        state = source.state()
        if is_of_move(state, source_uri, redirect):
            raise
        version = state.version
        # That process also decides whether the target is deleted.
        way.removes_target = False
    blocked_ms = round((time.monotonic() - began) * 1000)
    settling.settle_version(source, version, setting, disable_command(source_uri))
    setting.removal.drop_returned_uploads(
        source.store, way.returned_names, way.ready_version, version
    )
    way.ended_version = version
    target_removal.clear_up(way)
    return Outcome(
        RedirectState.NORMAL,
        source_uri,
        str(redirect.target),
        version,
        True,
        way.copied.objects,
        way.copied.bytes,
        blocked_ms,
        kept=way.kept,
        by_store_bytes=way.copied.by_store_bytes,
        compared=way.copied.compared if way.compares else None,
    )


def check_alone(options: WithdrawalOptions) -> None:
    """Refuse ``abandon_target`` together with options that need the target."""
    if options.bring_back or options.remove_target or options.data is not None:
        raise InvalidInput(
            "--abandon-target can't be combined with --bring-back, --remove-target or --data",
            cause="these options need the target",
            remedy="leave them out",
        )


def _finish(
    setting: Setting, source: DeltaLog, state: TableState, options: WithdrawalOptions
) -> Outcome:
    """Finish the cleanup of a withdrawal that was interrupted after the source was NORMAL."""
    uri = source.store.uri
    settled = Outcome(RedirectState.NORMAL, uri, None, state.version, False)
    owed = owed_checkpoint(source, state)
    found = unfinished(setting, source, state, options)
    if found is not None:
        target_removal.check_removal(found[0])
    changed = owed is not None and settling.settle_version(
        source, owed, setting, disable_command(source.store.uri)
    )
    if found is None:
        return replace(settled, changed=changed)
    way = found[0]
    changed = target_removal.clear_up(way) or changed
    return replace(settled, target=str(way.redirect.target), changed=changed, kept=way.kept)


def owed_checkpoint(source: DeltaLog, state: TableState) -> int | None:
    """Return the version at which the last redirect ended, if no checkpoint was written since."""
    for _, ended in _ended_redirects(source, state.version, _LOOK_BACK):
        since = (each for each in source.listing().checkpoints if each.version >= ended)
        return None if any(each.complete for each in since) else ended
    return None


def unfinished(
    setting: Setting,
    source: DeltaLog,
    state: TableState,
    options: WithdrawalOptions,
    place: str | None = None,
) -> tuple[Withdrawal, int] | None:
    """Return a withdrawal that has ended at the source, and the version at which it ended.

    The source is NORMAL then, so the redirect is found in its history. It is the last
    withdrawal or, with ``place``, the one that closed the table there.
    """
    far = options.remove_target or place is not None
    for redirect, ended in _ended_redirects(source, state.version, _FAR if far else _LOOK_BACK):
        way = _way_of_ended(setting, source, redirect, ended, options, place)
        if way is not None:
            return way, ended
        if place is None:
            break
    return None


def _way_of_ended(
    setting: Setting,
    source: DeltaLog,
    redirect: Redirect,
    ended: int,
    options: WithdrawalOptions,
    place: str | None,
) -> Withdrawal | None:
    """Return an ended withdrawal, or ``None`` unless its target is still closed."""
    journal = redirect.journal
    # An abandoned target has changes that weren't copied back: nothing there may be deleted.
    if journal is None or journal.data is Data.EXISTING or journal.abandoned:
        return None
    try:
        target = target_after_end(
            setting, source.store.uri, redirect, place, removes=options.remove_target
        )
    except CatalogUnavailable as silent:
        if options.remove_target:
            raise
        # The source needs no catalog any more.
        setting.warn(f"Lakeferry can't find out if {redirect.target} is locked: {silent}")
        return None
    if target is None:
        return None
    lock, locked_version = _lock_of(target, ended)
    if lock is None or lock.journal is None or lock.journal.move_id != journal.move_id:
        # The place belongs to another table by now, or is empty.
        return None
    way = Withdrawal(setting, source, target, redirect, options)
    way.follow(lock.journal)
    way.locked_version, way.ended_version = locked_version, ended
    return way


def _ended_redirects(
    source: DeltaLog, newest: int, look_back: int
) -> Iterator[tuple[Redirect, int]]:
    """Yield the redirects that ended in a table's newest commits, newest first, and when."""
    oldest = max(newest - look_back + 1, 1)
    for version, lines in move_lookup.marked(source, oldest, newest):
        if (redirect_commits.mark_of(lines.commit_info) or {}).get(
            "state"
        ) != RedirectState.NORMAL.value:
            continue
        try:
            before = source.state(version - 1)
            redirect = read_entry.read(before.protocol, before.metadata, source.store.uri)
        except LakeferryError:
            return
        # Redirects in another state were never READY: cancelled moves, frozen tables.
        was_ready = redirect is not None and redirect.state is RedirectState.DROPPING
        # An entry that arrived with the table's history by push or pull is another table's.
        if redirect is not None and was_ready and received_entries.counts(source.store, redirect):
            yield redirect, version


def _lock_of(target: DeltaLog, ended: int) -> tuple[Redirect | None, int]:
    """Return the lock of a target, if it is there, and its version.

    Also works for a target that is partly deleted.
    """
    try:
        state = target.state()
        return read_entry.read(state.protocol, state.metadata, target.store.uri), state.version
    except (TableNotFound, NotATable, CorruptLog):
        # Both ends say DROPPING at the version before the source's NORMAL.
        found = redirect_commits.read_commit(target.store, ended - 1)
    if found is None or found[1].protocol is None or found[1].metadata is None:
        return None, ended - 1
    lock = read_entry.read(found[1].protocol, found[1].metadata, target.store.uri)
    return lock, ended - 1


def has_begun(setting: Setting, redirect: Redirect) -> bool:
    """Return whether the withdrawal of a redirect of ours has begun."""
    if redirect.state is RedirectState.DROPPING:
        return True
    if redirect.journal is None or redirect.journal.data is Data.EXISTING:
        return False
    target = setting.log(target_place(setting, redirect, redirect.source or ""))
    try:
        state = target.state()
    except (TableNotFound, NotATable):
        return False
    found = read_entry.read(state.protocol, state.metadata, target.store.uri)
    return (
        found is not None
        and found.state is RedirectState.DROPPING
        and found.is_target(target.store.uri)
    )


def check_existing_target(
    setting: Setting, source: DeltaLog, state: TableState, redirect: Redirect
) -> None:
    """Refuse if another table has replaced a target that existed before the redirect.

    A missing or unreachable target is accepted: it isn't needed to end such a redirect.
    """
    home = source.store.uri
    try:
        place = target_place(setting, redirect, home)
        lineage.check_lineage(redirect, home, state.metadata.id, setting.log(place))
    except RedirectTargetReplaced:
        raise
    except LakeferryError:
        return


def _has_ended(source: DeltaLog, state: TableState, redirect: Redirect) -> bool:
    """Return whether a redirect to an existing target has ended."""
    if redirect.journal is None:
        # Another program made it; it gets a journal when it ends.
        return read_entry.read(state.protocol, state.metadata, source.store.uri) is None
    return not is_of_move(state, source.store.uri, redirect)


def _disable_existing(
    setting: Setting,
    source: DeltaLog,
    state: TableState,
    redirect: Redirect,
    options: WithdrawalOptions,
) -> Outcome:
    """End a redirect to a target that existed before; the target isn't changed."""
    if options.remove_target:
        raise InvalidInput(
            "the target can't be removed",
            cause="it was there before the redirect",
            remedy="leave out --remove-target",
        )
    check_existing_target(setting, source, state, redirect)
    began = redirect.journal is not None and redirect.journal.compares
    compares = copy_comparison.chosen(options.compares, began, source.store.uri)
    done = bring_back_existing.Brought(state, NOTHING_COPIED, None)
    try:
        if options.bring_back and redirect.state is RedirectState.READY:
            target = setting.log(target_place(setting, redirect, source.store.uri))
            done = bring_back_existing.bring_existing(
                setting, source, target, state, redirect, compares=compares
            )
        state = drop_target(
            setting, source, done.state, brings_back=options.bring_back, compares=compares
        )
    except LakeferryError:
        # Another process may have ended it meanwhile: then its result counts.
        state = source.state()
        if not _has_ended(source, state, redirect):
            raise
    if _has_ended(source, state, redirect):
        done = replace(done, state=state, version=None)
        version = state.version
    else:
        done = replace(done, state=state)
        if options.bring_back:
            done = bring_back_existing.bring_rest(
                setting, source, redirect, done, compares=compares
            )
        version = remove(setting, source, done.state)
    was_asked = redirect.journal is not None and redirect.journal.returns is not None
    if options.bring_back or was_asked:
        bring_back_existing.tell_left(setting, source, redirect, done)
    settling.settle_version(source, version, setting, disable_command(source.store.uri))
    return Outcome(
        RedirectState.NORMAL,
        source.store.uri,
        str(redirect.target),
        version,
        True,
        done.copied.objects,
        done.copied.bytes,
        by_store_bytes=done.copied.by_store_bytes,
        compared=done.copied.compared if compares else None,
    )
