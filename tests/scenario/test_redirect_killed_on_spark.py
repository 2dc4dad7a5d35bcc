"""A move on Spark whose driver is killed: executors may write a moment longer, and harm nothing."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from lakeferry.api.redirects import Redirects
from lakeferry.redirect.states import RedirectState

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark of its own")]

FILES = 400
MOMENTS = ("copying", "tail/source/LIST/before", "locked/target/COPY/after")


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


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_move_on_spark_that_is_killed_goes_on(moment: str, tmp_path: Path) -> None:
    wanted = make_table(tmp_path / "old")
    kill_at(tmp_path, moment)
    source, target = str(tmp_path / "old"), str(tmp_path / "new")
    with Redirects(engine="local") as redirects:
        if redirects.status(source).state is RedirectState.NORMAL:
            redirects.enable(source, target)
        else:
            redirects.resume(source)
        assert redirects.status(source).state is RedirectState.READY
        assert ids(tmp_path / "new") == wanted
        assert [DeltaTable(target, version=v).to_pyarrow_table().num_rows for v in (0, 1)] == [
            FILES // 2,
            FILES,
        ]


def test_a_move_on_spark_that_is_killed_goes_back(tmp_path: Path) -> None:
    wanted = make_table(tmp_path / "old")
    kill_at(tmp_path, MOMENTS[1])
    source = str(tmp_path / "old")
    with Redirects(engine="local") as redirects:
        redirects.cancel(source)
        assert redirects.status(source).state is RedirectState.NORMAL
    assert ids(tmp_path / "old") == wanted
    write_deltalake(source, pa.table({"id": [FILES], "part": [0]}), mode="append")
    assert ids(tmp_path / "old") == [*wanted, FILES]
