"""Drops vacuumProtocolCheck: nothing but the protocol changes."""

from __future__ import annotations

from lakeferry.protection.features.droppable_feature import DroppableFeature


class DropVacuumProtocolCheck(DroppableFeature):
    """VACUUM needn't look at the writer protocol."""

    names = ("vacuumProtocolCheck",)
