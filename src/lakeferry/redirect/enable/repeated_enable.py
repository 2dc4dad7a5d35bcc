"""Answers ``enable`` for a table that already has a redirect."""

from __future__ import annotations

from dataclasses import replace

from lakeferry.errors import RedirectInProgress
from lakeferry.log.conflicts import Conflict
from lakeferry.log.replay import TableState as TableState
from lakeferry.redirect import (
    entry,
    move_lookup,
    received_entries,
    redirect_commits,
    states,
    steps,
)
from lakeferry.redirect.disable import disabling, withdrawn_target
from lakeferry.redirect.enable.preflight import Request
from lakeferry.redirect.entry import Data, Dialect, Journal, Redirect
from lakeferry.redirect.outcome import Outcome
from lakeferry.redirect.redirect_context import Setting
from lakeferry.redirect.states import RedirectEvent, RedirectState
from lakeferry.storage.uris import same_place, shell_safe
from lakeferry.table import DeltaLog


def answer(
    setting: Setting,
    source: DeltaLog,
    state: TableState,
    redirect: Redirect,
    request: Request,
) -> Outcome:
    """Answer a request for a table that has a redirect already."""
    _check_again(setting, request, source, state, redirect)
    version = state.version
    changed = bool(request.rules) and request.rules != redirect.rules
    if changed:
        version = change_rules(setting, source, state, redirect, request)
    return Outcome(RedirectState.READY, request.source, str(redirect.target), version, changed)


def _check_again(
    setting: Setting, request: Request, source: DeltaLog, state: TableState, redirect: Redirect
) -> None:
    """Refuse a request for a table with a redirect, unless it leads where it is wanted to."""
    entry.check_own_redirect(redirect, request.source)
    if redirect.state is not RedirectState.READY:
        raise in_progress(request.source, redirect)
    if redirect.mode is not request.mode or not _leads_to(setting, redirect, request):
        states.after(RedirectState.READY, RedirectEvent.ENABLE, request.source)
    if _is_withdrawn(setting, source, state, redirect):
        raise RedirectInProgress(
            f"a 'redirect disable' of {request.source} isn't finished",
            cause=f"its target {redirect.target} is already closed",
            remedy=f"'lakeferry redirect resume {shell_safe(request.source)}' completes it; then "
            "run the same command again",
            location=request.source,
            state=redirect.state.value,
            target=str(redirect.target),
        )


def _is_withdrawn(
    setting: Setting, source: DeltaLog, state: TableState, redirect: Redirect
) -> bool:
    """Return whether a redirect that is READY is about to end, or has ended and is back.

    Refuses where the target is gone, or another table is there.
    """
    if move_lookup.leads_nowhere(source, redirect, state.version):
        return True
    if redirect.journal is not None and redirect.journal.data is not Data.EXISTING:
        withdrawn_target.check_target(setting, source.store.uri, state, redirect)
    return disabling.has_begun(setting, redirect)


def _leads_to(setting: Setting, redirect: Redirect, request: Request) -> bool:
    """Tell whether a redirect leads where a request wants to go, by the name of today or then."""
    there, wanted = redirect.target, request.target
    if there is None:
        return False
    if there.location is not None and wanted.location is not None:
        return same_place(there.location, wanted.location)
    if there.kind is not wanted.kind or wanted.name is None:
        return False
    if there.kind.catalog is not None and there.table_id is not None:
        found = setting.catalog(there.kind.catalog).find(wanted.name)
        if found is not None:
            return found.is_same(there.table_id, there.metastore_id)
    return wanted.name in {there.name, redirect.journal.catalog_name if redirect.journal else None}


def change_rules(
    setting: Setting, source: DeltaLog, state: TableState, redirect: Redirect, request: Request
) -> int:
    """Commit other no-redirect rules: the one thing of a redirect that may change while READY."""
    states.after(redirect.state, RedirectEvent.CHANGE_RULES, request.source)
    if redirect.journal is None and all(each is Dialect.CATALOG for each in redirect.dialects):
        # That dialect has no place for rules, so another program's entry gets a journal.
        redirect = replace(redirect, journal=Journal(Data.EXISTING, move_id=setting.new_id()))
        received_entries.mark_set_here(source.store, redirect)
    bare = redirect_commits.bare(state.protocol, state.metadata, redirect.journal)
    after = bare.carrying(replace(redirect, rules=request.rules))
    move_id = redirect.journal.move_id if redirect.journal else None
    wanted = redirect_commits.transition(
        state, after, RedirectState.READY, move_id, setting.new_id()
    )
    result = source.commit(wanted, state)
    if isinstance(result, Conflict):
        raise result.error()
    setting.step(steps.commit_rules(request.source, result.version, request.rules))
    return result.version


def in_progress(source: str, present: Redirect) -> RedirectInProgress:
    """Return the refusal to move a table that is moving, or that is frozen."""
    if present.is_frozen:
        return RedirectInProgress(
            f"{source} is frozen",
            cause="'redirect freeze' made it read-only, and it has no target",
            remedy=f"run 'lakeferry redirect thaw {shell_safe(source)}', then the same command "
            "again",
            location=source,
            state=present.state.value,
            frozen=True,
        )
    return RedirectInProgress(
        f"a redirect of {source} isn't finished",
        cause=f"its state is {present.state.value}, its target {present.target or 'none'}",
        remedy=f"'lakeferry redirect resume {shell_safe(source)}' continues it, 'lakeferry "
        f"redirect cancel {shell_safe(source)}' undoes it",
        location=source,
        state=present.state.value,
        target=None if present.target is None else str(present.target),
    )
