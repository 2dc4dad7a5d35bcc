"""JSON that is nested too deeply to be read ends in an answer or in an error of ours."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import lakeferry
from lakeferry.catalogs.columns import catalog_columns
from lakeferry.errors import CorruptLog, RedirectSpecInvalid
from lakeferry.log import paths, row_ids
from lakeferry.log.actions import DomainMetadata, Metadata, Protocol
from lakeferry.protection import schema_traces
from lakeferry.redirect import read_entry
from tests.unit.cli.program import run

DEEP = '{"a":' * 5_000 + "1" + "}" * 5_000
SCHEMA = '{"type":"struct","fields":[]}'


def table(folder: Path, *, schema: str = SCHEMA, stats: str | None = None, info: str = "x") -> str:
    """Make a table of one version with such texts in it, and return its path."""
    actions: list[dict[str, Any]] = [
        {"commitInfo": {"operation": "WRITE", "operationParameters": {"mode": info}}},
        {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}},
        {"metaData": {"id": "t", "schemaString": schema, "partitionColumns": []}},
        {
            "add": {
                "path": "a",
                "size": 1,
                "partitionValues": {},
                "modificationTime": 0,
                "dataChange": True,
                "stats": stats,
            }
        },
    ]
    commit = folder / paths.commit(0)
    commit.parent.mkdir(parents=True)
    commit.write_text("".join(json.dumps(action) + "\n" for action in actions))
    return str(folder)


def test_statistics_that_are_nested_deeply_say_nothing(tmp_path: Path) -> None:
    found = lakeferry.Table(table(tmp_path / "t", stats=DEEP)).inspect()
    assert found.num_files == 1
    assert found.num_rows is None


@pytest.mark.parametrize("where", ["schema", "stats", "info"])
def test_commands_that_only_look_say_what_they_can(tmp_path: Path, where: str) -> None:
    at = table(tmp_path / "t", **{where: DEEP})
    for words in (["inspect", at], ["history", at], ["verify", at, at], ["inspect", "--json", at]):
        assert run(*words, home=tmp_path).code == 0


def test_a_schema_that_is_nested_deeply_is_corrupt() -> None:
    metadata = Metadata("t", DEEP, (), {})
    for read in (catalog_columns, schema_traces.without_mapping, schema_traces.illegal_names):
        with pytest.raises(CorruptLog):
            read(metadata)


def test_row_ids_are_not_continued_from_a_domain_that_is_nested_deeply() -> None:
    domain = DomainMetadata(row_ids.DOMAIN, DEEP)
    with pytest.raises(CorruptLog):
        row_ids.high_water_mark({row_ids.DOMAIN: domain})


def test_rules_of_a_redirect_that_are_nested_deeply_are_refused() -> None:
    spec = json.dumps({"Table": "a.b.c"})
    entry = json.dumps(
        {"Type": "Unity Catalog", "State": "READY", "Spec": spec, "NoRedirectRules": DEEP}
    )
    protocol = Protocol(1, 7, None, ("redirectWriterOnly",))
    metadata = Metadata("t", SCHEMA, (), {"delta.redirectWriterOnly": entry})
    with pytest.raises(RedirectSpecInvalid, match="rules aren't valid JSON"):
        read_entry.read(protocol, metadata, "file:///t")
