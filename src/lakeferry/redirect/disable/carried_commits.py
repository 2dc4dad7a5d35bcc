"""Copies a target's commits since READY back to the source, under the same version numbers.

Data first: a commit is written when its files are there. Commits that change metadata or protocol
keep the source's entry.
"""

from __future__ import annotations

from functools import partial
from itertools import islice

from lakeferry.errors import CommitConflict, Diverged
from lakeferry.log import actions, features, protocols
from lakeferry.log.lines import Lines
from lakeferry.log.paths import LogFile
from lakeferry.log.replay import TableState as TableState
from lakeferry.log.rewrite import rewrite_lines
from lakeferry.log.segment import Segment
from lakeferry.redirect import dialects, redirect_commits, steps
from lakeferry.redirect.disable.managed_return import ManagedReturn
from lakeferry.redirect.disable.withdrawal import Withdrawal
from lakeferry.redirect.redirect_commits import Bare
from lakeferry.storage.uris import shell_safe
from lakeferry.table import load

_AT_ONCE = 100
"""How many commits are read between two checks that the target wasn't replaced."""


def bring_data(way: Withdrawal, first: int, last: int) -> None:
    """Copy the files that the target's commits ``first`` to ``last`` refer to."""
    deltas = _deltas(way, first, last)
    if not deltas or way.by_reference:
        return
    way.tell_changes()
    segment = Segment(last, None, deltas, None, None)
    way.copy(segment, resumed=way.filled)


def _deltas(way: Withdrawal, first: int, last: int) -> tuple[LogFile, ...]:
    listing = load.list_log(way.target.store, first)
    found = [listing.commits.get(version) for version in range(first, last + 1)]
    if None in found:
        way.check_lineage()
        gone = first + found.index(None)
        raise CommitConflict(
            f"version {gone} of {way.target.store.uri} is gone",
            cause="the target's log was cleaned up meanwhile",
            remedy="run the same command again: it brings all changes back in one commit",
            version=gone,
            reason="history_cleaned",
        )
    return tuple(file for file in found if file is not None)


def bring_commits(way: Withdrawal, state: TableState, last: int) -> None:
    """Write the target's commits to the source, with the same version numbers.

    ``state`` is the source's newest state.
    """
    first = state.version + 1
    files = iter(_deltas(way, first, last))
    if first <= last:
        home, away = way.source.store.uri, way.target.store.uri
        way.setting.step(steps.copy_commits(away, home, first, last))
    while some := list(islice(files, _AT_ONCE)):
        bodies = list(load.contents(way.target.store, some))
        way.check_still_there()
        for file, body in bodies:
            state = _bring_commit(way, file, body, state)


def _bring_commit(way: Withdrawal, file: LogFile, body: bytes, before: TableState) -> TableState:
    """Write one commit; return the source's state after it, as far as the next one needs it."""
    if way.managed is None:
        ours, after = with_entry(way, body, file.path), before
    else:
        ours, after = from_managed(way, body, file.version, before)
    conflict = way.source.backfill(file.version, ours)
    if conflict is not None:
        raise Diverged(
            f"{way.source.store.uri} was written to during 'redirect disable'",
            cause=f"its version {conflict.version} isn't a commit of the target",
            remedy="stop the writer of that commit; then 'lakeferry redirect resume "
            f"{shell_safe(way.source.store.uri)}' continues the 'redirect disable'",
            version=conflict.version,
        )
    way.source.store.restore_time(file.path, file.modified_ms)
    return after


def from_managed(
    way: Withdrawal, body: bytes, version: int, before: TableState
) -> tuple[bytes, TableState]:
    """Return the source's commit for one of a managed target, and its state after it."""
    assert way.managed is not None
    back = ManagedReturn(way.managed, way.ready, way.journal.protocol)
    is_first = version == way.ready_version + 1
    ours = rewrite_lines(body, way.rewrite)
    return back.commit(ours, version, before, partial(_opened, way) if is_first else None)


def _opened(way: Withdrawal) -> Bare:
    """Return what the target was like when it opened."""
    found = redirect_commits.read_commit(way.target.store, way.ready_version)
    if found is not None and found[1].protocol is not None and found[1].metadata is not None:
        return Bare(found[1].protocol, found[1].metadata)
    state = way.target.state(way.ready_version)
    return Bare(state.protocol, state.metadata)


def with_entry(way: Withdrawal, body: bytes, path: str) -> bytes:
    """Return a commit of the target with the source's paths and the source's entry."""
    body = rewrite_lines(body, way.rewrite)
    lines = Lines()
    lines.read(body, path)
    entry = way.ready
    swap: dict[bytes, bytes] = {}
    # The target may have had its own entry for a while, if it was frozen.
    if lines.protocol is not None and lines.protocol.raw is not None:
        own = protocols.without_features(
            lines.protocol, features.REDIRECT_FEATURES, way.journal.protocol
        )
        swap[lines.protocol.raw] = actions.encode_line(protocols.adding(own, entry.features))
    if lines.metadata is not None and lines.metadata.raw is not None:
        configuration = dialects.without_redirect(lines.metadata) | dialects.properties(entry)
        ours = actions.changed(lines.metadata, configuration=configuration)
        swap[lines.metadata.raw] = actions.encode_line(ours)
    if not swap:
        return body
    return b"\n".join(swap.get(line.strip(), line) for line in body.split(b"\n"))
