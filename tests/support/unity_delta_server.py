"""What our Unity server answers to ``/delta/v1``, its API for Delta tables, as version 0.7 does.

Checks come in the order of the real server, and a refused request changes nothing. Two calls
that the real server advertises don't exist there either.
"""

from __future__ import annotations

import copy
import shutil
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from tests.support.obedient_server import Reply
from tests.support.unity_delta_rules import (
    PROPERTIES,
    READER_FEATURES,
    TABLE_FIELDS,
    TABLE_ID,
    TABLE_OPTIONS,
    WRITER_FEATURES,
    Managed,
    Refused,
    append,
    backfill,
    by_action,
    change,
    check_commit,
    check_contract,
    check_fields,
    check_lengths,
    check_new_name,
    checked_columns,
    checked_domains,
    checked_partitions,
    checked_protocol,
    invalid,
)

if TYPE_CHECKING:
    from tests.support.unity_server import OurServer

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


@dataclass(slots=True)
class _Staging:
    name: str
    location: str
    principal: str
    used: bool = False


class DeltaCalls:
    """The calls. ``principal`` is who asks: a staging table belongs to who allocated it.

    ``renaming`` is called while a table gets a name: the real server lets another one get it, too.
    ``before_change`` is called before the table is looked up that is to be renamed or dropped, with
    ``rename`` or ``delete``: what other clients do after the caller has looked at the name.
    """

    def __init__(self, server: OurServer) -> None:
        self._server = server
        self.principal = "ann@example.com"
        self.renaming: Callable[[], object] = lambda: None
        self.before_change: Callable[[str], object] = lambda _: None
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
                if method == "DELETE" or rest == ["rename"]:
                    self.before_change("delete" if method == "DELETE" else "rename")
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
            raise invalid("Mandatory parameter/header is missing: protocol-versions")
        if not self._server.has_catalog(query["catalog"]):
            what = f"Catalog not found: {query['catalog']}"
            raise Refused(404, "NoSuchCatalogException", what)
        self._allow("USE CATALOG" in self._server.privileges)
        return 200, {"endpoints": _ENDPOINTS.strip().split("\n"), "protocol-version": "1.0"}

    def _allocate(self, catalog: str, schema: str, body: Any) -> Reply:
        self._find_schema(catalog, schema)
        self._allow(self._server.may_create())
        check_fields(body, {"name"})
        self._check_switched_on()
        check_new_name(body["name"])
        if self._server.tables_named(f"{catalog}.{schema}.{body['name']}"):
            what = f"Table already exists: {body['name']}"
            raise Refused(409, "AlreadyExistsException", what)
        if self._server.storage_root is None:
            what = "None of catalog, schema or storage-root.tables server property has managed"
            raise invalid(f"{what} location configured.")
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
            raise invalid(f"Invalid UUID string: {table_id}") from None
        if (found := self.staging.get(table_id)) is None:
            what = f"Staging table not found with id: {table_id}"
            raise Refused(404, "NoSuchTableException", what)
        self._allow(found.principal == self.principal)
        return 200, {"storage-credentials": self._issued(found.location, "READ_WRITE")}

    def _create(self, catalog: str, schema: str, body: Any) -> Reply:
        self._find_schema(catalog, schema)
        self._allow(self._server.may_create())
        check_fields(body, TABLE_FIELDS, TABLE_OPTIONS)
        check_new_name(body["name"])
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
            raise invalid(f"Staging table already committed: {location}")
        self._check_switched_on()
        now_ms = time.time_ns() // 1_000_000
        made = Managed(
            checked_protocol(body["protocol"]),
            dict(body["properties"]),
            checked_columns(body["columns"]),
            checked_partitions(body.get("partition-columns") or [], body["columns"]),
            body.get("comment"),
            checked_domains(body.get("domain-metadata") or {}),
            created_ms=now_ms,
            updated_ms=now_ms,
            last_commit=(0, body["last-commit-timestamp-ms"]),
        )
        if made.properties.get(TABLE_ID) != table_id:
            raise invalid(f"the table id ({table_id}) does not match the properties {TABLE_ID}")
        check_lengths(made.properties)
        check_contract(made)
        self._check_restricted(made)
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
        check_fields(body, {"requirements", "updates"})
        updates = by_action(body["updates"])
        found = self.managed.get(table["table_id"])
        requirements = {each.get("type"): each for each in body["requirements"]}
        if requirements.keys() - {"assert-table-uuid", "assert-etag"}:
            raise invalid("Could not resolve type id")
        if "assert-table-uuid" not in requirements:
            raise invalid("assert-table-uuid requirement is required.")
        wanted = requirements["assert-table-uuid"]["uuid"]
        if wanted != table["table_id"]:
            what = f"expected {wanted} but table has {table['table_id']}"
            kind = "UpdateRequirementConflictException"
            raise Refused(409, kind, f"assert-table-uuid failed: {what}")
        if found is None:
            raise invalid("add-commit and set-latest-backfilled-version require a MANAGED table.")
        if updates.keys() & {"add-commit", "set-latest-backfilled-version"}:
            self._check_switched_on()
        after = copy.deepcopy(found)
        if (commit := updates.get("add-commit")) is not None and self._is_replay(
            found, commit, table["storage_location"]
        ):
            return 200, self._described(table)
        change(after, updates)
        self._check_restricted(after)
        first = commit["version"] if commit is not None and not found.commits else 1
        if self._server.begins_at_1 and first != 1:
            raise invalid(f"Commit version must be 1, but got {first}")
        if (version := updates.get("set-latest-backfilled-version")) is not None:
            backfill(after, version, commit)
        if commit is not None:
            append(after, commit, table["table_id"])
        if updates.keys() - {"add-commit", "set-latest-backfilled-version"}:
            after.updated_ms = max(time.time_ns() // 1_000_000, found.updated_ms + 1)
            if commit is not None:
                after.last_commit = commit["version"], commit["timestamp"]
        self.managed[table["table_id"]] = after
        table["comment"] = after.comment
        return 200, self._described(table)

    def _check_switched_on(self) -> None:
        if self._server.without_managed:
            how = "set 'server.managed-table.enabled=true' in server.properties"
            raise invalid(f"MANAGED table is an is currently disabled. To enable it, {how}")

    def _check_restricted(self, table: Managed) -> None:
        """Refuse what a test forbids; version 0.7 takes any property and feature."""
        features = set(table.protocol.get("writer-features") or ())
        if found := sorted(self._server.restricted & (features | table.properties.keys())):
            raise invalid(f"'{found[0]}' can't be set on a MANAGED table.")

    def _is_replay(self, found: Managed, commit: Mapping[str, Any], location: str) -> bool:
        """Return whether the version is that commit already; refuse another one."""
        check_commit(commit)
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
        check_fields(body, {"new-name"})
        new = body["new-name"]
        check_new_name(new)
        same = self._server.tables_named(f"{table['catalog_name']}.{table['schema_name']}.{new}")
        if new != table["name"] and same:
            raise Refused(409, "AlreadyExistsException", f"Table already exists: {new}")
        self.renaming()
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
            raise invalid(f"Unexpected value '{operation}'")
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
