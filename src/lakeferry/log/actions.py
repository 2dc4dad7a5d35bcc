"""Actions, and the JSON they are written in.

Implements the protocol's "Actions". The few actions that a person reads
(protocol, metadata, transactions, domains, commit info) are frozen values;
file actions, of which there may be a million, live in Arrow tables
(:mod:`lakeferry.log.files`) and are here only as the text of their line.

Invariants:

* what isn't known survives: unknown fields of a known action and unknown
  actions come out as they went in;
* an action that nobody changed is written with the very bytes it was read from;
* a null among a table's properties or its format's options means that there is
  none, and stays where it is;
* numbers fit the types that the protocol gives them; one that is whole may be
  written as ``1.0``;
* bytes that are no valid action raise :class:`~lakeferry.errors.CorruptLog`;
  only provenance (``commitInfo``), which decides nothing about a table's files,
  is kept as text with whatever can be read of it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, TypeVar

import msgspec

from lakeferry.errors import CorruptLog

Json = dict[str, Any]
Long = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
Int = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]

READER_FEATURES_VERSION = 3
WRITER_FEATURES_VERSION = 7


def _no_fields() -> Mapping[str, object]:
    return {}


@dataclass(frozen=True, slots=True)
class Protocol:
    """Which reader and writer a table asks for, and by which features."""

    min_reader_version: int
    min_writer_version: int
    reader_features: tuple[str, ...] | None = None
    writer_features: tuple[str, ...] | None = None
    unknown: Mapping[str, object] = field(default_factory=_no_fields)
    raw: bytes | None = field(default=None, compare=False, repr=False)

    @property
    def features(self) -> frozenset[str]:
        """Every feature that is named, for readers or for writers."""
        return frozenset(self.reader_features or ()) | frozenset(self.writer_features or ())

    @property
    def unordered(self) -> tuple[int, int, frozenset[str], frozenset[str]]:
        """What the protocol asks for, whichever order its features are listed in."""
        readers, writers = self.reader_features or (), self.writer_features or ()
        versions = self.min_reader_version, self.min_writer_version
        return (*versions, frozenset(readers), frozenset(writers))


@dataclass(frozen=True, slots=True)
class Metadata:
    """What a table is: its identity, schema, partitioning and properties."""

    id: str
    schema_string: str
    partition_columns: tuple[str, ...] = ()
    configuration: Mapping[str, str] = field(default_factory=dict)
    name: str | None = None
    description: str | None = None
    created_time: int | None = None
    format_provider: str = "parquet"
    format_options: Mapping[str, str] = field(default_factory=dict)
    unknown: Mapping[str, object] = field(default_factory=_no_fields)
    raw: bytes | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Txn:
    """How far an application's own stream of writes has come."""

    app_id: str
    version: int
    last_updated: int | None = None
    unknown: Mapping[str, object] = field(default_factory=_no_fields)
    raw: bytes | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class DomainMetadata:
    """The configuration of a named metadata domain, or its tombstone."""

    domain: str
    configuration: str
    removed: bool = False
    unknown: Mapping[str, object] = field(default_factory=_no_fields)
    raw: bytes | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class CommitInfo:
    """Where a commit comes from. Any JSON object will do, so all of it is kept as one.

    ``values`` lack what no string or number of ours can hold; ``raw`` has it.
    """

    values: Mapping[str, Any]
    raw: bytes | None = field(default=None, compare=False, repr=False)

    @property
    def operation(self) -> str | None:
        """The operation's name, where the writer gave one."""
        operation = self.values.get("operation")
        return operation if isinstance(operation, str) else None

    @property
    def in_commit_timestamp(self) -> int | None:
        """The time that decides when this version came to be, on tables that keep it."""
        value = self.values.get("inCommitTimestamp")
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    @property
    def txn_id(self) -> str | None:
        """The unique name of the transaction, where the writer gave one."""
        value = self.values.get("txnId")
        return value if isinstance(value, str) else None


@dataclass(frozen=True, slots=True)
class Sidecar:
    """A file with some of a V2 checkpoint's file actions."""

    path: str
    size_in_bytes: int
    modification_time: int
    tags: Mapping[str, str] | None = None
    unknown: Mapping[str, object] = field(default_factory=_no_fields)
    raw: bytes | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class CheckpointMetadata:
    """Which version a V2 checkpoint is of."""

    version: int
    tags: Mapping[str, str] | None = None
    unknown: Mapping[str, object] = field(default_factory=_no_fields)
    raw: bytes | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class FileLine:
    """A file action (``add``, ``remove``, ``cdc``) as the text of its line."""

    name: str
    raw: bytes


@dataclass(frozen=True, slots=True)
class UnknownLine:
    """A whole line with no action that we know; kept, never interpreted."""

    raw: bytes


Action = (
    Protocol
    | Metadata
    | Txn
    | DomainMetadata
    | CommitInfo
    | Sidecar
    | CheckpointMetadata
    | FileLine
    | UnknownLine
)

Changeable = TypeVar(
    "Changeable", Protocol, Metadata, Txn, DomainMetadata, Sidecar, CheckpointMetadata
)


def changed(action: Changeable, **values: object) -> Changeable:
    """Return the action with other values; what we don't know of it stays, its bytes don't."""
    return replace(action, raw=None, **values)  # type: ignore[arg-type]


# The JSON of each action's value, typed, so that a wrong type is found where it
# is read. Unknown fields are found by comparing with the plain object, which
# only these small actions can afford.


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
    """Return the values that there are: a null is none."""
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

FILE_ACTIONS = frozenset({"add", "remove", "cdc"})
_EXACT_BELOW = 2**53


def decode_value(name: str, value: bytes, line: bytes | None = None) -> Action:
    """Return the action called ``name`` whose value is the JSON text ``value``.

    ``line`` is the whole line that the value stands in, where there is one.
    """
    if name in FILE_ACTIONS:
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
    """Return the values with those as integers that are whole and written as ``1.0``."""
    return {
        key: int(value)
        # Beyond that, a float doesn't say which integer was meant.
        if isinstance(value, float) and value.is_integer() and abs(value) <= _EXACT_BELOW
        else value
        for key, value in values.items()
    }


def _unknown_within(metadata: Json) -> Json:
    """Return what known fields of metadata hold that our values don't: nulls and unknown fields."""
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
    """Return what can be read of a ``commitInfo`` that isn't JSON as we take it elsewhere."""
    try:
        found = json.loads(value)
    except (ValueError, RecursionError):
        found = None
    return CommitInfo(readable(found) if isinstance(found, dict) else {}, line)


def readable(values: Json) -> Json:
    """Return those of the values that can be written again, by any JSON library."""
    kept = {}
    for key, value in values.items():
        try:
            json.dumps({key: value}, allow_nan=False, ensure_ascii=False).encode()
        except (ValueError, RecursionError):
            continue
        kept[key] = value
    return kept


def decode_line(line: bytes) -> Action:
    """Return the action that one line of a commit holds."""
    try:
        values = _RAW_OBJECT.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as broken:
        if (info := decode_provenance(line)) is not None:
            return info
        raise CorruptLog("a line of the log can't be read", cause=str(broken)) from broken
    # Some writers name every action on each line and leave all but one null.
    present = [
        name
        for name in values
        if (name in _KNOWN or name in FILE_ACTIONS or name == "commitInfo")
        and bytes(values[name]) != b"null"
    ]
    if not present:
        return UnknownLine(line)
    if len(present) > 1:
        raise CorruptLog(
            "a line of the log holds more than one action", cause=", ".join(sorted(present))
        )
    return decode_value(present[0], bytes(values[present[0]]), line)


def decode_provenance(line: bytes) -> CommitInfo | None:
    """Return a line's ``commitInfo``, where that is its one action and its JSON is merely odd."""
    try:
        values = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(values, dict):
        return None
    if [name for name, value in values.items() if value is not None] != ["commitInfo"]:
        return None
    found = values["commitInfo"]
    return CommitInfo(readable(found) if isinstance(found, dict) else {}, line)


def encode_line(action: Action) -> bytes:
    """Return the line that stands for the action, without its end.

    These are the bytes it was read from, where it was read from a line.
    """
    if action.raw is not None:
        return action.raw
    return msgspec.json.encode({NAMES[type(action)]: as_json(action)})


def as_json(action: Action) -> Json:
    """Return the action's value as a plain object with Delta's names, unknown fields included."""
    match action:
        case FileLine(name=name, raw=raw):
            return dict(_OBJECT.decode(raw)[name])
        case UnknownLine(raw=raw):
            return _OBJECT.decode(raw)
        case CommitInfo(values=values):
            return dict(values)
        case Protocol():
            value: Json = {
                "minReaderVersion": action.min_reader_version,
                "minWriterVersion": action.min_writer_version,
                "readerFeatures": _listed(action.reader_features),
                "writerFeatures": _listed(action.writer_features),
            }
        case Metadata():
            value = {
                "id": action.id,
                "name": action.name,
                "description": action.description,
                "format": {
                    "provider": action.format_provider,
                    "options": dict(action.format_options),
                },
                "schemaString": action.schema_string or None,
                "partitionColumns": list(action.partition_columns),
                "configuration": dict(action.configuration),
                "createdTime": action.created_time,
            }
        case Txn():
            value = {
                "appId": action.app_id,
                "version": action.version,
                "lastUpdated": action.last_updated,
            }
        case DomainMetadata():
            value = {
                "domain": action.domain,
                "configuration": action.configuration,
                "removed": action.removed,
            }
        case Sidecar():
            value = {
                "path": action.path,
                "sizeInBytes": action.size_in_bytes,
                "modificationTime": action.modification_time,
                "tags": None if action.tags is None else dict(action.tags),
            }
        case CheckpointMetadata():
            value = {
                "version": action.version,
                "tags": None if action.tags is None else dict(action.tags),
            }
    return _merged({key: item for key, item in value.items() if item is not None}, action.unknown)


def _merged(known: Json, unknown: Mapping[str, object]) -> Json:
    """Return both; where both have an object these are merged, and what is known wins."""
    merged = {**unknown, **known}
    for key in known.keys() & unknown.keys():
        mine, theirs = known[key], unknown[key]
        if isinstance(mine, dict) and isinstance(theirs, dict):
            merged[key] = _merged(mine, theirs)
    return {key: merged[key] for key in [*known, *(key for key in unknown if key not in known)]}


def _listed(names: tuple[str, ...] | None) -> list[str] | None:
    return None if names is None else list(names)


NAMES: dict[type, str] = {
    Protocol: "protocol",
    Metadata: "metaData",
    Txn: "txn",
    DomainMetadata: "domainMetadata",
    CommitInfo: "commitInfo",
    Sidecar: "sidecar",
    CheckpointMetadata: "checkpointMetadata",
}
