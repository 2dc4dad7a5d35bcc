"""Drops v2Checkpoint: new checkpoints are classic ones.

Existing checkpoints stay; the barriers before the drop hide them.
"""

from __future__ import annotations

from lakeferry.log import paths, properties
from lakeferry.log.actions import Metadata
from lakeferry.log.lines import Lines
from lakeferry.log.segment import Listing
from lakeferry.protection.drop_context import DropContext
from lakeferry.protection.features.droppable_feature import DroppableFeature

_POLICY = "delta.checkpointPolicy"


class DropV2Checkpoint(DroppableFeature):
    """The newest checkpoint is a classic one."""

    names = ("v2Checkpoint",)
    properties = (_POLICY,)

    def prepare(self, work: DropContext) -> int:
        """Set the table's policy to classic checkpoints; return its newest version."""
        work.set_properties(
            "SET TBLPROPERTIES",
            {_POLICY: "classic"},
            lambda state: properties.wants_v2_checkpoints(state.metadata.configuration),
        )
        return work.log.state().version

    def shows_traces(self, metadata: Metadata, since: Lines) -> bool:  # noqa: ARG002
        """Return whether the properties ask for V2 checkpoints again."""
        return properties.wants_v2_checkpoints(metadata.configuration)

    def last_trace_outside_commits(self, listing: Listing) -> int:
        """Return the version of the newest V2 checkpoint."""
        found = [each.version for each in listing.checkpoints if each.kind is paths.LogFileKind.V2]
        return max(found, default=-1)
