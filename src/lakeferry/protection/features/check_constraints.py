"""Drops checkConstraints: refused while the table has constraints."""

from __future__ import annotations

from lakeferry.log.replay import Snapshot
from lakeferry.protection.features.droppable_feature import DroppableFeature

_LEAD = "delta.constraints."


class DropCheckConstraints(DroppableFeature):
    """No constraint is left."""

    names = ("checkConstraints",)

    def uses(self, snapshot: Snapshot) -> list[str]:
        """Return the table's constraints."""
        keys = snapshot.metadata.configuration
        return [
            f"the constraint {key.removeprefix(_LEAD)}" for key in keys if key.startswith(_LEAD)
        ]
