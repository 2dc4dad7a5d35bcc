"""Drops geospatial: refused while the schema has columns with such values."""

from __future__ import annotations

from lakeferry.log.actions import Metadata
from lakeferry.log.lines import Lines
from lakeferry.log.replay import Snapshot
from lakeferry.protection import schema_traces
from lakeferry.protection.features.droppable_feature import DroppableFeature


class DropGeospatial(DroppableFeature):
    """No column is a geometry or a geography."""

    names = ("geospatial", "geospatial-dev")

    def uses(self, snapshot: Snapshot) -> list[str]:
        """Return the columns with geometries or geographies."""
        columns = schema_traces.geospatial_columns(snapshot.metadata)
        return [f"the column {name}" for name in columns]

    def shows_traces(self, metadata: Metadata, since: Lines) -> bool:  # noqa: ARG002
        """Return whether there is such a column again."""
        return bool(schema_traces.geospatial_columns(metadata))
