"""Plans which log files can be deleted, and in which order.

Implements the protocol's "Metadata Cleanup" and the four rules of checkpoint protection. Nothing
is read or deleted here: the caller lists the log, reads the protocols that :func:`asked` names,
and deletes wave by wave.

* **a** No checkpoint before the boundary is deleted, unless all history before it is.
* **b** A checkpoint is made before the boundary only if we support the protocol of its version.
* **c** Versions whose protocol we don't support are deleted only together with all history
  before the boundary; otherwise the plan ends before them and states the reason.
* **d** Commits are deleted before the checkpoints that cover them, oldest first.

A version stays readable as long as a complete checkpoint at or before it exists, and every
commit since. So a plan has a *base*: the checkpoint from which the oldest kept version is
rebuilt. Only files older than the base may be deleted. The commit *at* the base stays, because
it has the version's commit time.

A store that deletes many files at once doesn't guarantee their order. So a plan is a list of
waves: within a wave any order is safe, and a wave begins only after the previous one is
complete.
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
"""The number of files that stores delete with one request; limits the gap after a crash."""
SIDECAR_GRACE_MS = DAY_MS
"""A younger sidecar may belong to a checkpoint that is still being written."""


@dataclass(frozen=True, slots=True)
class Cut:
    """The oldest version to keep, and whether the log must begin exactly there.

    ``reason`` is why this and later versions are kept. If the log needn't begin exactly at the
    version, an existing older checkpoint can be the base.
    """

    version: int
    reason: str
    exact: bool = False


@dataclass(frozen=True, slots=True)
class Kept:
    """Versions that are kept, and the reason."""

    first: int
    last: int
    reason: str

    def as_document(self) -> dict[str, object]:
        """Return an element of ``kept_because`` of the command ``cleanup``."""
        return {"from": self.first, "to": self.last, "reason": self.reason}


@dataclass(frozen=True, slots=True)
class CleanupPlan:
    """What to do, in this order: make a checkpoint, then delete wave after wave.

    If ``create`` is set, make that checkpoint first, then list the log and plan again before any
    deletion. ``base`` is where the log begins afterwards; ``None`` if nothing is deleted.
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

    No protocol matters if there is no boundary, or if all history before it is deleted.
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


def plan_cleanup(
    listing: Listing,
    cut: Cut,
    boundary: int | None = None,
    protocols: Mapping[int, Protocol | None] | None = None,
) -> CleanupPlan:
    """Plan a cleanup of a log, given its complete listing.

    ``protocols`` are those of the versions from :func:`asked`; ``None`` for a protocol that
    can't be read any more.
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
        # Don't touch files that connect versions across a gap.
        gap = f"commits before version {earliest} are missing; all older files are kept"
        return CleanupPlan(None, None, (), (), _tidy([*kept, Kept(0, cut.version - 1, gap)]))
    create = cut.version if _creates(listing, cut, base) else None
    stop = None
    if boundary is not None and (create or (base.version if base else 0)) < boundary:
        stop = _first_unsupported(listing, asked(listing, cut, boundary), protocols or {}, create)
    if create is not None and stop is not None:
        # Rule b, or rule c for the versions before it: an older checkpoint must serve as the base.
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
    """Return the sidecars to delete: old ones that no kept checkpoint names.

    ``listed`` has every sidecar with its modification time. Sidecars are deleted last, after the
    checkpoints that named them.
    """
    return _waves(
        path
        for path, modified_ms in listed
        if path not in named and modified_ms < now_ms - SIDECAR_GRACE_MS
    )


@dataclass(frozen=True, slots=True)
class _Stop:
    """The first version that can't be cleaned up, and the reason."""

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
            # Nothing of this version is left to delete.
            continue
        protocol = protocols.get(version)
        if protocol is None:
            return _Stop(version, f"the protocol of version {version} can't be known any more")
        unsupported = features.unsupported_features(protocol)
        if unsupported:
            names = ", ".join(unsupported)
            return _Stop(version, f"version {version} has {names}, which Lakeferry doesn't support")
    return None


def _base(listing: Listing, version: int) -> Checkpoint | None:
    """Return the newest complete checkpoint at or before a version that can be rebuilt from it."""
    complete = [each for each in listing.checkpoints if each.complete and each.version <= version]
    return complete[-1] if complete else None


def _creates(listing: Listing, cut: Cut, base: Checkpoint | None) -> bool:
    """Return True if a checkpoint at the cut is needed, which is only if it allows deletions."""
    earliest = listing.earliest_version()
    if earliest is None or not earliest < cut.version <= listing.newest_version:
        return False
    return base is None or (cut.exact and base.version < cut.version)


def _history(listing: Listing, before: int) -> list[LogFile]:
    """Return commits and their related files of all versions before ``before``."""
    found = [file for version, file in listing.commits.items() if version < before]
    found += [file for version, file in listing.checksums.items() if version < before]
    found += [
        file
        for first, files in listing.compacted.items()
        if first < before
        for file in files
        # A compacted log that ends later stays if a later version has no commit of its own.
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
