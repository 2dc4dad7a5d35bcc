"""Drops checkpointProtection: its property goes, once no protected history is left.

``dropping.py`` removes that history first.
"""

from __future__ import annotations

from lakeferry.log import properties
from lakeferry.protection.features.droppable_feature import DroppableFeature


class DropCheckpointProtection(DroppableFeature):
    """Nothing is left to protect."""

    names = ("checkpointProtection",)
    properties = (properties.PROTECTED_BEFORE,)
