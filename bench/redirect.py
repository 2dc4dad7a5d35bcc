"""What a move costs those who use the table, and the one who moves it.

* How long writers wait: a table of 20,000 files against one of 1,000, both on
  local disk, each with a writer that commits twice a second through the redirect.
* How much memory the driver needs for a table of 1,000,000 files, by copy and by
  reference: the peak of its Python process and the peak of its JVM together, on
  Spark with executors of their own. Needs 10 GB of disk for a while.

How fast bytes are copied, against rclone, is in ``bench/copies.py``.

Run it with ``make bench``, or alone: ``python bench/redirect.py [RUNS]``.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from support import tables
from support.measure import Bar, child, compare, counted, report
from support.moves import waits, writing

MANY, FEW = 20_000, 1_000
BLOCKED = 1.5
MILLION = 1_000_000
DRIVER_MIB = 1_500_000_000 / (1 << 20)
"""1.5 GB for its Python process and its JVM together."""


def blocked(argument: str) -> Callable[[], object]:
    """Move a table with a writer at work; the result is how long it had to wait."""
    from lakeferry.api.redirects import Redirects

    folder = Path(argument)

    def work() -> object:
        with writing(folder / "old"), Redirects(engine="local") as redirects:
            outcome = redirects.enable(str(folder / "old"), str(folder / "new"))
        return outcome.as_document()

    return work


def move_calls(files: int, folder: Path) -> Counter[str]:
    """Return what a move asks of the stores, for a table of so many files."""
    from lakeferry.api.redirects import Redirects

    tables.write(folder / "old", files)
    with counted() as calls, Redirects(engine="local") as redirects:
        redirects.enable(str(folder / "old"), str(folder / "new"))
    return calls


def moved(argument: str) -> Callable[[], object]:
    """Move a table on Spark with executors of their own; the result is the JVM's peak."""
    import psutil

    from lakeferry.api.redirects import Redirects
    from lakeferry.engine import Engine
    from lakeferry.engines.spark.spark_engine import SparkEngine

    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    from tests.support.spark_cluster import spark_home

    data, _, source = argument.partition(":")
    os.environ["SPARK_HOME"] = str(spark_home(Path(source).parent))

    def work() -> object:
        def opened(_name: str) -> Engine:
            return SparkEngine({"spark.master": "local-cluster[2,1,1024]"})

        target = Path(source).parent / "new"
        with Redirects(engine="spark", open_engine=opened) as redirects:
            outcome = redirects.enable(source, str(target), data=data).as_document()
            below = psutil.Process().children(recursive=True)
            driver = next(each for each in below if any("SparkSubmit" in w for w in each.cmdline()))
            return outcome | {"jvm_mib": _peak_mib(driver.pid)}

    return work


def _peak_mib(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM:"))


def generate(_: str) -> Callable[[], object]:
    """Write the huge log if it isn't there: in a child, so that the parent stays small."""
    from support import logs

    return lambda: str(logs.checkpointed(MILLION, 10))


def driver_mib(data: str, source: Path) -> float:
    """Return the driver's peak while a table moves."""
    done = subprocess.run(
        [sys.executable, __file__, "--run", "moved", f"{data}:{source}"],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    told = json.loads(done.stdout.splitlines()[-1])
    python, jvm = float(told["peak_mib"]), float(told["result"]["jvm_mib"])
    print(f"{data}, {MILLION:,} files: Python {python:.0f} MiB, JVM {jvm:.0f} MiB, {told}")
    return python + jvm


def main() -> int:
    child({runner.__name__: runner for runner in (blocked, moved, generate)})
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 7
    few, many = (waits(__file__, "blocked", files, runs) for files in (FEW, MANY))
    print(f"waits at {FEW:,} files: {sorted(few)} ms; at {MANY:,}: {sorted(many)} ms")
    made = str(compare(__file__, [("generate", "")], 1)["generate"].result)
    with tempfile.TemporaryDirectory() as place:
        by_reference = driver_mib("reference", shutil.copytree(made, Path(place) / "old"))
    with tempfile.TemporaryDirectory() as place:
        by_copy = driver_mib("copy", tables.write(Path(place) / "old", MILLION))
    return report(
        [
            Bar(
                "writers wait, 20,000 files to 1,000",
                statistics.median(many),
                statistics.median(few),
                "ms",
                BLOCKED,
            ),
            Bar("driver, 1,000,000 files by reference", by_reference, DRIVER_MIB, "MiB", 1.0),
            Bar("driver, 1,000,000 files by copy", by_copy, DRIVER_MIB, "MiB", 1.0),
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
