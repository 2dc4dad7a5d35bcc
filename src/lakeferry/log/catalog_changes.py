"""What a commit changes of the description that a catalog keeps of its table.

A catalog that decides about a table's commits describes the table as well: protocol, properties,
columns, comment and two domains. A commit that changes one of these is proposed together with the
same change, or the catalog would disagree with the log (the protocol's "Catalog-managed tables").

A commit changes what differs from the version before it in the log. What only the catalog has, for
example a property that its own clients have set there, stays. The first commit of a table that was
created with a history is the exception: the catalog knows the table as it was when it was created,
so it gets the whole description (:func:`onboarding_changes`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from lakeferry.errors import CorruptLog
from lakeferry.log.actions import DomainMetadata, Metadata, Protocol
from lakeferry.log.features import REDIRECT_PROPERTIES
from lakeferry.log.latest_actions import LatestActions

_DOMAIN_PROPERTIES = {
    "delta.clustering": "clusteringColumns",
    "delta.rowTracking": "delta.rowTracking.rowIdHighWaterMark",
}
"""The domains that a catalog keeps, and the property that it derives from each."""

_DERIVED = frozenset(
    {
        *_DOMAIN_PROPERTIES.values(),
        "delta.lastCommitTimestamp",
        "delta.lastUpdateVersion",
        "delta.minReaderVersion",
        "delta.minWriterVersion",
    }
)
_DERIVED_LEAD = "delta.feature."


@dataclass(frozen=True, slots=True)
class CatalogChanges:
    """Changes of a catalog's description of a table; empty for a commit that only adds data."""

    protocol: Protocol | None = None
    metadata: Metadata | None = None
    """The table's new metadata, if its columns or partition columns change."""
    comment: str | None = None
    """The new comment, if it changes; empty if the table has none any more."""
    properties: Mapping[str, str] = field(default_factory=dict)
    """The properties that are new or have another value."""
    removed_properties: tuple[str, ...] = ()
    domains: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    removed_domains: tuple[str, ...] = ()


def changes_of(lines: LatestActions, before: Metadata | None) -> CatalogChanges:
    """Return what a commit's actions change.

    ``before`` is the metadata of the version before it. It is used only if the commit has
    metadata, and ``None`` for a new table.
    """
    now = lines.metadata
    domains, removed_domains = _domains(lines)
    if now is None:
        return CatalogChanges(lines.protocol, domains=domains, removed_domains=removed_domains)
    there = written_properties(before.configuration if before is not None else {})
    wanted = written_properties(now.configuration)
    same_columns = before is not None and (
        (before.schema_string, before.partition_columns)
        == (now.schema_string, now.partition_columns)
    )
    old_comment = (before.description or "") if before is not None else None
    comment = now.description or ""
    return CatalogChanges(
        lines.protocol,
        None if same_columns else now,
        None if comment == old_comment else comment,
        {key: value for key, value in wanted.items() if there.get(key) != value},
        tuple(sorted(there.keys() - wanted.keys())),
        domains,
        removed_domains,
    )


def onboarding_changes(table: LatestActions, known: Mapping[str, str]) -> CatalogChanges:
    """Return the whole description of a table that its catalog knows as it was earlier.

    ``table`` is the table after its first commit through the catalog, ``known`` are the
    properties that the catalog has.
    """
    found = changes_of(table, None)
    present = written_properties(known)
    gone = tuple(
        domain
        for domain, derived in _DOMAIN_PROPERTIES.items()
        if derived in known and domain not in found.domains
    )
    return replace(
        found,
        properties={k: value for k, value in found.properties.items() if present.get(k) != value},
        removed_properties=tuple(sorted(present.keys() - found.properties.keys())),
        removed_domains=gone,
    )


def written_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """Return the properties without those that a catalog derives and no client may send.

    Redirect entries aren't sent either, and are in the log alone: Unity Catalog takes at most 255
    characters of a value, and an entry has more.
    """
    unsent = _DERIVED | REDIRECT_PROPERTIES
    return {
        key: value
        for key, value in properties.items()
        if key not in unsent and not key.startswith(_DERIVED_LEAD)
    }


def _domains(lines: LatestActions) -> tuple[dict[str, Mapping[str, Any]], tuple[str, ...]]:
    """Return the domains that a commit sets, and those that it removes."""
    found = [lines.domains[name] for name in _DOMAIN_PROPERTIES if name in lines.domains]
    return (
        {domain.domain: _content(domain) for domain in found if not domain.removed},
        tuple(domain.domain for domain in found if domain.removed),
    )


def _content(domain: DomainMetadata) -> Mapping[str, Any]:
    try:
        return msgspec.json.decode(domain.configuration, type=dict[str, Any])
    except msgspec.MsgspecError as broken:
        raise CorruptLog(
            f"the domain {domain.domain} has no valid configuration", cause=str(broken)
        ) from broken
