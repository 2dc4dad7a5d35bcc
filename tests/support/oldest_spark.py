"""The oldest supported Spark in a process beside the tests, asked in lines of JSON.

It has an environment of its own (:mod:`tests.matrix.environments`). A request is a verb with its
arguments, an answer a list of ids or an error.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.matrix import environments

OPTION = "spark.databricks.delta.enableTableRedirectFeature"


class OldestSparkError(Exception):
    """What it said instead of an answer."""


class OldestSpark:
    """A running session, asked from another process."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        """Talk to a process that runs :func:`serve`."""
        self._process = process

    def append(self, location: object, ids: Iterable[int]) -> None:
        """Append rows, each in its column ``id``."""
        self._ask("append", str(location), list(ids))

    def ids(self, location: object) -> list[int]:
        """Return the ids of the rows at a place."""
        return self._ask("ids", str(location))

    def _ask(self, *words: object) -> list[int]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(words), file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        if not line:
            raise OldestSparkError("it ended")
        answer = json.loads(line)
        if "error" in answer:
            raise OldestSparkError(answer["error"])
        found: list[int] = answer["ids"]
        return found


@contextmanager
def oldest_spark(folder: Path) -> Iterator[OldestSpark]:
    """Start it, with delta-spark's option on."""
    python = environments.python_of(environments.OLDEST)
    path = os.pathsep.join([str(environments.ROOT / "src"), str(environments.ROOT)])
    without = ("SPARK_HOME", "VIRTUAL_ENV", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")
    kept = {name: value for name, value in os.environ.items() if name not in without}
    with (folder / "stderr").open("wb") as errors:
        process = subprocess.Popen(
            [str(python), "-m", "tests.support.oldest_spark", str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            cwd=environments.ROOT,
            env=kept | {"PYTHONPATH": path},
        )
        # Closing its standard input ends it.
        with process:
            try:
                yield OldestSpark(process)
            finally:
                assert process.stdin is not None
                process.stdin.close()


# --- The other process --------------------------------------------------------


def serve(folder: Path) -> None:
    """Answer what comes on standard input, until it ends."""
    from lakeferry.engines.spark import spark_jars
    from tests.support.spark import session

    # What the JVM prints doesn't mix with the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    jars = spark_jars.jars_folder(os.environ, environments.OLDEST)
    spark = session(jars, folder, settings={OPTION: "true"})
    for line in sys.stdin:
        verb, location, *rest = json.loads(line)
        try:
            if verb == "append":
                frame = spark.createDataFrame([(each,) for each in rest[0]], "id long")
                frame.coalesce(1).write.format("delta").mode("append").save(location)
                answer: dict[str, object] = {"ids": []}
            else:
                rows = spark.read.format("delta").load(location).collect()
                answer = {"ids": sorted(row.id for row in rows)}
        except Exception as failed:  # noqa: BLE001 - whatever it is, the tests want to see it
            answer = {"error": f"{type(failed).__name__}: {failed}"}
        print(json.dumps(answer), file=answers, flush=True)
    spark.stop()


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
