"""The registry of table features, and the questions asked of it."""

from __future__ import annotations

import pytest

from lakeferry.errors import UnsupportedFeature
from lakeferry.log.features import (
    FEATURES,
    REDIRECT_FEATURES,
    Drop,
    FeatureKind,
    check_carriable,
    check_readable,
    check_writable,
    feature,
    implied_features,
    in_force,
    unsupported_features,
)
from tests.support.protocols import protocol_of

FOUR = "appendOnly invariants checkConstraints changeDataFeed generatedColumns"
# The appendix of the protocol, and what its sections add.
SPECIFIED = {
    "writer": "appendOnly invariants checkConstraints generatedColumns allowColumnDefaults "
    "changeDataFeed identityColumns rowTracking domainMetadata icebergCompatV1 icebergCompatV2 "
    "clustering inCommitTimestamp",
    "reader-writer": "columnMapping deletionVectors timestampNtz v2Checkpoint catalogManaged "
    "vacuumProtocolCheck variantType variantShredding typeWidening",
}


@pytest.mark.parametrize("kind", list(FeatureKind))
def test_every_feature_of_the_specification_is_registered_with_its_kind(kind: FeatureKind) -> None:
    for name in SPECIFIED[kind.value].split():
        assert FEATURES[name].kind is kind


def test_dependencies_are_registered_and_never_need_what_we_refuse() -> None:
    for row in FEATURES.values():
        for name in row.requires:
            assert name in FEATURES
            if row.write:
                assert FEATURES[name].write, (row.name, name)


def test_abilities_build_on_each_other() -> None:
    for row in FEATURES.values():
        assert row.read or not row.write
        assert row.carry or not row.read


def test_only_reader_writer_features_leave_traces_and_redirects_never() -> None:
    tracing = {row.name for row in FEATURES.values() if row.leaves_traces}
    both = {row.name for row in FEATURES.values() if row.kind is FeatureKind.READER_WRITER}
    assert both - tracing == {"redirectReaderWriter", "redirectReaderWriter-preview"}
    assert tracing < both


def test_four_redirect_features_are_droppable_without_a_rewrite() -> None:
    assert len(REDIRECT_FEATURES) == 4
    assert all(FEATURES[name].drop is Drop.PROPERTIES for name in REDIRECT_FEATURES)


def test_we_drop_what_delta_spark_drops_and_a_few_more() -> None:
    named = (
        "checkConstraints columnMapping geospatial geospatial-dev redirectReaderWriter-preview "
        "redirectWriterOnly-preview deletionVectors rowTracking domainMetadata "
        "materializePartitionColumns v2Checkpoint typeWidening typeWidening-preview "
        "inCommitTimestamp vacuumProtocolCheck checkpointProtection"
    )
    ours = {
        *("redirectReaderWriter", "redirectWriterOnly"),
        *("appendOnly", "changeDataFeed", "clustering"),
    }
    assert {row.name for row in FEATURES.values() if row.droppable} == {*named.split(), *ours}


@pytest.mark.parametrize(
    ("reader", "writer", "implied"),
    [
        (1, 1, ""),
        (1, 2, "appendOnly invariants"),
        (1, 3, "appendOnly invariants checkConstraints"),
        (1, 4, FOUR),
        # Column mapping asks for reader 2 as well.
        (1, 5, FOUR),
        (2, 5, f"{FOUR} columnMapping"),
        (2, 6, f"{FOUR} columnMapping identityColumns"),
        (2, 3, "appendOnly invariants checkConstraints"),
    ],
)
def test_versions_imply_features(reader: int, writer: int, implied: str) -> None:
    assert implied_features(protocol_of(reader, writer)) == set(implied.split())


def test_named_features_replace_implied_ones_from_writer_seven_on() -> None:
    assert implied_features(protocol_of(1, 7, None, "")) == set()
    assert implied_features(protocol_of(2, 7, None, "columnMapping")) == {"columnMapping"}
    assert implied_features(protocol_of(3, 7, "deletionVectors", "deletionVectors")) == {
        "deletionVectors"
    }


def test_a_name_counts_even_where_its_list_should_not_be() -> None:
    assert "future" in implied_features(protocol_of(1, 2, "future", None))
    with pytest.raises(UnsupportedFeature):
        check_readable(protocol_of(1, 2, "future", None))


@pytest.mark.parametrize(
    "names",
    [
        "deletionVectors",
        "columnMapping",
        "timestampNtz",
        "v2Checkpoint",
        "typeWidening-preview",
        "variantType variantShredding",
        "vacuumProtocolCheck",
        "redirectReaderWriter",
    ],
)
def test_features_of_data_files_do_not_keep_us_from_reading_and_writing(names: str) -> None:
    protocol = protocol_of(3, 7, names, names)
    check_readable(protocol)
    check_writable(protocol)
    assert unsupported_features(protocol) == ()


@pytest.mark.parametrize("name", ["catalogManaged", "catalogOwned-preview", "adaptiveMetadata"])
def test_a_log_that_is_not_the_whole_truth_is_refused_by_name(name: str) -> None:
    protocol = protocol_of(3, 7, name, name)
    for check in (check_carriable, check_readable, check_writable):
        with pytest.raises(UnsupportedFeature, match=name) as refused:
            check(protocol)
        assert refused.value.fields["features"] == [name]
        assert "catalog" in (refused.value.remedy or "")


def test_coordinated_commits_are_refused_although_readers_need_not_know_them() -> None:
    protocol = protocol_of(1, 7, None, "coordinatedCommits-preview appendOnly")
    with pytest.raises(UnsupportedFeature) as refused:
        check_readable(protocol)
    assert refused.value.fields["features"] == ["coordinatedCommits-preview"]


def test_an_unknown_writer_feature_is_carried_and_read_and_not_written() -> None:
    protocol = protocol_of(1, 7, None, "zebra appendOnly aardvark")
    check_carriable(protocol)
    check_readable(protocol)
    with pytest.raises(UnsupportedFeature) as refused:
        check_writable(protocol)
    assert refused.value.fields["features"] == ["aardvark", "zebra"]
    assert refused.value.code == "unsupported_feature"
    assert unsupported_features(protocol) == ("aardvark", "zebra")


def test_an_unknown_reader_feature_is_none_of_the_three() -> None:
    protocol = protocol_of(3, 7, "zebra", "zebra")
    for check in (check_carriable, check_readable, check_writable):
        with pytest.raises(UnsupportedFeature, match="zebra"):
            check(protocol)
    row = feature("zebra", of_readers=True)
    assert not row.known
    assert row.leaves_traces
    assert not row.droppable


def test_names_compare_with_letter_case() -> None:
    with pytest.raises(UnsupportedFeature, match="DeletionVectors"):
        check_readable(protocol_of(3, 7, "DeletionVectors", "DeletionVectors"))


def test_versions_that_do_not_exist_yet_are_refused() -> None:
    with pytest.raises(UnsupportedFeature, match="minReaderVersion=99") as refused:
        check_readable(protocol_of(99, 7, "", ""))
    assert refused.value.fields["features"] == ["minReaderVersion=99"]
    check_readable(protocol_of(1, 8, None, ""))
    with pytest.raises(UnsupportedFeature, match="minWriterVersion=8"):
        check_writable(protocol_of(1, 8, None, ""))
    assert unsupported_features(protocol_of(4, 8, "", "")) == (
        "minReaderVersion=4",
        "minWriterVersion=8",
    )


def test_rows_in_force_come_sorted() -> None:
    assert [row.name for row in in_force(protocol_of(1, 2))] == ["appendOnly", "invariants"]


@pytest.mark.parametrize(
    ("name", "properties", "active"),
    [
        ("deletionVectors", {"delta.enableDeletionVectors": "true"}, True),
        ("deletionVectors", {"delta.enableDeletionVectors": "false"}, False),
        ("deletionVectors", {}, False),
        ("columnMapping", {"delta.columnMapping.mode": "Name"}, True),
        ("columnMapping", {"delta.columnMapping.mode": "none"}, False),
        ("checkConstraints", {"delta.constraints.positive": "a > 0"}, True),
        ("checkpointProtection", {"delta.requireCheckpointProtectionBeforeVersion": "7"}, True),
        ("domainMetadata", {"delta.domainMetadata": "true"}, False),
    ],
)
def test_properties_put_features_to_use(
    name: str, properties: dict[str, str], active: bool
) -> None:
    assert FEATURES[name].is_active(properties) is active
