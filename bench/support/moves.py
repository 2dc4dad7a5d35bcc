"""How long writers wait while a table moves: one move in a process, and several in turn.

The source is on local disk, and a process commits to it twice a second through the redirect.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from support import tables
from support.measure import CHILD

_WRITER = """
import sys, time
import pyarrow as pa
from deltalake import write_deltalake
import lakeferry
from lakeferry.errors import LakeferryError
print("ready", flush=True)
while True:
    try:
        place = lakeferry.resolve(sys.argv[1], write=True)
        write_deltalake(place, pa.table({"id": pa.array([1], pa.int64())}), mode="append")
        time.sleep(0.5)
    except (LakeferryError, OSError, Exception):
        time.sleep(0.02)
"""


@contextmanager
def writing(source: Path) -> Iterator[None]:
    """Let a process append to a table meanwhile, as often as it is let."""
    writer = subprocess.Popen(
        [sys.executable, "-c", _WRITER, str(source)], stdout=subprocess.PIPE, text=True
    )
    assert writer.stdout is not None
    writer.stdout.readline()
    try:
        yield
    finally:
        writer.kill()
        writer.wait()


def waits(
    program: str, runner: str, files: int, runs: int, target_of: Callable[[Path], str] = str
) -> list[float]:
    """Return how long writers waited in each of several moves, in milliseconds.

    ``runner`` of ``program`` moves the table ``old`` of a folder and returns the outcome's
    document. Its argument is what ``target_of`` returns for that folder.
    """
    found = []
    with tempfile.TemporaryDirectory() as place:
        original = tables.write(Path(place) / "original", files)
        for run in range(runs):
            folder = Path(place) / str(run)
            shutil.copytree(original, folder / "old")
            done = subprocess.run(
                [sys.executable, program, CHILD, runner, target_of(folder)],
                stdout=subprocess.PIPE,
                text=True,
                check=True,
            )
            outcome = json.loads(done.stdout.splitlines()[-1])["result"]
            found.append(float(outcome["blocked_ms"]))
            shutil.rmtree(folder)
    return found
