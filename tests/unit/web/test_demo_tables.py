from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import DeltaTable

import lakeferry
from lakeferry.errors import InvalidInput
from lakeferry.web import demo_tables
from lakeferry.web.demo_tables import DemoTable, make_demo_tables


def test_demo_tables_are_tables_for_every_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo_tables, "DEMO_TABLES", (DemoTable("a/b", 3, 10),))
    old = make_demo_tables(tmp_path / "demo")
    found = lakeferry.Table(str(old / "a/b")).inspect()
    assert (found.version, found.num_files, found.num_rows) == (2, 3, 30)
    assert found.warnings == ()
    rows = DeltaTable(str(old / "a/b")).to_pyarrow_table()
    assert sorted(rows["id"].to_pylist()) == list(range(30))
    assert set(rows["region"].to_pylist()) == {"east", "north", "south"}


def test_nothing_is_written_where_something_is(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for place in (tmp_path, tmp_path / "file"):
        with pytest.raises(InvalidInput):
            make_demo_tables(place)
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(InvalidInput, match="can't be written"):
        make_demo_tables(tmp_path / "file" / "demo")
