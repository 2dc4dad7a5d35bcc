"""Brings a target's changes back to the source, and ends the redirect there.

Version by version, if numbers match (:mod:`~lakeferry.redirect.disable.carried_commits`), or else
in one commit (:mod:`~lakeferry.redirect.disable.net_change`).
"""

from __future__ import annotations

from contextlib import suppress

from lakeferry.clients.redirect_effects import lost_access
from lakeferry.errors import CommitConflict, LakeferryError
from lakeferry.log import features
from lakeferry.log.actions import Protocol
from lakeferry.log.replay import TableState as TableState
from lakeferry.redirect import read_entry, redirect_commits, steps
from lakeferry.redirect.disable import (
    carried_commits,
    matching_numbers,
    net_change,
    source_divergence,
)
from lakeferry.redirect.disable.source_end import drop_target, remove
from lakeferry.redirect.disable.withdrawal import Withdrawal, is_of_move
from lakeferry.redirect.redirect_context import Setting
from lakeferry.redirect.states import RedirectState


def bring_changes(way: Withdrawal) -> int:
    """Copy the changes back and end the redirect; return the source's last version."""
    state = way.source.state()
    found = read_entry.read(state.protocol, state.metadata, way.source.store.uri)
    if found is not None and found.state is RedirectState.READY:
        _check_same_move(way, state)
        last = way.locked_version - 1
        if matching_numbers.numbers_match(way, state):
            carried_commits.bring_data(way, state.version + 1, last)
            carried_commits.bring_commits(way, state, last)
            now = way.source.state()
            _tell_features(way, now)
            state = _drop_with_target(way, now)
        else:
            own = source_divergence.own_commits_since_ready(way, state)
            state = net_change.bring(way, state, own)
            _tell_features(way, state)
            _check_same_move(way, state)
            state = drop_target(way.setting, way.source, state, place=way.target.store.uri)
    _check_same_move(way, state)
    return remove(way.setting, way.source, state)


def _check_same_move(way: Withdrawal, state: TableState) -> None:
    """Refuse if the source has another redirect than the one to be ended.

    Another process may end this one and move the table again between two calls. The
    caller then treats the withdrawal as ended.
    """
    if not is_of_move(state, way.source.store.uri, way.redirect):
        raise CommitConflict(
            f"the redirect of {way.source.store.uri} was ended by somebody else",
            reason="move_ended",
        )


def _tell_features(way: Withdrawal, state: TableState) -> None:
    """Tell which features came from a managed target, and which clients don't support them."""
    if way.managed is None:
        return
    with suppress(LakeferryError):
        before = way.source.state(way.ready_version).protocol
        tell_features(way.setting, way.source.store.uri, before, state.protocol)


def tell_features(setting: Setting, home: str, before: Protocol, after: Protocol) -> None:
    """Tell which features a source got from a managed table, and which clients don't know them."""
    added = sorted(features.implied_features(after) - features.implied_features(before))
    if not added:
        return
    lost = lost_access(added)
    setting.step(steps.add_features(home, added, [each.as_document() for each in lost]))
    setting.warn(
        f"{home} gets table features that its commits at the catalog need: "
        f"{', '.join(added)}; {'; '.join(str(each) for each in lost)}"
    )


def _drop_with_target(way: Withdrawal, state: TableState) -> TableState:
    """Commit the source's *M+1* to match the target's *M+1*."""
    _check_same_move(way, state)
    way.check_still_there()
    found = redirect_commits.read_commit(way.target.store, way.locked_version)
    info = found[1].commit_info if found else None
    return drop_target(way.setting, way.source, state, info, place=way.target.store.uri)
