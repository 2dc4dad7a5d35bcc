"""Reads and writes checksum files.

Implements the protocol's "Version Checksum File". Such a file only helps: it is compared with
the result of a replay, or provides the protocol and the metadata if nothing else is needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import msgspec

from lakeferry.errors import CorruptLog
from lakeferry.log import actions, decoding
from lakeferry.log.actions import DomainMetadata, Metadata, Protocol, Txn

_OBJECT = msgspec.json.Decoder(dict[str, Any])
_Kind = TypeVar("_Kind")

_RAW = msgspec.json.Decoder(dict[str, msgspec.Raw])


@dataclass(frozen=True, slots=True)
class Checksum:
    """The content of a version's checksum file. ``None`` marks missing values."""

    table_size_bytes: int
    num_files: int
    metadata: Metadata
    protocol: Protocol
    txn_id: str | None = None
    in_commit_timestamp: int | None = None
    set_transactions: tuple[Txn, ...] | None = None
    domain_metadata: tuple[DomainMetadata, ...] | None = None
    more: Mapping[str, Any] = field(default_factory=dict)
    """All other fields: histograms, counts of deleted records, unknown fields."""


class _Checksum(msgspec.Struct):
    tableSizeBytes: int
    numFiles: int
    metadata: msgspec.Raw
    protocol: msgspec.Raw
    numMetadata: int = 1
    numProtocol: int = 1
    txnId: str | None = None
    inCommitTimestampOpt: int | None = None
    setTransactions: list[msgspec.Raw] | None = None
    domainMetadata: list[msgspec.Raw] | None = None


class _Counts(msgspec.Struct):
    tableSizeBytes: int
    numFiles: int
    numMetadata: int
    numProtocol: int
    metadata: Any = None
    protocol: Any = None


class _Size(msgspec.Struct):
    tableSizeBytes: int


_SIZE = msgspec.json.Decoder(_Size)
_CHECKSUM = msgspec.json.Decoder(_Checksum)
_COUNTS = msgspec.json.Decoder(_Counts)


def decode_checksum(data: bytes) -> Checksum:
    """Return the content of a checksum file, or raise :class:`~lakeferry.errors.CorruptLog`."""
    try:
        value = _CHECKSUM.decode(data)
        plain = _OBJECT.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as broken:
        raise CorruptLog("a checksum file can't be read", cause=str(broken)) from broken
    metadata = decoding.decode_value("metaData", bytes(value.metadata))
    protocol = decoding.decode_value("protocol", bytes(value.protocol))
    assert isinstance(metadata, Metadata)
    assert isinstance(protocol, Protocol)
    return Checksum(
        value.tableSizeBytes,
        value.numFiles,
        metadata,
        protocol,
        value.txnId,
        value.inCommitTimestampOpt,
        _decoded(value.setTransactions, "txn", Txn),
        _decoded(value.domainMetadata, "domainMetadata", DomainMetadata),
        {key: plain[key] for key in plain if key not in _Checksum.__struct_fields__},
    )


def contradictions(checksum: Checksum, protocol: Protocol, metadata: Metadata) -> list[str]:
    """Return the differences between a checksum file and the log, except for files."""
    stated = checksum.metadata
    pairs = (
        ("protocol", checksum.protocol.unordered, protocol.unordered),
        ("the table's id", stated.id, metadata.id),
        ("the schema", stated.schema_string, metadata.schema_string),
        ("the partition columns", stated.partition_columns, metadata.partition_columns),
        ("the properties", stated.configuration, metadata.configuration),
    )
    return [name for name, there, here in pairs if there != here]


def decode_size(data: bytes) -> int | None:
    """Return the bytes of a version's files from its checksum file; ``None`` if it has no size."""
    try:
        return _SIZE.decode(data).tableSizeBytes
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def decode_counts(data: bytes) -> tuple[int, int] | None:
    """Return the number of files and bytes in a checksum file, or ``None``.

    Files of older writers have only such counts.
    """
    try:
        found = _COUNTS.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    if found.metadata is not None or found.protocol is not None:
        return None
    return found.numFiles, found.tableSizeBytes


def _decoded(
    raws: list[msgspec.Raw] | None, name: str, kind: type[_Kind]
) -> tuple[_Kind, ...] | None:
    if raws is None:
        return None
    decoded = [decoding.decode_value(name, bytes(raw)) for raw in raws]
    return tuple(action for action in decoded if isinstance(action, kind))


def encode_checksum(checksum: Checksum) -> bytes:
    """Return the bytes of a checksum file."""
    value: dict[str, Any] = {
        "txnId": checksum.txn_id,
        "tableSizeBytes": checksum.table_size_bytes,
        "numFiles": checksum.num_files,
        "numMetadata": 1,
        "numProtocol": 1,
        "inCommitTimestampOpt": checksum.in_commit_timestamp,
        "setTransactions": _encoded(checksum.set_transactions),
        "domainMetadata": _encoded(checksum.domain_metadata),
        "metadata": actions.as_json(checksum.metadata),
        "protocol": actions.as_json(checksum.protocol),
        **checksum.more,
    }
    return msgspec.json.encode({key: item for key, item in value.items() if item is not None})


def _encoded(values: tuple[Txn, ...] | tuple[DomainMetadata, ...] | None) -> list[Any] | None:
    return None if values is None else [actions.as_json(value) for value in values]


def successor(
    before: Checksum,
    *,
    metadata: Metadata,
    protocol: Protocol,
    txn_id: str | None,
    in_commit_timestamp: int | None,
    txns: tuple[Txn, ...] = (),
    domains: tuple[DomainMetadata, ...] = (),
) -> Checksum:
    """Return the checksum of the next version, after a commit that doesn't change the files.

    Values that our commit doesn't change (sizes, counts, histograms) are kept; the others are
    replaced.
    """
    kept_txns = before.set_transactions
    if kept_txns is not None:
        merged = {txn.app_id: txn for txn in kept_txns} | {txn.app_id: txn for txn in txns}
        kept_txns = tuple(merged.values())
    kept_domains = before.domain_metadata
    if kept_domains is not None:
        by_name = {domain.domain: domain for domain in kept_domains}
        by_name |= {domain.domain: domain for domain in domains}
        kept_domains = tuple(domain for domain in by_name.values() if not domain.removed)
    return replace(
        before,
        metadata=metadata,
        protocol=protocol,
        txn_id=txn_id,
        in_commit_timestamp=in_commit_timestamp,
        set_transactions=kept_txns,
        domain_metadata=kept_domains,
    )
