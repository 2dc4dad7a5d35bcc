"""Compares two tables: by their logs, and on request by digests and rows of their files.

:mod:`lakeferry.table.log_comparison` says when two tables are equal. ``digest`` and ``rows`` read
the files too, and then a missing file is a difference.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from lakeferry.engine import PAIR, Engine, Look, LookPlan, Observer, unobserved
from lakeferry.engines.engine_choice import suitable
from lakeferry.log import schema
from lakeferry.log.replay import Snapshot
from lakeferry.table.log_comparison import Difference as Difference
from lakeferry.table.log_comparison import (
    Differences,
    LogComparison,
    TableSide,
    compare_logs,
    in_both,
)


@dataclass(frozen=True, slots=True)
class Verification:
    """The result: all differences counted, the first ones listed."""

    a: Mapping[str, object]
    b: Mapping[str, object]
    differences: tuple[Difference, ...]
    difference_count: int
    rows: Mapping[str, int | None] | None
    """How many rows each table has, if they were counted."""

    @property
    def equal(self) -> bool:
        """Whether there are no differences."""
        return self.difference_count == 0

    def as_document(self) -> dict[str, Any]:
        """Return the JSON document of the command ``verify``."""
        return {"equal": self.equal} | cast(dict[str, Any], msgspec.to_builtins(self))


def verify(
    a: TableSide,
    b: TableSide,
    *,
    digest: bool = False,
    rows: bool = False,
    engine: str = "auto",
    observer: Observer = unobserved,
    warn: Callable[[str], None] = lambda _: None,
) -> Verification:
    """Compare two tables; ``engine`` names the engine that reads files for digests and rows."""
    if not digest and not rows:
        return _result(a, b, compare_logs(a, b), None)
    if rows:
        for side in (a, b):
            _check_type_changes(side.snapshot)
    objects = a.snapshot.num_files + b.snapshot.num_files
    size_bytes = a.snapshot.size_bytes + b.snapshot.size_bytes
    from lakeferry.engines import open_engine

    totals = None
    with open_engine(suitable(engine, objects, size_bytes, warn)) as opened:
        compared = compare_logs(a, b)
        if digest:
            both = compared.files_of_both
            _compare_digests(
                _looked((a, b), both, "digest", opened, observer), compared.differences
            )
        if rows:
            looked = _looked((a, b), compared.files, "rows", opened, observer)
            totals = _compare_rows(looked, compared.differences)
    return _result(a, b, compared, totals)


def _check_type_changes(snapshot: Snapshot) -> None:
    """Raise an error if a column had an unsupported type change: its files can't be read."""
    if snapshot.metadata.schema_string:
        schema.schema_columns(snapshot.metadata, with_unreadable=snapshot.protocol)


def _result(
    a: TableSide, b: TableSide, compared: LogComparison, rows: Mapping[str, int | None] | None
) -> Verification:
    found = compared.differences
    return Verification(_summary(a), _summary(b), tuple(found.listed), found.count, rows)


def _summary(side: TableSide) -> dict[str, object]:
    snapshot = side.snapshot
    return {
        "location": side.store.uri,
        "version": snapshot.version,
        "num_files": snapshot.num_files,
        "size_bytes": snapshot.size_bytes,
    }


def _looked(
    sides: tuple[TableSide, TableSide],
    files: pa.Table,
    what: Look,
    engine: Engine,
    observer: Observer,
) -> Iterator[pa.Table]:
    """Yield the files with the results of looking at them, in bounded batches."""
    pairs = files.select(PAIR.names).cast(PAIR)
    a, b = (side.store.config for side in sides)
    start = 0
    for batch in engine.look(LookPlan(a, b, pairs, what), observer):
        rows = files.slice(start, len(batch))
        start += len(batch)
        for name in batch.schema.names:
            rows = rows.append_column(name, batch.column(name))
        yield rows


def _compare_digests(looked: Iterator[pa.Table], found: Differences) -> None:
    for rows in looked:
        same = pc.equal(rows["digest_a"], rows["digest_b"])
        vectors = pc.and_(
            pc.equal(rows["deleted_a"], rows["deleted_b"]),
            pc.not_equal(
                pc.fill_null(rows["vector_digest_a"], ""), pc.fill_null(rows["vector_digest_b"], "")
            ),
        )
        differ = pc.or_(pc.invert(pc.fill_null(same, False)), vectors)
        for row in rows.filter(differ).to_pylist():
            a, b = row["digest_a"], row["digest_b"]
            if a is None or b is None:
                found.add("missing_file", row["path"], a, b)
            elif a != b:
                found.add("digest", row["path"], a, b)
            a, b = row["vector_digest_a"], row["vector_digest_b"]
            if row["deleted_a"] == row["deleted_b"] and a != b:
                found.add("deletion_vector_digest", row["path"], a, b)


def _compare_rows(looked: Iterator[pa.Table], found: Differences) -> dict[str, int | None]:
    totals: dict[str, int | None] = {"a": 0, "b": 0}
    for rows in looked:
        counts = {}
        for side, total in totals.items():
            there = pc.subtract(rows[f"rows_{side}"], pc.fill_null(rows[f"deleted_{side}"], 0))
            counts[side] = there
            if total is not None:
                totals[side] = None if there.null_count else total + (pc.sum(there).as_py() or 0)
        readable = pc.and_(pc.is_valid(counts["a"]), pc.is_valid(counts["b"]))
        wrong = pc.and_(in_both(rows), pc.fill_null(pc.not_equal(counts["a"], counts["b"]), False))
        columns = {"path": rows["path"], **counts, "readable": readable}
        for row in pa.table(columns).filter(pc.or_(wrong, pc.invert(readable))).to_pylist():
            kind = "row_count" if row["readable"] else "unreadable_file"
            found.add(kind, row["path"], row["a"], row["b"])
    if totals["a"] != totals["b"]:
        found.add("row_count", None, totals["a"], totals["b"])
    return totals
