"""Publishes ratified commits: copies them to the names at which a log has its commits.

Commits are published in the order of their versions, and the catalog is told only when all of
them are durably there: it forgets their staged files then, so a report that comes too early
would destroy commits.
"""

from __future__ import annotations

from lakeferry.errors import CorruptLog, ObjectNotFound
from lakeferry.log import paths
from lakeferry.storage import Store
from lakeferry.table.managed.commit_catalog import CatalogHead, CommitCatalog, RatifiedCommit


def publish(below: Store, catalog: CommitCatalog, head: CatalogHead | None = None) -> int:
    """Publish all ratified commits of a table; return how many weren't known to be published.

    ``below`` is the store of the table's folder, ``head`` what the catalog has just said.
    Idempotent: whoever comes next does what is left.
    """
    head = catalog.head() if head is None else head
    for commit in head.unpublished:
        _publish(below, commit)
    if head.unpublished:
        catalog.report_published(head.unpublished[-1].version)
    return len(head.unpublished)


def _publish(below: Store, commit: RatifiedCommit) -> None:
    path = paths.commit(commit.version)
    try:
        staged = below.get(commit.staged_path)
    except ObjectNotFound:
        # Another client may have published it, and its staged file was cleaned up.
        below.head(path)
        return
    if below.put_if_absent(path, staged):
        return
    if below.get(path) != staged:
        raise CorruptLog(
            f"version {commit.version} can't be published",
            cause=f"{path} has other bytes than {commit.staged_path}, which the catalog accepted",
            remedy="find out which writer put it there without asking the catalog, and move it "
            "away; then publish again",
            version=commit.version,
            path=path,
        )
