"""Runs the demo's Spark SQL shell.

It is stock Spark, and nothing of Lakeferry is in its process. One option lets it
follow redirects; it is set from the start, as a shop would set it before it moves a
table. The shell stays open all along, so it is also a session that a table is moved
under. It reads statements from a pipe, and ends when that does.
"""

from __future__ import annotations

import importlib.util
import os
import queue
import subprocess
import tempfile
import threading
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from lakeferry.cli import doctor
from lakeferry.engines.spark import spark_jars
from lakeferry.errors import FeatureRequired, LakeferryError, TimedOut

FOLLOW_OPTION = "spark.databricks.delta.enableTableRedirectFeature"
HELD = (
    "The writer pauses while Spark commits: on local disk Spark first checks whether a version is "
    "free and then writes it, and another writer could take the version in between."
)
_TIMEOUT_S = 300.0
_LONGEST_CAUSE = 300


def check_installed() -> tuple[Path, Path]:
    """Return where Spark and the jars of Delta Lake are, or say what is missing.

    Jars that are missing are fetched, as ``lakeferry setup spark`` does.
    """
    home = _spark_home()
    if home is None or doctor.java(os.environ) is None:
        raise FeatureRequired(
            "the demo needs Spark",
            cause="PySpark or Java isn't installed",
            remedy="'lakeferry doctor' says what is missing",
        )
    if importlib.util.find_spec("deltalake") is None:
        raise FeatureRequired(
            "the demo needs delta-rs",
            cause="the package deltalake isn't installed",
            remedy="pip install deltalake",
        )
    spark_jars.fetch(os.environ)
    return home, spark_jars.jars_folder(os.environ)


def _spark_home() -> Path | None:
    """Return the folder of PySpark, which holds all of Spark, without loading it."""
    found = importlib.util.find_spec("pyspark")
    folders = found.submodule_search_locations if found is not None else None
    return Path(folders[0]) if folders else None


class SparkShell:
    """A running SQL shell; its messages go to a file."""

    def __init__(self, log: Path) -> None:
        """Start Spark; it is ready when it answers."""
        home, jars = check_installed()
        self._log = log
        self._asked = 0
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._scratch = tempfile.TemporaryDirectory(dir=log.parent, prefix="spark-")
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                _words(home, jars, self._scratch.name),
                cwd=self._scratch.name,
                env={**os.environ, "SPARK_HOME": str(home)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
            )
        threading.Thread(target=self._listen, name="demo-spark", daemon=True).start()

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End Spark: at once, if something went wrong."""
        assert self._process.stdin is not None
        if error is not None:
            self._process.kill()
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(_TIMEOUT_S)
        finally:
            self._process.kill()
            self._process.wait()
            self._scratch.cleanup()

    def run(self, *statements: str) -> None:
        """Run statements; a failed one is noticed by the caller's next query."""
        assert self._process.stdin is not None
        try:
            for statement in statements:
                # Each statement is one line: a shell that reads a pipe would otherwise wait for
                # more.
                self._process.stdin.write(f"{' '.join(statement.split())};\n".encode())
            self._process.stdin.flush()
        except BrokenPipeError as broken:
            raise self._failed("ended too early") from broken

    def wait(self) -> list[str]:
        """Wait until all statements are done; return Spark's output meanwhile."""
        self._asked += 1
        end = f"end-{self._asked}"
        self.run(f"SELECT '{end}'")
        said = []
        while (line := self._next()) != end:
            said.append(line)
        return said

    def count(self, table: str) -> int:
        """Return how many rows Spark finds in a table, after all it was told to do before."""
        self.run(f"SELECT 'rows', count(*) FROM {table}")
        found = [line for line in self.wait() if line.startswith("rows\t")]
        if not found:
            raise self._failed("gave no answer")
        return int(found[-1].removeprefix("rows\t"))

    def _next(self) -> str:
        try:
            line = self._lines.get(timeout=_TIMEOUT_S)
        except queue.Empty:
            raise TimedOut("Spark doesn't answer", remedy=f"look at {self._log}") from None
        if line is None:
            raise self._failed("ended too early")
        return line

    def _failed(self, how: str) -> LakeferryError:
        """Return an error that says what Spark complained about."""
        lines = self._log.read_text(errors="replace").splitlines()
        # A complaint begins with its class, as in [TABLE_OR_VIEW_NOT_FOUND], or is Java's.
        complaints = [line for line in lines if line.startswith("[") or "Exception: " in line]
        causes = complaints or lines
        return LakeferryError(
            f"Spark {how}",
            cause=causes[-1][:_LONGEST_CAUSE] if causes else None,
            remedy=f"look at {self._log}",
        )

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line.decode(errors="replace").strip())
        self._lines.put(None)


def named_table(table: Path) -> str:
    """Return a table at a place as SQL names it."""
    return "delta.`" + str(table).replace("`", "``") + "`"


def _words(home: Path, jars: Path, scratch: str) -> list[str]:
    settings = {
        FOLLOW_OPTION: "true",
        "spark.databricks.delta.snapshotPartitions": "2",
        "spark.driver.bindAddress": "127.0.0.1",
        # It ends before the optimising compiler would pay for itself.
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC "
        f'"-Djava.io.tmpdir={scratch}"',
        "spark.driver.host": "127.0.0.1",
        "spark.local.dir": scratch,
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.enabled": "false",
    }
    words = [str(home / "bin" / "spark-sql"), "--master", "local[2]"]
    words += ["--driver-class-path", f"{jars}/*"]
    for name, value in settings.items():
        words += ["--conf", f"{name}={value}"]
    return words
