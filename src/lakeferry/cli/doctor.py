"""``doctor``: checks whether this machine has what Lakeferry needs.

Offline and quick: nothing is downloaded, no store is asked, no JVM is started.
Checks that only the Spark engine needs say so; everything else works without Spark.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from lakeferry import config, packages
from lakeferry.cli import render
from lakeferry.cli.options import Session, command
from lakeferry.engines.spark import spark_jars, spark_versions
from lakeferry.errors import LakeferryError

PYTHON = (3, 11)
JAVA = 17
ENOUGH_DISK_BYTES = 1 << 30
_CONNECTOR_JARS = "*unitycatalog-spark*.jar"
_FOR_SPARK = "needed for the Spark engine only"
_FOR_DELTA = "needed for Delta tables in Spark only"
_EXTRA_SPARK = "pip install 'lakeferry[spark]'"
_JAVA_VERSION = re.compile(r'^JAVA_VERSION="(?:1\.)?(\d+)[^"]*"', re.MULTILINE)


@dataclass(frozen=True, slots=True)
class MachineCheck:
    """The result of one check; ``remedy`` says what to do if it failed."""

    name: str
    ok: bool
    detail: str
    remedy: str | None = None


@command(
    examples=(
        ("lakeferry doctor", "look at this machine"),
        (
            "lakeferry doctor --json | jq '.checks[] | select(.ok | not)'",
            "only what is missing or wrong",
        ),
    )
)
def doctor(session: Session) -> None:
    """Check whether this machine has what Lakeferry needs.

    Calls no store and starts no JVM. The exit code is 0 even if something is missing, because most
    of it is needed for some commands only.
    """
    checks = list(_look(os.environ))
    if session.output.json:
        session.output.document({"checks": [asdict(check) for check in checks]})
        return
    page = session.output.page()
    page.table(
        "",
        ("check", "state", "detail"),
        ((check.name, "ok" if check.ok else "not ok", check.detail) for check in checks),
    )
    for check in checks:
        if not check.ok and check.remedy:
            page.line(f"{check.name}: {check.remedy}", style="yellow")


def _look(environment: Mapping[str, str]) -> Iterator[MachineCheck]:
    """Yield every check; a check that raises an error counts as failed."""
    looks: list[tuple[str, Callable[[Mapping[str, str]], MachineCheck]]] = [
        ("python", _python),
        ("packages", lambda _: _packages()),
        ("pyarrow", lambda _: _package("pyarrow", "20", "pip install 'pyarrow>=20'")),
        ("obstore", lambda _: _package("obstore", "0.12", "reinstall lakeferry")),
        ("java", _java),
        ("pyspark", lambda _: _pyspark()),
        ("delta-spark", lambda _: _delta_spark()),
        ("spark-jars", _jars),
        ("unity-spark", _unity_connector),
        ("cache", _cache),
        ("disk", _disk),
        ("configuration", _configuration),
        ("aws", _aws),
    ]
    for name, check in looks:
        try:
            found = check(environment)
            yield replace(found, remedy=None) if found.ok else found
        except (OSError, LakeferryError) as error:
            yield MachineCheck(name, False, str(error), getattr(error, "remedy", None))


def found_jars(environment: Mapping[str, str]) -> Path | None:
    """Return the folder of the jars of Delta Lake for our Spark, or ``None``."""
    try:
        folder = spark_jars.jars_folder(environment)
    except LakeferryError:
        return None
    return folder if folder.is_dir() else None


def java(environment: Mapping[str, str]) -> tuple[Path, int | None] | None:
    """Return the java program and its version as its own installation states it."""
    home = environment.get("JAVA_HOME")
    program = Path(home) / "bin" / "java" if home else None
    if program is None or not program.exists():
        found = shutil.which("java", path=environment.get("PATH"))
        if found is None:
            return None
        program = Path(found)
    # Asking the program itself would start a JVM; every installation has this file.
    for folder in program.resolve().parents[1:3]:
        release = folder / "release"
        if release.is_file() and (match := _JAVA_VERSION.search(release.read_text())):
            return program, int(match[1])
    return program, None


def _python(_: Mapping[str, str]) -> MachineCheck:
    version = ".".join(map(str, sys.version_info[:3]))
    wanted = ".".join(map(str, PYTHON))
    return MachineCheck(
        "python", sys.version_info >= PYTHON, version, f"use Python {wanted} or newer"
    )


def _packages() -> MachineCheck:
    """Say what is missing or too old of what Lakeferry requires, whatever the command."""
    lacking = packages.unmet_requirements()
    if not lacking:
        return MachineCheck("packages", True, "all that Lakeferry requires")
    told = [
        f"{each.package} is missing" if version is None else f"{each.package} is {version}"
        for each, version in lacking
    ]
    wanted = " ".join(f"'{each.wanted}'" for each, _ in lacking)
    return MachineCheck("packages", False, ", ".join(told), f"pip install {wanted}")


def _package(name: str, at_least: str, remedy: str) -> MachineCheck:
    try:
        version = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return MachineCheck(name, False, "not installed", remedy)
    return MachineCheck(name, _numbers(version) >= _numbers(at_least), version, remedy)


def _pyspark() -> MachineCheck:
    """Say which Spark there is, and what works with it."""
    name, version = "pyspark", spark_versions.installed_pyspark()
    if version is None:
        return MachineCheck(name, False, "not installed", f"{_FOR_SPARK}: {_EXTRA_SPARK}")
    line = spark_versions.line_of(version)
    if line.delta_fails_with(version):
        works = spark_versions.NEWEST_WITH_DELTA if line.delta is None else line
        return MachineCheck(
            name,
            False,
            f"{version}, with which Delta Lake is known to fail; --engine spark works without it",
            f"to read Delta tables in Spark: pip install pyspark=={works.pyspark} "
            f"delta-spark=={works.delta}",
        )
    detail = f"{version}: --engine spark, and Delta Lake {line.delta}"
    if version != line.pyspark:
        detail += f"; tried with {line.pyspark}"
    return MachineCheck(name, True, detail)


def _delta_spark() -> MachineCheck:
    name = "delta-spark"
    version = spark_versions.installed_version(name)
    if version is None and spark_versions.installed_pyspark() is None:
        return MachineCheck(name, False, "not installed", f"{_FOR_DELTA}: {_EXTRA_SPARK}")
    line = spark_jars.jars_line()
    # The extra would replace the PySpark that is there.
    remedy = f"{_FOR_DELTA}: pip install delta-spark=={line.delta}"
    if version is None:
        return MachineCheck(name, False, "not installed", remedy)
    is_tried = version == line.delta
    detail = version if is_tried else f"{version}, tried with {line.delta} on Spark {line.line}"
    return MachineCheck(name, is_tried, detail, remedy)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


def _java(environment: Mapping[str, str]) -> MachineCheck:
    remedy = f"{_FOR_SPARK}: install Java {JAVA} or newer, or point JAVA_HOME at it"
    found = java(environment)
    if found is None:
        return MachineCheck("java", False, "not found", remedy)
    program, version = found
    if version is None:
        return MachineCheck("java", False, f"{program}, of an unknown version", remedy)
    return MachineCheck("java", version >= JAVA, f"{version} at {program}", remedy)


def _jars(environment: Mapping[str, str]) -> MachineCheck:
    line = spark_jars.jars_line()
    folder = found_jars(environment)
    if folder is None:
        where = config.cache_folder(environment)
        return MachineCheck(
            "spark-jars",
            False,
            f"no jars of Delta Lake {line.delta} for Spark {line.line} in {where}",
            f"{_FOR_DELTA}: run 'lakeferry setup spark', or start Spark with "
            f"spark.jars.packages={line.packages}",
        )
    jars = len(list(folder.glob("*.jar")))
    elsewhere = f"another Spark downloads them by spark.jars.packages={line.packages}"
    return MachineCheck("spark-jars", True, f"{jars} jars in {folder}; {elsewhere}")


def _unity_connector(environment: Mapping[str, str]) -> MachineCheck:
    """Look for Unity Catalog's Spark connector, which opens managed tables by their names."""
    name = "unity-spark"
    for folder in _jar_folders(environment):
        found = sorted(folder.glob(_CONNECTOR_JARS))
        if found:
            return MachineCheck(name, True, f"Unity Catalog's Spark connector at {found[0]}")
    return MachineCheck(
        name,
        False,
        "Unity Catalog's Spark connector not found",
        "needed for managed tables of Unity Catalog in Spark only: put the jars of "
        "unitycatalog-spark and its client where Spark finds them (spark.jars), and set "
        "spark.sql.catalog.NAME=io.unitycatalog.spark.UCSingleCatalog, spark.sql.catalog.NAME.uri "
        "and spark.sql.catalog.NAME.token",
    )


def _jar_folders(environment: Mapping[str, str]) -> Iterator[Path]:
    """Yield the folders in which Spark finds jars without being told: its own, and ours."""
    homes = [environment.get("SPARK_HOME")]
    installed = importlib.util.find_spec("pyspark")
    if installed is not None and installed.origin is not None:
        homes.append(str(Path(installed.origin).parent))
    yield from (Path(home) / "jars" for home in homes if home)
    if (ours := found_jars(environment)) is not None:
        yield ours
    home = environment.get("HOME")
    if home:
        # Where spark.jars.packages puts what it downloads.
        yield from (Path(home) / each / "jars" for each in (".ivy2.5.2", ".ivy2"))


def _cache(environment: Mapping[str, str]) -> MachineCheck:
    folder = config.cache_folder(environment)
    remedy = "set LAKEFERRY_CACHE to a folder that can be written"
    existing = _nearest(folder)
    try:
        with tempfile.TemporaryFile(dir=existing):
            return MachineCheck("cache", True, f"{folder} can be written")
    except OSError as error:
        return MachineCheck("cache", False, f"{folder}: {error.strerror}", remedy)


def _disk(environment: Mapping[str, str]) -> MachineCheck:
    places = {_nearest(config.cache_folder(environment)), Path(tempfile.gettempdir())}
    free = {place: shutil.disk_usage(place).free for place in places}
    place = min(free, key=lambda place: free[place])
    return MachineCheck(
        "disk",
        free[place] >= ENOUGH_DISK_BYTES,
        f"{render.size(free[place])} free at {place}",
        f"make room: less than {render.size(ENOUGH_DISK_BYTES)} is free",
    )


def _nearest(folder: Path) -> Path:
    """Return the folder, or its nearest existing parent."""
    return next(each for each in (folder, *folder.absolute().parents) if each.is_dir())


def _configuration(environment: Mapping[str, str]) -> MachineCheck:
    settings = config.load(environment=environment)
    names = ", ".join(str(file.path) for file in settings.files) or f"no {config.FILE_NAME}"
    return MachineCheck("configuration", True, f"{names}; engine {settings.engine}")


def _aws(environment: Mapping[str, str]) -> MachineCheck:
    """Check for settings that can't work; never show one that may be a secret."""
    key, secret = environment.get("AWS_ACCESS_KEY_ID"), environment.get("AWS_SECRET_ACCESS_KEY")
    if bool(key) != bool(secret):
        lacking = "AWS_SECRET_ACCESS_KEY" if key else "AWS_ACCESS_KEY_ID"
        return MachineCheck(
            "aws", False, f"an incomplete key: {lacking} isn't set", f"set {lacking}"
        )
    names = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
    endpoint = next((environment[name] for name in names if environment.get(name)), None)
    if endpoint is not None and not endpoint.startswith(("http://", "https://")):
        return MachineCheck(
            "aws",
            False,
            "the endpoint isn't an http:// or https:// address",
            "correct AWS_ENDPOINT_URL",
        )
    parts = [
        "a key in the environment" if key else "no key in the environment",
        f"region {environment.get('AWS_REGION') or environment.get('AWS_DEFAULT_REGION') or '-'}",
        f"endpoint {endpoint or '-'}",
    ]
    return MachineCheck("aws", True, ", ".join(parts))
