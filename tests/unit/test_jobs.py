from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from lakeferry import jobs
from tests.support.history import Append, History
from tests.unit.cli.program import environment, make


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env=environment(folder),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_the_module_names_the_file_to_submit(tmp_path: Path) -> None:
    told = run(tmp_path, "-m", "lakeferry.jobs", "path")
    assert (told.returncode, told.stdout, told.stderr) == (0, f"{jobs.__file__}\n", "")


def test_a_command_line_prints_a_document_and_ends_as_the_command_does(tmp_path: Path) -> None:
    """Without spark-submit it is the program, so that a job can be tried at once."""
    table = make(History().then(Append(2)), tmp_path / "orders")
    done = run(tmp_path, jobs.path(), "inspect", str(table))
    assert (done.returncode, json.loads(done.stdout)["num_files"]) == (0, 2)
    refused = run(tmp_path, jobs.path(), "inspect", str(tmp_path / "nothing"))
    assert (refused.returncode, refused.stdout) == (1, "")
    assert json.loads(refused.stderr)["error"]["code"] == "table_not_found"


def test_modules_beside_the_file_do_not_hide_others(tmp_path: Path) -> None:
    """Python looks beside a script first, and there are ``table``, ``config`` and such names."""
    (tmp_path / "sitecustomize.py").write_text(
        "import atexit, sys\natexit.register(lambda: print(sys.path, file=sys.stderr))\n"
    )
    looked = subprocess.run(
        [sys.executable, jobs.path(), "path"],
        env=environment(tmp_path) | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert str(tmp_path) in looked.stderr
    assert f"'{Path(jobs.path()).parent}'" not in looked.stderr
