"""Finds or downloads the jars of Delta Lake that PySpark doesn't bring.

``spark_jars_lock/ivy.xml`` lists the jars, ``spark_jars_lock/jars.sha256`` has their digests.
PySpark's Ivy resolves them, with the Maven repositories configured for Ivy and Spark, and they
are kept in the user's cache folder. An existing folder is complete: it is filled under another
name, checked against the digests, and then renamed.

This module doesn't import pyspark and starts no JVM unless jars must be fetched.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from lakeferry.errors import HashMismatch, InvalidInput, StorageUnavailable
from lakeferry.storage import rights
from lakeferry.storage.side_folder import cache_folder

PYSPARK, DELTA_SPARK = "4.2.0", "4.4.0"
"""The versions that Lakeferry is tested with."""
PACKAGES = f"io.delta:delta-spark_4.2_2.13:{DELTA_SPARK}"
"""For ``spark.jars.packages``, if Spark should fetch them itself."""
_LOCK = Path(__file__).parent / "spark_jars_lock"
_WORDS_SHOWN = 400


def jars_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the folder of the jars, named after their digests; it may not exist yet."""
    key = hashlib.sha256((_LOCK / "jars.sha256").read_bytes()).hexdigest()[:12]
    return cache_folder(environment) / f"spark-jars-{key}"


def fetch(environment: Mapping[str, str] = os.environ, *, ivy_settings: str | None = None) -> bool:
    """Fetch the jars if they are missing; return True if they were."""
    folder = jars_folder(environment)
    if folder.is_dir():
        return False
    shipped = _shipped()
    java = _java(environment)
    with ExitStack() as stack:
        with rights.writing(folder.parent, f"the cache folder {folder.parent} (LAKEFERRY_CACHE)"):
            folder.parent.mkdir(parents=True, exist_ok=True)
            filled = tempfile.TemporaryDirectory(dir=folder.parent, prefix=".spark-jars-")
        made = Path(stack.enter_context(filled)) / "jars"
        resolve_jars(made, shipped, java, ivy_settings)
        _check(made)
        try:
            made.rename(folder)
        except OSError:
            # Another process was faster, with the same jars.
            if not folder.is_dir():
                raise
            return False
    return True


def resolve_jars(
    folder: Path, shipped: Path, java: str = "java", ivy_settings: str | None = None
) -> None:
    """Download the jars in ``ivy.xml`` into a folder, with the Ivy among PySpark's own jars."""
    with tempfile.TemporaryDirectory() as ivy_cache:
        # Use a separate cache: in a shared one Ivy trusts a POM whose jar is missing, and fails.
        words = [java, "-cp", f"{shipped}/*", "org.apache.ivy.Main", "-warn"]
        words += ["-ivy", str(_LOCK / "ivy.xml"), "-cache", ivy_cache]
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


def lock_file() -> Path:
    """Return the file that has the digests."""
    return _LOCK / "jars.sha256"


def _check(folder: Path) -> None:
    wanted = set(lock_file().read_text().splitlines())
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
    found = importlib.util.find_spec("pyspark")
    if found is None or found.origin is None:
        raise InvalidInput("PySpark isn't installed", remedy="pip install 'lakeferry[spark]'")
    version = importlib.metadata.version("pyspark")
    if version != PYSPARK:
        raise InvalidInput(
            f"the jars are for PySpark {PYSPARK}",
            cause=f"PySpark {version} is installed",
            remedy=f"pip install pyspark=={PYSPARK} delta-spark=={DELTA_SPARK}",
        )
    return Path(found.origin).parent / "jars"


def _java(environment: Mapping[str, str]) -> str:
    home = environment.get("JAVA_HOME")
    program = shutil.which(str(Path(home) / "bin" / "java")) if home else None
    program = program or shutil.which("java", path=environment.get("PATH"))
    if program is None:
        raise InvalidInput(
            "Java isn't installed", remedy="install Java 17 or newer, or set JAVA_HOME to it"
        )
    return program
