"""Publishes ratified commits: copies them to the names at which a log has its commits.

Commits are published in the order of their versions, and the catalog is told only when all of
them are durably there: it forgets their staged files then, so a report that comes too early
would destroy commits.

A staged file that wasn't accepted stays for ever, since nobody else may know that it has lost.
:func:`losers` finds those.
"""

from __future__ import annotations

from dataclasses import dataclass

from lakeferry.errors import CorruptLog, ObjectNotFound
from lakeferry.log import paths
from lakeferry.storage import Store
from lakeferry.table.managed.commit_catalog import CatalogHead, CommitCatalog, RatifiedCommit


@dataclass(frozen=True, slots=True)
class PublishedCommits:
    """What became of a table's ratified commits; ``losers`` are staged files that have lost."""

    latest_version: int
    published: tuple[int, ...]
    losers: tuple[str, ...] = ()

    def as_document(self) -> dict[str, object]:
        """Return the JSON document of ``lakeferry publish``."""
        return {
            "latest_version": self.latest_version,
            "published": list(self.published),
            "losers": list(self.losers),
            "changed": bool(self.published),
        }


def publish(
    below: Store, catalog: CommitCatalog, head: CatalogHead | None = None
) -> tuple[int, ...]:
    """Publish all ratified commits; return the versions that weren't known to be published.

    ``below`` is the store of the table's folder, ``head`` what the catalog has just said.
    Idempotent: whoever comes next does what is left.
    """
    head = catalog.head() if head is None else head
    for commit in head.unpublished:
        _publish(below, commit)
    if head.unpublished:
        catalog.report_published(head.unpublished[-1].version)
    return tuple(commit.version for commit in head.unpublished)


def losers(below: Store, head: CatalogHead, before_ms: int) -> tuple[str, ...]:
    """Return the staged files older than ``before_ms`` that have lost their version.

    A version that the catalog doesn't have yet may still be decided, so its files aren't named.
    """
    found = []
    for info in below.list(f"{paths.STAGED_DIR}/"):
        file = paths.parse(info.path)
        if file is None or file.version > head.latest_version or info.modified_ms >= before_ms:
            continue
        winner = head.commit(file.version)
        if winner is None:
            lost = not _is_published(below, file.version, info.path, info.size_bytes)
        else:
            lost = winner.staged_path != info.path
        if lost:
            found.append(info.path)
    return tuple(found)


def _is_published(below: Store, version: int, staged: str, size_bytes: int) -> bool:
    """Return whether a staged file was published; also if that can't be known any more."""
    path = paths.commit(version)
    try:
        same_size = below.head(path).size_bytes == size_bytes
        return same_size and below.get(path) == below.get(staged)
    except ObjectNotFound:
        return True


def _publish(below: Store, commit: RatifiedCommit) -> None:
    path = paths.commit(commit.version)
    try:
        staged = below.get(commit.staged_path)
    except ObjectNotFound:
        # Another client may have published it, and its staged file was cleaned up.
        staged = below.get(path)
        if len(staged) != commit.size_bytes:
            raise _other_bytes(commit) from None
    # A file that is there already is durable once this has returned, too.
    if below.put_if_absent(path, staged):
        return
    if below.get(path) != staged:
        raise _other_bytes(commit)


def _other_bytes(commit: RatifiedCommit) -> CorruptLog:
    path = paths.commit(commit.version)
    return CorruptLog(
        f"version {commit.version} can't be published",
        cause=f"{path} has other bytes than {commit.staged_path}, which the catalog accepted",
        remedy="stop the writer that wrote this file without the catalog, move the file out of "
        "the log, and run 'lakeferry publish TABLE' again",
        version=commit.version,
        path=path,
    )
