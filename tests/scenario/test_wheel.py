"""The program as it is installed: from the wheel, away from the repository, without Spark."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

import lakeferry
from tests.support.history import Append, History
from tests.unit.cli.program import environment, make

REPOSITORY = Path(__file__).resolve().parents[2]
SOURCE = Path(lakeferry.__file__).resolve().parent
NOT_BROUGHT = ("pyspark", "py4j", "delta_spark", "delta-", "deltalake", "lakeferry", "__editable__")
"""What ``pip install lakeferry`` doesn't bring, and the repository itself."""


@dataclass(frozen=True, slots=True)
class Installed:
    """A virtual environment that has the wheel and what it depends on."""

    wheel: Path
    folder: Path

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


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    place = tmp_path_factory.mktemp("wheel")
    folder, packages = place / "venv", place / "packages"
    _uv("build", "--wheel", "--out-dir", place / "dist")
    (wheel,) = (place / "dist").glob("*.whl")
    _uv("venv", "--python", sys.executable, folder)
    _uv("pip", "install", "--no-deps", "--python", folder / "bin/python", wheel)
    packages.mkdir()
    for each in Path(pytest.__file__).resolve().parents[1].iterdir():
        if not each.name.startswith(NOT_BROUGHT) and each.suffix != ".pth":
            (packages / each.name).symlink_to(each)
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "dependencies.pth").write_text(f"{packages}\n")
    return Installed(wheel, folder)


def test_every_file_of_the_package_is_in_the_wheel(installed: Installed) -> None:
    wanted = {
        f"lakeferry/{path.relative_to(SOURCE)}"
        for path in SOURCE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert "lakeferry/engines/spark/spark_jars_lock/jars-3.5.sha256" in wanted
    with zipfile.ZipFile(installed.wheel) as wheel:
        assert wanted <= set(wheel.namelist())


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
