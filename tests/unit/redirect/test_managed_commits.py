"""The commits at a managed target, as values."""

from __future__ import annotations

import json

import pytest

from lakeferry.errors import CorruptLog
from lakeferry.log.actions import CommitInfo, Metadata, Protocol
from lakeferry.redirect import managed_commits
from lakeferry.redirect.managed_target import ManagedTarget, managed_target_of, private_name
from lakeferry.redirect.redirect_commits import Bare

MANAGED = ManagedTarget(
    "7c0e",
    "c.s._lakeferry_1",
    "ann@example.com",
    ("catalogManaged", "v2Checkpoint"),
    ("catalogManaged", "v2Checkpoint", "inCommitTimestamp"),
    {"delta.enableInCommitTimestamps": "true", "io.unitycatalog.tableId": "7c0e"},
)
INFO = CommitInfo({"timestamp": 1_000, "operation": "REDIRECT", "txnId": "t"})


def bare(**properties: str) -> Bare:
    metadata = Metadata("id", '{"type":"struct","fields":[]}', configuration=properties)
    return Bare(Protocol(1, 2), metadata)


def test_the_target_gets_what_its_catalog_requires_and_keeps_its_own() -> None:
    found = managed_commits.bare_at_target(
        bare(owner="ann", **{"io.unitycatalog.tableId": "stale"}), MANAGED, 7, INFO
    )
    assert found.metadata.configuration == {
        "owner": "ann",
        "io.unitycatalog.tableId": "7c0e",
        "delta.enableInCommitTimestamps": "true",
        "delta.inCommitTimestampEnablementVersion": "7",
        "delta.inCommitTimestampEnablementTimestamp": "1000",
    }
    assert found.metadata.id == "id"
    assert (found.protocol.min_reader_version, found.protocol.min_writer_version) == (3, 7)
    assert found.protocol.reader_features == ("catalogManaged", "v2Checkpoint")
    assert {"appendOnly", "invariants", "inCommitTimestamp"} <= set(
        found.protocol.writer_features or ()
    )


def test_timestamps_that_a_table_has_stay() -> None:
    own = {
        "delta.enableInCommitTimestamps": "true",
        "delta.inCommitTimestampEnablementVersion": "3",
        "delta.inCommitTimestampEnablementTimestamp": "5",
    }
    timed = CommitInfo({"timestamp": 1_000, "inCommitTimestamp": 1_002})
    found = managed_commits.bare_at_target(bare(**own), MANAGED, 7, timed)
    assert own.items() <= found.metadata.configuration.items()
    assert managed_commits.info_at_target(bare(**own), 7, timed) is timed


def test_the_time_of_n_is_the_one_that_the_source_states() -> None:
    info = managed_commits.info_at_target(bare(), 7, INFO)
    assert info is not None
    assert next(iter(info.values)) == "inCommitTimestamp"
    assert info.in_commit_timestamp == 1_000
    with pytest.raises(CorruptLog):
        managed_commits.info_at_target(bare(), 7, CommitInfo({"operation": "WRITE"}))


def test_a_journal_keeps_the_target() -> None:
    document = json.loads(json.dumps(MANAGED.as_document()))
    assert managed_target_of(document) == MANAGED
    assert managed_target_of(None) is None
    with pytest.raises(ValueError, match="table_id"):
        managed_target_of({"private_name": "c.s.t"})


def test_a_private_name_is_in_the_schema_of_the_final_one() -> None:
    assert private_name("c.s.orders", "ab-cd") == "c.s._lakeferry_abcd"
