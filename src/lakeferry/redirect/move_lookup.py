"""Finds the move that a source's log tells of: one that has begun, or one that has ended."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from lakeferry.errors import LakeferryError, RedirectSpecInvalid
from lakeferry.log.actions import CommitInfo
from lakeferry.log.lines import Lines
from lakeferry.log.paths import LogFile
from lakeferry.log.replay import TableState as TableState
from lakeferry.redirect import redirect_commits
from lakeferry.redirect.entry import Data, Redirect
from lakeferry.redirect.managed_place import log_at, place_of_move, target_log
from lakeferry.redirect.move import Move
from lakeferry.redirect.redirect_context import Setting
from lakeferry.redirect.states import RedirectState
from lakeferry.storage.uris import shell_safe
from lakeferry.table import DeltaLog, load
from lakeferry.table.log_source import LogSource


def begun(
    setting: Setting,
    source: DeltaLog,
    state: TableState,
    redirect: Redirect,
    *,
    asks_catalog: bool = True,
) -> Move:
    """Return the move that the source's newest version began, read from its log.

    Without ``asks_catalog`` only what the move does at the source works.
    """
    found = redirect_commits.read_commit(source.store, state.version)
    if found is None or not is_beginning(found[1].commit_info, redirect):
        raise RedirectSpecInvalid(
            f"the redirect of {source.store.uri} can't be resumed",
            cause="its newest version isn't the commit that started the move: somebody wrote to "
            "the table after that commit, or another program started the move",
            remedy=f"'lakeferry redirect cancel {shell_safe(source.store.uri)}' removes the "
            "redirect",
            location=source.store.uri,
            value=state.version,
        )
    complete = redirect_commits.state_after(found[1], state.version, state)
    if asks_catalog:
        return open_move(setting, source, redirect, complete, found[0])
    place = setting.open_store(place_of_target(redirect))
    return Move(setting, source, place, log_at(setting, place), redirect, complete, found[0])


def open_move(
    setting: Setting, source: DeltaLog, redirect: Redirect, begun: TableState, body: bytes
) -> Move:
    """Return a move with its target opened; see :class:`Move` for the arguments."""
    place = place_of_move(setting, source.store.uri, redirect, place_of_target(redirect))
    target = target_log(setting, redirect, place, begun.version)
    return Move(setting, source, place, target, redirect, begun, body)


def is_beginning(info: CommitInfo | None, redirect: Redirect) -> bool:
    """Return whether a commit is the one that began a redirect of ours."""
    journal = redirect.journal
    return journal is not None and redirect_commits.mark_of(info) == {
        "state": RedirectState.ENABLING.value,
        "moveId": journal.move_id,
    }


def begun_earlier(setting: Setting, source: DeltaLog, redirect: Redirect) -> Move | None:
    """Return the move that an older version began, if others have committed on top of it.

    ``None`` if no remaining version began it.
    """
    newest_first = sorted(source.listing().commits.values(), key=lambda file: -file.version)
    for version, data, lines in _marked(source.source, newest_first):
        if is_beginning(lines.commit_info, redirect):
            try:
                before = source.state(version)
            except LakeferryError:
                # Log cleanup has deleted files that this version needs.
                return None
            complete = redirect_commits.state_after(lines, version, before)
            return open_move(setting, source, redirect, complete, data)
    return None


def leads_nowhere(source: DeltaLog, redirect: Redirect, version: int) -> bool:
    """Return whether a READY or DROPPING redirect is an old one that has come back.

    A RESTORE after the withdrawal brings it back, for example. It is old if the source's log
    has the commit that ended this move between READY and ``version``, which has the entry. A
    commit after ``version`` that ends the move doesn't count.
    """
    journal = redirect.journal
    if journal is None or journal.data is Data.EXISTING or journal.ready_version is None:
        return False
    if version <= journal.ready_version:
        return False
    for _, lines in marked(source, journal.ready_version + 1, version):
        mark = redirect_commits.mark_of(lines.commit_info) or {}
        if mark.get("moveId") == journal.move_id:
            return mark.get("state") == RedirectState.NORMAL.value
    return False


def marked(source: DeltaLog, first: int, last: int) -> Iterator[tuple[int, Lines]]:
    """Yield the commits from ``first`` to ``last`` that may be a redirect's, newest first."""
    found = load.list_log(source.source, first).commits
    newest_first = sorted(found.values(), key=lambda file: -file.version)
    wanted = [file for file in newest_first if first <= file.version <= last]
    # The newest one is often enough, so it is read alone.
    for files in (wanted[:1], wanted[1:]):
        for version, _, lines in _marked(source.source, files):
            yield version, lines


def _marked(store: LogSource, files: Iterable[LogFile]) -> Iterator[tuple[int, bytes, Lines]]:
    """Yield the commits that may be a redirect's, as bytes and parsed."""
    for file, data in load.contents(store, files):
        if redirect_commits.MARK.encode() in data:
            lines = Lines()
            lines.read(data, file.path)
            yield file.version, data, lines


def place_of_target(redirect: Redirect) -> str:
    """Return where the target of a redirect of ours was created."""
    assert redirect.target is not None
    place = redirect.target.location or (redirect.journal.location if redirect.journal else None)
    if place is None:
        raise RedirectSpecInvalid(
            "the redirect doesn't say where its target is", value=str(redirect.target)
        )
    return place
