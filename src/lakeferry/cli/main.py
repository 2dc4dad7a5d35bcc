"""The entry point of the program ``lakeferry``.

Nothing is imported here before interrupts are handled: Ctrl-C during the import of modules has
the same effect as later.
"""

from __future__ import annotations

import os
import sys

FAILED, INTERRUPTED = 1, 130


def main() -> int:
    """Run the command line with the process's arguments and return its exit code."""
    try:
        try:
            from lakeferry.cli.app import run_command
        except Exception as failed:  # noqa: BLE001 - an old package may raise anything
            return _without_package(failed)
        code = run_command(sys.argv[1:])
    except KeyboardInterrupt:
        sys.stderr.write("error: interrupted\n")
        code = INTERRUPTED
    if code == INTERRUPTED:
        # Threads may be waiting for a store that doesn't answer; nobody waits for them now.
        os._exit(code)
    return code


def _without_package(failed: Exception) -> int:
    """Report that the command line itself can't be imported, as for example without click."""
    from lakeferry.cli.output import Output
    from lakeferry.packages import package_at_fault

    lacking = package_at_fault(failed)
    if lacking is None:
        raise failed
    Output(json="--json" in sys.argv).fail(lacking.as_document())
    return FAILED
