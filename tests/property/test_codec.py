"""What is read and written again is the same, down to fields and actions nobody knows yet."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from lakeferry.errors import CorruptLog
from lakeferry.log import actions, checksum, last_checkpoint
from lakeferry.log.actions import (
    Action,
    CheckpointMetadata,
    CommitInfo,
    DomainMetadata,
    FileLine,
    Metadata,
    Protocol,
    Sidecar,
    Txn,
    UnknownLine,
    encode_line,
)
from lakeferry.log.checksum import Checksum
from lakeferry.log.decoding import decode_line
from lakeferry.log.last_checkpoint import Hint
from lakeferry.log.lines import Lines

LONGS = st.integers(-(2**63), 2**63 - 1)
INTS = st.integers(0, 2**31 - 1)
NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
STRING_MAPS = st.dictionaries(NAMES, NAMES, max_size=3)
JSON = st.recursive(
    st.none() | st.booleans() | LONGS | st.floats(allow_nan=False, allow_infinity=False) | NAMES,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(NAMES, inner, max_size=2),
    max_leaves=4,
)
UNKNOWN = st.dictionaries(NAMES.map(lambda name: f"x-{name}"), JSON, max_size=2)


def optional(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | values


PROTOCOLS = st.builds(Protocol, INTS, INTS, optional(st.lists(NAMES).map(tuple)), unknown=UNKNOWN)
METADATA = st.builds(
    Metadata,
    id=NAMES,
    schema_string=NAMES,
    partition_columns=st.lists(NAMES).map(tuple),
    configuration=STRING_MAPS,
    name=optional(NAMES),
    description=optional(NAMES),
    created_time=optional(LONGS),
    format_options=STRING_MAPS,
    unknown=UNKNOWN,
)
TXNS = st.builds(Txn, NAMES, LONGS, optional(LONGS), unknown=UNKNOWN)
DOMAINS = st.builds(DomainMetadata, NAMES, NAMES, st.booleans(), unknown=UNKNOWN)
SIDECARS = st.builds(Sidecar, NAMES, LONGS, LONGS, optional(STRING_MAPS), unknown=UNKNOWN)
TOPS = st.builds(CheckpointMetadata, LONGS, optional(STRING_MAPS), unknown=UNKNOWN)
INFOS = st.builds(CommitInfo, st.dictionaries(NAMES, JSON, max_size=3))
VALUES: st.SearchStrategy[Action] = st.one_of(
    PROTOCOLS, METADATA, TXNS, DOMAINS, SIDECARS, TOPS, INFOS
)


def spelled(value: object, data: st.DataObject) -> bytes:
    """Return JSON text in one of the ways in which writers spell it."""
    separators = data.draw(st.sampled_from([(",", ":"), (", ", ": "), (" ,", " :")]))
    ascii_only = data.draw(st.booleans())
    return json.dumps(value, separators=separators, ensure_ascii=ascii_only).encode()


@given(VALUES)
def test_every_action_survives_writing_and_reading(action: Action) -> None:
    line = encode_line(action)
    assert b"\n" not in line
    assert decode_line(line) == action


@given(VALUES, st.data())
def test_what_was_read_is_written_with_its_own_bytes(action: Action, data: st.DataObject) -> None:
    (name,) = json.loads(encode_line(action))
    whole: dict[str, Any] = {name: actions.as_json(action)}
    if data.draw(st.booleans()):
        whole |= {other: None for other in ("add", "remove", "txn", "cdc") if other != name}
    line = spelled(whole, data)
    read = decode_line(line)
    assert encode_line(read) == line
    assert read == action


@given(st.one_of(PROTOCOLS, METADATA, TXNS, DOMAINS, SIDECARS, TOPS), st.data())
def test_a_change_keeps_what_nobody_knows(action: Any, data: st.DataObject) -> None:
    (name,) = json.loads(encode_line(action))
    read: Any = decode_line(spelled({name: actions.as_json(action)}, data))
    again = json.loads(encode_line(actions.changed(read)))
    assert again == {name: actions.as_json(action)}
    for key, value in action.unknown.items():
        assert again[name][key] == value


@given(st.sampled_from(["add", "remove", "cdc"]), st.dictionaries(NAMES, JSON), st.data())
def test_lines_about_files_are_kept_as_text(
    name: str, value: dict[str, Any], data: st.DataObject
) -> None:
    line = spelled({name: value}, data)
    assert decode_line(line) == FileLine(name, line)
    assert encode_line(decode_line(line)) == line


@given(st.dictionaries(NAMES.map(lambda name: f"x-{name}"), JSON), st.data())
def test_unknown_actions_are_kept_as_text(value: dict[str, Any], data: st.DataObject) -> None:
    line = spelled(value, data)
    assert decode_line(line) == UnknownLine(line)


@given(st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
def test_any_bytes_are_an_action_or_a_corrupt_log(line: bytes) -> None:
    try:
        action = decode_line(line)
    except CorruptLog:
        return
    assert encode_line(action) == line


@given(st.lists(VALUES, max_size=5), st.sampled_from([b"\n", b"\r\n", b"\n\n"]), st.booleans())
def test_a_commit_is_read_line_by_line(found: list[Action], end: bytes, finished: bool) -> None:
    lines = Lines()
    lines.read(end.join(map(encode_line, found)) + (end if finished else b""), "commit")
    newest: dict[type, Any] = {type(action): action for action in found}
    assert lines.protocol == newest.get(Protocol)
    assert lines.metadata == newest.get(Metadata)
    assert lines.commit_info == newest.get(CommitInfo)
    assert lines.txns == {a.app_id: a for a in found if isinstance(a, Txn)}
    assert lines.domains == {a.domain: a for a in found if isinstance(a, DomainMetadata)}
    assert lines.sidecars == [a for a in found if isinstance(a, Sidecar)]


@given(st.integers(0, 2**63 - 1), optional(INTS), optional(INTS), optional(INTS), optional(INTS))
def test_hints_survive_writing_and_reading(
    version: int, size: int, parts: int, size_bytes: int, adds: int
) -> None:
    hint = Hint(version, size, parts, size_bytes, adds)
    data = last_checkpoint.encode_hint(hint)
    assert last_checkpoint.decode_hint(data) == hint
    falsified = json.loads(data) | {"version": version + 1}
    assert last_checkpoint.decode_hint(json.dumps(falsified).encode()) is None


@given(
    st.builds(
        Checksum,
        INTS,
        INTS,
        METADATA,
        PROTOCOLS,
        optional(NAMES),
        optional(LONGS),
        optional(st.lists(TXNS, max_size=2).map(tuple)),
        optional(st.lists(DOMAINS, max_size=2).map(tuple)),
        UNKNOWN.map(lambda more: {k: v for k, v in more.items() if v is not None}),
    )
)
def test_checksum_files_survive_writing_and_reading(stated: Checksum) -> None:
    assert checksum.decode_checksum(checksum.encode_checksum(stated)) == stated


@given(st.dictionaries(NAMES, JSON, max_size=4), st.data())
def test_the_checksum_of_json_is_that_of_its_meaning(
    value: dict[str, Any], data: st.DataObject
) -> None:
    shuffled = dict(data.draw(st.permutations(list(value.items()))))
    first = last_checkpoint.json_checksum(spelled(value, data))
    assert last_checkpoint.json_checksum(spelled(shuffled, data)) == first
    assert last_checkpoint.json_checksum(spelled(shuffled | {"checksum": "other"}, data)) == (
        first if "checksum" not in value else last_checkpoint.json_checksum(spelled(value, data))
    )
