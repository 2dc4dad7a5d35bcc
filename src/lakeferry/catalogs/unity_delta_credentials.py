"""The calls of Unity Catalog that issue credentials for the places of tables."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import quote

from lakeferry.catalogs.catalog_rest import Answer
from lakeferry.catalogs.unity_delta_messages import StorageCredential, StorageCredentials
from lakeferry.catalogs.unity_delta_rest import (
    LEAD,
    DeltaRest,
    error_type,
    privileges_to_use,
    table_path,
)
from lakeferry.errors import Forbidden


class UnityDeltaCredentials:
    """The credentials that a server issues to us. An empty answer means that it issues none."""

    def __init__(self, rest: DeltaRest) -> None:
        """Ask nothing yet."""
        self._rest = rest

    def for_table(self, name: str, *, write: bool = True) -> tuple[StorageCredential, ...]:
        """Return credentials for a table's place, for writing if we may and else for reading.

        There are none if the server isn't configured to issue any for that place.
        """
        path = f"{table_path(name)}/credentials"
        if write:
            with suppress(Forbidden):
                return self._issued(path, {"operation": "READ_WRITE"}, name)
        needed = f"{privileges_to_use(name)}, and SELECT on {name} (MODIFY too, to write)"
        with self._rest.privileges(f"open the files of {name}", needed, name):
            return self._issued(path, {"operation": "READ"}, name)

    def for_path(self, location: str, *, write: bool = True) -> tuple[StorageCredential, ...]:
        """Return credentials for a place."""
        if write:
            # Whoever may only create a table there has that right until a table is there.
            with suppress(Forbidden):
                return self._path_credentials(location, "READ_WRITE", "PATH_READ_WRITE")
        needed = (
            f"CREATE EXTERNAL TABLE (or READ FILES and WRITE FILES) on the external location of "
            f"{location}"
            if write
            else f"READ FILES on the external location of {location}"
        )
        with self._rest.privileges(f"open {location}", needed, location):
            if write:
                return self._path_credentials(location, "READ_WRITE", "PATH_CREATE_TABLE")
            return self._path_credentials(location, "READ", "PATH_READ")

    def _path_credentials(
        self, location: str, operation: str, older: str
    ) -> tuple[StorageCredential, ...]:
        body = {"url": location, "operation": older}
        answer = self._rest.ask("POST", "/temporary-path-credentials", body=body)
        if answer.status in (404, 405) and "error_code" not in answer.body:
            # A server without the older call.
            query = {"location": location, "operation": operation}
            return self._issued(f"{LEAD}/temporary-path-credentials", query, location)
        return self._older(answer, location, operation)

    def for_external_table(self, location: str, table_id: str) -> tuple[StorageCredential, ...]:
        """Return credentials for an external table's place, for writing if we may."""
        call = "/temporary-table-credentials"
        with suppress(Forbidden):
            body = {"table_id": table_id, "operation": "READ_WRITE"}
            return self._older(self._rest.ask("POST", call, body=body), location, "READ_WRITE")
        needed = f"SELECT on the table {table_id} (MODIFY too, to write)"
        with self._rest.privileges(f"open {location}", needed, location):
            body = {"table_id": table_id, "operation": "READ"}
            return self._older(self._rest.ask("POST", call, body=body), location, "READ")

    def _older(
        self, answer: Answer, location: str, operation: str
    ) -> tuple[StorageCredential, ...]:
        """Return what the older API issues; nothing if it isn't configured to."""
        if answer.status in (400, 409):
            return ()
        return _older_credentials(self._rest.body_of(answer), location, operation)

    def _issued(
        self, path: str, query: Mapping[str, str], name: str
    ) -> tuple[StorageCredential, ...]:
        answer = self._rest.ask("GET", path, query=query)
        if answer.status in (400, 409) and error_type(answer) is not None:
            return ()
        return self._rest.content_of(answer, StorageCredentials, name).storage_credentials or ()

    def for_staging_table(self, table_id: str) -> tuple[StorageCredential, ...]:
        """Return credentials for a staging table's place, also after its table was created.

        They are issued only to the user who allocated it.
        """
        path = f"{LEAD}/staging-tables/{quote(table_id, safe='')}/credentials"
        with self._rest.as_allocator(table_id):
            answer = self._rest.ask("GET", path)
        return self._rest.content_of(answer, StorageCredentials, table_id).storage_credentials or ()


def _older_credentials(
    body: Mapping[str, Any], location: str, operation: str
) -> tuple[StorageCredential, ...]:
    """Return credentials from an answer of the older API."""
    config: dict[str, str] = {}
    for cloud, lead in (
        ("aws_temp_credentials", "s3."),
        ("azure_user_delegation_sas", "azure."),
        ("gcp_oauth_token", "gcs."),
    ):
        given = body.get(cloud)
        if isinstance(given, dict):
            config |= {
                lead + key.replace("_", "-"): value
                for key, value in given.items()
                if isinstance(value, str)
            }
    expires_ms = body.get("expiration_time")
    return (
        StorageCredential(
            prefix=location,
            operation=operation,
            config=config,
            expiration_time_ms=expires_ms if isinstance(expires_ms, int) else None,
        ),
    )
