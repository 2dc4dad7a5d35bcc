"""Plans which log files can be deleted, and in which order.

Implements the protocol's "Metadata Cleanup" and the four rules of checkpoint
protection. Nothing is read or deleted here: whoever executes a plan lists the
log, asks for the protocols that :func:`asked` names, and deletes wave by wave.

* **a** No checkpoint before the boundary goes, unless all history before it does.
* **b** A checkpoint is made before the boundary only where we support the protocol
  of its version.
* **c** Versions whose protocol we don't support go only together with all history
  before the boundary; else the plan stops short of them, and says why.
* **d** Commits go before the checkpoints that cover them, oldest first.

A version stays readable as long as a complete checkpoint at or before it stays,
with every commit since. So a plan is built around its *base*, the checkpoint that
the oldest version that stays is rebuilt from: what is older than the base may go,
and nothing else does. The commit *at* the base stays: it knows when it was made.

A store that deletes many files at once promises no order among them. So a plan is
a list of waves: any part of one may be done, and none of the next before all of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from lakeferry.errors import CorruptLog
from lakeferry.log import features
from lakeferry.log.actions import Protocol
from lakeferry.log.paths import LogFile
from lakeferry.log.properties import DAY_MS
from lakeferry.log.segment import Checkpoint, Listing

WAVE_FILES = 1_000
"""As many as stores delete with one request; a gap that a crash leaves is no longer."""
SIDECAR_GRACE_MS = DAY_MS
"""A younger sidecar may belong to a checkpoint that is still being written."""


@dataclass(frozen=True, slots=True)
class Cut:
    """The oldest version that stays, and whether the log has to begin right there.

    ``reason`` is why it and those after it stay. Where the log need not begin at the
    version itself, an older checkpoint that is there already will do.
    """

    version: int
    reason: str
    exact: bool = False


@dataclass(frozen=True, slots=True)
class Kept:
    """Versions that stay, and why."""

    first: int
    last: int
    reason: str

    def as_document(self) -> dict[str, object]:
        """Return an element of ``kept_because`` of the command ``cleanup``."""
        return {"from": self.first, "to": self.last, "reason": self.reason}


@dataclass(frozen=True, slots=True)
class CleanupPlan:
    """What to do, in this order: make a checkpoint, then delete wave after wave.

    Where ``create`` is set, nothing is to be deleted before that checkpoint is there
    and the log has been listed and planned anew. ``base`` is where the log begins
    afterwards; ``None`` where nothing goes.
    """

    create: int | None
    base: Checkpoint | None
    commits: tuple[tuple[str, ...], ...]
    """Waves of commits, checksum files and compacted logs."""
    checkpoints: tuple[tuple[str, ...], ...]
    kept: tuple[Kept, ...]

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do."""
        return self.create is None and not self.commits and not self.checkpoints


def asked(listing: Listing, cut: Cut, boundary: int | None) -> range:
    """Return the versions whose protocols the plan depends on; often none.

    Without a boundary, and where all history before it goes, no protocol matters.
    """
    if boundary is None:
        return range(0)
    base = _base(listing, cut.version)
    creates = _creates(listing, cut, base)
    end = cut.version if creates else base.version if base else 0
    if end >= boundary:
        return range(0)
    oldest = min((file.first_version for file in _history(listing, end)), default=end)
    return range(oldest, end + 1 if creates else end)


def plan(
    listing: Listing,
    cut: Cut,
    boundary: int | None = None,
    protocols: Mapping[int, Protocol | None] | None = None,
) -> CleanupPlan:
    """Plan a cleanup of the log that the listing shows in full.

    ``protocols`` are those of the versions that were :func:`asked` for, ``None``
    where one can't be known any more.
    """
    newest, earliest = listing.newest_version, listing.earliest_version()
    if earliest is None:
        raise CorruptLog(
            f"version {newest} can't be rebuilt",
            cause="the log has a gap, or no complete checkpoint to begin with",
            remedy="restore the missing log files from a copy; nothing was deleted",
            version=newest,
        )
    kept = [Kept(cut.version, newest, cut.reason)]
    base = _base(listing, cut.version)
    if base is not None and base.version < earliest:
        # Whatever holds versions together across a gap is best not touched.
        gap = f"commits before version {earliest} are missing; all that is older stays with them"
        return CleanupPlan(None, None, (), (), _tidy([*kept, Kept(0, cut.version - 1, gap)]))
    create = cut.version if _creates(listing, cut, base) else None
    stop = None
    if boundary is not None and (create or (base.version if base else 0)) < boundary:
        stop = _first_unsupported(listing, asked(listing, cut, boundary), protocols or {}, create)
    if create is not None and stop is not None:
        # Rule b, or rule c for what lies before: an older checkpoint has to do.
        create = None
        if base is not None and base.version <= stop.version < cut.version:
            kept.append(Kept(stop.version, cut.version - 1, stop.reason))
    if create is not None:
        return CleanupPlan(create, base, (), (), tuple(kept))
    if base is not None and stop is not None and stop.version < base.version:
        short = _base(listing, stop.version)
        kept.append(Kept(short.version if short else stop.version, cut.version - 1, stop.reason))
        base = short
    elif base is not None and base.version < cut.version:
        reason = f"version {cut.version} is rebuilt from the checkpoint at {base.version}"
        kept.append(Kept(base.version, cut.version - 1, reason))
    if base is None:
        if stop is not None and cut.version > 0 and kept[-1].reason != stop.reason:
            kept.append(Kept(stop.version, cut.version - 1, stop.reason))
        return CleanupPlan(None, None, (), (), _tidy(kept))
    history = _history(listing, base.version)
    commits = _waves(file.path for file in sorted(history, key=_age))
    old = [each for each in listing.checkpoints if each.version < base.version]
    if boundary is not None and base.version < boundary:
        if old:
            reason = f"checkpoints before version {boundary} are protected"
            kept.append(Kept(old[0].version, old[-1].version, reason))
        old = []
    checkpoints = _waves(file.path for each in old for file in each.files)
    return CleanupPlan(None, base, commits, checkpoints, _tidy(kept))


def sidecar_waves(
    listed: Iterable[tuple[str, int]], named: frozenset[str], now_ms: int
) -> tuple[tuple[str, ...], ...]:
    """Return the sidecars that may go: old ones that no checkpoint that stays names.

    ``listed`` has every sidecar with the time it was written. They go last, when the
    checkpoints that named them are gone.
    """
    return _waves(
        path
        for path, modified_ms in listed
        if path not in named and modified_ms < now_ms - SIDECAR_GRACE_MS
    )


@dataclass(frozen=True, slots=True)
class _Stop:
    """The first version that may not be cleaned, and why."""

    version: int
    reason: str


def _first_unsupported(
    listing: Listing,
    versions: Sequence[int],
    protocols: Mapping[int, Protocol | None],
    checkpointed: int | None,
) -> _Stop | None:
    for version in versions:
        gone = version not in listing.commits and version not in listing.checksums
        if gone and version != checkpointed:
            # Nothing of it is left that could go.
            continue
        protocol = protocols.get(version)
        if protocol is None:
            return _Stop(version, f"the protocol of version {version} can't be known any more")
        unsupported = features.unsupported(protocol)
        if unsupported:
            names = ", ".join(unsupported)
            return _Stop(version, f"version {version} has {names}, which we don't support")
    return None


def _base(listing: Listing, version: int) -> Checkpoint | None:
    """Return the newest complete checkpoint at or before a version from which it can be rebuilt."""
    complete = [each for each in listing.checkpoints if each.complete and each.version <= version]
    return complete[-1] if complete else None


def _creates(listing: Listing, cut: Cut, base: Checkpoint | None) -> bool:
    """Tell whether a checkpoint at the cut is needed: only where something could go then."""
    earliest = listing.earliest_version()
    if earliest is None or not earliest < cut.version <= listing.newest_version:
        return False
    return base is None or (cut.exact and base.version < cut.version)


def _history(listing: Listing, before: int) -> list[LogFile]:
    """Return commits, and what goes with them, of all versions before one."""
    found = [file for version, file in listing.commits.items() if version < before]
    found += [file for version, file in listing.checksums.items() if version < before]
    found += [
        file
        for first, files in listing.compacted.items()
        if first < before
        for file in files
        # One that goes further stays where a later version has no commit of its own.
        if all(version in listing.commits for version in range(before + 1, file.version + 1))
    ]
    return found


def _age(file: LogFile) -> tuple[int, str]:
    return file.first_version, file.path


def _waves(names: Iterable[str]) -> tuple[tuple[str, ...], ...]:
    rest: Iterator[str] = iter(names)
    return tuple(iter(lambda: tuple(islice(rest, WAVE_FILES)), ()))


def _tidy(kept: Iterable[Kept]) -> tuple[Kept, ...]:
    return tuple(sorted((each for each in kept if each.first <= each.last), key=lambda k: k.first))
