"""The supported lines of Spark, and how they differ.

A line is the first two numbers of a version: 4.2.0 and 4.2.1 are of the line 4.2. This module
doesn't import pyspark, so that ``doctor`` needs neither Spark nor a JVM. What the ways of doing
something are: :mod:`lakeferry.engines.spark.spark_calls`. Why these lines:
docs/decisions/0033-ranges-of-versions.md. What was tried with each of them is in
docs/compatibility.md.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from lakeferry.errors import InvalidInput

MapCall = Literal["mapInArrow of a column", "pythonMapInArrow of an expression"]
PlaceCall = Literal["repartitionById", "repartition by a chosen hash"]

SPARK_REMOTE = "LAKEFERRY_SPARK_REMOTE"
"""The variable with the URL of the Spark Connect server whose executors do the work."""

_NUMBERS = re.compile(r"(\d+)\.(\d+)(?:\.(\d+))?")
_VERSION = re.compile(r"""^__version__[^=]*=\s*["']([^"']+)["']""", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class SparkLine:
    """One line of Spark.

    ``pyspark`` is the release that was tried, ``delta`` the version of Delta Lake for it, or
    ``None`` if there is none, and ``artifact`` its name in Maven. With a release in ``broken``,
    or with all if that is ``None``, Delta Lake fails; Lakeferry's own jobs don't use it.

    What follows is about ``lakeferry.spark``, the client: the module of PySpark's data frames and
    the JVM's class of sessions, and the methods that PySpark and Delta Lake of this line don't
    have, or not in every release.
    """

    line: str
    pyspark: str
    delta: str | None
    artifact: str
    map_call: MapCall = "mapInArrow of a column"
    place_call: PlaceCall = "repartitionById"
    broken: frozenset[str] | None = frozenset()
    frame_module: str = "pyspark.sql.classic.dataframe"
    session_class: str = "org.apache.spark.sql.classic.SparkSession"
    lacks: frozenset[str] = frozenset()
    has_sql_functions: bool = True
    """Whether users can write functions in SQL."""
    opens_managed: bool = True
    """Whether Delta Lake can open tables that a catalog manages."""
    binds_in_text: bool = True
    """Whether Spark puts the values of parameters into a text before it parses it."""

    @property
    def packages(self) -> str | None:
        """Value for ``spark.jars.packages``, if Spark should fetch Delta Lake itself."""
        return None if self.delta is None else f"io.delta:{self.artifact}:{self.delta}"

    def delta_fails_with(self, pyspark: str) -> bool:
        """Return True if Delta Lake is known to fail with this release."""
        return self.broken is None or pyspark in self.broken


_SINCE_SPARK_4_2 = frozenset(
    {
        "Catalog.getTableProperties",
        "Catalog.listPartitions",
        "Catalog.truncateTable",
        "DataFrameReader.changes",
        "DataStreamReader.changes",
    }
)
_SINCE_SPARK_4_0 = frozenset({"DataFrame.mergeInto"})
_SINCE_DELTA_4_0 = frozenset(
    f"DeltaTable.{name}"
    for name in ("dropFeatureSupport", "clone", "cloneAtVersion", "cloneAtTimestamp")
)
_SINCE_DELTA_3_3 = frozenset({"DeltaTable.addFeatureSupport"})

SPARK_LINES = (
    SparkLine(
        "3.5",
        "3.5.9",
        "3.3.3",
        "delta-spark_2.12",
        map_call="pythonMapInArrow of an expression",
        place_call="repartition by a chosen hash",
        frame_module="pyspark.sql.dataframe",
        session_class="org.apache.spark.sql.SparkSession",
        lacks=_SINCE_SPARK_4_2 | _SINCE_SPARK_4_0 | _SINCE_DELTA_4_0 | _SINCE_DELTA_3_3,
        has_sql_functions=False,
        opens_managed=False,
        binds_in_text=False,
    ),
    SparkLine(
        "4.0",
        "4.0.5",
        "4.0.1",
        "delta-spark_2.13",
        place_call="repartition by a chosen hash",
        lacks=_SINCE_SPARK_4_2,
        binds_in_text=False,
    ),
    SparkLine(
        "4.1",
        "4.1.1",
        "4.1.0",
        "delta-spark_4.1_2.13",
        broken=frozenset({"4.1.4"}),
        lacks=_SINCE_SPARK_4_2,
    ),
    SparkLine("4.2", "4.2.0", "4.4.0", "delta-spark_4.2_2.13"),
    SparkLine("4.3", "4.3.0", None, "", broken=None),
)
"""Oldest first."""
NEWEST_WITH_DELTA = SPARK_LINES[3]
"""The line that Lakeferry is developed with."""


def line_of(pyspark: str) -> SparkLine:
    """Return the line of a version; one that is newer than all is treated as the newest."""
    oldest, newest = SPARK_LINES[0], SPARK_LINES[-1]
    wanted = _line_numbers(pyspark)
    if wanted > _line_numbers(newest.line):
        return newest
    for each in SPARK_LINES:
        if _line_numbers(each.line) == wanted:
            return each
    supported = f"{oldest.line} to {newest.line}"
    raise InvalidInput(
        f"Spark {pyspark} isn't supported",
        cause=f"Lakeferry works with Spark {supported}",
        remedy="use a newer Spark, or --engine local",
    )


def installed_pyspark() -> str | None:
    """Return the version of the PySpark that Python would import, without importing it.

    A PySpark of ``SPARK_HOME`` isn't a package that was installed, so its own file is read.
    """
    folder = pyspark_folder()
    if folder is None:
        return None
    file = folder / "version.py"
    if file.is_file() and (found := _VERSION.search(file.read_text())):
        return found[1]
    return installed_version("pyspark")


def pyspark_folder() -> Path | None:
    """Return the folder of the PySpark that Python would import."""
    found = importlib.util.find_spec("pyspark")
    folders = found.submodule_search_locations if found is not None else None
    return Path(next(iter(folders))) if folders else None


def installed_version(package: str) -> str | None:
    """Return the version of an installed package."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _line_numbers(version: str) -> tuple[int, int]:
    found = _NUMBERS.match(version)
    return (int(found[1]), int(found[2])) if found else (0, 0)
