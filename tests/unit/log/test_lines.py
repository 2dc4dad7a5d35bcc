"""Files of lines: commits, compacted logs and JSON checkpoints."""

from __future__ import annotations

import tracemalloc

import pytest

from lakeferry.errors import CorruptLog
from lakeferry.log import arrow_versions, file_actions
from lakeferry.log import lines as log_lines
from lakeferry.log.file_actions import RAW
from lakeferry.log.latest_actions import LatestActions
from lakeferry.log.lines import (
    ORDER,
    Lines,
    each_line,
    line_blocks,
    read_protocol_and_metadata,
)
from lakeferry.log.rewrite import Absolute, rewrite_lines

ADD = b'{"add":{"path":"a","partitionValues":{"p":null},"size":3,"modificationTime":1,'
ADD += b'"dataChange":true,"stats":"{}","tags":{"t":"1"},"later":[1]}}'
REMOVE = b'{"remove":{"path":"b","deletionVector":{"storageType":"u","pathOrInlineDv":"x",'
REMOVE += b'"offset":4,"sizeInBytes":5,"cardinality":6}}}'


def read(*files_of_lines: bytes) -> Lines:
    lines = Lines()
    for number, data in enumerate(files_of_lines):
        lines.read(data, f"file {number}")
    return lines


def test_file_actions_become_rows_with_their_text_beside_them() -> None:
    lines = read(ADD + b"\r\n\n  \n" + REMOVE)
    (add,) = arrow_versions.to_rows(lines.adds)
    assert add["path"] == "a"
    assert add["partitionValues"] == {"p": None}
    assert add["tags"] == {"t": "1"}
    assert add[RAW.name] == ADD
    assert add["deletionVector"] is None
    (remove,) = lines.removes.to_pylist()
    assert remove["deletionVector"]["offset"] == 4
    assert remove["deletionVector"]["maxRowIndex"] is None
    assert (remove["size"], remove[RAW.name]) == (None, REMOVE)
    assert add[ORDER.name] < remove[ORDER.name]
    assert lines.adds.schema.names == [*file_actions.ADD.names, RAW.name, ORDER.name]


def test_the_newest_of_several_files_wins() -> None:
    first = b'{"txn":{"appId":"a","version":1}}\n{"commitInfo":{"n":1}}\n'
    first += b'{"protocol":{"minReaderVersion":1,"minWriterVersion":1}}\n'
    second = b'{"txn":{"appId":"a","version":0}}\n'
    second += b'{"protocol":{"minReaderVersion":1,"minWriterVersion":2}}\n{"cdc":{"path":"c"}}'
    lines = read(first, second)
    assert lines.txns["a"].version == 0
    assert lines.protocol is not None
    assert lines.protocol.min_writer_version == 2
    assert lines.commit_info is None
    assert lines.cdc_count == 1


def test_many_rows_come_in_order() -> None:
    count = 40_000
    data = b"\n".join(b'{"add":{"path":"%d","size":%d}}' % (n, n) for n in range(count))
    table = read(data).adds
    assert table["size"].to_pylist() == list(range(count))
    assert table[ORDER.name].to_pylist() == sorted(table[ORDER.name].to_pylist())


def test_nothing_is_an_empty_table() -> None:
    lines = read(b"", b"\n\r\n", b'{"later":1}\n{}')
    assert lines.adds.num_rows == lines.removes.num_rows == 0
    assert lines.protocol is None


@pytest.mark.parametrize(
    "line",
    [
        b'{"add":{"size":1}}',
        b'{"add":{"path":"a"}}',
        b'{"add":{"path":"a","size":9223372036854775808}}',
        b'{"add":{"path":"a","size":1.5}}',
        b'{"add":{"path":"a","size":"1"}}',
        b'{"add":{"path":"a","size":1e300}}',
        b'{"add":{"path":"a","size":1,"partitionValues":{"p":{}}}}',
        b'{"add":{"path":"a","size":1.0,"partitionValues":{"p":"\\ud800"}}}',
        b'{"add":[]}',
        b'{"add":{"path":"\xff","size":1}}',
        b'{"add":{"path":"\\ud800","size":1}}',
        b'{"remove":{"path":null}}',
        b'{"remove":{"path":"b","deletionVector":{"storageType":"u"}}}',
        b'{"add":{"path":"a","size":1},"remove":{"path":"a"}}',
        b'{"txn":{"appId":"a"}}',
        b"not json",
        b'{"add":',
        b"[1]",
    ],
)
def test_a_line_that_can_t_be_read_is_named(line: bytes) -> None:
    with pytest.raises(CorruptLog) as refused:
        read(b'{"commitInfo":{}}\n' + line)
    assert refused.value.fields["path"] == "file 0"
    assert "line 2" in str(refused.value)


def test_what_other_json_libraries_take_is_taken() -> None:
    line = b'{"add":{"path":"a","size":3.0,"modificationTime":1e3,"partitionValues":'
    line += b'{"i":1,"f":1.50,"b":true,"s":"x","n":null},"deletionVector":{"storageType":"u",'
    line += b'"pathOrInlineDv":"x","sizeInBytes":5.0,"cardinality":6}},"txn":null}'
    (add,) = arrow_versions.to_rows(read(line).adds)
    assert (add["size"], add["modificationTime"], add[RAW.name]) == (3, 1000, line)
    assert add["partitionValues"] == {"i": "1", "f": "1.50", "b": "true", "s": "x", "n": None}
    assert add["deletionVector"]["sizeInBytes"] == 5
    (remove,) = read(b'{"remove":{"path":"a","size":3.0}}').removes.to_pylist()
    assert remove["size"] == 3


def test_odd_provenance_costs_nothing_else() -> None:
    lines = read(b'{"commitInfo":{"operation":"WRITE","a":"\\ud800"}}\n' + ADD)
    assert lines.adds.num_rows == 1
    assert lines.commit_info is not None
    assert lines.commit_info.operation == "WRITE"


def test_protocol_and_metadata_are_read_whatever_is_beside_them() -> None:
    found = LatestActions()
    data = b'{"add":{"shape":1}}\n{"txn":[]}\n{"protocol":{"minReaderVersion":3,'
    data += b'"minWriterVersion":7}}\n\n{"metaData":{"id":"1"},"add":null}\n'
    read_protocol_and_metadata(found, data, "file")
    assert found.protocol is not None
    assert found.metadata is not None
    assert found.metadata.id == "1"
    with pytest.raises(CorruptLog, match="line 2 of file"):
        read_protocol_and_metadata(found, b"{}\n{", "file")


@pytest.mark.parametrize("block_bytes", [1, 7, 64, 1_000])
def test_lines_are_the_same_in_blocks_of_any_size(
    monkeypatch: pytest.MonkeyPatch, block_bytes: int
) -> None:
    monkeypatch.setattr(log_lines, "_BLOCK_BYTES", block_bytes)
    for data in (b"", b"\n", b"a", b"a\n", b"\n\na\r\nbc\n\n", b"x" * 50 + b"\ny\n" + b"z" * 90):
        assert b"\n".join(line_blocks(data)) == data
        seen: list[bytes] = []
        each_line(data, "file", seen.append)
        assert seen == [line.strip() for line in data.split(b"\n") if line.strip()]
    with pytest.raises(CorruptLog, match="line 4 of file"):
        Lines().read(ADD + b"\n\n" + REMOVE + b"\n{\n" + ADD, "file")


def test_few_lines_of_many_bytes_become_several_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_lines, "_CHUNK_BYTES", 2 * len(ADD))
    lines = read(b"\n".join([ADD] * 5))
    assert [len(batch) for batch in lines.adds.to_batches()] == [2, 2, 1]


def test_without_file_actions_the_rest_is_the_same() -> None:
    data = ADD + b'\n{"commitInfo":{"operation":"WRITE"}}\n' + REMOVE
    data += b'\n{"protocol":{"minReaderVersion":1,"minWriterVersion":2}}'
    whole, bare = read(data), Lines(keeps_files=False)
    bare.read(data, "file 0")
    assert (bare.protocol, bare.commit_info) == (whole.protocol, whole.commit_info)
    assert whole.has_files
    assert not bare.has_files
    with pytest.raises(CorruptLog, match="line 1 of file"):
        Lines(keeps_files=False).read(b'{"add":{"size":3}}', "file")


@pytest.mark.parametrize("work", ["bare", "rewritten"])
def test_python_objects_exist_for_one_block_of_a_huge_commit(
    monkeypatch: pytest.MonkeyPatch, work: str
) -> None:
    monkeypatch.setattr(log_lines, "_BLOCK_BYTES", 64 * 1024)
    data = b"\n".join([ADD] * 20_000)
    tracemalloc.start()
    try:
        if work == "bare":
            Lines(keeps_files=False).read(data, "file")
            result_bytes = 0
        else:
            # The blocks of the result, and the result.
            result_bytes = 2 * len(rewrite_lines(data, Absolute("file:///t")))
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(data) > 2_000_000
    assert peak_bytes < result_bytes + 1_000_000
