"""The demo, with the real Spark, the real delta-rs, and its writer in a process of its own."""

from __future__ import annotations

import importlib.util
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import deltalake
import psutil
import pyarrow as pa
import pytest

import lakeferry
from lakeferry.errors import FeatureRequired
from lakeferry.examples.demo.spark import check_installed
from lakeferry.examples.demo.writer import FIRST_ID, Writer, orders
from tests.support import components
from tests.support.shares import Share
from tests.unit.cli.program import PROGRAM, environment, run


def ids(table: Path) -> list[int]:
    found = deltalake.DeltaTable(table)
    query = deltalake.QueryBuilder().register("orders", found).execute("SELECT id FROM orders")
    return list(pa.table(query.read_all())["id"].to_pylist())


def logged_files(table: Path) -> list[Path]:
    """The data files a commit of the table names, and its deletion vectors.

    The writer's refused commits leave files that no log knows; nobody copied those.
    """
    told = "".join(path.read_text() for path in (table / "_delta_log").glob("*.json"))
    data = [path for path in table.rglob("*.parquet") if "_delta_log" not in path.parts]
    return [path for path in data if path.name in told] + list(table.rglob("*.bin"))


def of_folder(folder: Path) -> list[psutil.Process]:
    """The processes that have to do with a folder."""
    return [
        process
        for process in psutil.process_iter(["cmdline"])
        if any(str(folder) in word for word in process.info["cmdline"] or ())
    ]


@pytest.mark.spark
@pytest.mark.xdist_group("spark of its own")
def test_the_demo_s_numbers_are_those_of_its_tables(tmp_path: Path) -> None:
    components.require("spark-jars")
    cache = {"LAKEFERRY_CACHE": str(components.cache_folder())}
    (tmp_path / "taken" / "old").mkdir(parents=True)
    refused = run("demo", "--folder", "taken", "--json", home=tmp_path, variables=cache)
    assert (refused.code, refused.error["code"]) == (2, "invalid_input")
    assert refused.error["remedy"] == "choose another folder with --folder"
    assert list((tmp_path / "taken").iterdir()) == [tmp_path / "taken" / "old"]
    shown = run("demo", "--folder", "demo", "--json", home=tmp_path, variables=cache, timeout=500)
    assert (shown.code, shown.err) == (0, "")
    told = shown.document
    old, new = tmp_path / "demo" / "old" / "orders", tmp_path / "demo" / "new" / "orders"
    assert [each for each in told["checks"] if not each["ok"]] == []

    there = Counter(ids(old))
    writer = told["writer"]
    acknowledged = range(FIRST_ID, FIRST_ID + writer["rows_acknowledged"])
    assert writer["rows_acknowledged"] == 10 * writer["commits"] > 0
    assert sorted(each for each in there if each >= FIRST_ID) == list(acknowledged)
    assert (writer["lost"], writer["doubled"], max(there.values())) == (0, 0, 1)
    assert told["rows"] == there.total()

    versions = told["versions"]
    assert deltalake.DeltaTable(old).version() == versions["last"] > versions["normal"]
    assert deltalake.DeltaTable(new).version() == versions["dropping"] == versions["normal"] - 1
    assert (told["enable"]["version"], told["disable"]["version"]) == (
        versions["ready"],
        versions["normal"],
    )
    between = range(versions["ready"] + 1, versions["dropping"])
    assert 0 < writer["commits_at_target"] == len(between) - 1 < writer["commits"]
    for outcome in (told["enable"], told["disable"]):
        assert outcome["blocked_ms"] >= 0
    moved = logged_files(new)
    assert len(moved) == told["enable"]["files_copied"] + told["disable"]["files_copied"]
    copied = told["enable"]["bytes_copied"] + told["disable"]["bytes_copied"]
    assert sum(path.stat().st_size for path in moved) == copied
    assert lakeferry.Table(str(old)).redirect_status().state.value == "NORMAL"
    check_report(Path(told["report"]), told)
    assert of_folder(tmp_path) == []


def check_report(report: Path, told: Any) -> None:
    """The page shows this run's numbers, and needs nothing from anywhere."""
    page = report.read_text()
    assert not re.search(r"https?:|src=|href=|url\(|@import|<script", page)
    for number in (told["writer"]["rows_acknowledged"], told["rows"]):
        assert f"{number:,}" in page
    for way in ("enable", "disable"):
        assert f"{told[way]['blocked_ms']} ms" in page
    assert "WRONG" not in page


@pytest.mark.spark
@pytest.mark.xdist_group("spark of its own")
def test_an_interrupted_demo_leaves_nothing_running(tmp_path: Path, share: Share) -> None:
    """While Spark starts, or while the writer writes."""
    components.require("spark-jars")
    for step, running in share.some([("1. ", 1), ("3. ", 2)]):
        folder = tmp_path / step[0]
        folder.mkdir()
        _interrupted(folder, step, running)


def _interrupted(folder: Path, step: str, running: int) -> None:
    cache = {"LAKEFERRY_CACHE": str(components.cache_folder())}
    with subprocess.Popen(
        [PROGRAM, "demo", "--folder", "demo"],
        cwd=folder,
        env=environment(folder, cache),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as demo:
        assert demo.stdout is not None
        # Spark's shell is there before the first step is told, the writer before the third.
        # Both are known as children: a process has no command line while it becomes another
        # program, as the shell's script does.
        assert any(line.startswith(step) for line in demo.stdout)
        children = psutil.Process(demo.pid).children()
        assert len(children) == running
        started = [*children, *(child for each in children for child in each.children())]
        demo.send_signal(signal.SIGINT)
        _, err = demo.communicate(timeout=60)
    assert demo.returncode == 130
    assert err.startswith(
        "error: interrupted\nremedy: run 'lakeferry demo' again with another folder"
    )
    assert psutil.wait_procs(started, timeout=120)[1] == []
    assert of_folder(folder) == []


def test_the_demo_without_java_says_what_is_missing(tmp_path: Path) -> None:
    nothing = {"PATH": str(tmp_path), "JAVA_HOME": str(tmp_path / "none")}
    refused = run("demo", "--json", home=tmp_path, variables=nothing)
    assert (refused.code, refused.error["code"]) == (1, "feature_required")


def test_the_demo_without_delta_rs_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    components.require("spark-jars")
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "deltalake" else find_spec(name)
    )
    with pytest.raises(FeatureRequired, match="needs delta-rs") as missing:
        check_installed()
    assert missing.value.remedy == "pip install deltalake"


# --- Its writer --------------------------------------------------------------


@pytest.fixture
def table(tmp_path: Path) -> Path:
    deltalake.write_deltalake(tmp_path / "orders", orders(range(3), "north"))
    return tmp_path / "orders"


@contextmanager
def writing(table: Path) -> Iterator[Writer]:
    with Writer(table, table.parent / "writer.log") as writer:
        yield writer


def test_the_writer_tries_again_what_was_refused_and_writes_it_once(table: Path) -> None:
    with writing(table) as writer:
        writer.wait_for(1)
        lakeferry.Table(str(table)).freeze()
        writer.wait_until(lambda: len(writer.refused) >= 2)
        lakeferry.Table(str(table)).thaw()
        writer.wait_for(2)
        writer.stop()
    assert any(each.attempts > 1 and each.waited_ms > 0 for each in writer.acknowledged)
    assert sorted(ids(table)) == [*range(3), *writer.ids]


def test_a_writer_that_is_held_commits_nothing(table: Path) -> None:
    with writing(table) as writer:
        writer.wait_for(1)
        with writer.held():
            before = deltalake.DeltaTable(table).version()
            assert before == len(writer.acknowledged)
            lakeferry.Table(str(table)).freeze()
            assert deltalake.DeltaTable(table).version() == before + 1
            lakeferry.Table(str(table)).thaw()
        writer.wait_for(1)
        writer.stop()
    assert writer.refused == []
    assert sorted(ids(table)) == [*range(3), *writer.ids]


def test_the_writer_ends_with_whoever_started_it(table: Path) -> None:
    program = (
        "import sys, pathlib; from lakeferry.examples.demo.writer import Writer\n"
        "table = pathlib.Path(sys.argv[1])\n"
        "writer = Writer(table, table.parent / 'writer.log'); writer.wait_for(1)\n"
        "print(writer.pid, flush=True); writer.wait_for(1000)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(table)], stdout=subprocess.PIPE, text=True
    ) as starter:
        assert starter.stdout is not None
        writer = psutil.Process(int(starter.stdout.readline()))
        starter.kill()
    writer.wait(timeout=30)


def test_a_writer_that_was_killed_is_waited_for_no_longer(table: Path) -> None:
    with writing(table) as writer:
        writer.wait_for(1)
        psutil.Process(writer.pid).kill()
        with pytest.raises(lakeferry.LakeferryError, match="the demo's writer ended too early"):
            writer.wait_for(1000)
        with pytest.raises(lakeferry.LakeferryError, match="the demo's writer failed"):
            writer.stop()
