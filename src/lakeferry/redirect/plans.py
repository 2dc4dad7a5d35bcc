"""The steps of each procedure, for ``--dry-run``.

A plan refuses whatever the procedure itself would refuse before its first write;
its numbers are those of the moment, and writers may move them on.
"""

from __future__ import annotations

from lakeferry.errors import InvalidInput, RedirectSpecInvalid, StorageError, TimedOut
from lakeferry.log.replay import TableState as TableState
from lakeferry.redirect import dialects, entry, states
from lakeferry.redirect import move as moving
from lakeferry.redirect.disable import disabling
from lakeferry.redirect.disable.bring_back import check_target
from lakeferry.redirect.enable import closed_target as closed
from lakeferry.redirect.enable import (
    existing_target,
    leftovers,
    log_staging,
    move_record,
    preflight,
    repeated_enable,
    unfinished_move,
)
from lakeferry.redirect.enable.preflight import Request
from lakeferry.redirect.entry import Data, Mode, Redirect, TargetKind
from lakeferry.redirect.freeze import check_freezable, check_frozen
from lakeferry.redirect.move import Move
from lakeferry.redirect.redirect_context import Setting
from lakeferry.redirect.states import RedirectEvent, RedirectState
from lakeferry.redirect.withdrawal_plans import WithdrawalStep, undo
from lakeferry.storage.uris import same_place

__all__ = ["WithdrawalStep", "cancel", "enable", "freeze", "resume", "thaw", "undo"]


def enable(setting: Setting, request: Request) -> list[WithdrawalStep]:
    """Return the steps of a move."""
    source = setting.log(request.source)
    state = source.state()
    redirect = dialects.read(state.protocol, state.metadata, request.source)
    if redirect is not None:
        return _enable_again(setting, request, redirect, state.version)
    preflight.check(setting, request, state)
    source.check_checksum(state.version)
    unfinished_move.check_none(setting, source.store, request)
    begun = state.version + 1
    if request.data is Data.EXISTING:
        existing_target.check(setting, source, request)
        compare = [{"op": "compare", "a": request.source, "b": request.location}]
        return [
            *(compare if request.verified else []),
            _commit(request.source, begun, RedirectState.ENABLING),
            _commit(request.source, begun + 1, RedirectState.READY),
            {"op": "checkpoint", "table": request.source, "version": begun + 1},
        ]
    place = setting.open_store(request.location)
    claim = log_staging.Claim("", request.source, state.metadata.id, request.data)
    steps: list[WithdrawalStep] = []
    if leftovers.to_clear(setting, place, claim) is not None:
        steps.append({"op": "clear", "table": request.location})
    elif closed.to_replace(setting, source, state, request) is not None:
        steps.append({"op": "delete", "table": request.location})
    else:
        leftovers.check_free(setting, place, claim)
    snapshot = source.snapshot(state.version)
    listing = source.listing()
    steps.append({"op": "claim", "table": request.location})
    if request.data is Data.COPY:
        steps.append(
            {
                "op": "copy_data",
                "from": request.source,
                "to": request.location,
                "files": snapshot.num_files,
                "bytes": snapshot.size_bytes,
            }
        )
    steps += [
        {
            "op": "copy_log",
            "from": request.source,
            "to": request.location,
            "files": len(log_staging.carried(listing, begun)),
            "rewrite": request.data is Data.REFERENCE,
        },
        _commit(request.source, begun, RedirectState.ENABLING),
        _commit(request.location, begun, RedirectState.ENABLING),
        {"op": "publish", "table": request.location},
    ]
    if request.target.kind is not TargetKind.OBJECT_STORE:
        steps.append({"op": "register", "name": str(request.target), "table": request.location})
    return [
        *steps,
        _commit(request.location, begun + 1, RedirectState.NORMAL),
        *_ready(request.source, request.location, begun + 1),
    ]


def _enable_again(
    setting: Setting, request: Request, redirect: Redirect, version: int
) -> list[WithdrawalStep]:
    repeated_enable.check_again(setting, request, redirect)
    if request.rules and request.rules != redirect.rules:
        step = {"op": "commit", "table": request.source, "version": version + 1}
        return [
            step | {"state": RedirectState.READY.value, "rules": [str(r) for r in request.rules]}
        ]
    return []


def resume(setting: Setting, source_uri: str) -> list[WithdrawalStep]:
    """Return the steps that are left of whatever was broken off."""
    from lakeferry.redirect import resuming as procedure

    source = setting.log(source_uri)
    state = source.state()
    redirect = dialects.read(state.protocol, state.metadata, source_uri)
    record = move_record.read(source.store) if redirect is None else None
    if record is not None:
        return cancel(setting, source_uri) if record.cancelled else enable(setting, record.request)
    redirect = procedure.resumable(redirect, source_uri)
    if redirect.state is not RedirectState.ENABLING:
        nowhere = moving.leads_nowhere(source, redirect, state.version)
        if nowhere or disabling.has_begun(setting, redirect):
            return undo(setting, source_uri)
        return _left_after_ready(setting, state, source_uri, redirect)
    move = moving.begun(setting, source, state, redirect)
    if move.journal.data is Data.EXISTING:
        return _left_to_existing(move)
    procedure.check_place(move)
    decided = move.decision()
    if decided is not None and decided[0] is RedirectState.NORMAL:
        return _taken_back(move, closed=True)
    begun, place = move.version, move.target.store.uri
    steps: list[WithdrawalStep] = []
    if decided is None:
        steps.append({"op": "copy_rest", "from": source_uri, "to": place})
        if not move.is_locked():
            steps.append(_commit(place, begun, RedirectState.ENABLING))
        steps.append({"op": "publish", "table": place})
    steps += _registered(redirect, place)
    if decided is None:
        steps.append(_commit(place, begun + 1, RedirectState.NORMAL))
    return [*steps, *_ready(source_uri, place, begun + 1)]


def _left_after_ready(
    setting: Setting, state: TableState, source_uri: str, redirect: Redirect
) -> list[WithdrawalStep]:
    """Return what a move has left to do that was broken off at its very end."""
    journal = redirect.journal
    if journal is None or journal.data is Data.EXISTING or journal.ready_version is None:
        return []
    target = check_target(setting, source_uri, state, redirect)
    place = target.store.uri
    claim = log_staging.read_claim(target.store)
    if claim is None or not same_place(claim.source, source_uri):
        return []
    settled = _settled(source_uri, place, journal.ready_version)
    return [*settled, {"op": "clear", "table": place}]


def _left_to_existing(move: Move) -> list[WithdrawalStep]:
    """Return what is left of a redirect to a table that was there before."""
    source, place = move.source.store.uri, move.target.store.uri
    existing_target.check_target(move.setting, source, place)
    steps: list[WithdrawalStep] = []
    if move.journal.verified:
        existing_target.compare(move.source, move.target)
        steps.append({"op": "compare", "a": source, "b": place})
    return [
        *steps,
        _commit(source, move.version + 1, RedirectState.READY),
        {"op": "checkpoint", "table": source, "version": move.version + 1},
    ]


def cancel(
    setting: Setting, source_uri: str, *, leave_copies: bool = False
) -> list[WithdrawalStep]:
    """Return the steps back to NORMAL."""
    from lakeferry.redirect import cancel as procedure

    source = setting.log(source_uri)
    state = source.state()
    redirect = dialects.read(state.protocol, state.metadata, source_uri)
    if redirect is None:
        record = move_record.read(source.store)
        if record is None:
            return []
        op = "forget" if leave_copies else "delete_copies"
        return [{"op": op, "table": record.location}]
    entry.check_own(redirect, source_uri)
    states.after(redirect.state, RedirectEvent.CANCEL, source_uri)
    end = _commit(source_uri, state.version + 1, RedirectState.NORMAL)
    if redirect.journal is None or redirect.is_frozen:
        return [end]
    try:
        move = moving.begun(setting, source, state, redirect)
    except RedirectSpecInvalid:
        earlier = procedure.to_take_back(setting, source, state, redirect)
        if earlier is None:
            return [end]
        return [*_taken_back(earlier, closed=earlier.decision() is not None)[:-1], end]
    try:
        if redirect.journal.data is Data.EXISTING or procedure.is_lost(move):
            return [end]
        decided = move.decision()
    except (StorageError, TimedOut, InvalidInput):
        if leave_copies:
            return [end]
        raise
    if decided is not None and decided[0] is RedirectState.READY:
        raise procedure.past_return(source_uri, move.target.store.uri)
    return _taken_back(move, closed=decided is not None)


def _taken_back(move: Move, *, closed: bool) -> list[WithdrawalStep]:
    """Return the steps back from a move that has begun; ``closed`` if it was decided so."""
    place, following = move.target.store.uri, move.version + 1
    steps = [] if closed else [_commit(place, following, RedirectState.DROPPING)]
    if move.journal.catalog_name is not None:
        steps.append({"op": "unregister", "name": str(move.redirect.target), "table": place})
    end = _commit(move.source.store.uri, following, RedirectState.NORMAL)
    return [*steps, {"op": "delete_copies", "table": place}, end]


def _registered(redirect: Redirect, place: str) -> list[WithdrawalStep]:
    journal = redirect.journal
    if journal is None or journal.catalog_name is None:
        return []
    return [{"op": "register", "name": str(redirect.target), "table": place}]


def _ready(source: str, place: str, version: int) -> list[WithdrawalStep]:
    return [_commit(source, version, RedirectState.READY), *_settled(source, place, version)]


def _settled(source: str, place: str, version: int) -> list[WithdrawalStep]:
    return [{"op": "checkpoint", "table": table, "version": version} for table in (source, place)]


def freeze(setting: Setting, table: str, mode: Mode) -> list[WithdrawalStep]:
    """Return the steps of a freeze."""
    log = setting.log(table)
    state = log.state()
    if not check_freezable(state, table, mode):
        return []
    log.check_checksum(state.version)
    return [_commit(table, state.version + 1, RedirectState.ENABLING) | {"frozen": True}]


def thaw(setting: Setting, table: str) -> list[WithdrawalStep]:
    """Return the steps of a thaw."""
    state = setting.log(table).state()
    redirect = dialects.read(state.protocol, state.metadata, table)
    if redirect is None:
        return []
    check_frozen(redirect, table)
    return [_commit(table, state.version + 1, RedirectState.NORMAL)]


def _commit(table: str, version: int, state: RedirectState) -> WithdrawalStep:
    return {"op": "commit", "table": table, "version": version, "state": state.value}
