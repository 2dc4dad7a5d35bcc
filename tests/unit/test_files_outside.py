"""Files that a log names by relative paths which lead out of the table's folder."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import lakeferry
from lakeferry import Table
from lakeferry.errors import CorruptLog, InvalidInput, UnsupportedFeature
from lakeferry.storage.uris import resolve
from lakeferry.transfer import delta_blocks
from tests.unit.test_dataset import PROTOCOL, add, commit, metadata


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A table with a file of its own and one of its neighbour's."""
    here, there = tmp_path / "clone", tmp_path / "source" / "day=1"
    there.mkdir(parents=True)
    here.mkdir()
    pq.write_table(pa.table({"id": [1, 2]}), there / "a b.parquet")
    pq.write_table(pa.table({"id": [3]}), here / "own.parquet")
    commit(
        here,
        0,
        PROTOCOL,
        metadata({"id": "long"}, []),
        add("../source/day=1/a%20b.parquet", (there / "a b.parquet").stat().st_size),
        add("own.parquet", (here / "own.parquet").stat().st_size),
    )
    return here


def test_they_are_read_where_they_are(clone: Path) -> None:
    assert sorted(lakeferry.open(str(clone)).to_table()["id"].to_pylist()) == [1, 2, 3]
    uris = [uri for batch in Table(str(clone)).files() for uri in batch["path"].to_pylist()]
    assert f"{clone.parent.as_uri()}/source/day=1/a%20b.parquet" in uris
    assert Table(str(clone)).verify(Table(str(clone)), rows=True, engine="local").equal
    Table(str(clone)).checkpoint()
    assert lakeferry.open(str(clone)).count_rows() == 3


def test_a_move_by_copy_refuses_and_one_by_reference_goes_on(clone: Path) -> None:
    before = sorted(path.name for path in clone.rglob("*"))
    with pytest.raises(UnsupportedFeature, match="outside of its folder"):
        Table(str(clone)).redirect(str(clone.parent / "new"), engine="local")
    assert Table(str(clone)).redirect_status().as_document()["state"] == "NORMAL"
    assert [
        name for name in sorted(path.name for path in clone.rglob("*")) if name not in before
    ] == []
    shutil.rmtree(clone.parent / "new", ignore_errors=True)
    Table(str(clone)).redirect(str(clone.parent / "refers"), data="reference", engine="local")
    assert lakeferry.open(str(clone)).count_rows() == 3
    assert lakeferry.open(str(clone.parent / "refers")).count_rows() == 3
    Table(str(clone)).redirect_disable(engine="local", remove_target=True)
    assert (clone.parent / "source" / "day=1" / "a b.parquet").exists()
    assert lakeferry.open(str(clone)).count_rows() == 3


def test_transfers_never_follow_them() -> None:
    for path in ("../x", "a/../../x", "./../x", "../../etc/passwd"):
        with pytest.raises(UnsupportedFeature, match="outside"):
            delta_blocks.decoded(path)


def test_they_stay_in_their_store() -> None:
    assert resolve("s3://b/x/t", "../u/a.parquet") == "s3://b/x/u/a.parquet"
    assert resolve("s3://b/x/t", "../../a.parquet") == "s3://b/a.parquet"
    for root, path in (
        ("s3://b/t", "../../a"),
        ("file:///t", "../../a"),
        ("s3://b/t", "../%2e%2e/a"),
    ):
        with pytest.raises(InvalidInput):
            resolve(root, path)


def test_one_that_leads_out_of_its_store_is_corrupt(tmp_path: Path) -> None:
    up = "../" * 40
    commit(tmp_path, 0, PROTOCOL, metadata({"id": "long"}, []), add(f"{up}a.parquet", 9))
    with pytest.raises(CorruptLog):
        lakeferry.open(str(tmp_path))
