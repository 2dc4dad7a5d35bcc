"""Clients refuse what we say they can't read or write, and nothing else.

Of the features that a managed table requires, and that may come back with it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import polars
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from lakeferry.clients.redirect_effects import lost_access
from tests.compat.test_components import rows_by_duckdb

ROWS = pa.table({"id": pa.array([1, 2], pa.int64())})
READERS = ("deletionVectors", "v2Checkpoint", "vacuumProtocolCheck")


def table_with(folder: Path, feature: str) -> str:
    """Return a table of two rows that has a feature, and doesn't use it."""
    location = str(folder)
    write_deltalake(location, ROWS)
    path = folder / "_delta_log" / "00000000000000000000.json"
    actions = [json.loads(line) for line in path.read_text().splitlines()]
    actions.sort(key=lambda action: "commitInfo" not in action)
    actions[0]["commitInfo"]["inCommitTimestamp"] = 1_700_000_000_000
    for action in actions:
        if "protocol" in action:
            readers = {"readerFeatures": [feature]} if feature in READERS else {}
            action["protocol"] = {
                "minReaderVersion": 3 if readers else 1,
                "minWriterVersion": 7,
                "writerFeatures": [feature],
                **readers,
            }
        if "metaData" in action and feature == "inCommitTimestamp":
            action["metaData"]["configuration"] = {"delta.enableInCommitTimestamps": "true"}
    path.write_text("".join(f"{json.dumps(action)}\n" for action in actions))
    return location


def can(act: Callable[[], object]) -> bool:
    """Return whether a client does something."""
    try:
        act()
    except Exception as refused:
        if "feature" not in str(refused):
            raise
        return False
    return True


@pytest.mark.parametrize("feature", ["deletionVectors", "inCommitTimestamp", "appendOnly"])
def test_clients_lose_what_we_say_that_they_lose(tmp_path: Path, feature: str) -> None:
    table = table_with(tmp_path / "table", feature)
    lost = {client.name: client for client in lost_access([feature])}
    reads = {
        "delta-rs": lambda: DeltaTable(table).to_pyarrow_table(),
        "Polars": lambda: polars.read_delta(table),
        "DuckDB": lambda: rows_by_duckdb(table),
    }
    for name, read in reads.items():
        assert can(read) is not (name in lost and bool(lost[name].reads)), name
    # Polars writes with delta-rs.
    wrote = can(lambda: write_deltalake(table, ROWS, mode="append"))
    assert wrote is not ("Polars" in lost)


@pytest.mark.parametrize("feature", ["v2Checkpoint", "vacuumProtocolCheck"])
def test_features_that_stay_away_would_lock_clients_out(tmp_path: Path, feature: str) -> None:
    table = table_with(tmp_path / "table", feature)
    assert not can(lambda: DeltaTable(table).to_pyarrow_table())
    assert not can(lambda: polars.read_delta(table))
