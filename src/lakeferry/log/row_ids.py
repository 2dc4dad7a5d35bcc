"""Assigns row ids to new files.

Implements the writer's side of the protocol's "Row Tracking". In a table that supports it, every
added file has the id of its first row; the highest assigned id is stored in a metadata domain.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import pyarrow as pa

from lakeferry.errors import CorruptLog, InvalidInput
from lakeferry.log import features, file_actions, properties
from lakeferry.log.actions import DomainMetadata, Metadata, Protocol

DOMAIN = "delta.rowTracking"
_MARK = "rowIdHighWaterMark"


def are_given_out(protocol: Protocol, metadata: Metadata) -> bool:
    """Return True if files that are added to the table get row ids."""
    supported = "rowTracking" in features.implied_features(protocol)
    return supported and not properties.suspends_row_ids(metadata.configuration)


def are_kept(adds: pa.Table | None, removes: pa.Table | None) -> bool:
    """Return True if every row keeps its id: new files must contain the replaced files' ids."""
    if adds is None or removes is None:
        return True
    return not adds["baseRowId"].null_count


def high_water_mark(domains: Mapping[str, DomainMetadata]) -> int:
    """Return the highest assigned row id; -1 if there is none."""
    domain = domains.get(DOMAIN)
    if domain is None:
        return -1
    try:
        value = msgspec.json.decode(domain.configuration, type=dict[str, Any])
        return int(value.get(_MARK, -1))
    except (msgspec.MsgspecError, RecursionError, TypeError, ValueError) as broken:
        raise CorruptLog(
            "the table's row ids can't be continued",
            cause=f"the domain {DOMAIN} can't be read: {broken}",
        ) from broken


def without_row_ids(adds: pa.Table, *, data_change: bool) -> pa.Table:
    """Return files without their row ids, to be added again or to another table."""
    rows = adds.num_rows
    for name in ("baseRowId", "defaultRowCommitVersion"):
        adds = file_actions.with_column(adds, name, pa.nulls(rows, pa.int64()))
    return file_actions.with_column(adds, "dataChange", pa.array([data_change] * rows, pa.bool_()))


def give_out(
    adds: pa.Table, domains: Mapping[str, DomainMetadata], version: int, above: int = -1
) -> tuple[pa.Table, tuple[DomainMetadata, ...]]:
    """Assign ids to added files that have none; return the files, and the mark if it has changed.

    New ids are above the table's mark and above ``above``.
    """
    before = high_water_mark(domains)
    mark = max(before, above)
    ids: list[int] = []
    versions: list[int] = []
    columns = ("baseRowId", "defaultRowCommitVersion", "stats")
    for base, since, text in zip(*(adds[name].to_pylist() for name in columns), strict=True):
        rows = _num_records(text)
        if base is None and rows is None:
            raise InvalidInput(
                "row ids can't be assigned",
                cause="an added file's statistics don't say how many rows it has",
            )
        ids.append(mark + 1 if base is None else base)
        versions.append(version if base is None or since is None else since)
        mark = max(mark, ids[-1] + (rows or 0) - 1)
    adds = file_actions.with_column(adds, "baseRowId", pa.array(ids, pa.int64()))
    adds = file_actions.with_column(adds, "defaultRowCommitVersion", pa.array(versions, pa.int64()))
    if mark == before:
        return adds, ()
    return adds, (DomainMetadata(DOMAIN, msgspec.json.encode({_MARK: mark}).decode()),)


def _num_records(text: str | None) -> int | None:
    try:
        count = msgspec.json.decode(text or "{}", type=dict[str, Any]).get("numRecords")
    except (msgspec.MsgspecError, RecursionError):
        return None
    return count if isinstance(count, int) else None
