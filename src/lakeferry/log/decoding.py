"""Decodes JSON into actions.

Strict about meaning, but tolerant about spelling: a wrong type is
:class:`~lakeferry.errors.CorruptLog`, while whole numbers in another spelling, and odd
provenance, are accepted. :mod:`lakeferry.log.actions` does the encoding.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Annotated, Any, TypeVar

import msgspec

from lakeferry.errors import CorruptLog
from lakeferry.log.actions import (
    Action,
    CheckpointMetadata,
    CommitInfo,
    DomainMetadata,
    FileLine,
    Json,
    Metadata,
    Protocol,
    Sidecar,
    Txn,
    UnknownLine,
)

Long = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
Int = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]

# The typed JSON of each action's value, so that a wrong type is found while it is read. Unknown
# fields are found by comparing with the plain object; that is fast enough only for small actions.


class _Protocol(msgspec.Struct):
    minReaderVersion: Int
    minWriterVersion: Int
    readerFeatures: list[str] | None = None
    writerFeatures: list[str] | None = None


class _Format(msgspec.Struct):
    provider: str = "parquet"
    options: dict[str, str | None] | None = None


class _Metadata(msgspec.Struct):
    id: str
    schemaString: str | None = None
    partitionColumns: list[str] | None = None
    configuration: dict[str, str | None] | None = None
    name: str | None = None
    description: str | None = None
    createdTime: Long | None = None
    format: _Format | None = None


class _Txn(msgspec.Struct):
    appId: str
    version: Long
    lastUpdated: Long | None = None


class _Domain(msgspec.Struct):
    domain: str
    configuration: str = ""
    removed: bool = False


class _Sidecar(msgspec.Struct):
    path: str
    sizeInBytes: Long
    modificationTime: Long = 0
    tags: dict[str, str | None] | None = None


class _CheckpointMetadata(msgspec.Struct):
    version: Long
    tags: dict[str, str | None] | None = None


def _protocol(value: _Protocol, unknown: Json, raw: bytes | None) -> Protocol:
    return Protocol(
        value.minReaderVersion,
        value.minWriterVersion,
        None if value.readerFeatures is None else tuple(value.readerFeatures),
        None if value.writerFeatures is None else tuple(value.writerFeatures),
        unknown,
        raw,
    )


def _metadata(value: _Metadata, unknown: Json, raw: bytes | None) -> Metadata:
    form = value.format or _Format()
    return Metadata(
        id=value.id,
        schema_string=value.schemaString or "",
        partition_columns=tuple(value.partitionColumns or ()),
        configuration=_set(value.configuration),
        name=value.name,
        description=value.description,
        created_time=value.createdTime,
        format_provider=form.provider,
        format_options=_set(form.options),
        unknown=unknown,
        raw=raw,
    )


def _set(values: dict[str, str | None] | None) -> Mapping[str, str]:
    """Return the values that aren't null."""
    return {key: value for key, value in (values or {}).items() if value is not None}


def _txn(value: _Txn, unknown: Json, raw: bytes | None) -> Txn:
    return Txn(value.appId, value.version, value.lastUpdated, unknown, raw)


def _domain(value: _Domain, unknown: Json, raw: bytes | None) -> DomainMetadata:
    return DomainMetadata(value.domain, value.configuration, value.removed, unknown, raw)


def _sidecar(value: _Sidecar, unknown: Json, raw: bytes | None) -> Sidecar:
    return Sidecar(
        value.path,
        value.sizeInBytes,
        value.modificationTime,
        _tags(value.tags),
        unknown,
        raw,
    )


def _checkpoint_metadata(
    value: _CheckpointMetadata, unknown: Json, raw: bytes | None
) -> CheckpointMetadata:
    return CheckpointMetadata(value.version, _tags(value.tags), unknown, raw)


def _tags(tags: dict[str, str | None] | None) -> Mapping[str, str] | None:
    return None if tags is None else {key: value or "" for key, value in tags.items()}


_KNOWN: dict[str, tuple[type[msgspec.Struct], Callable[[Any, Json, bytes | None], Action]]] = {
    "protocol": (_Protocol, _protocol),
    "metaData": (_Metadata, _metadata),
    "txn": (_Txn, _txn),
    "domainMetadata": (_Domain, _domain),
    "sidecar": (_Sidecar, _sidecar),
    "checkpointMetadata": (_CheckpointMetadata, _checkpoint_metadata),
}
_DECODERS = {name: msgspec.json.Decoder(kind) for name, (kind, _) in _KNOWN.items()}
_FIELDS = {name: frozenset(kind.__struct_fields__) for name, (kind, _) in _KNOWN.items()}
_OBJECT = msgspec.json.Decoder(Json)
_RAW_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])

_FILE_ACTIONS = frozenset({"add", "remove", "cdc"})
_EXACT_BELOW = 2**53
FileActions = TypeVar("FileActions", bound=msgspec.Struct)


def decode_value(name: str, value: bytes, line: bytes | None = None) -> Action:
    """Return the action called ``name`` whose value is the JSON text ``value``.

    ``line`` is the whole line with the value, if there is one.
    """
    if name in _FILE_ACTIONS:
        return FileLine(name, line or b'{"' + name.encode() + b'":' + value + b"}")
    try:
        plain = _OBJECT.decode(value)
        if name == "commitInfo":
            return CommitInfo(plain, line)
        typed = _typed(name, value, plain)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as broken:
        if name == "commitInfo":
            return _provenance(value, line)
        raise CorruptLog(f"a {name} action can't be read", cause=str(broken)) from broken
    known = _FIELDS[name]
    unknown = {key: item for key, item in plain.items() if key not in known}
    if name == "metaData":
        unknown |= _unknown_within(plain)
    return _KNOWN[name][1](typed, unknown, line)


def _typed(name: str, value: bytes, plain: Json) -> msgspec.Struct:
    try:
        typed: msgspec.Struct = _DECODERS[name].decode(value)
    except msgspec.ValidationError:
        return msgspec.convert(with_whole_numbers(plain), _KNOWN[name][0])
    return typed


def with_whole_numbers(values: Json) -> Json:
    """Return the values with whole numbers written as ``1.0`` as integers."""
    return {
        key: int(value)
        # Above this limit, a float may stand for several integers.
        if isinstance(value, float) and value.is_integer() and abs(value) <= _EXACT_BELOW
        else value
        for key, value in values.items()
    }


def _unknown_within(metadata: Json) -> Json:
    """Return the parts of metadata that our values don't hold: nulls and unknown fields."""
    kept: Json = {}
    if nulls := _nulls(metadata.get("configuration")):
        kept["configuration"] = nulls
    if isinstance(form := metadata.get("format"), dict):
        further = {key: item for key, item in form.items() if key not in ("provider", "options")}
        if nulls := _nulls(form.get("options")):
            further["options"] = nulls
        if further:
            kept["format"] = further
    return kept


def _nulls(values: object) -> Json:
    found = values.items() if isinstance(values, dict) else ()
    return {key: None for key, value in found if value is None}


def _provenance(value: bytes, line: bytes | None) -> CommitInfo:
    """Return the readable fields of a ``commitInfo`` whose JSON we don't accept elsewhere."""
    try:
        found = json.loads(value)
    except (ValueError, RecursionError):
        found = None
    return CommitInfo(readable(found) if isinstance(found, dict) else {}, line)


def readable(values: Json) -> Json:
    """Return the values that any JSON library can write again."""
    kept = {}
    for key, value in values.items():
        try:
            json.dumps({key: value}, allow_nan=False, ensure_ascii=False).encode()
        except (ValueError, RecursionError):
            continue
        kept[key] = value
    return kept


def decode_line(line: bytes) -> Action:
    """Return the action in one line of a commit."""
    try:
        values = _RAW_OBJECT.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as broken:
        if (odd := decode_odd(line)) is not None:
            return odd
        raise CorruptLog("a line of the log can't be read", cause=str(broken)) from broken
    # Some writers name every action on each line, and all but one are null.
    present = [
        name
        for name in values
        if (name in _KNOWN or name in _FILE_ACTIONS or name == "commitInfo")
        and bytes(values[name]) != b"null"
    ]
    if not present:
        return UnknownLine(line)
    if len(present) > 1:
        raise CorruptLog(
            "a line of the log holds more than one action", cause=", ".join(sorted(present))
        )
    return decode_value(present[0], bytes(values[present[0]]), line)


def decode_files(line: bytes, decoder: msgspec.json.Decoder[FileActions]) -> FileActions:
    """Return a line's file actions, as far as the decoder's type has them.

    Whole numbers may be written as ``1.0``, which delta-spark's JSON library accepts. Raises the
    decoder's errors.
    """
    try:
        return decoder.decode(line)
    except msgspec.ValidationError:
        return _convert_files(line, decoder.type)


def _convert_files(line: bytes, kind: type[FileActions]) -> FileActions:
    found = json.loads(line)
    if not isinstance(found, dict):
        raise CorruptLog("a line of the log isn't an object")
    whole = {
        name: with_whole_numbers(value) if isinstance(value, dict) else value
        for name, value in found.items()
        if name in kind.__struct_fields__
    }
    converted = msgspec.convert(whole, kind)
    # Text that isn't valid UTF-8 is found here, where the line is known.
    msgspec.json.encode(converted)
    return converted


def decode_odd(line: bytes) -> CommitInfo | UnknownLine | None:
    """Return a line that decides nothing about the table and whose JSON is only odd.

    Examples are half of a surrogate pair, which our strings can't hold, or a NaN. ``None`` for
    any other line: a line with a known action other than ``commitInfo`` must be understood.
    """
    try:
        values = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(values, dict):
        return None
    named = {name for name, value in values.items() if value is not None}
    if named & (_KNOWN.keys() | _FILE_ACTIONS):
        return None
    if "commitInfo" not in named:
        return UnknownLine(line)
    found = values["commitInfo"]
    return CommitInfo(readable(found) if isinstance(found, dict) else {}, line)
