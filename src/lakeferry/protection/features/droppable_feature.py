"""What dropping a feature takes, besides the smaller protocol.

Each feature that can be dropped has a module here with a subclass of :class:`DroppableFeature`.
It overrides what its feature needs; the defaults are those of a feature that is in the protocol
and nowhere else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from lakeferry.errors import FeatureNotDroppable
from lakeferry.log.actions import DomainMetadata, Metadata, changed
from lakeferry.log.lines import Lines
from lakeferry.log.replay import Snapshot
from lakeferry.log.segment import Listing
from lakeferry.protection.drop_context import DropContext, with_properties


class DroppableFeature:
    """A feature that is in the protocol and nowhere else."""

    names: ClassVar[tuple[str, ...]]
    """Its names in protocols: the final one, and that of its preview if there is one."""
    properties: ClassVar[tuple[str, ...]] = ()
    """The table properties that are deleted with it."""
    domain: ClassVar[str] = ""
    """The metadata domain that is deleted with it."""

    def __init__(self, name: str) -> None:
        """Create the feature for one of its names in protocols."""
        self.name = name

    def uses(self, snapshot: Snapshot) -> list[str]:  # noqa: ARG002
        """Return what needs the feature and would be lost without it."""
        return []

    def prepare(self, work: DropContext) -> int:
        """Remove the feature's traces from the current state; return a version without them.

        Others may write meanwhile. It can be repeated, and then finds less to do.
        """
        return work.log.state().version

    def shows_traces(self, metadata: Metadata, since: Lines) -> bool:  # noqa: ARG002
        """Return whether commits since a state without traces have added some.

        ``metadata`` is that of the newest version, ``since`` the content of the commits.
        """
        return False

    def last_trace_outside_commits(self, listing: Listing) -> int:  # noqa: ARG002
        """Return the newest version with the feature in another log file, or -1."""
        return -1

    def without_properties(self, metadata: Metadata) -> Metadata:
        """Return metadata without the feature's properties."""
        return with_properties(metadata, dict.fromkeys(self.properties))

    def removed_domains(self, domains: Mapping[str, DomainMetadata]) -> tuple[DomainMetadata, ...]:
        """Return the tombstone of the feature's metadata domain."""
        domain = domains.get(self.domain)
        return (changed(domain, removed=True),) if domain is not None else ()

    def check_unused(self, snapshot: Snapshot, location: str) -> None:
        """Refuse to drop the feature while something uses it."""
        used = self.uses(snapshot)
        if used:
            raise FeatureNotDroppable(
                f"the feature {self.name} of {location} can't be dropped",
                cause=f"it is in use: {', '.join(used)}",
                remedy="drop or rename what uses it first",
                location=location,
                feature=self.name,
                used_by=used,
            )
