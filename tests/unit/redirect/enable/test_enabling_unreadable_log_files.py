"""Tables whose checkpoints or compacted logs can't be read, while their commits can."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import lakeferry
from lakeferry.errors import CorruptLog
from lakeferry.log import paths

Action = dict[str, Any]
SCHEMA = '{"type":"struct","fields":[{"name":"id","type":"long","nullable":true,"metadata":{}}]}'
PROTOCOL: Action = {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}
V2: Action = {
    "protocol": {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": ["v2Checkpoint"],
        "writerFeatures": ["v2Checkpoint"],
    }
}
METADATA: Action = {"metaData": {"id": "t", "schemaString": SCHEMA, "partitionColumns": []}}
V2_CHECKPOINT = f"{paths.LOG_DIR}/{2:020d}.checkpoint.80a083e8-7026-4e79-81be-64bd76c43a11.json"


def lines(*actions: Action) -> bytes:
    return b"".join(json.dumps(action).encode() + b"\n" for action in actions)


def add(folder: Path, name: str) -> Action:
    pq.write_table(pa.table({"id": [1, 2]}), folder / name)
    size = (folder / name).stat().st_size
    return {"add": {"path": name, "size": size, "modificationTime": 0, "dataChange": True}}


def remove(name: str) -> Action:
    return {"remove": {"path": name, "deletionTimestamp": 2**45, "dataChange": True}}


def checkpoint(*actions: Action) -> bytes:
    names = {name for action in actions for name in action}
    sink = io.BytesIO()
    pq.write_table(pa.table({name: [each.get(name) for each in actions] for name in names}), sink)
    return sink.getvalue()


def make(folder: Path, protocol: Action = PROTOCOL) -> list[Action]:
    """Make a table of three versions; return the ``add`` of each."""
    (folder / paths.LOG_DIR).mkdir(parents=True)
    adds = [add(folder, f"{name}.parquet") for name in "abc"]
    commits = [(protocol, METADATA, adds[0]), (adds[1],), (remove("a.parquet"), adds[2])]
    for version, actions in enumerate(commits):
        (folder / paths.commit(version)).write_bytes(lines(*actions))
    return adds


def unreadable(folder: Path, kind: str) -> None:
    """Make a table that has a broken file of some kind for its newest version."""
    adds = make(folder, V2 if kind == "a sidecar is missing" else PROTOCOL)
    whole = checkpoint(PROTOCOL, METADATA, *adds[1:])
    name, body = {
        "an empty checkpoint": (paths.classic_checkpoint(2), b""),
        "a checkpoint that was cut off": (paths.classic_checkpoint(2), whole[:-20]),
        "a checkpoint with a file twice": (
            paths.classic_checkpoint(2),
            checkpoint(PROTOCOL, METADATA, *adds[1:], adds[1]),
        ),
        "a compacted log that was cut off": (paths.compacted(1, 2), b'{"add":'),
        "a compacted log that isn't reconciled": (
            paths.compacted(0, 2),
            lines(PROTOCOL, METADATA, remove("a.parquet"), *adds),
        ),
        "a sidecar is missing": (
            V2_CHECKPOINT,
            lines(
                {"checkpointMetadata": {"version": 2}},
                V2,
                METADATA,
                {"sidecar": {"path": "s.parquet", "sizeInBytes": 1, "modificationTime": 0}},
            ),
        ),
    }[kind]
    (folder / name).write_bytes(body)


KINDS = [
    "an empty checkpoint",
    "a checkpoint that was cut off",
    "a checkpoint with a file twice",
    "a compacted log that was cut off",
    "a compacted log that isn't reconciled",
    "a sidecar is missing",
]


def live(table: lakeferry.Table) -> int:
    return int(table.files().read_all().num_rows)


@pytest.mark.parametrize("data", ["copy", "reference"])
@pytest.mark.parametrize("kind", KINDS)
def test_they_move_and_come_back(tmp_path: Path, kind: str, data: str) -> None:
    unreadable(tmp_path / "t", kind)
    warnings: list[str] = []
    table = lakeferry.Table(str(tmp_path / "t"), warn=warnings.append)
    table.redirect(str(tmp_path / "new"), data=data, engine="local")
    assert any("_delta_log" in warning for warning in warnings)
    target = lakeferry.Table(str(tmp_path / "new"))
    assert table.verify(target).equal
    assert live(target) == live(table) == 2
    for version in range(3):
        rows = lakeferry.open(str(tmp_path / "new"), version=version).count_rows()
        assert rows == (2, 4, 4)[version]
    table.redirect_disable(engine="local")
    assert lakeferry.open(str(tmp_path / "t"), follow=False).count_rows() == 4


@pytest.mark.parametrize("kind", KINDS)
def test_their_exports_can_be_read(tmp_path: Path, kind: str) -> None:
    unreadable(tmp_path / "t", kind)
    table = lakeferry.Table(str(tmp_path / "t"))
    for changed in (True, False):
        done = table.export(str(tmp_path / "e"), engine="local")
        assert (done.version, done.changed) == (2, changed)
        assert lakeferry.open(str(tmp_path / "e")).count_rows() == 4


@pytest.mark.parametrize("kind", KINDS[1:3])
def test_without_the_commits_the_checkpoint_is_why(tmp_path: Path, kind: str) -> None:
    unreadable(tmp_path / "t", kind)
    (tmp_path / "t" / paths.commit(0)).unlink()
    table = lakeferry.Table(str(tmp_path / "t"))
    for ask in (
        lambda: table.redirect(str(tmp_path / "new"), data="reference", engine="local"),
        lambda: table.export(str(tmp_path / "e"), engine="local"),
    ):
        with pytest.raises(CorruptLog) as refused:
            ask()
        assert paths.classic_checkpoint(2) in str(refused.value.fields["path"])


@pytest.mark.parametrize("data", ["copy", "reference"])
def test_commits_before_a_gap_are_in_nobody_s_way(tmp_path: Path, data: str) -> None:
    """As a cleanup leaves them that couldn't delete everything."""
    make(tmp_path / "t")
    table = lakeferry.Table(str(tmp_path / "t"))
    table.checkpoint()
    (tmp_path / "t" / paths.commit(1)).unlink()
    assert table.inspect().earliest_version == 2
    table.redirect(str(tmp_path / "new"), data=data, engine="local")
    target = lakeferry.Table(str(tmp_path / "new"))
    assert table.verify(target).equal
    assert lakeferry.open(str(tmp_path / "new"), version=2).count_rows() == 4
    table.redirect_disable(engine="local")
    assert lakeferry.open(str(tmp_path / "t"), follow=False).count_rows() == 4
    done = table.export(str(tmp_path / "e"), engine="local")
    assert lakeferry.open(done.location).count_rows() == 4
