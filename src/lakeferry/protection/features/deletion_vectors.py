"""Drops deletionVectors: files with deleted rows are rewritten.

A ``remove`` for each vector file within the retention keeps an old VACUUM, which doesn't know
vectors, from deleting what time travel needs.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from lakeferry.engine import RewritePlan
from lakeferry.log import file_actions, references
from lakeferry.log.actions import Metadata
from lakeferry.log.commit import Transaction
from lakeferry.log.conflicts import Conflict
from lakeferry.log.lines import Lines
from lakeferry.log.replay import Snapshot
from lakeferry.log.tombstones import unexpired_tombstones
from lakeferry.protection.drop_context import MAX_ATTEMPTS, DropContext, gave_up
from lakeferry.protection.features.droppable_feature import DroppableFeature
from lakeferry.protection.features.file_replacement import replace_files

_ENABLED = "delta.enableDeletionVectors"


class DropDeletionVectors(DroppableFeature):
    """No live file has deleted rows."""

    names = ("deletionVectors",)

    def prepare(self, work: DropContext) -> int:
        """Rewrite files with deleted rows, and protect the vectors' files from an old VACUUM."""
        work.set_properties(
            "UNSET TBLPROPERTIES",
            {_ENABLED: None},
            lambda state: _ENABLED in state.metadata.configuration,
        )
        for _ in range(MAX_ATTEMPTS):
            snapshot = work.snapshot()
            marked = snapshot.files.filter(pc.is_valid(snapshot.files["deletionVector"]))
            if not marked.num_rows:
                return _bury_vectors(work, snapshot)
            plan = RewritePlan(
                work.log.store.config,
                marked,
                snapshot.metadata,
                snapshot.metadata,
                only_where_needed=False,
                tight_bounds=True,
            )
            replace_files(work, work.rewritten(plan), snapshot.metadata)
        raise gave_up(work.location, "purging deletion vectors")

    def shows_traces(self, metadata: Metadata, since: Lines) -> bool:
        """Return whether rows were deleted by a vector since, or may be."""
        # A removed file with a vector shows that the state had a vector before.
        touched = (since.adds["deletionVector"], since.removes["deletionVector"])
        return _ENABLED in metadata.configuration or any(
            vectors.null_count < len(vectors) for vectors in touched
        )


def _bury_vectors(work: DropContext, snapshot: Snapshot) -> int:
    """Commit a ``remove`` for each vector file that time travel may still need.

    To a client that doesn't know vectors their files look unused. But even its VACUUM keeps
    files that were removed within the retention.
    """
    now_ms = work.log.clock()
    buried = snapshot.tombstones
    recent = unexpired_tombstones(buried, snapshot.metadata, now_ms)
    vectors = recent["deletionVector"].combine_chunks()
    found = references.vector_paths(vectors)
    missing = found.filter(pc.invert(pc.is_in(found, value_set=buried["path"].combine_chunks())))
    if not len(missing):
        return snapshot.version
    rows = [
        {"path": path, "deletionTimestamp": now_ms, "dataChange": False}
        for path in missing.to_pylist()
    ]
    removes = pa.Table.from_pylist(rows, schema=file_actions.REMOVE)
    transaction = Transaction("Deletion Vector Tombstones", work.new_id(), removes=removes)
    for _ in range(MAX_ATTEMPTS):
        if not isinstance(work.log.commit(transaction, work.state()), Conflict):
            return snapshot.version
    raise gave_up(work.location, "keeping vectors")
