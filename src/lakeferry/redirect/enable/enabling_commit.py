"""Commits ENABLING on top of the source's newest version."""

from __future__ import annotations

from lakeferry.log import protocols
from lakeferry.log.conflicts import Conflict
from lakeferry.log.replay import TableState as TableState
from lakeferry.redirect import (
    move_lookup,
    read_entry,
    received_entries,
    redirect_commits,
    steps,
)
from lakeferry.redirect.enable import managed_move, preflight, repeated_enable
from lakeferry.redirect.enable.preflight import Request
from lakeferry.redirect.entry import Redirect
from lakeferry.redirect.move import Move
from lakeferry.redirect.redirect_commits import Bare
from lakeferry.redirect.redirect_context import Setting
from lakeferry.redirect.states import RedirectState
from lakeferry.table import DeltaLog
from lakeferry.table.put_commit import Committed

MAX_BEGINNINGS = 10
"""How often a commit that began a move may be overwritten, or lose, before we give up."""


def commit_enabling(
    setting: Setting,
    source: DeltaLog,
    request: Request,
    move_id: str,
    known: TableState | None = None,
) -> Move:
    """Commit ENABLING on top of the source's newest version.

    ``known`` is a state of the source that was loaded before. Commits that came after it are
    found by the commit itself; where they are in the way, the state is loaded anew.
    """
    conflict: Conflict | None = None
    for _ in range(MAX_BEGINNINGS):
        state, known = known or source.state(), None
        present = read_entry.read(state.protocol, state.metadata, request.source)
        if present is not None:
            raise repeated_enable.in_progress(request.source, present)
        preflight.check_move(setting, request, state)
        managed_move.check_still_fits(setting, request, state)
        redirect = _entry(request, state, move_id)
        received_entries.mark_set_here(source.store, redirect)
        wanted = redirect_commits.transition(
            state,
            Bare(state.protocol, state.metadata).carrying(redirect),
            RedirectState.ENABLING,
            move_id,
            setting.new_id(),
            {"target": str(request.target), "mode": request.mode.value},
        )
        result = source.commit(wanted, state)
        if isinstance(result, Committed):
            setting.step(steps.commit_step(request.source, result.version, RedirectState.ENABLING))
            return _move_of(setting, source, redirect, result)
        conflict = result
    assert conflict is not None
    raise conflict.error()


def check_can_begin(source: DeltaLog, request: Request, state: TableState) -> None:
    """Refuse a table that can't begin to move, or not end; write nothing."""
    source.check_checksum(state.version)
    redirect_commits.check_both_ways(source, state, _entry(request, state, ""))


def _entry(request: Request, state: TableState, move_id: str) -> Redirect:
    return preflight.entry(request, protocols.versions(state.protocol), move_id)


def _move_of(setting: Setting, source: DeltaLog, redirect: Redirect, made: Committed) -> Move:
    found = redirect_commits.read_commit(source.store, made.version)
    info = found[1].commit_info if found else None
    begun = TableState(made.version, made.head.protocol, made.head.metadata, info)
    return move_lookup.open_move(setting, source, redirect, begun, made.body)
