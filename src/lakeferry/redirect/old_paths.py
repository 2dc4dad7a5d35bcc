"""Finds the old paths from which a table has moved to where it is, and whether they lead there.

The commit that opened the target of a move has a ``txn`` action with the id of the move, which
stays in every later version. The version before it has the lock, whose entry names the source.
When log cleanup has deleted that version, the source isn't known any more. A redirect to a table
that was there before (``--to-existing``) leaves nothing at its target.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from lakeferry.errors import LakeferryError, NotATable, RedirectSpecInvalid, TableNotFound
from lakeferry.log.lines import Lines
from lakeferry.redirect import lineage, read_entry, redirect_commits
from lakeferry.redirect.states import RedirectState
from lakeferry.table import DeltaLog


@dataclass(frozen=True, slots=True)
class OldPath:
    """A path that leads to a table.

    ``state`` is ``None`` if it can't be read, and so is ``source`` if it isn't on record any more.
    Then the path may lead there, and ``why`` says what is in the way.
    """

    source: str | None
    state: RedirectState | None
    why: str | None = None


def old_paths(open_log: Callable[[str], DeltaLog], target: DeltaLog) -> list[OldPath]:
    """Return the paths whose redirects lead to a table, the one of its latest move first."""
    moves = {
        app.removeprefix(lineage.APP_ID): txn.version
        for app, txn in target.small_snapshot().txns.items()
        if app.startswith(lineage.APP_ID)
    }
    found: list[OldPath | None] = []
    for move_id, version in sorted(moves.items(), key=lambda move: -move[1]):
        lock = redirect_commits.read_commit(target.store, version - 1)
        if lock is not None:
            source = _source_of(lock[1], move_id, target.store.uri)
            found += [_leading(open_log, source, move_id)] if source is not None else []
        elif not found:
            # The path of an earlier move leads to that of a later one.
            why = f"version {version - 1}, which named it, was cleaned up"
            found.append(OldPath(None, None, why))
    return [path for path in found if path is not None]


def _source_of(lock: Lines, move_id: str, uri: str) -> str | None:
    """Return the source of a move, if this commit locked its target."""
    if lock.protocol is None or lock.metadata is None:
        return None
    try:
        entry = read_entry.read(lock.protocol, lock.metadata, uri)
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
