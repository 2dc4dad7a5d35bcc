"""Drops materializePartitionColumns: its property goes."""

from __future__ import annotations

from lakeferry.protection.features.droppable_feature import DroppableFeature


class DropMaterializePartitionColumns(DroppableFeature):
    """New data files needn't hold their partition columns."""

    names = ("materializePartitionColumns",)
    properties = ("delta.enableMaterializePartitionColumnsFeature",)
