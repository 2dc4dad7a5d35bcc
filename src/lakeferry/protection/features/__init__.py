"""The features that can be dropped: one module each, with everything about dropping it.

A module says what would be lost (``uses``), how its traces leave the current state
(``prepare``), what shows that they are back (``shows_traces``), and which properties and domain
go with it. What a feature means, what it depends on and whether history shows it is in the
registry, ``log/features.py``; the steps that all drops share are in ``dropping.py``.
"""

from __future__ import annotations

from collections.abc import Mapping

from lakeferry.protection.features.append_only import DropAppendOnly
from lakeferry.protection.features.change_data_feed import DropChangeDataFeed
from lakeferry.protection.features.check_constraints import DropCheckConstraints
from lakeferry.protection.features.checkpoint_protection import DropCheckpointProtection
from lakeferry.protection.features.clustering import DropClustering
from lakeferry.protection.features.column_mapping import DropColumnMapping
from lakeferry.protection.features.deletion_vectors import DropDeletionVectors
from lakeferry.protection.features.domain_metadata import DropDomainMetadata
from lakeferry.protection.features.droppable_feature import DroppableFeature
from lakeferry.protection.features.geospatial import DropGeospatial
from lakeferry.protection.features.in_commit_timestamp import DropInCommitTimestamp
from lakeferry.protection.features.materialize_partition_columns import (
    DropMaterializePartitionColumns,
)
from lakeferry.protection.features.redirects import DropRedirects
from lakeferry.protection.features.row_tracking import DropRowTracking
from lakeferry.protection.features.type_widening import DropTypeWidening
from lakeferry.protection.features.v2_checkpoint import DropV2Checkpoint
from lakeferry.protection.features.vacuum_protocol_check import DropVacuumProtocolCheck

_ALL: tuple[type[DroppableFeature], ...] = (
    DropAppendOnly,
    DropChangeDataFeed,
    DropCheckConstraints,
    DropCheckpointProtection,
    DropClustering,
    DropColumnMapping,
    DropDeletionVectors,
    DropDomainMetadata,
    DropGeospatial,
    DropInCommitTimestamp,
    DropMaterializePartitionColumns,
    DropRedirects,
    DropRowTracking,
    DropTypeWidening,
    DropV2Checkpoint,
    DropVacuumProtocolCheck,
)
DROPPABLE: Mapping[str, DroppableFeature] = {
    name: each(name) for each in _ALL for name in each.names
}
"""How to drop each feature that can be dropped, by the name that a protocol has for it."""
