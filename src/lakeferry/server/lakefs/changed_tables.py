"""Decides which tables a commit changed, so that they must be exported again.

A branch's commit is compared with its first parent, by lakeFS's diff below each table's path: a
table has changed if its files or its descriptor have. In a tag all tables count as changed, and so
they do in a commit without a parent.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from lakeferry.errors import ObjectNotFound
from lakeferry.export.descriptors import DESCRIPTORS_FOLDER, MOST_DESCRIPTORS, Descriptor
from lakeferry.export.job_queue import Job
from lakeferry.storage.lakefs import ObjectChange


class ComparableRef(Protocol):
    """A ref that can be compared with another commit."""

    def changes(self, since: str, prefix: str = "", *, limit: int) -> Sequence[ObjectChange]:
        """Return the differences from another commit."""


class ChangedTables:
    """The tables that a job's commit changed."""

    def __init__(self, commit: ComparableRef, job: Job) -> None:
        """Compare the descriptors of a job's commit with those of its parent."""
        self._commit = commit
        self._parent: str | None = None if job.is_tag else f"{job.commit}~1"
        self._files: Collection[str] = ()
        if self._parent is None:
            return
        try:
            changes = commit.changes(self._parent, DESCRIPTORS_FOLDER, limit=MOST_DESCRIPTORS)
        except ObjectNotFound:
            self._parent = None
            return
        if len(changes) >= MOST_DESCRIPTORS:
            # The list of changes may be incomplete.
            self._parent = None
        self._files = {change.path for change in changes}

    def has(self, table: Descriptor) -> bool:
        """Return True if the table or its descriptor has changed."""
        return self.has_file(table.file) or self._has_files_below(table.path)

    def has_file(self, descriptor: str) -> bool:
        """Return True if the file of a descriptor has changed."""
        return self._parent is None or descriptor in self._files

    def _has_files_below(self, path: str) -> bool:
        if self._parent is None:
            return True
        return bool(self._commit.changes(self._parent, f"{path}/", limit=1))
