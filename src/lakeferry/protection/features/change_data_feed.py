"""Drops changeDataFeed: its property goes; change files that are there stay readable."""

from __future__ import annotations

from lakeferry.protection.features.droppable_feature import DroppableFeature


class DropChangeDataFeed(DroppableFeature):
    """Writers record no changes any more."""

    names = ("changeDataFeed",)
    properties = ("delta.enableChangeDataFeed",)
