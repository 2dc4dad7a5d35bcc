"""Whether all that a locked target holds is at the source, read back from both.

Asked before a catalog drops a managed table, which can't be undone.
"""

from __future__ import annotations

import pyarrow.compute as pc

from lakeferry.log import file_identity
from lakeferry.redirect import redirect_commits
from lakeferry.redirect.disable import matching_numbers, net_change
from lakeferry.redirect.disable.withdrawal import Withdrawal


def lacking_version(way: Withdrawal, ended: int) -> int | None:
    """Return a version of the target that the source doesn't have, or ``None`` if it has all.

    ``ended`` is the source's version that says NORMAL. Where the net change was brought back in
    one commit, only the newest version counts: the versions before it exist at the target alone.
    """
    last = way.locked_version - 1
    if _ended_alike(way, ended):
        for version in range(way.ready_version + 1, last + 1):
            ours = redirect_commits.read_commit(way.source.store, version)
            if ours is None or not matching_numbers.was_brought(way, version, *ours):
                return version
    mine, theirs = way.source.snapshot(ended - 2), way.target.snapshot(last)
    home = way.source.store.uri
    coming = net_change.rewritten_files(theirs.files, way.rewrite)
    ours, wanted = (
        pc.unique(file_identity.table_keys(files, home)) for files in (mine.files, coming)
    )
    same = (
        len(ours) == len(wanted) and pc.all(pc.is_in(ours, value_set=wanted)).as_py() is not False
    )
    return None if same else last


def _ended_alike(way: Withdrawal, ended: int) -> bool:
    """Return whether both ends have the same commit that says DROPPING: numbers match."""
    ids = []
    for store, version in ((way.source.store, ended - 1), (way.target.store, way.locked_version)):
        found = redirect_commits.read_commit(store, version)
        info = found[1].commit_info if found is not None else None
        ids.append(info.txn_id if info is not None else None)
    return ended - 1 == way.locked_version and ids[0] == ids[1]
