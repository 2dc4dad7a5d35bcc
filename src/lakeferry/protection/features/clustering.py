"""Drops clustering: its metadata domain goes, files stay as they are."""

from __future__ import annotations

from lakeferry.protection.features.droppable_feature import DroppableFeature


class DropClustering(DroppableFeature):
    """New files needn't be clustered."""

    names = ("clustering",)
    domain = "delta.clustering"
