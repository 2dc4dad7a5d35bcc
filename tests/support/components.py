"""The real components that the tests start: where they are, how they get there.

Each is kept in the user's cache folder under its version, so only the first
run pays for it, and all clones share it. What is there is whole: it is built
or downloaded beside its place and then renamed into it.

As a program::

    python -m tests.support.components                   what there is
    python -m tests.support.components install NAME...   get what is missing
    python -m tests.support.components path NAME         where one is

In a test, ``require("versitygw")`` gives the path or skips the test, with the
command that installs it. Where ``CI=true``, what is missing is a failure: there
a skipped test would hide that nothing was tested.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from lakeferry.engines.spark import spark_jars
from lakeferry.engines.spark.spark_versions import SPARK_LINES
from lakeferry.errors import LakeferryError
from tests.matrix import environments

ROOT = Path(__file__).resolve().parents[2]

VERSITYGW_VERSION = "1.8.0"
LAKEFS_VERSION = "1.84.0"


def cache_folder() -> Path:
    """Where components are kept: ``LAKEFERRY_CACHE``, or the user's cache folder."""
    if chosen := os.environ.get("LAKEFERRY_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lakeferry"


def in_ci() -> bool:
    return os.environ.get("CI") == "true"


@dataclass(frozen=True, slots=True)
class Component:
    """One thing that tests need and that pip can't install."""

    name: str
    purpose: str
    program: str
    """What its installation runs, and so must be there first."""
    program_remedy: str
    locate: Callable[[], Path | None]
    """Its path, or nothing if it isn't installed."""
    install: Callable[[], None]
    root_command: str | None = None
    """What root runs to get a package of the system; nobody else is asked for a password."""

    @property
    def installable(self) -> bool:
        """Whether this user, on this machine, can install it."""
        as_root = self.root_command is None or os.geteuid() == 0
        return as_root and shutil.which(self.program) is not None

    @property
    def remedy(self) -> str:
        """What a person does to get it."""
        if shutil.which(self.program) is None:
            return f"{self.program_remedy}, then run `make components`"
        if not self.installable:
            return f"run `sudo {self.root_command}`"
        return f"run `make components COMPONENTS={self.name}`"


class ComponentError(Exception):
    """A component could not be installed."""


def require(name: str) -> Path:
    """Give the path of a component; skip the test without it, or fail in CI."""
    import pytest

    component = COMPONENTS[name]
    if path := component.locate():
        return path
    message = f"{name} is not installed: {component.remedy}"
    if in_ci():
        pytest.fail(message, pytrace=False)
    pytest.skip(message)


# --- versitygw and lakeFS: built with Go -------------------------------------


def _binary(name: str, version: str) -> Path:
    return cache_folder() / f"{name}-{version}" / name


def _existing(path: Path) -> Path | None:
    return path if path.exists() else None


def _install_versitygw() -> None:
    package = f"github.com/versity/versitygw/cmd/versitygw@v{VERSITYGW_VERSION}"
    with _new_folder(_binary("versitygw", VERSITYGW_VERSION).parent) as folder:
        _run(["go", "install", package], GOBIN=str(folder), CGO_ENABLED="0")


def _install_lakefs() -> None:
    command = ["go", "build", "-mod=readonly", "-trimpath", "-buildvcs=false"]
    with _new_folder(_binary("lakefs", LAKEFS_VERSION).parent) as folder:
        _run(
            [*command, "-o", str(folder / "lakefs"), "github.com/treeverse/lakefs/cmd/lakefs"],
            cwd=ROOT / "tools" / "lakefs",
            CGO_ENABLED="0",
        )


# --- Spark's jars: resolved by the Ivy that PySpark ships ---------------------


def _locate_spark_jars() -> Path | None:
    return _existing(spark_jars.jars_folder()) if shutil.which("java") else None


def _install_spark_jars() -> None:
    try:
        spark_jars.fetch()
    except LakeferryError as error:
        raise ComponentError(f"{error}: {error.remedy}") from error


# --- The oldest supported Spark: an environment of its own --------------------


def _locate_oldest_spark() -> Path | None:
    is_there = shutil.which("java") is not None and environments.is_there(environments.OLDEST)
    return environments.python_of(environments.OLDEST) if is_there else None


def _install_oldest_spark() -> None:
    try:
        environments.make(environments.OLDEST)
    except environments.EnvironmentFailed as error:
        raise ComponentError(str(error)) from error


# --- The oldest server of Spark Connect: PySpark brings that of newer lines ------------------

_CONNECT_IVY = ROOT / "tools" / "matrix" / "connect-ivy-3.5.xml"
_CONNECT_JARS = ROOT / "tools" / "matrix" / "connect-jars-3.5.sha256"


def _oldest_connect() -> Path:
    key = hashlib.sha256(_CONNECT_JARS.read_bytes()).hexdigest()[:12]
    return cache_folder() / f"connect-server-{key}"


def _install_oldest_connect() -> None:
    import pyspark

    with _new_folder(_oldest_connect()) as folder:
        try:
            spark_jars.resolve_jars(_CONNECT_IVY, folder, Path(pyspark.__file__).parent / "jars")
            spark_jars.check_jars(_CONNECT_JARS, folder)
        except LakeferryError as error:
            raise ComponentError(f"{error}: {error.remedy}") from error


# --- The client of Spark Connect: packages that the tests' own environment must not have -------

_CONNECT_LOCK = ROOT / "tools" / "connect-client.lock"


def _connect_client() -> Path:
    """Return the folder of the packages, named after their lock and this Python."""
    key = hashlib.sha256(_CONNECT_LOCK.read_bytes()).hexdigest()[:12]
    return cache_folder() / f"connect-client-{key}-{sys.implementation.cache_tag}"


def _install_connect_client() -> None:
    command = [str(ROOT / "tools" / "setup.sh"), "uv", "pip", "install", "--quiet"]
    options = ["--require-hashes", "--only-binary", ":all:", "--requirement", str(_CONNECT_LOCK)]
    with _new_folder(_connect_client()) as folder:
        _run([*command, "--python", sys.executable, "--target", str(folder), *options])


# --- The lowest pyarrow that is supported: a folder for PYTHONPATH -------------

_PYARROW_LOCK = ROOT / "tools" / "pyarrow-lowest.lock"


def lowest_pyarrow() -> str:
    """The version in its lock, which is the lower bound in ``pyproject.toml``."""
    (version,) = re.findall(r"^pyarrow==([\d.]+)", _PYARROW_LOCK.read_text(), re.MULTILINE)
    return str(version)


def _pyarrow_folder() -> Path:
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    return cache_folder() / f"pyarrow-{lowest_pyarrow()}-python{python}"


def _install_pyarrow() -> None:
    with _new_folder(_pyarrow_folder()) as folder:
        _run(
            [
                *(str(ROOT / "tools" / "setup.sh"), "uv", "pip", "install", "--quiet"),
                *("--require-hashes", "--only-binary", ":all:", "--python", sys.executable),
                *("--target", str(folder), "--requirement", str(_PYARROW_LOCK)),
            ]
        )


# --- PostgreSQL and Chromium: packages of the system ----------------------------


def _locate_postgresql() -> Path | None:
    if program := shutil.which("pg_ctl"):
        return Path(program).resolve().parent
    # Debian keeps the server's programs off the PATH, one folder per version.
    return next((p.parent for p in sorted(Path("/usr/lib/postgresql").glob("*/bin/pg_ctl"))), None)


def _locate_chromium() -> Path | None:
    program = shutil.which("chromium")
    return Path(program) if program else None


_APT_INSTALL = ["apt-get", "install", "--yes", "--no-install-recommends"]
_NO_CLUSTER = Path("/etc/postgresql-common/createcluster.d/lakeferry.conf")


def _install_package(name: str) -> None:
    # A new machine has no list of packages, and an old list names versions that are gone.
    _run(["apt-get", "update"], quiet=True)
    _run([*_APT_INSTALL, name], DEBIAN_FRONTEND="noninteractive")


def _install_postgresql() -> None:
    """Install the programs alone: the package would set up and start a server, which we don't use.

    Debian's scripts read this file, which stays for the time of the installation only.
    """
    _NO_CLUSTER.parent.mkdir(parents=True, exist_ok=True)
    _NO_CLUSTER.write_text("create_main_cluster = false\n")
    try:
        _install_package("postgresql")
    finally:
        _NO_CLUSTER.unlink()


# --- All of them ----------------------------------------------------------------

_GO = "install Go 1.26.4 or newer"
_JAVA = "install Java 17 (Debian: apt-get install openjdk-17-jre-headless)"

COMPONENTS = {
    component.name: component
    for component in (
        Component(
            "spark-jars",
            "Delta Lake and s3a:// for Spark",
            "java",
            _JAVA,
            _locate_spark_jars,
            _install_spark_jars,
        ),
        Component(
            "oldest-spark",
            f"Spark {environments.OLDEST.pyspark} and its Delta Lake",
            "java",
            _JAVA,
            _locate_oldest_spark,
            _install_oldest_spark,
        ),
        Component(
            "oldest-connect",
            f"the server of Spark Connect for Spark {environments.OLDEST.line}",
            "java",
            _JAVA,
            lambda: _existing(_oldest_connect()) if shutil.which("java") else None,
            _install_oldest_connect,
        ),
        Component(
            "connect-client",
            "the packages of a Spark Connect client",
            "bash",
            "install bash",
            lambda: _existing(_connect_client()),
            _install_connect_client,
        ),
        Component(
            "pyarrow-lowest",
            "the lowest pyarrow that is supported",
            "python3",
            "install Python",
            lambda: _existing(_pyarrow_folder()),
            _install_pyarrow,
        ),
        Component(
            "versitygw",
            "an S3 server",
            "go",
            _GO,
            lambda: _existing(_binary("versitygw", VERSITYGW_VERSION)),
            _install_versitygw,
        ),
        Component(
            "lakefs",
            "a lakeFS server; the first build takes 5 to 15 minutes",
            "go",
            _GO,
            lambda: _existing(_binary("lakefs", LAKEFS_VERSION)),
            _install_lakefs,
        ),
        Component(
            "postgresql",
            "a database for the embedded catalog",
            "apt-get",
            "install PostgreSQL",
            _locate_postgresql,
            _install_postgresql,
            " ".join([*_APT_INSTALL, "postgresql"]),
        ),
        Component(
            "chromium",
            "a browser for the console's pages",
            "apt-get",
            "install Chromium",
            _locate_chromium,
            lambda: _install_package("chromium"),
            " ".join([*_APT_INSTALL, "chromium"]),
        ),
    )
}


@contextmanager
def _new_folder(place: Path) -> Iterator[Path]:
    """Give a folder to fill that becomes ``place`` if all goes well."""
    with tempfile.TemporaryDirectory(dir=place.parent, prefix=f"{place.name}.") as scratch:
        folder = Path(scratch) / "new"
        folder.mkdir()
        yield folder
        folder.rename(place)


@contextmanager
def _lock(name: str) -> Iterator[None]:
    """Keep a second run from building the same thing at the same time."""
    cache_folder().mkdir(parents=True, exist_ok=True)
    with (cache_folder() / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _run(
    command: list[str], *, cwd: Path | None = None, quiet: bool = False, **variables: str
) -> None:
    """Run a command at low priority; its output is shown unless ``quiet``."""
    ended = subprocess.run(
        ["nice", "-n", "10", *command],
        cwd=cwd,
        env={**os.environ, **variables},
        stdout=subprocess.PIPE if quiet else sys.stderr,
        stderr=subprocess.STDOUT if quiet else sys.stderr,
        text=True,
        check=False,
    )
    if ended.returncode != 0:
        raise ComponentError(
            f"`{' '.join(command)}` ended with {ended.returncode}\n{ended.stdout or ''}"
        )


def install(names: list[str]) -> bool:
    """Install what is missing; say what could not be; tell whether all is there."""
    complete = True
    for name in names:
        component = COMPONENTS[name]
        if component.locate():
            continue
        if not component.installable:
            print(f"{name} left out: {component.remedy}", file=sys.stderr)
            complete = False
            continue
        print(f"{name}: getting {component.purpose}", file=sys.stderr)
        try:
            with _lock(name):
                if not component.locate():
                    component.install()
        except ComponentError as error:
            # A package of the system may be out of reach; its tests then say so themselves.
            if component.root_command is None:
                raise
            print(f"{name} left out: {error}", file=sys.stderr)
            complete = False
    return complete


def main(arguments: list[str]) -> int:
    match arguments:
        case []:
            for component in COMPONENTS.values():
                place = component.locate()
                print(f"{component.name:14} {place or 'missing: ' + component.remedy}")
            return 0
        case ["install", *names] if names and set(names) <= COMPONENTS.keys():
            try:
                complete = install(names)
            except ComponentError as error:
                print(error, file=sys.stderr)
                return 1
            return 0 if complete or not in_ci() else 1
        case ["path", name] if name in COMPONENTS:
            found = COMPONENTS[name].locate()
            print(found or COMPONENTS[name].remedy)
            return 0 if found else 1
        case ["lock", "spark-jars"]:
            with tempfile.TemporaryDirectory() as folder:
                import pyspark

                for line in SPARK_LINES:
                    if line.delta is None:
                        continue
                    jars = Path(folder) / line.line
                    shipped = Path(pyspark.__file__).parent / "jars"
                    spark_jars.resolve_jars(spark_jars.ivy_file(line), jars, shipped)
                    spark_jars.lock_file(line).write_text(spark_jars.digests(jars))
                server = Path(folder) / "connect"
                spark_jars.resolve_jars(_CONNECT_IVY, server, shipped)
                _CONNECT_JARS.write_text(spark_jars.digests(server))
            return 0
        case _:
            print(__doc__, file=sys.stderr)
            print("Components:", *COMPONENTS, file=sys.stderr)
            return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
