"""Moving a table: from NORMAL to READY, and on from wherever a move was broken off.

1. Preflight refuses what can't be moved (:mod:`~lakeferry.redirect.preflight`).
2. Data and log are brought while writers go on (:mod:`~lakeferry.redirect.precopy`).
3. The source's version *N* says ENABLING: from here writers wait.
4. What came meanwhile is brought.
5. The target's *N* locks it, then it becomes a table, then it gets its name.
6. The target's *N+1* opens it: the point of no return. The source's *N+1* says READY.

Both logs together are the journal. Whoever finds the source in ENABLING can go
on from step 4; whoever finds the target's *N+1* follows it.
"""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial

from lakeferry.errors import (
    CommitConflict,
    LakeferryError,
    RedirectIllegalTransition,
    RedirectInProgress,
    RedirectSpecInvalid,
    RedirectTargetNotEmpty,
)
from lakeferry.log import paths, protocols
from lakeferry.log.actions import CommitInfo
from lakeferry.log.commit import Conflict
from lakeferry.log.replay import State as TableState
from lakeferry.redirect import (
    again,
    cancel,
    commits,
    dialects,
    existing,
    leftovers,
    model,
    moving,
    preflight,
    staging,
    states,
)
from lakeferry.redirect.commits import Bare
from lakeferry.redirect.model import Data, Journal, Kind, Redirect
from lakeferry.redirect.moving import Move, Outcome
from lakeferry.redirect.precopy import Crossing
from lakeferry.redirect.preflight import Request
from lakeferry.redirect.setting import Setting
from lakeferry.redirect.staging import Claim
from lakeferry.redirect.states import Event, State
from lakeferry.storage.uris import same_place
from lakeferry.table import DeltaLog
from lakeferry.table.commit import Committed

MAX_BEGINNINGS = 10
"""How often a commit that began a move may be overwritten, or lose, before we give up."""


def enable(setting: Setting, request: Request) -> Outcome:
    """Move a table, or say why not. Twice with the same request is once."""
    source = setting.log(request.source)
    state = source.state()
    redirect = dialects.read(state.protocol, state.metadata, request.source)
    if redirect is not None:
        return again.answer(setting, source, state, redirect, request)
    states.after(State.NORMAL, Event.ENABLE, request.source)
    preflight.check(setting, request, state)
    if request.data is Data.EXISTING:
        return existing.enable(setting, source, request)
    target = setting.open_store(request.location)
    move_id = setting.new_id()
    claim = Claim(move_id, request.source, state.metadata.id, request.data)
    leftovers.clear(setting, target, claim)
    staging.check_free(target, claim)
    preflight.probe(source.store, move_id)
    preflight.probe(target, move_id)
    resumed = staging.claim(target, claim)
    guard = partial(staging.check_claimed, target, claim)
    crossing = Crossing(setting, source, target, request.data, move_id, guard, resumed=resumed)
    try:
        crossing.precopy()
    except RedirectTargetNotEmpty:
        _step_back(setting, source, crossing, claim)
        raise
    except LakeferryError:
        # Where another move to this place was cancelled meanwhile, that is why.
        guard()
        raise
    return _move(setting, source, request, claim, crossing)


def _move(
    setting: Setting, source: DeltaLog, request: Request, claim: Claim, crossing: Crossing
) -> Outcome:
    """Commit ENABLING and finish; begin again where a careless writer replaced that commit."""
    for _ in range(MAX_BEGINNINGS):
        try:
            move = begin(setting, source, request, crossing.move_id)
        except RedirectInProgress:
            _give_way(setting, source, setting.log(request.location), claim)
            raise
        began = time.monotonic()
        if not staging.is_claimed(crossing.target, claim):
            if cancel.is_lost(move):
                existing.cancel(move)
                raise staging.not_free(request.location, "another table was given the place")
            # Another move to the same place was cancelled meanwhile, or is being prepared.
            crossing = _anew(move)
        try:
            move.check_not_replaced()
            outcome = finish(move, crossing)
        except CommitConflict as conflict:
            if conflict.fields.get("reason") != "version_replaced":
                raise
            setting.warn(f"{conflict}; beginning again")
            _unlock(move)
            continue
        blocked_ms = round((time.monotonic() - began) * 1000)
        if outcome.state is State.READY:
            _settle(move)
        return replace(outcome, blocked_ms=blocked_ms)
    raise CommitConflict(
        f"the redirect of {request.source} couldn't be begun",
        cause="a writer without put-if-absent kept overwriting our commit",
        remedy="stop that writer for a moment (docs/concurrency.md names the engines)",
        reason="version_replaced",
    )


def begin(setting: Setting, source: DeltaLog, request: Request, move_id: str) -> Move:
    """Commit ENABLING on top of whatever is there."""
    conflict: Conflict | None = None
    for _ in range(MAX_BEGINNINGS):
        state = source.state()
        present = dialects.read(state.protocol, state.metadata, request.source)
        if present is not None:
            raise again.in_progress(request.source, present)
        preflight.check(setting, request, state)
        bare = Bare(state.protocol, state.metadata)
        redirect = entry(request, bare, move_id)
        wanted = commits.transition(
            state,
            bare.carrying(redirect),
            State.ENABLING,
            move_id,
            setting.new_id(),
            {"target": str(request.target), "mode": request.mode.value},
        )
        result = source.commit(wanted, state)
        if isinstance(result, Committed):
            return _move_of(setting, source, redirect, result)
        conflict = result
    assert conflict is not None
    raise conflict.error()


def entry(request: Request, bare: Bare, move_id: str) -> Redirect:
    """Return the entry that begins a move; it has all that whoever goes on has to know."""
    in_catalog = request.target.kind is not Kind.OBJECT_STORE
    return Redirect(
        request.mode,
        State.ENABLING,
        request.target.kind,
        request.target,
        request.spoken,
        request.source,
        request.rules,
        Journal(
            request.data,
            protocols.versions(bare.protocol),
            request.location if in_catalog else None,
            request.target.name if in_catalog else None,
            move_id=move_id,
            verified=request.verified,
        ),
    )


def _move_of(setting: Setting, source: DeltaLog, redirect: Redirect, made: Committed) -> Move:
    found = commits.read_commit(source.store, made.version)
    info = found[1].commit_info if found else None
    begun = TableState(made.version, made.head.protocol, made.head.metadata, info)
    target = setting.log(moving.place_of(redirect))
    return Move(setting, source, target, redirect, begun, made.body)


def _anew(move: Move) -> Crossing:
    """Return a crossing that relies on nothing but what it finds at the target."""
    return Crossing(
        move.setting,
        move.source,
        move.target.store,
        move.journal.data,
        move.journal.move_id or "",
        move.check_going,
        resumed=True,
    )


def finish(move: Move, crossing: Crossing) -> Outcome:
    """Go on from ENABLING to READY, or wherever somebody else has decided to go."""
    crossing.guard = move.check_going
    try:
        decided = move.decision()
        if decided is None:
            _bring(move, crossing)
            move.check_undecided()
            decided = move.decide(State.READY)
        _follow(move, *decided)
        ended = decided[0]
    except LakeferryError:
        # Somebody else may have decided, or even ended the move, under our hands: then
        # that is what happened. Asked in this order, as a closing commit goes in the end.
        decided = _decided(move)
        found = move.ended()
        if found is State.NORMAL:
            cancel.abandon(move)
        elif found is None:
            if decided is None:
                raise
            _follow(move, *decided)
            found = decided[0]
        ended = found
    return Outcome(
        ended,
        move.source.store.uri,
        str(move.redirect.target) if ended is State.READY else None,
        move.version + 1,
        True,
        crossing.objects,
        crossing.bytes,
    )


def _decided(move: Move) -> tuple[State, CommitInfo] | None:
    """Return what the target's *N+1* says, unless it is another move's."""
    try:
        return move.decision()
    except CommitConflict:
        return None


def _follow(move: Move, decided: State, info: CommitInfo) -> None:
    """End the move at the source as the target's *N+1* says."""
    if decided is State.NORMAL:
        cancel.finish(move, info)
        return
    place = move.target.store.uri
    target = moving.catalog_target(move.setting, move.redirect, move.bare, place)
    move.end(State.READY, info, target)


def _bring(move: Move, crossing: Crossing) -> None:
    """Bring what is left, lock the target, make it a table, and give it its name."""
    listing = move.source.listing()
    crossing.urgent = crossing.version >= 0
    if not move.is_locked():
        # What this move has put there has the same bytes as what is put now: nothing is
        # replaced from here on, so that who sleeps here does a later move no harm.
        staging.check_unopened(move.target.store)
    crossing.round(listing, before=move.version)
    move.check_not_replaced()
    if not move.is_locked():
        staging.check_unopened(move.target.store)
    move.put_lock()
    move.check_undecided()
    crossing.publish(listing, move.version)
    _check_target(move, listing.earliest_version())
    moving.catalog_target(move.setting, move.redirect, move.bare, move.target.store.uri)
    move.check_not_replaced()


def _unlock(move: Move) -> None:
    """Make the target what it was before a beginning that doesn't count: no table, not locked."""
    store = move.target.store
    found = commits.read_commit(store, move.version)
    if found is not None and found[0] == move.lock_body:
        staging.delete(store, list(staging.published(store)))
        staging.delete(store, [paths.commit(move.version)])


def _check_target(move: Move, earliest: int | None) -> None:
    """Open the target as anybody would: it has to be the same table, and locked."""
    listing = move.target.listing()
    found = move.target.state(move.version)
    wanted = move.locked
    same = (
        found.protocol.unordered == wanted.protocol.unordered
        and found.metadata == wanted.metadata
        and listing.earliest_version() is not None
        and (listing.earliest_version() or 0) <= (earliest or 0)
    )
    if not same:
        raise RedirectSpecInvalid(
            f"{move.target.store.uri} didn't become what it should be",
            cause=f"version {move.version} differs from the source's",
            remedy="'redirect cancel' goes back; nothing is lost at the source",
            value=move.version,
        )


def _settle(move: Move) -> None:
    """Leave both places cheap to open, and nothing of ours at the target."""
    version = move.version + 1
    moving.settle(move.source, version, move.setting)
    moving.settle(move.target, version, move.setting)
    moving.clear(move.target)


def resume(setting: Setting, source_uri: str) -> Outcome:
    """Go on with whatever was broken off at this table."""
    source = setting.log(source_uri)
    state = source.state()
    redirect = dialects.read(state.protocol, state.metadata, source_uri)
    redirect = resumable(redirect, source_uri)
    if redirect.state is State.ENABLING:
        return _resume_enabling(setting, source, state, redirect)
    from lakeferry.redirect import disable

    if disable.has_begun(setting, redirect) or moving.leads_nowhere(source, redirect):
        return disable.disable(setting, source_uri)
    return _resume_ready(setting, source, state, redirect)


def resumable(redirect: Redirect | None, source_uri: str) -> Redirect:
    """Refuse a table that has nothing to go on with."""
    if redirect is None:
        states.after(State.NORMAL, Event.FINISH, source_uri)
    elif redirect.is_frozen:
        raise RedirectIllegalTransition(
            f"{source_uri} is frozen",
            cause="it has no target to go on to",
            remedy="'redirect thaw' makes it writable again",
            location=source_uri,
            state=redirect.state.value,
        )
    assert redirect is not None
    model.check_own(redirect, source_uri)
    if redirect.journal is None:
        raise RedirectIllegalTransition(
            f"the redirect of {source_uri} can't be resumed",
            cause="another program made it",
            remedy="go on with that program, or take the entry away with 'redirect cancel' or "
            "'redirect disable'",
            location=source_uri,
            state=redirect.state.value,
        )
    return redirect


def _resume_enabling(
    setting: Setting, source: DeltaLog, state: TableState, redirect: Redirect
) -> Outcome:
    move = moving.begun(setting, source, state, redirect)
    if move.journal.data is Data.EXISTING:
        return existing.finish(move)
    check_place(move)
    outcome = finish(move, _anew(move))
    if outcome.state is State.READY:
        _settle(move)
    return outcome


def check_place(move: Move) -> None:
    """Refuse to bring anything to a place that is another table's by now."""
    if cancel.is_lost(move):
        raise RedirectTargetNotEmpty(
            f"{move.target.store.uri} is another table's by now",
            cause=f"the move of {move.source.store.uri} was broken off as it began",
            remedy="'redirect cancel' goes back; then choose another target",
            target=move.target.store.uri,
        )


def _resume_ready(
    setting: Setting, source: DeltaLog, state: TableState, redirect: Redirect
) -> Outcome:
    """Do what may be left to do after READY; the state stays."""
    journal = redirect.journal
    assert journal is not None
    place: str | None = None
    if journal.data is not Data.EXISTING and journal.ready_version is not None:
        target = setting.log(moving.place_of(redirect))
        place = target.store.uri
        if staging.read_claim(target.store) is not None:
            moving.settle(source, journal.ready_version, setting)
            moving.settle(target, journal.ready_version, setting)
            moving.clear(target)
    return Outcome(
        redirect.state,
        source.store.uri,
        str(redirect.target) if redirect.target else place,
        state.version,
        False,
    )


def _give_way(setting: Setting, source: DeltaLog, target: DeltaLog, claim: Claim) -> None:
    """Take away what was brought for a move that another one came before.

    Unless the other one is to the same place: then what was brought is its own.
    """
    store = target.store

    def is_ours(by: Claim) -> bool:
        state = source.state()
        present = dialects.read(state.protocol, state.metadata, source.store.uri)
        here = False
        if present is not None and present.target is not None:
            here = same_place(moving.place_of(present), store.uri)
        return not here and staging.is_claimed(store, by)

    try:
        if is_ours(claim):
            staging.check_unopened(store)
            revoked = staging.revoke(store, claim)
            cancel.remove_copies(source, target, partial(is_ours, revoked), lambda: False)
            staging.release(store, revoked)
            store.prune("")
    except LakeferryError as failed:
        setting.warn(f"what was brought to {store.uri} is still there: {failed}")


def _step_back(setting: Setting, source: DeltaLog, crossing: Crossing, claim: Claim) -> None:
    """Take our log away from a place that somebody else has made a table of meanwhile.

    Data files stay: the table doesn't refer to them, and its VACUUM takes them away.
    """
    store = crossing.target
    try:
        if staging.is_claimed(store, claim):
            staging.delete(store, list(staging.staged(store, claim.move_id)))
            crossing.withdraw()
            staging.release(store, claim)
            store.prune(staging.FOLDER)
    except LakeferryError as failed:
        setting.warn(f"log files of {source.store.uri} are still at {store.uri}: {failed}")
