"""Decides whether the target's commits can come back under the same version numbers.

They can if the source has no commit of its own since READY. A commit that an interrupted
withdrawal copied from the target isn't the source's own. Otherwise all changes come back as one
combined commit.
"""

from __future__ import annotations

from lakeferry.log import paths
from lakeferry.log.lines import Lines
from lakeferry.log.replay import TableState
from lakeferry.redirect import redirect_commits
from lakeferry.redirect.disable import carried_commits
from lakeferry.redirect.disable.withdrawal import Withdrawal
from lakeferry.table import load


def numbers_match(way: Withdrawal, state: TableState) -> bool:
    """Return whether version numbers match: the source has no commit that the target lacks."""
    listing = load.list_log(way.target.store, way.ready_version)
    wanted = range(way.ready_version + 1, way.locked_version + 1)
    if any(version not in listing.commits for version in wanted):
        return False
    if state.version > way.locked_version:
        return False
    for version in range(way.ready_version + 1, state.version + 1):
        ours = redirect_commits.read_commit(way.source.store, version)
        if ours is None or not was_brought(way, version, *ours):
            return False
    return True


def was_brought(way: Withdrawal, version: int, body: bytes, lines: Lines) -> bool:
    """Return whether a commit of the source is the target's commit of the same version.

    Equal ids or equal bytes; bytes differ if it carries an entry whose rules changed since.
    """
    theirs = redirect_commits.read_commit(way.target.store, version)
    if theirs is None:
        return False
    mine, other = lines.commit_info, theirs[1].commit_info
    txn_id = mine.txn_id if mine else None
    same_id = txn_id is not None and other is not None and txn_id == other.txn_id
    if same_id or way.managed is None:
        return same_id or body == carried_commits.with_entry(way, theirs[0], paths.commit(version))
    before = way.source.state(version - 1)
    return body == carried_commits.from_managed(way, theirs[0], version, before)[0]
