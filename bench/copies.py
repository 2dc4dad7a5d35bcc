"""How fast Spark copies a table's files from local disk to S3, against rclone in the same run.

* 5,000 files of 16 KiB;
* 8 files of 128 MiB.

Both copy to the same server on this machine with as many transfers at a time.
What starts Spark and its Python workers isn't timed; rclone starts in no time.

Run it with ``make bench``, or alone: ``python bench/copies.py [RUNS]``.
"""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
import tempfile
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from support.measure import Bar, child, compare, counted, report
from support.random_tables import random_table

if TYPE_CHECKING:
    from lakeferry.engine import Engine

ROOT = Path(__file__).resolve().parents[1]
KIB, MIB = 1024, 1024 * 1024
CASES = {
    # On two cores Spark has two tasks with sixteen objects each under way.
    "5,000 files of 16 KiB": (5_000, 16 * KIB, ["--transfers", "32"]),
    "8 files of 128 MiB": (8, 128 * MIB, ["--transfers", "2", "--s3-upload-concurrency", "4"]),
}
"""How many files of which size, and what gives rclone the same parallelism."""
TIME = 1 / 0.8
"""At least four fifths of the peer's bytes per second."""


@dataclass(frozen=True, slots=True)
class Job:
    """One copy: a table on local disk, and a bucket to copy it to."""

    source: str
    bucket: str
    options: dict[str, str]
    peer_flags: list[str]

    def target(self) -> str:
        """Return a place in the bucket that nobody has used yet."""
        return f"s3://{self.bucket}/{uuid.uuid4().hex}"


def ours(argument: str) -> Callable[[], object]:
    from lakeferry.engines.spark.spark_engine import SparkEngine

    job = Job(**json.loads(argument))
    engine = SparkEngine()
    atexit.register(engine.close)
    # Starts the JVM and the workers, which import what they need.
    copy(engine, str(Path(job.source).with_name("tiny")), job.target(), job.options)
    return lambda: copy(engine, job.source, job.target(), job.options)


def copy(engine: Engine, source: str, target: str, options: dict[str, str]) -> int:
    """Copy a table's files with an engine; return how many bytes were copied."""
    from lakeferry.engine import CopyPlan
    from lakeferry.log.rewrite import Unchanged
    from lakeferry.storage import open_store
    from lakeferry.table import DeltaLog

    store, there = open_store(source), open_store(target, options)
    plan = CopyPlan(store.config, there.config, DeltaLog(store).segment(), Unchanged())
    return engine.copy(plan).bytes


def counts(files: int, size_bytes: int, folder: Path) -> tuple[int, Counter[str]]:
    """Return how many bytes a copy of so many files brings, and what it asks of the stores."""
    from lakeferry.engines.local_engine import LocalEngine

    random_table(folder / "old", (files, size_bytes))
    with LocalEngine() as engine, counted() as calls:
        return copy(engine, str(folder / "old"), str(folder / "new"), {}), calls


def peer(argument: str) -> Callable[[], object]:
    job = Job(**json.loads(argument))
    variables = {
        "RCLONE_CONFIG_FAR_TYPE": "s3",
        "RCLONE_CONFIG_FAR_PROVIDER": "Other",
        "RCLONE_CONFIG_FAR_ACCESS_KEY_ID": job.options["AWS_ACCESS_KEY_ID"],
        "RCLONE_CONFIG_FAR_SECRET_ACCESS_KEY": job.options["AWS_SECRET_ACCESS_KEY"],
        "RCLONE_CONFIG_FAR_ENDPOINT": job.options["AWS_ENDPOINT_URL"],
        "RCLONE_CONFIG_FAR_REGION": job.options["AWS_REGION"],
        "RCLONE_CONFIG": "/dev/null",
    }
    command = [
        str(Path(sys.executable).parent / "rclone"),
        *("copy", job.source, f"far:{job.target().removeprefix('s3://')}"),
        *("--exclude", "_delta_log/**", *job.peer_flags),
    ]
    files = [path for path in Path(job.source).iterdir() if path.is_file()]

    def work() -> int:
        subprocess.run(command, env={**os.environ, **variables}, check=True)
        return sum(path.stat().st_size for path in files)

    return work


def main() -> int:
    child({"ours": ours, "peer": peer})
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    sys.path.insert(0, str(ROOT))
    from tests.support import components, servers

    bars = []
    with tempfile.TemporaryDirectory(prefix="lakeferry-bench-") as scratch:
        folder = Path(scratch)
        random_table(folder / "tiny", (2, 10))
        with servers.versitygw(components.require("versitygw"), folder / "s3") as server:
            for name, (files, size_bytes, flags) in CASES.items():
                source = folder / f"{files}"
                random_table(source, (files, size_bytes))
                bucket = server.create_bucket(f"bench-{files}")
                job = json.dumps(
                    asdict(Job(str(source), bucket.name, bucket.storage_options, flags))
                )
                costs = compare(__file__, [("ours", job), ("peer", job)], runs)
                if costs["ours"].result != costs["peer"].result:
                    print(f"they disagree: {costs}", file=sys.stderr)
                    return 1
                bars.append(Bar(name, costs["ours"].seconds, costs["peer"].seconds, "s", TIME))
    return report(bars)


if __name__ == "__main__":
    sys.exit(main())
