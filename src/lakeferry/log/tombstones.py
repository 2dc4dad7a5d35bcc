"""Decides which tombstones have expired, so that a checkpoint leaves them out.

A ``remove`` stays in the state for the table's deleted file retention, so that VACUUM and readers
of older versions know of the file.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from lakeferry.log import properties
from lakeferry.log.actions import Metadata


def unexpired_tombstones(removes: pa.Table, metadata: Metadata, now_ms: int) -> pa.Table:
    """Return the rows of ``removes`` that are younger than the table's retention."""
    retention_ms = properties.deleted_file_retention_ms(metadata.configuration)
    removed_at = pc.fill_null(removes["deletionTimestamp"], 0)
    return removes.filter(pc.greater(removed_at, pa.scalar(now_ms - retention_ms, pa.int64())))
