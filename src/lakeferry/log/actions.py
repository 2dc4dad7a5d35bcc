"""Actions as frozen values, and their JSON.

Implements the protocol's "Actions". The few small actions (protocol, metadata, transactions,
domains, commit info) are frozen values. File actions, of which there may be a million, are in
Arrow tables (:mod:`lakeferry.log.file_actions`); here they are only the text of their line.

* unknown data is kept: unknown fields of a known action and unknown actions are written as they
  were read;
* an unchanged action is written with exactly the bytes it was read from;
* a null among a table's properties or its format's options means that there is no value; the
  null is kept;
* numbers fit the types that the protocol gives them; a whole number may be written as ``1.0``;
* bytes that aren't a valid action raise :class:`~lakeferry.errors.CorruptLog`; the exception is
  provenance (``commitInfo``), which decides nothing about a table's files: it is kept as text,
  with the fields that can be read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import msgspec

Json = dict[str, Any]
_OBJECT = msgspec.json.Decoder(Json)

READER_FEATURES_VERSION = 3
WRITER_FEATURES_VERSION = 7


def _no_fields() -> Mapping[str, object]:
    return {}


@dataclass(frozen=True, slots=True)
class Protocol:
    """The reader and writer version that a table requires, and its features."""

    min_reader_version: int
    min_writer_version: int
    reader_features: tuple[str, ...] | None = None
    writer_features: tuple[str, ...] | None = None
    unknown: Mapping[str, object] = field(default_factory=_no_fields)
    raw: bytes | None = field(default=None, compare=False, repr=False)

    @property
    def features(self) -> frozenset[str]:
        """Every named feature, for readers or for writers."""
        return frozenset(self.reader_features or ()) | frozenset(self.writer_features or ())

    @property
    def unordered(self) -> tuple[int, int, frozenset[str], frozenset[str]]:
        """Return the requirements in a form that doesn't depend on the order of features."""
        readers, writers = self.reader_features or (), self.writer_features or ()
        versions = self.min_reader_version, self.min_writer_version
        return (*versions, frozenset(readers), frozenset(writers))


@dataclass(frozen=True, slots=True)
class Metadata:
    """A table's identity, schema, partitioning and properties."""

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
    """The progress of an application's own stream of writes."""

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
    """The provenance of a commit. Any JSON object is allowed, so all of it is kept as one value.

    ``values`` lack values that our strings and numbers can't hold; ``raw`` has them.
    """

    values: Mapping[str, Any]
    raw: bytes | None = field(default=None, compare=False, repr=False)

    @property
    def operation(self) -> str | None:
        """The operation's name, if the writer stated one."""
        operation = self.values.get("operation")
        return operation if isinstance(operation, str) else None

    @property
    def in_commit_timestamp(self) -> int | None:
        """The commit time of this version, on tables with in-commit timestamps."""
        value = self.values.get("inCommitTimestamp")
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    @property
    def txn_id(self) -> str | None:
        """The unique name of the transaction, if the writer stated one."""
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
    """The version of a V2 checkpoint."""

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
    """A line without a known action; kept, but not interpreted."""

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
    """Return the action with other values; unknown fields stay, the original bytes don't."""
    return replace(action, raw=None, **values)  # type: ignore[arg-type]


def encode_line(action: Action) -> bytes:
    """Return the action as a line, without its line end.

    An action that was read from a line keeps those bytes.
    """
    if action.raw is not None:
        return action.raw
    return msgspec.json.encode({ACTION_NAMES[type(action)]: as_json(action)})


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
    """Merge both objects recursively; known values win."""
    merged = {**unknown, **known}
    for key in known.keys() & unknown.keys():
        mine, theirs = known[key], unknown[key]
        if isinstance(mine, dict) and isinstance(theirs, dict):
            merged[key] = _merged(mine, theirs)
    return {key: merged[key] for key in [*known, *(key for key in unknown if key not in known)]}


def _listed(names: tuple[str, ...] | None) -> list[str] | None:
    return None if names is None else list(names)


ACTION_NAMES: dict[type, str] = {
    Protocol: "protocol",
    Metadata: "metaData",
    Txn: "txn",
    DomainMetadata: "domainMetadata",
    CommitInfo: "commitInfo",
    Sidecar: "sidecar",
    CheckpointMetadata: "checkpointMetadata",
}
