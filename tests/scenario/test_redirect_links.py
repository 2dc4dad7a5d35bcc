"""Links at a target on local disk: what they lead to is never the move's to delete."""

from __future__ import annotations

from pathlib import Path

import pytest

from lakeferry.moves import Redirects
from tests.support.history import Append, Checkpoint, History, Layout
from tests.support.lake import Lake, on_disk

ORDERS = History(Layout(partitioned=True)).then(Append(3), Checkpoint(), Append(2))


@pytest.fixture
def disk(tmp_path: Path) -> Lake:
    return on_disk(tmp_path)


@pytest.fixture
def precious(disk: Lake) -> Path:
    """Return a folder that holds somebody's files, one of them named like a commit."""
    folder = disk.folder / "precious"
    folder.mkdir()
    (folder / "x").write_text("x")
    (folder / f"{0:020d}.json").write_text("{}")
    return folder


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("where", ["link", "_delta_log/link", "deep/er/link"])
def test_a_target_goes_and_what_it_links_to_stays(disk: Lake, precious: Path, where: str) -> None:
    source, target = disk.make("old", ORDERS), disk.uri("new")
    moves = Redirects(engine="local")
    moves.enable(source, target)
    link = disk.folder / "new" / where
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(precious)
    (disk.folder / "new" / "file").symlink_to(precious / "x")
    moves.disable(source, remove_target=True)
    assert names_in(precious) == [f"{0:020d}.json", "x"]
    assert not (disk.folder / "new").exists()


def test_a_target_whose_log_is_elsewhere_goes_with_its_link(disk: Lake) -> None:
    source, target = disk.make("old", ORDERS), disk.uri("new")
    moves = Redirects(engine="local")
    moves.enable(source, target)
    log, elsewhere = disk.folder / "new" / "_delta_log", disk.folder / "log"
    log.rename(elsewhere)
    log.symlink_to(elsewhere)
    moves.disable(source, remove_target=True)
    assert not (disk.folder / "new").exists()
    assert f"{0:020d}.json" in names_in(elsewhere)


def test_a_table_whose_folders_are_links_moves_and_comes_home(disk: Lake) -> None:
    source, target = disk.make("old", ORDERS), disk.uri("new")
    folder = disk.folder / "old"
    for each in [path for path in folder.iterdir() if path.is_dir()]:
        elsewhere = disk.folder / f"{each.name} elsewhere"
        each.rename(elsewhere)
        each.symlink_to(elsewhere)
    (disk.folder / "old").rename(disk.folder / "really old")
    folder.symlink_to(disk.folder / "really old")
    before = disk.table("old").files().read_all().num_rows
    assert before > 0
    moves = Redirects(engine="local")
    moves.enable(source, target)
    assert disk.table("new").files().read_all().num_rows == before
    moves.disable(source, remove_target=True)
    assert disk.table("old").files().read_all().num_rows == before
    assert not (disk.folder / "new").exists()
