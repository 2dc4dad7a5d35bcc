"""Computes when a version was committed.

Implements the protocol's "In-Commit Timestamps". Where a table keeps them,
the commit itself says when it was made, from the version on at which the table
began to; before that, and on all other tables, the time of the commit's file
counts, pushed forward where file times run backwards so that no two versions
share one.
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
    """From which version on commits carry their own time, and which time that begins with."""

    since_version: int
    since_ms: int | None


def in_commit_timestamps(metadata: Metadata) -> InCommitTimestamps | None:
    """Return since when the table keeps in-commit timestamps, or ``None`` where it doesn't."""
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
    """Return the time of each version by its commit's file, made to grow with the version."""
    times: dict[int, int] = {}
    previous: int | None = None
    for file in sorted(commits, key=lambda file: file.version):
        moment = file.modified_ms
        if previous is not None and moment <= previous:
            moment = previous + 1
        times[file.version] = previous = moment
    return times
