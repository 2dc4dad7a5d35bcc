"""Worlds in memory with a table that has moved into the catalog of ``stored_tables``."""

from __future__ import annotations

import pyarrow as pa

from lakeferry.log import file_actions
from lakeferry.log.commit import Transaction
from lakeferry.redirect.enable import enabling
from lakeferry.redirect.redirect_context import Setting
from lakeferry.storage import Store
from lakeferry.table import DeltaLog
from tests.support.history import History
from tests.support.redirects import WORLD, world_with
from tests.support.stored_tables import (
    MANAGED,
    KeptTable,
    StoredTables,
    managed_request,
    managed_setting,
)
from tests.support.stores import DictStore

FIRST = "00000000-0000-4000-8000-000000000000"
"""The id of the first table of a world."""
FIRST_PLACE = f"{MANAGED}/{FIRST}"
VECTOR = {
    "storageType": "i",
    "pathOrInlineDv": "^Bg9^0rr910000000000iXQKl0rr91000f55c8Xg0@@D72lkbi5=-{L",
    "offset": None,
    "sizeInBytes": 44,
    "cardinality": 6,
}


def world_of(past: History) -> DictStore:
    """Return a world with a table at the old place, and a catalog without tables."""
    return DictStore(world_with(past), uri=WORLD)


def moved_world(past: History) -> DictStore:
    """Return a world whose table has moved into the catalog."""
    store = world_of(past)
    enabling.enable(managed_setting(store), managed_request())
    return store


def live_tables(store: Store) -> dict[str, KeptTable]:
    """Return the tables that the catalog has now, by their ids."""
    kept = StoredTables(store).kept()
    return {table_id: table for table_id, table in kept.items() if table.name is not None}


def only_table(store: Store) -> KeptTable:
    """Return the only table that the catalog has."""
    (found,) = live_tables(store).values()
    return found


def granted_place(setting: Setting, table_id: str = FIRST) -> str:
    """Return the place of a table, and let the setting open it with its catalog."""
    unity = setting.catalog("unity")
    found = unity.find_id(table_id)
    assert found is not None
    setting.grant(found.location, unity.access(found))
    return found.location


def log_by_id(setting: Setting, table_id: str = FIRST) -> DeltaLog:
    """Return the log of a table, opened with its catalog."""
    return setting.log(granted_place(setting, table_id))


def mark_deleted(log: DeltaLog, name: str) -> None:
    """Delete rows of a file with an inline deletion vector, as Spark does by default."""
    row = next(each for each in log.snapshot().files.to_pylist() if each["path"] == name)
    adds = pa.Table.from_pylist([{**row, "deletionVector": VECTOR}], schema=file_actions.ADD)
    gone = {"path": name, "deletionTimestamp": log.clock(), "dataChange": True}
    removes = pa.Table.from_pylist([gone], schema=file_actions.REMOVE)
    log.commit(Transaction("DELETE", "txn-mark", adds=adds, removes=removes), log.state())
