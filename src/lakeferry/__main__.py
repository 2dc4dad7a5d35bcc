"""Run the command line: ``python -m lakeferry`` is the program ``lakeferry``."""

from __future__ import annotations

import sys

from lakeferry.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
