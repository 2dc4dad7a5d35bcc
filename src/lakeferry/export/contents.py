"""Decides which log files an export has: a pure plan from listings.

:func:`content_of` says which of a log's files are exported. :func:`plan` says for each
whether it is exported or taken over, in which order they get their names, and what
goes from a place that had another export.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from lakeferry.export.manifest import ExportedFile
from lakeferry.log import paths
from lakeferry.log.paths import LogFile, LogFileKind
from lakeferry.log.segment import Listing, Segment


@dataclass(frozen=True, slots=True)
class Content:
    """The log files of an export: of the checkpoint, then commits, oldest first."""

    segment: Segment
    files: tuple[LogFile, ...]

    @property
    def version(self) -> int:
        """The newest version."""
        return self.segment.version

    @property
    def size_bytes(self) -> int:
        """The bytes of all files together, as they are at the source."""
        return sum(file.size_bytes for file in self.files)


def content_of(listing: Listing, without: frozenset[str] = frozenset()) -> Content:
    """Return what is exported of a log; ``without`` names files that can't be read."""
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
        # Some commits are there in a compacted log alone.
        compacted = [file for file in segment.deltas if file.kind is LogFileKind.COMPACTED]
    return Content(segment, (*(base.files if base else ()), *compacted, *commits))


@dataclass(frozen=True, slots=True)
class ExportPlan:
    """What becomes of each file. ``names`` are the whole export's, sidecars first.

    ``write`` are exported, ``take`` brought from an earlier export; the others are in
    their place. ``published`` tells that the place can be opened now, ``closes`` that
    it may not be while files are replaced. ``stale`` goes in the end, in this order.
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


def plan(
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

    ``entries`` tells of each file at the source, sidecars first. ``reusable`` are
    those that would come out as an earlier export has them, which is at this very
    place (``in_place``) or at another. ``there`` is what an export to this place has
    written or begun to write, ``present`` which log files are there. Where paths
    are ``stable``, the same file at the source gives the same bytes whenever.
    """
    published = any(opens(name) for name in present)
    lacks = set(entries) - set(present) if in_place else set()
    new = [name for name in entries if name not in reusable or name in lacks]
    closes = published and any(
        name in present and not (stable and name in there and there[name].is_of(entries[name]))
        for name in new
    )
    # Where the place is closed, what opens it has to be written again, whatever it is.
    write = tuple(entries) if closes else tuple(new)
    return ExportPlan(
        names=tuple(entries),
        write=write,
        take=() if in_place else tuple(name for name in entries if name not in write),
        published=published,
        closes=closes,
        stale=tuple(
            sorted(
                (name for name in {*there, *present} if name not in entries),
                key=lambda name: _goes(name, content.version),
            )
        ),
    )


def opens(name: str) -> bool:
    """Tell whether a table can be opened with the file of that name as its beginning."""
    file = paths.parse(name)
    return file is not None and file.opens


def _goes(name: str, version: int) -> tuple[int, int, str]:
    """Order what goes: versions that are too new from the last on, then the oldest first."""
    file = paths.parse(name)
    if file is None:
        return (2, 0, name)
    return (0, -file.version, name) if file.version > version else (1, file.version, name)
