"""Redirects to a table that is already at the target.

Nothing is copied, and the target isn't changed: it is an independent table. So the
source's *N+1* decides here, READY or NORMAL, and version numbers need not match. Content
is compared before writers are blocked, and again while they are if one of the tables has
changed since. So the compared content is what readers get.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from lakeferry.catalogs import names
from lakeferry.errors import (
    CatalogManaged,
    LakeferryError,
    NotATable,
    NotEqual,
    RedirectIllegalTransition,
    RedirectInProgress,
    RedirectTargetMissing,
    TableNotFound,
)
from lakeferry.log.conflicts import Conflict
from lakeferry.log.replay import TableState as TableState
from lakeferry.redirect import (
    lineage,
    read_entry,
    redirect_commits,
    settling,
    steps,
)
from lakeferry.redirect.enable import enabling_commit
from lakeferry.redirect.enable.preflight import FEW_CAN_OPEN, Request
from lakeferry.redirect.entry import Redirect, RedirectTarget, TargetCommit, TargetKind
from lakeferry.redirect.managed_commits import as_unmanaged
from lakeferry.redirect.move import Move
from lakeferry.redirect.outcome import Outcome
from lakeferry.redirect.redirect_context import Setting
from lakeferry.redirect.resolve import Resolver
from lakeferry.redirect.states import RedirectState
from lakeferry.storage.uris import shell_safe
from lakeferry.table import DeltaLog
from lakeferry.table.log_comparison import TableSide, compare_logs

_SHOWN = 5


@dataclass(frozen=True, slots=True)
class _Compared:
    """Two versions with equal content, each with the digest of its commit."""

    source_version: int
    source_digest: str | None
    target: TargetCommit

    def still_holds(self, move: Move, target: TargetCommit) -> bool:
        """Return whether a move begins with the compared versions, so they are still equal."""
        if None in (self.source_digest, self.target.sha256) or self.target != target:
            return False
        if self.source_version != move.version - 1:
            return False
        digest = lineage.commit_digest(move.source.store, self.source_version)
        return self.source_digest == digest


def enable_to_existing(
    setting: Setting, source: DeltaLog, state: TableState, request: Request
) -> Outcome:
    """Redirect a table with the newest state ``state`` to an existing table."""
    compared = _check(setting, source, state.version, request)
    request = replace(request, target=_by_id(setting, request.target))
    if not request.verified:
        setting.warn(f"the content of {request.location} wasn't compared with that of the source")
    move = enabling_commit.commit_enabling(setting, source, request, setting.new_id(), state)
    began = time.monotonic()
    move.check_not_replaced()
    version = _ready(move, verified=request.verified, compared=compared)
    blocked_ms = round((time.monotonic() - began) * 1000)
    return replace(_settled(move, version), blocked_ms=blocked_ms)


def _by_id(setting: Setting, target: RedirectTarget) -> RedirectTarget:
    """Return a target with its id, for Unity Catalog; a rename doesn't change the id."""
    if target.kind is not TargetKind.UNITY or target.name is None:
        return target
    found = setting.catalog("unity").get(target.name)
    if found.metastore_id is None:
        return target
    return replace(target, metastore_id=found.metastore_id, table_id=found.table_id)


def _check(setting: Setting, source: DeltaLog, version: int, request: Request) -> _Compared | None:
    """Refuse a redirect that can't succeed, before writers are blocked.

    ``version`` is the source's. Returns the compared versions.
    """
    with names.name_in_errors(str(request.target)):
        _check_target(setting, request.source, request.location)
    if not request.verified:
        return None
    target = setting.log(request.location)
    # Read before the comparison, so that a later write makes the compared version outdated.
    digest = lineage.commit_digest(source.store, version)
    compared = _Compared(version, digest, lineage.newest_commit(target))
    _compare(setting, source, target)
    return compared


def _check_target(setting: Setting, source: str, place: str) -> None:
    """Refuse a target that doesn't exist, leads back to the source, or can't be written to."""
    try:
        setting.log(place).state()
    except TableNotFound as missing:
        raise RedirectTargetMissing(
            f"there is no table at {place}",
            cause=missing.cause,
            remedy="leave out --to-existing: the table is then copied there",
            target=place,
        ) from missing
    except NotATable as other:
        raise RedirectTargetMissing(
            f"there is no table at {place}",
            cause=other.cause,
            remedy="give the folder that holds the copy's _delta_log, or leave out --to-existing "
            "and choose an empty target",
            target=place,
        ) from other
    resolver = Resolver(setting.open_store, setting.catalog, grant=setting.grant)
    asked = setting.open_store(place).asks_catalog
    if asked:
        setting.warn(FEW_CAN_OPEN)
    try:
        chain = resolver.check_leads_elsewhere(place, source, allow_managed=asked)
    except CatalogManaged as by_name:
        if (name := by_name.fields.get("name")) is not None:
            by_name.remedy = (
                f"redirect to its name: lakeferry redirect enable {shell_safe(source)} "
                f"unity:{name} --to-existing"
            )
        raise
    for each in chain:
        state = setting.log(each).state()
        redirect = read_entry.read(state.protocol, state.metadata, each)
        if redirect is not None and redirect.state.refuses_writers:
            raise _unwritable(each, redirect)


def _unwritable(place: str, redirect: Redirect) -> LakeferryError:
    """Return the error for a target that is itself redirected or locked against writers."""
    what = f"{place} can't be written to"
    if redirect.is_frozen:
        return RedirectIllegalTransition(
            what,
            cause="it is frozen",
            remedy=f"run 'lakeferry redirect thaw {shell_safe(place)}' first",
            location=place,
            state=redirect.state.value,
        )
    if redirect.state is RedirectState.DROPPING and redirect.is_target(place):
        return RedirectIllegalTransition(
            what,
            cause=f"it was closed permanently when the redirect of {redirect.source} was disabled",
            remedy="copy the table to another place: leave out --to-existing and give an empty "
            "target",
            location=place,
            state=redirect.state.value,
        )
    moved = (redirect.source if redirect.is_target(place) else None) or place
    return RedirectInProgress(
        what,
        cause=f"a redirect of {moved} is under way ({redirect.state.value})",
        remedy=f"'lakeferry redirect resume {shell_safe(moved)}' completes that move first",
        location=place,
        state=redirect.state.value,
    )


def finish_to_existing(move: Move) -> Outcome:
    """Go from ENABLING to READY, or back to NORMAL if the tables aren't equal."""
    _check_target(move.setting, move.source.store.uri, move.target.store.uri)
    return _settled(move, _ready(move, verified=True))


def _ready(move: Move, *, verified: bool, compared: _Compared | None = None) -> int:
    # Read before the comparison, so that the compared version contains this commit.
    recorded = lineage.newest_commit(move.target)
    is_known = compared is not None and compared.still_holds(move, recorded)
    if verified and move.journal.verified and not is_known:
        try:
            _compare(move.setting, move.source, move.target)
        except NotEqual:
            cancel_to_existing(move)
            raise
    return _end(move, RedirectState.READY, recorded)


def _settled(move: Move, version: int) -> Outcome:
    settling.settle_version(move.source, version, move.setting)
    return Outcome(
        RedirectState.READY, move.source.store.uri, str(move.redirect.target), version, True
    )


def cancel_to_existing(move: Move) -> Outcome:
    """Go back to NORMAL, unless the redirect is READY by now."""
    version = _end(move, RedirectState.NORMAL)
    return Outcome(RedirectState.NORMAL, move.source.store.uri, None, version, True)


def _end(move: Move, state: RedirectState, recorded: TargetCommit | None = None) -> int:
    version = move.version + 1
    after = move.bare
    if state is RedirectState.READY:
        journal = replace(move.journal, ready_version=version, target_commit=recorded)
        after = after.carrying(move.redirect.in_state(RedirectState.READY, journal=journal))
    wanted = redirect_commits.transition(
        move.begun, after, state, move.journal.move_id, move.setting.new_id()
    )
    result = move.source.commit_exactly(wanted, move.begun, move.setting.clock())
    if isinstance(result, Conflict):
        mark = redirect_commits.mark_of(result.winner) or {}
        if mark.get("moveId") != move.journal.move_id:
            raise result.error()
        if mark.get("state") != state.value:
            raise RedirectIllegalTransition(
                f"the redirect of {move.source.store.uri} was completed or cancelled by another "
                "process",
                cause=f"version {version} of the source has the state {mark.get('state')}",
                location=move.source.store.uri,
                state=mark.get("state"),
            )
    else:
        move.setting.step(steps.commit_step(move.source.store.uri, version, state))
    return version


def _compare(setting: Setting, source: DeltaLog, target: DeltaLog) -> None:
    """Refuse two tables that aren't equal, by their logs."""
    setting.step(steps.compare(source.store.uri, target.store.uri))
    sides = [TableSide(each.store, each.snapshot()) for each in (source, target)]
    if target.store.asks_catalog:
        sides = [replace(each, snapshot=as_unmanaged(each.snapshot)) for each in sides]
    found = compare_logs(*sides).differences
    if found.count:
        shown = ", ".join(
            f"{each.kind} {each.path or ''}".strip() for each in found.listed[:_SHOWN]
        )
        raise NotEqual(
            f"the content of {target.store.uri} differs from that of {source.store.uri}",
            cause=f"{found.count} differences: {shown}",
            remedy="copy the table again; or give --unverified to redirect nevertheless",
            difference_count=found.count,
        )
