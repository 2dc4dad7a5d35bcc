"""Links at a target on local disk: what they lead to is never the move's to delete."""

from __future__ import annotations

from pathlib import Path

import pytest

from lakeferry.api.redirects import Redirects
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
    # The links aren't the table's, so they stay as well, and nothing else does.
    assert link.is_symlink()
    assert names_in(disk.folder / "new") == sorted(["file", where.partition("/")[0]])


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


@pytest.mark.parametrize(
    ("target", "options"),
    [("alias/new", ()), ("alias", ("--to-existing",))],
    ids=["inside", "same"],
)
def test_a_table_doesn_t_move_into_itself_behind_a_link(
    disk: Lake, target: str, options: tuple[str, ...]
) -> None:
    source = disk.make("old", ORDERS)
    (disk.folder / "alias").symlink_to(disk.folder / "old")
    before = disk.tree()
    ended = disk.run("redirect", "enable", source, disk.uri(target), *options)
    assert ended.error["code"] in {"invalid_input", "redirect_cycle"}
    assert disk.tree() == before


def test_an_unfinished_move_is_known_by_every_path_of_its_source(disk: Lake) -> None:
    source, alias = disk.make("old", ORDERS), disk.uri("alias")
    (disk.folder / "alias").symlink_to(disk.folder / "old")
    before = disk.tree()
    lost = sorted((disk.folder / "old").rglob("*.parquet"))[-1]
    lost.rename(disk.home / "lost")
    assert disk.refused("redirect", "enable", source, disk.uri("new")) == "missing_file"
    (disk.home / "lost").rename(lost)
    assert disk.done("redirect", "status", alias)["unfinished"]["target"] == disk.uri("new")
    assert disk.refused("redirect", "enable", alias, disk.uri("third")) == "redirect_in_progress"
    assert disk.done("redirect", "cancel", alias)["changed"]
    assert disk.tree() == before
