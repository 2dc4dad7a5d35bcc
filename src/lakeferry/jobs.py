"""Runs any Lakeferry command as a job of ``spark-submit``.

::

    spark-submit --master yarn "$(python -m lakeferry.jobs path)" verify s3://a/orders s3://b/orders

``python -m lakeferry.jobs path`` prints the path of this file, and ``spark-submit`` runs it with a
command line of Lakeferry. The command uses the session that ``spark-submit`` makes, with its master
and its executors (``--engine spark``, unless the command line or LAKEFERRY_ENGINE names another
engine). As with ``--json``, standard output has one JSON document, and standard error an error if
there is one; the exit code is that of the command.

The driver needs Lakeferry. Executors get it from the driver, and need what it depends on.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

_PATH = "path"


def path() -> str:
    """Return the path of the file that ``spark-submit`` has to run."""
    return str(Path(__file__).resolve())


def run(words: Sequence[str]) -> int:
    """Run a command line with JSON output, and return its exit code."""
    from lakeferry.cli.app import run_command
    from lakeferry.cli.exit_codes import exit_code
    from lakeferry.cli.output import Output
    from lakeferry.config import ENGINE_VARIABLE
    from lakeferry.engines import submitted_session
    from lakeferry.errors import LakeferryError

    os.environ.setdefault(ENGINE_VARIABLE, "spark")
    try:
        with submitted_session():
            return run_command(["--json", *words])
    except LakeferryError as refused:
        Output(json=True).fail(refused.as_document())
        return exit_code(refused)


def _main() -> int:
    """Run the process's arguments as a command line; ``path`` alone prints where this file is."""
    words = sys.argv[1:]
    if words == [_PATH]:
        sys.stdout.write(f"{path()}\n")
        return 0
    return run(words)


if __name__ == "__main__":
    # Python looks for modules beside a script first, and beside this one are modules of Lakeferry
    # with common names.
    _beside = Path(__file__).resolve().parent
    if (_beside / "cli" / "app.py").exists():
        sys.path[:] = [each for each in sys.path if Path(each).resolve() != _beside]
    sys.exit(_main())
