"""Unity Catalog for the tests: a small server that answers as version 0.6.0 does.

``LAKEFERRY_UC_URL`` (and ``LAKEFERRY_UC_TOKEN``) name a real one instead; tests
that need this one's obedience (:attr:`UnityServer.ours`) are skipped there.
"""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from tests.support.obedient_server import ObedientServer, Reply

API = "/api/2.1/unity-catalog"
PAGE_SIZE = 2
"""Small, so that every listing has several pages."""


@dataclass(frozen=True, slots=True)
class UnityServer:
    """A running Unity Catalog with a schema for one test."""

    url: str
    token: str | None
    schema: str
    """The new schema, as ``catalog.schema``."""
    server: OurServer | None

    @property
    def ours(self) -> OurServer:
        """The server, to be told what to do; a real one isn't."""
        import pytest

        if self.server is None:
            pytest.skip("a real server can't be told how to behave")
        return self.server

    def environment(self) -> dict[str, str]:
        return {"UC_URL": self.url, **({"UC_TOKEN": self.token} if self.token else {})}

    def call(self, method: str, path: str, body: object = None) -> Reply:
        """Call the REST API; ``path`` follows the API's own."""
        headers = {"Content-Type": "application/json"}
        if self.token:
            headers["Authorization"] = f"Bearer {self.token}"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}{API}{path}", data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=30) as response:
                return response.status, json.loads(response.read() or "null")
        except urllib.error.HTTPError as refused:
            with refused:
                return refused.code, json.loads(refused.read())


@contextmanager
def unity_server() -> Iterator[UnityServer]:
    """Give a server with a new schema, and leave a real one as it was."""
    catalog = f"catalog_{uuid.uuid4().hex[:12]}"
    if real := os.environ.get("LAKEFERRY_UC_URL"):
        url = real.rstrip("/").removesuffix(API)
        found = UnityServer(url, os.environ.get("LAKEFERRY_UC_TOKEN"), f"{catalog}.tests", None)
        with _schema(found):
            yield found
        return
    with OurServer() as server:
        found = UnityServer(server.url, server.token, f"{catalog}.tests", server)
        with _schema(found):
            yield found


@contextmanager
def _schema(server: UnityServer) -> Iterator[None]:
    catalog, _, schema = server.schema.partition(".")
    for path, body in (
        ("/catalogs", {"name": catalog}),
        ("/schemas", {"name": schema, "catalog_name": catalog}),
    ):
        status, reply = server.call("POST", path, body)
        assert status == 200, reply
    try:
        yield
    finally:
        if server.server is None:
            server.call("DELETE", f"/catalogs/{catalog}?force=true")


@dataclass(slots=True)
class _State:
    catalogs: set[str] = field(default_factory=set)
    schemas: set[tuple[str, str]] = field(default_factory=set)
    tables: dict[str, dict[str, Any]] = field(default_factory=dict)


class OurServer(ObedientServer):
    """The server, in a thread of its own, and how it can be told to behave.

    ``next_replies`` are given instead of answers, one each: a status and a body,
    which may be bytes. ``silent`` keeps every answer back until it is cleared.
    ``credentials`` are what it hands out for places in a cloud, and
    ``forbidden`` the operations for which it hands out none.
    """

    def __init__(self) -> None:
        super().__init__()
        self.token = f"token-{uuid.uuid4().hex}"
        self.metastore_id = str(uuid.uuid4())
        self.credentials: Reply = (200, {})
        self.forbidden: set[str] = set()
        self._state = _State()

    def _reply(self, method: str, target: str, headers: Any, data: bytes) -> Reply | None:
        url = urlsplit(target)
        path = url.path.removeprefix(API)
        query = {key: values[-1] for key, values in parse_qs(url.query).items()}
        with self._lock:
            self.asked.append(f"{method} {unquote(path)}")
            if self.next_replies:
                return self.next_replies.popleft()
            if not url.path.startswith(API):
                return 404, b"Status: 404\nDescription: Not Found\n"
            if headers.get("Authorization") != f"Bearer {self.token}":
                return _error(401, "UNAUTHENTICATED", "No authorization found.")
            body = json.loads(data) if data else {}
            kind, *rest = [unquote(part) for part in path.strip("/").split("/")]
            answer = getattr(self, f"_{method.lower()}_{kind.replace('-', '_')}", None)
            if answer is None:
                return 405, b"Status: 405\nDescription: Method Not Allowed\n"
            reply: Reply = answer(body, query, *rest)
            return reply

    def _get_metastore_summary(self, _: Any, __: Any) -> Reply:
        return 200, {"metastore_id": self.metastore_id}

    def _post_catalogs(self, body: Any, _: Any) -> Reply:
        self._state.catalogs.add(body["name"])
        return 200, {"name": body["name"]}

    def _get_catalogs(self, _: Any, query: dict[str, str], *names: str) -> Reply:
        if not names:
            return _page("catalogs", {n: {"name": n} for n in self._state.catalogs}, query)
        if names[0] not in self._state.catalogs:
            return _error(404, "CATALOG_NOT_FOUND", f"Catalog not found: {names[0]}")
        return 200, {"name": names[0]}

    def _post_schemas(self, body: Any, _: Any) -> Reply:
        self._state.schemas.add((body["catalog_name"], body["name"]))
        return 200, {"name": body["name"], "catalog_name": body["catalog_name"]}

    def _get_schemas(self, _: Any, query: dict[str, str], *names: str) -> Reply:
        if names:
            parent, _dot, name = names[0].partition(".")
            if (parent, name) not in self._state.schemas:
                return _error(404, "SCHEMA_NOT_FOUND", f"Schema not found: {names[0]}")
            return 200, {"name": name, "catalog_name": parent}
        catalog = query["catalog_name"]
        found = [schema for parent, schema in self._state.schemas if parent == catalog]
        return _page("schemas", {n: {"name": n, "catalog_name": catalog} for n in found}, query)

    def _post_tables(self, body: Any, _: Any) -> Reply:
        parent = body["catalog_name"], body["schema_name"]
        name = ".".join([*parent, body["name"]])
        if parent[0] not in self._state.catalogs:
            return _error(404, "CATALOG_NOT_FOUND", f"Catalog not found: {parent[0]}")
        if parent not in self._state.schemas:
            return _error(404, "SCHEMA_NOT_FOUND", f"Schema not found: {'.'.join(parent)}")
        if name in self._state.tables:
            return _error(400, "TABLE_ALREADY_EXISTS", f"Table already exists: {name}")
        place = body["storage_location"]
        if any(place == other["storage_location"] for other in self._state.tables.values()):
            return _error(400, "INVALID_ARGUMENT", f"Location overlaps with others: {place}")
        assert (body["table_type"], body["data_source_format"]) == ("EXTERNAL", "DELTA")
        required = {"name", "type_text", "type_json", "type_name", "position", "nullable"}
        assert all(required <= column.keys() for column in body["columns"])
        self._state.tables[name] = {**body, "table_id": str(uuid.uuid4())}
        return 200, self._state.tables[name]

    def _get_tables(self, _: Any, query: dict[str, str], *names: str) -> Reply:
        if names:
            if names[0].count(".") != 2:
                return _error(400, "INVALID_ARGUMENT", f"Invalid table name: {names[0]}")
            if names[0] not in self._state.tables:
                return _error(404, "TABLE_NOT_FOUND", f"Table not found: {names[0]}")
            return 200, self._state.tables[names[0]]
        parent = f"{query['catalog_name']}.{query['schema_name']}."
        found = {k: v for k, v in self._state.tables.items() if k.startswith(parent)}
        return _page("tables", {v["name"]: v for v in found.values()}, query)

    def _delete_tables(self, _: Any, __: Any, name: str) -> Reply:
        if self._state.tables.pop(name, None) is None:
            return _error(404, "TABLE_NOT_FOUND", f"Table not found: {name}")
        return 200, b""

    def _post_temporary_table_credentials(self, body: Any, _: Any) -> Reply:
        found = [t for t in self._state.tables.values() if t["table_id"] == body["table_id"]]
        if not found:
            return _error(404, "TABLE_NOT_FOUND", f"No table with id: {body['table_id']}")
        if body["operation"] in self.forbidden:
            return _error(403, "PERMISSION_DENIED", "Access denied.")
        none = {"aws_temp_credentials": None, "azure_user_delegation_sas": None}
        none |= {"gcp_oauth_token": None, "expiration_time": None}
        status, given = self.credentials
        if status != 200:
            return status, given
        place = found[0]["storage_location"]
        return 200, {**none, "url": place, **({} if place.startswith("file:") else given)}


def _error(status: int, code: str, message: str) -> Reply:
    return status, {"error_code": code, "message": message}


def _page(what: str, found: dict[str, Any], query: dict[str, str]) -> Reply:
    """One page of a listing, by name; its last name is the token for the next."""
    names = sorted(name for name in found if name > query.get("page_token", ""))
    shown = names[:PAGE_SIZE]
    token = shown[-1] if len(shown) == PAGE_SIZE else None
    return 200, {what: [found[name] for name in shown], "next_page_token": token}
