"""What was read of one version of a log, for the next question about it.

Whether a table is redirected shows in its protocol and metadata, and only then is it known whether
the rest is needed. What was read until then is handed on in a :class:`VersionReading`: the commits,
parsed, and the parts of the checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from lakeferry.log import checkpoint_read
from lakeferry.log.actions import CommitInfo
from lakeferry.log.checkpoint_read import PROTOCOL_AND_METADATA
from lakeferry.log.checksum import Checksum
from lakeferry.log.lines import Lines
from lakeferry.log.replay import FileTable, Reconciliation, Snapshot, TableState
from lakeferry.log.segment import Listing, Segment
from lakeferry.table import load
from lakeferry.table.log_source import LogSource

KeepsFiles = bool | Callable[[Segment], bool]
"""Whether to keep a version's file actions, of which there may be very many."""


class VersionReading:
    """What was read of a version. Mutable: each question adds to it what it had to read.

    With ``keeps_files`` the commits' file actions are kept, too, once the commits are read.
    """

    def __init__(
        self,
        source: LogSource,
        listing: Listing | None,
        segment: Segment,
        *,
        keeps_files: KeepsFiles = False,
    ) -> None:
        """Begin to read the version that ``segment`` makes up; no request is sent yet.

        ``listing`` is the one that the segment was chosen from, if it is known.
        """
        self.source = source
        self.listing = listing
        self.segment = segment
        self._keeps_files = keeps_files(segment) if callable(keeps_files) else keeps_files
        self._checksum: tuple[Checksum | None] | None = None
        self._lines: Lines | None = None
        self._commit_infos: dict[int, CommitInfo | None] = {}
        self._state: TableState | None = None
        self._replayed: TableState | None = None

    @property
    def version(self) -> int:
        """The version."""
        return self.segment.version

    @property
    def commit_infos(self) -> Mapping[int, CommitInfo | None]:
        """The ``commitInfo`` of each commit that was read."""
        return self._commit_infos

    @property
    def checksum(self) -> Checksum | None:
        """What the version's checksum file says; ``None`` if it is missing or unreadable."""
        if self._checksum is None:
            file = self.segment.checksum
            self._checksum = (None if file is None else load.read_checksum(self.source, file),)
        return self._checksum[0]

    def state(self) -> TableState:
        """Return the protocol and the metadata, from the checksum file if it has them."""
        if self._state is None:
            checksum = self.checksum
            self._state = (
                self.replayed_state()
                if checksum is None
                else TableState(self.version, checksum.protocol, checksum.metadata)
            )
        return self._state

    def replayed_state(self) -> TableState:
        """Return the protocol and the metadata, from commits and the checkpoint."""
        if self._replayed is None:
            lines = self._commits()
            replay = self._without_files(lines)
            if lines.protocol is None or lines.metadata is None:
                replay.take(
                    load.small_rows(self.source, self.segment, lines, PROTOCOL_AND_METADATA)
                )
            self._replayed = replay.state()
        return self._replayed

    def small_snapshot(self) -> Snapshot:
        """Return the version without its files: the tables of files are empty."""
        lines = self._commits()
        replay = self._without_files(lines)
        replay.take(
            load.small_rows(self.source, self.segment, lines, checkpoint_read.SMALL_ACTIONS)
        )
        return replay.snapshot()

    def file_tables(self) -> Iterator[FileTable]:
        """Yield the live files and the tombstones, a table at a time; none is kept."""
        return load.file_tables(self.source, self.segment, self._commits_with_files())

    def snapshot(self) -> Snapshot:
        """Return the version with all of its live files and tombstones."""
        lines = self._commits_with_files()
        # The files are in the snapshot then, and aren't needed a second time.
        self._lines = None
        return load.reconcile(self.source, self.segment, lines).snapshot()

    def _commits_with_files(self) -> Lines:
        if self._lines is None or not self._lines.keeps_files:
            self._keeps_files, self._lines = True, None
        return self._commits()

    def _commits(self) -> Lines:
        if self._lines is None:
            self._lines = load.read_deltas(
                self.source,
                self.segment,
                keeps_files=self._keeps_files,
                commit_infos=self._commit_infos,
            )
        return self._lines

    def _without_files(self, lines: Lines) -> Reconciliation:
        bare = Lines(
            protocol=lines.protocol,
            metadata=lines.metadata,
            commit_info=lines.commit_info,
            txns=lines.txns,
            domains=lines.domains,
        )
        return Reconciliation(self.version, self.source.uri, bare)
