"""Finds or downloads the jars of Delta Lake that PySpark doesn't bring.

Each line of Spark has jars of its own: ``spark_jars_lock/ivy-LINE.xml`` lists them, and
``spark_jars_lock/jars-LINE.sha256`` has their digests. The installed PySpark decides. Its Ivy
resolves them, with the Maven repositories configured for Ivy and Spark, and they are kept in the
user's cache folder. An existing folder is complete: it is filled under another name, checked
against the digests, and then renamed.

This module doesn't import pyspark and starts no JVM unless jars must be fetched.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from lakeferry.engines.spark import spark_versions
from lakeferry.engines.spark.spark_versions import NEWEST_WITH_DELTA, SparkLine
from lakeferry.errors import HashMismatch, InvalidInput, StorageUnavailable
from lakeferry.storage import rights
from lakeferry.storage.side_folder import cache_folder

_LOCK = Path(__file__).parent / "spark_jars_lock"
_WORDS_SHOWN = 400


def jars_line() -> SparkLine:
    """Return the line of the installed PySpark, or the one that is developed with, if none is.

    It is an error if no Delta Lake works with the installed one.
    """
    version = spark_versions.installed_pyspark()
    if version is None:
        return NEWEST_WITH_DELTA
    line = spark_versions.line_of(version)
    if line.delta_fails_with(version):
        works = NEWEST_WITH_DELTA if line.delta is None else line
        raise InvalidInput(
            f"Delta Lake doesn't work with PySpark {version}",
            cause="no Delta Lake is known to work with it; Lakeferry's own jobs don't need one",
            remedy=f"pip install pyspark=={works.pyspark} delta-spark=={works.delta}",
        )
    return line


def jars_folder(environment: Mapping[str, str] = os.environ, line: SparkLine | None = None) -> Path:
    """Return the folder of a line's jars, named after their digests; it may not exist yet.

    Without a line it is that of the installed PySpark.
    """
    key = hashlib.sha256(lock_file(line or jars_line()).read_bytes()).hexdigest()[:12]
    return cache_folder(environment) / f"spark-jars-{key}"


def fetch(environment: Mapping[str, str] = os.environ, *, ivy_settings: str | None = None) -> bool:
    """Fetch the jars if they are missing; return True if they were."""
    line = jars_line()
    folder = jars_folder(environment, line)
    if folder.is_dir():
        return False
    shipped = _shipped()
    java = _java(environment)
    with ExitStack() as stack:
        with rights.writing(folder.parent, f"the cache folder {folder.parent} (LAKEFERRY_CACHE)"):
            folder.parent.mkdir(parents=True, exist_ok=True)
            filled = tempfile.TemporaryDirectory(dir=folder.parent, prefix=".spark-jars-")
        made = Path(stack.enter_context(filled)) / "jars"
        resolve_jars(ivy_file(line), made, shipped, java, ivy_settings)
        check_jars(lock_file(line), made)
        try:
            made.rename(folder)
        except OSError:
            # Another process was faster, with the same jars.
            if not folder.is_dir():
                raise
            return False
    return True


def resolve_jars(
    wanted: Path,
    folder: Path,
    shipped: Path,
    java: str = "java",
    ivy_settings: str | None = None,
) -> None:
    """Download what an Ivy file lists into a folder, with the Ivy among PySpark's own jars."""
    with tempfile.TemporaryDirectory() as ivy_cache:
        # Use a separate cache: in a shared one Ivy trusts a POM whose jar is missing, and fails.
        words = [java, "-cp", f"{shipped}/*", "org.apache.ivy.Main", "-warn"]
        words += ["-ivy", str(wanted), "-cache", ivy_cache]
        words += ["-settings", ivy_settings] if ivy_settings is not None else []
        words += ["-types", "jar", "bundle", "-retrieve", f"{folder}/[artifact]-[revision].[ext]"]
        ended = subprocess.run(words, capture_output=True, text=True, check=False)
    if ended.returncode != 0 or not folder.is_dir():
        told = " ".join((ended.stderr + ended.stdout).split())
        raise StorageUnavailable(
            "Spark's jars can't be fetched",
            cause=told[-_WORDS_SHOWN:] or f"Ivy ended with {ended.returncode}",
            remedy="run the command on a machine that can reach Maven's repository, or use a "
            "mirror: "
            "--ivy-settings FILE takes the same file as Spark's spark.jars.ivySettings",
        )


def digests(folder: Path) -> str:
    """Return the jars of a folder with their digests, as ``sha256sum`` prints them."""
    jars = sorted(folder.glob("*.jar"))
    return "".join(f"{hashlib.sha256(jar.read_bytes()).hexdigest()}  {jar.name}\n" for jar in jars)


def ivy_file(line: SparkLine) -> Path:
    """Return the file that lists a line's jars."""
    return _LOCK / f"ivy-{line.line}.xml"


def lock_file(line: SparkLine) -> Path:
    """Return the file that has the digests of a line's jars."""
    return _LOCK / f"jars-{line.line}.sha256"


def check_jars(lock: Path, folder: Path) -> None:
    """Raise an error if the jars of a folder aren't those of a lock."""
    wanted = set(lock.read_text().splitlines())
    found = set(digests(folder).splitlines())
    if wanted != found:
        names = sorted({line.split()[1] for line in wanted ^ found})
        raise HashMismatch(
            "Spark's jars aren't those that Lakeferry was tested with",
            cause=f"these differ or are missing: {', '.join(names[:5])}",
            remedy="fetch them from another mirror: --ivy-settings FILE",
        )


def _shipped() -> Path:
    """Return the folder of PySpark's own jars."""
    folder = spark_versions.pyspark_folder()
    if folder is None:
        raise InvalidInput("PySpark isn't installed", remedy="pip install 'lakeferry[spark]'")
    if (folder / "jars").is_dir():
        return folder / "jars"
    # The PySpark of SPARK_HOME is in its folder python/.
    return folder.parents[1] / "jars"


def _java(environment: Mapping[str, str]) -> str:
    home = environment.get("JAVA_HOME")
    program = shutil.which(str(Path(home) / "bin" / "java")) if home else None
    program = program or shutil.which("java", path=environment.get("PATH"))
    if program is None:
        raise InvalidInput(
            "Java isn't installed", remedy="install Java 17 or newer, or set JAVA_HOME to it"
        )
    return program
