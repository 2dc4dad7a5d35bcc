"""Finds the old paths from which a table has moved to where it is, and whether they lead there.

The commit that opened the target of a move has a ``txn`` action with the id of the move, which
stays in every later version. The version before it has the lock, whose entry names the source.
A redirect to a table that was there before (``--to-existing``) leaves nothing at its target.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from lakeferry.errors import LakeferryError, NotATable, RedirectSpecInvalid, TableNotFound
from lakeferry.redirect import lineage, read_entry, redirect_commits
from lakeferry.redirect.states import RedirectState
from lakeferry.storage import Store
from lakeferry.table import DeltaLog


@dataclass(frozen=True, slots=True)
class OldPath:
    """A path that leads to a table. ``state`` is ``None`` if it can't be read, as ``why`` says."""

    source: str
    state: RedirectState | None
    why: str | None = None


def old_paths(open_log: Callable[[str], DeltaLog], target: DeltaLog) -> list[OldPath]:
    """Return the paths whose redirects lead to a table, the one of its latest move first."""
    moves = {
        app.removeprefix(lineage.APP_ID): txn.version
        for app, txn in target.small_snapshot().txns.items()
        if app.startswith(lineage.APP_ID)
    }
    found = []
    for move_id, version in sorted(moves.items(), key=lambda move: -move[1]):
        source = _source_of(target.store, version, move_id)
        found.append(_leading(open_log, source, move_id) if source is not None else None)
    return [path for path in found if path is not None]


def _source_of(store: Store, version: int, move_id: str) -> str | None:
    """Return the source of the move that opened a table at a version, if it is on record."""
    lock = redirect_commits.read_commit(store, version - 1)
    if lock is None or lock[1].protocol is None or lock[1].metadata is None:
        return None
    try:
        entry = read_entry.read(lock[1].protocol, lock[1].metadata, store.uri)
    except RedirectSpecInvalid:
        return None
    journal = entry.journal if entry is not None else None
    if entry is None or journal is None or journal.move_id != move_id:
        return None
    return entry.source


def _leading(open_log: Callable[[str], DeltaLog], source: str, move_id: str) -> OldPath | None:
    """Return a source that still has the redirect of a move, or that can't be read."""
    try:
        state = open_log(source).state()
        redirect = read_entry.read(state.protocol, state.metadata, source)
    except (TableNotFound, NotATable):
        return None
    except LakeferryError as unreadable:
        return OldPath(source, None, str(unreadable))
    if redirect is None or redirect.journal is None or redirect.journal.move_id != move_id:
        return None
    return OldPath(source, redirect.state)
