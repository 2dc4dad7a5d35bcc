"""Computes when a version was committed.

Implements the protocol's "In-Commit Timestamps". If a table has them enabled, each commit
contains its own time, from the version on that enabled them. For earlier versions, and for all
other tables, the modification time of the commit's file counts; where file times don't increase,
they are moved forward so that no two versions have the same time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from lakeferry.log.actions import Metadata
from lakeferry.log.paths import LogFile

ENABLED = "delta.enableInCommitTimestamps"
ENABLEMENT_VERSION = "delta.inCommitTimestampEnablementVersion"
ENABLEMENT_TIMESTAMP = "delta.inCommitTimestampEnablementTimestamp"


@dataclass(frozen=True, slots=True)
class InCommitTimestamps:
    """The first version whose commit contains its own time, and that time."""

    since_version: int
    since_ms: int | None


def in_commit_timestamps(metadata: Metadata) -> InCommitTimestamps | None:
    """Return where the table's in-commit timestamps begin; ``None`` if it has none."""
    configuration = metadata.configuration
    if configuration.get(ENABLED, "false").lower() != "true":
        return None
    return InCommitTimestamps(
        _number(configuration, ENABLEMENT_VERSION) or 0,
        _number(configuration, ENABLEMENT_TIMESTAMP),
    )


def _number(configuration: Mapping[str, str], name: str) -> int | None:
    try:
        return int(configuration[name])
    except (KeyError, ValueError):
        return None


def file_times(commits: Iterable[LogFile]) -> dict[int, int]:
    """Return each version's time from its commit's file, adjusted so that times increase."""
    times: dict[int, int] = {}
    previous: int | None = None
    for file in sorted(commits, key=lambda file: file.version):
        moment = file.modified_ms
        if previous is not None and moment <= previous:
            moment = previous + 1
        times[file.version] = previous = moment
    return times
