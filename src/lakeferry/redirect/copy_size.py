"""Estimates how much a range of versions refers to, to choose an engine."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from lakeferry.errors import LakeferryError
from lakeferry.log import references
from lakeferry.log.segment import Segment
from lakeferry.storage import Store
from lakeferry.table import load

COUNTED_BYTES = 8 * 1024 * 1024
"""Log files of up to this size together are read to count what they refer to."""
_BYTES_FOR_A_FILE = 1_000
"""What a log has for each file that it names, roughly."""


def size_referred_to(store: Store, segment: Segment) -> tuple[int, int]:
    """Return the number and the bytes of the data files that a stretch of log refers to.

    A long log isn't read for that: it names so many files that their bytes don't matter.
    """
    estimate = segment.size_bytes // _BYTES_FOR_A_FILE
    if segment.size_bytes > COUNTED_BYTES:
        return estimate, 0
    try:
        tables = [
            references.of_lines(data, file.path)
            for file, data in load.contents(store, segment.deltas)
        ]
        if segment.checkpoint is not None:
            for rows in load.checkpoint_rows(store, segment.checkpoint.files, ("sidecar", "add")):
                tables += [references.of_adds(pa.Table.from_batches([each])) for each in rows.adds]
    except LakeferryError:
        # The copy itself reports a better error.
        return estimate, 0
    found = references.distinct_references(tables)
    return found.num_rows, pc.sum(found["size"]).as_py() or 0
