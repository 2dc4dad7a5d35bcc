"""Drops a table feature: checks, preparation, barriers, boundary.

1. A feature is refused if it is missing, if others depend on it, or if something
   still uses it.
2. Its traces are removed from the current state (:mod:`lakeferry.protection.features`).
3. A feature whose history doesn't mislead old clients is dropped by one commit. Any other
   is dropped behind *barriers*: three empty commits, each with a checkpoint, then the commit
   *B* with the smaller protocol, ``checkpointProtection`` and *B* as the boundary, then a
   checkpoint at *B*. A client that doesn't know the feature starts reading at one of these
   checkpoints, and never reads earlier commits.

Others may commit at any time. *B* has to be the version right after the state that was
checked; otherwise *B* is computed again.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from lakeferry.errors import (
    FeatureNotDroppable,
    FeatureNotPresent,
    HistoryRequired,
    InvalidInput,
    LakeferryError,
    VersionNotAvailable,
)
from lakeferry.log import features, properties, protocols
from lakeferry.log.actions import Protocol
from lakeferry.log.commit import Transaction
from lakeferry.log.conflicts import Conflict
from lakeferry.log.features import Drop, Feature
from lakeferry.log.lines import Lines
from lakeferry.log.properties import BARRIERS
from lakeferry.log.protocols import protocol_document
from lakeferry.log.replay import Snapshot, TableState
from lakeferry.protection import boundary, cleaning
from lakeferry.protection.drop_context import MAX_ATTEMPTS, DropContext, gave_up, with_properties
from lakeferry.protection.features import DROPPABLE
from lakeferry.storage.uris import shell_safe
from lakeferry.table import DeltaLog, load

_OPERATION = "DROP FEATURE"
_EMPTY = "Empty Commit"
_TRUNCATED_AFTER = "delta.dropFeatureTruncateHistory.retentionDuration"
_UNKNOWN = "Lakeferry doesn't know it"


@dataclass(frozen=True, slots=True)
class ListedFeature:
    """One feature of a table, as ``feature list`` shows it.

    ``how`` says what dropping it does, or why it can't be dropped.
    """

    name: str
    kind: str
    supported: bool
    droppable: bool
    how: str

    def as_document(self) -> dict[str, Any]:
        """Return an element of ``features``."""
        return {
            "name": self.name,
            "kind": self.kind,
            "supported": self.supported,
            "droppable": self.droppable,
            "drop": self.how,
        }


@dataclass(frozen=True, slots=True)
class Dropped:
    """The result of a drop. ``version`` is the commit with the smaller protocol."""

    feature: str
    version: int
    protocol: Protocol
    boundary: int | None
    checkpoints: tuple[int, ...]

    def as_document(self) -> dict[str, Any]:
        """Return the JSON document of ``feature drop``."""
        return {
            "feature": self.feature,
            "version": self.version,
            "protocol": protocol_document(self.protocol),
            "boundary": self.boundary,
            "checkpoints": list(self.checkpoints),
            "changed": True,
        }


def listed_features(
    state: TableState, location: str, *, asks_catalog: bool = False
) -> list[ListedFeature]:
    """Return the features in force, and whether each can be dropped.

    ``asks_catalog``: the table is managed, and is written as its catalog decides.
    """
    in_force = {row.name: row for row in features.in_force(state.protocol)}
    unwritable = features.unsupported_features(state.protocol, asks_catalog=asks_catalog)
    stops = None
    if unwritable:
        stops = f"Lakeferry can't write to the table, because of {', '.join(unwritable)}"
    else:
        try:
            boundary.check_no_redirect(state, location, "changed")
        except LakeferryError as redirected:
            stops = redirected.cause or redirected.message
    found = []
    for row in in_force.values():
        never = _why_never(row, in_force, asks_catalog=asks_catalog) or stops
        first = _dependents(row, in_force)
        how = f"after {', '.join(first)}: {row.drop.value}" if first else row.drop.value
        supported, droppable = row.name not in unwritable, never is None
        listed = ListedFeature(row.name, row.kind.value, supported, droppable, never or how)
        found.append(listed)
    return found


def _why_never(
    feature: Feature, in_force: Mapping[str, Feature], *, asks_catalog: bool
) -> str | None:
    """Return why a feature can't be dropped whatever is done first, or ``None``."""
    if not feature.known:
        return _UNKNOWN
    if asks_catalog and feature.name == features.MANAGED:
        return "it makes the table one that its catalog manages"
    if not feature.droppable:
        return feature.drop.value
    if asks_catalog and (feature.leaves_traces or feature.drop is Drop.TRUNCATE):
        return (
            "the table is managed: its catalog decides about its history, and may require the "
            "feature"
        )
    stay = [
        name
        for name in _dependents(feature, in_force)
        if _why_never(in_force[name], in_force, asks_catalog=asks_catalog) is not None
    ]
    if stay:
        return (
            f"{' and '.join(stay)} {'needs' if len(stay) == 1 else 'need'} it, and can't be dropped"
        )
    return None


def _dependents(feature: Feature, in_force: Mapping[str, Feature]) -> list[str]:
    """Return the features of a table that need another one."""
    return [row.name for row in in_force.values() if feature.name in row.requires]


def drop(work: DropContext, name: str, *, truncate_history: bool = False) -> Dropped:
    """Drop a feature; ``truncate_history`` removes history instead of protecting it."""
    feature = _check(work.log, name, truncate_history=truncate_history)
    if feature.drop is Drop.TRUNCATE:
        return _drop_protection(work, feature, truncate_history=truncate_history)
    if not feature.leaves_traces:
        return _drop_at_once(work, feature)
    if truncate_history:
        return _drop_after_truncation(work, feature)
    return _drop_behind_barriers(work, feature)


def _check(log: DeltaLog, name: str, *, truncate_history: bool = False) -> Feature:
    """Return the feature, or refuse to drop it; change nothing."""
    state, location = log.state(), log.store.uri
    log.check_checksum(state.version)
    in_force = {row.name: row for row in features.in_force(state.protocol)}
    feature = in_force.get(name)
    if feature is None:
        raise FeatureNotPresent(
            f"{location} doesn't have the feature {name}",
            cause=f"it has {', '.join(in_force) or 'none'}",
            remedy=_meant(name, list(in_force), location),
            location=location,
            feature=name,
        )
    asks_catalog = log.store.asks_catalog
    never = _why_never(feature, in_force, asks_catalog=asks_catalog)
    if never is not None:
        raise FeatureNotDroppable(
            f"the feature {name} of {location} can't be dropped",
            cause=never,
            remedy=_instead(feature, asks_catalog=asks_catalog),
            location=location,
            feature=name,
        )
    if dependents := _dependents(feature, in_force):
        raise FeatureNotDroppable(
            f"the feature {name} of {location} can't be dropped",
            cause=f"other features depend on it: {', '.join(dependents)}",
            remedy=f"first run: lakeferry feature drop {shell_safe(location)} {dependents[0]}",
            location=location,
            feature=name,
            required_by=dependents,
        )
    features.check_writable(state.protocol, asks_catalog=asks_catalog)
    boundary.check_no_redirect(state, location, "changed")
    # Raises for an invalid boundary before anything is committed.
    boundary.boundary_of(state, location)
    properties.deleted_file_retention_ms(state.metadata.configuration)
    properties.log_retention_ms(state.metadata.configuration)
    if truncate_history and not feature.leaves_traces and feature.drop is not Drop.TRUNCATE:
        raise InvalidInput(
            f"--truncate-history isn't needed for {name}",
            cause="clients that don't support the feature can read the history correctly",
            remedy="leave out --truncate-history",
        )
    DROPPABLE[name].check_unused(log.small_snapshot(), location)
    return feature


def _instead(feature: Feature, *, asks_catalog: bool) -> str | None:
    """Return the remedy for a feature that can't be dropped."""
    if not feature.known:
        return "drop it with the engine that added it"
    if not asks_catalog:
        return None
    if feature.name == features.MANAGED:
        return (
            "if the table was moved there, 'lakeferry redirect disable' with its old path takes "
            "it out of the catalog"
        )
    if not feature.droppable:
        return None
    return (
        "keep the feature; or, if the table was moved there, drop it at the old path after "
        "'lakeferry redirect disable'"
    )


def _meant(name: str, in_force: list[str], location: str) -> str:
    """Return a remedy: the feature that was probably meant, or how to list them."""
    spelled = {each.lower(): each for each in in_force}
    near = difflib.get_close_matches(name.lower(), spelled, 1)
    if near:
        meant = spelled[near[0]]
        return (
            f"did you mean {meant}? 'lakeferry feature drop {shell_safe(location)} {meant}' drops "
            "it"
        )
    return f"'lakeferry feature list {shell_safe(location)}' shows the table's features"


def foresee_drop(
    log: DeltaLog, name: str, *, truncate_history: bool = False
) -> list[dict[str, Any]]:
    """Return the steps that a drop would take, after the same checks; change nothing."""
    feature = _check(log, name, truncate_history=truncate_history)
    state = log.state()
    if feature.drop is Drop.TRUNCATE:
        before = boundary.boundary_of(state, log.store.uri) or 0
        _check_due(log, state, before, name, hasty=truncate_history)
    elif truncate_history and not DROPPABLE[name].shows_traces(state.metadata, Lines()):
        _check_due(log, state, _last_trace(log, feature, state) + 1, name, hasty=True)
    steps: list[dict[str, Any]] = []
    if feature.drop is not Drop.PROTOCOL_ONLY:
        steps.append({"op": "prepare", "what": feature.drop.value})
    protects = feature.leaves_traces and not truncate_history
    if protects:
        steps += [{"op": "barrier", "commit": _EMPTY, "checkpoint": True}] * BARRIERS
    if truncate_history or feature.drop is Drop.TRUNCATE:
        steps.append({"op": "truncate_history"})
    after = _smaller(state.protocol, feature, protects=protects)
    steps.append({"op": "commit", "operation": _OPERATION, "protocol": protocol_document(after)})
    steps.append({"op": "write_checkpoint"})
    return steps


def _smaller(protocol: Protocol, feature: Feature, *, protects: bool) -> Protocol:
    left = protocols.reduced(protocol, [feature.name])
    return protocols.adding(left, [boundary.FEATURE]) if protects else left


def _final(
    work: DropContext,
    feature: Feature,
    small: Snapshot,
    *,
    protects_before: int | None,
    truncates: bool,
) -> Transaction:
    """Return the commit that ends a drop on top of ``small``."""
    dropped = DROPPABLE[feature.name]
    metadata = dropped.without_properties(small.metadata)
    if protects_before is not None:
        metadata = with_properties(metadata, {boundary.PROPERTY: str(protects_before)})
    return Transaction(
        _OPERATION,
        work.new_id(),
        {"featureName": feature.name, "truncateHistory": str(truncates).lower()},
        protocol=_smaller(small.protocol, feature, protects=protects_before is not None),
        metadata=metadata if metadata != small.metadata else None,
        domains=dropped.removed_domains(small.domains),
    )


def _drop_at_once(
    work: DropContext,
    feature: Feature,
    *,
    truncates: bool = False,
    require: Callable[[Snapshot], None] = lambda _: None,
) -> Dropped:
    """Drop a feature whose history doesn't mislead old clients, by one commit.

    ``require`` checks exactly the version on top of which the commit is made.
    """
    for _ in range(MAX_ATTEMPTS):
        DROPPABLE[feature.name].prepare(work)
        _check(work.log, feature.name, truncate_history=truncates)
        small = work.log.small_snapshot()
        work.checked(small.state)
        require(small)
        transaction = _final(work, feature, small, protects_before=None, truncates=truncates)
        result = work.log.commit(transaction, small.state)
        if not isinstance(result, Conflict):
            _settle(work, result.version)
            return Dropped(feature.name, result.version, result.head.protocol, None, ())
    raise gave_up(work.location, f"dropping {feature.name}")


def _settle(work: DropContext, version: int) -> None:
    """Write the checkpoint of the version that has dropped a feature.

    The drop is committed, so a failure here is only a warning.
    """
    try:
        work.log.checkpoint(version)
    except Exception as failed:  # noqa: BLE001 - success isn't to become an error
        remedy = failed.remedy if isinstance(failed, LakeferryError) else None
        first = f"{remedy}; then " if remedy else ""
        work.log.warn(
            f"version {version} of {work.location} has no checkpoint: {failed}; {first}"
            f"'lakeferry checkpoint {shell_safe(work.location)}' writes one"
        )


def _drop_behind_barriers(work: DropContext, feature: Feature) -> Dropped:
    """Drop a feature that history contains, behind checkpoints that hide that history."""
    for _ in range(MAX_ATTEMPTS):
        clean = DROPPABLE[feature.name].prepare(work)
        barriers = tuple(_barrier(work) for _ in range(BARRIERS))
        dropped = _commit_boundary(work, feature, clean, barriers)
        if dropped is not None:
            return dropped
    raise gave_up(work.location, f"dropping {feature.name}")


def _barrier(work: DropContext) -> int:
    """Make an empty commit and its checkpoint; return its version."""
    for _ in range(MAX_ATTEMPTS):
        result = work.log.commit(Transaction(_EMPTY, work.new_id()), work.state())
        if not isinstance(result, Conflict):
            work.log.checkpoint(result.version)
            return result.version
    raise gave_up(work.location, "making a barrier")


def _commit_boundary(
    work: DropContext, feature: Feature, clean: int, barriers: tuple[int, ...]
) -> Dropped | None:
    """Commit *B* and its checkpoint; return ``None`` if new traces were committed meanwhile."""
    for _ in range(MAX_ATTEMPTS):
        small = work.log.small_snapshot()
        work.checked(small.state)
        if feature.name not in features.implied_features(small.protocol):
            raise FeatureNotPresent(
                f"{work.location} doesn't have the feature {feature.name} any more",
                cause="somebody else dropped it meanwhile",
                location=work.location,
                feature=feature.name,
            )
        DROPPABLE[feature.name].check_unused(small, work.location)
        since = _commits_between(work.log, clean, small.version)
        if since is None or DROPPABLE[feature.name].shows_traces(small.metadata, since):
            return None
        before = boundary.boundary_of(small.state, work.location) or 0
        version = small.version + 1
        transaction = _final(
            work, feature, small, protects_before=max(before, version), truncates=False
        )
        result = work.log.commit_exactly(transaction, small.state, work.log.clock())
        if isinstance(result, Conflict):
            continue
        _settle(work, version)
        return Dropped(feature.name, version, result.head.protocol, max(before, version), barriers)
    raise gave_up(work.location, f"dropping {feature.name}")


def _commits_between(log: DeltaLog, after: int, until: int) -> Lines | None:
    """Return the content of the commits after a version; ``None`` if one was cleaned up."""
    wanted = range(after + 1, until + 1)
    listing = load.list_log(log.source, after + 1, until + 1)
    if any(version not in listing.commits for version in wanted):
        return None
    lines = Lines()
    for file, data in load.contents(log.source, [listing.commits[v] for v in wanted]):
        lines.read(data, file.path)
    return lines


# --- History that goes --------------------------------------------------------


def _drop_protection(work: DropContext, feature: Feature, *, truncate_history: bool) -> Dropped:
    """Drop checkpoint protection itself, after all history before the boundary was deleted."""

    def require(small: Snapshot) -> None:
        # Another feature may be dropped meanwhile, and then its history is protected, too.
        protected = boundary.boundary_of(small.state, work.location) or 0
        _truncate(work, small.state, protected, feature, hasty=truncate_history)

    return _drop_at_once(work, feature, truncates=truncate_history, require=require)


def _drop_after_truncation(work: DropContext, feature: Feature) -> Dropped:
    """Drop a feature after all history that may contain it was deleted."""

    def require(small: Snapshot) -> None:
        last = _last_trace(work.log, feature, small.state)
        _truncate(work, small.state, last + 1, feature, hasty=True)

    return _drop_at_once(work, feature, truncates=True, require=require)


def _last_trace(log: DeltaLog, feature: Feature, state: TableState) -> int:
    """Return the newest version whose commit shows the feature, or -1."""
    listing = log.listing()
    earliest = listing.earliest_version()
    metadata = log.state(earliest).metadata if earliest else state.metadata
    newest = -1
    wanted = [listing.commits[version] for version in sorted(listing.commits)]
    for file, data in load.contents(log.source, wanted):
        lines = Lines()
        lines.read(data, file.path)
        metadata = lines.metadata or metadata
        if DROPPABLE[feature.name].shows_traces(metadata, lines):
            newest = file.version
    return max(newest, DROPPABLE[feature.name].last_trace_outside_commits(listing))


def _truncate(
    work: DropContext, state: TableState, before: int, feature: Feature, *, hasty: bool
) -> None:
    """Delete all history before a version, or raise an error that says when it is possible."""
    if _is_truncated(work.log, before):
        return
    retention_ms = _check_due(work.log, state, before, feature.name, hasty=hasty)
    done = cleaning.clean(
        work.log, retention_ms=retention_ms, before=before, force=True, observer=work.observer
    )
    if not _is_truncated(work.log, before):
        reasons = "; ".join(each.reason for each in done.kept if each.first < before)
        raise HistoryRequired(
            f"{feature.name} can't be dropped from {work.location} yet",
            cause=f"not all history before version {before} could be deleted: {reasons}",
            remedy=f"run 'lakeferry feature drop {shell_safe(work.location)} {boundary.FEATURE} "
            "--truncate-history' first, or leave out --truncate-history",
            location=work.location,
            before_version=before,
            free_at_ms=None,
        )


def _is_truncated(log: DeltaLog, before: int) -> bool:
    """Return whether all history before a version is deleted."""
    listing = log.listing()
    left = [*listing.commits, *(each.version for each in listing.checkpoints)]
    return min(left, default=before) >= before


def _check_due(log: DeltaLog, state: TableState, before: int, name: str, *, hasty: bool) -> int:
    """Return the retention; refuse to delete history that is within it."""
    configuration = state.metadata.configuration
    retention_ms = properties.log_retention_ms(configuration)
    if hasty:
        text = configuration.get(_TRUNCATED_AFTER, "interval 24 hours")
        asked = properties.interval_ms(text)
        retention_ms = retention_ms if asked is None else min(retention_ms, max(asked, 0))
    if _is_truncated(log, before):
        return retention_ms
    try:
        oldest = log.version_at(log.clock() - retention_ms)
    except VersionNotAvailable:
        oldest = 0
    if oldest < before:
        raise HistoryRequired(
            f"{name} can't be dropped from {log.store.uri} yet",
            cause=f"history before version {before} has to be deleted first, and it is within "
            f"the retention of {properties.interval_text(retention_ms)}",
            remedy="try again when the retention has passed"
            if hasty
            else "try again when the retention has passed; with --truncate-history it is only "
            "one day",
            location=log.store.uri,
            before_version=before,
            free_at_ms=_free_at(log, before, retention_ms),
        )
    return retention_ms


def _free_at(log: DeltaLog, version: int, retention_ms: int) -> int | None:
    """Return the time from which a version is the oldest one that must be kept."""
    for revision in log.history():
        if revision.version == version:
            return revision.timestamp + retention_ms
    return None
