"""What it costs to drop a feature, to plan a cleanup, and to delete what it finds.

* A feature that lives in metadata alone, dropped by us and by delta-spark's own DROP
  FEATURE, whose session is up: equal tables, taking turns.
* Planning the cleanup of a log of 100,000 commits, against listing it; and what
  planning reads besides.
* Deleting 10,000 log files from S3, against ``rclone delete``.

Run it with ``make bench``, or alone: ``python bench/protect.py [RUNS]``.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from support import logs, tables
from support.measure import Bar, counted, report

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

FEATURE = "vacuumProtocolCheck"
DROP, PLAN, DELETE = 1 / 5, 2.0, 1.2
PLAN_READS = 15
FILES = 1_000
COMMITS = 100_000
DELETED = 10_000


def timed(work: Callable[[], object]) -> float:
    """Return how many seconds something takes."""
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def dropping(runs: int, stack: ExitStack) -> Bar:
    """Drop the same feature from equal tables, by turns."""
    from lakeferry import Table
    from tests.support import components
    from tests.support.spark import session

    place = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    spark: Any = session(components.require("spark-jars"), place / "spark")
    stack.callback(spark.stop)
    original = tables.write(place / "original", FILES)
    spark.sql(
        f"ALTER TABLE delta.`{original}` SET TBLPROPERTIES ('delta.feature.{FEATURE}'='supported')"
    )
    found: dict[str, list[float]] = {"ours": [], "theirs": []}
    for run in range(runs + 1):
        mine = shutil.copytree(original, place / f"ours-{run}")
        theirs = shutil.copytree(original, place / f"theirs-{run}")
        # Both know the table as those do who have just opened it.
        spark.sql(f"SELECT count(*) FROM delta.`{theirs}`").collect()
        table, statement = Table(str(mine)), f"ALTER TABLE delta.`{theirs}` DROP FEATURE {FEATURE}"
        costs = {
            "ours": timed(partial(table.drop_feature, FEATURE)),
            "theirs": timed(partial(spark.sql, statement)),
        }
        if run:
            for whose, seconds in costs.items():
                found[whose].append(seconds)
    ours, theirs_s = (statistics.median(found[whose]) for whose in ("ours", "theirs"))
    return Bar(f"drop {FEATURE}, {FILES:,} files", ours, theirs_s, "s", DROP)


def planning_reads(commits: int) -> tuple[int, list[str]]:
    """Return how many log files a plan for so many commits reads, and the first few of them."""
    from lakeferry.protection import cleaning
    from lakeferry.storage import open_store
    from lakeferry.table import DeltaLog

    store = open_store(str(logs.long(commits)))
    cleaning.foresee_cleaning(DeltaLog(store), retention_ms=0, force=True)
    first = [path for verb, path in store.calls.log if verb in ("GET", "RANGE")]
    return store.calls["GET"] + store.calls["RANGE"], first[:3]


def dropping_calls(files: int, folder: Path) -> Counter[str]:
    """Return what dropping the feature asks of the store, for a table of so many files."""
    from lakeferry import Table

    place = tables.write(folder, files)
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7}
    features = {"readerFeatures": [FEATURE], "writerFeatures": [FEATURE]}
    (place / "_delta_log" / f"{1:020d}.json").write_text(
        json.dumps({"protocol": protocol | features})
    )
    with counted() as calls:
        Table(str(place)).drop_feature(FEATURE)
    return calls


def planning(runs: int) -> Bar:
    """Plan a cleanup of a long log, and list it, by turns."""
    from lakeferry.protection import cleaning
    from lakeferry.storage import open_store
    from lakeferry.table import DeltaLog, load

    place = str(logs.long(COMMITS))
    lists, plans = [], []
    for run in range(runs + 1):
        store = open_store(place)
        listed = timed(partial(load.list_log, open_store(place)))
        log = DeltaLog(store)
        planned = timed(partial(cleaning.foresee_cleaning, log, retention_ms=0, force=True))
        if run:
            lists.append(listed)
            plans.append(planned)
    reads, first = planning_reads(COMMITS)
    print(f"planning read, besides listings: {reads} log files: {', '.join(first)}, …")
    assert reads <= PLAN_READS, f"{reads} reads, more than {PLAN_READS}"
    name = f"plan a cleanup of {COMMITS:,} commits, to listing them"
    return Bar(name, statistics.median(plans), statistics.median(lists), "s", PLAN)


def deleting(runs: int, stack: ExitStack) -> Bar:
    """Delete files from S3 as a cleanup does, and as rclone does, by turns."""
    from lakeferry.log.cleanup import WAVE_FILES
    from lakeferry.storage import open_store
    from tests.support import components, servers

    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    server = stack.enter_context(servers.versitygw(components.require("versitygw"), folder / "s3"))
    bucket = server.create_bucket("bench-deleting")
    store = open_store(f"s3://{bucket.name}/table", bucket.storage_options)
    names = [f"_delta_log/{number:020d}.json" for number in range(DELETED)]
    waves = [names[start : start + WAVE_FILES] for start in range(0, DELETED, WAVE_FILES)]
    variables = {
        "RCLONE_CONFIG_FAR_TYPE": "s3",
        "RCLONE_CONFIG_FAR_PROVIDER": "Other",
        "RCLONE_CONFIG_FAR_ACCESS_KEY_ID": server.access_key,
        "RCLONE_CONFIG_FAR_SECRET_ACCESS_KEY": server.secret_key,
        "RCLONE_CONFIG_FAR_ENDPOINT": server.endpoint,
        "RCLONE_CONFIG_FAR_REGION": server.region,
        "RCLONE_CONFIG": "/dev/null",
    }
    rclone = str(Path(sys.executable).parent / "rclone")
    local = folder / "local" / "_delta_log"
    local.mkdir(parents=True)
    for name in names:
        (local.parent / name).write_bytes(b"{}\n")

    def run_rclone(*words: str) -> None:
        subprocess.run([rclone, *words], env={**os.environ, **variables}, check=True)

    def fill() -> None:
        run_rclone("copy", str(local.parent), f"far:{bucket.name}/table", "--transfers", "16")

    def clean() -> None:
        for wave in waves:
            store.delete_many(wave)

    ours, theirs = [], []
    for run in range(runs + 1):
        fill()
        mine = timed(clean)
        assert not list(store.list("")), "something was left"
        fill()
        peer = timed(lambda: run_rclone("delete", f"far:{bucket.name}/table"))
        if run:
            ours.append(mine)
            theirs.append(peer)
    name = f"delete {DELETED:,} files, to rclone"
    return Bar(name, statistics.median(ours), statistics.median(theirs), "s", DELETE)


def main() -> int:
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    with ExitStack() as stack:
        return report([planning(runs), deleting(runs, stack), dropping(runs, stack)])


if __name__ == "__main__":
    sys.exit(main())
