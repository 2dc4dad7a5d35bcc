"""What our Unity server answers to ``/delta/v1``, its API for Delta tables, as version 0.7 does.

Checks come in the order of the real server, and a refused request changes nothing. Two calls
that the real server advertises don't exist there either.
"""

from __future__ import annotations

import copy
import re
import shutil
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from tests.support.obedient_server import Reply

if TYPE_CHECKING:
    from tests.support.unity_server import OurServer

MOST_UNPUBLISHED = 10
LONGEST_PROPERTY = 255
READER_FEATURES = ["catalogManaged", "v2Checkpoint", "vacuumProtocolCheck", "deletionVectors"]
WRITER_FEATURES = [*READER_FEATURES, "inCommitTimestamp"]
PROPERTIES = {
    "delta.checkpointPolicy": "v2",
    "delta.enableDeletionVectors": "true",
    "delta.enableInCommitTimestamps": "true",
    "delta.checkpoint.writeStatsAsStruct": "true",
    "delta.checkpoint.writeStatsAsJson": "true",
}
TABLE_ID = "io.unitycatalog.tableId"
NAME = re.compile(r"[A-Za-z0-9_@-]{1,255}")
PRIMITIVES = re.compile(
    r"boolean|byte|short|integer|long|float|double|date|timestamp|timestamp_ntz|string|binary|"
    r"variant|decimal\(\d+,\d+\)"
)
_NESTED = {
    "struct": ("fields",),
    "array": ("element-type", "contains-null"),
    "map": ("key-type", "value-type", "value-contains-null"),
}
_DOMAINS = {
    "delta.clustering": ("clusteringColumns", "clustering"),
    "delta.rowTracking": ("rowIdHighWaterMark", "rowTracking"),
}
_TABLE = {
    "name",
    "location",
    "table-type",
    "columns",
    "protocol",
    "properties",
    "last-commit-timestamp-ms",
}
_TABLE_OPTIONS = {"partition-columns", "comment", "domain-metadata", "uniform"}
_COMMIT = {"version", "timestamp", "file-name", "file-size", "file-modification-timestamp"}
_UPDATES = {
    "add-commit": "commit",
    "set-latest-backfilled-version": "latest-published-version",
    "set-properties": "updates",
    "remove-properties": "removals",
    "set-protocol": "protocol",
    "set-columns": "columns",
    "set-partition-columns": "partition-columns",
    "set-table-comment": "comment",
    "set-domain-metadata": "updates",
    "remove-domain-metadata": "domains",
}
_ENDPOINTS = """
POST /v1/catalogs/{catalog}/schemas/{schema}/staging-tables
POST /v1/catalogs/{catalog}/schemas/{schema}/tables
GET /v1/catalogs/{catalog}/schemas/{schema}/tables
GET /v1/catalogs/{catalog}/schemas/{schema}/tables/{table}
POST /v1/catalogs/{catalog}/schemas/{schema}/tables/{table}
DELETE /v1/catalogs/{catalog}/schemas/{schema}/tables/{table}
HEAD /v1/catalogs/{catalog}/schemas/{schema}/tables/{table}
POST /v1/catalogs/{catalog}/schemas/{schema}/tables/{table}/rename
GET /v1/catalogs/{catalog}/schemas/{schema}/tables/{table}/credentials
POST /v1/catalogs/{catalog}/schemas/{schema}/tables/{table}/metrics
GET /v1/staging-tables/{table_id}/credentials
GET /v1/temporary-path-credentials
"""


class Refused(Exception):
    """An error answer."""

    def __init__(self, status: int, kind: str, message: str) -> None:
        super().__init__(message)
        self.reply: Reply = delta_error(status, kind, message)


@dataclass(slots=True)
class Managed:
    """What the server keeps of a managed table beside its entry among all tables."""

    protocol: dict[str, Any]
    properties: dict[str, str]
    columns: dict[str, Any]
    partition_columns: list[str]
    comment: str | None = None
    domains: dict[str, Any] = field(default_factory=dict)
    commits: list[dict[str, Any]] = field(default_factory=list)
    """The unpublished ones and the last one, oldest first."""
    backfilled: int = 0
    created_ms: int = 0
    updated_ms: int = 0
    last_commit: tuple[int, int] = (0, 0)

    @property
    def latest(self) -> int:
        return self.commits[-1]["version"] if self.commits else 0

    @property
    def unpublished(self) -> list[dict[str, Any]]:
        return [each for each in self.commits if each["version"] > self.backfilled]

    def derived(self) -> dict[str, str]:
        """Return the properties that clients see and don't write."""
        protocol = self.protocol
        features = {*protocol.get("reader-features", ()), *protocol.get("writer-features", ())}
        found = {f"delta.feature.{name}": "supported" for name in features} | {
            "delta.minReaderVersion": str(protocol["min-reader-version"]),
            "delta.minWriterVersion": str(protocol["min-writer-version"]),
            "delta.lastUpdateVersion": str(self.last_commit[0]),
            "delta.lastCommitTimestamp": str(self.last_commit[1]),
        }
        if (clustering := self.domains.get("delta.clustering")) is not None:
            paths = ",".join(
                "[" + ",".join(f'"{part}"' for part in path) + "]"
                for path in clustering["clusteringColumns"]
            )
            found["clusteringColumns"] = f"[{paths}]"
        if (row_ids := self.domains.get("delta.rowTracking")) is not None:
            mark = str(row_ids["rowIdHighWaterMark"])
            found["delta.rowTracking.rowIdHighWaterMark"] = mark
        return found


@dataclass(slots=True)
class _Staging:
    name: str
    location: str
    principal: str
    used: bool = False


class DeltaCalls:
    """The calls. ``principal`` is who asks: a staging table belongs to who allocated it."""

    def __init__(self, server: OurServer) -> None:
        self._server = server
        self.principal = "ann@example.com"
        self.managed: dict[str, Managed] = {}
        self.staging: dict[str, _Staging] = {}

    def reply(self, method: str, parts: list[str], query: Mapping[str, str], body: Any) -> Reply:
        """Answer a request; ``parts`` is the path behind ``/delta/v1``."""
        try:
            return self._answer(method, parts, query, body)
        except Refused as refused:
            return refused.reply

    def _answer(self, method: str, parts: list[str], query: Mapping[str, str], body: Any) -> Reply:
        match method, parts:
            case "GET", ["config"]:
                return self._config(query)
            case "GET", ["staging-tables", table_id, "credentials"]:
                return self._staging_credentials(table_id)
            case "POST", ["catalogs", catalog, "schemas", schema, "staging-tables"]:
                return self._allocate(catalog, schema, body)
            case "POST", ["catalogs", catalog, "schemas", schema, "tables"]:
                return self._create(catalog, schema, body)
            case _, ["catalogs", catalog, "schemas", schema, "tables", name, *rest]:
                table = self._table(catalog, schema, name)
                match method, rest:
                    case "GET", []:
                        self._allow(self._server.may_see())
                        return 200, self._described(table)
                    case "POST", []:
                        return self._update(table, body)
                    case "DELETE", []:
                        return self._delete(table)
                    case "POST", ["rename"]:
                        return self._rename(table, body)
                    case "GET", ["credentials"]:
                        return self._credentials(table, query)
        return 404, b"Status: 404\nDescription: Not Found\n"

    def _config(self, query: Mapping[str, str]) -> Reply:
        if "protocol-versions" not in query:
            raise _invalid("Mandatory parameter/header is missing: protocol-versions")
        if not self._server.has_catalog(query["catalog"]):
            what = f"Catalog not found: {query['catalog']}"
            raise Refused(404, "NoSuchCatalogException", what)
        self._allow("USE CATALOG" in self._server.privileges)
        return 200, {"endpoints": _ENDPOINTS.strip().split("\n"), "protocol-version": "1.0"}

    def _allocate(self, catalog: str, schema: str, body: Any) -> Reply:
        self._find_schema(catalog, schema)
        self._allow(self._server.may_create())
        _check_fields(body, {"name"})
        _check_name(body["name"])
        if self._server.tables_named(f"{catalog}.{schema}.{body['name']}"):
            what = f"Table already exists: {body['name']}"
            raise Refused(409, "AlreadyExistsException", what)
        table_id = str(uuid.uuid4())
        location = f"{self._server.storage_root}/__unitystorage/tables/{table_id}"
        self.staging[table_id] = _Staging(body["name"], location, self.principal)
        return 200, {
            "table-id": table_id,
            "table-type": "MANAGED",
            "location": location,
            "storage-credentials": self._issued(location, "READ_WRITE"),
            "required-protocol": {
                "min-reader-version": 3,
                "min-writer-version": 7,
                "reader-features": READER_FEATURES,
                "writer-features": WRITER_FEATURES,
            },
            "suggested-protocol": {
                "reader-features": ["columnMapping"],
                "writer-features": ["columnMapping", "domainMetadata", "rowTracking"],
            },
            "required-properties": {**PROPERTIES, TABLE_ID: table_id},
            "suggested-properties": {
                "delta.columnMapping.mode": "name",
                "delta.columnMapping.maxColumnId": None,
            },
        }

    def _staging_credentials(self, table_id: str) -> Reply:
        try:
            uuid.UUID(table_id)
        except ValueError:
            raise _invalid(f"Invalid UUID string: {table_id}") from None
        if (found := self.staging.get(table_id)) is None:
            what = f"Staging table not found with id: {table_id}"
            raise Refused(404, "NoSuchTableException", what)
        self._allow(found.principal == self.principal)
        return 200, {"storage-credentials": self._issued(found.location, "READ_WRITE")}

    def _create(self, catalog: str, schema: str, body: Any) -> Reply:
        self._find_schema(catalog, schema)
        self._allow(self._server.may_create())
        _check_fields(body, _TABLE, _TABLE_OPTIONS)
        _check_name(body["name"])
        name = f"{catalog}.{schema}.{body['name']}"
        if self._server.tables_named(name):
            raise Refused(409, "AlreadyExistsException", f"Table already exists: {name}")
        location = body["location"].rstrip("/")
        table_id = next((i for i, s in self.staging.items() if s.location == location), None)
        if table_id is None:
            what = f"Staging table not found: {location}"
            raise Refused(404, "NoSuchTableException", what)
        place = self.staging[table_id]
        if place.principal != self.principal:
            what = "User attempts to create table on a staging location without ownership"
            raise Refused(403, "PermissionDeniedException", f"{what}: {location}")
        if place.used:
            raise _invalid(f"Staging table already committed: {location}")
        now_ms = time.time_ns() // 1_000_000
        made = Managed(
            _checked_protocol(body["protocol"]),
            dict(body["properties"]),
            _checked_columns(body["columns"]),
            _checked_partitions(body.get("partition-columns") or [], body["columns"]),
            body.get("comment"),
            _checked_domains(body.get("domain-metadata") or {}),
            created_ms=now_ms,
            updated_ms=now_ms,
            last_commit=(0, body["last-commit-timestamp-ms"]),
        )
        if made.properties.get(TABLE_ID) != table_id:
            raise _invalid(f"the table id ({table_id}) does not match the properties {TABLE_ID}")
        _check_lengths(made.properties)
        _check_contract(made)
        place.used = True
        self.managed[table_id] = made
        table = {
            "name": body["name"],
            "catalog_name": catalog,
            "schema_name": schema,
            "table_type": "MANAGED",
            "data_source_format": "DELTA",
            "columns": [],
            "storage_location": location,
            "comment": made.comment,
            "table_id": table_id,
        }
        self._server.keep(table)
        return 200, self._described(table)

    def _described(self, table: Mapping[str, Any]) -> dict[str, Any]:
        found = self.managed.get(table["table_id"])
        if found is None:
            metadata = {
                "etag": "etag-1",
                "table-type": table["table_type"],
                "table-uuid": table["table_id"],
                "location": table["storage_location"],
                "columns": {"type": "struct", "fields": []},
                "properties": {},
            }
            return {"metadata": metadata, "commits": []}
        return {
            "metadata": {
                "etag": f"etag-{found.updated_ms}",
                "table-type": "MANAGED",
                "table-uuid": table["table_id"],
                "location": table["storage_location"],
                "created-time": found.created_ms,
                "updated-time": found.updated_ms,
                "columns": found.columns,
                "partition-columns": found.partition_columns,
                # Derived ones first: what an update has set after them wins.
                "properties": {**found.derived(), **found.properties},
                "last-commit-version": found.last_commit[0],
                "last-commit-timestamp-ms": found.last_commit[1],
            },
            "commits": found.unpublished[::-1],
            "latest-table-version": found.latest,
        }

    def _update(self, table: dict[str, Any], body: Any) -> Reply:
        self._allow(self._server.may_commit())
        _check_fields(body, {"requirements", "updates"})
        updates = _by_action(body["updates"])
        found = self.managed.get(table["table_id"])
        requirements = {each.get("type"): each for each in body["requirements"]}
        if requirements.keys() - {"assert-table-uuid", "assert-etag"}:
            raise _invalid("Could not resolve type id")
        if "assert-table-uuid" not in requirements:
            raise _invalid("assert-table-uuid requirement is required.")
        wanted = requirements["assert-table-uuid"]["uuid"]
        if wanted != table["table_id"]:
            what = f"expected {wanted} but table has {table['table_id']}"
            kind = "UpdateRequirementConflictException"
            raise Refused(409, kind, f"assert-table-uuid failed: {what}")
        if found is None:
            raise _invalid("add-commit and set-latest-backfilled-version require a MANAGED table.")
        after = copy.deepcopy(found)
        if (commit := updates.get("add-commit")) is not None and self._is_replay(
            found, commit, table["storage_location"]
        ):
            return 200, self._described(table)
        _change(after, updates)
        if (version := updates.get("set-latest-backfilled-version")) is not None:
            _backfill(after, version, commit)
        if commit is not None:
            _append(after, commit, table["table_id"])
        if updates.keys() - {"add-commit", "set-latest-backfilled-version"}:
            after.updated_ms = max(time.time_ns() // 1_000_000, found.updated_ms + 1)
            if commit is not None:
                after.last_commit = commit["version"], commit["timestamp"]
        self.managed[table["table_id"]] = after
        table["comment"] = after.comment
        return 200, self._described(table)

    def _is_replay(self, found: Managed, commit: Mapping[str, Any], location: str) -> bool:
        """Return whether the version is that commit already; refuse another one."""
        _check_commit(commit)
        version, name = commit["version"], commit["file-name"]
        if version > found.latest or not found.commits:
            return False
        kind, what = "CommitVersionConflictException", "Commit version already accepted."
        tracked = [each for each in found.commits if each["version"] == version]
        if tracked:
            if tracked[0]["file-name"] == name:
                return True
            raise Refused(409, kind, f"{what} Version {version} has another file.")
        log = Path(unquote(urlsplit(location).path)) / "_delta_log"
        try:
            staged = (log / "_staged_commits" / name).read_bytes()
            published = (log / f"{version:020d}.json").read_bytes()
        except OSError:
            what = f"Could not determine whether commit version {version} is a replay"
            raise Refused(500, "CommitStateUnknownException", what) from None
        if staged == published:
            return True
        raise Refused(409, kind, f"{what} Version {version} is already published.")

    def _rename(self, table: dict[str, Any], body: Any) -> Reply:
        self._allow(self._server.may_drop() and self._server.may_create())
        _check_fields(body, {"new-name"})
        new = body["new-name"]
        _check_name(new)
        same = self._server.tables_named(f"{table['catalog_name']}.{table['schema_name']}.{new}")
        if new != table["name"] and same:
            raise Refused(409, "AlreadyExistsException", f"Table already exists: {new}")
        table["name"] = new
        if (found := self.managed.get(table["table_id"])) is not None:
            found.updated_ms = max(time.time_ns() // 1_000_000, found.updated_ms + 1)
        return 204, b""

    def _delete(self, table: dict[str, Any]) -> Reply:
        self._allow(self._server.may_drop())
        self._server.forget(table)
        location = table["storage_location"]
        if table["table_id"] in self.managed and location.startswith("file:"):
            shutil.rmtree(unquote(urlsplit(location).path), ignore_errors=True)
        return 204, b""

    def _credentials(self, table: Mapping[str, Any], query: Mapping[str, str]) -> Reply:
        operation = query.get("operation", "").upper()
        if operation not in ("READ", "READ_WRITE"):
            raise _invalid(f"Unexpected value '{operation}'")
        may = self._server.may_open(operation) and operation not in self._server.forbidden
        self._allow(may)
        return 200, {"storage-credentials": self._issued(table["storage_location"], operation)}

    def _issued(self, location: str, operation: str) -> list[dict[str, Any]]:
        """Return the credentials that the server has for a place."""
        status, given = self._server.credentials
        config: dict[str, str] = {}
        expires_ms = None
        if not location.startswith("file:"):
            if status != 200:
                raise Refused(status, "InvalidParameterValueException", "no credentials")
            for cloud, lead in (
                ("aws_temp_credentials", "s3."),
                ("azure_user_delegation_sas", "azure."),
                ("gcp_oauth_token", "gcs."),
            ):
                pairs = (given.get(cloud) or {}).items()
                config |= {lead + key.replace("_", "-"): value for key, value in pairs}
            expires_ms = given.get("expiration_time")
        return [
            {
                "prefix": location,
                "operation": operation,
                "config": config,
                "expiration-time-ms": expires_ms,
            }
        ]

    def _find_schema(self, catalog: str, schema: str) -> None:
        if not self._server.has_catalog(catalog):
            raise Refused(404, "NoSuchCatalogException", f"Catalog not found: {catalog}")
        if not self._server.has_schema(catalog, schema):
            raise Refused(404, "NoSuchSchemaException", f"Schema not found: {catalog}.{schema}")

    def _table(self, catalog: str, schema: str, name: str) -> dict[str, Any]:
        self._find_schema(catalog, schema)
        found = self._server.tables_named(f"{catalog}.{schema}.{name}")
        if not found:
            raise Refused(404, "NoSuchTableException", f"Table not found: {name}")
        if len(found) > 1:
            what = f"Query did not return a unique result: {len(found)} results were returned"
            raise Refused(500, "InternalServerErrorException", what)
        return found[0]

    def _allow(self, may: bool) -> None:
        if not may:
            raise Refused(403, "PermissionDeniedException", "Access denied.")


def delta_error(status: int, kind: str, message: str) -> Reply:
    """Return an error as everything below ``/delta/v1`` writes it."""
    return status, {"error": {"message": message, "type": kind, "code": status, "stack": None}}


def _invalid(message: str) -> Refused:
    return Refused(400, "InvalidParameterValueException", message)


def _check_fields(body: Any, required: set[str], optional: set[str] | None = None) -> None:
    if not isinstance(body, dict):
        raise _invalid("failed to parse a JSON document")
    for key in body.keys() - required - (optional or set()):
        raise _invalid(f'Unrecognized field "{key}"')
    for key in required:
        if body.get(key) is None:
            raise _invalid(f"{key} is required.")


def _check_name(name: str) -> None:
    if not NAME.fullmatch(name):
        raise _invalid("Name cannot contain a period, space, forward-slash, or control characters")


def _check_lengths(properties: Mapping[str, str]) -> None:
    for key, value in properties.items():
        if max(len(key), len(value)) > LONGEST_PROPERTY:
            what = "Value too long for column PROPERTY_VALUE"
            raise Refused(500, "InternalServerErrorException", what)


def _by_action(updates: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what each update says, by its action."""
    found: dict[str, Any] = {}
    if not updates:
        raise _invalid("At least one update is required.")
    for update in updates:
        action = update.get("action")
        if action not in _UPDATES:
            raise _invalid(f"Could not resolve type id '{action}'")
        if action in found:
            raise _invalid(f"At most one {action} is allowed per request.")
        _check_fields(update, {"action", _UPDATES[action]})
        found[action] = update[_UPDATES[action]]
    for one, other in (
        ("set-properties", "remove-properties"),
        ("set-domain-metadata", "remove-domain-metadata"),
    ):
        if set(found.get(one, ())) & set(found.get(other, ())):
            raise _invalid(f"{one} and {other} overlap")
    return found


def _change(after: Managed, updates: Mapping[str, Any]) -> None:
    """Change the description, in the order of the real server."""
    if "set-columns" in updates or "set-partition-columns" in updates:
        after.columns = _checked_columns(updates.get("set-columns", after.columns))
        wanted = updates.get("set-partition-columns", after.partition_columns)
        after.partition_columns = _checked_partitions(wanted, after.columns)
    if "set-protocol" in updates:
        after.protocol = _checked_protocol(updates["set-protocol"])
    changed = updates.get("set-properties", {})
    _check_lengths(changed)
    after.properties |= changed
    for key in updates.get("remove-properties", ()):
        after.properties.pop(key, None)
    if "set-domain-metadata" in updates:
        if not updates["set-domain-metadata"]:
            raise _invalid("set-domain-metadata requires at least one domain.")
        after.domains |= _checked_domains(updates["set-domain-metadata"])
    for name in updates.get("remove-domain-metadata", ()):
        if name not in _DOMAINS:
            raise _invalid(f"Unknown domain: {name}")
        after.domains.pop(name, None)
    after.comment = updates.get("set-table-comment", after.comment)
    if "set-protocol" in updates:
        _check_contract(after)
    else:
        _check_domain_features(after)


def _backfill(after: Managed, version: int, commit: Mapping[str, Any] | None) -> None:
    if not after.commits:
        raise _invalid("Backfill request requires a prior commit; the commit log is empty.")
    if version > after.latest or (commit is not None and version >= commit["version"]):
        raise _invalid(f"Should not backfill version {version}")
    after.backfilled = max(version, after.backfilled)
    last = after.commits[-1]
    after.commits = [each for each in after.unpublished if each is not last] + [last]


def _append(after: Managed, commit: dict[str, Any], table_id: str) -> None:
    version = commit["version"]
    if after.commits and version != after.latest + 1:
        what = f"the next version after the latest commit {after.latest}, but got {version}"
        raise _invalid(f"Commit version must be {what}")
    unpublished = after.unpublished
    if len(unpublished) >= MOST_UNPUBLISHED:
        what = f"Max number of commits per table reached: {table_id}"
        raise Refused(429, "ResourceExhaustedException", what)
    after.commits = [*unpublished, commit]


def _check_commit(commit: Mapping[str, Any]) -> None:
    _check_fields(commit, _COMMIT)
    for key in _COMMIT - {"file-name"}:
        if commit[key] <= 0:
            raise _invalid(f"Field must be positive: {key.replace('-', '_')}")
    name = commit["file-name"]
    if not name or name in (".", "..") or "/" in name or "\\" in name:
        raise _invalid("file_name must be one segment")


def _checked_protocol(protocol: dict[str, Any]) -> dict[str, Any]:
    _check_fields(
        protocol,
        {"min-reader-version", "min-writer-version"},
        {"reader-features", "writer-features"},
    )
    return protocol


def _checked_columns(columns: dict[str, Any]) -> dict[str, Any]:
    _check_type(columns, "columns")
    names = [each["name"].lower() for each in columns["fields"]]
    if len(set(names)) < len(names):
        raise _invalid("columns have duplicate names")
    return columns


def _check_type(kind: Any, path: str) -> None:
    if isinstance(kind, str):
        if not PRIMITIVES.fullmatch(kind):
            raise _invalid(f"{path}: Unsupported Delta primitive type: {kind}")
        return
    parts = _NESTED.get(kind.get("type"))
    if parts is None:
        raise _invalid(f"{path}: Unsupported type")
    _check_fields(kind, {"type", *parts})
    for part in parts:
        if part.endswith("-type"):
            _check_type(kind[part], f"{path}.{part}")
    if kind["type"] == "struct":
        if not kind["fields"]:
            raise _invalid(f"{path}.fields must contain at least one field.")
        for number, each in enumerate(kind["fields"]):
            _check_fields(each, {"name", "type", "nullable", "metadata"})
            _check_type(each["type"], f"{path}.fields[{number}].type")


def _checked_partitions(wanted: list[str], columns: Mapping[str, Any]) -> list[str]:
    names = {each["name"].lower(): each["name"] for each in columns["fields"]}
    for name in wanted:
        if name.lower() not in names:
            raise _invalid(f"partition-columns references unknown column: {name}")
    return [names[name.lower()] for name in wanted]


def _checked_domains(domains: dict[str, Any]) -> dict[str, Any]:
    for name, content in domains.items():
        if name not in _DOMAINS:
            raise _invalid(f'Unrecognized field "{name}"')
        _check_fields(content, {_DOMAINS[name][0]})
    return domains


def _check_contract(table: Managed) -> None:
    protocol = table.protocol
    readers = set(protocol.get("reader-features") or ())
    writers = set(protocol.get("writer-features") or ())
    if protocol["min-reader-version"] < 3 or protocol["min-writer-version"] < 7:
        raise _invalid("MANAGED table requires reader version 3 and writer version 7.")
    if not readers <= writers:
        raise _invalid("reader-features must be a subset of writer-features.")
    for kind, there, wanted in (
        ("reader", readers, READER_FEATURES),
        ("writer", writers, WRITER_FEATURES),
    ):
        for name in wanted:
            if name not in there:
                raise _invalid(f"MANAGED table missing required {kind}-feature '{name}'.")
    for key, value in PROPERTIES.items():
        if (found := table.properties.get(key)) != value:
            what = f"required property '{key}' must be '{value}' (got '{found}')."
            raise _invalid(f"MANAGED table {what}")
    _check_domain_features(table)


def _check_domain_features(table: Managed) -> None:
    for name in table.domains:
        feature = _DOMAINS[name][1]
        if feature not in (table.protocol.get("writer-features") or ()):
            what = f"requires the '{feature}' writer feature."
            raise _invalid(f"domain-metadata.{name} {what}")
