"""The commits at a managed target, as values."""

from __future__ import annotations

import json

import pytest

from lakeferry.errors import CorruptLog, InvalidInput, UnsupportedFeature
from lakeferry.log.actions import CommitInfo, Metadata, Protocol
from lakeferry.log.replay import TableState
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


@pytest.mark.parametrize("key", ["long", "k" * 256])
def test_a_property_that_a_catalog_cannot_keep_is_named(key: str) -> None:
    value = "x" * (256 if key == "long" else 1)
    state = TableState(3, Protocol(1, 2), bare(**{key: value}).metadata)
    with pytest.raises(InvalidInput, match="256 characters") as refused:
        managed_commits.check_fits(state, "file:///old")
    assert refused.value.fields["value"] == key
    fits = TableState(3, Protocol(1, 2), bare(long="x" * 255).metadata)
    managed_commits.check_fits(fits, "file:///old")


def test_properties_that_the_server_derives_have_any_length() -> None:
    derived = {"delta.feature.icebergWriterCompatV1": "x" * 300}
    managed_commits.check_fits(TableState(3, Protocol(1, 2), bare(**derived).metadata), "file:///o")


def test_a_table_in_two_formats_is_refused() -> None:
    formats = {"delta.universalFormat.enabledFormats": "iceberg"}
    with pytest.raises(UnsupportedFeature, match="managed"):
        managed_commits.check_fits(
            TableState(3, Protocol(1, 2), bare(**formats).metadata), "f:///o"
        )
    compat = Protocol(1, 7, None, ("icebergCompatV2",))
    with pytest.raises(UnsupportedFeature, match="managed"):
        managed_commits.check_fits(TableState(3, compat, bare().metadata), "file:///old")


def test_a_journal_keeps_the_target() -> None:
    document = json.loads(json.dumps(MANAGED.as_document()))
    assert managed_target_of(document) == MANAGED
    assert managed_target_of(None) is None
    with pytest.raises(ValueError, match="table_id"):
        managed_target_of({"private_name": "c.s.t"})


def test_a_private_name_is_in_the_schema_of_the_final_one() -> None:
    assert private_name("c.s.orders", "ab-cd") == "c.s._lakeferry_abcd"
