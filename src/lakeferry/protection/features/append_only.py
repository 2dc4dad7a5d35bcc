"""Drops appendOnly: its property goes."""

from __future__ import annotations

from lakeferry.protection.features.droppable_feature import DroppableFeature


class DropAppendOnly(DroppableFeature):
    """Rows may be deleted again."""

    names = ("appendOnly",)
    properties = ("delta.appendOnly",)
