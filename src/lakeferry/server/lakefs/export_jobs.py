"""Does one export job: exports the tables that a commit changed, and updates their names.

The descriptors are read as of the commit. :mod:`~lakeferry.server.lakefs.changed_tables` decides
which tables are exported.

Every job may run twice, and jobs may run in any order. The event of one commit may be processed
after that of a later one. So a commit moves a name in a catalog, and prunes older exports, only
if its table is still the branch's. A name follows the repository's default branch alone, because
every branch has a copy of the descriptor.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import quote

from lakeferry.errors import (
    InvalidInput,
    LakeferryError,
    ObjectNotFound,
    TableError,
)
from lakeferry.export.descriptors import (
    DESCRIPTORS_FOLDER,
    LARGEST_DESCRIPTOR_BYTES,
    Descriptor,
    check_number,
    gather,
    is_descriptor,
)
from lakeferry.export.job_queue import Job, JobTable
from lakeferry.server.lakefs.changed_tables import ChangedTables, ComparableRef
from lakeferry.storage import ObjectInfo
from lakeferry.storage.uris import join

_LOG = logging.getLogger(__name__)


class Ref(ComparableRef, Protocol):
    """What this module needs of a ref; :class:`~lakeferry.storage.lakefs.LakeFSStore` has it."""

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Yield the objects below a prefix."""

    def get_range(self, path: str, start: int, length: int) -> bytes:
        """Return a part of an object."""


class JobExported(Protocol):
    """The result of an export, as far as a job needs it."""

    @property
    def location(self) -> str:
        """The export's location."""

    @property
    def changed(self) -> bool:
        """Return True if the export is new."""


class ExportTable(Protocol):
    """Exports a table of a commit under the name of a ref."""

    def __call__(
        self, uri: str, *, table: str, ref: str, keep: int | None, register: str | None
    ) -> JobExported:
        """Return what was exported, or raise."""


@dataclass(frozen=True, slots=True)
class JobFailure:
    """A table or a descriptor that failed."""

    what: str
    error: LakeferryError

    @property
    def is_final(self) -> bool:
        """Return True if a retry for the same commit would fail again."""
        return isinstance(self.error, InvalidInput | TableError)

    def as_document(self) -> dict[str, object]:
        """Return the document that is stored for it."""
        return {"table": self.what, **self.error.as_document()}


@dataclass(frozen=True, slots=True)
class JobResult:
    """What a job has exported, and what failed."""

    failures: tuple[JobFailure, ...] = ()
    tables: tuple[JobTable, ...] = ()


class Exporting:
    """Runs jobs. ``open_ref`` opens a ref, ``default_branch`` returns a repository's."""

    def __init__(
        self,
        open_ref: Callable[[str], Ref],
        default_branch: Callable[[str], str],
        export: ExportTable,
    ) -> None:
        """Use these functions to reach lakeFS and to export."""
        self._open_ref = open_ref
        self._default_branch = default_branch
        self._export = export

    def run(self, job: Job) -> JobResult:
        """Export what a job needs; one table's failure doesn't stop the others.

        A failure before the tables are known is raised.
        """
        root = f"lakefs://{job.repository}/{job.commit}"
        commit = self._open_ref(root)
        found = [each for each in commit.list(DESCRIPTORS_FOLDER) if is_descriptor(each.path)]
        check_number(len(found))
        described = gather(
            {
                each.path: commit.get_range(each.path, 0, LARGEST_DESCRIPTOR_BYTES + 1)
                for each in found
            }
        )
        changed = ChangedTables(commit, job)
        for skipped in described.skipped:
            _LOG.info("%s: %s is of type %s, not delta", job.id, skipped.file, skipped.type)
        failures = [
            JobFailure(file, error) for file, error in described.wrong if changed.has_file(file)
        ]
        tables = []
        for table in described.tables:
            try:
                if changed.has(table):
                    tables.append(self._one(job, root, table))
            except LakeferryError as failed:
                failures.append(JobFailure(table.name, failed))
            except Exception as mistake:  # noqa: BLE001 - the other tables must be exported
                failures.append(JobFailure(table.name, mistaken(mistake)))
        return JobResult(tuple(failures), tuple(tables))

    def _one(self, job: Job, root: str, table: Descriptor) -> JobTable:
        keep, register = table.keep, table.register
        if register is not None and (job.is_tag or job.ref != self._default_branch(job.repository)):
            register = None
        if (keep, register) != (None, None) and not self._is_current(job, table.path):
            _LOG.info("%s: %s has changed again since %s", job.id, table.name, job.commit)
            keep = register = None
        done = self._export(
            join(root, table.path), table=table.name, ref=job.ref, keep=keep, register=register
        )
        _LOG.info(
            "%s: %s of %s %s at %s",
            job.id,
            table.name,
            job.ref,
            "exported" if done.changed else "is exported already",
            done.location,
        )
        return JobTable(table.name, done.location, done.changed)

    def _is_current(self, job: Job, path: str) -> bool:
        """Return True if the ref's table is still the one of the job's commit."""
        if job.is_tag:
            return True
        # The sign excludes staged changes.
        head = self._open_ref(f"lakefs://{job.repository}/{quote(f'{job.ref}@', safe='@')}")
        try:
            return not head.changes(job.commit, f"{path}/", limit=1)
        except ObjectNotFound:
            # The branch was deleted.
            return False


def mistaken(mistake: Exception) -> LakeferryError:
    """Return an unexpected exception as an error; the log has its traceback."""
    _LOG.debug("something that should not happen", exc_info=mistake)
    return LakeferryError(
        f"an internal error: {type(mistake).__name__}: {mistake}",
        remedy="please report it, with what LAKEFERRY_DEBUG=1 shows",
    )
