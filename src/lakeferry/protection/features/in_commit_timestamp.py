"""Drops inCommitTimestamp: its properties go; a version's time is that of its file again."""

from __future__ import annotations

from lakeferry.protection.features.droppable_feature import DroppableFeature


class DropInCommitTimestamp(DroppableFeature):
    """Commits have no time of their own any more."""

    names = ("inCommitTimestamp",)
    properties = (
        "delta.enableInCommitTimestamps",
        "delta.inCommitTimestampEnablementVersion",
        "delta.inCommitTimestampEnablementTimestamp",
    )
