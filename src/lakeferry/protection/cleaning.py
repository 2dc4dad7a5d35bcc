"""Cleans up a log: makes the plan of ``log/cleanup.py`` and executes it.

Planning reads only the listing and a bounded number of log files. If protected history
is in the range, it also reads one small file for each version to be deleted. Before the
first deletion, the checkpoint that the remaining versions depend on is checked. Other
processes may clean the same log at the same time: files that are already deleted are
ignored.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from lakeferry.engine import Observer, unobserved
from lakeferry.errors import (
    CatalogManaged,
    CorruptLog,
    InvalidInput,
    ObjectNotFound,
    RetentionTooShort,
    VersionNotAvailable,
)
from lakeferry.log import cleanup, features, paths, properties
from lakeferry.log.actions import Protocol
from lakeferry.log.checksum import decode_checksum
from lakeferry.log.cleanup import CleanupPlan, Cut, Kept
from lakeferry.log.lines import Lines
from lakeferry.log.properties import interval_text
from lakeferry.log.replay import TableState
from lakeferry.log.segment import Listing, Segment, arrange
from lakeferry.protection.boundary import boundary_of, check_no_redirect
from lakeferry.redirect import read_entry
from lakeferry.storage.uris import shell_safe
from lakeferry.table import DeltaLog, load
from lakeferry.table.log_source import LogSource

_ATTEMPTS = 3
_LOOKED_AT = 10
"""A plan reads a needed checkpoint if its version consists of at most this many log files.

A longer history is replayed when the checkpoint is written, before anything is deleted.
"""
_WHAT = "cleaning up the log"


@dataclass(frozen=True, slots=True)
class Cleaned:
    """The result: which files were deleted, which were written, and what stayed and why."""

    deleted: tuple[str, ...]
    created: tuple[str, ...]
    kept: tuple[Kept, ...]

    @property
    def changed(self) -> bool:
        """Whether anything happened."""
        return bool(self.deleted or self.created)

    def as_document(self) -> dict[str, Any]:
        """Return the JSON document of the command ``cleanup``."""
        return {
            "deleted": list(self.deleted),
            "created": list(self.created),
            "kept_because": [each.as_document() for each in self.kept],
            "changed": self.changed,
        }


@dataclass(frozen=True, slots=True)
class Foreseen:
    """The plan of a cleanup, for a dry run."""

    create: int | None
    waves: tuple[tuple[str, ...], ...]
    kept: tuple[Kept, ...]

    def as_steps(self) -> list[dict[str, Any]]:
        """Return the steps of a dry run."""
        steps: list[dict[str, Any]] = []
        if self.create is not None:
            steps.append({"op": "write_checkpoint", "version": self.create})
        steps += [{"op": "delete", "files": list(wave)} for wave in self.waves]
        steps += [{"op": "keep", **each.as_document()} for each in self.kept]
        return steps


def foresee_cleaning(
    log: DeltaLog,
    *,
    retention_ms: int | None = None,
    before: int | None = None,
    force: bool = False,
) -> Foreseen:
    """Plan a cleanup and change nothing.

    If the cleanup would write a checkpoint, the plan assumes that it exists.
    """
    work, plan = _planned(log, retention_ms, before, force=force)
    create = plan.create
    if create is not None:
        if len(work.listing.segment(create).files) <= _LOOKED_AT:
            # Makes the same checks as the real one, for example whether we support the version.
            log.checkpoint(create, dry_run=True)
        work = replace(work, listing=_with_checkpoint(work.listing, create))
        plan = work.plan()
    else:
        work.check_base(plan, log.source)
    waves = (*plan.commits, *plan.checkpoints, *work.sidecar_waves(plan))
    return Foreseen(create, waves, plan.kept)


def clean(
    log: DeltaLog,
    *,
    retention_ms: int | None = None,
    before: int | None = None,
    force: bool = False,
    observer: Observer = unobserved,
) -> Cleaned:
    """Delete log files that are older than the retention, or than a version.

    ``retention_ms`` defaults to the table's own; ``before`` is the oldest version that
    stays. If both are given, only files that both allow are deleted.
    """
    work, plan, created = _founded(log, retention_ms, before, force=force)
    # Read again: it is about to be the only one that has the older files.
    work.check_base(plan, log.store)
    deleted: list[str] = []
    total = sum(len(wave) for wave in (*plan.commits, *plan.checkpoints))

    def carry_out(wave: tuple[str, ...]) -> None:
        log.store.delete_many(wave)
        deleted.extend(wave)
        observer(_WHAT, len(deleted), max(total, len(deleted)))

    observer(_WHAT, 0, total)
    for wave in plan.commits:
        carry_out(wave)
    try:
        for wave in _later_waves(work, plan):
            carry_out(wave)
    except Exception as failed:
        if not deleted:
            raise
        # The log begins at its new base, and success isn't to become an error.
        log.warn(f"expired checkpoints may still be there: {failed}; the next cleanup deletes them")
    return Cleaned(tuple(deleted), created, plan.kept)


def _later_waves(work: _Work, plan: CleanupPlan) -> Iterator[tuple[str, ...]]:
    """Yield what to delete after the commits, as long as the plan holds."""
    for number, wave in enumerate(plan.checkpoints):
        if work.has_changed():
            # A feature was dropped meanwhile, and its boundary protects files of the plan, or
            # the table is being moved. The rest is left to the next cleanup.
            return
        if number == 0:
            work.forget_hint(plan)
        yield wave
    yield from work.sidecar_waves(plan)


def _founded(
    log: DeltaLog, retention_ms: int | None, before: int | None, *, force: bool
) -> tuple[_Work, CleanupPlan, tuple[str, ...]]:
    """Plan, and write the checkpoint that the plan needs; return its files if they are new.

    Another cleanup may delete the log files that the checkpoint is made of. A later
    checkpoint exists then, and the plan is made again.
    """
    for attempt in range(1, _ATTEMPTS + 1):
        work, plan = _planned(log, retention_ms, before, force=force)
        if plan.create is None:
            break
        try:
            made = log.checkpoint(plan.create)
            work = replace(work, listing=log.listing())
            return work, work.plan(), made.files if made.created else ()
        except (load.Vanished, VersionNotAvailable):
            if attempt == _ATTEMPTS:
                raise
    return work, plan, ()


def _planned(
    log: DeltaLog, retention_ms: int | None, before: int | None, *, force: bool
) -> tuple[_Work, CleanupPlan]:
    """Read a table and plan; start over if another process cleans it up meanwhile."""
    for _ in range(_ATTEMPTS - 1):
        with suppress(load.Vanished):
            work = _Work.begin(log, retention_ms, before, force=force)
            return work, work.plan()
    work = _Work.begin(log, retention_ms, before, force=force)
    return work, work.plan()


@dataclass(frozen=True, slots=True)
class _Work:
    """One cleanup: the table's state, and what may be deleted."""

    log: DeltaLog
    listing: Listing
    cut: Cut
    boundary: int | None
    now_ms: int
    known: dict[int, Protocol | None] = field(default_factory=dict)

    @classmethod
    def begin(
        cls, log: DeltaLog, retention_ms: int | None, before: int | None, *, force: bool
    ) -> _Work:
        state = log.state()
        location = log.store.uri
        if log.store.asks_catalog:
            raise CatalogManaged(
                f"the log of {location} can't be cleaned up",
                cause="it is a managed table: its catalog decides when the log is cleaned up, and "
                "allows nobody else to do it",
                remedy="nothing has to be done: cleaning up this log is up to the catalog",
                location=location,
            )
        features.check_writable(state.protocol)
        check_no_redirect(state, location, "cleaned up")
        boundary = boundary_of(state, location)
        now_ms, listing = log.clock(), log.listing()
        cuts = []
        if before is not None:
            cuts.append(_by_version(before, state, log))
        if retention_ms is not None or before is None:
            cuts.append(_by_age(log, listing, state, retention_ms, now_ms, force=force))
        cut = min(cuts, key=lambda each: each.version)
        return cls(log, listing, cut, boundary, now_ms)

    def plan(self) -> CleanupPlan:
        """Return the plan; read the protocols that it needs."""
        asked = cleanup.asked(self.listing, self.cut, self.boundary)
        unknown = [version for version in asked if version not in self.known]
        if unknown:
            self.known.update(protocols_of(self.log, self.listing, range(unknown[0], asked.stop)))
        return cleanup.plan_cleanup(self.listing, self.cut, self.boundary, self.known)

    def check_base(self, plan: CleanupPlan, source: LogSource) -> None:
        """Refuse to delete anything if the checkpoint that replaces it can't be read."""
        if plan.base is None or plan.is_empty:
            return
        if not load.is_usable(source, plan.base):
            raise CorruptLog(
                f"the checkpoint of version {plan.base.version} can't be read",
                cause="the rows of older files would be lost with the commits that the "
                "checkpoint replaces",
                remedy=f"write it again: lakeferry checkpoint {shell_safe(self.log.store.uri)} "
                f"--version {plan.base.version}",
                version=plan.base.version,
                path=plan.base.files[0].path,
            )

    def forget_hint(self, plan: CleanupPlan) -> None:
        """Delete the hint if its checkpoint is to be deleted.

        Some readers fail if a hint's checkpoint is missing; without a hint they list
        the log, which is short by then.
        """
        # It may have been moved forward meanwhile, so what was read at first doesn't count.
        hint = DeltaLog(self.log.store).hint()
        if plan.base is not None and hint is not None and hint.version < plan.base.version:
            self.log.store.delete_many([paths.LAST_CHECKPOINT])

    def has_changed(self) -> bool:
        """Return whether a feature was dropped, or a move has begun, since the plan was made."""
        state, location = self.log.state(), self.log.store.uri
        moves = read_entry.read(state.protocol, state.metadata, location) is not None
        return moves or boundary_of(state, location) != self.boundary

    def sidecar_waves(self, plan: CleanupPlan) -> tuple[tuple[str, ...], ...]:
        """Return the sidecars that no remaining checkpoint refers to.

        If one of those checkpoints can't be read, no sidecar is returned.
        """
        store = self.log.store
        listed = [(entry.path, entry.modified_ms) for entry in store.list(f"{paths.SIDECAR_DIR}/")]
        if not cleanup.sidecar_waves(listed, frozenset(), self.now_ms):
            return ()
        going = {path for wave in plan.checkpoints for path in wave}
        named: set[str] = set()
        for checkpoint in self.log.listing().checkpoints:
            if any(file.path in going for file in checkpoint.files):
                continue
            alone = Segment.of_checkpoint(checkpoint)
            try:
                rows = load.small_rows(self.log.source, alone, Lines(), ("sidecar",))
            except (CorruptLog, ObjectNotFound):
                self.log.warn(
                    f"{checkpoint.files[0].path} can't be read, and may refer to sidecars: all "
                    "sidecars are kept"
                )
                return ()
            named |= {load.sidecar_name(store.uri, sidecar) for sidecar in rows.sidecars}
        return cleanup.sidecar_waves(listed, frozenset(named), self.now_ms)


def _by_version(before: int, state: TableState, log: DeltaLog) -> Cut:
    if before < 0:
        raise InvalidInput("a version can't be negative", remedy="give a version of the table")
    if before > state.version:
        raise VersionNotAvailable(
            f"there is no version {before}",
            cause=f"the newest version is {state.version}",
            remedy=f"give a version up to {state.version}",
            version=before,
            newest_version=state.version,
            location=log.store.uri,
        )
    return Cut(before, f"version {before} and later were asked to stay", exact=True)


def _by_age(
    log: DeltaLog,
    listing: Listing,
    state: TableState,
    retention_ms: int | None,
    now_ms: int,
    *,
    force: bool,
) -> Cut:
    own = properties.log_retention_ms(state.metadata.configuration)
    if retention_ms is not None and retention_ms < own and not force:
        raise RetentionTooShort(
            f"{log.store.uri} keeps its history for longer",
            cause=f"its delta.logRetentionDuration is {interval_text(own)}, and the requested "
            f"retention is {interval_text(retention_ms)}",
            remedy="give a longer --retention, or --force to clean up nevertheless",
            location=log.store.uri,
            retention_ms=retention_ms,
            table_retention_ms=own,
        )
    kept_ms = own if retention_ms is None else retention_ms
    reason = f"in force within the retention of {interval_text(kept_ms)}"
    try:
        return Cut(log.version_at(now_ms - kept_ms, listing, state), reason)
    except VersionNotAvailable:
        # All versions are younger.
        return Cut(0, reason)


def _with_checkpoint(listing: Listing, version: int) -> Listing:
    """Return the listing as it would be with a checkpoint of that version."""
    name = paths.classic_checkpoint(version)
    made = paths.parse(name)
    assert made is not None
    files = [*listing.commits.values(), *listing.checksums.values(), made]
    files += [file for found in listing.compacted.values() for file in found]
    files += [file for checkpoint in listing.checkpoints for file in checkpoint.files]
    return arrange(files)


def protocols_of(log: DeltaLog, listing: Listing, versions: range) -> Mapping[int, Protocol | None]:
    """Return the protocol of each version, from one small file for each.

    A checksum file has the protocol; a commit has it only if it changes. For the oldest
    commits it is taken from the checkpoint at the log's beginning. ``None`` means that
    the protocol of a version can't be found any more.
    """
    found: dict[int, Protocol | None] = {}
    silent: set[int] = set()
    current = _begun_with(log, listing, versions.start)
    for version, told in _told(log, listing, versions):
        if told is _GAP:
            current = _at_checkpoint(log, listing, version)
        elif isinstance(told, Protocol):
            current = told
        else:
            silent.add(version)
        found[version] = current
    if None in found.values():
        _fill_backwards(log, listing, versions, found, silent)
    return found


def _fill_backwards(
    log: DeltaLog,
    listing: Listing,
    versions: range,
    found: dict[int, Protocol | None],
    silent: set[int],
) -> None:
    """Fill in the protocol of the next version, if that version's commit doesn't change it.

    If it does, the protocol is taken from a checkpoint of the version itself, if any. A checksum
    file doesn't tell whether its version changes the protocol, so then the commit is read.
    """
    after = _at_checkpoint(log, listing, versions.stop)
    for version in reversed(versions):
        if found[version] is None:
            known = after is not None and (
                version + 1 in silent or not _may_change(log, listing, version + 1)
            )
            found[version] = after if known else _at_checkpoint(log, listing, version)
        after = found[version]


def _may_change(log: DeltaLog, listing: Listing, version: int) -> bool:
    """Return False if a version has a commit, and that has no protocol."""
    if version not in listing.commits:
        return True
    lines = Lines()
    name = paths.commit(version)
    lines.read(log.source.get(name), name)
    return lines.protocol is not None


_GAP = object()


def _told(log: DeltaLog, listing: Listing, versions: range) -> Iterator[tuple[int, object]]:
    """Yield each version with its file's protocol, ``None``, or a marker for a missing file."""
    read = {
        version: listing.checksums.get(version) or listing.commits[version]
        for version in versions
        if version in listing.checksums or version in listing.commits
    }
    contents = load.contents(log.source, read.values())
    for version in versions:
        if version not in read:
            yield version, _GAP
            continue
        file, data = next(contents)
        if file.kind is paths.LogFileKind.CHECKSUM:
            try:
                yield version, decode_checksum(data).protocol
                continue
            except CorruptLog:
                if version not in listing.commits:
                    yield version, _GAP
                    continue
            data = log.source.get(listing.commits[version].path)
        lines = Lines()
        lines.read(data, paths.commit(version))
        yield version, lines.protocol


def _begun_with(log: DeltaLog, listing: Listing, version: int) -> Protocol | None:
    """Return the protocol at a log's first version, if its commit doesn't have it."""
    if version == 0 or version in listing.checksums:
        return None
    return _at_checkpoint(log, listing, version) or _at_checkpoint(log, listing, version - 1)


def _at_checkpoint(log: DeltaLog, listing: Listing, version: int) -> Protocol | None:
    for checkpoint in listing.checkpoints:
        if checkpoint.complete and checkpoint.version == version:
            alone = Segment.of_checkpoint(checkpoint)
            try:
                return load.small_rows(log.source, alone, Lines(), ("protocol",)).protocol
            except (CorruptLog, ObjectNotFound):
                continue
    return None
