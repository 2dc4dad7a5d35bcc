"""``DeltaLog``: the log of one table.

The newest version costs one GET for the hint, one LIST from the hint on, and
one GET for each file that the version is made of; its protocol and metadata
alone cost one GET after the LIST if a checksum file has them.

Writes go through :mod:`lakeferry.table.put_commit` and :mod:`lakeferry.table.checkpoint`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

from lakeferry.errors import (
    CheckpointProtected,
    CorruptLog,
    NotATable,
    ObjectNotFound,
    TableNotFound,
    VersionNotAvailable,
)
from lakeferry.log import features, paths, properties, timestamps
from lakeferry.log.actions import CommitInfo, DomainMetadata
from lakeferry.log.checksum import contradictions
from lakeferry.log.commit import LogHead, Transaction
from lakeferry.log.conflicts import Conflict
from lakeferry.log.last_checkpoint import Hint, decode_hint
from lakeferry.log.lines import Lines
from lakeferry.log.replay import Snapshot, TableState
from lakeferry.log.segment import Listing, Segment
from lakeferry.storage import Store
from lakeferry.table import checkpoint, load, put_commit
from lakeferry.table.checkpoint import LogFileWriter, Written
from lakeferry.table.log_source import KeptReads, LogSource
from lakeferry.table.misnamed import is_file, table_above
from lakeferry.table.put_commit import Committed
from lakeferry.table.version_reading import KeepsFiles, VersionReading

Result = TypeVar("Result")
_MAX_LISTINGS = 3
"""How often a log is listed again if log cleanup deletes files while they are read."""


def wall_clock() -> int:
    """Return the time in milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


@dataclass(frozen=True, slots=True)
class Revision:
    """One commit as history shows it."""

    version: int
    timestamp: int
    commit_info: CommitInfo | None


class DeltaLog:
    """The log of the table at a store's root.

    ``clock`` returns the time in milliseconds; ``warn`` gets a sentence about each
    problem of the log that could be worked around.
    """

    def __init__(
        self,
        store: Store,
        *,
        clock: Callable[[], int] = wall_clock,
        warn: Callable[[str], None] = lambda _: None,
        source: LogSource | None = None,
    ) -> None:
        """Open a log; no request is sent yet. ``source`` reads its files, by default the store."""
        self.store = store
        self.source: LogSource = store if source is None else source
        self.clock = clock
        self.warn = warn

    def keeping_reads(self) -> DeltaLog:
        """Return the same log for one command, which reads none of its files twice."""
        return DeltaLog(self.store, clock=self.clock, warn=self.warn, source=KeptReads(self.store))

    def listing(self) -> Listing:
        """Return a listing of the whole log; raise if there is no table."""
        listing = self._list(0)
        if listing.is_empty:
            raise self._no_table()
        return listing

    def segment(self, version: int | None = None) -> Segment:
        """Return the files that make up ``version``, or the newest, by one LIST if possible."""
        return self._listed(version)[1]

    def _listed(self, version: int | None) -> tuple[Listing, Segment]:
        hint = self.hint()
        if hint is not None and (version is None or version >= hint.version):
            listing = self._list(hint.version)
            bound = listing.newest_version if version is None else version
            # A hint to a missing checkpoint, or to one that is too new, is ignored.
            if any(c.complete and c.version <= bound for c in listing.checkpoints):
                return listing, listing.segment(version)
        listing = self.listing()
        return listing, listing.segment(version)

    def state(self, version: int | None = None) -> TableState:
        """Return a version's protocol and metadata, without reading its file actions."""
        return self._reading(version, VersionReading.state)

    def newest(self, *, keeps_files: KeepsFiles = False) -> VersionReading:
        """Read the newest version's protocol and metadata, and return what was read for that.

        With ``keeps_files`` a later :meth:`snapshot` doesn't read the commits again.
        """

        def read(reading: VersionReading) -> VersionReading:
            reading.state()
            return reading

        return self._reading(None, read, keeps_files=keeps_files)

    def check_checksum(self, version: int) -> None:
        """Refuse a version whose checksum file contradicts the log about protocol or metadata.

        :meth:`state` trusts the file. A caller that writes its content into the log again has
        to call this first: otherwise a wrong checksum file would make the log wrong.
        """
        reading = self._reading_of(self.segment(version))
        stated = reading.checksum
        if stated is None or reading.segment.checksum is None:
            return
        found = self._read_more(reading, VersionReading.replayed_state)
        if names := contradictions(stated, found.protocol, found.metadata):
            path = reading.segment.checksum.path
            raise CorruptLog(
                f"version {version} doesn't match its checksum file",
                cause=f"{path} and the log differ in {', '.join(names)}",
                remedy="delete the checksum file if the log is right; else find out which log "
                "file was changed, and restore it from a copy",
                version=version,
                path=path,
            )

    def small_snapshot(self, version: int | None = None) -> Snapshot:
        """Return a version without its files: the tables of files are empty, the rest is there."""
        return self._reading(version, VersionReading.small_snapshot)

    def snapshot(
        self, version: int | None = None, newest: VersionReading | None = None
    ) -> Snapshot:
        """Return a version with all of its live files and tombstones.

        ``newest`` is what was read of the newest version just before, if it was.
        """
        if newest is not None and version in (None, newest.version):
            with suppress(load.Vanished):
                return self.snapshot_of(newest.segment, newest)
        return self._reading(version, VersionReading.snapshot)

    def snapshot_of(self, segment: Segment, reading: VersionReading | None = None) -> Snapshot:
        """Return the version that a segment of this log makes up; ``reading`` has parts of it."""
        return self._read_more(reading or self._reading_of(segment), VersionReading.snapshot)

    def version_at(
        self, timestamp_ms: int, listing: Listing | None = None, state: TableState | None = None
    ) -> int:
        """Return the newest version that existed at that time.

        For a time after the newest version, that is the newest version. A caller that has
        already listed the whole log, or read its newest state, may pass it.
        """
        listing = listing or self.listing()
        earliest = listing.earliest_version()
        commits = {
            version: file
            for version, file in listing.commits.items()
            if earliest is not None and version >= earliest
        }
        if not commits:
            raise VersionNotAvailable(
                "no version can be found by its time, because no commit is left in the log",
                remedy="use --version N instead of --timestamp (version=N in Python)",
                timestamp=timestamp_ms,
            )
        kept = timestamps.in_commit_timestamps((state or self.state()).metadata)
        times = timestamps.file_times(commits.values())
        if kept is not None and (kept.since_ms is None or timestamp_ms >= kept.since_ms):
            found = self._search(
                sorted(v for v in commits if v >= kept.since_version), timestamp_ms
            )
        else:
            bound = kept.since_version if kept is not None else max(commits) + 1
            found = max((v for v in times if v < bound and times[v] <= timestamp_ms), default=None)
        if found is None:
            raise VersionNotAvailable(
                f"the table has no version that was there at {timestamp_ms}",
                cause="the oldest version that can be rebuilt is newer",
                remedy=f"use a later --timestamp, or --version {min(commits)} or a newer one",
                timestamp=timestamp_ms,
                earliest_version=min(commits),
            )
        return found

    def history(
        self, limit: int | None = None, newest: VersionReading | None = None
    ) -> list[Revision]:
        """Return the commits that weren't cleaned up, newest first.

        ``newest`` is what was read of the newest version just before, if it was. With a limit, no
        older versions are listed than are returned.
        """
        known = self.newest() if newest is None else newest
        since = 0 if limit is None else max(known.version - limit + 1, 0)
        if known.listing is not None and _has_commits(known.listing, since, limit):
            with suppress(load.Vanished):
                return self._history(limit, known, known.listing)

        def attempt() -> list[Revision]:
            listing = self._list(since)
            if not _has_commits(listing, since, limit):
                listing = self.listing()
            return self._history(limit, known, listing)

        return _listing_anew(attempt)

    def _history(
        self, limit: int | None, newest: VersionReading, listing: Listing
    ) -> list[Revision]:
        kept = timestamps.in_commit_timestamps(newest.state().metadata)
        times = timestamps.file_times(listing.commits.values())
        newest_first = [listing.commits[v] for v in sorted(listing.commits, reverse=True)[:limit]]
        # The table may have been replaced by another one since.
        commits = listing.commits
        same = {f.version for f in newest.segment.deltas if commits.get(f.version) == f}
        infos = {v: info for v, info in newest.commit_infos.items() if v in same}
        new = [file for file in newest_first if file.version not in infos]
        for file, data in load.contents(self.source, new):
            lines = Lines(keeps_files=False)
            lines.read(data, file.path)
            infos[file.version] = lines.commit_info
        revisions = []
        for file in newest_first:
            info = infos[file.version]
            moment = info.in_commit_timestamp if info else None
            if kept is None or file.version < kept.since_version or moment is None:
                moment = times[file.version]
            revisions.append(Revision(file.version, moment, info))
        return revisions

    def commit_info(self, version: int) -> CommitInfo | None:
        """Return the ``commitInfo`` of a version."""
        name = paths.commit(version)
        lines = Lines(keeps_files=False)
        try:
            lines.read(self.source.get(name), name)
        except ObjectNotFound as gone:
            raise VersionNotAvailable(
                f"the commit of version {version} isn't in the log", version=version
            ) from gone
        return lines.commit_info

    def commit(self, transaction: Transaction, read: TableState) -> Committed | Conflict:
        """Commit a transaction that was made from the version ``read``.

        It is rebased on later commits if Delta's rules allow it; otherwise the
        :class:`~lakeferry.log.conflicts.Conflict` with the first one that doesn't is returned.
        """
        domains: Mapping[str, DomainMetadata] = {}
        if transaction.adds is not None and "rowTracking" in read.protocol.features:
            domains = self.small_snapshot(read.version).domains
        head = put_commit.head_of(read, domains)
        return put_commit.commit_transaction(self.store, transaction, head, self.clock)

    def check_commit(self, transaction: Transaction, read: TableState) -> LogHead:
        """Refuse a transaction that can't be committed on top of ``read``; write nothing.

        Returns the head of the log for the next commit.
        """
        return put_commit.planned(self.store, transaction, put_commit.head_of(read, {}), 0).head

    def commit_exactly(
        self, transaction: Transaction, read: TableState, now_ms: int
    ) -> Committed | Conflict:
        """Commit as the version right after ``read``, or not at all. Idempotent."""
        return put_commit.commit_exactly(
            self.store, transaction, put_commit.head_of(read, {}), now_ms
        )

    def backfill(self, version: int, body: bytes) -> Conflict | None:
        """Put a version's commit byte for byte; succeed if the same bytes are there already."""
        return put_commit.backfill(self.store, version, body)

    def checkpoint(
        self,
        version: int | None = None,
        *,
        dry_run: bool = False,
        checksum: bool = False,
        writer: LogFileWriter | None = None,
    ) -> Written:
        """Write the checkpoint of a version, or of the newest, unless it has a readable one.

        With ``dry_run`` nothing is written, and the result has the files to be written.
        With ``checksum`` a missing checksum file is written too. ``writer`` writes the files;
        by default the store does.
        """
        listing, segment = self._listed(version)
        reading = VersionReading(self.source, listing, segment, keeps_files=True)
        # The newest protocol decides whether we may write to the table at all.
        now = self._newest_state(reading)
        features.check_writable(now.protocol, asks_catalog=self.store.asks_catalog)
        if segment.version < now.version:
            self._check_protection(segment.version, now)
        there = segment.checkpoint
        replaces = False
        lacks_checksum = checksum and segment.checksum is None
        if there is not None and there.version == segment.version and not lacks_checksum:
            if load.is_usable(self.source, there):
                protocol = self._read_more(reading, VersionReading.state).protocol
                features.check_writable(protocol, asks_catalog=self.store.asks_catalog)
                names = tuple(file.path for file in there.files)
                return Written(there.version, there.kind.value, names, False)
            replaces = True
        planned = self._read_more(reading, lambda known: checkpoint.plan(known, self.clock()))
        found = planned.snapshot
        features.check_writable(found.protocol, asks_catalog=self.store.asks_catalog)
        stated = reading.checksum
        if stated is not None and segment.checksum is not None:
            checkpoint.check_against(planned, stated, segment.checksum.path)
        if dry_run:
            return checkpoint.foresee_checkpoint(found)
        if lacks_checksum:
            counts = planned.num_files, planned.size_bytes
            checkpoint.write_checksum(writer or self.store, found, *counts)
        return checkpoint.write(self.store, planned, replaces=replaces, writer=writer)

    def _newest_state(self, reading: VersionReading) -> TableState:
        """Return the newest state; a version that was just listed as the newest is read on."""
        listing = reading.listing
        if listing is not None and reading.version == listing.newest_version:
            with suppress(load.Vanished):
                return self._read_more(reading, VersionReading.state)
        return self.state()

    def _check_protection(self, version: int, now: TableState) -> None:
        """Refuse a checkpoint in protected history, unless we support that version's features."""
        if "checkpointProtection" not in now.protocol.features:
            return
        boundary = properties.protected_before(now.metadata.configuration) or 0
        unsupported = features.unsupported_features(
            self.state(version).protocol, asks_catalog=self.store.asks_catalog
        )
        if version < boundary and unsupported:
            raise CheckpointProtected(
                f"no checkpoint of version {version} may be written",
                cause=f"history before version {boundary} is protected, and version {version} has "
                f"features that Lakeferry doesn't support: {', '.join(unsupported)}",
                remedy=f"write one of version {boundary} or later",
                version=version,
                boundary=boundary,
                features=list(unsupported),
            )

    def hint(self) -> Hint | None:
        """Return the content of ``_last_checkpoint``, or ``None`` if it is missing or invalid."""
        try:
            return decode_hint(self.source.get(paths.LAST_CHECKPOINT))
        except ObjectNotFound:
            return None

    def _search(self, versions: list[int], timestamp_ms: int) -> int | None:
        """Return the newest of these versions at that time, by in-commit timestamps."""
        low, high = 0, len(versions)
        while low < high:
            middle = (low + high) // 2
            info = self.commit_info(versions[middle])
            own = info.in_commit_timestamp if info else None
            if own is None:
                raise CorruptLog(
                    f"version {versions[middle]} has no in-commit timestamp",
                    cause="the table's properties require one",
                    version=versions[middle],
                )
            if own <= timestamp_ms:
                low = middle + 1
            else:
                high = middle
        return versions[low - 1] if low else None

    def _list(self, since: int) -> Listing:
        try:
            return load.list_log(self.source, since)
        except ObjectNotFound as missing:
            raise TableNotFound(
                f"there is no table at {self.store.uri}",
                cause=str(missing),
                remedy="check the path",
                location=self.store.uri,
            ) from missing

    def _reading(
        self,
        version: int | None,
        read: Callable[[VersionReading], Result],
        *,
        keeps_files: KeepsFiles = False,
    ) -> Result:
        """Read a version; list again if the log was cleaned up in between."""

        def attempt() -> Result:
            listing, segment = self._listed(version)
            return self.working_around(
                segment,
                lambda usable: read(
                    VersionReading(self.source, listing, usable, keeps_files=keeps_files)
                ),
            )

        return _listing_anew(attempt)

    def _read_more(
        self, reading: VersionReading, read: Callable[[VersionReading], Result]
    ) -> Result:
        """Read more of a version; begin anew if it has to do without one of its files."""
        return self.working_around(
            reading.segment,
            lambda usable: read(reading if usable is reading.segment else self._reading_of(usable)),
        )

    def _reading_of(self, segment: Segment) -> VersionReading:
        return VersionReading(self.source, None, segment)

    def working_around(
        self,
        segment: Segment,
        read: Callable[[Segment], Result],
        listing: Listing | None = None,
        without: frozenset[str] = frozenset(),
    ) -> Result:
        """Read a segment; if a checkpoint or a compacted log can't be read, try without it.

        The commits have the same content, as long as they exist. So a broken checkpoint
        costs time and a warning; if the commits were cleaned up, its error is raised.
        Other files are taken from ``listing``, or from a new one, except those in
        ``without``, which are known to be broken.
        """
        unreadable = without
        first: CorruptLog | None = None
        while True:
            try:
                return read(segment)
            except CorruptLog as broken:
                dispensable = segment.dispensable(str(broken.fields.get("path", "")))
                if not dispensable:
                    raise
                first = first or broken
                unreadable |= dispensable
                self.warn(f"{broken}; the log is read without that file")
            listing = listing or self.listing()
            try:
                segment = listing.segment(segment.version, without=unreadable)
            except (CorruptLog, VersionNotAvailable):
                raise first from None

    def _no_table(self) -> TableNotFound | NotATable:
        """Return ``TableNotFound`` for an empty place, ``NotATable`` if it has other files."""
        uri = self.store.uri
        if self.store.is_occupied():
            if (above := table_above(self.store)) is not None:
                return NotATable(
                    f"{uri} is inside a Delta table, it isn't the table itself",
                    cause=f"the table is the folder that holds {paths.LOG_DIR}",
                    remedy=f"give the table's folder instead: {above}",
                    location=uri,
                    table=above,
                )
            if is_file(self.store):
                return NotATable(
                    f"{uri} is not a Delta table",
                    cause="it is a file, and a table is a folder",
                    remedy=f"give the folder that holds the table's {paths.LOG_DIR}",
                    location=uri,
                )
            return NotATable(
                f"{uri} is not a Delta table",
                cause=f"it has no {paths.LOG_DIR} with a version in it",
                remedy="check the path: a table's folder is the one that holds its _delta_log",
                location=uri,
            )
        return TableNotFound(
            f"there is no table at {uri}",
            cause="nothing is there",
            remedy="check the path",
            location=uri,
        )


def _has_commits(listing: Listing, since: int, limit: int | None) -> bool:
    """Return whether a listing has the newest ``limit`` commits, those from ``since`` on."""
    if listing.since == 0:
        return True
    return limit is not None and listing.since <= since and len(listing.commits) >= limit


def _listing_anew(read: Callable[[], Result]) -> Result:
    """Call ``read``; retry a few times if a listed file was deleted meanwhile."""
    for _ in range(_MAX_LISTINGS - 1):
        try:
            return read()
        except load.Vanished:
            continue
    return read()
