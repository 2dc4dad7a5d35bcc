"""Golden tables lie beside the repository, where there are any; without them nothing is collected.

``LAKEFERRY_GOLDEN`` names another folder of tables.
"""

from __future__ import annotations

import os
from pathlib import Path

BESIDE = Path(__file__).resolve().parents[3] / "shared" / "golden" / "delta"
GOLDEN = Path(os.environ.get("LAKEFERRY_GOLDEN", BESIDE))

collect_ignore_glob = [] if GOLDEN.is_dir() else ["test_*.py"]


def pytest_report_header() -> str:
    """Say which tables are compared, or that there are none."""
    return f"golden tables: {GOLDEN if GOLDEN.is_dir() else 'none'}"
