"""Oddities of protocols: what is reported, and with which features."""

from __future__ import annotations

import pytest

from lakeferry.log.actions import Protocol
from lakeferry.log.protocol_oddities import DELTA_SPARK_ACCEPTS, Oddity, warnings
from tests.support.protocols import protocol_of


@pytest.mark.parametrize(
    ("protocol", "expected"),
    [
        (protocol_of(1, 2), []),
        (protocol_of(2, 3), []),
        (protocol_of(2, 7, None, "columnMapping"), []),
        (protocol_of(3, 7, "deletionVectors", "deletionVectors appendOnly"), []),
        (protocol_of(2, 7, "", ""), [Oddity.READER_LIST_WITHOUT_VERSION]),
        (protocol_of(1, 2, None, ""), [Oddity.WRITER_LIST_WITHOUT_VERSION]),
        (protocol_of(3, 7, None, ""), [Oddity.READER_LIST_MISSING]),
        (protocol_of(1, 7), [Oddity.WRITER_LIST_MISSING]),
        (protocol_of(3, 6, ""), [Oddity.READER_AHEAD_OF_WRITER]),
        (protocol_of(0, 2), [Oddity.VERSION_BELOW_ONE]),
        (protocol_of(3, 7, "deletionVectors", ""), [Oddity.READER_ONLY]),
        (protocol_of(3, 7, "", "deletionVectors"), [Oddity.NOT_FOR_READERS]),
        (protocol_of(1, 7, None, "columnMapping"), [Oddity.NOT_FOR_READERS]),
        (protocol_of(3, 7, "appendOnly", "appendOnly"), [Oddity.FOR_READERS_TOO]),
        (protocol_of(1, 7, None, "rowTracking"), [Oddity.DEPENDENCY_MISSING]),
    ],
)
def test_oddities_are_values_and_not_errors(protocol: Protocol, expected: list[Oddity]) -> None:
    assert [warning.oddity for warning in warnings(protocol)] == expected


def test_oddities_name_their_features() -> None:
    (warning,) = warnings(protocol_of(3, 7, "", "v2Checkpoint deletionVectors"))
    assert warning.features == ("deletionVectors", "v2Checkpoint")
    assert warning.message.startswith("deletionVectors, v2Checkpoint: ")
    assert warning.oddity in DELTA_SPARK_ACCEPTS


def test_properties_without_their_feature_are_reported_where_features_are_named() -> None:
    properties = {"delta.redirectWriterOnly": "{}", "delta.enableTypeWidening": "TRUE"}
    (warning,) = warnings(
        protocol_of(3, 7, "typeWidening-preview", "typeWidening-preview"), properties
    )
    assert warning.oddity is Oddity.ACTIVE_WITHOUT_FEATURE
    assert warning.features == ("redirectWriterOnly",)
    assert warnings(protocol_of(1, 2), {"delta.enableChangeDataFeed": "true"}) == ()
