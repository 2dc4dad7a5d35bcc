"""When a version came to be, by its file or by its own word."""

from __future__ import annotations

import pytest

from lakeferry.log import paths, timestamps
from lakeferry.log.actions import Metadata
from lakeferry.log.paths import LogFile
from lakeferry.log.timestamps import InCommitTimestamps


def metadata(**configuration: str) -> Metadata:
    names = {
        "enabled": timestamps.ENABLED,
        "version": timestamps.ENABLEMENT_VERSION,
        "moment": timestamps.ENABLEMENT_TIMESTAMP,
    }
    return Metadata("1", "{}", (), {names[key]: value for key, value in configuration.items()})


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        (metadata(), None),
        (metadata(enabled="false", version="3", moment="5"), None),
        (metadata(enabled="true"), InCommitTimestamps(0, None)),
        (metadata(enabled="TRUE", version="3", moment="5"), InCommitTimestamps(3, 5)),
        (metadata(enabled="true", version="x", moment=""), InCommitTimestamps(0, None)),
    ],
)
def test_since_when_a_table_keeps_time(
    table: Metadata, expected: InCommitTimestamps | None
) -> None:
    assert timestamps.in_commit_timestamps(table) == expected


def test_file_times_are_made_to_grow() -> None:
    def commit(version: int, modified_ms: int) -> LogFile:
        found = paths.parse(paths.commit(version), 1, modified_ms)
        assert found is not None
        return found

    commits = [commit(3, 11), commit(0, 10), commit(1, 10), commit(2, 5), commit(4, 100)]
    assert timestamps.file_times(commits) == {0: 10, 1: 11, 2: 12, 3: 13, 4: 100}
    assert timestamps.file_times([]) == {}
