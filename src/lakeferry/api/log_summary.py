"""Summarises a log from one listing: how many commits and checkpoints there are, and when.

Nothing is read, and no object is kept per commit: a log may have a hundred thousand.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate

from lakeferry.log import paths
from lakeferry.log.paths import LogFile, LogFileKind
from lakeferry.log.segment import Listing, arrange
from lakeferry.storage import ObjectInfo

BARS = 60
"""Into how many stretches the time of a log is divided, for a plot."""
_COMMIT_LENGTH = len(paths.commit(0))


@dataclass(frozen=True, slots=True)
class LogStretch:
    """A stretch of time: its versions, if there are any, and how many commits and checkpoints."""

    from_ms: int
    to_ms: int
    first_version: int | None
    last_version: int | None
    commits: int
    checkpoints: int


@dataclass(frozen=True, slots=True)
class LogSummary:
    """A log in numbers. ``oldest`` and ``newest`` are versions; ``None`` without commits."""

    commits: int
    oldest: int | None
    newest: int | None
    first_ms: int | None
    last_ms: int | None
    size_bytes: int
    checkpoints: int
    oldest_checkpoint: int | None
    newest_checkpoint: int | None
    is_gapless: bool
    stretches: tuple[LogStretch, ...]


class ListedLog:
    """A log, or a window of it, as numbers from one listing. It doesn't change."""

    def __init__(self, entries: Iterable[ObjectInfo], known: ListedLog | None = None) -> None:
        """Read a listing of ``_delta_log``, which is sorted by name.

        It goes on where ``known`` ends, if there is one; see :meth:`before`.
        """
        self._versions, self._times, self._sizes = array("q"), array("q"), array("q")
        self._files: dict[int, list[LogFile]] = {}
        if known is not None:
            self._versions, self._times = known._versions[:], known._times[:]
            self._sizes, self._files = known._sizes[:], dict(known._files)
        for entry in entries:
            name = entry.path
            if len(name) == _COMMIT_LENGTH and name.endswith(".json"):
                digits = name[-25:-5]
                if digits.isdecimal() and digits.isascii() and int(digits) <= paths.MAX_VERSION:
                    self._versions.append(int(digits))
                    self._times.append(entry.modified_ms)
                    self._sizes.append(entry.size_bytes)
                continue
            if ".checkpoint." not in name:
                continue
            file = paths.parse(name, entry.size_bytes, entry.modified_ms)
            if file is not None:
                self._files.setdefault(file.version, []).append(file)
        self._checkpoints = {
            version: kind
            for version, files in self._files.items()
            if (kind := _complete_kind(files)) is not None
        }
        self._complete = sorted(self._checkpoints)

    def __len__(self) -> int:
        """Return how many commits there are."""
        return len(self._versions)

    @property
    def newest(self) -> int | None:
        """The newest version that has a commit or a complete checkpoint."""
        ends = (*self._versions[-1:], *self._complete[-1:])
        return max(ends) if ends else None

    @property
    def oldest_commit(self) -> ObjectInfo | None:
        """The oldest commit, as it was listed."""
        if not self._versions:
            return None
        return ObjectInfo(paths.commit(self._versions[0]), self._sizes[0], self._times[0])

    def before(self, version: int) -> ListedLog:
        """Return what is older than a version."""
        end = bisect_left(self._versions, version)
        older = ListedLog(())
        older._versions, older._times = self._versions[:end], self._times[:end]
        older._sizes = self._sizes[:end]
        older._files = {each: files for each, files in self._files.items() if each < version}
        return ListedLog((), older)

    def has_before(self, version: int) -> bool:
        """Return whether there is a commit before a version."""
        return bool(self._versions) and self._versions[0] < version

    def listing(self, since: int, until: int) -> Listing:
        """Return commits and checkpoints of these versions as files, to choose from."""
        rows = slice(bisect_left(self._versions, since), bisect_left(self._versions, until + 1))
        commits = (
            LogFile(
                LogFileKind.COMMIT, each, paths.commit(each), each, size_bytes=size, modified_ms=ms
            )
            for each, size, ms in zip(
                self._versions[rows], self._sizes[rows], self._times[rows], strict=True
            )
        )
        checkpoints = (
            file for each in self._files if since <= each <= until for file in self._files[each]
        )
        return arrange((*commits, *checkpoints), since)

    def checkpoint_kind(self, version: int) -> str | None:
        """Return the kind of a version's checkpoint, if it has a complete one."""
        return self._checkpoints.get(version)

    def checkpoint_before(self, version: int) -> int | None:
        """Return the newest version with a complete checkpoint up to this one."""
        at = bisect_left(self._complete, version + 1)
        return self._complete[at - 1] if at else None

    def page(self, before: int | None, count: int) -> list[tuple[int, int, int]]:
        """Return version, size and time of the newest commits before a version, oldest first."""
        end = len(self._versions) if before is None else bisect_left(self._versions, before)
        rows = slice(max(end - count, 0), end)
        return list(zip(self._versions[rows], self._sizes[rows], self._times[rows], strict=True))

    def summary(self) -> LogSummary:
        """Return the log in numbers."""
        versions, times = self._versions, self._times
        oldest, newest = (versions[0], versions[-1]) if versions else (None, None)
        complete = self._complete
        gapless = not versions or versions[-1] - versions[0] + 1 == len(versions)
        return LogSummary(
            len(versions),
            oldest,
            newest,
            times[0] if times else None,
            times[-1] if times else None,
            sum(self._sizes)
            + sum(each.size_bytes for files in self._files.values() for each in files),
            len(complete),
            complete[0] if complete else None,
            complete[-1] if complete else None,
            gapless,
            tuple(self._stretches()),
        )

    def _stretches(self) -> Iterable[LogStretch]:
        if not self._versions:
            return
        # A later commit may have an older time, as after a copy; its version still comes later.
        times = array("q", accumulate(self._times, max))
        first, last = times[0], times[-1]
        width = max(-(-(last - first + 1) // BARS), 1)
        low = 0
        for start in range(first, last + 1, width):
            high = bisect_left(times, start + width)
            oldest, newest = (
                (self._versions[low], self._versions[high - 1]) if high > low else (None, None)
            )
            checkpoints = 0
            if oldest is not None and newest is not None:
                ends = [bisect_left(self._complete, each) for each in (oldest, newest + 1)]
                checkpoints = ends[1] - ends[0]
            yield LogStretch(start, start + width, oldest, newest, high - low, checkpoints)
            low = high


def _complete_kind(files: Iterable[LogFile]) -> str | None:
    """Return the kind of a checkpoint all of whose parts are listed."""
    missing: dict[str, int] = {}
    for file in files:
        # Of several parts, as many are needed as each of them says.
        missing[file.kind.value] = missing.get(file.kind.value, file.parts) - 1
    return next((kind for kind, count in missing.items() if count <= 0), None)
