"""Environments with other Sparks than the one that Lakeferry is developed with.

An environment is a folder of the cache: the packages of ``requirements.lock``, with another PySpark
and delta-spark from a lock of the line's own (``tools/matrix``). Lakeferry itself isn't in it: each
clone runs its own source with it. ``make lock`` renews the locks.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from lakeferry.engines.spark import spark_jars
from lakeferry.engines.spark.spark_versions import NEWEST_WITH_DELTA, SPARK_LINES, SparkLine
from lakeferry.storage.side_folder import cache_folder

ROOT = Path(__file__).resolve().parents[2]
OLDEST = SPARK_LINES[0]
_LOCK = ROOT / "requirements.lock"
_NAME = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[^]]*\])?\s*==")


class EnvironmentFailed(Exception):
    """An environment could not be made, or its program failed; says which command, and why."""


def lock_of(line: SparkLine) -> Path:
    """Return the lock with the packages in which a line differs from ``requirements.lock``.

    What these packages need has the versions of ``requirements.lock``, which suit all lines.
    """
    return ROOT / "tools" / "matrix" / f"spark-{line.line}.lock"


def wanted(line: SparkLine) -> str:
    """Return the packages that a line's lock is made from."""
    packages = [f"pyspark=={line.pyspark}"]
    if line.delta is not None:
        packages.append(f"delta-spark=={line.delta}")
    if line is OLDEST:
        # It imports distutils, which Python 3.12 doesn't have any more.
        packages.append("setuptools<81 ; python_version >= '3.12'")
    return "\n".join(packages) + "\n"


def requirements(line: SparkLine) -> str:
    """Return the lock of a line's environment: all packages with their digests."""
    own = lock_of(line).read_text()
    replaced = {name for name, _ in _entries(own)} | {"pyspark", "delta-spark"}
    kept = [text for name, text in _entries(_LOCK.read_text()) if name not in replaced]
    return "".join([*kept, own])


def _entries(lock: str) -> list[tuple[str, str]]:
    """Return the packages of a lock, each with its lines."""
    found: list[tuple[str, str]] = []
    for line in lock.splitlines(keepends=True):
        match = _NAME.match(line)
        if match is not None:
            found.append((match[1].lower(), line))
        elif found:
            found[-1] = (found[-1][0], found[-1][1] + line)
    return found


def python_of(line: SparkLine) -> Path:
    """Return the Python of a line's environment; it may not exist yet.

    The line that Lakeferry is developed with is that of this Python.
    """
    if line is NEWEST_WITH_DELTA:
        return Path(sys.executable)
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    key = hashlib.sha256(f"{version}\n{requirements(line)}".encode()).hexdigest()[:12]
    return cache_folder(os.environ) / f"spark-{line.pyspark}-{key}" / "bin" / "python"


def is_there(line: SparkLine) -> bool:
    """Return whether an environment and its jars are there."""
    has_jars = line.delta is None or spark_jars.jars_folder(os.environ, line).is_dir()
    return has_jars and python_of(line).exists()


def make(line: SparkLine) -> None:
    """Make a line's environment from the package index, and fetch its jars."""
    python = python_of(line)
    if not python.exists():
        place = python.parents[1]
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=place.parent, prefix=f".{place.name}.") as scratch:
            # Made beside its place, so that what is there is whole.
            new, lock = Path(scratch) / "new", Path(scratch) / "requirements.lock"
            lock.write_text(requirements(line))
            uv = [str(ROOT / "tools" / "setup.sh"), "uv"]
            run_program([*uv, "venv", "--quiet", "--python", sys.executable, str(new)])
            sync = [*uv, "pip", "sync", "--quiet", "--require-hashes"]
            run_program([*sync, "--python", str(new / "bin" / "python"), str(lock)])
            new.rename(place)
    if line.delta is not None:
        run_in(line, ["-m", "lakeferry", "setup", "spark"])


def run_in(line: SparkLine, words: Sequence[str], *, accepts: Sequence[int] = (0,)) -> int:
    """Run the Python of an environment with this clone's Lakeferry; return its exit code."""
    here = {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    return run_program([str(python_of(line)), *words], accepts=accepts, variables=here)


def run_program(
    words: Sequence[str],
    *,
    accepts: Sequence[int] = (0,),
    variables: dict[str, str] | None = None,
) -> int:
    """Run a program of which only the end of what it says is shown, if it fails."""
    without = ("SPARK_HOME", "VIRTUAL_ENV", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")
    kept = {name: value for name, value in os.environ.items() if name not in without}
    ended = subprocess.run(
        words,
        cwd=ROOT,
        env=kept | (variables or {}),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if ended.returncode not in accepts:
        told = ended.stdout.strip()[-2_000:]
        raise EnvironmentFailed(f"`{' '.join(words)}` ended with {ended.returncode}\n{told}")
    return ended.returncode
