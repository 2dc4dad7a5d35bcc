"""The messages of Unity Catalog's API for Delta tables (``/delta/v1``).

Names are in kebab-case. The server refuses every field that it doesn't know, so requests have
exactly the fields that it documents; it sends ``null`` in places where its documentation
requires a value.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from lakeferry.catalogs.columns import kebab_schema
from lakeferry.log.actions import Protocol
from lakeferry.log.catalog_changes import CatalogChanges
from lakeferry.log.features import MANAGED
from lakeferry.table.managed import CatalogHead, RatifiedCommit

_DOMAIN_FIELDS = {
    "delta.clustering": ("clusteringColumns",),
    "delta.rowTracking": ("rowIdHighWaterMark",),
}
"""What the server takes of each domain's configuration."""

_DECIDES = f"delta.feature.{MANAGED}"
"""The property of tables whose commits the server decides about; it derives it by itself."""


class DeltaMessage(msgspec.Struct, frozen=True, rename="kebab", omit_defaults=True):
    """The superclass of all messages."""


class SentProtocol(DeltaMessage, frozen=True, kw_only=True):
    """A table's protocol."""

    min_reader_version: int
    min_writer_version: int
    reader_features: tuple[str, ...] = msgspec.field(default=())
    writer_features: tuple[str, ...] = msgspec.field(default=())

    @classmethod
    def of(cls, protocol: Protocol) -> SentProtocol:
        """Return the message for a protocol."""
        return cls(
            min_reader_version=protocol.min_reader_version,
            min_writer_version=protocol.min_writer_version,
            reader_features=protocol.reader_features or (),
            writer_features=protocol.writer_features or (),
        )


class SuggestedProtocol(DeltaMessage, frozen=True, kw_only=True):
    """Features that a new table may have."""

    reader_features: tuple[str, ...] | None = None
    writer_features: tuple[str, ...] | None = None


class StorageCredential(DeltaMessage, frozen=True, kw_only=True):
    """Credentials for what begins with ``prefix``; without ``expiration_time_ms`` permanent."""

    prefix: str
    operation: str = "READ"
    config: Mapping[str, str | None] = {}
    expiration_time_ms: int | None = None

    def __repr__(self) -> str:
        """Leave the credentials out."""
        return f"StorageCredential({self.prefix!r}, {self.operation!r})"


class StorageCredentials(DeltaMessage, frozen=True, kw_only=True):
    """The answer to a request for credentials."""

    storage_credentials: tuple[StorageCredential, ...] | None = None


class StagingTable(DeltaMessage, frozen=True, kw_only=True):
    """A place that was allocated for a new table, and what the table must be like.

    A required property that is ``None`` may have any value.
    """

    table_id: str
    location: str
    storage_credentials: tuple[StorageCredential, ...] | None = None
    required_protocol: SentProtocol
    required_properties: Mapping[str, str | None]
    suggested_protocol: SuggestedProtocol | None = None
    suggested_properties: Mapping[str, str | None] | None = None


class ApiConfig(DeltaMessage, frozen=True, kw_only=True):
    """Which calls a server says it has. Some of them don't exist in version 0.7."""

    endpoints: tuple[str, ...]
    protocol_version: str


class TableMetadata(DeltaMessage, frozen=True, kw_only=True):
    """A table as the catalog describes it."""

    table_uuid: str
    table_type: str
    location: str
    etag: str | None = None
    columns: Mapping[str, Any] | None = None
    partition_columns: tuple[str, ...] | None = None
    properties: Mapping[str, str] | None = None
    last_commit_version: int | None = None
    last_commit_timestamp_ms: int | None = None


class SentCommit(DeltaMessage, frozen=True, kw_only=True):
    """A staged commit."""

    version: int
    timestamp: int
    file_name: str
    file_size: int
    file_modification_timestamp: int

    @classmethod
    def of(cls, commit: RatifiedCommit) -> SentCommit:
        """Return the message for a commit."""
        return cls(
            version=commit.version,
            timestamp=commit.timestamp_ms,
            file_name=commit.file_name,
            file_size=commit.size_bytes,
            file_modification_timestamp=commit.modified_ms,
        )

    def as_commit(self) -> RatifiedCommit:
        """Return the commit."""
        return RatifiedCommit(
            self.version,
            self.file_name,
            self.file_size,
            self.file_modification_timestamp,
            self.timestamp,
        )


class LoadedTable(DeltaMessage, frozen=True, kw_only=True):
    """A table, its unpublished commits and its latest version.

    The latest version is 0 from the table's creation until its first commit is accepted, and
    ``None`` for an external table.
    """

    metadata: TableMetadata
    commits: tuple[SentCommit, ...] | None = None
    latest_table_version: int | None = None

    def as_head(self) -> CatalogHead:
        """Return what the port says of a table."""
        commits = sorted((each.as_commit() for each in self.commits or ()), key=_version)
        properties = self.metadata.properties or {}
        return CatalogHead(
            self.metadata.table_uuid,
            self.latest_table_version or 0,
            tuple(commits),
            properties,
            decides=_DECIDES in properties,
        )


class NewTable(DeltaMessage, frozen=True, kw_only=True):
    """The description of a managed table that is created on a staging table."""

    name: str
    location: str
    columns: Mapping[str, Any]
    protocol: SentProtocol
    properties: Mapping[str, str]
    last_commit_timestamp_ms: int
    partition_columns: tuple[str, ...] | None = None
    comment: str | None = None
    domain_metadata: Mapping[str, Mapping[str, Any]] | None = None
    # Without a default, as defaults aren't sent.
    table_type: str

    @classmethod
    def of(cls, name: str, location: str, changes: CatalogChanges, timestamp_ms: int) -> NewTable:
        """Return the request for a table whose whole description is in ``changes``.

        ``name`` is the last part of the table's name. ``changes`` must have a protocol and
        metadata; ``timestamp_ms`` is the time of the newest commit.
        """
        assert changes.protocol is not None
        assert changes.metadata is not None
        return cls(
            name=name,
            location=location,
            table_type="MANAGED",
            columns=kebab_schema(changes.metadata),
            partition_columns=changes.metadata.partition_columns or None,
            protocol=SentProtocol.of(changes.protocol),
            properties=changes.properties,
            comment=changes.comment or None,
            domain_metadata=_known_domains(changes.domains) or None,
            last_commit_timestamp_ms=timestamp_ms,
        )


class AddCommit(DeltaMessage, frozen=True, kw_only=True, tag_field="action", tag="add-commit"):
    """Proposes a commit."""

    commit: SentCommit


class SetLatestBackfilledVersion(
    DeltaMessage, frozen=True, kw_only=True, tag_field="action", tag="set-latest-backfilled-version"
):
    """Reports that all commits up to a version are published."""

    latest_published_version: int


class SetProtocol(DeltaMessage, frozen=True, kw_only=True, tag_field="action", tag="set-protocol"):
    """Replaces the protocol."""

    protocol: SentProtocol


class SetProperties(
    DeltaMessage, frozen=True, kw_only=True, tag_field="action", tag="set-properties"
):
    """Sets properties; the others stay."""

    updates: Mapping[str, str]


class RemoveProperties(
    DeltaMessage, frozen=True, kw_only=True, tag_field="action", tag="remove-properties"
):
    """Removes properties."""

    removals: tuple[str, ...]


class SetColumns(DeltaMessage, frozen=True, kw_only=True, tag_field="action", tag="set-columns"):
    """Replaces the schema."""

    columns: Mapping[str, Any]


class SetPartitionColumns(
    DeltaMessage, frozen=True, kw_only=True, tag_field="action", tag="set-partition-columns"
):
    """Replaces the partition columns."""

    partition_columns: tuple[str, ...]


class SetTableComment(
    DeltaMessage, frozen=True, kw_only=True, tag_field="action", tag="set-table-comment"
):
    """Replaces the comment; the server can't remove one, so no comment is an empty one."""

    comment: str


class SetDomainMetadata(
    DeltaMessage, frozen=True, kw_only=True, tag_field="action", tag="set-domain-metadata"
):
    """Sets domains."""

    updates: Mapping[str, Mapping[str, Any]]


class RemoveDomainMetadata(
    DeltaMessage, frozen=True, kw_only=True, tag_field="action", tag="remove-domain-metadata"
):
    """Removes domains."""

    domains: tuple[str, ...]


Update = (
    AddCommit
    | SetLatestBackfilledVersion
    | SetProtocol
    | SetProperties
    | RemoveProperties
    | SetColumns
    | SetPartitionColumns
    | SetTableComment
    | SetDomainMetadata
    | RemoveDomainMetadata
)


def updates_of(changes: CatalogChanges) -> list[Update]:
    """Return the updates of the catalog's description that go with a commit."""
    updates: list[Update] = []
    if changes.protocol is not None:
        updates.append(SetProtocol(protocol=SentProtocol.of(changes.protocol)))
    if (metadata := changes.metadata) is not None:
        updates.append(SetColumns(columns=kebab_schema(metadata)))
        updates.append(SetPartitionColumns(partition_columns=metadata.partition_columns))
    if changes.comment is not None:
        updates.append(SetTableComment(comment=changes.comment))
    if changes.properties:
        updates.append(SetProperties(updates=changes.properties))
    if changes.removed_properties:
        updates.append(RemoveProperties(removals=changes.removed_properties))
    if domains := _known_domains(changes.domains):
        updates.append(SetDomainMetadata(updates=domains))
    if changes.removed_domains:
        updates.append(RemoveDomainMetadata(domains=changes.removed_domains))
    return updates


def _known_domains(
    domains: Mapping[str, Mapping[str, Any]],
) -> dict[str, Mapping[str, Any]]:
    """Return the part of the domains that the server takes.

    Writers store more in the log, for example the domain's name.
    """
    return {
        name: {key: content[key] for key in _DOMAIN_FIELDS[name] if key in content}
        for name, content in domains.items()
    }


def _version(commit: RatifiedCommit) -> int:
    return commit.version


# Answers are converted, which needs no decoder, but what a decoder prepares: see
# tests/unit/test_decoders.py.
_PREPARED = tuple(
    msgspec.json.Decoder(each)
    for each in (ApiConfig, StagingTable, LoadedTable, StorageCredentials)
)
