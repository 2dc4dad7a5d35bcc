"""Reads which protocols the newest versions of a log have, without replaying older ones.

A commit that changes the protocol has it in an action of its own. Only the newest commits are read;
what a version before the oldest change among them had is in its checksum file, or stays unknown.
"""

from __future__ import annotations

from lakeferry.errors import CorruptLog, ObjectNotFound
from lakeferry.log.actions import Protocol
from lakeferry.log.latest_actions import LatestActions
from lakeferry.log.lines import read_protocol_and_metadata
from lakeferry.log.paths import LogFile
from lakeferry.log.segment import Listing
from lakeferry.table import load
from lakeferry.table.delta_log import DeltaLog
from lakeferry.table.log_source import LogSource
from lakeferry.table.version_reading import VersionReading

ProtocolSpan = tuple[int, int, Protocol | None]
"""The first and the last of some versions, and their protocol; ``None`` if it isn't known."""
_MOST_BYTES = 256 * 1024
"""A larger commit isn't read whole; engines put the protocol at its beginning."""
_BEGINNING_BYTES = 64 * 1024


def recent_protocols(
    log: DeltaLog, newest: VersionReading, protocol: Protocol, commits: int
) -> tuple[ProtocolSpan, ...]:
    """Return the protocols of the newest versions, the oldest first.

    ``protocol`` is that of the newest version, ``commits`` how many commits are read at most.
    """
    first = max(newest.version - commits + 1, 0)
    listing = newest.listing
    if listing is None or listing.since > first:
        listing = load.list_log(log.source, first)
    files = _without_gap(listing, newest.version, first)
    if not files:
        return ((newest.version, newest.version, protocol),)
    changes = _changes(log.source, files)
    found: list[ProtocolSpan] = []
    last, current = newest.version, protocol
    for version, changed in changes:
        found.append((version, last, current if last == newest.version else changed))
        last, current = version - 1, protocol
    oldest = files[-1].version
    if last >= oldest:
        before = protocol if not changes else _by_checksum(log.source, listing, last)
        found.append((oldest, last, before))
    return tuple(reversed(found))


def _without_gap(listing: Listing, newest: int, first: int) -> list[LogFile]:
    """Return the newest commits, as far back as none is missing; the newest first."""
    found = []
    for version in range(newest, first - 1, -1):
        if version not in listing.commits:
            break
        found.append(listing.commits[version])
    return found


def _changes(source: LogSource, files: list[LogFile]) -> list[tuple[int, Protocol | None]]:
    """Return the versions that changed the protocol, and what they made it; the newest first."""
    small = [file for file in files if file.size_bytes <= _MOST_BYTES]
    try:
        bodies = dict(zip(small, source.get_many([file.path for file in small]), strict=True))
        for file in files:
            if file not in bodies:
                bodies[file] = source.get_range(file.path, 0, _BEGINNING_BYTES)
    except ObjectNotFound:
        # The log was cleaned up meanwhile.
        return [(files[0].version, None)]
    found: list[tuple[int, Protocol | None]] = []
    for file in files:
        body = bodies[file]
        if b'"protocol"' not in body:
            continue
        lines = [line for line in body.splitlines() if b'"protocol"' in line[:32]]
        try:
            actions = LatestActions()
            read_protocol_and_metadata(actions, b"\n".join(lines), file.path)
        except CorruptLog:
            found.append((file.version, None))
            continue
        if actions.protocol is not None:
            found.append((file.version, actions.protocol))
    return found


def _by_checksum(source: LogSource, listing: Listing, version: int) -> Protocol | None:
    file = listing.checksums.get(version)
    checksum = None if file is None else load.read_checksum(source, file)
    return None if checksum is None else checksum.protocol
