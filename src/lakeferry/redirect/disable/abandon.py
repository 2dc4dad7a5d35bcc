"""Ends a redirect whose target is lost: the source is NORMAL as of READY.

Nothing is copied back and the target isn't changed: what was written there since READY
is lost for the source. So this needs an explicit option. It is refused if the target exists,
is the table that moved, and has its files: then an ordinary disable brings everything back.
"""

from __future__ import annotations

from dataclasses import dataclass

from lakeferry.errors import LakeferryError, RedirectIllegalTransition
from lakeferry.log.replay import TableState as TableState
from lakeferry.redirect import (
    data_completeness,
    entry,
    lineage,
    move_lookup,
    owned_file_removal,
    read_entry,
    received_entries,
    settling,
    states,
    steps,
)
from lakeferry.redirect.disable.source_end import drop_target, remove
from lakeferry.redirect.disable.withdrawal import disable_command
from lakeferry.redirect.disable.withdrawn_target import check_target, is_closed
from lakeferry.redirect.entry import Data, Redirect
from lakeferry.redirect.outcome import Outcome
from lakeferry.redirect.redirect_context import Setting
from lakeferry.redirect.states import RedirectEvent, RedirectState
from lakeferry.storage.uris import same_place, shell_safe
from lakeferry.table import DeltaLog


@dataclass(frozen=True, slots=True)
class Loss:
    """Why a target is given up, and how many of its versions the source lacks, if known."""

    why: str
    versions: int | None


def abandon_target(setting: Setting, source_uri: str) -> Outcome:
    """End a redirect without its target. Idempotent."""
    source = setting.log(source_uri)
    state = source.state()
    redirect = present(source, state)
    if redirect is None:
        return _ended(source_uri, None, state.version, Loss("there is no redirect", 0), False)
    loss = _look(setting, source, state, redirect)
    setting.step(steps.abandon_step(redirect.target, loss.versions))
    setting.warn(told(redirect, source_uri, loss))
    _warn_of_missing(setting, source)
    version = finish_abandon(setting, source, drop_target(setting, source, state, abandoned=True))
    return _ended(source_uri, str(redirect.target), version, loss, True)


def _ended(source: str, target: str | None, version: int, loss: Loss, changed: bool) -> Outcome:
    lost = loss.versions
    return Outcome(
        RedirectState.NORMAL, source, target, version, changed, abandoned=True, lost_versions=lost
    )


def finish_abandon(setting: Setting, source: DeltaLog, state: TableState) -> int:
    """Go from DROPPING to NORMAL without the target; return the source's last version."""
    version = remove(setting, source, state)
    settling.settle_version(source, version, setting, disable_command(source.store.uri))
    return version


def present(source: DeltaLog, state: TableState) -> Redirect | None:
    """Return the redirect whose target can be given up; refuse one that isn't READY yet."""
    uri = source.store.uri
    redirect = read_entry.read(state.protocol, state.metadata, uri)
    if redirect is None:
        return None
    entry.check_own_redirect(redirect, uri)
    if redirect.state is not RedirectState.DROPPING:
        states.after(redirect.state, RedirectEvent.DISABLE, uri)
    return redirect


def _look(setting: Setting, source: DeltaLog, state: TableState, redirect: Redirect) -> Loss:
    """Return why the target is unusable and what is lost; refuse if it is usable."""
    journal, uri = redirect.journal, source.store.uri
    if journal is not None and journal.abandoned:
        return Loss("it was given up before", None)
    if move_lookup.leads_nowhere(source, redirect, state.version):
        return Loss("the move has ended, but its old redirect came back, perhaps by a RESTORE", 0)
    moved = journal is not None and journal.data is not Data.EXISTING
    target: DeltaLog | None = None
    try:
        target = check_target(setting, uri, state, redirect)
        data_completeness.check_complete(setting, target)
        if (other := _closed_for(target, redirect)) is not None:
            why = f"{target.store.uri} is closed, and its rows are back at {other}"
            return Loss(why, _lost_versions(target, state))
    except LakeferryError as trouble:
        if moved and redirect.state is RedirectState.DROPPING:
            # The source says DROPPING only after everything was copied back.
            return Loss(str(trouble), 0)
        target = target or _named_before(setting, uri, state, redirect)
        return Loss(str(trouble), _lost_versions(target, state) if moved else None)
    raise RedirectIllegalTransition(
        f"the target of {uri} isn't lost",
        cause=f"{target.store.uri} is there, and is the table that {uri} leads to",
        remedy=f"leave out --abandon-target: 'lakeferry redirect disable {shell_safe(uri)}' ends "
        "the redirect",
        location=uri,
        target=target.store.uri,
        state=redirect.state.value,
    )


def _closed_for(target: DeltaLog, redirect: Redirect) -> str | None:
    """Return the source for which a target was closed, if it isn't this redirect's source."""
    there, place = target.state(), target.store.uri
    lock = read_entry.read(there.protocol, there.metadata, place)
    if (
        lock is None
        or not is_closed(lock, place)
        or not received_entries.counts(target.store, lock)
    ):
        return None
    ours = redirect.journal.move_id if redirect.journal else None
    theirs = lock.journal.move_id if lock.journal else None
    same = lock.source is None or same_place(lock.source, redirect.source or "")
    return None if same or ours == theirs else lock.source


def told(redirect: Redirect, source_uri: str, loss: Loss) -> str:
    """Return the message for a user whose target is abandoned."""
    since = redirect.journal.ready_version if redirect.journal else None
    ready = "since READY" if since is None else f"since READY (version {since})"
    if loss.versions == 0:
        what = "nothing is lost at the source"
    else:
        lost = f"{loss.versions} version{'' if loss.versions == 1 else 's'}"
        lost = "an unknown number of versions" if loss.versions is None else lost
        what = f"{source_uri} lacks the changes that the target got {ready}: {lost}"
    return f"{redirect.target} is abandoned ({loss.why}); {what}. Nothing is changed at the target"


def _warn_of_missing(setting: Setting, source: DeltaLog) -> None:
    """Warn about files that the source's log names and that are missing."""
    try:
        lack = data_completeness.lack(setting, source, owned_file_removal.files_referred_to(source))
    except LakeferryError as unreadable:
        setting.warn(str(unreadable))
        return
    if lack.count:
        setting.warn(
            f"{lack.count} data files of {source.store.uri} are missing: the log names them, "
            f"but they aren't there: {', '.join(lack.examples)}"
        )


def _named_before(
    setting: Setting, source_uri: str, state: TableState, redirect: Redirect
) -> DeltaLog | None:
    """Return the target at its known place after its catalog lost it, if its files exist."""
    place = redirect.journal.location if redirect.journal else None
    if place is None:
        return None
    target = setting.log(place)
    try:
        lineage.check_lineage(redirect, source_uri, state.metadata.id, target)
    except LakeferryError:
        return None
    return target


def _lost_versions(target: DeltaLog | None, source: TableState) -> int | None:
    """Return how many of the target's versions the source lacks, or ``None`` if unknown."""
    if target is None:
        return None
    try:
        there = target.state()
        lock = read_entry.read(there.protocol, there.metadata, target.store.uri)
    except LakeferryError:
        return None
    return max(there.version - (lock is not None) - source.version, 0)
