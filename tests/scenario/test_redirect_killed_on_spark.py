"""A move on Spark whose driver is killed: executors may write a moment longer, and harm nothing.

A run takes its share of the moments and ways to end it: each needs a Spark of its own.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from lakeferry.api.redirects import Redirects
from lakeferry.redirect.states import RedirectState
from tests.support.shares import Share

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark of its own")]

FILES = 400


def make_table(place: Path) -> list[int]:
    rows = pa.table({"id": list(range(FILES)), "part": [number % 200 for number in range(FILES)]})
    for start in (0, FILES // 2):
        write_deltalake(
            str(place), rows.slice(start, FILES // 2), mode="append", partition_by=["part"]
        )
    return list(range(FILES))


def ids(place: Path) -> list[int]:
    return sorted(DeltaTable(str(place)).to_pyarrow_table()["id"].to_pylist())


def kill_at(folder: Path, moment: str) -> None:
    """Move a table on Spark in a process of its own, and kill that process."""
    command = [sys.executable, "-m", "tests.support.killed_move", "enable"]
    command += [str(folder / "old"), str(folder / "new"), "--engine", "spark"]
    if moment != "copying":
        command += ["--at", moment]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as mover:
        if moment == "copying":
            wait_for_copies(folder / "new", mover)
            mover.kill()
        _, errors = mover.communicate(timeout=240)
    assert mover.returncode == -signal.SIGKILL, errors


def wait_for_copies(place: Path, mover: subprocess.Popen[str]) -> None:
    """Return when some files have arrived, and not all."""
    while mover.poll() is None:
        arrived = sum(1 for _ in place.glob("part=*/*.parquet")) if place.exists() else 0
        if arrived >= 20:
            return
        time.sleep(0.005)
    pytest.fail("the move ended before any file arrived")


def goes_on(folder: Path, wanted: list[int]) -> None:
    source, target = str(folder / "old"), str(folder / "new")
    with Redirects(engine="local") as redirects:
        if redirects.status(source).state is RedirectState.NORMAL:
            redirects.enable(source, target)
        else:
            redirects.resume(source)
        assert redirects.status(source).state is RedirectState.READY
        assert ids(folder / "new") == wanted
        assert [DeltaTable(target, version=v).to_pyarrow_table().num_rows for v in (0, 1)] == [
            FILES // 2,
            FILES,
        ]


def goes_back(folder: Path, wanted: list[int]) -> None:
    source = str(folder / "old")
    with Redirects(engine="local") as redirects:
        redirects.cancel(source)
        assert redirects.status(source).state is RedirectState.NORMAL
    assert ids(folder / "old") == wanted
    write_deltalake(source, pa.table({"id": [FILES], "part": [0]}), mode="append")
    assert ids(folder / "old") == [*wanted, FILES]


CASES: tuple[tuple[str, Callable[[Path, list[int]], None]], ...] = (
    ("tail/source/LIST/before", goes_on),
    ("copying", goes_on),
    ("locked/target/COPY/after", goes_on),
    ("tail/source/LIST/before", goes_back),
    ("copying", goes_back),
)


def test_a_move_on_spark_that_is_killed_goes_on_or_back(tmp_path: Path, share: Share) -> None:
    for moment, ends in share.each(CASES):
        folder = tmp_path / f"{ends.__name__}-{moment.replace('/', '-')}"
        wanted = make_table(folder / "old")
        kill_at(folder, moment)
        ends(folder, wanted)
