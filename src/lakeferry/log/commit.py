"""From a transaction to the commit that is to be put, or to the conflict with what won.

Implements the protocol's rules for new log entries and Delta's conflict rules
for the kinds of commit that Lakeferry makes: metadata, protocol, domains,
transactions, nothing at all, and the replacement of files by equal ones.

A :class:`Transaction` says what is wanted, a :class:`Head` what it goes on top
of, a :class:`CommitPlan` which bytes go where. When somebody else's commit is
there first, :func:`rebase` answers with the head after it, or with the
:class:`Conflict` that says why ours can't follow it. A conflict is a result:
whoever asked decides whether to begin again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from lakeferry.errors import CommitConflict, InvalidInput
from lakeferry.log import actions, checksum, features, files, paths, timestamps
from lakeferry.log.actions import CommitInfo, DomainMetadata, Metadata, Protocol, Txn
from lakeferry.log.checksum import Checksum
from lakeferry.log.lines import Lines

ROW_TRACKING_DOMAIN = "delta.rowTracking"
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


@dataclass(frozen=True, slots=True)
class Transaction:
    """What one commit is to change. Tables have the columns of :mod:`lakeferry.log.files`.

    ``reads_files`` says that the transaction was made from what the files were:
    then no commit that changes data may come before it. ``info`` is added to
    the commit's provenance.
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
    reads_files: bool = False
    info: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Head:
    """The version that a commit goes on top of.

    ``commit_time_ms`` is its in-commit timestamp, or its file's time. ``checksum``
    is there where the version has a checksum file; then the next one gets one too.
    """

    version: int
    protocol: Protocol
    metadata: Metadata
    commit_time_ms: int | None = None
    domains: Mapping[str, DomainMetadata] = field(default_factory=dict)
    checksum: Checksum | None = None


@dataclass(frozen=True, slots=True)
class CommitPlan:
    """The bytes to put, if absent, at ``path``; then the checksum file, if there is to be one."""

    version: int
    path: str
    body: bytes
    head: Head
    """The head once this is committed."""


@dataclass(frozen=True, slots=True)
class Conflict:
    """Why a transaction can't follow the commit that won."""

    version: int
    reason: str
    detail: str
    winner: CommitInfo | None = None

    def error(self) -> CommitConflict:
        """Return the conflict as an error, for callers who can't go on."""
        operation = (self.winner.operation if self.winner else None) or "another commit"
        return CommitConflict(
            f"version {self.version} was committed by somebody else ({operation})",
            cause=self.detail,
            remedy="look at the table as it is now and try again",
            version=self.version,
            reason=self.reason,
            winner=None if self.winner is None else dict(self.winner.values),
        )


def plan(transaction: Transaction, head: Head, now_ms: int, engine: str) -> CommitPlan:
    """Return the commit of ``transaction`` on top of ``head``."""
    version = head.version + 1
    features.check_writable(head.protocol)
    protocol = transaction.protocol or head.protocol
    features.check_writable(protocol)
    moment = max(now_ms, (head.commit_time_ms or 0) + 1)
    metadata, keeps_time = _with_enablement(transaction, head, version, moment)
    effective = metadata or head.metadata
    adds, marks = _with_row_ids(transaction, head, protocol, effective, version)
    domains = (*transaction.domains, *marks)
    commit_info = _commit_info(transaction, head, now_ms, moment if keeps_time else None, engine)
    if _is_set(effective, "delta.enableRowTracking"):
        commit_info["tags"] = {"delta.rowTracking.preserved": "true"}
    few: list[actions.Action] = [CommitInfo(commit_info)]
    few += [action for action in (transaction.protocol, metadata) if action is not None]
    few += [*transaction.txns, *domains]
    lines = [actions.encode_line(action) for action in few]
    for name, table in (("remove", transaction.removes), ("add", adds)):
        if table is not None:
            lines += encode_files(name, table)
    after = Head(
        version,
        protocol,
        effective,
        moment if keeps_time else None,
        _with_domains(head.domains, domains),
        _checksum_after(transaction, head, protocol, effective, domains, adds, moment, keeps_time),
    )
    return CommitPlan(version, paths.commit(version), b"\n".join(lines) + b"\n", after)


def rebase(transaction: Transaction, head: Head, winner: Lines, root: str) -> Head | Conflict:
    """Return the head after ``winner``, the commit right after ``head``, or the conflict with it.

    ``root`` is the table's URI, by which spellings of paths are compared.
    """
    version = head.version + 1
    conflict = _conflict(transaction, winner, root)
    if conflict is not None:
        return Conflict(version, conflict[0], conflict[1], winner.commit_info)
    info = winner.commit_info
    return Head(
        version,
        head.protocol,
        head.metadata,
        info.in_commit_timestamp if info else None,
        _with_domains(head.domains, tuple(winner.domains.values())),
        None,
    )


def _conflict(transaction: Transaction, winner: Lines, root: str) -> tuple[str, str] | None:
    if winner.protocol is not None:
        return "protocol_changed", "it changes the protocol"
    if winner.metadata is not None:
        return "metadata_changed", "it changes the metadata"
    for domain in transaction.domains:
        # The high-water mark of row ids is computed anew on top of whatever won.
        if domain.domain in winner.domains and domain.domain != ROW_TRACKING_DOMAIN:
            return "domain_changed", f"it changes the metadata domain {domain.domain}"
    for txn in transaction.txns:
        if txn.app_id in winner.txns:
            return "transaction_changed", f"it moves the transaction id of {txn.app_id}"
    if transaction.reads_files and _changes_data(winner):
        return "data_changed", "it changes data that this transaction was made from"
    ours = [table for table in (transaction.adds, transaction.removes) if table is not None]
    if ours:
        mine = pa.concat_arrays([_paths(table, root) for table in ours])
        for table in (winner.adds, winner.removes):
            touched = pc.filter(mine, pc.is_in(mine, value_set=_paths(table, root)))
            if len(touched):
                return "file_changed", f"it changes the file {touched[0].as_py()} too"
    return None


def _changes_data(winner: Lines) -> bool:
    # A flag that isn't there says that data may have changed.
    return any(
        bool(pc.any(pc.fill_null(table["dataChange"], True)).as_py())
        for table in (winner.adds, winner.removes)
    )


def _paths(table: pa.Table, root: str) -> pa.Array:
    return files.canonical_paths(table["path"].combine_chunks(), root)


def encode_files(name: str, table: pa.Table) -> Iterator[bytes]:
    """Yield the commit line of each row of a table of ``add``, ``remove`` or ``cdc`` actions."""
    plain = table.drop_columns([c for c in ("raw", "order") if c in table.column_names])
    for batch in plain.to_batches(_ROW_BATCH):
        for row in batch.to_pylist(maps_as_pydicts="lossy"):
            value = {key: item for key, item in row.items() if item is not None}
            vector = value.get("deletionVector")
            if vector is not None:
                value["deletionVector"] = {k: v for k, v in vector.items() if v is not None}
            yield msgspec.json.encode({name: value})


def _commit_info(
    transaction: Transaction, head: Head, now_ms: int, moment: int | None, engine: str
) -> dict[str, Any]:
    values: dict[str, Any] = {"timestamp": now_ms}
    if moment is not None:
        values["inCommitTimestamp"] = moment
    return values | {
        "operation": transaction.operation,
        "operationParameters": dict(transaction.parameters),
        "readVersion": head.version,
        "isolationLevel": "Serializable",
        "isBlindAppend": False,
        "operationMetrics": {},
        "engineInfo": engine,
        "txnId": transaction.txn_id,
        **transaction.info,
    }


def _with_enablement(
    transaction: Transaction, head: Head, version: int, moment: int
) -> tuple[Metadata | None, bool]:
    """Return the metadata to commit, and whether this commit carries its own timestamp.

    A commit that begins to keep timestamps on an existing table says so in the
    properties, with its own version and time, which a rebase changes.
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


def _with_row_ids(
    transaction: Transaction, head: Head, protocol: Protocol, metadata: Metadata, version: int
) -> tuple[pa.Table | None, tuple[DomainMetadata, ...]]:
    """Give fresh row ids to added files that have none, and move the high-water mark."""
    adds = transaction.adds
    if (
        adds is None
        or "rowTracking" not in protocol.features
        or _is_set(metadata, "delta.rowTrackingSuspended")
    ):
        return adds, ()
    mark = high_water_mark(head.domains)
    ids: list[int] = []
    for base, stats in zip(adds["baseRowId"].to_pylist(), adds["stats"].to_pylist(), strict=True):
        if base is None:
            ids.append(mark + 1)
            mark += _num_records(stats)
        else:
            ids.append(base)
    committed = pc.fill_null(adds["defaultRowCommitVersion"], version)
    adds = _with_column(adds, "baseRowId", pa.array(ids, pa.int64()))
    adds = _with_column(adds, "defaultRowCommitVersion", committed)
    if mark == high_water_mark(head.domains):
        return adds, ()
    configuration = msgspec.json.encode({"rowIdHighWaterMark": mark}).decode()
    return adds, (DomainMetadata(ROW_TRACKING_DOMAIN, configuration),)


def high_water_mark(domains: Mapping[str, DomainMetadata]) -> int:
    """Return the highest row id given out so far; -1 where none was."""
    domain = domains.get(ROW_TRACKING_DOMAIN)
    if domain is None:
        return -1
    value = msgspec.json.decode(domain.configuration, type=dict[str, Any])
    return int(value.get("rowIdHighWaterMark", -1))


def _num_records(stats: str | None) -> int:
    count = msgspec.json.decode(stats or "{}", type=dict[str, Any]).get("numRecords")
    if not isinstance(count, int):
        raise InvalidInput(
            "row ids can't be given out",
            cause="an added file's statistics don't say how many rows it has",
        )
    return count


def _with_column(table: pa.Table, name: str, values: pa.Array) -> pa.Table:
    return table.set_column(table.schema.get_field_index(name), name, values)


def _is_set(metadata: Metadata, name: str) -> bool:
    return metadata.configuration.get(name, "false").lower() == "true"


def _with_domains(
    before: Mapping[str, DomainMetadata], changes: tuple[DomainMetadata, ...]
) -> Mapping[str, DomainMetadata]:
    merged = dict(before) | {domain.domain: domain for domain in changes}
    return {name: domain for name, domain in merged.items() if not domain.removed}


def _checksum_after(
    transaction: Transaction,
    head: Head,
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
    if removes is not None and removes["size"].null_count:
        # What isn't known can't be taken off; no checksum is better than a wrong one.
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
