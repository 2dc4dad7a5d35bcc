"""Intervals and flags in a table's properties."""

from __future__ import annotations

import pytest

from lakeferry.errors import UnsupportedFeature
from lakeferry.log import properties
from lakeferry.log.properties import DAY_MS


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("interval 7 days", 7 * DAY_MS),
        ("INTERVAL 1 week", 7 * DAY_MS),
        ("2 weeks", 14 * DAY_MS),
        ("interval 1 day 12 hours", DAY_MS + DAY_MS // 2),
        ("interval 90 seconds", 90_000),
        ("interval 5 milliseconds", 5),
        ("interval 3000 microseconds", 3),
        ("interval 1 month", None),
        ("interval", None),
        ("", None),
        ("7d", None),
        ("interval seven days", None),
    ],
)
def test_intervals(text: str, expected: int | None) -> None:
    assert properties.interval_ms(text) == expected


def test_a_retention_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(UnsupportedFeature, match="deletedFileRetentionDuration"):
        properties.deleted_file_retention_ms({"delta.deletedFileRetentionDuration": "a while"})


def test_defaults() -> None:
    assert properties.deleted_file_retention_ms({}) == 7 * DAY_MS
    assert properties.log_retention_ms({}) == 30 * DAY_MS
    assert properties.writes_stats_as_json({})
    assert not properties.writes_stats_as_struct({})
    assert not properties.wants_v2_checkpoints({})
