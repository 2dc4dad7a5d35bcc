"""Files that a log names by relative paths which lead out of the table's folder."""

from __future__ import annotations

from itertools import pairwise, permutations
from pathlib import Path
from typing import Literal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import lakeferry
from lakeferry import Table
from lakeferry.errors import CorruptLog, InvalidInput, UnsupportedFeature
from lakeferry.storage.uris import resolve_path
from lakeferry.transfer.datasets.delta import named_files
from tests.unit.dataset.test_dataset import PROTOCOL, add, commit, metadata


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


def ids(table: Path) -> list[int]:
    return sorted(lakeferry.open(str(table)).to_table()["id"].to_pylist())


def test_a_move_by_copy_takes_them_along_and_they_come_home_by_their_paths(clone: Path) -> None:
    new, theirs = clone.parent / "new", clone.parent / "source" / "day=1" / "a b.parquet"
    # A second spelling of the path, which takes the file away and brings it back.
    size = theirs.stat().st_size
    removed = {"remove": {"path": "./../source/day=1/a%20b.parquet", "dataChange": True}}
    commit(clone, 1, removed)
    commit(clone, 2, add("../source/day=1/a%20b.parquet", size))
    body = theirs.read_bytes()
    Table(str(clone)).redirect(str(new), engine="local")
    inside = new / "_adopted" / "~1" / "source" / "day=1" / "a b.parquet"
    assert inside.read_bytes() == body
    assert ids(clone) == ids(new) == [1, 2, 3]
    assert lakeferry.open(str(new), version=1).count_rows() == 1
    # At the new place it is a file like any other.
    newest = Table(str(new)).inspect().version
    gone = {"path": "_adopted/~1/source/day=1/a%20b.parquet", "dataChange": True}
    commit(new, newest + 1, {"remove": gone})
    assert ids(clone) == [3]
    Table(str(clone)).redirect_disable(engine="local", remove_target=True)
    assert ids(clone) == [3]
    assert lakeferry.open(str(clone), version=newest).count_rows() == 3
    assert theirs.read_bytes() == body
    assert not new.exists()


def test_one_that_is_named_again_at_the_new_place_comes_home_by_its_path(clone: Path) -> None:
    new, theirs = clone.parent / "new", clone.parent / "source" / "day=1" / "a b.parquet"
    Table(str(clone)).redirect(str(new), engine="local")
    newest, size = Table(str(new)).inspect().version, theirs.stat().st_size
    again = add("_adopted/~1/source/day=1/a%20b.parquet", size)
    commit(new, newest + 1, again)
    Table(str(clone)).redirect_disable(engine="local")
    assert ids(clone) == [1, 2, 3]
    assert not (clone / "_adopted").exists()


def test_a_move_by_reference_leaves_them_where_they_are(clone: Path) -> None:
    Table(str(clone)).redirect(str(clone.parent / "refers"), data="reference", engine="local")
    assert ids(clone) == ids(clone.parent / "refers") == [1, 2, 3]
    Table(str(clone)).redirect_disable(engine="local", remove_target=True)
    assert (clone.parent / "source" / "day=1" / "a b.parquet").exists()
    assert ids(clone) == [1, 2, 3]


@pytest.mark.parametrize("data", ["copy", "reference"])
def test_one_beside_the_new_place_stays_there_when_the_table_comes_home(
    clone: Path, data: Literal["copy", "reference"]
) -> None:
    new, beside = clone.parent / "far" / "new", clone.parent / "far" / "beside.parquet"
    Table(str(clone)).redirect(str(new), data=data, engine="local")
    pq.write_table(pa.table({"id": [4]}), beside)
    newest = Table(str(new)).inspect().version
    commit(new, newest + 1, add("../beside.parquet", beside.stat().st_size))
    home = "own.parquet" if data == "copy" else f"file:{clone}/own.parquet"
    commit(new, newest + 2, {"remove": {"path": home, "dataChange": True}})
    assert ids(clone) == [1, 2, 4]
    Table(str(clone)).redirect_disable(engine="local", remove_target=True)
    assert ids(clone) == [1, 2, 4]
    assert not new.exists()


def test_transfers_never_follow_them() -> None:
    for path in ("../x", "a/../../x", "./../x", "../../etc/passwd"):
        with pytest.raises(UnsupportedFeature, match="outside"):
            named_files.decoded(path)


def test_they_stay_in_their_store() -> None:
    assert resolve_path("s3://b/x/t", "../u/a.parquet") == "s3://b/x/u/a.parquet"
    assert resolve_path("s3://b/x/t", "../../a.parquet") == "s3://b/a.parquet"
    for root, path in (
        ("s3://b/t", "../../a"),
        ("file:///t", "../../a"),
        ("s3://b/t", "../%2e%2e/a"),
    ):
        with pytest.raises(InvalidInput):
            resolve_path(root, path)


def test_one_that_leads_out_of_its_store_is_corrupt(tmp_path: Path) -> None:
    up = "../" * 40
    commit(tmp_path, 0, PROTOCOL, metadata({"id": "long"}, []), add(f"{up}a.parquet", 9))
    with pytest.raises(CorruptLog):
        lakeferry.open(str(tmp_path))


def test_a_table_that_took_them_along_is_equal_to_the_one_that_names_them(tmp_path: Path) -> None:
    here, outside = tmp_path / "clone", tmp_path / "out side.parquet"
    here.mkdir()
    pq.write_table(pa.table({"id": [1, 2]}), outside)
    size = outside.stat().st_size
    commit(here, 0, PROTOCOL, metadata({"id": "long"}, []), add(outside.as_uri(), size))
    places = [here, tmp_path / "once", tmp_path / "twice"]
    for source, target in pairwise(places):
        Table(str(source)).redirect(str(target), engine="local")
    for a, b in permutations(places, 2):
        result = Table(str(a)).verify(Table(str(b)), digest=True, rows=True, engine="local")
        assert result.equal, result.differences
    pq.write_table(pa.table({"id": [1, 2, 3]}), outside)
    result = Table(str(here)).verify(Table(str(places[1])), digest=True, engine="local")
    assert [each.kind for each in result.differences] == ["digest"]
