"""Reads the demo's table with delta-rs and Polars, which know no redirects."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
from deltalake.exceptions import DeltaError

from lakeferry.examples.demo.writer import orders


def version(place: Path) -> int:
    """Return the newest version that delta-rs finds."""
    return deltalake.DeltaTable(place).version()


def newest(place: Path) -> tuple[int, int]:
    """Return the newest version that delta-rs finds, and how many rows it has."""
    found = version(place)
    return found, count(place, found)


def features(place: Path) -> list[str]:
    """Return the features that delta-rs finds in the protocol."""
    found = deltalake.DeltaTable(place).protocol()
    return sorted({*(found.reader_features or ()), *(found.writer_features or ())})


def count(place: Path, at: int | None = None) -> int:
    """Return how many rows delta-rs finds in a version, or in the newest."""
    (row,) = _query(place, at, "SELECT count(*) AS rows FROM orders").to_pylist()
    return int(row["rows"])


def rows(place: Path, at: int) -> pa.Table:
    """Return all rows that delta-rs finds in a version, in the order of their ids."""
    return _query(place, at, "SELECT id, region, amount FROM orders ORDER BY id, amount")


def _query(place: Path, at: int | None, sql: str) -> pa.Table:
    table = deltalake.DeltaTable(place, version=at)
    # delta-rs's own reader: the one by way of pyarrow has no deletion vectors.
    found: Any = deltalake.QueryBuilder().register("orders", table).execute(sql).read_all()
    return pa.table(found)


def refusal(place: Path, order_id: int) -> str | None:
    """Try to append an order with delta-rs; return what it was refused with, if it was."""
    try:
        deltalake.write_deltalake(
            place, orders(range(order_id, order_id + 1), "north"), mode="append"
        )
    except DeltaError as error:
        return str(error).splitlines()[0]
    return None


def count_with_polars(place: Path, at: int) -> int | None:
    """Return how many rows Polars finds in a version, or ``None`` where it can't be asked."""
    # It looks for files under the encoded name of a folder that has a space in it.
    plain = place.as_uri() == f"file://{place}"
    if not plain or importlib.util.find_spec("polars") is None:
        return None
    import polars

    return int(polars.scan_delta(str(place), version=at).select(polars.len()).collect().item())
