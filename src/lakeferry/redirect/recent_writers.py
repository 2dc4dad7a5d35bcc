"""Names the clients that wrote a table lately, and says what a redirect will do to each.

The newest commits name their writers. Reading them is bounded: one listing, one batch of small
commits, and the beginning of a few large ones. Commits that were cleaned up, or that can't be read,
are left out. Clients that only read a table never commit, so they aren't found.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from lakeferry.clients.redirect_effects import Effect, WriterEffect, effect_on
from lakeferry.errors import CorruptLog, ObjectNotFound
from lakeferry.log.actions import CommitInfo
from lakeferry.log.commit_writer import CommitWriter, commit_writer
from lakeferry.log.lines import Lines
from lakeferry.log.paths import LogFile
from lakeferry.redirect.entry import Dialect, Mode
from lakeferry.table import DeltaLog, load
from lakeferry.table.version_reading import VersionReading

COMMITS = 100
"""How many of the newest commits are asked for their writers."""
_SMALL_BYTES = 256 * 1024
"""Larger commits aren't read whole."""
_LARGE_COMMITS = 8
"""How many of the larger commits are begun to be read; the newest ones."""
_BEGINNING_BYTES = 64 * 1024
"""Most clients put ``commitInfo`` first, and the protocol asks for it with in-commit timestamps."""
_LATEST_MS = 253_402_300_799_000
"""The end of the calendar, in the year 9999."""
_MINUTE_MS, _HOUR_MS, _DAY_MS = 60_000, 3_600_000, 86_400_000


@dataclass(frozen=True, slots=True)
class RecentWriter:
    """A client that wrote some of the newest commits."""

    writer: CommitWriter
    version: int
    """The newest version that it wrote."""
    written_ms: int
    commits: int
    effect: WriterEffect
    message: str

    @property
    def reads_old_rows(self) -> bool:
        """Whether it will read the frozen copy, at least without its option."""
        return self.effect.reads is Effect.FROZEN

    def as_document(self) -> dict[str, object]:
        """Return one element of ``writers`` of ``redirect enable``."""
        effect = self.effect
        return {
            "name": self.writer.name,
            "client": None if self.writer.kind is None else self.writer.kind.value,
            "client_version": self.writer.version,
            "version": self.version,
            "written": f"{_moment(self.written_ms):%Y-%m-%dT%H:%M:%SZ}",
            "commits": self.commits,
            "reads": effect.reads.value,
            "writes": effect.writes.value,
            "follows_if": effect.unless,
            "message": self.message,
            "proof": effect.proof,
        }


def recent_writers(
    log: DeltaLog, newest: VersionReading, mode: Mode, dialects: Collection[Dialect]
) -> tuple[RecentWriter, ...]:
    """Return each client that wrote lately; those that will read old rows come first.

    ``newest`` is what was read of the newest version of ``log``.
    """
    commits: dict[CommitWriter, int] = {}
    last: dict[CommitWriter, tuple[int, int]] = {}
    for file, info in newest_infos(log, newest):
        writer = CommitWriter(None) if info is None else commit_writer(info.values)
        commits[writer] = commits.get(writer, 0) + 1
        if writer not in last:
            last[writer] = file.version, stated_time(file, info)
    found = []
    for writer, (version, written_ms) in last.items():
        effect = effect_on(writer, mode, dialects)
        when = ago(written_ms, log.clock())
        name = writer.name or "a client that doesn't say its name"
        message = f"{name} wrote {when}; {effect.sentence}"
        found.append(
            RecentWriter(writer, version, written_ms, commits[writer], effect, message),
        )
    return tuple(sorted(found, key=lambda each: (each.effect.rank, -each.version)))


def ago(then_ms: int, now_ms: int) -> str:
    """Return when something was, as people say it."""
    passed = now_ms - then_ms
    if passed < _MINUTE_MS:
        return "just now"
    if passed < _HOUR_MS:
        return _counted_ago(passed // _MINUTE_MS, "minute")
    if passed < _DAY_MS:
        return _counted_ago(passed // _HOUR_MS, "hour")
    if passed < 2 * _DAY_MS:
        return "yesterday"
    if passed < 60 * _DAY_MS:
        return _counted_ago(passed // _DAY_MS, "day")
    return f"on {_moment(then_ms):%Y-%m-%d}"


def _counted_ago(number: int, unit: str) -> str:
    return f"{number} {unit}{'' if number == 1 else 's'} ago"


def _moment(timestamp_ms: int) -> datetime:
    return datetime.fromtimestamp(timestamp_ms // 1000, UTC)


def stated_time(file: LogFile, info: CommitInfo | None) -> int:
    """Return when a commit was made, by its own statement or else by its file."""
    if info is not None:
        for stated in (info.in_commit_timestamp, info.values.get("timestamp")):
            if type(stated) is int and 0 < stated < _LATEST_MS:
                return stated
    return file.modified_ms


def newest_infos(
    log: DeltaLog, newest: VersionReading
) -> Iterator[tuple[LogFile, CommitInfo | None]]:
    """Yield the newest commits that are there, the newest first, with what their writers state."""
    first = max(newest.version - COMMITS + 1, 0)
    listing = newest.listing
    if listing is None or listing.since > first:
        listing = load.list_log(log.source, first)
    files = [
        listing.commits[version]
        for version in range(newest.version, first - 1, -1)
        if version in listing.commits
    ]
    infos: dict[int, CommitInfo | None] = dict(newest.commit_infos)
    infos |= _read(log, [file for file in files if file.version not in infos])
    for file in files:
        if file.version in infos:
            yield file, infos[file.version]


def _read(log: DeltaLog, files: Iterable[LogFile]) -> Mapping[int, CommitInfo | None]:
    small: list[LogFile] = []
    large: list[LogFile] = []
    for file in files:
        (small if file.size_bytes <= _SMALL_BYTES else large).append(file)
    read: list[tuple[LogFile, bytes]] = []
    try:
        bodies = log.source.get_many([file.path for file in small]) if small else []
        read += zip(small, bodies, strict=True)
        for file in large[:_LARGE_COMMITS]:
            read.append((file, log.source.get_range(file.path, 0, _BEGINNING_BYTES)))
    except ObjectNotFound:
        # The log was cleaned up meanwhile. What was read until then is enough.
        pass
    infos = {}
    for file, data in read:
        try:
            infos[file.version] = _commit_info(data, file.path)
        except CorruptLog:
            # Another step refuses such a log, if it needs this commit.
            continue
    return infos


def _commit_info(data: bytes, path: str) -> CommitInfo | None:
    """Return what a commit's writer states; no other action is decoded."""
    lines = Lines(keeps_files=False)
    for line in data.splitlines():
        if b'"commitInfo"' in line[:32]:
            lines.read(line, path)
            break
    return lines.commit_info
