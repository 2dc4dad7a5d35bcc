"""Describes a table for ``inspect``: protocol, metadata, size, checkpoints, redirect, warnings.

Everything in the log is shown, unknown features included; numbers come from replaying the log. A
checksum file is only compared with them: a difference is a warning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from lakeferry.catalogs import Catalog, GrantAccess, open_catalog, ungranted
from lakeferry.errors import CorruptLog, LakeferryError, ObjectNotFound
from lakeferry.log import actions, features, paths, properties, protocol_oddities, timestamps
from lakeferry.log.actions import Metadata, Protocol
from lakeferry.log.checksum import contradictions
from lakeferry.log.lines import Lines
from lakeferry.log.protocols import protocol_document
from lakeferry.log.replay import Snapshot, TableState
from lakeferry.log.segment import Checkpoint, Listing, Segment
from lakeferry.redirect import redirect_findings as redirects
from lakeferry.redirect.redirect_findings import RedirectEntry as RedirectEntry
from lakeferry.storage import Store, open_store
from lakeferry.table import DeltaLog, load
from lakeferry.table.log_source import LogSource
from lakeferry.table.managed import ManagedStore
from lakeferry.table.unsupported import bare_state, refuse_reader_version

EXAMINED_CHECKPOINTS = 16
"""For this many V2 checkpoints, the newest, sidecars are checked for existence."""
# What documents show for values that the log lacks, in reading order.
_NO_METADATA: dict[str, Any] = {"id": None, "name": None, "description": None, "createdTime": None}


@dataclass(frozen=True, slots=True)
class Finding:
    """Something about a table that its owner should know; ``code`` is stable."""

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class CheckpointState:
    """A checkpoint in the log; ``complete`` says whether all of its files exist.

    It is ``None`` for V2 checkpoints that are too old to be checked.
    """

    version: int
    kind: str
    complete: bool | None


@dataclass(frozen=True, slots=True)
class LastChange:
    """The commit that made a version; values that the log no longer has are ``None``."""

    timestamp: int | None
    operation: str | None


@dataclass(frozen=True, slots=True)
class Inspection:
    """A description of a table at one version. See the command ``inspect``."""

    location: str
    version: int
    protocol: Protocol
    metadata: Metadata
    num_files: int | None
    size_bytes: int | None
    num_rows: int | None
    """From the statistics of the live files; ``None`` if one has none."""
    last_change: LastChange
    features: tuple[str, ...]
    """The features in force, by name or by the protocol's version."""
    earliest_version: int | None
    checkpoints: tuple[CheckpointState, ...]
    redirect: RedirectEntry | None
    boundary: int | None
    warnings: tuple[Finding, ...]

    def as_document(self) -> dict[str, Any]:
        """Return the JSON document of the command ``inspect``."""
        return {
            "location": self.location,
            "version": self.version,
            "protocol": protocol_document(self.protocol),
            "metadata": _NO_METADATA | actions.as_json(self.metadata),
            "num_files": self.num_files,
            "size_bytes": self.size_bytes,
            "num_rows": self.num_rows,
            "last_change": msgspec.to_builtins(self.last_change),
            "features": list(self.features),
            "earliest_version": self.earliest_version,
            "checkpoints": [msgspec.to_builtins(found) for found in self.checkpoints],
            "redirect": None if self.redirect is None else self.redirect.as_document(),
            "protection": {"boundary": self.boundary},
            "warnings": [msgspec.to_builtins(warning) for warning in self.warnings],
        }

    def _repr_html_(self) -> str:
        """Return what a notebook shows."""
        from lakeferry.api.table_facts import inspection_html

        return inspection_html(self)


def inspect(
    store: Store,
    version: int | None = None,
    *,
    open_store: Callable[[str], Store] = open_store,
    catalog: Callable[[str], Catalog] = open_catalog,
    grant: GrantAccess = ungranted,
) -> Inspection:
    """Describe a version of the table at a store's root, or the newest.

    If its newest version is redirected, the target is checked too: ``open_store`` returns the
    store of a place, ``catalog`` the catalog of a kind, and ``grant`` receives the catalog's
    credentials for the target.
    """
    findings: list[Finding] = []
    log = DeltaLog(
        store, warn=lambda text: findings.append(Finding("checkpoint_unreadable", text))
    ).keeping_reads()
    found, counted = _described(log, version)
    listing = log.listing()
    checkpoints = _checkpoints(log, listing)
    findings += _about_protocol(found, asks_catalog=store.asks_catalog)
    findings += _about_log(log, listing, checkpoints)
    findings += _about_checksum(log, listing, found, counted)
    entry, redirect, odd = redirects.describe_redirect(found, store.uri)
    newest = listing.newest_version
    if redirect is not None and found.version == newest:
        odd += redirects.about_target(redirect, found, log, open_store, catalog, grant)
    elif redirect is None and found.version == newest:
        odd += redirects.about_unfinished(store, found)
    if isinstance(store, ManagedStore) and store.asks_catalog and found.version == newest:
        odd += redirects.about_requirements(found, store, lambda uri: DeltaLog(open_store(uri)))
    findings += [Finding(code, message) for code, message in odd]
    configuration = found.metadata.configuration
    return Inspection(
        location=store.uri,
        version=found.version,
        protocol=found.protocol,
        metadata=found.metadata,
        num_files=None if counted is None else counted.num_files,
        size_bytes=None if counted is None else counted.size_bytes,
        num_rows=None if counted is None else counted.num_rows,
        last_change=_last_change(found, listing),
        features=tuple(row.name for row in features.in_force(found.protocol)),
        earliest_version=listing.earliest_version(),
        checkpoints=checkpoints,
        redirect=entry,
        boundary=_whole_number(configuration.get(properties.PROTECTED_BEFORE)),
        warnings=tuple(dict.fromkeys(findings)),
    )


def _last_change(found: Snapshot | TableState, listing: Listing) -> LastChange:
    info, kept = found.commit_info, timestamps.in_commit_timestamps(found.metadata)
    moment = timestamps.file_times(listing.commits.values()).get(found.version)
    if kept is not None and info is not None and found.version >= kept.since_version:
        moment = info.in_commit_timestamp or moment
    return LastChange(moment, None if info is None else info.operation)


def _described(log: DeltaLog, version: int | None) -> tuple[Snapshot | TableState, Snapshot | None]:
    """Return a version, and a second time with its files if these can be counted.

    A table with an unknown feature may store its files in an unknown way; then only its protocol
    and metadata are shown.
    """
    try:
        snapshot = log.snapshot(version)
    except CorruptLog as broken:
        try:
            state = bare_state(log, version)
        except LakeferryError:
            raise broken from None
        refuse_reader_version(state.protocol)
        if not features.unsupported_features(state.protocol, asks_catalog=log.store.asks_catalog):
            raise
        return state, None
    refuse_reader_version(snapshot.protocol)
    return snapshot, snapshot


def _checkpoints(log: DeltaLog, listing: Listing) -> tuple[CheckpointState, ...]:
    """Return the state of each checkpoint; the number of requests doesn't grow with the log's age.

    Only a V2 checkpoint itself names its sidecars, so it must be read; existing sidecars are
    listed once.
    """
    v2 = [each for each in listing.checkpoints if each.kind is paths.LogFileKind.V2]
    examined = v2[-EXAMINED_CHECKPOINTS:]
    there = _sidecars(log.store) if examined else frozenset()

    def complete(each: Checkpoint) -> bool | None:
        if each.kind is not paths.LogFileKind.V2 or not each.complete:
            return each.complete
        return _is_whole(log.source, each, there) if each in examined else None

    return tuple(
        CheckpointState(each.version, each.kind.value, complete(each))
        for each in listing.checkpoints
    )


def _sidecars(store: Store) -> frozenset[str]:
    try:
        return frozenset(entry.path for entry in store.list(f"{paths.SIDECAR_DIR}/"))
    except ObjectNotFound:
        return frozenset()


def _is_whole(store: LogSource, checkpoint: Checkpoint, sidecars: frozenset[str]) -> bool:
    """Return True if a V2 checkpoint can be read and all of its sidecars exist."""
    alone = Segment.of_checkpoint(checkpoint)
    wanted = ("protocol", "metaData", "checkpointMetadata", "sidecar")
    try:
        rows = load.small_rows(store, alone, Lines(), wanted)
        names = {load.sidecar_name(store.uri, sidecar) for sidecar in rows.sidecars}
    except CorruptLog:
        return False
    own = rows.checkpoint_metadata
    return (
        rows.protocol is not None
        and rows.metadata is not None
        and own is not None
        and own.version == checkpoint.version
        and names <= sidecars
    )


def _about_protocol(found: Snapshot | TableState, *, asks_catalog: bool) -> Iterator[Finding]:
    for row in features.in_force(found.protocol):
        if not row.known:
            can = "can be read, not changed" if row.read else "can be neither read nor changed"
            yield Finding(
                "unknown_feature",
                f"{row.kind.value} feature {row.name} is unknown: the table {can}; the output "
                "may be incomplete",
            )
        elif not row.read and not (asks_catalog and row.name == features.MANAGED):
            yield Finding(
                "unsupported_feature",
                f"feature {row.name} keeps commits or files outside of the log: the output may "
                "be incomplete",
            )
    for oddity in protocol_oddities.warnings(found.protocol, found.metadata.configuration):
        if oddity.oddity is not protocol_oddities.Oddity.ACTIVE_WITHOUT_FEATURE:
            yield Finding(oddity.oddity.name.lower(), oddity.message)
        else:
            yield Finding("property_without_feature", oddity.message)


def _about_log(
    log: DeltaLog, listing: Listing, checkpoints: tuple[CheckpointState, ...]
) -> Iterator[Finding]:
    for each in checkpoints:
        if each.complete is False:
            yield Finding(
                "checkpoint_incomplete",
                f"a file of the {each.kind} checkpoint of version {each.version} is missing",
            )
    if (hint := log.hint()) is None:
        if any(True for _ in log.store.list(paths.LAST_CHECKPOINT)):
            yield Finding(
                "last_checkpoint_unreadable",
                f"{paths.LAST_CHECKPOINT} can't be read or contradicts its own checksum; it is "
                "ignored",
            )
    elif not any(each.complete and each.version >= hint.version for each in checkpoints):
        yield Finding(
            "last_checkpoint_dangling",
            f"{paths.LAST_CHECKPOINT} names version {hint.version}, "
            "which has no complete checkpoint",
        )
    if listing.earliest_version() is None:
        yield Finding("history_broken", "the log has gaps: no older version can be rebuilt")


def _about_checksum(
    log: DeltaLog, listing: Listing, found: Snapshot | TableState, counted: Snapshot | None
) -> Iterator[Finding]:
    file = listing.checksums.get(found.version)
    if file is None:
        return
    checksum = load.read_checksum(log.source, file)
    counts = load.read_counts(log.source, file) if checksum is None else None
    if checksum is not None:
        counts = checksum.num_files, checksum.table_size_bytes
    if counts is None:
        yield Finding("checksum_unreadable", f"checksum file {file.path} can't be read")
        return
    names = [] if checksum is None else contradictions(checksum, found.protocol, found.metadata)
    if counted is not None:
        replayed = counted.num_files, counted.size_bytes
        for name, there, here in zip(("numFiles", "tableSizeBytes"), counts, replayed, strict=True):
            if there != here:
                names.append(f"{name} ({there} in the checksum file, {here} in the log)")
    for name in names:
        yield Finding("checksum_mismatch", f"{file.path} and the log differ in {name}")


def _whole_number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdecimal() else None
