"""Targets that delta-rs has changed, and tables that take their place, on local disk."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

import lakeferry
from lakeferry.api.redirects import Redirects
from lakeferry.errors import RedirectTargetReplaced
from lakeferry.redirect.lineage import APP_ID
from lakeferry.redirect.states import RedirectState

ROWS = pa.table({"id": [1, 2, 3]})
OTHER = pa.table({"name": ["a", "b"], "amount": [1.5, 2.5]})


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A table with three versions that has moved to ``new`` beside it."""
    place = tmp_path / "old"
    for _ in range(3):
        write_deltalake(place, ROWS, mode="append")
    with Redirects(engine="local") as moves:
        moves.enable(str(place), str(tmp_path / "new"))
    return place


def clean(target: Path) -> None:
    """Let delta-rs write a checkpoint, and delete what its log cleanup deletes in a month."""
    table = DeltaTable(target)
    table.create_checkpoint()
    for version in range(table.version()):
        for file in (target / "_delta_log").glob(f"{version:020d}.*"):
            file.unlink()


@pytest.mark.parametrize("cleaned", [False, True])
@pytest.mark.parametrize("change", ["append", "overwrite", "restore"])
def test_what_delta_rs_does_to_the_moved_table_is_legitimate(
    source: Path, change: str, cleaned: bool
) -> None:
    target = source.parent / "new"
    write_deltalake(target, ROWS, mode="append")
    if change == "overwrite":
        write_deltalake(target, OTHER, mode="overwrite", schema_mode="overwrite")
    elif change == "restore":
        DeltaTable(target).restore(1)
    if cleaned:
        clean(target)
    assert lakeferry.resolve(str(source)) == target.as_uri()
    expected = lakeferry.open(str(target)).to_table()
    assert lakeferry.open(str(source)).to_table().num_rows == expected.num_rows
    with Redirects(engine="local") as moves:
        assert moves.status(str(source)).warnings == ()
        assert moves.disable(str(source)).state is RedirectState.NORMAL
    home = DeltaTable(source).to_pyarrow_table()
    assert (home.num_rows, home.schema.names) == (expected.num_rows, expected.schema.names)


def test_transactions_of_a_move_are_in_checkpoints_of_delta_rs(source: Path) -> None:
    target = source.parent / "new"
    clean(target)
    lines = (target / "_delta_log").glob("*.checkpoint.parquet")
    import pyarrow.parquet as pq

    rows = pq.read_table(next(lines), columns=["txn"])["txn"].drop_null().to_pylist()
    assert [row["appId"].startswith(APP_ID) for row in rows if row["appId"]] == [True]


@pytest.mark.parametrize("commits", [1, 5, 12])
def test_a_table_that_took_the_place_is_told_by_everybody(source: Path, commits: int) -> None:
    target = source.parent / "new"
    # What was found out before is remembered, and must not be relied on.
    assert lakeferry.resolve(str(source)) == target.as_uri()
    assert lakeferry.open(str(source)).to_table().num_rows == 9
    shutil.rmtree(target)
    for _ in range(commits):
        write_deltalake(target, OTHER, mode="append")
    with Redirects(engine="local") as moves:
        for act in (
            lambda: lakeferry.resolve(str(source)),
            lambda: lakeferry.resolve(str(source), write=True),
            lambda: lakeferry.open(str(source)),
            lambda: lakeferry.Table(str(source)).snapshot(),
            lambda: moves.disable(str(source), remove_target=True),
        ):
            with pytest.raises(RedirectTargetReplaced):
                act()
        outcome = moves.disable(str(source), abandon_target=True)
    assert (outcome.state, outcome.lost_versions) == (RedirectState.NORMAL, None)
    assert DeltaTable(source).to_pyarrow_table().num_rows == 9
    assert DeltaTable(target).to_pyarrow_table().num_rows == 2 * commits


def test_a_name_that_another_table_got_is_told(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAKEFERRY_SQL_URL", f"sqlite:///{tmp_path}/catalog.sqlite")
    place, target, other = tmp_path / "named", tmp_path / "there", tmp_path / "other"
    write_deltalake(place, ROWS)
    write_deltalake(other, OTHER)
    with Redirects(engine="local") as moves:
        moves.enable(str(place), "sql:a.b.t", location=str(target))
        moves.setting.catalog("sql").move("a.b.t", other.as_uri())
        with pytest.raises(RedirectTargetReplaced):
            lakeferry.resolve(str(place))
        with pytest.raises(RedirectTargetReplaced):
            moves.disable(str(place))
        assert moves.disable(str(place), abandon_target=True).state is RedirectState.NORMAL
    found = moves.setting.catalog("sql").find("a.b.t")
    assert found is not None
    assert found.location == other.as_uri()
    assert DeltaTable(other).version() == 0
