"""What a commit changes of the description that a catalog keeps of its table.

A catalog that decides about a table's commits describes the table as well: protocol, properties,
columns, comment and two domains. A commit that changes one of these is proposed together with the
same change, or the catalog would disagree with the log (the protocol's "Catalog-managed tables").
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from lakeferry.errors import CorruptLog
from lakeferry.log.actions import DomainMetadata, Metadata, Protocol
from lakeferry.log.latest_actions import LatestActions

DOMAINS = ("delta.clustering", "delta.rowTracking")
"""The domains that a catalog keeps."""

_DERIVED = frozenset(
    {
        "clusteringColumns",
        "delta.lastCommitTimestamp",
        "delta.lastUpdateVersion",
        "delta.minReaderVersion",
        "delta.minWriterVersion",
        "delta.rowTracking.rowIdHighWaterMark",
    }
)
_DERIVED_LEAD = "delta.feature."


@dataclass(frozen=True, slots=True)
class CatalogChanges:
    """Changes of a catalog's description of a table; empty for a commit that only adds data."""

    protocol: Protocol | None = None
    metadata: Metadata | None = None
    """The table's new metadata, if the commit has any: columns, partition columns, comment."""
    properties: Mapping[str, str] = field(default_factory=dict)
    """The properties that are new or have another value."""
    removed_properties: tuple[str, ...] = ()
    domains: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    removed_domains: tuple[str, ...] = ()


def changes_of(lines: LatestActions, known: Mapping[str, str]) -> CatalogChanges:
    """Return what a commit's actions change; ``known`` are the catalog's properties now."""
    metadata = lines.metadata
    wanted = written_properties(metadata.configuration) if metadata is not None else {}
    present = written_properties(known)
    removed = sorted(present.keys() - wanted.keys()) if metadata is not None else []
    domains = [lines.domains[name] for name in DOMAINS if name in lines.domains]
    return CatalogChanges(
        lines.protocol,
        metadata,
        {key: value for key, value in wanted.items() if present.get(key) != value},
        tuple(removed),
        {domain.domain: _content(domain) for domain in domains if not domain.removed},
        tuple(domain.domain for domain in domains if domain.removed),
    )


def written_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """Return the properties without those that a catalog derives and no client may send."""
    return {
        key: value
        for key, value in properties.items()
        if key not in _DERIVED and not key.startswith(_DERIVED_LEAD)
    }


def _content(domain: DomainMetadata) -> Mapping[str, Any]:
    try:
        return msgspec.json.decode(domain.configuration, type=dict[str, Any])
    except msgspec.MsgspecError as broken:
        raise CorruptLog(
            f"the domain {domain.domain} has no valid configuration", cause=str(broken)
        ) from broken
