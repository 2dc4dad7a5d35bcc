"""Drops typeWidening: files of narrower types are rewritten."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from lakeferry.engine import RewritePlan
from lakeferry.log import file_identity
from lakeferry.log.actions import Metadata
from lakeferry.log.commit import Reads, Transaction
from lakeferry.log.conflicts import Conflict
from lakeferry.log.lines import Lines
from lakeferry.protection import schema_traces
from lakeferry.protection.drop_context import MAX_ATTEMPTS, DropContext, gave_up
from lakeferry.protection.features.droppable_feature import DroppableFeature
from lakeferry.protection.features.file_replacement import follow_alike, replace_files

_ENABLED = "delta.enableTypeWidening"


class DropTypeWidening(DroppableFeature):
    """Every file has the types of the schema."""

    names = ("typeWidening", "typeWidening-preview")

    def prepare(self, work: DropContext) -> int:
        """Rewrite files of narrower types, and remove the type changes from the schema."""
        work.set_properties(
            "UNSET TBLPROPERTIES",
            {_ENABLED: None},
            lambda state: _ENABLED in state.metadata.configuration,
        )
        checked: pa.Array | None = None
        checked_by: Metadata | None = None
        for _ in range(MAX_ATTEMPTS):
            snapshot = work.snapshot()
            if not schema_traces.has_type_changes(snapshot.metadata):
                return snapshot.version
            if checked_by is None or not follow_alike(snapshot.metadata, checked_by):
                checked, checked_by = None, snapshot.metadata
            own = file_identity.table_keys(snapshot.files, work.location)
            unsure = snapshot.files
            if checked is not None:
                unsure = unsure.filter(pc.invert(pc.is_in(own, value_set=checked)))
            plan = RewritePlan(work.log.store.config, unsure, snapshot.metadata, snapshot.metadata)
            narrow = work.rewritten(plan)
            if narrow.old.num_rows:
                replace_files(work, narrow, snapshot.metadata)
                continue
            checked = own
            transaction = Transaction(
                "DROP FEATURE",
                work.new_id(),
                metadata=schema_traces.without_type_changes(snapshot.metadata),
                reads=Reads.FILES,
            )
            result = work.log.commit(transaction, snapshot.state)
            if not isinstance(result, Conflict):
                return result.version
        raise gave_up(work.location, "rewriting widened columns")

    def shows_traces(self, metadata: Metadata, since: Lines) -> bool:  # noqa: ARG002
        """Return whether a column was widened again, or may be."""
        return _ENABLED in metadata.configuration or schema_traces.has_type_changes(metadata)
