"""Chooses the log files that make up a version, from a listing.

Implements the protocol's rules on which log files count: a multi-part checkpoint with a missing
part doesn't count, a compacted log can replace the commits that it covers, replay begins at the
newest complete checkpoint, and from there on versions must have no gap.

Only names and sizes are used; no file is read. If the listing is not enough for a version, that
is an error with a code, never an approximate result.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from lakeferry.errors import CorruptLog, VersionNotAvailable
from lakeferry.log.paths import LogFile, LogFileKind


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One checkpoint in a listing; sidecars are named inside it, not listed."""

    version: int
    kind: LogFileKind
    files: tuple[LogFile, ...]
    complete: bool

    @property
    def size_bytes(self) -> int:
        """Total size of all listed files."""
        return sum(file.size_bytes for file in self.files)


@dataclass(frozen=True, slots=True)
class Segment:
    """The files from which one version is rebuilt, in replay order.

    ``deltas`` are commits and compacted logs, oldest first. ``commit`` is the version's own
    commit and ``checksum`` its checksum file, if they exist.
    """

    version: int
    checkpoint: Checkpoint | None
    deltas: tuple[LogFile, ...]
    commit: LogFile | None
    checksum: LogFile | None

    @staticmethod
    def of_checkpoint(checkpoint: Checkpoint) -> Segment:
        """Return the segment that is only a checkpoint."""
        return Segment(checkpoint.version, checkpoint, (), None, None)

    def dispensable(self, path: str) -> frozenset[str]:
        """Return the files to leave out if ``path`` is broken; commits contain the same data.

        That is a compacted log, or the whole checkpoint; an unlisted ``path`` may be one of its
        sidecars. A commit can't be left out: then the result is empty.
        """
        for delta in self.deltas:
            if delta.path == path:
                return frozenset({path} if delta.kind is LogFileKind.COMPACTED else ())
        if not path or self.checkpoint is None:
            return frozenset()
        return frozenset(file.path for file in self.checkpoint.files)

    @property
    def files(self) -> tuple[LogFile, ...]:
        """Every listed file that the version is rebuilt from."""
        return (*self.deltas, *(self.checkpoint.files if self.checkpoint else ()))

    @property
    def size_bytes(self) -> int:
        """Total size of these files."""
        return sum(file.size_bytes for file in self.files)


@dataclass(frozen=True, slots=True)
class Listing:
    """A log's files by kind. ``since`` is where the listing began; 0 means all of it."""

    commits: dict[int, LogFile]
    checkpoints: tuple[Checkpoint, ...]
    compacted: dict[int, tuple[LogFile, ...]]
    checksums: dict[int, LogFile]
    staged: tuple[LogFile, ...] = ()
    since: int = 0
    _complete: tuple[Checkpoint, ...] = field(default=(), repr=False)

    @property
    def is_empty(self) -> bool:
        """Whether there is no file that could be part of a version."""
        return not self.commits and not self._complete

    @property
    def newest_version(self) -> int:
        """The newest version in the listing."""
        newest_commit = max(self.commits, default=-1)
        newest_checkpoint = self._complete[-1].version if self._complete else -1
        return max(newest_commit, newest_checkpoint)

    def earliest_version(self) -> int | None:
        """Return the oldest version such that it and all later versions can be rebuilt.

        ``None`` if not even the newest can be rebuilt.
        """
        oldest = self.newest_version
        while oldest - 1 in self.commits and oldest in self.commits:
            oldest -= 1
        if oldest == 0 and 0 in self.commits:
            return 0
        # A checkpoint right before the first commit of the unbroken run is enough.
        begin = oldest - 1 if oldest in self.commits else oldest
        return next(
            (checkpoint.version for checkpoint in self._complete if checkpoint.version >= begin),
            None,
        )

    def segment(
        self, version: int | None = None, *, without: frozenset[str] = frozenset()
    ) -> Segment:
        """Return the files that make up ``version``, or the newest.

        ``without`` names unreadable files of checkpoints and compacted logs.
        """
        newest = self.newest_version
        if version is None:
            target = newest
        else:
            target = version
            if target > newest or target < 0:
                raise VersionNotAvailable(
                    f"there is no version {target}",
                    cause=f"the newest version is {newest}",
                    remedy=f"use --version {newest} or an older one (version=N in Python)",
                    version=target,
                    newest_version=newest,
                )
        base = self._base(target, without)
        first = 0 if base is None else base.version + 1
        if base is None and not self._begins_at_zero():
            self._refuse_lost(version, target)
        return Segment(
            target,
            base,
            self._deltas(first, target, without),
            self.commits.get(target),
            self.checksums.get(target),
        )

    def _base(self, target: int, without: frozenset[str]) -> Checkpoint | None:
        for checkpoint in reversed(self._complete):
            if checkpoint.version <= target and not any(
                file.path in without for file in checkpoint.files
            ):
                return checkpoint
        return None

    def _begins_at_zero(self) -> bool:
        return 0 in self.commits or 0 in self.compacted

    def _refuse_lost(self, asked: int | None, target: int) -> None:
        earliest = self.earliest_version()
        if asked is None or earliest is None:
            raise CorruptLog(
                f"version {target} can't be rebuilt",
                cause="there is no complete checkpoint, and the log doesn't begin at version 0",
                remedy="restore the missing log files from a copy",
                version=target,
            )
        raise VersionNotAvailable(
            f"version {target} can no longer be rebuilt",
            cause="the earlier part of the log was cleaned up",
            remedy=f"use --version {earliest} or a newer one (version=N in Python)",
            version=target,
            earliest_version=earliest,
        )

    def _deltas(self, first: int, target: int, without: frozenset[str]) -> tuple[LogFile, ...]:
        chosen: list[LogFile] = []
        position = first
        while position <= target:
            candidates = [
                file
                for file in self.compacted.get(position, ())
                if file.version <= target and file.path not in without
            ]
            if candidates:
                file = max(candidates, key=lambda file: file.version)
            elif position in self.commits:
                file = self.commits[position]
            else:
                raise self._gap(position, target)
            chosen.append(file)
            position = file.version + 1
        return tuple(chosen)

    def _gap(self, missing: int, target: int) -> CorruptLog | VersionNotAvailable:
        if missing == target or target not in self.commits:
            return VersionNotAvailable(
                f"there is no version {target}",
                cause=f"the commit of version {missing} isn't in the log",
                remedy="use another --version; 'lakeferry history TABLE' lists the versions",
                version=target,
            )
        return CorruptLog(
            f"version {target} can't be rebuilt",
            cause=f"the log has a gap: the commit of version {missing} is missing",
            remedy="restore the missing commit from a copy",
            version=target,
            missing_version=missing,
        )


def arrange(files: Iterable[LogFile], since: int = 0) -> Listing:
    """Sort a log's files into a :class:`Listing`."""
    commits: dict[int, LogFile] = {}
    checksums: dict[int, LogFile] = {}
    compacted: defaultdict[int, list[LogFile]] = defaultdict(list)
    single: list[Checkpoint] = []
    parts: defaultdict[tuple[int, int], list[LogFile]] = defaultdict(list)
    staged: list[LogFile] = []
    for file in files:
        match file.kind:
            case LogFileKind.COMMIT:
                commits[file.version] = file
            case LogFileKind.CHECKSUM:
                checksums[file.version] = file
            case LogFileKind.COMPACTED:
                compacted[file.first_version].append(file)
            case LogFileKind.CLASSIC | LogFileKind.V2:
                single.append(Checkpoint(file.version, file.kind, (file,), True))
            case LogFileKind.MULTI_PART:
                parts[file.version, file.parts].append(file)
            case LogFileKind.STAGED:
                staged.append(file)
    for (version, count), found in parts.items():
        ordered = tuple(sorted(found, key=lambda file: file.part))
        single.append(Checkpoint(version, LogFileKind.MULTI_PART, ordered, len(ordered) == count))
    checkpoints = tuple(sorted(single, key=_preference))
    return Listing(
        commits,
        checkpoints,
        {first: tuple(found) for first, found in compacted.items()},
        checksums,
        tuple(staged),
        since,
        tuple(checkpoint for checkpoint in checkpoints if checkpoint.complete),
    )


_RANK = {LogFileKind.CLASSIC: 0, LogFileKind.MULTI_PART: 1, LogFileKind.V2: 2}


def _preference(checkpoint: Checkpoint) -> tuple[int, int, str]:
    """Return a sort key: of several checkpoints for one version, the last one is used.

    delta-spark has the same order, so both read the same data if two checkpoints of one version
    differ.
    """
    return (checkpoint.version, _RANK[checkpoint.kind], checkpoint.files[0].path)
