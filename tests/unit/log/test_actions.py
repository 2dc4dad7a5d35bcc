"""Actions and their JSON: what is known, what is kept, what is refused."""

from __future__ import annotations

import json

import pytest

from lakeferry.errors import CorruptLog
from lakeferry.log import actions
from lakeferry.log.actions import (
    CommitInfo,
    DomainMetadata,
    FileLine,
    Metadata,
    Protocol,
    Sidecar,
    Txn,
    UnknownLine,
    changed,
    encode_line,
)
from lakeferry.log.decoding import decode_line


def test_a_protocol_with_features() -> None:
    line = b'{"protocol":{"minReaderVersion":3,"minWriterVersion":7,"readerFeatures":["a"],'
    line += b'"writerFeatures":["a","b"],"later":{"x":null}}}'
    protocol = decode_line(line)
    assert protocol == Protocol(3, 7, ("a",), ("a", "b"), {"later": {"x": None}})
    assert isinstance(protocol, Protocol)
    assert protocol.features == {"a", "b"}
    assert encode_line(protocol) == line


def test_metadata_as_delta_rs_writes_it() -> None:
    line = b'{"metaData":{"id":"1","name":null,"description":null,"format":{"provider":"parquet",'
    line += b'"options":{}},"schemaString":"{}","partitionColumns":["p"],"createdTime":5,'
    line += b'"configuration":{"a":"b"}}}'
    metadata = decode_line(line)
    assert metadata == Metadata("1", "{}", ("p",), {"a": "b"}, created_time=5)


def test_metadata_with_as_little_as_old_writers_give() -> None:
    metadata = decode_line(b'{"metaData":{"id":"1","schemaString":"{}","partitionColumns":[]}}')
    assert metadata == Metadata("1", "{}")


def test_a_change_is_written_anew_and_keeps_what_is_not_known() -> None:
    read = decode_line(
        b'{"metaData":{"id":"1","schemaString":"{}","configuration":{},"later":[1],'
        b'"format":{"provider":"parquet","options":{},"version":2}}}'
    )
    assert isinstance(read, Metadata)
    written = json.loads(encode_line(changed(read, name="n")))["metaData"]
    assert written["name"] == "n"
    assert written["later"] == [1]
    assert written["format"] == {"provider": "parquet", "options": {}, "version": 2}
    assert "description" not in written


def test_every_action_named_and_all_but_one_null() -> None:
    line = b'{"add":null,"txn":{"appId":"a","version":1},"remove":null,"protocol":null}'
    assert decode_line(line) == Txn("a", 1)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b'{"txn":{"appId":"a","version":-1,"lastUpdated":2}}', Txn("a", -1, 2)),
        (
            b'{"domainMetadata":{"domain":"d","configuration":"{}","removed":true}}',
            DomainMetadata("d", "{}", removed=True),
        ),
        (
            b'{"sidecar":{"path":"s","sizeInBytes":1,"modificationTime":2,"tags":{"a":"b"}}}',
            Sidecar("s", 1, 2, {"a": "b"}),
        ),
        (b'{"commitInfo":{"operation":"WRITE"}}', CommitInfo({"operation": "WRITE"})),
    ],
)
def test_small_actions(line: bytes, expected: actions.Action) -> None:
    assert decode_line(line) == expected
    assert encode_line(decode_line(line)) == line


def test_what_a_commit_says_of_itself_may_be_of_any_type() -> None:
    info = CommitInfo({"operation": 1, "inCommitTimestamp": True, "txnId": None})
    assert (info.operation, info.in_commit_timestamp, info.txn_id) == (None, None, None)
    info = CommitInfo({"operation": "WRITE", "inCommitTimestamp": 5, "txnId": "t"})
    assert (info.operation, info.in_commit_timestamp, info.txn_id) == ("WRITE", 5, "t")


def test_file_actions_and_unknown_ones_stay_text() -> None:
    add = b'{ "add" : {"path":"a", "size":1} }'
    assert decode_line(add) == FileLine("add", add)
    assert actions.as_json(decode_line(add)) == {"path": "a", "size": 1}
    later = b'{"later":{"a":1}}'
    assert decode_line(later) == UnknownLine(later)
    assert actions.as_json(decode_line(later)) == {"later": {"a": 1}}
    assert decode_line(b"{}") == UnknownLine(b"{}")


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"[]",
        b"null",
        b"{",
        b'{"txn":{"appId":"a","version":1}} {}',
        b'{"txn":{"appId":"a"}}',
        b'{"txn":{"appId":"a","version":"1"}}',
        b'{"txn":[]}',
        b'{"protocol":{"minReaderVersion":1.5,"minWriterVersion":2}}',
        b'{"protocol":{"minReaderVersion":1,"minWriterVersion":2,"readerFeatures":[1]}}',
        b'{"metaData":{"id":"1","configuration":{"a":1}}}',
        b'{"txn":{"appId":"a","version":9223372036854775808}}',
        b'{"txn":{"appId":"a","version":1,"lastUpdated":-9223372036854775809}}',
        b'{"txn":{"appId":"a","version":1e300}}',
        b'{"protocol":{"minReaderVersion":2147483648,"minWriterVersion":2}}',
        b'{"metaData":{"id":"1","createdTime":9223372036854775808}}',
        b'{"sidecar":{"path":"s","sizeInBytes":9223372036854775808}}',
        b'{"checkpointMetadata":{"version":9223372036854775808}}',
        b'{"txn":{"appId":"a","version":1},"add":{"path":"a","size":1}}',
        b'{"commitInfo":' + b'{"a":' * 100_000,
    ],
)
def test_bytes_that_are_no_action(line: bytes) -> None:
    with pytest.raises(CorruptLog):
        decode_line(line)


@pytest.mark.parametrize(
    ("line", "values"),
    [
        (b'{"commitInfo":{"operation":"WRITE","a":1e400}}', {"operation": "WRITE"}),
        (b'{"commitInfo":{"operation":"WRITE","a":"\\ud800"}}', {"operation": "WRITE"}),
        (b'{"commitInfo":{"a":{"b":["\\udc00"]},"n":1},"add":null}', {"n": 1}),
        (b'{"commitInfo":{"a":"\xff"}}', {}),
        (b'{"commitInfo":"x"}', {}),
    ],
)
def test_odd_provenance_is_kept_as_text_with_what_can_be_read(
    line: bytes, values: dict[str, object]
) -> None:
    info = decode_line(line)
    assert info == CommitInfo(values)
    assert encode_line(info) == line


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b'{"txn":{"appId":"a","version":7.0,"lastUpdated":1e3}}', Txn("a", 7, 1000)),
        (b'{"protocol":{"minReaderVersion":1.0,"minWriterVersion":2}}', Protocol(1, 2)),
    ],
)
def test_whole_numbers_may_be_written_as_fractions(line: bytes, expected: actions.Action) -> None:
    assert decode_line(line) == expected
    assert encode_line(decode_line(line)) == line


def test_properties_that_are_null_are_none_and_stay() -> None:
    line = b'{"metaData":{"id":"1","configuration":{"a":null,"b":"1"},'
    line += b'"format":{"provider":"parquet","options":{"c":null,"d":"2"}}}}'
    found = decode_line(line)
    assert isinstance(found, Metadata)
    assert (found.configuration, found.format_options) == ({"b": "1"}, {"d": "2"})
    assert encode_line(found) == line
    other = actions.as_json(changed(found, configuration={"b": "3"}))
    assert other["configuration"] == {"a": None, "b": "3"}
    assert other["format"]["options"] == {"c": None, "d": "2"}
    assert actions.as_json(changed(found, configuration={"a": "4"}))["configuration"] == {"a": "4"}
