"""Checksum files that contradict the log, and those that say less than is usual."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import lakeferry
from lakeferry import Table
from lakeferry.errors import CorruptLog
from lakeferry.log import paths

SCHEMA = '{"type":"struct","fields":[{"name":"id","type":"long","nullable":true,"metadata":{}}]}'
OTHER_SCHEMA = SCHEMA.replace("long", "string")
PROTOCOL: dict[str, Any] = {
    "minReaderVersion": 1,
    "minWriterVersion": 7,
    "writerFeatures": ["appendOnly", "domainMetadata"],
}
METADATA: dict[str, Any] = {
    "id": "t",
    "schemaString": SCHEMA,
    "partitionColumns": [],
    "configuration": {},
}
COUNTS = {"tableSizeBytes": 0, "numFiles": 0, "numMetadata": 1, "numProtocol": 1}


def make(folder: Path, stated: dict[str, Any]) -> Table:
    (folder / paths.LOG_DIR).mkdir(parents=True)
    lines = [{"protocol": PROTOCOL}, {"metaData": METADATA}]
    (folder / paths.commit(0)).write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    (folder / paths.checksum(0)).write_text(json.dumps(COUNTS | stated))
    return Table(str(folder))


def lie(**metadata: Any) -> dict[str, Any]:
    return {"metadata": METADATA | metadata, "protocol": PROTOCOL}


LIES = {
    "the schema": lie(schemaString=OTHER_SCHEMA),
    "the properties": lie(configuration={"delta.appendOnly": "true"}),
    "the partition columns": lie(partitionColumns=["id"]),
    "the table's id": lie(id="u"),
    "protocol": {
        "metadata": METADATA,
        "protocol": {
            "minReaderVersion": 1,
            "minWriterVersion": 7,
            "writerFeatures": ["domainMetadata"],
        },
    },
}
WRITES: dict[str, Callable[[Table, str], object]] = {
    "enable": lambda table, to: table.redirect(to, engine="local"),
    "enable, planned": lambda table, to: table.redirect(to, dry_run=True),
    "freeze": lambda table, _: table.freeze(),
    "freeze, planned": lambda table, _: table.freeze(dry_run=True),
    "drop": lambda table, _: table.drop_feature("domainMetadata", engine="local"),
    "drop, planned": lambda table, _: table.drop_feature("domainMetadata", dry_run=True),
}


@pytest.mark.parametrize("lied", LIES)
@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_what_one_says_is_never_written_into_the_log(
    tmp_path: Path, write: Callable[[Table, str], object], lied: str
) -> None:
    table = make(tmp_path / "t", LIES[lied])
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(CorruptLog) as refused:
        write(table, str(tmp_path / "new"))
    assert lied in str(refused.value)
    assert refused.value.remedy
    assert sorted(tmp_path.rglob("*")) == before
    assert [each.code for each in table.inspect().warnings] == ["checksum_mismatch"]


def test_one_that_tells_the_truth_is_in_nobody_s_way(tmp_path: Path) -> None:
    table = make(tmp_path / "t", lie())
    table.redirect(str(tmp_path / "new"), engine="local")
    assert table.verify(Table(str(tmp_path / "new"))).equal


@pytest.mark.parametrize("num_files", [0, 3])
def test_one_that_states_counts_alone_is_compared_by_them(tmp_path: Path, num_files: int) -> None:
    """Databricks wrote such files up to runtime 8."""
    table = make(tmp_path / "t", {"numFiles": num_files, "numTransactions": 0})
    codes = [each.code for each in table.inspect().warnings]
    assert codes == ([] if num_files == 0 else ["checksum_mismatch"])


def test_what_is_no_checksum_file_is_said_to_be_unreadable(tmp_path: Path) -> None:
    table = make(tmp_path / "t", {"numFiles": "many"})
    assert [each.code for each in table.inspect().warnings] == ["checksum_unreadable"]
    assert lakeferry.open(str(tmp_path / "t")).count_rows() == 0
