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
    """The versions of a log as numbers, from one listing; kept only while a page is made."""

    def __init__(self, entries: Iterable[ObjectInfo]) -> None:
        """Read a listing of ``_delta_log``, which is sorted by name."""
        self._versions, self._times = array("q"), array("q")
        self._sizes = array("q")
        checkpoints: dict[int, dict[str, int]] = {}
        self.size_bytes = 0
        for entry in entries:
            name = entry.path
            if len(name) == _COMMIT_LENGTH and name.endswith(".json"):
                digits = name[-25:-5]
                if digits.isdecimal() and digits.isascii() and int(digits) <= paths.MAX_VERSION:
                    self._versions.append(int(digits))
                    self._times.append(entry.modified_ms)
                    self._sizes.append(entry.size_bytes)
                    self.size_bytes += entry.size_bytes
                continue
            if ".checkpoint." not in name:
                continue
            file = paths.parse(name, entry.size_bytes, entry.modified_ms)
            if file is not None:
                self.size_bytes += file.size_bytes
                kinds = checkpoints.setdefault(file.version, {})
                kind = file.kind.value
                # Of several parts, as many are needed as each of them says.
                kinds[kind] = kinds.get(kind, file.parts) - 1
        self._checkpoints = {
            version: next(kind for kind, missing in kinds.items() if missing <= 0)
            for version, kinds in checkpoints.items()
            if min(kinds.values()) <= 0
        }
        self._complete = sorted(self._checkpoints)

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
            self.size_bytes,
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
