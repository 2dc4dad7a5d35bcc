"""Drops domainMetadata: refused while the table has metadata domains."""

from __future__ import annotations

from lakeferry.log.replay import Snapshot
from lakeferry.protection.features.droppable_feature import DroppableFeature


class DropDomainMetadata(DroppableFeature):
    """No metadata domain is left."""

    names = ("domainMetadata",)

    def uses(self, snapshot: Snapshot) -> list[str]:
        """Return the table's metadata domains."""
        return [f"the metadata domain {name}" for name in sorted(snapshot.domains)]
