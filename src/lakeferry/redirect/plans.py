"""What each procedure would do, step by step, found out without writing anything.

A plan refuses whatever the procedure itself would refuse before its first write;
its numbers are those of the moment, and writers may move them on.
"""

from __future__ import annotations

from typing import Any

from lakeferry.errors import RedirectIllegalTransition
from lakeferry.log import features
from lakeferry.redirect import dialects, disable, model, moving, preflight, staging, states
from lakeferry.redirect.freeze import check_frozen
from lakeferry.redirect.model import Data, Kind, Mode, Redirect
from lakeferry.redirect.preflight import Request
from lakeferry.redirect.setting import Setting
from lakeferry.redirect.states import Event, State

Step = dict[str, Any]


def enable(setting: Setting, request: Request) -> list[Step]:
    """Return the steps of a move."""
    source = setting.log(request.source)
    state = source.state()
    redirect = dialects.read(state.protocol, state.metadata, request.source)
    if redirect is not None:
        return _enable_again(request, redirect, state.version)
    preflight.check(setting, request, state)
    begun = state.version + 1
    commit_source = {"op": "commit", "table": request.source}
    commit_target = {"op": "commit", "table": request.location}
    if request.data is Data.EXISTING:
        compare = [{"op": "compare", "a": request.source, "b": request.location}]
        return [
            *(compare if request.verified else []),
            commit_source | {"version": begun, "state": State.ENABLING.value},
            commit_source | {"version": begun + 1, "state": State.READY.value},
        ]
    place = setting.open_store(request.location)
    preflight.check_free(place, request.source, state.metadata.id, request.data)
    snapshot = source.snapshot(state.version)
    listing = source.listing()
    steps: list[Step] = [{"op": "claim", "table": request.location}]
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
            "files": len(staging.carried(listing, begun)),
            "rewrite": request.data is Data.REFERENCE,
        },
        commit_source | {"version": begun, "state": State.ENABLING.value},
        commit_target | {"version": begun, "state": State.ENABLING.value},
        {"op": "publish", "table": request.location},
    ]
    if request.target.kind is not Kind.OBJECT_STORE:
        steps.append({"op": "register", "name": str(request.target), "table": request.location})
    return [
        *steps,
        commit_target | {"version": begun + 1, "state": State.NORMAL.value},
        commit_source | {"version": begun + 1, "state": State.READY.value},
        {"op": "checkpoint", "table": request.source, "version": begun + 1},
        {"op": "checkpoint", "table": request.location, "version": begun + 1},
    ]


def _enable_again(request: Request, redirect: Redirect, version: int) -> list[Step]:
    from lakeferry.redirect import enable as procedure

    procedure.check_again(request, redirect)
    if request.rules and request.rules != redirect.rules:
        step = {"op": "commit", "table": request.source, "version": version + 1}
        return [step | {"state": State.READY.value, "rules": [str(r) for r in request.rules]}]
    return []


def resume(setting: Setting, source_uri: str) -> list[Step]:
    """Return the steps that are left of whatever was broken off."""
    from lakeferry.redirect import enable as procedure

    state = setting.log(source_uri).state()
    redirect = dialects.read(state.protocol, state.metadata, source_uri)
    redirect = procedure.resumable(redirect, source_uri)
    if redirect.state is not State.ENABLING:
        withdrawn = disable.has_begun(setting, redirect)
        return undo(setting, source_uri) if withdrawn else []
    place = moving.place_of(redirect)
    following = state.version + 1
    return [
        {"op": "copy_rest", "from": source_uri, "to": place},
        {"op": "commit", "table": place, "version": state.version, "state": State.ENABLING.value},
        {"op": "commit", "table": place, "version": following, "state": State.NORMAL.value},
        {"op": "commit", "table": source_uri, "version": following, "state": State.READY.value},
    ]


def cancel(setting: Setting, source_uri: str) -> list[Step]:
    """Return the steps back to NORMAL."""
    state = setting.log(source_uri).state()
    redirect = dialects.read(state.protocol, state.metadata, source_uri)
    if redirect is None:
        return []
    model.check_own(redirect, source_uri)
    states.after(redirect.state, Event.CANCEL, source_uri)
    following = state.version + 1
    end = {"op": "commit", "table": source_uri, "version": following, "state": State.NORMAL.value}
    ours = redirect.journal is not None and redirect.journal.data is not Data.EXISTING
    if redirect.target is None or not ours:
        return [end]
    place = moving.place_of(redirect)
    move = moving.begun(setting, setting.log(source_uri), state, redirect)
    decided = move.decision()
    if decided is not None and decided[0] is State.READY:
        raise RedirectIllegalTransition(
            f"the move of {source_uri} can't be cancelled any more",
            cause=f"its target {place} is open already",
            remedy="'redirect resume' ends the move; 'redirect disable' brings the table back",
            location=source_uri,
            state=redirect.state.value,
        )
    closing = {"op": "commit", "table": place, "version": following, "state": State.DROPPING.value}
    return [closing, {"op": "delete_copies", "table": place}, end]


def undo(setting: Setting, source_uri: str, *, remove_target: bool = False) -> list[Step]:
    """Return the steps of a disable."""
    state = setting.log(source_uri).state()
    redirect = dialects.read(state.protocol, state.metadata, source_uri)
    if redirect is None:
        return []
    model.check_own(redirect, source_uri)
    if redirect.state is not State.DROPPING:
        states.after(redirect.state, Event.DISABLE, source_uri)
    here = {"op": "commit", "table": source_uri}
    if redirect.journal is None or redirect.journal.data is Data.EXISTING:
        version = state.version
        return [
            here | {"version": version + 1, "state": State.DROPPING.value},
            here | {"version": version + 2, "state": State.NORMAL.value},
        ]
    place = moving.place_of(redirect)
    last = setting.log(place).state().version
    if not disable.has_begun(setting, redirect):
        last += 1
    steps: list[Step] = [
        {"op": "commit", "table": place, "version": last, "state": State.DROPPING.value},
        {"op": "copy_changes", "from": place, "to": source_uri},
        {"op": "copy_commits", "from": place, "to": source_uri, "to_version": last - 1},
        here | {"version": last, "state": State.DROPPING.value},
        here | {"version": last + 1, "state": State.NORMAL.value},
        {"op": "checkpoint", "table": source_uri, "version": last + 1},
    ]
    if remove_target:
        steps.append({"op": "delete", "table": place})
    return steps


def freeze(setting: Setting, table: str, mode: Mode) -> list[Step]:
    """Return the steps of a freeze."""
    state = setting.log(table).state()
    redirect = dialects.read(state.protocol, state.metadata, table)
    if redirect is not None:
        model.check_single(redirect, table)
        if redirect.is_frozen and redirect.mode is mode:
            return []
    states.after(redirect.state if redirect else State.NORMAL, Event.FREEZE, table)
    features.check_writable(state.protocol)
    return [_last(table, state.version, State.ENABLING)]


def thaw(setting: Setting, table: str) -> list[Step]:
    """Return the steps of a thaw."""
    state = setting.log(table).state()
    redirect = dialects.read(state.protocol, state.metadata, table)
    if redirect is None:
        return []
    check_frozen(redirect, table)
    return [_last(table, state.version, State.NORMAL)]


def _last(table: str, version: int, state: State) -> Step:
    return {"op": "commit", "table": table, "version": version + 1, "state": state.value}
