"""Finds out what a plan needs to know about one table, by reading its log once.

Size, files, features, commits per day, who wrote lately, the state of its redirect, and problems
with their remedies. The newest commits are read; the checkpoint only if no checksum file has the
counts. A table that can't be read is a result with a problem, and no error.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lakeferry.errors import CorruptLog, LakeferryError
from lakeferry.fleet.inventory import FleetProblem, FleetWriter, TableMark, TableSurvey
from lakeferry.log import features, protocol_oddities
from lakeferry.log.actions import CommitInfo
from lakeferry.log.commit_writer import CommitWriter, commit_writer
from lakeferry.log.paths import LogFile
from lakeferry.log.replay import TableState
from lakeferry.redirect.recent_writers import COMMITS, newest_infos, stated_time
from lakeferry.redirect.redirect_findings import about_unfinished, describe_redirect
from lakeferry.storage import Store
from lakeferry.table import DeltaLog, load
from lakeferry.table.unsupported import bare_state
from lakeferry.table.version_reading import VersionReading

FROZEN = "FROZEN"
"""The redirect state of a table that is read-only and has no target."""
_MOST = 2**63
"""Above this nothing can be counted: a checksum file that says so is wrong."""
_DAY_MS, _MINUTE_MS = 86_400_000, 60_000


def newest_mark(store: Store, known: TableMark) -> TableMark | None:
    """Return the mark of a log whose mark was ``known``, by one listing; ``None`` if it is gone."""
    listing = load.list_log(store, known.version)
    newest = max(listing.commits, default=None)
    return None if newest is None else _mark(listing.commits[newest])


def survey_table(store: Store) -> TableSurvey:
    """Return what can be found out about the table at a store's root; never raises."""
    problems: list[FleetProblem] = []

    def warn(text: str) -> None:
        problems.append(FleetProblem("checkpoint_unreadable", text))

    log = DeltaLog(store, warn=warn).keeping_reads()
    try:
        try:
            newest = log.newest(keeps_files=True)
            state: TableState = newest.state()
        except CorruptLog:
            # An unknown feature may be the reason, and then it is the problem to name.
            features.check_readable(bare_state(log).protocol, asks_catalog=store.asks_catalog)
            raise
        return _surveyed(log, newest, state, problems)
    except LakeferryError as failed:
        return TableSurvey(problems=(*problems, FleetProblem.of(failed)))


def _surveyed(
    log: DeltaLog, newest: VersionReading, state: TableState, problems: list[FleetProblem]
) -> TableSurvey:
    num_files, size_bytes = _counts(log, newest, problems)
    commits = list(newest_infos(log, newest))
    redirect_state, redirect_target = _redirect(log.store, state, problems)
    problems += _about_protocol(log.store, state)
    commit = newest.segment.commit
    return TableSurvey(
        mark=TableMark(newest.version, -1, -1) if commit is None else _mark(commit),
        table_id=state.metadata.id,
        size_bytes=size_bytes,
        num_files=num_files,
        commits_per_day=commits_per_day([stated_time(*each) for each in commits], log.clock()),
        features=tuple(row.name for row in features.in_force(state.protocol)),
        writers=_writers(commits),
        problems=tuple(dict.fromkeys(problems)),
        redirect_state=redirect_state,
        redirect_target=redirect_target,
    )


def _counts(
    log: DeltaLog, newest: VersionReading, problems: list[FleetProblem]
) -> tuple[int | None, int | None]:
    checksum = newest.checksum
    if checksum is not None and max(checksum.num_files, checksum.table_size_bytes) < _MOST:
        return checksum.num_files, checksum.table_size_bytes
    try:
        snapshot = log.snapshot(newest=newest)
    except LakeferryError as failed:
        problems.append(FleetProblem.of(failed))
        return None, None
    return snapshot.num_files, snapshot.size_bytes


def _redirect(
    store: Store, state: TableState, problems: list[FleetProblem]
) -> tuple[str | None, str | None]:
    _, redirect, odd = describe_redirect(state, store.uri)
    if redirect is None:
        odd += about_unfinished(store, state)
    problems += (FleetProblem(code, message) for code, message in odd)
    if redirect is None:
        return None, None
    if redirect.is_frozen:
        return FROZEN, None
    return redirect.state.value, None if redirect.target is None else str(redirect.target)


def _about_protocol(store: Store, state: TableState) -> Iterator[FleetProblem]:
    try:
        features.check_writable(state.protocol, asks_catalog=store.asks_catalog)
    except LakeferryError as refused:
        yield FleetProblem.of(refused)
    for each in protocol_oddities.warnings(state.protocol, state.metadata.configuration):
        yield FleetProblem(each.oddity.name.lower(), each.message)


def _writers(commits: list[tuple[LogFile, CommitInfo | None]]) -> tuple[FleetWriter, ...]:
    """Return who wrote the newest commits; the one that wrote last comes first."""
    counts: dict[CommitWriter, int] = {}
    last: dict[CommitWriter, tuple[int, int]] = {}
    for file, info in commits:
        writer = CommitWriter(None) if info is None else commit_writer(info.values)
        counts[writer] = counts.get(writer, 0) + 1
        last.setdefault(writer, (file.version, stated_time(file, info)))
    return tuple(
        FleetWriter(
            writer.name,
            None if writer.kind is None else writer.kind.value,
            writer.version,
            counts[writer],
            *last[writer],
        )
        for writer in last
    )


def commits_per_day(times_ms: Sequence[int], now_ms: int) -> float | None:
    """Return how often a table changes, by the times of its newest commits, the newest first."""
    if not times_ms:
        return None
    # Of a young table nobody knows what a whole day brings.
    least_ms = _MINUTE_MS if len(times_ms) >= COMMITS else _DAY_MS
    return round(len(times_ms) * _DAY_MS / max(now_ms - times_ms[-1], least_ms), 2)


def _mark(commit: LogFile) -> TableMark:
    return TableMark(commit.version, commit.modified_ms, commit.size_bytes)
