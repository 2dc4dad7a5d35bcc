"""What it costs to export a table: against lakeFS's own exporter, again, and with many files.

* ``peer``: a table of 500 commits without a checkpoint in lakeFS, exported by us and
  by the exporter that lakeFS ships, at the same commits, by turns; and how often we
  ask lakeFS for something, against the pages of a listing.
* ``again``: an export after one more commit, of a table with 10 and of one with 500
  commits since its checkpoint. What the store copies from the export before isn't
  counted, and told.
* ``million``: a checkpoint of 1,000,000 files, on local disk and in lakeFS, against
  pyarrow that reads and writes that same file. Listing the files isn't counted, and
  told. The driver's peak is that of its Python process and of its JVM together, with
  Spark on executors of their own. Needs a million inodes for a while.

Run it with ``make bench``, or alone: ``python bench/export.py [SECTION…] [RUNS]``.
"""

from __future__ import annotations

import atexit
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from support import lakes, logs, tables
from support.measure import Bar, child, counted, report

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

COMMITS = 500
SPEED = 1 / 10
CALLS_BESIDES_PAGES = 5
PAGE = 1_000
SHORT, LONG = 10, 500
CHECKPOINT = 10
AGAIN = 1.5
MILLION = 1_000_000
COMMITS_SINCE = 10
MILLION_RUNS = 3
LISTING, REWRITING = "listing", "exporting the log"
"""What exports call these stages when they tell of their progress."""
REWRITE = 3.0
DRIVER_MIB = 2_048
PROGRAM = Path(sys.executable).parent / "lakeferry"


def timed(work: Callable[[], object]) -> float:
    """Return how many seconds something takes."""
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


# --- Against lakeFS's own exporter --------------------------------------------------


def run_program(uri: str, options: dict[str, str], *words: str) -> None:
    """Export a table with the command line."""
    given = [word for each in options.items() for word in ("--storage-option", "=".join(each))]
    subprocess.run(
        [PROGRAM, "export", uri, *words, *given, "--json"], stdout=subprocess.PIPE, check=True
    )


def peer(runs: int) -> list[Bar]:
    """Export the same commits by turns, each by us and by lakeFS."""
    from lakeferry import Table

    found: dict[str, list[float]] = {"theirs": [], "ours": [], "program": []}
    with tempfile.TemporaryDirectory() as place, lakes.running(Path(place)) as lake:
        objects = {f"t/{k}": v for n in range(COMMITS) for k, v in logs.one_commit(n).items()}
        lake.put(objects)
        lake.install_exporter("t")
        uri, options = f"lakefs://{lake.repository}/main/t", lake.options()
        for run in range(runs + 1):
            lake.put({"round": str(run).encode()})
            commit = lake.commit(f"Round {run}")
            theirs = lake.exporter_seconds(commit)
            assert lake.exported_by_peer(commit, "t") == COMMITS, "the peer left something out"
            # Under a name that no export has had, so that there is nothing to go on from.
            begun = time.perf_counter()
            done: Any = Table(uri, options).export(table=f"python-{run}")
            ours = time.perf_counter() - begun
            assert (done.files_written, done.incremental_from) == (COMMITS, None), done
            program = timed(partial(run_program, uri, options, "--table", f"program-{run}"))
            if run:
                found["theirs"].append(theirs)
                found["ours"].append(ours)
                found["program"].append(program)
        calls, pages = count_calls(lake, uri)
    print({whose: [round(each, 3) for each in seconds] for whose, seconds in found.items()})
    theirs, ours, program = map(statistics.median, found.values())
    # The peer runs in a server that is up, as ours does behind the webhook; the program
    # has to start first.
    print(
        f"the program, from its start to its end: {program:.3f} s, {program / theirs:.3f} of theirs"
    )
    return [
        Bar(f"{COMMITS} commits, to lakeFS's exporter", ours, theirs, "s", SPEED),
        Bar("calls of lakeFS, to pages + 5", calls, pages + CALLS_BESIDES_PAGES, "", 1.0),
    ]


def count_calls(lake: lakes.Lake, uri: str) -> tuple[int, int]:
    """Export once more through a proxy; return what lakeFS was asked, and its listing's pages."""
    from lakeferry import Table
    from tests.support.http_proxy import CountingProxy

    with CountingProxy(lake.server.endpoint.removeprefix("http://")) as proxy:
        Table(uri, lake.options(proxy.url)).export(table="counted")
        for request in proxy.requests:
            print(f"asked lakeFS: {request.method} {request.target}")
        return proxy.count(), math.ceil(lake.count("t/") / PAGE)


# --- Again, after one more commit ---------------------------------------------------


@contextmanager
def copies_timed() -> Iterator[Callable[[], float]]:
    """Note when the store is copying; gives what tells for how long it did since last asked."""
    from lakeferry.storage.objects import ObjectStore

    spans: list[tuple[float, float]] = []
    copy = ObjectStore.copy_within

    def noted(self: ObjectStore, path: str, new_path: str) -> None:
        begun = time.perf_counter()
        copy(self, path, new_path)
        spans.append((begun, time.perf_counter()))

    def busy() -> float:
        total, until = 0.0, -math.inf
        for begun, ended in sorted(spans):
            total += max(0.0, ended - max(begun, until))
            until = max(until, ended)
        spans.clear()
        return total

    ObjectStore.copy_within = noted  # type: ignore[method-assign]
    try:
        yield busy
    finally:
        ObjectStore.copy_within = copy  # type: ignore[method-assign]


def again(runs: int) -> list[Bar]:
    """Commit to a short and to a long log and export each anew, by turns."""
    found: dict[int, list[tuple[float, float]]] = {SHORT: [], LONG: []}
    with tempfile.TemporaryDirectory() as place, lakes.running(Path(place)) as lake:
        for since in found:
            lake.put({f"t{since}/{k}": v for k, v in checkpointed(since, Path(place)).items()})
        lake.commit("Two tables")
        with copies_timed() as copying:
            # The first round exports everything, the second warms up.
            for run in range(runs + 2):
                for since, costs in found.items():
                    version = CHECKPOINT + since + run + 1
                    lake.put({f"t{since}/{k}": v for k, v in logs.one_commit(version).items()})
                    lake.commit(f"Version {version}")
                    cost = timed(partial(export_from, lake, f"t{since}", incremental=run > 0))
                    copied = copying()
                    if run > 1:
                        costs.append((cost, copied))
    for since, costs in found.items():
        told = [f"{cost:.3f} s, of which {copied:.3f} copying" for cost, copied in costs]
        print(f"after one more commit, {since} since the checkpoint: {'; '.join(told)}")
    short, long = (statistics.median(c - copied for c, copied in found[n]) for n in found)
    name = f"one more commit, {LONG} to {SHORT} since the checkpoint"
    return [Bar(f"{name}, copies aside", long, short, "s", AGAIN)]


def checkpointed(since: int, scratch: Path) -> dict[str, bytes]:
    """Return the objects of a table with so many commits since its checkpoint."""
    from lakeferry.storage import open_store
    from lakeferry.table import DeltaLog

    folder = scratch / f"made-{since}"
    store = open_store(str(folder))
    for version in range(CHECKPOINT + since + 1):
        for name, data in logs.one_commit(version).items():
            store.put(name, data)
    DeltaLog(store).checkpoint(CHECKPOINT)
    return {found.path: store.get(found.path) for found in list(store.list(""))}


def again_counts(since: int, scratch: Path) -> Counter[str]:
    """Return what an export after one more commit asks of the stores, all on local disk."""
    from lakeferry import Table
    from lakeferry.storage import open_store

    checkpointed(since, scratch)
    folder = scratch / f"made-{since}"
    table: Any = Table(str(folder))
    table.export(to=str(scratch / f"exported-{since}"))
    store = open_store(str(folder))
    for name, data in logs.one_commit(CHECKPOINT + since + 1).items():
        store.put(name, data)
    with counted() as calls:
        done = table.export(to=str(scratch / f"exported-{since}"))
    assert done.incremental_from is not None, done
    return calls


def export_from(lake: lakes.Lake, name: str, *, incremental: bool) -> None:
    """Export a table of the branch, and see that it was done as expected."""
    from lakeferry import Table

    done: Any = Table(f"lakefs://{lake.repository}/main/{name}", lake.options()).export()
    assert (done.incremental_from is not None) == incremental, done


# --- A checkpoint of a million files ------------------------------------------------


def run_child(runner: str, **job: object) -> Any:
    """Run one of the runners in a process of its own, and return its cost."""
    done = subprocess.run(
        [sys.executable, __file__, "--run", runner, json.dumps(job)],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


def pyarrow(argument: str) -> Callable[[], object]:
    """Read and write a checkpoint with pyarrow."""
    import pyarrow.parquet as pq

    folder = Path(json.loads(argument)["table"])
    (checkpoint,) = (folder / "_delta_log").glob("*.checkpoint.parquet")
    codec = pq.ParquetFile(checkpoint).metadata.row_group(0).column(0).compression

    def work() -> object:
        table = pq.read_table(checkpoint)
        with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
            pq.write_table(table, f"{scratch}/copy.parquet", compression=codec)
        return {"rows": table.num_rows}

    return work


def watched(argument: str) -> Callable[[], object]:
    """Export a table; the result tells how long each stage took, and the JVM's peak."""
    from lakeferry import Table

    job = json.loads(argument)
    table: Any = Table(job["uri"], job["options"])
    turns: list[tuple[float, str]] = []

    def turn(stage: str, *_: int) -> None:
        if not turns or turns[-1][1] != stage:
            turns.append((time.perf_counter(), stage))

    def work() -> object:
        turn("before")
        with jvm_watched() as jvm_mib:
            table.export(**job["how"], observer=turn)
        turn("after")
        took: dict[str, float] = {}
        for (begun, stage), (ended, _) in pairwise(turns):
            took[stage] = took.get(stage, 0.0) + ended - begun
        return {"stages": took, "jvm_mib": jvm_mib()}

    return work


def on_spark(argument: str) -> Callable[[], object]:
    """Do the same on Spark with executors of their own, whose session is up."""
    from lakeferry.engines.spark.spark_engine import SparkEngine
    from tests.support.spark_cluster import spark_home

    os.environ["SPARK_HOME"] = str(spark_home(Path(json.loads(argument)["scratch"])))
    engine = SparkEngine({"spark.master": "local-cluster[2,1,1024]"})
    # An export takes the session that is there.
    _ = engine.session
    atexit.register(engine.close)
    return watched(argument)


@contextmanager
def jvm_watched() -> Iterator[Callable[[], float]]:
    """Look at the JVM that this process starts; gives what tells its peak, in MiB."""
    import psutil

    peaks, over = [0.0], threading.Event()

    def look() -> None:
        while not over.wait(0.2):
            for process in psutil.Process().children(recursive=True):
                with suppress(psutil.Error, OSError, StopIteration):
                    if any("SparkSubmit" in word for word in process.cmdline()):
                        peaks.append(peak_mib(process.pid))

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        yield lambda: max(peaks)
    finally:
        over.set()
        watcher.join()


def peak_mib(pid: int) -> float:
    """Return the most memory that a process ever had."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM:"))


def generate(_: str) -> Callable[[], object]:
    """Write the huge log if it isn't there: in a child, so that the parent stays small."""
    return lambda: str(logs.checkpointed(MILLION, COMMITS_SINCE))


def furnished(argument: str) -> Callable[[], object]:
    """Give a log its files, in a child likewise."""
    job = json.loads(argument)
    return lambda: str(tables.furnish(Path(job["made"]), Path(job["folder"])))


def million(runs: int) -> list[Bar]:
    """Export the table from local disk and from lakeFS, and rewrite its checkpoint, by turns."""
    found: dict[str, list[Any]] = {"pyarrow": [], "disk": [], "lakeFS": []}
    with tempfile.TemporaryDirectory() as place, lakes.running(Path(place)) as lake:
        buckets = lake.blocks.server.folder
        assert buckets is not None
        bucket = lake.blocks.server.create_bucket("million")
        # The same files are a table on local disk, and objects that lakeFS takes in.
        table = str(buckets / bucket.name / "t")
        run_child("furnished", made=run_child("generate")["result"], folder=table)
        lake.import_from(f"{bucket.uri}/t", "t")
        uri, options = f"lakefs://{lake.repository}/main/t", lake.options()
        for run in range(min(runs, MILLION_RUNS) + 1):
            jobs: dict[str, dict[str, Any]] = {
                "disk": {"uri": table, "options": {}, "how": {"to": f"{place}/disk-{run}"}},
                "lakeFS": {"uri": uri, "options": options, "how": {"table": f"t-{run}"}},
            }
            for name, job in jobs.items():
                # The peer takes little time, so it gets a turn before each of ours.
                costs = {
                    "pyarrow": run_child("pyarrow", table=table),
                    name: run_child("watched", **job),
                }
                for whose, cost in costs.items():
                    print(f"{whose}, {MILLION:,} files: {told(cost)}")
                    if run:
                        found[whose].append(cost)
        how = {"to": f"{place}/spark", "engine": "spark"}
        spark = run_child("on_spark", scratch=place, uri=table, options={}, how=how)
        print(f"Spark, {MILLION:,} files: {told(spark)}")
    theirs = statistics.median(cost["seconds"] for cost in found["pyarrow"])
    name = f"checkpoint of {MILLION:,} files"
    bars = []
    for where in ("disk", "lakeFS"):
        rewriting = statistics.median(stages(cost)[REWRITING] for cost in found[where])
        rest = statistics.median(cost["seconds"] - stages(cost)[LISTING] for cost in found[where])
        peak = max(driver_mib(cost) for cost in found[where])
        bars += [
            Bar(f"{name} on {where}: rewriting, to pyarrow", rewriting, theirs, "s", REWRITE),
            Bar(f"{name} on {where}: all but listing", rest, theirs, "s", REWRITE),
            Bar(f"{name} on {where}: driver", peak, DRIVER_MIB, "MiB", 1.0),
        ]
    return [*bars, Bar(f"{name} with Spark: driver", driver_mib(spark), DRIVER_MIB, "MiB", 1.0)]


def stages(cost: Any) -> dict[str, float]:
    """Return how many seconds each stage of an export took."""
    found: dict[str, float] = cost["result"]["stages"]
    return found


def driver_mib(cost: Any) -> float:
    """Return the peak of the driver's Python and of its JVM together."""
    return float(cost["peak_mib"]) + float(cost["result"]["jvm_mib"])


def told(cost: Any) -> str:
    """Return what a run cost, in a line."""
    shown = [f"{cost['seconds']:.2f} s", f"{cost['peak_mib']:.0f} MiB"]
    if "stages" in cost["result"]:
        shown += [f"{stage} {seconds:.2f} s" for stage, seconds in stages(cost).items()]
        shown.append(f"JVM {cost['result']['jvm_mib']:.0f} MiB")
    return ", ".join(shown)


def main() -> int:
    runners = (watched, on_spark, pyarrow, generate, furnished)
    child({runner.__name__: runner for runner in runners})
    sections = {section.__name__: section for section in (peer, again, million)}
    words = sys.argv[1:]
    runs = int(words.pop()) if words and words[-1].isdigit() else 5
    print(f"load before: {os.getloadavg()}")
    bars = [bar for name in words or sections for bar in sections[name](runs)]
    print(f"load after: {os.getloadavg()}")
    return report(bars)


if __name__ == "__main__":
    sys.exit(main())
