"""Golden blocks lie beside the repository, where there are any; without them none are compared."""

from __future__ import annotations

from tests.support.odf import GOLDEN_ODF

collect_ignore = [] if GOLDEN_ODF.is_dir() else ["chain/test_odf_blocks_golden.py"]
