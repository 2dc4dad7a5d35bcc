"""Finds out whether a move can't end at its managed target any more, and leaves it then.

The catalog's first ratified commit has to be this move's *N+1*. If somebody has found the private
name and committed another one, no *N+1* of ours can be ratified. If the table was dropped, none
can be proposed. Then the source alone goes back to NORMAL.

If the catalog refuses the commit that would close the table, by its rules, the table is dropped
instead. That decides as well: it is dropped by its private name, which it keeps until it is open,
and the source says READY only after the table has its final name.
"""

from __future__ import annotations

from functools import partial

from lakeferry.errors import CommitConflict, CorruptLog, RedirectIllegalTransition, TableNotFound
from lakeferry.log import paths
from lakeferry.log.lines import Lines
from lakeferry.log.paths import LogFileKind
from lakeferry.redirect import managed_place, redirect_commits, steps
from lakeferry.redirect.enable import log_staging, target_claim
from lakeferry.redirect.enable.target_claim import Claim
from lakeferry.redirect.move import Move
from lakeferry.redirect.states import RedirectState
from lakeferry.storage.uris import shell_safe
from lakeferry.table.managed import ManagedStore


def is_out_of_reach(move: Move) -> bool:
    """Return whether the table was dropped, or has commits of others instead of *N+1*."""
    return is_dropped(move) or _is_strange(move)


def check_given_up(move: Move) -> None:
    """Refuse to give a target up that may have been opened and that we may not see any more.

    A catalog says of a table that somebody else dropped what it says of one that it hides.
    """
    if is_dropped(move) and _may_be_open(move):
        source = shell_safe(move.source.store.uri)
        raise RedirectIllegalTransition(
            f"the move of {move.source.store.uri} can't be cancelled",
            cause="its target may be open, and the catalog says that there is no such table",
            remedy="ask the catalog's administrator whether the table "
            f"{move.managed.private_name if move.managed else ''} was dropped; if so, 'lakeferry "
            f"redirect cancel {source} --leave-copies' makes the source an ordinary table again",
            location=move.source.store.uri,
            state=RedirectState.ENABLING.value,
        )


def drop_undecided(move: Move) -> bool:
    """Drop a table that has no commits for the catalog; return whether this has ended the move."""
    store = move.target.store
    if move.managed is None or not isinstance(store, ManagedStore):
        return False
    try:
        if store.catalog.head().latest_version > 0:
            return False
    except TableNotFound:
        return False
    private = move.managed.private_name
    tables = managed_place.tables_of(move.setting, move.redirect.target)
    if not tables.drop_named(move.managed.table_id, private):
        return False
    kind = move.redirect.kind.catalog
    move.setting.step(steps.name("drop", f"{kind}:{private}", move.place.uri))
    return True


def leave_managed(
    move: Move, claim: Claim, ends: frozenset[str], *, was_closed: bool = False
) -> None:
    """Delete the copies if the table was dropped; leave all to who has committed to it else.

    ``was_closed``: it was dropped by us, and can't have been open.
    """
    store = move.place
    if not target_claim.is_place_claimed(store, claim):
        return
    if was_closed or (is_dropped(move) and not _may_be_open(move)):
        still = partial(target_claim.is_place_claimed, store, claim)
        move.setting.removal.remove_copies(move.source, move.place_log, still, lambda: True)
        log_staging.delete(store, sorted(ends))
    else:
        name = move.managed.private_name if move.managed is not None else ""
        move.setting.warn(f"what was copied to {store.uri} for unity:{name} stays there")
        log_staging.delete(store, list(log_staging.staged_files(store, move.journal.move_id)))
    target_claim.release(store, claim)
    store.prune("")


def is_dropped(move: Move) -> bool:
    """Return whether the catalog doesn't have the table of a move."""
    store = move.target.store
    assert isinstance(store, ManagedStore)
    try:
        store.refresh()
    except TableNotFound:
        return True
    return False


def _is_strange(move: Move) -> bool:
    """Return whether the catalog has ratified a commit that isn't this move's *N+1*."""
    store = move.target.store
    assert isinstance(store, ManagedStore)
    try:
        latest = store.catalog.head().latest_version
        if latest <= move.version:
            return latest > 0
        return move.decision() is None and not _may_be_open(move)
    except (CommitConflict, CorruptLog):
        return True
    except TableNotFound:
        return False


def _may_be_open(move: Move) -> bool:
    """Return whether an opening *N+1* was proposed: it was ratified, or may have been."""
    version = move.version + 1
    staged = (info.path for info in move.place.list(f"{paths.STAGED_DIR}/"))
    names = [paths.commit(version)]
    for path in staged:
        file = paths.parse(path)
        if file is not None and file.kind is LogFileKind.STAGED and file.version == version:
            names.append(path)
    return any(_opens(move, name) for name in names)


def _opens(move: Move, name: str) -> bool:
    lines = Lines()
    if not move.place.exists(name):
        return False
    lines.read(move.place.get(name), name)
    return redirect_commits.mark_of(lines.commit_info) == {
        "state": RedirectState.READY.value,
        "moveId": move.journal.move_id,
    }
