"""The steps of a withdrawal, for ``--dry-run``.

It asks what :mod:`~lakeferry.redirect.disable.disabling` asks, in the same order, of the same
:class:`~lakeferry.redirect.disable.bring_back.Way`; only data that has to be copied first isn't
looked at.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from lakeferry.errors import InvalidInput
from lakeferry.log import actions, features, protocols
from lakeferry.log.replay import Snapshot
from lakeferry.log.replay import TableState as TableState
from lakeferry.log.rewrite import Fetched, Rewrite
from lakeferry.log.segment import Segment
from lakeferry.redirect import dialects, entry, file_removal, move, redirect_commits, states
from lakeferry.redirect.disable import abandon, disabling, net_change
from lakeferry.redirect.disable.bring_back import Way, WithdrawalOptions, target_place
from lakeferry.redirect.entry import Data, Redirect
from lakeferry.redirect.redirect_context import Setting
from lakeferry.redirect.states import RedirectEvent, RedirectState
from lakeferry.table import DeltaLog

WithdrawalStep = dict[str, Any]


def undo(
    setting: Setting,
    source_uri: str,
    options: WithdrawalOptions = WithdrawalOptions(),  # noqa: B008
) -> list[WithdrawalStep]:
    """Return the steps of a disable."""
    source = setting.log(source_uri)
    state = source.state()
    if options.abandon_target:
        disabling.check_alone(options)
        return _given_up(setting, source, state)
    redirect = dialects.read(state.protocol, state.metadata, source_uri)
    if redirect is None:
        unfinished = disabling.unfinished(setting, source, state, options)
        if unfinished is None:
            return []
        unfinished[0].check_removal()
        return _cleared(unfinished[0])
    entry.check_own(redirect, source_uri)
    if redirect.state is not RedirectState.DROPPING:
        states.after(redirect.state, RedirectEvent.DISABLE, source_uri)
    if redirect.journal is None or redirect.journal.data is Data.EXISTING:
        return _from_existing(setting, source, state, redirect, options)
    if redirect.journal.abandoned or move.leads_nowhere(source, redirect, state.version):
        return _ended(source_uri, state.version, RedirectState.DROPPING)
    place = target_place(setting, redirect, source_uri)
    way = Way(setting, source, setting.log(place), redirect, options)
    steps, last = _locked(way, state)
    return [*steps, *_brought(way, state, last), *_cleared(way)]


def _given_up(setting: Setting, source: DeltaLog, state: TableState) -> list[WithdrawalStep]:
    """Return the steps of a disable without the target, and what is lost by it."""
    redirect = abandon.present(source, state)
    if redirect is None:
        return []
    loss = abandon.look(setting, source, state, redirect)
    setting.warn(abandon.told(redirect, source.store.uri, loss))
    given_up = {"op": "abandon", "table": str(redirect.target), "lost_versions": loss.versions}
    return [given_up, *_ended(source.store.uri, state.version, redirect.state)]


def _locked(way: Way, state: TableState) -> tuple[list[WithdrawalStep], int]:
    """Return how the target is locked, and the last version before that."""
    there, place = way.target_state(), way.target.store.uri
    way.check_lineage()
    lock = way.lock_at(there)
    way.locked_version = there.version
    if lock is not None:
        way.follow(lock)
        way.check_removal()
        return _filled(way), there.version - 1
    way.own_commits(state)
    way.check_removal()
    return [*_filled(way), _commit(place, there.version + 1, RedirectState.DROPPING)], there.version


def _filled(way: Way) -> list[WithdrawalStep]:
    """Return how the source gets back what it has lost since the table moved."""
    if not (lost := way.lacks()):
        return []
    home, away = way.source.store.uri, way.target.store.uri
    return [{"op": "copy_missing", "from": away, "to": home, "files": lost}]


def _brought(way: Way, state: TableState, last: int) -> list[WithdrawalStep]:
    """Return how what changed comes home, and how the redirect ends."""
    home, away = way.source.store.uri, way.target.store.uri
    if way.redirect.state is RedirectState.DROPPING:
        return _ended(home, state.version, RedirectState.DROPPING)
    copy = [] if way.by_reference else [{"op": "copy_changes", "from": away, "to": home}]
    if way.matches(state):
        first = state.version + 1
        if first > last:
            return _ended(home, state.version, RedirectState.READY)
        carry = {"op": "copy_commits", "from": away, "to": home, "from_version": first}
        return [*copy, carry | {"to_version": last}, *_ended(home, last, RedirectState.READY)]
    way.own_commits(state)
    theirs = way.target.snapshot(last)
    changes = _changes(way.setting, way.source, theirs, way.rewrite, state)
    return [*copy, *_synced(home, state.version, changes=changes)]


def _from_existing(
    setting: Setting,
    source: DeltaLog,
    state: TableState,
    redirect: Redirect,
    options: WithdrawalOptions,
) -> list[WithdrawalStep]:
    """Return the steps away from a table of its own, which stays as it is."""
    if options.remove_target:
        raise InvalidInput(
            "the target was there before the redirect, and stays",
            remedy="leave out --remove-target",
        )
    home = source.store.uri
    disabling.check_existing_target(setting, source, state, redirect)
    if not options.bring_back or redirect.state is not RedirectState.READY:
        return _ended(home, state.version, redirect.state)
    target = setting.log(target_place(setting, redirect, home))
    theirs, rewrite = _check_existing(setting, source, target, state, redirect)
    changes = _changes(setting, source, theirs, rewrite, state)
    copy = {"op": "copy_changes", "from": target.store.uri, "to": home}
    return [copy, *_synced(home, state.version, changes=changes)]


def _check_existing(
    setting: Setting, source: DeltaLog, target: DeltaLog, state: TableState, redirect: Redirect
) -> tuple[Snapshot, Rewrite]:
    """Refuse what can't be brought back; return the target as the source would be after it."""
    since = redirect.journal.ready_version if redirect.journal else None
    if since is None:
        raise InvalidInput(
            "what changed can't be brought back",
            cause="another program made the redirect, and nothing says since when it is READY",
            remedy="leave out --bring-back, and copy what you need",
        )
    net_change.own_commits(source, target.store.uri, since, state)
    segment = target.segment()
    theirs = target.snapshot_of(segment)
    rewrite = Fetched(source.store.uri, target.store.uri)

    def look(segment: Segment) -> None:
        net_change.refuse_clashes(setting, source, target, segment, theirs, rewrite)

    target.working_around(segment, look)
    merged = protocols.adding(state.protocol, sorted(features.implied_features(theirs.protocol)))
    kept = actions.changed(theirs.metadata, id=state.metadata.id)
    return replace(theirs, protocol=merged, metadata=kept), rewrite


def _changes(
    setting: Setting, source: DeltaLog, theirs: Snapshot, rewrite: Rewrite, state: TableState
) -> bool:
    """Tell whether the source lacks anything that the target has, or the other way round."""
    mine = source.snapshot(state.version)
    redirect = dialects.read(mine.protocol, mine.metadata, source.store.uri)
    assert redirect is not None
    bare = redirect_commits.bare(theirs.protocol, theirs.metadata, redirect.journal)
    after = bare.carrying(redirect.in_state(RedirectState.READY))
    return not net_change.change_of(
        setting, mine, theirs, rewrite, source.store.uri, after
    ).is_empty


def _synced(table: str, version: int, *, changes: bool) -> list[WithdrawalStep]:
    """Return the commit with the net change, if there is one, and the end after it."""
    if not changes:
        return _ended(table, version, RedirectState.READY)
    sync: WithdrawalStep = {"op": "commit", "table": table, "version": version + 1, "state": "SYNC"}
    return [sync, *_ended(table, version + 1, RedirectState.READY)]


def _ended(table: str, version: int, state: RedirectState) -> list[WithdrawalStep]:
    """Return the commits with which a redirect ends, on top of a version in that state."""
    steps = []
    if state is not RedirectState.DROPPING:
        version += 1
        steps.append(_commit(table, version, RedirectState.DROPPING))
    version += 1
    return [
        *steps,
        _commit(table, version, RedirectState.NORMAL),
        {"op": "checkpoint", "table": table, "version": version},
    ]


def _cleared(way: Way) -> list[WithdrawalStep]:
    """Return how the target's name goes, and the target itself if it is to go."""
    place = way.target.store.uri
    steps: list[WithdrawalStep] = []
    journal = way.redirect.journal
    if journal is not None and journal.catalog_name is not None:
        steps.append({"op": "unregister", "name": str(way.redirect.target), "table": place})
    if way.removes_target and _may_go(way):
        steps.append({"op": "delete", "table": place})
    return steps


def _may_go(way: Way) -> bool:
    """Tell whether a target that is to be deleted will be; what was asked for is checked before."""
    has_all = way.options.remove_target or not way.lack_without_target().count
    return has_all and not way.is_referred_to(file_removal.referred_to(way.source))


def _commit(table: str, version: int, state: RedirectState) -> WithdrawalStep:
    return {"op": "commit", "table": table, "version": version, "state": state.value}
