"""The program as it is installed: from the wheel, away from the repository, without Spark.

``make dist`` names an environment into which pip has installed the wheel (``LAKEFERRY_INSTALLED``).
Otherwise the wheel is built here, and what it depends on is linked.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import lakeferry
from lakeferry.cli.app import COMMANDS
from lakeferry.engines.spark.spark_versions import NEWEST_WITH_DELTA, SparkLine
from lakeferry.packages import requirements
from tests.matrix import environments
from tests.support import components
from tests.support.history import Append, Delete, History
from tests.support.terminal import shown
from tests.unit.cli.program import environment, make

REPOSITORY = Path(__file__).resolve().parents[2]
SOURCE = Path(lakeferry.__file__).resolve().parent
NOT_BROUGHT = ("pyspark", "py4j", "delta_spark", "delta-", "deltalake", "lakeferry", "__editable__")
"""What ``pip install lakeferry`` doesn't bring, and the repository itself."""


@dataclass(frozen=True, slots=True)
class Installed:
    """A virtual environment that has the wheel, and where the packages are that it depends on."""

    folder: Path
    packages: Path

    @contextmanager
    def without(self, *names: str) -> Iterator[None]:
        """Take packages away for a while: their modules, and what says that they are installed."""
        wanted = {_plain(name) for name in names}
        aside = self.folder / "aside"
        aside.mkdir()
        taken = [
            path
            for path in self.packages.iterdir()
            if _plain(path.name.partition("-")[0].partition(".")[0]) in wanted
        ]
        for path in taken:
            path.rename(aside / path.name)
        try:
            yield
        finally:
            for path in taken:
                (aside / path.name).rename(path)
            aside.rmdir()

    @property
    def program(self) -> Path:
        """The program ``lakeferry``."""
        return self.folder / "bin" / "lakeferry"

    @contextmanager
    def serving(self, *words: object) -> Iterator[str]:
        """Run a server on a free port, and yield its address."""
        server = subprocess.Popen(
            [str(self.program), *map(str, words), "--port", "0", "--json"],
            env=environment(self.folder, {"PYTHONPATH": ""}),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        with server:
            assert server.stdout is not None
            try:
                yield json.loads(server.stdout.readline())["url"]
            finally:
                server.terminate()
        assert server.returncode == 0

    def run(self, program: str, *words: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(self.folder / "bin" / program), *map(str, words)],
            cwd=self.folder,
            env=environment(self.folder, {"PYTHONPATH": ""}),
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )


def _uv(*words: object) -> None:
    """Run the uv of ``make setup``, which builds wheels by itself; no index is asked."""
    subprocess.run(
        [REPOSITORY / "tools/setup.sh", "uv", *map(str, words), "--offline", "--quiet"],
        env=os.environ | {"UV_NO_PROGRESS": "1"},
        check=True,
        timeout=120,
    )


def _plain(name: str) -> str:
    return name.lower().replace("-", "_")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this clone."""
    place = tmp_path_factory.mktemp("dist")
    _uv("build", "--wheel", "--out-dir", place)
    (found,) = place.glob("*.whl")
    return found


def _install_beside(
    wheel: Path, place: Path, python: Path, not_brought: tuple[str, ...]
) -> Installed:
    """Install a wheel alone, beside the packages of another environment that are brought."""
    folder, packages = place / "venv", place / "packages"
    _uv("venv", "--python", python, folder)
    _uv("pip", "install", "--no-deps", "--python", folder / "bin/python", wheel)
    packages.mkdir()
    (brought,) = python.parents[1].glob("lib/python*/site-packages")
    for each in brought.iterdir():
        if not each.name.startswith(not_brought) and each.suffix != ".pth":
            (packages / each.name).symlink_to(each)
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "dependencies.pth").write_text(f"{packages}\n")
    return Installed(folder, packages)


@pytest.fixture(scope="module")
def installed(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Installed:
    if given := os.environ.get("LAKEFERRY_INSTALLED"):
        (site,) = Path(given).glob("lib/python*/site-packages")
        return Installed(Path(given), site)
    wheel = request.getfixturevalue("wheel")
    place = tmp_path_factory.mktemp("wheel")
    return _install_beside(wheel, place, Path(sys.executable), NOT_BROUGHT)


@pytest.fixture(
    scope="module", params=[environments.OLDEST, NEWEST_WITH_DELTA], ids=lambda e: e.line
)
def on_cluster(
    request: pytest.FixtureRequest, wheel: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Installed, SparkLine]:
    """A cluster with its own Spark and Delta Lake, and with what Lakeferry depends on."""
    line: SparkLine = request.param
    if line is environments.OLDEST:
        components.require("oldest-spark")
    place = tmp_path_factory.mktemp(f"cluster-{line.line}")
    python = environments.python_of(line)
    return _install_beside(wheel, place, python, ("lakeferry", "__editable__")), line


def test_every_file_of_the_package_is_installed(installed: Installed) -> None:
    (found,) = installed.folder.glob("lib/python*/site-packages/lakeferry")
    wanted = files_below(SOURCE)
    assert {"py.typed", "engines/spark/spark_jars_lock/jars-3.5.sha256"} <= wanted
    assert files_below(found) == wanted


def files_below(folder: Path) -> set[str]:
    return {
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_the_program_runs_from_the_wheel(installed: Installed, tmp_path: Path) -> None:
    where = installed.run("python", "-c", "import lakeferry; print(lakeferry.__file__)")
    assert where.stdout.startswith(str(installed.folder))
    version = f"lakeferry {lakeferry.__version__}\n"
    for words in (("python", "-m", "lakeferry"), ("lakeferry",)):
        assert installed.run(*words, "--version").stdout == version
    table = make(History().then(Append(3)), tmp_path / "orders")
    found = installed.run("lakeferry", "inspect", table, "--json")
    assert (found.returncode, json.loads(found.stdout)["num_files"]) == (0, 3)


def test_without_the_extra_spark_says_how_to_get_it(installed: Installed, tmp_path: Path) -> None:
    table = make(History().then(Append(1)), tmp_path / "orders")
    words = ("verify", table, table, "--digest", "--engine", "spark", "--json")
    refused = installed.run("lakeferry", *words)
    assert refused.returncode != 0
    assert "pip install 'lakeferry[spark]'" in json.loads(refused.stderr)["error"]["remedy"]
    use = "import lakeferry; lakeferry.spark.install(None)"
    failed = installed.run("python", "-c", use)
    assert "pip install 'lakeferry[spark]'" in failed.stderr
    found = json.loads(installed.run("lakeferry", "doctor", "--json").stdout)["checks"]
    (pyspark,) = (check for check in found if check["name"] == "pyspark")
    assert "pip install 'lakeferry[spark]'" in pyspark["remedy"]


def test_beside_a_clusters_own_spark_it_uses_that(
    on_cluster: tuple[Installed, SparkLine], tmp_path: Path
) -> None:
    installed, line = on_cluster
    checks = json.loads(installed.run("lakeferry", "doctor", "--json").stdout)["checks"]
    found = {check["name"]: check for check in checks}
    assert found["packages"]["ok"]
    assert (found["pyspark"]["ok"], found["delta-spark"]["ok"]) == (True, True)
    assert line.pyspark in found["pyspark"]["detail"]
    assert str(line.delta) in found["delta-spark"]["detail"]
    table = make(History().then(Append(3)), tmp_path / "orders")
    inspected = installed.run("lakeferry", "inspect", table, "--json")
    assert json.loads(inspected.stdout)["num_files"] == 3
    # Every patch finds the method that it patches; no JVM is needed for that.
    use = (
        "from lakeferry.engines.spark import spark_calls, spark_engine\n"
        "from lakeferry.spark import patches\n"
        "print(spark_calls.spark_line().line, len(patches._patches()) > 40, spark_engine.__file__)"
    )
    told = installed.run("python", "-c", use)
    assert told.stdout.split()[:2] == [line.line, "True"], told.stderr
    assert told.stdout.split()[2].startswith(str(installed.folder))


def test_beside_a_clusters_own_spark_it_names_the_package_that_is_missing(
    on_cluster: tuple[Installed, SparkLine],
) -> None:
    installed, _ = on_cluster
    use = "from pyspark.sql import SparkSession; import lakeferry; {}"
    for package, call in (
        ("msgspec", "lakeferry.spark.install(object.__new__(SparkSession))"),
        ("obstore", "lakeferry.resolve('s3://bucket/orders')"),
    ):
        with installed.without(package):
            told = installed.run("python", "-c", use.format(call))
            assert told.returncode == 1
            assert f"remedy: pip install '{package}" in told.stderr
    assert installed.run("python", "-c", use.format("lakeferry.spark.install")).returncode == 0


@pytest.mark.parametrize(
    ("package", "modules", "words"),
    [
        ("aiohttp", ["aiohttp"], ["pull", "http://127.0.0.1:9/orders", "{folder}/got"]),
        ("alembic", ["alembic"], ["fleet", "scan", "{folder}"]),
        ("click", ["click"], ["inspect", "{table}"]),
        ("jinja2", ["jinja2"], ["ui"]),
        ("msgspec", ["msgspec"], ["inspect", "{table}"]),
        ("obstore", ["obstore"], ["inspect", "s3://bucket/orders"]),
        ("prometheus-client", ["prometheus_client"], ["serve", "--root", "{folder}/root"]),
        ("pyarrow", ["pyarrow"], ["inspect", "{table}"]),
        ("pyyaml", ["yaml", "_yaml", "pyyaml"], ["serve", "--root", "{folder}/root"]),
        ("sqlalchemy", ["sqlalchemy"], ["catalog", "show", "sql:a.b.c"]),
        ("starlette", ["starlette"], ["serve", "--root", "{folder}/root"]),
        ("urllib3", ["urllib3"], ["inspect", "s3://bucket/orders"]),
        ("uvicorn", ["uvicorn"], ["serve", "--root", "{folder}/root"]),
        ("uvloop", ["uvloop"], ["pull", "http://127.0.0.1:9/orders", "{folder}/got"]),
        ("websockets", ["websockets"], ["serve", "--root", "{folder}/root"]),
    ],
)
def test_a_command_names_the_package_that_it_lacks(
    installed: Installed, tmp_path: Path, package: str, modules: list[str], words: list[str]
) -> None:
    """As after ``pip install --no-deps``: other commands work, and ``doctor`` names it, too."""
    table = make(History().then(Append(1)), tmp_path / "orders")
    command = [word.format(folder=tmp_path, table=table) for word in words]
    with installed.without(*modules, package):
        refused = installed.run("lakeferry", *command, "--json")
        assert (refused.returncode, refused.stdout) == (1, "")
        error = json.loads(refused.stderr)["error"]
        assert (error["code"], error["package"]) == ("package_missing", package)
        assert error["remedy"].startswith(f"pip install '{package}")
        if package not in ("click", "msgspec", "pyarrow"):
            local = installed.run("lakeferry", "inspect", table, "--json")
            assert (local.returncode, json.loads(local.stdout)["num_files"]) == (0, 1)
        if package != "click":
            assert package in _packages_check(installed)["detail"]
    assert _packages_check(installed)["ok"]


def _packages_check(installed: Installed) -> dict[str, str]:
    checks = json.loads(installed.run("lakeferry", "doctor", "--json").stdout)["checks"]
    (found,) = (check for check in checks if check["name"] == "packages")
    return dict(found)


def test_with_nothing_but_click_the_program_says_what_is_missing(installed: Installed) -> None:
    names = [each.package for each in requirements() if each.extra is None]
    modules = {"yaml", "_yaml", *(_plain(name) for name in names)} - {"click"}
    with installed.without(*modules):
        assert installed.run("lakeferry", "--help").returncode == 0
        detail = _packages_check(installed)["detail"]
        told = installed.run("python", "-c", "import lakeferry; lakeferry.open").stderr
        assert told.splitlines()[-1] == "remedy: pip install 'pyarrow>=20'"
    assert [name for name in names if f"{name} is missing" not in detail] == ["click"]


def test_on_a_terminal_a_missing_package_is_named_too(installed: Installed, tmp_path: Path) -> None:
    table = make(History().then(Append(1)), tmp_path / "orders")
    with installed.without("rich"):
        code, told = shown("inspect", table, home=tmp_path, program=installed.program)
        assert (code, "pip install 'rich" in told) == (1, True), told
        assert installed.run("lakeferry", "inspect", table).returncode == 0


def test_every_command_that_needs_no_spark_works(installed: Installed, tmp_path: Path) -> None:
    table = make(History().then(Append(3), Append(2), Delete(1)), tmp_path / "orders")
    (tmp_path / "root").mkdir()
    moved = tmp_path / "moved"
    done: list[str] = []

    def run(*words: object) -> Any:
        ended = installed.run("lakeferry", *words, "--json")
        assert ended.returncode == 0, (words, ended.stderr)
        done.append(str(words[0]))
        return json.loads(ended.stdout.splitlines()[0])

    run("doctor")
    run("inspect", table)
    run("history", table)
    run("files", table)
    run("checkpoint", table)
    run("feature", "list", table)
    run("cleanup", table, "--dry-run")
    run("plan", table, "move")
    run("export", table, "--to", tmp_path / "exported")
    run("catalog", "register", "sql:a.b.orders", table)
    run("verify", table, "sql:a.b.orders")
    (scanned,) = run("fleet", "scan", tmp_path / "orders")["tables"]
    assert scanned["num_files"] == 4
    run("redirect", "enable", table, moved, "--mode", "writer-only", "--yes")
    run("redirect", "disable", table)
    run("lakefs", "--help")
    run("publish", "--help")
    run("setup", "--help")
    run("completion", "bash")
    token = run("token", "create", "--root", tmp_path / "root", "--scope", "write")["token"]
    with installed.serving("serve", "--root", tmp_path / "root") as url:
        run("push", table, f"{url}/orders", "--token", token)
        run("pull", f"{url}/orders", tmp_path / "pulled", "--token", token)
        run("ls", url, "--token", token)
        done.append("serve")
    with installed.serving("ui") as url:
        # Templates, the style sheet and the script are in the wheel.
        opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        page = opener.open(url, timeout=60).read().decode()
        assert "/orders" in page.replace("<wbr>", "")
        for link in re.findall(r'"(/-/static/[^"]+)"', page):
            assert opener.open(urllib.parse.urljoin(url, link), timeout=60).read()
        done.append("ui")
    run("dataset", "visibility", "--help")
    run("remote", "list")
    run("gc", tmp_path / "root", "--dry-run")
    assert run("verify", table, tmp_path / "pulled")["equal"]
    assert set(COMMANDS) - set(done) == {"demo"}
