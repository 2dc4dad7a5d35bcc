"""Collects protocol, metadata, domains and transactions; later actions replace earlier ones.

Used for commits (:mod:`lakeferry.log.lines`) and checkpoints
(:mod:`lakeferry.log.checkpoint_read`), which collect file actions themselves.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from lakeferry.log.actions import (
    Action,
    CheckpointMetadata,
    CommitInfo,
    DomainMetadata,
    Metadata,
    Protocol,
    Sidecar,
    Txn,
)


def key(action: Action) -> tuple[str, str] | None:
    """Return the key that a reconciled log has once; ``None`` for actions without a key."""
    match action:
        case Protocol():
            return ("protocol", "")
        case Metadata():
            return ("metaData", "")
        case Txn():
            return ("txn", action.app_id)
        case DomainMetadata():
            return ("domainMetadata", action.domain)
    return None


@dataclass(slots=True)
class LatestActions:
    """All actions so far that aren't about files; domains include their tombstones."""

    protocol: Protocol | None = None
    metadata: Metadata | None = None
    commit_info: CommitInfo | None = None
    txns: dict[str, Txn] = field(default_factory=dict)
    domains: dict[str, DomainMetadata] = field(default_factory=dict)
    sidecars: list[Sidecar] = field(default_factory=list)
    checkpoint_metadata: CheckpointMetadata | None = None

    def keep(self, action: Action) -> None:
        """Add one action that isn't about a file."""
        match action:
            case Protocol():
                self.protocol = action
            case Metadata():
                self.metadata = action
            case CommitInfo():
                self.commit_info = action
            case Txn():
                self.txns[action.app_id] = action
            case DomainMetadata():
                self.domains[action.domain] = action
            case Sidecar():
                self.sidecars.append(action)
            case CheckpointMetadata():
                self.checkpoint_metadata = action

    def known(self, action: Action) -> Action | None:
        """Return the collected action with the same key as ``action``."""
        match action:
            case Protocol():
                return self.protocol
            case Metadata():
                return self.metadata
            case Txn():
                return self.txns.get(action.app_id)
            case DomainMetadata():
                return self.domains.get(action.domain)
        return None

    def absorb(self, later: LatestActions) -> None:
        """Add all later actions."""
        self.protocol = later.protocol or self.protocol
        self.metadata = later.metadata or self.metadata
        self.commit_info = later.commit_info or self.commit_info
        self.txns |= later.txns
        self.domains |= later.domains
        self.sidecars += later.sidecars
        self.checkpoint_metadata = later.checkpoint_metadata or self.checkpoint_metadata
