"""Going back from ENABLING to NORMAL.

The closing commit at the target's *N+1* decides; then the name goes, then what
was brought, then the source's *N+1* says NORMAL, and at last the lock, the closing
commit itself and the claim. Until the source is NORMAL the last three stay, so
that nobody can open the target behind our back; and what waits to be published
goes first, so that nobody can make a table of what is left.

Whoever deletes asks before each wave whether the place is still this move's: two
may cancel at once, and when the faster one is done a new move may begin there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from lakeferry.errors import (
    CommitConflict,
    LakeferryError,
    RedirectIllegalTransition,
    RedirectTargetNotEmpty,
)
from lakeferry.log import files, paths, references
from lakeferry.log.actions import CommitInfo
from lakeferry.log.commit import Conflict
from lakeferry.log.replay import State as TableState
from lakeferry.log.rewrite import Adopted
from lakeferry.redirect import commits, dialects, existing, model, moving, staging, states
from lakeferry.redirect.model import Data, Redirect
from lakeferry.redirect.moving import Move, Outcome
from lakeferry.redirect.setting import Setting
from lakeferry.redirect.staging import Claim
from lakeferry.redirect.states import Event, State
from lakeferry.table import DeltaLog, load

_PAGE = 10_000


def cancel(setting: Setting, source_uri: str) -> Outcome:
    """Take back a move that isn't past the point of no return. Twice is once."""
    source = setting.log(source_uri)
    state = source.state()
    redirect = dialects.read(state.protocol, state.metadata, source_uri)
    if redirect is None:
        return Outcome(State.NORMAL, source_uri, None, state.version, False)
    model.check_own(redirect, source_uri)
    states.after(redirect.state, Event.CANCEL, source_uri)
    if redirect.journal is None or redirect.is_frozen:
        # Another program's redirect, or none at all: there is nothing of ours to take back.
        version = remove_entry(setting, source, state, redirect)
        return Outcome(State.NORMAL, source_uri, None, version, True)
    move = moving.begun(setting, source, state, redirect)
    if redirect.journal.data is Data.EXISTING:
        return existing.cancel(move)
    try:
        decided, info = move.decide(State.NORMAL)
        if decided is State.NORMAL:
            finish(move, info)
    except LakeferryError:
        # Somebody else may have ended the move under our hands: then that is what happened.
        ended = move.ended()
        if ended is None:
            raise
        decided = ended
    if decided is State.READY:
        raise RedirectIllegalTransition(
            f"the move of {source_uri} can't be cancelled any more",
            cause=f"its target {move.target.store.uri} is open already",
            remedy="'redirect resume' ends the move; 'redirect disable' brings the table back",
            location=source_uri,
            state=redirect.state.value,
        )
    return Outcome(State.NORMAL, source_uri, None, move.version + 1, True)


def finish(move: Move, decided: CommitInfo) -> None:
    """Take everything back; the target's *N+1* has closed it."""
    if move.is_going():
        moving.forget_name(move.setting, move.redirect, move.target.store.uri)
        staging.revoke(move.target.store, _claim(move))
        remove_copies(move.source, move.target, move.is_going, move.is_locked, _ends(move))
    move.end(State.NORMAL, decided)
    _remove_ends(move)
    staging.release(move.target.store, replace(_claim(move), cancelled=True))
    move.target.store.prune("")


def _claim(move: Move) -> Claim:
    journal, bare = move.journal, move.bare
    return Claim(journal.move_id or "", move.source.store.uri, bare.metadata.id, journal.data)


def _ends(move: Move) -> frozenset[str]:
    """Return the lock and what decided: they go last, so that what is left stays locked."""
    return frozenset({paths.commit(move.version), paths.commit(move.version + 1)})


def _remove_ends(move: Move) -> None:
    """Delete the lock and the closing commit, but not what a later move has put in their place."""
    store, version = move.target.store, move.version
    try:
        decided = move.decision()
    except CommitConflict:
        decided = None
    if decided is not None:
        staging.delete(store, [paths.commit(version + 1)])
    found = commits.read_commit(store, version)
    if found is not None and found[0] == move.lock_body:
        staging.delete(store, [paths.commit(version)])


def abandon(move: Move) -> None:
    """Clean up behind a move that was cancelled while we went on with it.

    By now the place may be another move's, or somebody's who made a table there:
    what doesn't bear this move's mark stays.
    """
    store = move.target.store
    revoked = replace(_claim(move), cancelled=True)
    try:
        staging.delete(store, list(staging.staged(store, revoked.move_id)))
        if not staging.take(store, revoked):
            return
        if _is_unopened_or_ours(move):
            ours = partial(staging.is_claimed, store, revoked)
            remove_copies(move.source, move.target, ours, lambda: True, _ends(move))
            _remove_ends(move)
        staging.release(store, revoked)
        store.prune("")
    except LakeferryError as failed:
        # How the move ended matters more.
        move.setting.warn(f"what was brought to {store.uri} may still be there: {failed}")


def _is_unopened_or_ours(move: Move) -> bool:
    """Tell whether nothing can be opened at the target but what this move has published."""
    try:
        staging.check_unopened(move.target.store)
    except RedirectTargetNotEmpty:
        found = commits.read_commit(move.target.store, move.target.state().version)
        mark = commits.mark_of(found[1].commit_info) if found else None
        return mark is not None and mark.get("moveId") == move.journal.move_id
    return True


def remove_entry(setting: Setting, source: DeltaLog, state: TableState, redirect: Redirect) -> int:
    """Commit the table without its entry and without its feature."""
    bare = commits.bare(state.protocol, state.metadata, redirect.journal)
    move_id = redirect.journal.move_id if redirect.journal else None
    wanted = commits.transition(state, bare, State.NORMAL, move_id, setting.new_id())
    result = source.commit(wanted, state)
    if isinstance(result, Conflict):
        raise result.error()
    return result.version


def remove_copies(
    source: DeltaLog,
    target: DeltaLog,
    still: Callable[[], bool],
    published: Callable[[], bool],
    keep: frozenset[str] = frozenset(),
) -> None:
    """Delete what was brought to the target: what waits first, then the log, then the data.

    Data is deleted by name: what no version of the source refers to isn't ours.
    Unless we have ``published`` it, a log's beginning isn't ours either; that is asked
    when nothing more can be published. ``still`` is asked before each wave whether
    the place is ours.
    """
    store = target.store
    staging.delete(store, list(staging.staged(store)), still)
    begins = published()
    openable: list[str] = []
    rest: list[str] = []
    for entry in store.list(f"{paths.LOG_DIR}/"):
        if entry.path in keep or entry.path.startswith(f"{staging.FOLDER}/"):
            continue
        parsed = paths.parse(entry.path)
        opens = parsed is not None and staging.opens(parsed)
        if begins or not opens:
            (openable if opens else rest).append(entry.path)
    staging.delete(store, openable, still)
    staging.delete(store, rest, still)
    page: list[str] = []
    known: pa.Array | None = None
    for entry in store.list(""):
        if entry.path.startswith(f"{paths.LOG_DIR}/"):
            continue
        page.append(entry.path)
        if len(page) >= _PAGE:
            known = _names(source) if known is None else known
            staging.delete(store, _ours(page, known), still)
            page = []
    if page:
        known = _names(source) if known is None else known
        staging.delete(store, _ours(page, known), still)


def _ours(page: list[str], known: pa.Array) -> list[str]:
    names = pa.array(page, pa.string())
    found: list[str] = names.filter(pc.is_in(names, value_set=known)).to_pylist()
    return found


def _names(source: DeltaLog) -> pa.Array:
    """Return what files that the source's log refers to are called at the target."""
    listing = source.listing()
    tables = [
        references.of_lines(data, file.path)
        for file, data in load.contents(source.store, listing.commits.values())
    ]
    for checkpoint in listing.checkpoints:
        if checkpoint.complete:
            for rows in load.checkpoint_rows(source.store, checkpoint.files, ("sidecar", "add")):
                batches = [pa.Table.from_batches([batch]) for batch in rows.adds]
                tables += [references.of_adds(batch) for batch in batches]
            # The oldest has all that the commits after it don't say.
            break
    found = references.distinct(tables)["path"].combine_chunks()
    return files.canonical_paths(Adopted()(found), source.store.uri)
