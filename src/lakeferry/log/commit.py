"""Turns a transaction into the bytes of a commit.

Implements the protocol's rules for new log entries, for the kinds of commit that Lakeferry makes:
metadata, protocol, domains, transactions, nothing at all, and the replacement of files by equal
ones.

A :class:`Transaction` states what to commit, a :class:`LogHead` the version before it, and a
:class:`CommitPlan` the bytes to write and their paths. If somebody else's commit was first,
:mod:`lakeferry.log.conflicts` decides whether ours may follow it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from lakeferry.errors import FeatureRequired, InvalidInput
from lakeferry.log import (
    actions,
    arrow_versions,
    checksum,
    features,
    file_actions,
    paths,
    properties,
    protocol_oddities,
    row_ids,
    stats,
    timestamps,
)
from lakeferry.log.actions import CommitInfo, DomainMetadata, Metadata, Protocol, Txn
from lakeferry.log.checksum import Checksum
from lakeferry.log.lines import ORDER
from lakeferry.log.protocol_oddities import DELTA_SPARK_ACCEPTS, Oddity

_ROW_BATCH = 16_384
_FILE_COUNTS = frozenset(
    {
        "fileSizeHistogram",
        "allFiles",
        "numDeletedRecordsOpt",
        "numDeletionVectorsOpt",
        "deletedRecordCountsHistogramOpt",
        "histogramOpt",
    }
)


class Reads(Enum):
    """What a transaction has read of the table, and so what mustn't have changed before it."""

    NOTHING = "nothing but protocol and metadata"
    ROWS = "the rows: files may be rewritten, but no data may change"
    FILES = "the exact list of files"


@dataclass(frozen=True, slots=True)
class Transaction:
    """What one commit changes. Tables have the columns of :mod:`lakeferry.log.file_actions`.

    ``txn_id`` is unique to this transaction; if the store's answer is lost, it identifies the
    commit. ``new_names`` promises that no added file is in the table already; without it, no
    checksum file can follow a commit that adds files. New row ids are also above
    ``row_ids_above``. ``keeps_row_ids`` promises that rows of replaced files keep their ids in
    the new files. ``info`` is added to the commit's provenance.
    """

    operation: str
    txn_id: str
    parameters: Mapping[str, str] = field(default_factory=dict)
    protocol: Protocol | None = None
    metadata: Metadata | None = None
    domains: tuple[DomainMetadata, ...] = ()
    txns: tuple[Txn, ...] = ()
    adds: pa.Table | None = None
    removes: pa.Table | None = None
    reads: Reads = Reads.NOTHING
    new_names: bool = False
    row_ids_above: int = -1
    keeps_row_ids: bool = False
    info: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LogHead:
    """The version before a commit.

    ``commit_time_ms`` is its in-commit timestamp, or its file's time. ``checksum`` is set if the
    version has a checksum file; then the next version gets one too.
    """

    version: int
    protocol: Protocol
    metadata: Metadata
    commit_time_ms: int | None = None
    domains: Mapping[str, DomainMetadata] = field(default_factory=dict)
    checksum: Checksum | None = None


@dataclass(frozen=True, slots=True)
class CommitPlan:
    """The bytes to put, if absent, at ``path``; then those of the checksum file, if any."""

    version: int
    path: str
    body: bytes
    head: LogHead
    """The head after this commit."""


def plan_commit(
    transaction: Transaction,
    head: LogHead,
    now_ms: int,
    engine: str,
    read_version: int | None = None,
) -> CommitPlan:
    """Return the commit of ``transaction`` on top of ``head``.

    ``read_version`` is the version that the transaction was made from, if it isn't the head any
    more.
    """
    version = head.version + 1
    if version > paths.MAX_VERSION:
        raise InvalidInput(
            "the log is full", cause=f"version {head.version} is the last possible one"
        )
    moment = max(now_ms, (head.commit_time_ms or 0) + 1)
    metadata, keeps_time = _with_enablement(transaction, head, version, moment)
    protocol = transaction.protocol or head.protocol
    effective = metadata or head.metadata
    _check(transaction, head, protocol, effective)
    adds = transaction.adds
    domains = transaction.domains
    if adds is not None and row_ids.are_given_out(protocol, effective):
        above = transaction.row_ids_above
        adds, marks = row_ids.give_out(adds, head.domains, version, above)
        domains = (*domains, *marks)
    read = head.version if read_version is None else read_version
    commit_info = _commit_info(transaction, read, now_ms, moment if keeps_time else None, engine)
    if properties.keeps_row_ids(effective.configuration):
        kept = transaction.keeps_row_ids or row_ids.are_kept(transaction.adds, transaction.removes)
        preserved = str(kept).lower()
        given = commit_info.get("tags") or {}
        commit_info["tags"] = {**given, "delta.rowTracking.preserved": preserved}
    few: list[actions.Action] = [CommitInfo(commit_info)]
    few += [action for action in (transaction.protocol, metadata) if action is not None]
    few += [*transaction.txns, *domains]
    lines = [actions.encode_line(action) for action in few]
    for name, table in (("remove", transaction.removes), ("add", adds)):
        if table is not None:
            lines += encode_files(name, table)
    after = LogHead(
        version,
        protocol,
        effective,
        moment if keeps_time else None,
        with_domains(head.domains, domains),
        _checksum_after(transaction, head, protocol, effective, domains, adds, moment, keeps_time),
    )
    return CommitPlan(version, paths.commit(version), b"\n".join(lines) + b"\n", after)


def _check(transaction: Transaction, head: LogHead, protocol: Protocol, metadata: Metadata) -> None:
    """Refuse a commit that we don't support, or whose result would violate the protocol."""
    # Whether a managed table's catalog is asked is for whoever puts the commit to check.
    features.check_writable(head.protocol, asks_catalog=True)
    features.check_writable(protocol, asks_catalog=True)
    names = features.implied_features(protocol)
    if transaction.domains and "domainMetadata" not in names:
        raise FeatureRequired(
            "metadata domains can't be written",
            cause="the table's protocol lacks the feature domainMetadata",
            remedy="add the feature with your engine: ALTER TABLE ... SET TBLPROPERTIES "
            "('delta.feature.domainMetadata' = 'supported')",
            features=["domainMetadata"],
        )
    if any(
        domain.domain == row_ids.DOMAIN and not (domain.removed and "rowTracking" not in names)
        for domain in transaction.domains
    ):
        raise InvalidInput(
            f"the domain {row_ids.DOMAIN} can't be set",
            cause="Lakeferry computes it from the files that are added",
        )
    before = set(protocol_oddities.warnings(head.protocol, head.metadata.configuration))
    for odd in protocol_oddities.warnings(protocol, metadata.configuration):
        if odd not in before and odd.oddity not in DELTA_SPARK_ACCEPTS:
            raise FeatureRequired(
                "after the commit, the table would violate the specification",
                cause=odd.message,
                remedy="add what is missing with your engine: ALTER TABLE ... SET TBLPROPERTIES "
                f"({', '.join(map(_supported, odd.features))}); or unset those properties"
                if odd.oddity is Oddity.ACTIVE_WITHOUT_FEATURE
                else None,
                features=list(odd.features),
            )


def _supported(name: str) -> str:
    return f"'delta.feature.{name}' = 'supported'"


def encode_files(name: str, table: pa.Table) -> Iterator[bytes]:
    """Yield the commit line of each row of a table of ``add``, ``remove`` or ``cdc`` actions.

    Columns decide; from the line that a row was read from, only fields without a column are
    kept. Commits don't have typed statistics: if the text is missing, it is made from them.
    """
    if "stats_parsed" in table.column_names:
        text = pc.coalesce(table["stats"], stats.format_stats(table["stats_parsed"]))
        table = table.set_column(table.schema.get_field_index("stats"), "stats", text)
    beside = (ORDER.name, "stats_parsed", "partitionValues_parsed")
    plain = table.drop_columns([column for column in beside if column in table.column_names])
    for batch in plain.to_batches(_ROW_BATCH):
        for row in arrow_versions.to_rows(batch):
            raw = row.pop(file_actions.RAW.name, None)
            value = {key: item for key, item in row.items() if item is not None}
            vector = value.get("deletionVector")
            if vector is not None:
                value["deletionVector"] = {k: v for k, v in vector.items() if v is not None}
            if raw is not None:
                read = msgspec.json.decode(raw, type=dict[str, Any])[name]
                taken = {*row, *beside}
                value |= {key: item for key, item in read.items() if key not in taken}
            yield msgspec.json.encode({name: value})


def _commit_info(
    transaction: Transaction, read_version: int, now_ms: int, moment: int | None, engine: str
) -> dict[str, Any]:
    values: dict[str, Any] = {"timestamp": now_ms}
    if moment is not None:
        values["inCommitTimestamp"] = moment
    return values | {
        "operation": transaction.operation,
        "operationParameters": dict(transaction.parameters),
        "readVersion": read_version,
        "isolationLevel": "Serializable",
        "isBlindAppend": False,
        "operationMetrics": {},
        "engineInfo": engine,
        "txnId": transaction.txn_id,
        **transaction.info,
    }


def _with_enablement(
    transaction: Transaction, head: LogHead, version: int, moment: int
) -> tuple[Metadata | None, bool]:
    """Return the metadata to commit, and whether this commit carries its own timestamp.

    A commit that enables timestamps on an existing table states its own version and time in the
    properties; a rebase changes these.
    """
    metadata = transaction.metadata
    before = timestamps.in_commit_timestamps(head.metadata)
    after = timestamps.in_commit_timestamps(metadata or head.metadata)
    if metadata is not None and after is not None and before is None:
        configuration = dict(metadata.configuration) | {
            timestamps.ENABLEMENT_VERSION: str(version),
            timestamps.ENABLEMENT_TIMESTAMP: str(moment),
        }
        metadata = actions.changed(metadata, configuration=configuration)
    return metadata, after is not None


def with_domains(
    before: Mapping[str, DomainMetadata], changes: tuple[DomainMetadata, ...]
) -> Mapping[str, DomainMetadata]:
    """Return the domains after a commit that changes some of them."""
    merged = dict(before) | {domain.domain: domain for domain in changes}
    return {name: domain for name, domain in merged.items() if not domain.removed}


def _checksum_after(
    transaction: Transaction,
    head: LogHead,
    protocol: Protocol,
    metadata: Metadata,
    domains: tuple[DomainMetadata, ...],
    adds: pa.Table | None,
    moment: int,
    keeps_time: bool,
) -> Checksum | None:
    if head.checksum is None:
        return None
    after = checksum.successor(
        head.checksum,
        metadata=metadata,
        protocol=protocol,
        txn_id=transaction.txn_id,
        in_commit_timestamp=moment if keeps_time else None,
        txns=transaction.txns,
        domains=domains,
    )
    removes = transaction.removes
    if adds is None and removes is None:
        return after
    known = removes is None or not removes["size"].null_count
    if not known or (adds is not None and not transaction.new_names):
        # A file may be there already, or its size isn't known: no checksum is better than a wrong
        # one.
        return None
    grown = _size(adds) - _size(removes)
    more = (adds.num_rows if adds is not None else 0) - (
        removes.num_rows if removes is not None else 0
    )
    return replace(
        after,
        table_size_bytes=after.table_size_bytes + grown,
        num_files=after.num_files + more,
        more={key: value for key, value in after.more.items() if key not in _FILE_COUNTS},
    )


def _size(table: pa.Table | None) -> int:
    return 0 if table is None else int(pc.sum(table["size"]).as_py() or 0)
