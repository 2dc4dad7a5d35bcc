"""Tables that delta-rs has written checkpoints of, with their fields declared required."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

import lakeferry
from lakeferry.api.redirects import Redirects
from lakeferry.storage import open_store
from lakeferry.table import DeltaLog

ROWS = pa.table({"id": [1, 2, 3], "day": ["a b", "c", "x=y"]})


def rows_of(place: Path) -> list[int]:
    found: list[int] = lakeferry.open(str(place)).to_table()["id"].to_pylist()
    return sorted(found)


def without_first_commits(place: Path) -> None:
    """Leave the log what its checkpoint needs, so that it is the checkpoint that is read."""
    for version in range(len(list((place / "_delta_log").glob("*.json"))) - 1):
        (place / "_delta_log" / f"{version:020d}.json").unlink()


@pytest.mark.parametrize("data", ["copy", "reference"])
@pytest.mark.parametrize("partitioned", [True, False])
def test_its_tables_move_and_come_home(tmp_path: Path, data: str, partitioned: bool) -> None:
    source, target = tmp_path / "old", tmp_path / "new"
    by = ["day"] if partitioned else None
    for _ in range(3):
        write_deltalake(str(source), ROWS, mode="append", partition_by=by)
    DeltaTable(str(source)).delete("id = 2")
    DeltaTable(str(source)).create_checkpoint()
    without_first_commits(source)
    before = rows_of(source)
    assert before == [1, 1, 1, 3, 3, 3]
    with Redirects(engine="local") as moves:
        moves.enable(str(source), str(target), data=data)
        assert rows_of(target) == before
        moves.disable(str(source), remove_target=True)
    assert sorted(DeltaTable(str(source)).to_pyarrow_table()["id"].to_pylist()) == before


def test_a_clone_with_its_checkpoint_takes_the_files_along(tmp_path: Path) -> None:
    base, clone, target = tmp_path / "base", tmp_path / "clone", tmp_path / "new"
    write_deltalake(str(base), ROWS)
    (clone / "_delta_log").mkdir(parents=True)
    lines = (base / "_delta_log" / f"{0:020d}.json").read_text().splitlines()
    actions = [json.loads(line) for line in lines]
    for action in actions:
        if "add" in action:
            action["add"]["path"] = f"{base.as_uri()}/{action['add']['path']}"
    text = "\n".join(json.dumps(action) for action in actions)
    (clone / "_delta_log" / f"{0:020d}.json").write_text(text)
    DeltaTable(str(clone)).create_checkpoint()
    with Redirects(engine="local") as moves:
        moves.enable(str(clone), str(target))
    files = DeltaLog(open_store(str(target))).snapshot(0).files["path"].to_pylist()
    assert all(path.startswith("_adopted/file/~/") for path in files)
    assert rows_of(target) == [1, 2, 3]
    assert sorted(DeltaTable(str(target)).to_pyarrow_table()["id"].to_pylist()) == [1, 2, 3]
