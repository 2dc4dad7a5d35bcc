"""The port ``CommitCatalog``: the catalog of one managed table, as far as commits go."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from lakeferry.log import paths
from lakeferry.log.catalog_changes import CatalogChanges


@dataclass(frozen=True, slots=True)
class RatifiedCommit:
    """A commit that was proposed to a catalog, or that the catalog has accepted (ratified).

    ``file_name`` is the name of the staged file in ``_delta_log/_staged_commits``.
    ``timestamp_ms`` is the commit's in-commit timestamp.
    """

    version: int
    file_name: str
    size_bytes: int
    modified_ms: int
    timestamp_ms: int

    @property
    def staged_path(self) -> str:
        """The name of the staged file, relative to the table."""
        return f"{paths.STAGED_DIR}/{self.file_name}"


@dataclass(frozen=True, slots=True)
class CatalogHead:
    """What a catalog says of a table at one moment.

    ``unpublished`` are the ratified commits that it doesn't know to be published, oldest first.
    ``properties`` are those that the catalog has. ``decides``: it decides about the table's
    commits. A catalog may own a table's files and leave its commits to the log, as with tables
    that are older than the feature ``catalogManaged``.
    """

    table_id: str
    latest_version: int
    unpublished: tuple[RatifiedCommit, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    decides: bool = True

    def commit(self, version: int) -> RatifiedCommit | None:
        """Return the unpublished commit of a version, if it is one."""
        return next((found for found in self.unpublished if found.version == version), None)


@dataclass(frozen=True, slots=True)
class Proposal:
    """A staged commit, and the changes of the catalog's own description that go with it."""

    commit: RatifiedCommit
    changes: CatalogChanges


class Verdict(Enum):
    """What a catalog says of a proposal."""

    RATIFIED = "the commit is a version of the table"
    CONFLICT = "another commit may have that version"
    FULL = "more commits have to be published first"


class CommitCatalog(ABC):
    """The catalog of one managed table. A table that replaced it under its name is refused."""

    name: str
    """The name of the table, for messages: ``unity:cat.schema.t``."""
    table_id: str

    @abstractmethod
    def head(self) -> CatalogHead:
        """Return what the catalog says of the table now.

        Raises :class:`~lakeferry.errors.TableNotFound` if it has no such table any more.
        """

    def check(self, changes: CatalogChanges) -> None:  # noqa: B027
        """Refuse changes that the catalog can't keep; ask nothing.

        Called before a commit is staged. A server may answer such a request with an error that
        says nothing about the commit.
        """

    def last_head(self) -> CatalogHead:
        """Return what the catalog said at some earlier moment; ask it if there was none.

        Versions and their files don't change, so that is enough to read one of them.
        """
        return self.head()

    def forget(self) -> None:  # noqa: B027
        """Ask again for the next :meth:`head`, if an answer to another request would do."""

    @abstractmethod
    def propose(self, proposal: Proposal) -> Verdict:
        """Ask the catalog to ratify a commit. Idempotent for the same version and file name.

        Raises :class:`~lakeferry.errors.CatalogUnavailable` if the answer is missing; then
        the commit may be ratified.
        """

    @abstractmethod
    def report_published(self, version: int) -> None:
        """Tell the catalog that all commits up to ``version`` are durably published."""
