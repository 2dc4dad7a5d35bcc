"""Actions and fields that we don't know, of any shape, stop nothing and are lost nowhere."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakeferry.engines.spark.tasks import log_rows
from lakeferry.engines.spark.tasks.log_plan import (
    CheckpointTask,
    CommitTask,
    checkpoint_tasks,
    survey_file,
)
from lakeferry.errors import CorruptLog
from lakeferry.log import paths, references
from lakeferry.log.commit import encode_files
from lakeferry.log.decoding import decode_line
from lakeferry.log.lines import Lines
from lakeferry.log.rewrite import Absolute, Listed, Relative, relist_lines, rewrite_lines
from lakeferry.log.rewrite.listed_uris import LISTED_NAMES
from lakeferry.table import DeltaLog
from lakeferry.transfer.datasets.delta.named_files import commit_names
from tests.support.stores import DictStore

BEGIN: list[dict[str, Any]] = [
    {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}},
    {
        "metaData": {
            "id": "t",
            "schemaString": '{"type":"struct","fields":[{"name":"p","type":"string",'
            '"nullable":true,"metadata":{}}]}',
            "partitionColumns": [],
            "configuration": {"delta.checkpoint.writeStatsAsStruct": "true"},
        }
    },
]
SCALARS = (
    st.none() | st.booleans() | st.integers(-5, 2**40) | st.floats(-9, 9) | st.text(max_size=3)
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2)
    ),
    max_leaves=5,
)
NAMES = st.sampled_from(
    [
        "stats_parsed",
        "partitionValues_parsed",
        "raw",
        "order",
        "line",
        "kind",
        "key",
        "rank",
        "x",
        "",
    ]
) | st.text(max_size=4)
KNOWN = {"add", "remove", "cdc", "commitInfo", "txn", "metaData", "protocol", "domainMetadata"}
KNOWN |= {"sidecar", "checkpointMetadata"}
OPTIONAL = st.dictionaries(
    st.sampled_from(
        ["stats", "tags", "deletionVector", "baseRowId", "modificationTime", "dataChange"]
    ),
    st.none(),
    max_size=2,
)
FIELDS = {"path", "size", "partitionValues", "stats", "tags", "deletionVector", "dataChange"}
UNKNOWN = st.dictionaries(NAMES.filter(lambda name: name not in FIELDS), VALUES, max_size=3)
BESIDE = st.dictionaries(NAMES.filter(lambda name: name not in KNOWN), VALUES, max_size=2)


@st.composite
def lines(draw: st.DrawFn, kind: str, path: str) -> dict[str, Any]:
    value = {"path": path, "size": 1, "partitionValues": {}, "deletionTimestamp": 2**45}
    if kind == "add":
        del value["deletionTimestamp"]
    return {kind: draw(UNKNOWN) | value | draw(OPTIONAL), **draw(BESIDE)}


def commit(*actions: dict[str, Any]) -> bytes:
    return b"".join(json.dumps(action).encode() + b"\n" for action in actions)


@settings(max_examples=25)
@given(st.data())
def test_checkpoints_commits_and_both_replays(data: st.DataObject) -> None:
    alone = data.draw(st.lists(BESIDE, max_size=2))
    objects = {
        paths.commit(0): commit(*BEGIN, *alone, data.draw(lines("add", "a"))),
        paths.commit(1): commit(data.draw(lines("add", "b")), data.draw(lines("remove", "a"))),
    }
    store = DictStore(objects)
    log = DeltaLog(store)
    assert log.snapshot().files["path"].to_pylist() == ["b"]
    log.checkpoint()
    store.put_if_absent(paths.commit(2), commit(data.draw(lines("add", "c"))))
    after = log.snapshot()
    assert sorted(after.files["path"].to_pylist()) == ["b", "c"]
    # The next checkpoint has fields of the one before and of commits.
    log.checkpoint()
    final = DeltaLog(DictStore(store.objects)).snapshot()
    assert sorted(final.files["path"].to_pylist()) == ["b", "c"]
    assert final.tombstones["path"].to_pylist() == ["a"]
    for encoded in encode_files("add", after.files):
        again = Lines()
        again.read(encoded, "again")
        assert again.adds.num_rows == 1
    read_by_executors(store)
    for body in objects.values():
        there = rewrite_lines(body, Absolute("s3://b/t"))
        assert rewrite_lines(there, Relative("s3://b/t")) == body


ODD = [["a"], "text", 7, None, True, {"nested": [None]}]


@pytest.mark.parametrize("odd", ODD, ids=repr)
def test_an_unknown_action_beside_a_file_may_have_any_value(odd: Any) -> None:
    added = {"path": "a", "size": 1, "partitionValues": {}, "stats_parsed": odd}
    other = {"path": "b", "size": 1, "partitionValues": {}, "stats": '{"numRecords":3}'}
    body = commit(*BEGIN, {"add": added, "some_new_action": odd}, {"add": other})
    log = DeltaLog(DictStore({paths.commit(0): body + commit({"some_new_action": odd})}))
    log.checkpoint()
    files = log.snapshot().files
    stats = dict(zip(files["path"].to_pylist(), files["stats"].to_pylist(), strict=True))
    assert stats["b"] == '{"numRecords":3}'


LISTED = Listed.below("s3://b/t", pa.array([], LISTED_NAMES))
READERS: dict[str, Callable[[bytes], object]] = {
    "lines": lambda data: Lines().read(data, "a commit"),
    "one line": lambda data: decode_line(data.strip()),
    "references": lambda data: references.of_lines(data, "a commit"),
    "removed": lambda data: references.removed_in_lines(data, "a commit"),
    "rewrite": lambda data: rewrite_lines(data, Absolute("s3://b/t")),
    "export": lambda data: relist_lines(data, LISTED),
    "transfer": lambda data: commit_names(data, 1),
}
ODD_LINES = [
    rb'{"commitInfo":{"operation":"\ud800"}}',
    rb'{"commitInfo":"\ud800","add":null}',
    b'{"commitInfo":{"metric":NaN}}',
    b'\xef\xbb\xbf{"commitInfo":{}}',
    rb'{"some_new_action":["\ud800"]}',
    rb'{"\ud800":1}',
    b'\xef\xbb\xbf{"some_new_action":7}',
    rb'{"commitInfo":{},"some_new_action":"\ud800"}',
]


@pytest.mark.parametrize("reader", READERS.values(), ids=list(READERS))
@pytest.mark.parametrize("line", ODD_LINES)
def test_text_that_is_odd_and_decides_nothing_is_in_nobody_s_way(
    line: bytes, reader: Callable[[bytes], object]
) -> None:
    reader(line + b"\n")


VECTOR_OF_FLOATS = (
    b'"deletionVector":{"storageType":"u","pathOrInlineDv":"ab^-aqEH.-t@S}K{vb[*k^",'
    b'"offset":4.0,"sizeInBytes":40.0,"cardinality":6.0}'
)
LOOSE_LINES = [
    b'{"add":{"path":"a","size":1.0,"partitionValues":{"p":1}}}',
    b'{"add":{"path":"a","size":1.0,"partitionValues":{},' + VECTOR_OF_FLOATS + b"}}",
    b'{"remove":{"path":"a","size":1.0,"deletionTimestamp":1.0}}',
    b'{"remove":{"path":"a","size":1.0,' + VECTOR_OF_FLOATS + b"}}",
    b'{"cdc":{"path":"a","size":1.0,"partitionValues":{}}}',
]


@pytest.mark.parametrize("reader", READERS.values(), ids=list(READERS))
@pytest.mark.parametrize("line", LOOSE_LINES)
def test_whole_numbers_may_be_written_with_a_fraction(
    line: bytes, reader: Callable[[bytes], object]
) -> None:
    reader(line + b"\n")


@pytest.mark.parametrize("reader", READERS.values(), ids=list(READERS))
def test_a_file_action_with_such_text_is_corrupt(reader: Callable[[bytes], object]) -> None:
    """No table of ours can hold it, and what it says isn't to be left out."""
    with pytest.raises(CorruptLog):
        reader(rb'{"add":{"path":"a","size":1,"partitionValues":{"p":"\ud800"}}}' + b"\n")


def read_by_executors(store: DictStore) -> None:
    log = DeltaLog(store)
    listing = log.listing()
    newest = listing.segment(1)
    task = CommitTask(0, newest.deltas)
    if task.files:
        assert list(log_rows.read_commits(store, task, log_rows.Shape()))
    checkpoint = listing.segment().checkpoint
    assert checkpoint is not None
    looked = [survey_file(store, file) for file in checkpoint.files]
    shape = log_rows.shape_of(looked)
    found: list[str] = []
    each: CheckpointTask
    for each in checkpoint_tasks(looked, 2**20):
        for batch in log_rows.read_checkpoint(store, each, shape):
            rows = zip(batch["kind"].to_pylist(), batch["path"].to_pylist(), strict=True)
            found += [path for kind, path in rows if kind == "add"]
    assert sorted(found) == ["b", "c"]
