"""A command reads each file of a log once, whether or not a redirect leads to it."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import lakeferry
from lakeferry.engines.local_engine import LocalEngine
from lakeferry.log.commit import Transaction
from lakeferry.log.lines import Lines
from lakeferry.redirect.resolve import _Logs
from lakeferry.storage import open_store
from lakeferry.table import DeltaLog, load
from tests.support.file_reads import FileReads, count_reads
from tests.support.history import Append, Checkpoint, Checksum, Delete, History, Kind, Layout

# What may be read a second time, by a part of its name.
HINT = "/_last_checkpoint"
"""Right before it is replaced: another process may have moved it forward."""
PREDECESSOR = ".crc"
"""A commit continues the checksum file of the version before, if that is still there."""
LAST_BASE = ".checkpoint."
"""Right before the commits are deleted that nothing but this checkpoint replaces."""
ENGINE = "/_delta_log/"
"""An engine exports log files with a store of its own, perhaps in other processes."""

FEATURES = Layout(domains=True, v2_checkpoints=True)
RECENT = History(FEATURES).then(Append(3), Delete(1), Checkpoint(), Append(2), Append(1), Append(1))
PASTS = {
    "recent commits": RECENT,
    "a checksum file": RECENT.then(Checksum()),
    "a large checkpoint": History(FEATURES).then(Append(9_000), Checkpoint(), Append(1), Append(1)),
    "a checkpoint of the newest version": RECENT.then(Checkpoint()),
    "a V2 checkpoint": History(FEATURES).then(
        Append(3), Checkpoint(Kind.V2_JSON), Append(1), Append(1)
    ),
}


@functools.cache
def objects(past: str) -> dict[str, bytes]:
    return PASTS[past].objects(with_data=past == "recent commits")


def table_at(place: Path, past: str = "recent commits") -> lakeferry.Table:
    """Write a table whose log files are a minute apart, and long ago."""
    for number, (name, data) in enumerate(objects(past).items()):
        file = place / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
        os.utime(file, (1_700_000_000 + 60 * number,) * 2)
    return lakeferry.Table(str(place))


@dataclass(frozen=True)
class Case:
    """A command, how often it may list logs, and which files it may read again."""

    run: Callable[[lakeferry.Table, Path], object]
    lists: int
    lists_redirected: int | None = None
    """More for a redirected table; ``None`` if the command is refused there."""
    again: tuple[str, ...] = ()
    """Parts of the names of files that may be read a second time; each with a reason."""


def opened(table: lakeferry.Table, _: Path) -> object:
    return lakeferry.open(table.uri)


def compared(table: lakeferry.Table, folder: Path) -> object:
    return table.verify(lakeferry.Table(str(folder / "other")))


CASES = {
    "files": Case(lambda table, _: table.files(engine="local").read_all(), 1, 2),
    "files of an older version": Case(
        lambda table, _: table.files(1, engine="local").read_all(), 2, 3
    ),
    "files at a time": Case(
        lambda table, _: table.files(timestamp_ms=2**41, engine="local").read_all(), 2, 3
    ),
    "snapshot": Case(lambda table, _: table.snapshot(), 1, 2),
    "history": Case(lambda table, _: table.history(), 2, 3),
    "history of two": Case(lambda table, _: table.history(2), 2, 3),
    "open": Case(opened, 1, 2),
    "inspect": Case(lambda table, _: table.inspect(), 3, 5),
    "features": Case(lambda table, _: table.features(), 1, 1),
    "status": Case(lambda table, _: table.redirect_status(), 1, 3),
    "verify": Case(compared, 2, 2),
    "export": Case(lambda table, folder: table.export(str(folder / "export")), 2, 3, (ENGINE,)),
    "export --dry-run": Case(
        lambda table, folder: table.export(str(folder / "export"), dry_run=True), 2, 3
    ),
    "move --dry-run": Case(
        lambda table, folder: table.redirect(str(folder / "moved"), dry_run=True), 3
    ),
    "recent writers": Case(lambda table, _: table.recent_writers("memory://new"), 2, 1),
    "checkpoint": Case(lambda table, _: table.checkpoint(), 2, again=(HINT,)),
    "checkpoint of an older version": Case(lambda table, _: table.checkpoint(1), 3, again=(HINT,)),
    "checkpoint --dry-run": Case(lambda table, _: table.checkpoint(dry_run=True), 1),
    "cleanup": Case(
        lambda table, _: table.cleanup(retention="1s", force=True), 4, again=(HINT, LAST_BASE)
    ),
    "cleanup --dry-run": Case(
        lambda table, _: table.cleanup(retention="1s", force=True, dry_run=True), 3
    ),
    "drop": Case(
        lambda table, _: table.drop_feature("domainMetadata"), 10, again=(HINT, PREDECESSOR)
    ),
    "drop --dry-run": Case(lambda table, _: table.drop_feature("domainMetadata", dry_run=True), 4),
    "drop behind barriers": Case(
        lambda table, _: table.drop_feature("v2Checkpoint"), 17, again=(HINT, PREDECESSOR)
    ),
}


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> FileReads:
    """Return what is read from local disk in this test."""
    return count_reads(monkeypatch)


def run(case: Case, table: lakeferry.Table, folder: Path, reads: FileReads) -> None:
    reads.spans.clear()
    reads.lists.clear()
    case.run(table, folder)
    left = {
        name.rpartition("/_delta_log/")[2]: count
        for name, count in reads.again().items()
        if not any(part in name for part in case.again)
    }
    assert not left


QUICK = [past for past in PASTS if past != "a large checkpoint"]
LARGE = (
    "files",
    "history",
    "recent writers",
    "open",
    "inspect",
    "features",
    "checkpoint",
    "cleanup",
    "drop",
)


@pytest.mark.parametrize(
    ("command", "past"),
    [
        *((command, past) for command in CASES for past in QUICK),
        *((command, "a large checkpoint") for command in LARGE),
    ],
)
def test_each_log_file_is_read_once(
    command: str, past: str, reads: FileReads, tmp_path: Path
) -> None:
    case = CASES[command]
    table_at(tmp_path / "other")
    table = table_at(tmp_path / "t", past)
    run(case, table, tmp_path, reads)
    assert reads.log_lists <= case.lists


def append(place: Path, count: int) -> None:
    for _ in range(count):
        log = DeltaLog(open_store(str(place)))
        log.commit(Transaction("WRITE", "id"), log.state())


@pytest.mark.parametrize("commits", [0, 2])
@pytest.mark.parametrize(
    "command", [name for name, case in CASES.items() if case.lists_redirected is not None]
)
def test_each_log_file_of_a_redirected_table_is_read_once(
    command: str, commits: int, reads: FileReads, tmp_path: Path
) -> None:
    case = CASES[command]
    table_at(tmp_path / "other")
    table = table_at(tmp_path / "t")
    table.redirect(str(tmp_path / "new"))
    append(tmp_path / "new", commits)
    run(case, table, tmp_path, reads)
    assert reads.log_lists <= (case.lists_redirected or 0)


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Return whether the file actions were kept, each time that commits are read in this test."""
    found: list[bool] = []
    read_deltas = load.read_deltas

    def read(*args: Any, **options: Any) -> Lines:
        lines = read_deltas(*args, **options)
        found.append(lines.keeps_files)
        return lines

    monkeypatch.setattr(load, "read_deltas", read)
    return found


WITHOUT_FILES: dict[str, Callable[[lakeferry.Table], object]] = {
    "history": lambda table: table.history(),
    "files of an older version": lambda table: table.files(1, engine="local"),
    "files at a time": lambda table: table.files(timestamp_ms=2**41, engine="local"),
    "snapshot of an older version": lambda table: table.snapshot(1),
    "open of an older version": lambda table: lakeferry.open(table.uri, version=1),
}


@pytest.mark.parametrize("command", WITHOUT_FILES)
def test_the_newest_files_are_kept_only_if_they_are_asked_for(
    command: str, kept: list[bool], tmp_path: Path
) -> None:
    WITHOUT_FILES[command](table_at(tmp_path / "t"))
    assert kept[0] is False


def test_files_that_spark_reads_are_not_kept_here(
    kept: list[bool], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("lakeferry.engines.engine_choice.spark_is_installed", lambda: True)
    monkeypatch.setattr("lakeferry.engine.FEW_BYTES", 1)
    monkeypatch.setattr("lakeferry.engines.open_engine", lambda _: LocalEngine())
    found = table_at(tmp_path / "t").files(engine="auto").read_all()
    assert found.num_rows > 0
    assert kept[0] is False


def test_files_that_a_redirect_leads_away_from_are_not_kept(tmp_path: Path) -> None:
    table_at(tmp_path / "t").redirect(str(tmp_path / "new"))
    source, target = (f"file://{tmp_path}/{name}" for name in ("t", "new"))
    logs = _Logs(open_store, lambda _: None, keeps_files=True)
    logs.newest(source)
    logs.newest(target)
    assert [*logs.readings] == [target]
