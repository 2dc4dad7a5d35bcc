"""A catalog whose changes stay in memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from lakeferry.catalogs import CatalogTable
from lakeferry.catalogs.overlay_catalog import OverlayCatalog
from lakeferry.catalogs.sql import SqlCatalog
from lakeferry.errors import InvalidInput, TableNotFound

NAME, OTHER = "main.sales.orders", "main.sales.items"


def test_names_that_come_and_go_stay_in_memory(tmp_path: Path) -> None:
    real = SqlCatalog(f"sqlite:///{tmp_path}/catalog.sqlite")
    there = real.register(NAME, "/lake/orders")
    catalog = OverlayCatalog(real)
    assert (catalog.kind, catalog.place) == ("sql", real.place)
    assert catalog.get(NAME) == catalog.find_id(there.table_id) == there
    assert catalog.locate_id(there.table_id) == there.location
    assert catalog.register(OTHER, "/lake/items").location == "file:///lake/items"
    assert catalog.register(OTHER, "/lake/items") == catalog.find(OTHER)
    with pytest.raises(InvalidInput, match="at another place"):
        catalog.register(NAME, "/lake/items")
    assert not catalog.unregister(NAME, "/lake/items")
    assert catalog.unregister(NAME, "/lake/orders")
    assert not catalog.unregister(NAME)
    assert catalog.find(NAME) is catalog.find_id(there.table_id) is None
    assert catalog.locate_id(there.table_id) is None
    with pytest.raises(TableNotFound, match=real.place):
        catalog.get(NAME)
    assert (real.find(NAME), real.find(OTHER)) == (there, None)


def test_a_name_that_moves_keeps_its_id(tmp_path: Path) -> None:
    real = SqlCatalog(f"sqlite:///{tmp_path}/catalog.sqlite")
    there = real.register(NAME, "/lake/orders")
    catalog = OverlayCatalog(real)
    assert catalog.move(NAME, "/new/orders") == catalog.find_id(there.table_id)
    assert catalog.get(NAME).table_id == there.table_id
    assert catalog.locate_id(there.table_id) == "file:///new/orders"
    assert catalog.unregister(NAME, "/new/orders", table_id=there.table_id)
    assert real.get(NAME) == there


def test_a_table_that_the_catalog_owns_keeps_its_name(tmp_path: Path) -> None:
    class Owner(SqlCatalog):
        def find(self, name: str) -> CatalogTable | None:
            return CatalogTable(name, "file:///lake/orders", "7", managed=True)

    real = Owner(f"sqlite:///{tmp_path}/catalog.sqlite")
    assert not OverlayCatalog(real).unregister(NAME)
