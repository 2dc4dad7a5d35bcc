"""Compacted logs and checkpoints that say two things of one thing aren't trusted."""

from __future__ import annotations

import io
import json
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakeferry.engines.spark.tasks import log_rows
from lakeferry.engines.spark.tasks.log_plan import CommitTask
from lakeferry.errors import CorruptLog
from lakeferry.log import paths, replay
from lakeferry.table import DeltaLog
from tests.support.stores import DictStore

PROTOCOL = {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}
METADATA = {"metaData": {"id": "t", "schemaString": '{"type":"struct","fields":[]}'}}
OTHER_METADATA = {"metaData": {"id": "u", "schemaString": '{"type":"struct","fields":[]}'}}


def lines(*actions: dict[str, Any]) -> bytes:
    return b"".join(json.dumps(action).encode() + b"\n" for action in actions)


def add(path: str, size: int = 1) -> dict[str, Any]:
    common = {"partitionValues": {}, "modificationTime": 0, "dataChange": True}
    return {"add": {"path": path, "size": size, **common}}


def remove(path: str) -> dict[str, Any]:
    return {"remove": {"path": path, "deletionTimestamp": 2**45, "dataChange": True}}


def txn(version: int) -> dict[str, Any]:
    return {"txn": {"appId": "a", "version": version}}


COMMITS = {
    paths.commit(0): lines(PROTOCOL, METADATA),
    paths.commit(1): lines(add("a"), add("b"), txn(1)),
    paths.commit(2): lines(remove("a"), txn(2)),
    paths.commit(3): lines(add("c")),
}
UNRECONCILED = {
    "a file added and removed": lines(remove("a"), add("a"), add("b"), txn(2)),
    "a file removed and added": lines(add("a"), remove("a"), add("b"), txn(2)),
    "a file twice": lines(add("b"), add("b", 9), remove("a"), txn(2)),
    "a file in two spellings": lines(add("b"), add("./b"), remove("a"), txn(2)),
    "a file in an encoded spelling": lines(add("b"), remove("%62"), add("a"), txn(2)),
    "a file by its absolute path": lines(add("a"), remove("memory://dict/a"), add("b"), txn(2)),
    "nothing at all": b"",
    "nothing but line feeds": b"\n\n",
    "a transaction twice": lines(add("b"), remove("a"), txn(2), txn(1)),
    "metadata twice": lines(METADATA, OTHER_METADATA, add("b"), remove("a"), txn(2)),
    "the protocol twice": lines(PROTOCOL, PROTOCOL, add("b"), remove("a"), txn(2)),
}


@pytest.mark.parametrize("body", UNRECONCILED.values(), ids=UNRECONCILED)
def test_the_commits_are_read_in_place_of_an_unreconciled_compacted_log(body: bytes) -> None:
    objects = COMMITS | {paths.compacted(1, 2): body}
    warnings: list[str] = []
    log = DeltaLog(DictStore(objects), warn=warnings.append)
    found = log.snapshot()
    assert found.files["path"].to_pylist() == ["b", "c"]
    assert found.txns["a"].version == 2
    assert found.metadata.id == "t"
    assert log.state().metadata.id == "t"
    assert log.small_snapshot().txns["a"].version == 2
    assert paths.compacted(1, 2) in warnings[0]
    written = log.checkpoint()
    assert DeltaLog(DictStore(log.store.objects)).snapshot().num_files == 2  # type: ignore[attr-defined]
    assert written.version == 3


@pytest.mark.parametrize("body", UNRECONCILED.values(), ids=UNRECONCILED)
def test_without_the_commits_it_is_corrupt(body: bytes) -> None:
    objects = COMMITS | {paths.compacted(1, 2): body}
    del objects[paths.commit(1)]
    with pytest.raises(CorruptLog) as refused:
        DeltaLog(DictStore(objects)).snapshot()
    assert refused.value.fields["path"] == paths.compacted(1, 2)


@pytest.mark.parametrize("body", UNRECONCILED.values(), ids=UNRECONCILED)
def test_executors_refuse_it_too(body: bytes) -> None:
    store = DictStore(COMMITS | {paths.compacted(1, 2): body})
    task = CommitTask(0, DeltaLog(store).segment().deltas)
    with pytest.raises(CorruptLog) as refused:
        list(log_rows.read_commits(store, task, log_rows.Shape()))
    assert refused.value.fields["path"] == paths.compacted(1, 2)


FROM_ZERO = {
    "no protocol": (lines(METADATA, add("b"), remove("a"), txn(2)), "protocol"),
    "no metadata": (lines(PROTOCOL, add("b"), remove("a"), txn(2)), "metaData"),
    "neither": (lines(add("b"), remove("a"), txn(2)), "protocol"),
}


@pytest.mark.parametrize(("body", "lacking"), FROM_ZERO.values(), ids=FROM_ZERO)
def test_a_compacted_log_from_version_0_has_protocol_and_metadata(
    body: bytes, lacking: str
) -> None:
    objects = COMMITS | {paths.compacted(0, 2): body}
    warnings: list[str] = []
    log = DeltaLog(DictStore(objects), warn=warnings.append)
    assert log.snapshot().files["path"].to_pylist() == ["b", "c"]
    assert log.state().metadata.id == "t"
    assert f"it begins at version 0 and has no {lacking} action" in warnings[0]
    task = CommitTask(0, log.segment().deltas)
    with pytest.raises(CorruptLog, match=lacking):
        list(log_rows.read_commits(log.store, task, log_rows.Shape()))


def test_a_vector_and_a_file_without_it_are_two_things_in_a_compacted_log() -> None:
    vector = {"storageType": "i", "pathOrInlineDv": "x", "sizeInBytes": 1, "cardinality": 1}
    with_vector = {"add": {**add("b")["add"], "deletionVector": vector}}
    body = lines(with_vector, remove("b"), remove("a"), txn(2))
    store = DictStore(COMMITS | {paths.compacted(1, 2): body})
    assert DeltaLog(store).snapshot().files["path"].to_pylist() == ["b", "c"]
    assert ("GET", paths.commit(1)) not in store.calls.log


def test_a_reconciled_compacted_log_is_read() -> None:
    body = lines(add("b"), remove("a"), txn(2))
    store = DictStore(COMMITS | {paths.compacted(1, 2): body})
    assert DeltaLog(store).snapshot().files["path"].to_pylist() == ["b", "c"]
    assert ("GET", paths.commit(1)) not in store.calls.log


def parquet(*actions: dict[str, Any]) -> bytes:
    sink = io.BytesIO()
    names = {name for action in actions for name in action}
    columns = {name: [action.get(name) for action in actions] for name in names}
    for name in ("add", "remove"):
        for row in columns.get(name, ()):
            if row is not None:
                row.pop("partitionValues", None)
    pq.write_table(pa.table(columns), sink)
    return sink.getvalue()


BEGIN = (PROTOCOL, METADATA)
CHECKPOINTS = {
    "a file added and removed": (*BEGIN, add("a"), remove("a"), add("b"), txn(2)),
    "a file twice": (*BEGIN, add("b"), add("b", 9), txn(2)),
    "two protocols": (
        *BEGIN,
        {"protocol": {"minReaderVersion": 1, "minWriterVersion": 4}},
        add("b"),
        txn(2),
    ),
    "two ids": (*BEGIN, OTHER_METADATA, add("b"), txn(2)),
    "a transaction twice": (*BEGIN, add("b"), txn(1), txn(2)),
}


@pytest.mark.parametrize("actions", CHECKPOINTS.values(), ids=CHECKPOINTS)
@pytest.mark.parametrize("kind", ["parquet", "json"])
def test_a_checkpoint_that_contradicts_itself_is_worked_around(actions: Any, kind: str) -> None:
    name = paths.classic_checkpoint(2)
    body = parquet(*json.loads(json.dumps(actions)))
    if kind == "json":
        name = name.replace(
            "checkpoint.parquet", "checkpoint.80a083e8-7026-4e79-81be-64bd76c43a11.json"
        )
        body = lines({"checkpointMetadata": {"version": 2}}, *actions)
    warnings: list[str] = []
    log = DeltaLog(DictStore(COMMITS | {name: body}), warn=warnings.append)
    found = log.snapshot()
    assert found.files["path"].to_pylist() == ["b", "c"]
    assert found.metadata.id == "t"
    assert warnings
    objects = {key: value for key, value in COMMITS.items() if key != paths.commit(1)}
    with pytest.raises(CorruptLog) as refused:
        DeltaLog(DictStore(objects | {name: body})).snapshot()
    assert refused.value.fields["path"] == name


def test_no_checkpoint_is_written_of_a_large_table_with_one_file_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(replay, "MOST_CHECKED", 2)
    twice = parquet(*json.loads(json.dumps(CHECKPOINTS["a file twice"])))
    store = DictStore(COMMITS | {paths.classic_checkpoint(2): twice})
    with pytest.raises(CorruptLog):
        DeltaLog(store).checkpoint()
    assert paths.classic_checkpoint(3) not in store.objects
