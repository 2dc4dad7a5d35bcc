"""The lowest pyarrow that is supported passes the tests, too: a share of them in each run.

``make matrix-pyarrow`` runs all of them. Tests that need Spark are left to it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.golden.conftest import GOLDEN
from tests.support import components
from tests.support.shares import Share

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = (
    "golden",
    "unit/dataset",
    "unit/engines",
    "unit/export",
    "unit/log",
    "unit/protection",
    "unit/redirect",
    "unit/table",
    "unit/transfer/datasets",
)
"""Where code is tested that uses pyarrow for more than to pass it on."""


def test_the_lowest_pyarrow_is_the_bound_of_the_package() -> None:
    (bound,) = re.findall(r'"pyarrow>=(\d+)"', (ROOT / "pyproject.toml").read_text())
    assert components.lowest_pyarrow().partition(".")[0] == bound


def test_a_share_of_the_tests_passes_with_the_lowest_pyarrow(share: Share, tmp_path: Path) -> None:
    folder = components.require("pyarrow-lowest")
    tests = sorted(
        str(path.relative_to(ROOT))
        for folder in FOLDERS
        if folder != "golden" or GOLDEN.is_dir()
        for path in (ROOT / "tests" / folder).rglob("test_*.py")
    )
    told = f"import pyarrow; assert pyarrow.__version__ == '{components.lowest_pyarrow()}'"
    # Nothing of the run that this test is a part of.
    given = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    variables = given | {"PYTHONPATH": str(folder)}
    subprocess.run([sys.executable, "-c", told], env=variables, check=True)
    ended = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-n", "0", "-q", "-p", "no:cacheprovider"),
            *("-m", "not spark", "--share", str(share), f"--basetemp={tmp_path / 'inner'}"),
            *share.some(tests),
        ],
        cwd=ROOT,
        env=variables,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout[-10_000:]
