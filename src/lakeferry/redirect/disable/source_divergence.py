"""Decides whether the source has diverged: whether commits of its own changed data.

The source may have commits of its own: another client wrote to the old place in spite of the
redirect. If none of them changed data, the withdrawal goes on; otherwise it is refused, because
Lakeferry can't merge data. A commit that an interrupted withdrawal copied from the target isn't
the source's own.
"""

from __future__ import annotations

from collections.abc import Callable

from lakeferry.errors import Diverged
from lakeferry.log.conflicts import changes_data
from lakeferry.log.lines import Lines
from lakeferry.log.replay import TableState
from lakeferry.redirect import redirect_commits
from lakeferry.redirect.disable.matching_numbers import was_brought
from lakeferry.redirect.disable.withdrawal import Withdrawal
from lakeferry.storage.uris import shell_safe
from lakeferry.table import DeltaLog, load


def own_commits_since_ready(way: Withdrawal, state: TableState) -> int:
    """Return the number of the source's commits since READY; refuse if one changed data."""
    try:
        return own_commits(
            way.source,
            way.target.store.uri,
            way.ready_version,
            state,
            lambda version, body, lines: was_brought(way, version, body, lines),
        )
    except Diverged as refused:
        if way.managed is not None:
            table = f"{way.redirect.kind.catalog}:{way.managed.table_id}"
            refused.remedy = (
                "Lakeferry can't merge them: keep the redirect; or copy what has changed at the "
                f"target, drop it ('lakeferry catalog remove {table} --yes --force'), run "
                f"'lakeferry redirect disable {shell_safe(way.source.store.uri)} "
                "--abandon-target', and write to the source what you have copied"
            )
        raise


def own_commits(
    source: DeltaLog,
    target_uri: str,
    since: int,
    state: TableState,
    is_brought: Callable[[int, bytes, Lines], bool] = lambda _version, _body, _lines: False,
) -> int:
    """Return the number of the source's commits since READY; refuse if one changed data.

    ``is_brought`` returns whether a commit was copied from the target when numbers matched.
    """
    listing = load.list_log(source.store, since)
    wanted = range(since + 1, state.version + 1)
    lost = [version for version in wanted if version not in listing.commits]
    if lost:
        why = f"the source's version {lost[0]} was cleaned up, so its changes are unknown"
        raise _diverged(source.store.uri, target_uri, why)
    for file, body in load.contents(source.store, [listing.commits[v] for v in wanted]):
        lines = Lines()
        lines.read(body, file.path)
        if redirect_commits.mark_of(lines.commit_info) is not None:
            continue
        # A commit that was copied from the target isn't the source's own.
        if changes_data(lines) and not is_brought(file.version, body, lines):
            raise _diverged(
                source.store.uri, target_uri, f"the source's version {file.version} changed data"
            )
    return len(wanted)


def _diverged(source_uri: str, target_uri: str, why: str) -> Diverged:
    return Diverged(
        f"{source_uri} and {target_uri} have diverged",
        cause=f"the source has commits of its own since READY, and {why}",
        remedy="Lakeferry can't merge them: keep the redirect; or move the target's "
        f"folder elsewhere, run 'lakeferry redirect disable {shell_safe(source_uri)} "
        "--abandon-target', and write to the source what has changed at the target",
        location=source_uri,
        target=target_uri,
    )
