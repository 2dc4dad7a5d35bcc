"""Drops rowTracking: live files are committed again without the ids of their rows."""

from __future__ import annotations

import pyarrow.compute as pc

from lakeferry.log import row_ids
from lakeferry.log.commit import Transaction
from lakeferry.log.conflicts import Conflict
from lakeferry.protection.drop_context import MAX_ATTEMPTS, DropContext, gave_up
from lakeferry.protection.features.droppable_feature import DroppableFeature

_OFF = {"delta.enableRowTracking": "false", "delta.rowTrackingSuspended": "true"}
_COLUMN = "delta.rowTracking.materializedRow"
_AT_ONCE = 100_000
"""How many files are committed again by one commit."""


class DropRowTracking(DroppableFeature):
    """No live file has row ids."""

    names = ("rowTracking",)
    properties = (*_OFF, f"{_COLUMN}IdColumnName", f"{_COLUMN}CommitVersionColumnName")
    domain = "delta.rowTracking"

    def prepare(self, work: DropContext) -> int:
        """Commit live files again without the ids of their rows; return the last version."""
        work.set_properties(
            "SET TBLPROPERTIES",
            _OFF,
            lambda state: any(
                state.metadata.configuration.get(name) != value for name, value in _OFF.items()
            ),
        )
        conflicts = 0
        while conflicts < MAX_ATTEMPTS:
            snapshot = work.snapshot()
            live = snapshot.files
            tracked = live.filter(
                pc.or_(pc.is_valid(live["baseRowId"]), pc.is_valid(live["defaultRowCommitVersion"]))
            )
            if not tracked.num_rows:
                return snapshot.version
            some = row_ids.without_row_ids(tracked.slice(0, _AT_ONCE), data_change=False)
            transaction = Transaction("ROW TRACKING UNBACKFILL", work.new_id(), adds=some)
            conflicts += isinstance(work.log.commit(transaction, snapshot.state), Conflict)
        raise gave_up(work.location, "forgetting row ids")
