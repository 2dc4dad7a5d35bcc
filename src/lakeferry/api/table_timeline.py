"""The timeline of a table: its versions by pages, the newest first, and what was in force.

The newest checkpoint says where to look for the newest versions: only they are listed, or those
around an older page. Only the commits of one page are read, and what is needed to know the protocol
before the first of them: a checksum file, or the part of a checkpoint that has no files and the
commits since. So a page costs the same for ten commits and for a hundred thousand. What can't be
known at that price is left out, and said; :mod:`lakeferry.api.log_summary` has the numbers of the
whole log.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from lakeferry.api.log_summary import ListedLog, LogSummary
from lakeferry.api.log_summary_cache import list_log_window
from lakeferry.errors import LakeferryError, ObjectNotFound, TableNotFound, UnsupportedFeature
from lakeferry.log import paths, properties
from lakeferry.log.actions import CommitInfo, Metadata, Protocol
from lakeferry.log.lines import Lines
from lakeferry.log.replay import TableState
from lakeferry.redirect.dialects import JOURNAL_PROPERTY, PROPERTIES
from lakeferry.redirect.redirect_findings import describe_redirect
from lakeferry.table import DeltaLog, load
from lakeferry.table.version_reading import VersionReading

PAGE_COMMITS = 50
MOST_REPLAYED = 120
"""How many commits are read to find the protocol before a page."""
MOST_READ_BYTES = 4 * 1024 * 1024
"""A larger commit isn't read for a page: it is shown by its size."""
_MOST_WINDOW_BYTES = 16 * 1024 * 1024
_LONGEST_TEXT = 200
_SHOWN_CHANGES = 6


@dataclass(frozen=True, slots=True)
class TimelineVersion:
    """One version, as its commit states it; ``None`` is what isn't known."""

    version: int
    timestamp: int
    size_bytes: int
    operation: str | None
    engine: str | None
    user: str | None
    checkpoint: str | None
    """The kind of its checkpoint, if it has a complete one."""
    era: int | None
    """Which of the timeline's eras it is in."""
    changes: tuple[str, ...]
    """What it changes of the protocol, the redirect and the properties, as sentences."""
    is_protected: bool
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class TimelineEra:
    """Versions in a row with the same protocol and the same state of the redirect."""

    protocol: Protocol
    redirect_state: str | None
    redirect_target: str | None


@dataclass(frozen=True, slots=True)
class TableTimeline:
    """A page of versions, the newest first, and what is known of the whole table."""

    location: str
    newest_version: int
    summary: LogSummary | None
    """The whole log in numbers, if it was listed; else :meth:`.Table.log_summary` returns it."""
    newest: TableState | None
    """The newest version's protocol and metadata; ``None`` if it would take too many reads."""
    boundary: int | None
    """Checkpoints of versions before it are protected."""
    versions: tuple[TimelineVersion, ...]
    eras: tuple[TimelineEra, ...]
    older: int | None
    """Ask for the page before this version to see older ones; ``None`` on the last page."""


def read_timeline(
    log: DeltaLog, before: int | None = None, count: int = PAGE_COMMITS
) -> TableTimeline:
    """Return the newest versions of a table, or those right before a version."""
    recent, is_whole = _recent(log, count)
    if recent.newest is None:
        raise TableNotFound(
            f"there is no table at {log.store.uri}", remedy="check the path", location=log.store.uri
        )
    listed = recent
    if not is_whole and before is not None:
        listed, is_whole = _around(log, before, count)
    rows = listed.page(before, count)
    page = _PageReader(log, listed)
    versions, last = page.read(rows)
    is_newest = bool(rows) and rows[-1][0] == recent.newest
    newest = last if is_newest else _PageReader(log, recent).state(recent.newest)
    boundary = None if newest is None else _boundary(newest)
    shown = [
        each if boundary is None or each.version >= boundary else _protected(each)
        for each in reversed(versions)
    ]
    first = rows[0][0] if rows else None
    return TableTimeline(
        log.store.uri,
        recent.newest,
        listed.summary() if is_whole else None,
        newest,
        boundary,
        tuple(shown),
        tuple(page.eras),
        first if first is not None and listed.has_before(first) else None,
    )


def _recent(log: DeltaLog, count: int) -> tuple[ListedLog, bool]:
    """List the newest versions; return them, and whether they are the whole log."""
    hint = log.hint()
    since = 0 if hint is None else max(hint.version - count - MOST_REPLAYED, 0)
    if since and hint is not None:
        found = list_log_window(log, since)
        # A hint to a checkpoint that isn't there is ignored.
        if found.checkpoint_before(hint.version) is not None and _is_enough(found, None, count):
            return found, False
    return list_log_window(log), True


def _around(log: DeltaLog, before: int, count: int) -> tuple[ListedLog, bool]:
    """List the versions of a page and those before it; all versions if that isn't enough."""
    since = max(before - count - MOST_REPLAYED, 0)
    found = list_log_window(log, since, before)
    if since == 0 or _is_enough(found, before, count):
        return found, False
    return list_log_window(log), True


def _is_enough(found: ListedLog, before: int | None, count: int) -> bool:
    """Return whether a page is within a window, and the window says that there are older ones."""
    rows = found.page(before, count)
    return len(rows) == count and found.has_before(rows[0][0])


class _PageReader:
    """Reads the commits of a page, oldest first, and keeps the eras that it finds."""

    def __init__(self, log: DeltaLog, listed: ListedLog) -> None:
        self._log = log
        self._listed = listed
        self.eras: list[TimelineEra] = []

    def state(self, version: int) -> TableState | None:
        """Return the protocol and metadata of a version, unless too much has to be read."""
        source = self._log.source
        try:
            file = paths.parse(paths.checksum(version))
            stated = None if file is None else load.read_checksum(source, file)
            if stated is not None:
                return TableState(version, stated.protocol, stated.metadata)
            base = self._listed.checkpoint_before(version)
            if version - (-1 if base is None else base) > MOST_REPLAYED:
                return None
            listing = self._listed.listing(base or 0, version)
            return VersionReading(source, listing, listing.segment(version)).replayed_state()
        except LakeferryError:
            return None

    def read(
        self, rows: Sequence[tuple[int, int, int]]
    ) -> tuple[list[TimelineVersion], TableState | None]:
        """Return the versions of these commits, and the state after the last one."""
        state = self.state(rows[0][0] - 1) if rows and rows[0][0] > 0 else None
        versions = []
        for (version, size_bytes, modified_ms), found in self._read_lines(rows):
            changes: tuple[str, ...] = ()
            problem = found if isinstance(found, str) else None
            info: CommitInfo | None = None
            if isinstance(found, Lines):
                info = found.commit_info
                after = _after(state, found, version)
                changes = _changes(state, after, self._log.store.uri)
                state = after
            versions.append(
                self._version(version, size_bytes, modified_ms, info, state, changes, problem)
            )
        return versions, state

    def _version(
        self,
        version: int,
        size_bytes: int,
        modified_ms: int,
        info: CommitInfo | None,
        state: TableState | None,
        changes: tuple[str, ...],
        problem: str | None,
    ) -> TimelineVersion:
        values = info.values if info is not None else {}
        stated = info.in_commit_timestamp if info is not None else None

        def text(*names: str) -> str | None:
            found = (values.get(name) for name in names)
            value = next((each for each in found if isinstance(each, str) and each), None)
            return None if value is None else value[:_LONGEST_TEXT]

        return TimelineVersion(
            version,
            modified_ms if stated is None else stated,
            size_bytes,
            text("operation"),
            text("engineInfo", "clientVersion"),
            text("userName", "userId"),
            self._listed.checkpoint_kind(version),
            None if state is None else self._era(state),
            changes,
            is_protected=False,
            problem=problem,
        )

    def _era(self, state: TableState) -> int:
        entry = describe_redirect(state, self._log.store.uri)[0]
        era = TimelineEra(
            state.protocol,
            None if entry is None else entry.state or "invalid",
            None if entry is None else entry.target,
        )
        if not self.eras or self.eras[-1] != era:
            self.eras.append(era)
        return len(self.eras) - 1

    def _read_lines(
        self, rows: Iterable[tuple[int, int, int]]
    ) -> Iterable[tuple[tuple[int, int, int], Lines | str]]:
        """Yield each commit with what it holds, or why it wasn't read."""
        waiting = iter(rows)
        while window := list(islice(waiting, _MOST_WINDOW_BYTES // MOST_READ_BYTES)):
            wanted = [row for row in window if row[1] <= MOST_READ_BYTES]
            bodies = dict(zip(wanted, self._bodies([row[0] for row in wanted]), strict=True))
            for row in window:
                body = bodies.get(row)
                if body is None:
                    too_large = row[1] > MOST_READ_BYTES
                    yield row, "too large to be read here" if too_large else "deleted meanwhile"
                    continue
                lines = Lines(keeps_files=False)
                try:
                    lines.read(body, paths.commit(row[0]))
                except LakeferryError as unreadable:
                    yield row, str(unreadable)[:_LONGEST_TEXT]
                else:
                    yield row, lines

    def _bodies(self, versions: list[int]) -> list[bytes] | list[bytes | None]:
        names = [paths.commit(version) for version in versions]
        try:
            return self._log.store.get_many(names)
        except ObjectNotFound:
            return [self._body(name) for name in names]

    def _body(self, name: str) -> bytes | None:
        try:
            return self._log.store.get(name)
        except ObjectNotFound:
            return None


def _after(before: TableState | None, lines: Lines, version: int) -> TableState | None:
    """Return the state after a commit."""
    protocol = lines.protocol or (None if before is None else before.protocol)
    metadata = lines.metadata or (None if before is None else before.metadata)
    if protocol is None or metadata is None:
        return None
    return TableState(version, protocol, metadata)


def _changes(before: TableState | None, after: TableState | None, uri: str) -> tuple[str, ...]:
    """Return what a commit changes, in sentences."""
    if (
        after is None
        or before is None
        or (before.protocol, before.metadata)
        == (
            after.protocol,
            after.metadata,
        )
    ):
        return ()
    found = [
        *_protocol_changes(before.protocol, after.protocol),
        *_redirect_change(before, after, uri),
        *_metadata_changes(before.metadata, after.metadata),
    ]
    more = len(found) - _SHOWN_CHANGES
    shown = [text[:_LONGEST_TEXT] for text in found[:_SHOWN_CHANGES]]
    return (*shown, f"and {more} more changes") if more > 0 else tuple(shown)


def _protocol_changes(before: Protocol, after: Protocol) -> Iterable[str]:
    if added := sorted(after.features - before.features):
        yield f"protocol: {', '.join(added)} added"
    if dropped := sorted(before.features - after.features):
        yield f"protocol: {', '.join(dropped)} dropped"
    versions = [(each.min_reader_version, each.min_writer_version) for each in (before, after)]
    if versions[0] != versions[1]:
        yield f"protocol: reader {versions[1][0]}, writer {versions[1][1]}"


def _redirect_change(before: TableState, after: TableState, uri: str) -> Iterable[str]:
    old, new = (describe_redirect(each, uri)[0] for each in (before, after))
    if (old and (old.state, old.target)) != (new and (new.state, new.target)):
        if new is None:
            yield "redirect: ended"
        else:
            lead = f" to {new.target}" if new.target else ""
            yield f"redirect: {new.state or 'invalid'}{lead}"


def _metadata_changes(before: Metadata, after: Metadata) -> Iterable[str]:
    if before.schema_string != after.schema_string:
        yield "columns changed"
    if before.partition_columns != after.partition_columns:
        yield "partition columns changed"
    old, new = before.configuration, after.configuration
    # What these say is told as the redirect's state.
    for name in sorted({*old, *new} - {*PROPERTIES, JOURNAL_PROPERTY}):
        if old.get(name) != new.get(name):
            yield f"{name} {'unset' if name not in new else f'= {new[name]}'}"


def _boundary(state: TableState) -> int | None:
    if "checkpointProtection" not in state.protocol.features:
        return None
    try:
        return properties.protected_before(state.metadata.configuration)
    except UnsupportedFeature:
        return None


def _protected(version: TimelineVersion) -> TimelineVersion:
    return replace(version, is_protected=True)
