"""Tables that Unity Catalog manages, made as a move makes them: their history comes with them.

A table is staged, its log is written to the place that the server allocated, it is created, and
its first commit through the catalog (the *onboarding* commit) has the version after its history.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lakeferry.catalogs.places import Places
from lakeferry.catalogs.unity_commit_catalog import UnityCommitCatalog
from lakeferry.catalogs.unity_delta import UnityDelta
from lakeferry.catalogs.unity_delta_messages import NewTable, StagingTable
from lakeferry.catalogs.unity_managed_tables import UnityManagedTables
from lakeferry.log import paths
from lakeferry.log.catalog_changes import CatalogChanges, changes_of
from lakeferry.log.lines import Lines
from lakeferry.storage import Store
from lakeferry.table import DeltaLog
from lakeferry.table.managed import ManagedStore, Proposal, RatifiedCommit, Verdict
from tests.support.unity_server import UnityServer

FIELDS = [{"name": "id", "type": "long", "nullable": True, "metadata": {}}]
FIRST_MS = 1_700_000_000_000


def delta(server: UnityServer, **options: Any) -> UnityDelta:
    """Return a client that doesn't wait before it asks again."""
    return UnityDelta(server.url, server.token, **{"pause": lambda _: None, **options})


@dataclass(frozen=True)
class ManagedTable:
    """A managed table: the client, its place, and the newest version that was published early."""

    api: UnityDelta
    staging: StagingTable
    name: str
    below: Store
    history: int

    def catalog(self, **options: Any) -> UnityCommitCatalog:
        """Return a new port to the catalog."""
        return UnityCommitCatalog(self.api, self.name, self.staging.table_id, **options)

    def store(self, **options: Any) -> ManagedStore:
        """Return a new store of the table."""
        return ManagedStore(self.below, self.catalog(), onboarding=self.history, **options)

    def commit(self, version: int, *actions: Mapping[str, Any], who: str = "a") -> bool:
        """Commit through the catalog and publish."""
        return self.store().put_if_absent(paths.commit(version), body(version, *actions, who=who))

    @property
    def required(self) -> dict[str, str]:
        """The properties that the table has to have."""
        wanted = self.staging.required_properties.items()
        return {key: value for key, value in wanted if value is not None} | {
            "delta.inCommitTimestampEnablementVersion": str(self.history),
            "delta.inCommitTimestampEnablementTimestamp": str(FIRST_MS + self.history),
        }

    def protocol(self, *features: str) -> dict[str, Any]:
        """Return the action with the required protocol and more writer features."""
        required = self.staging.required_protocol
        return {
            "protocol": {
                "minReaderVersion": 3,
                "minWriterVersion": 7,
                "readerFeatures": [*required.reader_features],
                "writerFeatures": [*required.writer_features, *features],
            }
        }

    def metadata(
        self,
        properties: Mapping[str, str] | None = None,
        *,
        fields: Sequence[Mapping[str, Any]] = FIELDS,
        partitions: Sequence[str] = (),
        comment: str | None = None,
    ) -> dict[str, Any]:
        """Return the action with the required properties and more of them."""
        described: dict[str, Any] = {
            "id": "5b1f2f3e-0000-4000-8000-000000000001",
            "format": {"provider": "parquet", "options": {}},
            "schemaString": json.dumps({"type": "struct", "fields": fields}),
            "partitionColumns": partitions,
            "configuration": {**self.required, **(properties or {})},
            "createdTime": FIRST_MS,
        }
        if comment is not None:
            described["description"] = comment
        return {"metaData": described}


def body(version: int, *actions: Mapping[str, Any], who: str = "a") -> bytes:
    """Return a commit with its provenance and other actions."""
    moment = FIRST_MS + version
    info = {"inCommitTimestamp": moment, "timestamp": moment, "txnId": f"{who}-{version}"}
    lines = [{"commitInfo": {**info, "operation": "WRITE"}}, *actions]
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


def allocated(server: UnityServer, *, history: int = 3, cut_at: int = 0) -> ManagedTable:
    """Return a table whose history is in its place, and which isn't created yet.

    ``history`` is the newest version, in which the table gets the features of a managed one. The
    log begins with version ``cut_at``.
    """
    api = delta(server)
    name = f"{server.schema}.private_{uuid.uuid4().hex[:12]}"
    staging = api.create_staging_table(name)
    table = ManagedTable(api, staging, name, _opened(server, staging), history)
    plain = table.metadata()
    plain["metaData"]["configuration"] = {}
    put(table.below, 0, {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}, plain)
    for version in range(1, history):
        put(table.below, version)
    if cut_at:
        DeltaLog(table.below).checkpoint(cut_at)
        table.below.delete_many([paths.commit(version) for version in range(cut_at)])
    put(table.below, history, table.protocol(), table.metadata())
    return table


def _opened(server: UnityServer, staging: StagingTable) -> Store:
    """Open the place with the credentials that the server issues for it, if there are any."""
    tables, places = UnityManagedTables(server.url, server.token, metastore_id=None), Places()
    places.grant(staging.location, tables.place_access(staging.table_id, staging.location))
    return places.open(staging.location)


def put(store: Store, version: int, *actions: Mapping[str, Any]) -> None:
    """Write a commit as a file."""
    assert store.put_if_absent(paths.commit(version), body(version, *actions))


def created(
    table: ManagedTable, *actions: Mapping[str, Any], features: Sequence[str] = ()
) -> ManagedTable:
    """Create an allocated table under its private name."""
    description = Lines()
    told = (table.protocol(*features), table.metadata(), *actions)
    description.read(body(0, *told), paths.commit(0))
    moment = FIRST_MS + table.history
    changes = changes_of(description, None)
    short = table.name.rpartition(".")[2]
    request = NewTable.of(short, table.staging.location, changes, moment)
    table.api.create_table(table.name, table.staging.table_id, request)
    return table


def managed_table(server: UnityServer, *, history: int = 3, cut_at: int = 0) -> ManagedTable:
    """Return a table with an onboarding commit: the version after ``history``."""
    table = created(allocated(server, history=history, cut_at=cut_at))
    assert table.commit(history + 1)
    return table


def ratified(table: ManagedTable, version: int, data: bytes) -> None:
    """Commit as a client that ends before it publishes."""
    name = f"{version:020d}.00000000-0000-4000-8000-{version:012d}.json"
    commit = RatifiedCommit(version, name, len(data), FIRST_MS, FIRST_MS + version)
    table.below.put(commit.staged_path, data)
    assert table.catalog().propose(Proposal(commit, CatalogChanges())) is Verdict.RATIFIED
