"""The store of a managed table: its log shows the commits that the catalog has accepted.

The catalog is asked before each listing, as the protocol says: first which commits are ratified
and what the latest version is, then the log. Ratified commits appear under the name of their
version; published files above the catalog's latest version don't appear.

To put a commit if it is absent is to stage it and to propose it to the catalog. The staged file's
name follows from its bytes, so that a proposal can be repeated, also by another process. Which
commit has won is never decided by a status: if in doubt, the catalog is asked for the file of
that version.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from heapq import merge

from lakeferry.errors import (
    CatalogManaged,
    CatalogUnavailable,
    CommitConflict,
    CorruptLog,
    LakeferryError,
    ObjectNotFound,
    StorageError,
    StorageUnavailable,
    TableError,
)
from lakeferry.log import paths
from lakeferry.log.catalog_changes import CatalogChanges, changes_of, onboarding_changes
from lakeferry.log.latest_actions import LatestActions
from lakeferry.log.lines import Lines
from lakeferry.log.paths import LogFileKind
from lakeferry.storage import ObjectInfo, Store, StoreConfig
from lakeferry.storage.aliases import AliasStore
from lakeferry.storage.store import in_order, within
from lakeferry.table.delta_log import DeltaLog
from lakeferry.table.load import vanished
from lakeferry.table.managed.commit_catalog import (
    CatalogHead,
    CommitCatalog,
    Proposal,
    RatifiedCommit,
    Verdict,
)
from lakeferry.table.managed.publish_commits import PublishedCommits, losers, publish

_MAX_PROPOSALS = 5
_FILES_OF_VERSIONS = frozenset(LogFileKind) - {LogFileKind.STAGED}


class ManagedStore(AliasStore):
    """``below`` is the store of the table's folder, ``catalog`` decides about its commits.

    ``onboarding`` is the newest version of a table that was created with a history of its own, of
    which the catalog has ratified no commit yet: until then its latest version is that one.
    """

    def __init__(
        self,
        below: Store,
        catalog: CommitCatalog,
        *,
        onboarding: int | None = None,
        warn: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Ask nothing yet."""
        super().__init__(below, {})
        self.catalog = catalog
        self._onboarding = onboarding
        self._warn = warn
        self._seen: CatalogHead | None = None

    @property
    def asks_catalog(self) -> bool:
        """Whether the catalog decides about the table's commits; else the log alone counts."""
        return self._known().decides

    @property
    def config(self) -> StoreConfig:  # type: ignore[override]
        """The configuration for executors: it names the files of the ratified commits."""
        head = self._seen
        if head is not None and not head.decides:
            return self.below.config
        known = head.unpublished if head is not None else ()
        names = tuple((paths.commit(one.version), one.staged_path) for one in known)
        return replace(self.below.config, aliases=names)

    @property
    def uri(self) -> str:
        """The table's location."""
        return self.below.uri

    def refresh(self) -> CatalogHead:
        """Ask the catalog for the ratified commits and the latest version."""
        return self._take(self.catalog.head())

    def _take(self, head: CatalogHead) -> CatalogHead:
        if not head.decides:
            head = replace(head, latest_version=paths.MAX_VERSION, unpublished=())
        elif self._onboarding is not None and head.latest_version <= self._onboarding:
            head = replace(head, latest_version=self._onboarding)
        self._seen = head
        return head

    def publish(self, losers_before_ms: int | None = None) -> PublishedCommits:
        """Publish all ratified commits; look for losers older than a time, if one is given."""
        head = self.refresh()
        published = publish(self.below, self.catalog, head)
        lost = () if losers_before_ms is None else losers(self.below, head, losers_before_ms)
        return PublishedCommits(head.latest_version, published, lost)

    def list(
        self, prefix: str, *, start_after: str | None = None, stop_before: str | None = None
    ) -> Iterator[ObjectInfo]:
        """List what is there; ask the catalog first if that may show a part of the log."""
        lead = f"{paths.LOG_DIR}/"
        if not (lead.startswith(prefix) or prefix.startswith(lead)):
            return self.below.list(prefix, start_after=start_after, stop_before=stop_before)
        head = self.refresh()
        # Not earlier: a commit that is published in between would be in neither.
        found = self.below.list(prefix, start_after=start_after, stop_before=stop_before)
        ratified = [
            ObjectInfo(paths.commit(one.version), one.size_bytes, one.modified_ms)
            for one in head.unpublished
        ]
        ours = [one for one in ratified if within(one.path, prefix, start_after, stop_before)]
        hidden = {one.path for one in ratified}
        visible = (
            info
            for info in found
            if info.path not in hidden and not _is_after(info.path, head.latest_version)
        )
        shown = merge(visible, ours, key=in_order)
        latest = paths.commit(head.latest_version)
        begun = head.decides and head.latest_version > (self._onboarding or 0)
        if begun and within(latest, prefix, start_after, stop_before):
            return _with_version(shown, head.latest_version)
        return shown

    def head(self, path: str) -> ObjectInfo:
        """Ask for an object; a ratified commit has the time that the catalog knows."""
        version = _version_of_commit(path)
        commit = self._commit(version, path) if version is not None else None
        if commit is not None:
            return ObjectInfo(path, commit.size_bytes, commit.modified_ms)
        return super().head(path)

    def actual(self, path: str) -> str:
        """Return the name of the object to read; raise for a version that doesn't exist."""
        version = _version_of_commit(path)
        commit = self._commit(version, path) if version is not None else None
        return commit.staged_path if commit is not None else path

    def put_if_absent(self, path: str, data: bytes) -> bool:
        """Put an object unless it is there; propose a commit to the catalog."""
        version = _version_of_commit(path)
        # Asked anew: the table may have become a managed one since.
        head = self.refresh() if version is not None else None
        if version is None or head is None or not head.decides:
            return super().put_if_absent(path, data)
        return self._commit_bytes(version, data, head)

    def check_write(self, path: str) -> str:
        """Refuse to write commits past the catalog; publish before a checkpoint is written."""
        file = paths.parse(path)
        if file is None or file.kind in (LogFileKind.CHECKSUM, LogFileKind.STAGED):
            return path
        if not self.asks_catalog:
            return path
        if file.kind is LogFileKind.COMMIT:
            raise self._refused("a commit can't be written without asking the catalog", path)
        head = self._known()
        if file.version > head.latest_version:
            raise self._refused(f"the catalog doesn't have version {file.version}", path)
        if any(commit.version <= file.version for commit in head.unpublished):
            self.publish()
        return path

    def delete_many(self, paths_: Sequence[str]) -> None:
        """Delete objects, but nothing that versions are made of."""
        needed: frozenset[str] | None = None
        for path in paths_:
            file = paths.parse(path)
            if file is None or file.kind is LogFileKind.CHECKSUM or not self.asks_catalog:
                continue
            if file.kind is not LogFileKind.STAGED:
                raise self._refused("only the catalog may clean up the log", path)
            head = self.refresh() if needed is None else self._known()
            needed = frozenset(commit.staged_path for commit in head.unpublished)
            if path in needed or file.version > head.latest_version:
                raise self._refused("the catalog may need this staged commit", path)
        super().delete_many(paths_)

    def _known(self) -> CatalogHead:
        """Return what the catalog said last; ask it if it wasn't asked yet."""
        return self._seen or self._take(self.catalog.last_head())

    def _commit(self, version: int, path: str) -> RatifiedCommit | None:
        """Return an unpublished commit, or ``None`` for a published one."""
        head = self._known()
        if version > head.latest_version:
            head = self.refresh()
        if version > head.latest_version:
            raise ObjectNotFound(
                f"the catalog has no version {version} of {self.catalog.name}", path=path
            )
        return head.commit(version)

    def _commit_bytes(self, version: int, body: bytes, head: CatalogHead) -> bool:
        """Commit as ``version``; return whether the bytes are that version of the table."""
        if version <= head.latest_version:
            return False
        if version != head.latest_version + 1:
            raise CommitConflict(
                f"version {version} of {self.catalog.name} can't be committed",
                cause=f"its catalog has version {head.latest_version}",
                remedy="run the same command again",
                version=version,
            )
        proposal = self._staged(version, body, head)
        for _ in range(_MAX_PROPOSALS):
            is_ours = self._propose(proposal, body)
            if is_ours is not None:
                if is_ours:
                    self._publish_ours(proposal.commit, body)
                return is_ours
        raise CatalogUnavailable(
            f"{self.catalog.name} can't be committed to",
            cause=f"its catalog neither accepts version {version} nor has another one",
            remedy="run the same command again; if that doesn't help, ask the catalog's "
            "administrator",
            version=version,
        )

    def _staged(self, version: int, body: bytes, head: CatalogHead) -> Proposal:
        """Write the staged file of a commit; return the proposal."""
        lines = Lines()
        lines.read(body, paths.commit(version))
        moment = lines.commit_info.in_commit_timestamp if lines.commit_info else None
        if moment is None:
            raise CorruptLog(
                f"version {version} of {self.catalog.name} can't be committed",
                cause="it has no inCommitTimestamp, which a managed table requires",
                version=version,
            )
        changes = self._changes(version, lines, head)
        self.catalog.check(changes)
        unique = uuid.UUID(bytes=hashlib.sha256(body).digest()[:16], version=4)
        name = f"{version:020d}.{unique}.json"
        path = f"{paths.STAGED_DIR}/{name}"
        self.below.put_if_absent(path, body)
        modified_ms = self.below.head(path).modified_ms
        commit = RatifiedCommit(version, name, len(body), modified_ms, moment)
        return Proposal(commit, changes)

    def _changes(self, version: int, lines: Lines, head: CatalogHead) -> CatalogChanges:
        """Return what a commit changes of the catalog's description of the table.

        The version before it is read where that is needed: not for commits of data.
        """
        onboards = self._onboarding is not None and version == self._onboarding + 1
        if lines.metadata is None and not onboards:
            return changes_of(lines, None)
        if not onboards:
            return changes_of(lines, DeltaLog(self).small_snapshot(version - 1).metadata)
        table = LatestActions()
        try:
            before = DeltaLog(self).small_snapshot(version - 1)
            table = LatestActions(before.protocol, before.metadata, domains=dict(before.domains))
        except TableError:
            # A move that is taken back closes its table before the log is there.
            if lines.protocol is None or lines.metadata is None:
                raise
        table.absorb(lines)
        return onboarding_changes(table, head.properties)

    def _propose(self, proposal: Proposal, body: bytes) -> bool | None:
        """Propose a commit; return whether that version is ours, ``None`` if it is still free."""
        lost: CatalogUnavailable | None = None
        answer = Verdict.CONFLICT
        try:
            answer = self.catalog.propose(proposal)
        except CatalogUnavailable as silent:
            lost = silent
        if answer is Verdict.RATIFIED:
            self._remember(proposal.commit)
            return True
        if answer is Verdict.FULL:
            self.publish()
            return None
        try:
            found = self._owner(proposal.commit, body)
        except (CatalogUnavailable, StorageError) as down:
            raise self._unknown(proposal.commit.version, str(lost or down)) from down
        if found is None and lost is not None:
            # The request may still arrive, so that a later look at the catalog settles it.
            raise self._unknown(proposal.commit.version, str(lost)) from lost
        return found

    def _remember(self, commit: RatifiedCommit) -> None:
        """Add a commit that was ratified to what the catalog said last; it may not answer again."""
        head = self._seen
        if head is not None and head.latest_version + 1 == commit.version:
            unpublished = (*head.unpublished, commit)
            self._seen = replace(head, latest_version=commit.version, unpublished=unpublished)

    def _owner(self, commit: RatifiedCommit, body: bytes) -> bool | None:
        """Return whether the catalog has our file for a version, ``None`` if it has none."""
        head = self.refresh()
        if head.latest_version < commit.version:
            return None
        found = head.commit(commit.version)
        if found is not None:
            return found.file_name == commit.file_name
        return self.below.get(paths.commit(commit.version)) == body

    def _publish_ours(self, commit: RatifiedCommit, body: bytes) -> None:
        """Publish what was ratified. It is committed by now, so a failure is only a warning."""
        try:
            try:
                self.publish()
            except ObjectNotFound:
                # A cleaner may have taken our staged file for one that has lost.
                self.below.put_if_absent(commit.staged_path, body)
                self.publish()
        except LakeferryError as failed:
            self._warn(
                f"the newest commits of {self.catalog.name} aren't published yet: {failed}; "
                f"'lakeferry publish {self.catalog.name}' does it"
            )

    def _unknown(self, version: int, why: str) -> StorageUnavailable:
        return StorageUnavailable(
            f"Lakeferry can't find out if {self.catalog.name} has version {version}",
            cause=why,
            remedy="run the same command again when the catalog answers",
            version=version,
            outcome_unknown=True,
        )

    def _refused(self, why: str, path: str) -> CatalogManaged:
        return CatalogManaged(
            f"{path} of {self.catalog.name} can't be changed",
            cause=why,
            remedy="leave the file as it is: only the catalog may change it",
            path=path,
            name=self.catalog.name,
        )


def _version_of_commit(path: str) -> int | None:
    file = paths.parse(path)
    return file.version if file is not None and file.kind is LogFileKind.COMMIT else None


def _with_version(found: Iterator[ObjectInfo], version: int) -> Iterator[ObjectInfo]:
    """Yield a listing; raise an error if it lacks a version that the catalog has.

    Otherwise a log that has lost its newest commits would be read as an older version.
    """
    leads = (paths.commit(version), f"{paths.LOG_DIR}/{version:020d}.checkpoint.")
    is_there = False
    for info in found:
        is_there = is_there or info.path.startswith(leads)
        yield info
    if not is_there:
        raise vanished(paths.commit(version))


def _is_after(path: str, latest: int) -> bool:
    """Return whether a file of the log belongs to a version that the catalog doesn't have."""
    file = paths.parse(path)
    return file is not None and file.kind in _FILES_OF_VERSIONS and file.version > latest
