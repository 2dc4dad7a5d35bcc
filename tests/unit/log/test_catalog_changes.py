"""What a commit changes of the description that a catalog keeps."""

from __future__ import annotations

import json
from typing import Any

from lakeferry.log import paths
from lakeferry.log.catalog_changes import CatalogChanges, changes_of
from lakeferry.log.lines import Lines


def changes(known: dict[str, str], *actions: dict[str, Any]) -> CatalogChanges:
    lines = Lines()
    lines.read(b"\n".join(json.dumps(action).encode() for action in actions), paths.commit(1))
    return changes_of(lines, known)


def metadata(properties: dict[str, str]) -> dict[str, Any]:
    schema = '{"type":"struct","fields":[]}'
    described = {"id": "1", "format": {"provider": "parquet", "options": {}}}
    return {"metaData": {**described, "schemaString": schema, "configuration": properties}}


def test_only_what_differs_is_sent() -> None:
    found = changes({"a": "1", "b": "2", "c": "3"}, metadata({"a": "1", "b": "x", "d": "4"}))
    assert found.properties == {"b": "x", "d": "4"}
    assert found.removed_properties == ("c",)


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
