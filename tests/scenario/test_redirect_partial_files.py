"""What a killed process leaves of files that it was writing: it goes with the move."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.history import Append, History, Layout
from tests.support.lake import Lake, on_disk

ORDERS = History(Layout(partitioned=True)).then(Append(3), Append(2))
PARTIAL = ".lakeferry-0123456789abcdef.tmp"


@pytest.fixture
def disk(tmp_path: Path) -> Lake:
    """Return a lake with a move that was refused while it copied, and parts of three files."""
    disk = on_disk(tmp_path)
    disk.make("old", ORDERS)
    lost = sorted((disk.folder / "old").rglob("*.parquet"))[-1]
    lost.rename(disk.home / "lost")
    assert disk.refused("redirect", "enable", disk.uri("old"), disk.uri("new")) == "missing_file"
    (disk.home / "lost").rename(lost)
    copied = next((disk.folder / "new").rglob("*.parquet")).parent
    waiting = disk.folder / "new" / "_delta_log" / "_lakeferry"
    for folder in (copied, waiting, disk.folder / "new" / "nested"):
        folder.mkdir(exist_ok=True)
        (folder / PARTIAL).write_bytes(b"half")
    return disk


def test_cancel_deletes_parts_of_files_and_leaves_those_of_others(disk: Lake) -> None:
    done = disk.done("redirect", "cancel", disk.uri("old"))
    assert done["kept"] == [f"nested/{PARTIAL}"]
    left = [path for path in (disk.folder / "new").rglob("*") if path.is_file()]
    assert left == [disk.folder / "new" / "nested" / PARTIAL]


def test_resume_leaves_no_parts_of_files(disk: Lake) -> None:
    assert disk.done("redirect", "resume", disk.uri("old"))["state"] == "READY"
    assert not list((disk.folder / "new").rglob(f"*{PARTIAL}"))


def test_a_removed_target_goes_with_parts_of_files(disk: Lake) -> None:
    disk.done("redirect", "resume", disk.uri("old"))
    folder = next((disk.folder / "new").rglob("*.parquet")).parent
    (folder / PARTIAL).write_bytes(b"half")
    done = disk.done("redirect", "disable", disk.uri("old"), "--remove-target")
    assert done["kept"] == []
    assert not (disk.folder / "new").exists()
