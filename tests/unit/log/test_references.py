from __future__ import annotations

import json
import re
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakeferry.errors import CorruptLog
from lakeferry.log import parquet, references
from lakeferry.log.parquet import SparseFile
from tests.support.history import (
    Append,
    Change,
    Checkpoint,
    Delete,
    DeleteRows,
    History,
    Kind,
    Layout,
    histories,
)

VECTOR = {"storageType": "u", "pathOrInlineDv": "ab^-aqEH.-t@S}K{vb[*k^", "sizeInBytes": 4}
VECTOR_FILE = "ab/deletion_vector_d2c639aa-8816-431a-aaf6-d3fe2512ff61.bin"


def lines(*actions: dict[str, Any]) -> bytes:
    return b"".join(json.dumps(action).encode() + b"\n" for action in actions)


def as_dict(table: pa.Table) -> dict[str, int | None]:
    assert table.schema == references.REFERENCES
    return dict(zip(table["path"].to_pylist(), table["size"].to_pylist(), strict=True))


def of_lines(data: bytes) -> dict[str, int | None]:
    return as_dict(references.of_lines(data, "x.json"))


def of_parquet(data: bytes) -> dict[str, int | None]:
    return as_dict(references.distinct_references(references.of_parquet(data, "x.parquet")))


def test_what_is_added_or_changed_is_referred_to_and_what_is_removed_is_not() -> None:
    data = lines(
        {"commitInfo": {"operation": '"add"'}},
        {"add": {"path": "a%20b", "size": 3}},
        {"remove": {"path": "gone", "size": 4}},
        {"cdc": {"path": "_change_data/c", "size": 5}},
        {"add": None, "txn": {"appId": "add", "version": 1}},
    )
    assert of_lines(data) == {"a%20b": 3, "_change_data/c": 5}


def test_a_vectors_file_is_referred_to_unless_it_is_inline() -> None:
    absolute = {"storageType": "p", "pathOrInlineDv": "s3://b/v.bin", "sizeInBytes": 4}
    inline = {"storageType": "i", "pathOrInlineDv": "wi5b=000010000siXQKl0rr91000f55c8Xg0@@D72"}
    data = lines(
        {"add": {"path": "a", "size": 1, "deletionVector": VECTOR}},
        {"add": {"path": "b", "size": 2, "deletionVector": VECTOR | {"offset": 9}}},
        {"add": {"path": "c", "size": 3, "deletionVector": absolute}},
        {"add": {"path": "d", "size": 4, "deletionVector": inline}},
        {"remove": {"path": "e", "deletionVector": absolute | {"pathOrInlineDv": "s3://b/w"}}},
    )
    vectors = {VECTOR_FILE: None, "s3://b/v.bin": None}
    assert of_lines(data) == {"a": 1, "b": 2, "c": 3, "d": 4} | vectors


@pytest.mark.parametrize(
    ("line", "found"),
    [
        (rb'{"\u0061dd":{"path":"x\u002fy","size":1}}', {"x/y": 1}),
        (b'{"add":{"path":"x","size":1.0}}', {"x": 1}),
        (b'{"add":{"path":"x","size":1,"more":{"deletionVector":3}}}', {"x": 1}),
        (b'{"cdc":{"path":"x"}}', {"x": None}),
        (b'  {"add" : {"size": 2, "path" : "x"} }\r', {"x": 2}),
        (b"", {}),
    ],
)
def test_a_line_may_be_spelled_in_any_way(line: bytes, found: dict[str, int | None]) -> None:
    assert of_lines(line) == found


@pytest.mark.parametrize(
    "line",
    [
        b'{"add":{"path":"x","size":1}',
        b'{"add":{"size":1}}',
        b'{"add":{"path":"x","size":1.5}}',
        b'{"add":["path"]}',
        b'["add"]',
        b'{"add":{"path":"\xff","size":1}}',
        rb'{"add":{"path":"\ud800","size":1.0}}',
        b'{"add":{"path":"x","deletionVector":{"storageType":"u","pathOrInlineDv":"short"}}}',
        b'{"add":{"path":"x","deletionVector":{"storageType":"z","pathOrInlineDv":"x"}}}',
    ],
)
def test_a_line_that_cannot_be_read_is_named(line: bytes) -> None:
    with pytest.raises(CorruptLog, match=r"line 2 of x\.json") as raised:
        of_lines(b'{"commitInfo":{}}\n' + line)
    assert raised.value.fields["path"] == "x.json"


def test_every_path_is_there_once_with_a_size_if_any_states_one() -> None:
    first = references.of_lines(lines({"add": {"path": "a", "size": 1}}), "1")
    second = references.of_lines(
        lines({"cdc": {"path": "a"}}, {"add": {"path": "b", "size": 2}}), "2"
    )
    assert as_dict(references.distinct_references([second, first, second])) == {"a": 1, "b": 2}
    assert as_dict(references.distinct_references([])) == {}


CHECKPOINTS = [
    Checkpoint(),
    Checkpoint(row_group_rows=2),
    Checkpoint(stats="both", unknown=True),
    Checkpoint(empty_structs=True),
]


@pytest.mark.parametrize("layout", [Layout(True, kind) for kind in ("u", "p", "i", None)])
@pytest.mark.parametrize("checkpoint", CHECKPOINTS)
def test_a_checkpoint_refers_to_what_is_live(layout: Layout, checkpoint: Checkpoint) -> None:
    history = History(layout).then(Append(7), DeleteRows(3), Delete(2), checkpoint)
    objects = history.objects()
    (name,) = (name for name in objects if name.endswith(".checkpoint.parquet"))
    found = of_parquet(objects[name])
    assert found
    assert found == _referred(_rows(objects[name]))


def test_only_the_columns_that_are_needed_have_to_be_there() -> None:
    history = History(Layout(True, "u")).then(
        Append(1_000), DeleteRows(5), Checkpoint(row_group_rows=200)
    )
    objects = history.objects()
    (name,) = (name for name in objects if name.endswith(".checkpoint.parquet"))
    data = objects[name]
    footer = parquet.footer_of(data)
    # Readers begin with so much of a file's end.
    end = parquet.Range(len(data) - parquet.FOOTER_GUESS_BYTES, parquet.FOOTER_GUESS_BYTES)
    spans = [end, *references.needed_ranges(footer, [1, 2])]
    sparse = SparseFile(len(data), [(span.start, data[span.start : span.end]) for span in spans])
    some = as_dict(references.distinct_references(references.of_parquet(sparse, "x", [1, 2])))
    whole = of_parquet(data)
    assert sum(span.length for span in spans[1:]) < len(data) // 4
    assert 0 < len(some) < len(whole)
    assert some.items() <= whole.items()


def test_a_parquet_file_that_is_none_is_named() -> None:
    with pytest.raises(CorruptLog) as raised:
        list(references.of_parquet(b"PAR1 this is none PAR1", "c.parquet"))
    assert raised.value.fields["path"] == "c.parquet"


@given(histories(), st.data())
def test_references_of_any_history_are_those_of_its_actions(
    history: History, data: st.DataObject
) -> None:
    objects = history.objects()
    commits = [name for name in objects if re.fullmatch(r"_delta_log/0\d{19}\.json", name)]
    name = data.draw(st.sampled_from(commits))
    actions = [json.loads(line) for line in objects[name].split(b"\n") if line.strip()]
    assert of_lines(objects[name]) == _referred(actions)


def test_a_v2_checkpoint_in_json_is_read_by_lines() -> None:
    layout = Layout(deletion_vectors="u", v2_checkpoints=True, change_data=True)
    history = History(layout).then(Append(4), Change(), Checkpoint(Kind.V2_JSON, sidecars=0))
    objects = history.objects()
    (name,) = (name for name in objects if "checkpoint" in name and name.endswith(".json"))
    assert len(of_lines(objects[name])) == 4


def _rows(data: bytes) -> list[dict[str, Any]]:
    import pyarrow.parquet as pq

    return [row for row in pq.read_table(pa.BufferReader(data)).to_pylist() if row.get("add")]


def _referred(actions: list[dict[str, Any]]) -> dict[str, int | None]:
    """Say the same by the protocol's own words, action by action."""
    found: dict[str, int | None] = {}
    for action in actions:
        for file in (action.get("add"), action.get("cdc")):
            if not file or not file.get("path"):
                continue
            found[file["path"]] = file["size"]
            vector = file.get("deletionVector") or {}
            text = vector.get("pathOrInlineDv", "")
            if vector.get("storageType") == "p":
                found[text] = None
            elif vector.get("storageType") == "u":
                found[_decoded(text)] = None
    return found


def _decoded(text: str) -> str:
    import base64
    import uuid

    # Z85 is RFC 1924's base 85 with another alphabet.
    z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
    b85 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
    name = uuid.UUID(bytes=base64.b85decode(text[-20:].translate(str.maketrans(z85, b85))))
    return f"{text[:-20]}/deletion_vector_{name}.bin".lstrip("/")
