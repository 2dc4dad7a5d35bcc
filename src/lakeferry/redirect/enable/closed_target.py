"""Replaces a target that a withdrawal has closed.

``disable`` leaves the target locked for ever. All its data is back at the source then, so a new
move of the same table to the same place may delete it first, if the user says so.
"""

from __future__ import annotations

from lakeferry.errors import RedirectTargetNotEmpty
from lakeferry.log.replay import TableState as TableState
from lakeferry.redirect import owned_file_removal
from lakeferry.redirect.disable import lost_files, target_removal
from lakeferry.redirect.disable.disabling import unfinished
from lakeferry.redirect.disable.withdrawal import Withdrawal, WithdrawalOptions
from lakeferry.redirect.enable.preflight import Request
from lakeferry.redirect.redirect_context import Setting
from lakeferry.table import DeltaLog


def to_replace(
    setting: Setting, source: DeltaLog, state: TableState, request: Request
) -> Withdrawal | None:
    """Return the way back whose closed target is where a table shall move, if it may go.

    The source's log has to tell that the withdrawal has ended: only then all that the target
    holds is at the source, too. Refuses a place where files of others are.
    """
    if not request.replace_closed:
        return None
    found = unfinished(setting, source, state, WithdrawalOptions(), request.location)
    if found is None:
        return None
    way = found[0]
    _check_unwritten(way)
    named = owned_file_removal.files_referred_to(source)
    if target_removal.refers_to_target(way, named):
        raise RedirectTargetNotEmpty(
            f"{request.location} can't be replaced",
            cause=f"{request.source} still refers to data files there",
            remedy="choose another target",
            target=request.location,
        )
    lack = lost_files.lack_at_home(way, named)
    if lack.count:
        copies = lost_files.copies_of(way, lack)
        raise RedirectTargetNotEmpty(
            f"{request.location} can't be replaced",
            cause=f"{lack.count} data files that {request.source} names are missing, and the "
            f"target may have the only copies: {', '.join(lack.examples)}",
            remedy=f"first put them back where they were ({copies}), or choose another target",
            target=request.location,
        )
    others = owned_file_removal.other_files(way.target, source, way.journal.move_id)
    if others:
        raise RedirectTargetNotEmpty(
            f"{request.location} can't be replaced",
            cause=f"there are files that don't belong to the closed table: {', '.join(others[:5])}",
            remedy="move them elsewhere, or choose another target",
            target=request.location,
        )
    way.removes_target = True
    return way


def _check_unwritten(way: Withdrawal) -> None:
    """Refuse a target whose newest version isn't the one that closed it."""
    if way.is_locked():
        return
    place = way.target.store.uri
    raise RedirectTargetNotEmpty(
        f"{place} can't be replaced",
        cause=f"a writer added version {way.locked_version} after the table was closed, and "
        f"{way.source.store.uri} doesn't have that version",
        remedy=f"copy the rows that you need from {place}, and delete the table there; or choose "
        "another target",
        target=place,
    )
