"""What a commit changes of the description that a catalog keeps."""

from __future__ import annotations

import json
from typing import Any

from lakeferry.log import paths
from lakeferry.log.catalog_changes import CatalogChanges, changes_of, onboarding_changes
from lakeferry.log.features import REDIRECT_PROPERTIES
from lakeferry.log.lines import Lines
from lakeferry.redirect import dialects


def lines(*actions: dict[str, Any]) -> Lines:
    found = Lines()
    found.read(b"\n".join(json.dumps(action).encode() for action in actions), paths.commit(1))
    return found


def changes(before: dict[str, str], *actions: dict[str, Any]) -> CatalogChanges:
    return changes_of(lines(*actions), lines(metadata(before)).metadata)


def metadata(properties: dict[str, str], **more: object) -> dict[str, Any]:
    schema = '{"type":"struct","fields":[]}'
    described = {"id": "1", "format": {"provider": "parquet", "options": {}}, **more}
    return {"metaData": {"schemaString": schema, "configuration": properties, **described}}


def domain(name: str, content: str, *, removed: bool = False) -> dict[str, Any]:
    return {"domainMetadata": {"domain": name, "configuration": content, "removed": removed}}


def test_only_what_differs_from_the_version_before_is_sent() -> None:
    found = changes({"a": "1", "b": "2", "c": "3"}, metadata({"a": "1", "b": "x", "d": "4"}))
    assert found == CatalogChanges(properties={"b": "x", "d": "4"}, removed_properties=("c",))


def test_columns_and_comment_are_sent_where_they_change() -> None:
    before = lines(metadata({}, description="old", partitionColumns=["a"])).metadata
    same = lines(metadata({"a": "1"}, description="old", partitionColumns=["a"]))
    assert changes_of(same, before) == CatalogChanges(properties={"a": "1"})
    plain = lines(metadata({}, partitionColumns=["a"]))
    assert changes_of(plain, before) == CatalogChanges(comment="")
    moved = lines(metadata({}, description="old", partitionColumns=[]))
    assert changes_of(moved, before) == CatalogChanges(metadata=moved.metadata)


def test_the_first_commit_sends_all_that_the_catalog_does_not_have() -> None:
    table = lines(
        metadata({"a": "1", "b": "2"}),
        domain("delta.rowTracking", '{"rowIdHighWaterMark":7}'),
        domain("lakeferry.other", "x"),
    )
    known = {"a": "1", "old": "x", "clusteringColumns": '[["id"]]', "delta.minReaderVersion": "3"}
    assert onboarding_changes(table, known) == CatalogChanges(
        metadata=table.metadata,
        comment="",
        properties={"b": "2"},
        removed_properties=("old",),
        domains={"delta.rowTracking": {"rowIdHighWaterMark": 7}},
        removed_domains=("delta.clustering",),
    )


def test_what_the_catalog_derives_is_never_sent() -> None:
    derived = {
        "clusteringColumns": '[["id"]]',
        "delta.feature.catalogManaged": "supported",
        "delta.lastCommitTimestamp": "5",
        "delta.lastUpdateVersion": "1",
        "delta.minReaderVersion": "3",
        "delta.minWriterVersion": "7",
        "delta.rowTracking.rowIdHighWaterMark": "9",
    }
    assert changes(derived, metadata({})).removed_properties == ()
    assert changes({}, metadata(derived)).properties == {}


def test_a_commit_without_metadata_changes_no_property() -> None:
    assert changes({"a": "1"}, {"commitInfo": {}}) == CatalogChanges()


def test_a_redirect_entry_is_never_sent() -> None:
    entries = dict.fromkeys([*dialects.PROPERTIES, dialects.JOURNAL_PROPERTY], "x" * 300)
    assert entries.keys() <= REDIRECT_PROPERTIES
    assert changes({"a": "1"}, metadata({"a": "2", **entries})).properties == {"a": "2"}
    # Nor removed: the catalog has none of ours.
    assert changes({"lakeferry.redirect": "old"}, metadata({})).removed_properties == ()
