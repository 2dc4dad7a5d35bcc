"""The entry point of the program ``lakeferry``.

Nothing is imported here before interrupts are handled: Ctrl-C during the import of modules has
the same effect as later.
"""

from __future__ import annotations

import os
import sys

INTERRUPTED = 130


def main() -> int:
    """Run the command line with the process's arguments and return its exit code."""
    try:
        from lakeferry.cli.app import run_command

        code = run_command(sys.argv[1:])
    except KeyboardInterrupt:
        sys.stderr.write("error: interrupted\n")
        code = INTERRUPTED
    if code == INTERRUPTED:
        # Threads may be waiting for a store that doesn't answer; nobody waits for them now.
        os._exit(code)
    return code
