"""Finds the checkpoints that protected history needs.

``checkpointProtection`` promises this: a reader that doesn't know the dropped feature finds a
checkpoint at the version of the drop and at the barriers before it, and never has to read earlier
versions. A writer that publishes such a version makes sure that the checkpoints exist, whether or
not the sender has any.
"""

from __future__ import annotations

from collections.abc import Iterable

from lakeferry.log import paths, properties
from lakeferry.log.latest_actions import LatestActions
from lakeferry.log.lines import read_protocol_and_metadata
from lakeferry.log.properties import BARRIERS, PROTECTED_BEFORE
from lakeferry.transfer.datasets.delta.version_blocks import DeltaBlock

_MARK = PROTECTED_BEFORE.encode()


def guarded(run: Iterable[DeltaBlock]) -> set[int]:
    """Return the versions that need a checkpoint, because one of these blocks drops a feature."""
    found: set[int] = set()
    for block in run:
        version = block.sequence_number
        if _boundary(block) == version:
            found.update(range(max(0, version - BARRIERS), version + 1))
    return found


def _boundary(block: DeltaBlock) -> int | None:
    """Return the boundary of protected history that a block's commit sets."""
    if block.commit is None or _MARK not in block.commit:
        return None
    collected = LatestActions()
    read_protocol_and_metadata(collected, block.commit, paths.commit(block.sequence_number))
    if collected.metadata is None:
        return None
    return properties.protected_before(collected.metadata.configuration)
