"""Decides which log files an export has: a pure plan from listings.

:func:`content_of` selects the log files to export. :func:`plan_exported_log` decides for each
whether it is exported or reused, in which order files get their names, and what is deleted from a
place that had another export.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from lakeferry.export.manifest import ExportedFile
from lakeferry.log import paths
from lakeferry.log.paths import LogFile, LogFileKind
from lakeferry.log.segment import Listing, Segment


@dataclass(frozen=True, slots=True)
class Content:
    """The log files of an export: those of the checkpoint, then commits, oldest first."""

    segment: Segment
    files: tuple[LogFile, ...]

    @property
    def version(self) -> int:
        """The newest version."""
        return self.segment.version

    @property
    def size_bytes(self) -> int:
        """The total size of the files at the source."""
        return sum(file.size_bytes for file in self.files)


def content_of(listing: Listing, without: frozenset[str] = frozenset()) -> Content:
    """Return the log files to export; ``without`` names files that can't be read."""
    segment = listing.segment(without=without)
    base = segment.checkpoint
    first = 0 if base is None else base.version
    commits = [
        listing.commits[version]
        for version in range(first, segment.version + 1)
        if version in listing.commits
    ]
    needed = segment.version - first + (base is None)
    compacted: list[LogFile] = []
    if len([file for file in commits if base is None or file.version > first]) < needed:
        # Some commits exist only in a compacted log.
        compacted = [file for file in segment.deltas if file.kind is LogFileKind.COMPACTED]
    return Content(segment, (*(base.files if base else ()), *compacted, *commits))


@dataclass(frozen=True, slots=True)
class ExportPlan:
    """What happens to each file. ``names`` are the whole export's, sidecars first.

    ``write`` are exported, ``take`` are copied from an earlier export; the others are already in
    place. ``published`` is True if the place can be opened now, ``closes`` if it must not be
    opened while files are replaced. ``stale`` files are deleted at the end, in this order.
    """

    names: tuple[str, ...]
    write: tuple[str, ...]
    take: tuple[str, ...]
    published: bool
    closes: bool
    stale: tuple[str, ...]

    @property
    def changes(self) -> bool:
        """Whether there is anything to do."""
        return bool(self.write or self.take or self.stale)


def plan_exported_log(
    content: Content,
    entries: Mapping[str, ExportedFile],
    *,
    reusable: Collection[str],
    in_place: bool,
    stable: bool,
    there: Mapping[str, ExportedFile],
    present: Collection[str],
) -> ExportPlan:
    """Plan an export to a place.

    ``entries`` describes each file at the source, sidecars first. ``reusable`` are files that
    would come out as in an earlier export, which is at this place (``in_place``) or at another.
    ``there`` are the files that exports to this place have written or begun to write,
    ``present`` the log files that exist there. ``stable`` means that exporting the same source
    file always gives the same bytes.
    """
    published = any(opens(name) for name in present)
    lacks = set(entries) - set(present) if in_place else set()
    new = [name for name in entries if name not in reusable or name in lacks]
    closes = published and any(
        name in present and not (stable and name in there and there[name].is_of(entries[name]))
        for name in new
    )
    # If the place is closed, the files that open it must be written again in any case.
    write = tuple(entries) if closes else tuple(new)
    return ExportPlan(
        names=tuple(entries),
        write=write,
        take=() if in_place else tuple(name for name in entries if name not in write),
        published=published,
        closes=closes,
        stale=tuple(in_order_of_deletion({*there, *present}.difference(entries), content.version)),
    )


def opens(name: str) -> bool:
    """Return True if a log can begin with the file of that name."""
    file = paths.parse(name)
    return file is not None and file.opens


def is_newer(name: str, version: int) -> bool:
    """Return True if a log file belongs to a version after ``version``."""
    file = paths.parse(name)
    return file is not None and file.version > version


def in_order_of_deletion(names: Iterable[str], version: int) -> list[str]:
    """Return the files to delete from a place that shows ``version``, in a safe order."""
    return sorted(names, key=lambda name: _goes(name, version))


def _goes(name: str, version: int) -> tuple[int, int, str]:
    """Return a key that sorts deletions: too new versions, newest first; then oldest first."""
    file = paths.parse(name)
    if file is None:
        return (2, 0, name)
    return (0, -file.version, name) if file.version > version else (1, file.version, name)
