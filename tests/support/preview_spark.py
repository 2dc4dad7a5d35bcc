"""delta-spark in its testing mode, where it knows redirects of both modes: a JVM of its own.

The mode is chosen by the environment of the JVM, so it runs in a process beside
the tests, which asks it in lines of JSON: a method's name and its arguments, and
the answer or the error. Everything that it writes gets a prefix to its name.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

OPTION = "spark.databricks.delta.enableTableRedirectFeature"


class PreviewError(Exception):
    """What delta-spark said instead of an answer."""


class PreviewSpark:
    """A running session, asked from another process.

    ``follow`` turns its option on, ``app`` is the name that its rules look at.
    """

    def __init__(self, process: subprocess.Popen[str]) -> None:
        """Talk to a process that runs :func:`serve`."""
        self._process = process

    def sql(self, text: str, *, follow: bool = True, app: str | None = None) -> list[list[Any]]:
        """Run a statement and return its rows."""
        rows: list[list[Any]] = self._ask("sql", text, follow, app)
        return rows

    def ids(self, location: object, *, follow: bool = True, app: str | None = None) -> list[int]:
        """Return the ids of the rows at a place, in order."""
        query = f"SELECT id FROM delta.`{location}` ORDER BY id"
        return [row[0] for row in self.sql(query, follow=follow, app=app)]

    def insert(
        self, location: object, row: int, *, follow: bool = True, app: str | None = None
    ) -> None:
        """Append one row."""
        self.sql(f"INSERT INTO delta.`{location}` VALUES ({row})", follow=follow, app=app)

    def add_redirect(self, mode: str, source: Path, target: Path) -> None:
        """Begin a redirect, as its own code does."""
        self._ask("change", mode, "add", str(source), str(target), "")

    def update_redirect(self, mode: str, source: Path, target: Path, state: str) -> None:
        """Take its redirect to another state: ``RedirectReady`` or ``DropRedirectInProgress``."""
        self._ask("change", mode, "update", str(source), str(target), state)

    def _ask(self, *words: object) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(words), file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        if not line:
            raise PreviewError("it ended")
        answer = json.loads(line)
        if "error" in answer:
            raise PreviewError(answer["error"])
        return answer["answer"]


@contextmanager
def preview_spark(jars: Path, folder: Path) -> Iterator[PreviewSpark]:
    """Start delta-spark in its testing mode; what it writes stays in ``folder``."""
    root = Path(__file__).parents[2]
    with (folder / "stderr").open("wb") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.preview_spark", str(jars), str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            cwd=root,
            env={**os.environ, "DELTA_TESTING": "1"},
        )
        # Closing its standard input ends it.
        with process:
            try:
                yield PreviewSpark(process)
            finally:
                assert process.stdin is not None
                process.stdin.close()


# --- The other process --------------------------------------------------------


class _Session:
    """The session, and what it can be asked."""

    def __init__(self, jars: Path, folder: Path) -> None:
        from tests.support.spark import session

        self.spark = session(jars, folder)
        for name, value in {
            "spark.databricks.delta.vacuum.logging.enabled": "true",
            # VACUUM lists with as many tasks as this says, and that is 10,000.
            "spark.sql.sources.parallelPartitionDiscovery.parallelism": "1",
        }.items():
            self.spark.conf.set(name, value)
        self.app = str(self.spark.sparkContext.appName)

    def sql(self, text: str, follow: bool, app: str | None) -> list[list[Any]]:
        self.spark.conf.set(OPTION, follow)
        self.spark.conf.set("spark.app.name", app or self.app)
        return [list(row) for row in self.spark.sql(text).collect()]

    def change(self, mode: str, verb: str, source: str, target: str, state: str) -> None:
        self.spark.conf.set(OPTION, False)
        jvm: Any = self.spark.sparkContext._jvm
        delta = jvm.org.apache.spark.sql.delta
        kind = {"reader-writer": "RedirectReaderWriter", "writer-only": "RedirectWriterOnly"}[mode]
        feature = getattr(delta.redirect, kind)
        spec = delta.redirect.PathBasedRedirectSpec(source, target)
        log = delta.DeltaLog.forTable(self.spark._jsparkSession, source)
        none, rules = jvm.scala.Option.empty(), jvm.scala.Predef.Set().empty()
        if verb == "add":
            feature.add(log, none, "PathBasedRedirect", spec, rules)
        else:
            wanted = getattr(getattr(delta.redirect, f"{state}$"), "MODULE$")
            feature.update(log, none, wanted, spec, rules)


def serve(jars: Path, folder: Path) -> None:
    """Answer what comes on standard input, until it ends."""
    # What the JVM prints doesn't mix with the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    running = _Session(jars, folder)
    for line in sys.stdin:
        verb, *arguments = json.loads(line)
        try:
            answer = {"answer": getattr(running, verb)(*arguments)}
        except Exception as failed:  # noqa: BLE001 - whatever it is, the tests want to see it
            answer = {"error": f"{type(failed).__name__}: {failed}"}
        print(json.dumps(answer, default=str), file=answers, flush=True)
    running.spark.stop()


if __name__ == "__main__":
    serve(Path(sys.argv[1]), Path(sys.argv[2]))
