"""Finds the old paths from which a table has moved to where it is, and whether they lead there.

The commit that opened the target of a move has a ``txn`` action with the id of the move, which
stays in every later version. The version before it has the lock, whose entry names the source.
A redirect to a table that was there before (``--to-existing``) leaves nothing at its target.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from lakeferry.errors import LakeferryError, NotATable, RedirectSpecInvalid, TableNotFound
from lakeferry.redirect import lineage, read_entry, redirect_commits
from lakeferry.redirect.redirect_context import Setting
from lakeferry.redirect.states import RedirectState
from lakeferry.storage import Store
from lakeferry.table import DeltaLog


@dataclass(frozen=True, slots=True)
class OldPath:
    """A path that leads to a table. ``state`` is ``None`` if the path can't be read: see ``why``."""

    source: str
    state: RedirectState | None
    why: str | None = None


def old_paths(setting: Setting, target: DeltaLog) -> list[OldPath]:
    """Return the paths whose redirects lead to a table, by the latest move first."""
    moves = {
        app.removeprefix(lineage.APP_ID): txn.version
        for app, txn in target.small_snapshot().txns.items()
        if app.startswith(lineage.APP_ID)
    }
    found = []
    for move_id, version in sorted(moves.items(), key=lambda move: -move[1]):
        for source in _source_of(target.store, version, move_id):
            if (path := _leading(setting, source, move_id)) is not None:
                found.append(path)
    return found


def _source_of(store: Store, version: int, move_id: str) -> Iterator[str]:
    """Yield the source of the move that opened a table at a version, if it is on record."""
    lock = redirect_commits.read_commit(store, version - 1)
    if lock is None or lock[1].protocol is None or lock[1].metadata is None:
        return
    try:
        entry = read_entry.read(lock[1].protocol, lock[1].metadata, store.uri)
    except RedirectSpecInvalid:
        return
    journal = entry.journal if entry is not None else None
    if entry is not None and entry.source and journal is not None and journal.move_id == move_id:
        yield entry.source


def _leading(setting: Setting, source: str, move_id: str) -> OldPath | None:
    """Return a source that still has the redirect of a move, or that can't be read."""
    try:
        state = setting.log(source).state()
        redirect = read_entry.read(state.protocol, state.metadata, source)
    except (TableNotFound, NotATable):
        return None
    except LakeferryError as unreadable:
        return OldPath(source, None, str(unreadable))
    if redirect is None or redirect.journal is None or redirect.journal.move_id != move_id:
        return None
    return OldPath(source, redirect.state)
