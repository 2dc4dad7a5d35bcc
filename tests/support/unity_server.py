"""Unity Catalog for the tests: a small server that answers as version 0.7 does.

``LAKEFERRY_UC_URL`` (and ``LAKEFERRY_UC_TOKEN``) name a real one instead; tests
that need this one's obedience (:attr:`UnityServer.ours`) are skipped there.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

from tests.support.obedient_server import ObedientServer, Reply
from tests.support.unity_delta_rules import PRIMITIVES, delta_error
from tests.support.unity_delta_server import DeltaCalls

API = "/api/2.1/unity-catalog"
ME = "/api/1.0/unity-control/scim2/Me"
PAGE_SIZE = 2
"""Small, so that every listing has several pages."""

_SCHEMES = ("file", "s3", "gs", "abfs", "abfss")
_NAME = re.compile(r"[a-zA-Z0-9_@-]+")


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
        if self.server is None:
            pytest.skip("a real server can't be told how to behave")
        return self.server

    def environment(self) -> dict[str, str]:
        """Return the variables that name the server, and where a real one has its bucket."""
        token = {"UC_TOKEN": self.token} if self.token else {}
        bucket = () if self.server is not None else ("AWS_ENDPOINT_URL", "AWS_REGION")
        return {
            "UC_URL": self.url,
            **token,
            **{n: os.environ[n] for n in bucket if n in os.environ},
        }

    def name_in(self, patch: pytest.MonkeyPatch) -> None:
        """Name the server in the environment of this process."""
        patch.delenv("UC_TOKEN", raising=False)
        for name, value in self.environment().items():
            patch.setenv(name, value)

    def call(self, method: str, path: str, body: object = None, *, timeout_s: float = 30) -> Reply:
        """Call the REST API; ``path`` follows the API's own."""
        headers = {"Content-Type": "application/json"}
        if self.token:
            headers["Authorization"] = f"Bearer {self.token}"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}{API}{path}", data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=timeout_s) as response:
                return response.status, _body(response.read())
        except urllib.error.HTTPError as refused:
            with refused:
                return refused.code, _body(refused.read())

    def rename(self, name: str, new_name: str) -> None:
        """Give a table another name in the same schema, as its owner does; its id stays."""
        catalog, schema, table = name.split(".")
        path = f"/delta/v1/catalogs/{catalog}/schemas/{schema}/tables/{table}/rename"
        status, reply = self.call("POST", path, {"new-name": new_name})
        assert status == 204, reply


def _body(content: bytes) -> Any:
    """Return the JSON of an answer, or its bytes: who deletes is answered in plain text."""
    try:
        return json.loads(content)
    except ValueError:
        return content


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
            # The server deletes the files of managed tables before it answers.
            server.call("DELETE", f"/catalogs/{catalog}?force=true", timeout_s=300)


@dataclass(slots=True)
class _State:
    catalogs: set[str] = field(default_factory=set)
    schemas: set[tuple[str, str]] = field(default_factory=set)
    tables: list[dict[str, Any]] = field(default_factory=list)

    def named(self, name: str) -> list[dict[str, Any]]:
        """Return the tables of one name: usually one or none."""
        return [table for table in self.tables if _full_name(table) == name]


class OurServer(ObedientServer):
    """The server, in a thread of its own, and how it can be told to behave.

    ``next_replies`` are given instead of answers, one each: a status and a body,
    which may be bytes, and ``always`` is given to everybody. ``silent`` keeps every answer back
    until it is cleared.
    ``credentials`` are what it hands out for places in a cloud, and
    ``forbidden`` the operations for which it hands out none. ``privileges`` are what the
    user of the token has on everything there is of a kind: OWNER is about tables, SCHEMA
    OWNER about schemas. ``volumes`` are places that volumes have. ``racing`` lets one name be
    registered several times, as the real server does in a race. While it is ``slow`` a
    gateway before it answers whoever registers a table, and the table is there a few
    requests later. The answers to the next ``lost_answers`` changes in :attr:`delta`, the API
    for managed tables, get lost after the change was made. ``without_delta`` makes it a server
    that doesn't have that API. ``shows_dropped`` lets it say where a managed table was that was
    dropped, as a server without authorization does. Managed tables are below ``storage_root``; with
    ``None`` the server has no place for them, as it is installed. Who asks is ``user``.
    ``restricted`` are properties and features that no managed table may have. While it
    ``begins_at_1``, the first commit of a managed table has to be version 1, as the API's
    specification says. ``without_managed`` is how an administrator has switched managed tables off:
    there are no new ones, and no commits to the others.
    """

    def __init__(self) -> None:
        super().__init__()
        self.token = f"token-{uuid.uuid4().hex}"
        self.metastore_id = str(uuid.uuid4())
        self.credentials: Reply = (200, {})
        self.forbidden: set[str] = set()
        self.privileges = {"USE CATALOG", "USE SCHEMA", "CREATE TABLE", "OWNER"}
        self.volumes: list[str] = []
        self.racing = False
        self.slow = False
        self.always: Reply | None = None
        self.lost_answers = 0
        self.restricted: set[str] = set()
        self.begins_at_1 = False
        self.without_delta = False
        self.without_managed = False
        self.shows_dropped = False
        self.delta = DeltaCalls(self)
        self._folder = tempfile.TemporaryDirectory(prefix="unity-storage-")
        self.storage_root: str | None = Path(self._folder.name).as_uri()
        self.user: str | None = "ann@example.com"
        self._begun: list[tuple[int, dict[str, Any]]] = []
        self._state = _State()

    def __exit__(self, *exception: object) -> None:
        super().__exit__(*exception)
        self._folder.cleanup()

    def _reply(self, method: str, target: str, headers: Any, data: bytes) -> Reply | None:
        url = urlsplit(target)
        path = url.path.removeprefix(API)
        query = {key: values[-1] for key, values in parse_qs(url.query).items()}
        with self._lock:
            self.asked.append(f"{method} {unquote(path)}")
            while self._begun and self._begun[0][0] <= len(self.asked):
                self.add(self._begun.pop(0)[1])
            if self.next_replies:
                return self.next_replies.popleft()
            if self.always is not None:
                return self.always
            if url.path == ME:
                return self._me(headers.get("Accept") or "*/*")
            if not url.path.startswith(API):
                return 404, b"Status: 404\nDescription: Not Found\n"
            is_delta = path.startswith("/delta/v1/") and not self.without_delta
            if headers.get("Authorization") != f"Bearer {self.token}":
                if is_delta:
                    return delta_error(401, "NotAuthorizedException", "Invalid access token.")
                return _error(401, "UNAUTHENTICATED", "No authorization found.")
            body = json.loads(data) if data else {}
            if is_delta:
                parts = [unquote(part) for part in path.removeprefix("/delta/v1/").split("/")]
                answer = self.delta.reply(method, parts, query, body)
                if method != "GET" and self.lost_answers:
                    self.lost_answers -= 1
                    return None
                return answer
            kind, *rest = [unquote(part) for part in path.strip("/").split("/")]
            call = getattr(self, f"_{method.lower()}_{kind.replace('-', '_')}", None)
            if call is None:
                # With authorization off it is 404 or 405, in plain text.
                return _error(500, "INTERNAL", "Couldn't unwrap service.")
            reply: Reply = call(body, query, *rest)
            return reply

    def _me(self, accepted: str) -> Reply:
        """Answer who asks; ``user`` is ``None`` for a server without authorization."""
        fits = "*/*" in accepted or "application/scim+json" in accepted
        if self.user is None:
            what = {"status": "400", "detail": "No user found."}
            return (500, what) if fits else (406, b"Status: 406\nDescription: Not Acceptable\n")
        if not fits:
            return _error(500, "INTERNAL", "Couldn't unwrap service.")
        return 200, {"userName": self.user, "emails": [{"value": self.user}]}

    def _get_metastore_summary(self, _: Any, __: Any) -> Reply:
        return 200, {"metastore_id": self.metastore_id}

    def _post_catalogs(self, body: Any, _: Any) -> Reply:
        self._state.catalogs.add(body["name"])
        return 200, {"name": body["name"]}

    def _get_catalogs(self, _: Any, query: dict[str, str], *names: str) -> Reply:
        if not names:
            shown = self._state.catalogs if "USE CATALOG" in self.privileges else set()
            return _page("catalogs", [{"name": n} for n in shown], query)
        if names[0] not in self._state.catalogs:
            return _error(404, "CATALOG_NOT_FOUND", f"Catalog not found: {names[0]}")
        if "USE CATALOG" not in self.privileges:
            return DENIED
        return 200, {"name": names[0]}

    def _get_permissions(self, _: Any, __: Any, kind: str, name: str) -> Reply:
        """Answer what the user was granted; whose a thing is isn't told here."""
        of = {"catalog": {"USE CATALOG"}, "schema": {"USE SCHEMA", "CREATE TABLE"}}
        mine = sorted(self.privileges & of.get(kind, {"SELECT", "MODIFY"}))
        return 200, {"privilege_assignments": [{"principal": self.user, "privileges": mine}]}

    def _post_schemas(self, body: Any, _: Any) -> Reply:
        self._state.schemas.add((body["catalog_name"], body["name"]))
        return 200, {"name": body["name"], "catalog_name": body["catalog_name"]}

    def _get_schemas(self, _: Any, query: dict[str, str], *names: str) -> Reply:
        if names:
            parent, _dot, name = names[0].partition(".")
            if (parent, name) not in self._state.schemas:
                return _error(404, "SCHEMA_NOT_FOUND", f"Schema not found: {names[0]}")
            if not self.may_use():
                return DENIED
            return 200, {"name": name, "catalog_name": parent}
        catalog = query["catalog_name"]
        found = [schema for parent, schema in self._state.schemas if parent == catalog]
        if not self.privileges >= {"USE CATALOG", "USE SCHEMA"}:
            # Not even to its owner.
            found = []
        return _page("schemas", [{"name": n, "catalog_name": catalog} for n in found], query)

    def _post_tables(self, body: Any, _: Any) -> Reply:
        parent = body["catalog_name"], body["schema_name"]
        name, place = _full_name(body), body["storage_location"]
        if parent[0] not in self._state.catalogs:
            return _error(404, "CATALOG_NOT_FOUND", f"Catalog not found: {parent[0]}")
        if parent not in self._state.schemas:
            return _error(404, "SCHEMA_NOT_FOUND", f"Schema not found: {'.'.join(parent)}")
        # What a place is, and what it contains, is looked at before who is allowed what; that
        # it is in something else is what nobody is allowed.
        taken = [] if self.racing else [table["storage_location"] for table in self._state.tables]
        if (scheme := place.partition(":")[0]) not in _SCHEMES:
            return _error(400, "INVALID_ARGUMENT", f"Unsupported URI scheme: {scheme}")
        if any(other.startswith(f"{place}/") for other in [*taken, *self.volumes]):
            what = f"Input path '{place}' overlaps with other entities."
            return _error(403, "PERMISSION_DENIED", what)
        if not self.may_create():
            return DENIED
        if any(f"{place}/".startswith(f"{other}/") for other in [*taken, *self.volumes]):
            return DENIED
        if not _NAME.fullmatch(body["name"]):
            what = "a period, space, forward-slash, or control characters"
            return _error(400, "INVALID_ARGUMENT", f"Name cannot contain {what}")
        if self._state.named(name) and not self.racing:
            return _error(400, "TABLE_ALREADY_EXISTS", f"Table already exists: {name}")
        if scheme != "file" and place.count("/") < 3:
            what = "External table storage location must include a non-empty path prefix"
            return _error(400, "INVALID_ARGUMENT", f"{what}: {place}")
        if "/__unitystorage" in place:
            what = "contains managed storage prefix __unitystorage."
            return _error(400, "INVALID_ARGUMENT", f"Input path '{place}' {what}")
        assert (body["table_type"], body["data_source_format"]) == ("EXTERNAL", "DELTA")
        required = {"name", "type_text", "type_json", "type_name", "position", "nullable"}
        assert all(required <= column.keys() for column in body["columns"])
        for column in body["columns"]:
            if (wrong := _odd_field(json.loads(column["type_json"]), "type_json")) is not None:
                what = f"Invalid type_json for column {column['name']}: {wrong}"
                return _error(400, "INVALID_ARGUMENT", what)
        if self.slow:
            self._begun.append((len(self.asked) + 3, body))
            return 504, b""
        return 200, self.add(body)

    def add(self, table: dict[str, Any]) -> dict[str, Any]:
        """Keep a table as it is described, and return it with its id."""
        made = {**table, "table_id": str(uuid.uuid4())}
        self._state.tables.append(made)
        return made

    def create_schema(self, catalog: str, name: str) -> None:
        """Make a schema, as an administrator does."""
        self._state.schemas.add((catalog, name))

    def drop(self, name: str) -> None:
        """Drop a table, as its owner does."""
        (found,) = self._state.named(name)
        self._state.tables.remove(found)

    def rename(self, name: str, new_name: str) -> None:
        """Give a table another name in the same schema; its id stays."""
        (found,) = self._state.named(name)
        found["name"] = new_name

    def _get_tables(self, _: Any, query: dict[str, str], *names: str) -> Reply:
        if names:
            if names[0].count(".") != 2:
                return _error(400, "INVALID_ARGUMENT", f"Invalid table name: {names[0]}")
            return self._one(names[0], lambda found: (200, found) if self.may_see() else DENIED)
        parent = query["catalog_name"], query["schema_name"]
        if parent not in self._state.schemas:
            return _error(404, "SCHEMA_NOT_FOUND", f"Schema not found: {'.'.join(parent)}")
        found = [t for t in self._state.tables if (t["catalog_name"], t["schema_name"]) == parent]
        found = found if self.may_see() else []
        return _page("tables", found, query)

    def _delete_tables(self, _: Any, __: Any, name: str) -> Reply:
        def delete(found: dict[str, Any]) -> Reply:
            if not self.may_drop():
                return DENIED
            self.forget(found)
            return 200, b"200 OK"

        self.delta.before_change("delete")
        if name.count(".") != 2:
            return _error(400, "INVALID_ARGUMENT", f"Invalid table name: {name}")
        return self._one(name, delete)

    def has_catalog(self, name: str) -> bool:
        """Tell whether there is a catalog."""
        return name in self._state.catalogs

    def has_schema(self, catalog: str, name: str) -> bool:
        """Tell whether there is a schema."""
        return (catalog, name) in self._state.schemas

    def tables_named(self, name: str) -> list[dict[str, Any]]:
        """Return the tables of one full name."""
        return self._state.named(name)

    def keep(self, table: dict[str, Any]) -> None:
        """Keep a table that has its id."""
        self._state.tables.append(table)

    def forget(self, table: dict[str, Any]) -> None:
        """Delete a table."""
        self._state.tables.remove(table)

    def may_use(self) -> bool:
        """Tell whether the user may use a schema, as its owner or by a privilege."""
        has = self.privileges
        return "USE CATALOG" in has and bool(has & {"USE SCHEMA", "SCHEMA OWNER"})

    def may_create(self) -> bool:
        """Tell whether the user may create a table in a schema."""
        has = self.privileges
        return self.may_use() and bool(
            {"USE SCHEMA", "CREATE TABLE"} <= has or "SCHEMA OWNER" in has
        )

    def may_see(self) -> bool:
        """Tell whether the user may look at a table."""
        mine = {"OWNER", "SELECT", "MODIFY", "SCHEMA OWNER"}
        return self.may_use() and bool(self.privileges & mine)

    def may_commit(self) -> bool:
        """Tell whether the user may change a managed table; to own the schema isn't enough."""
        return self.may_use() and bool(self.privileges & {"OWNER", "MODIFY"})

    def may_drop(self) -> bool:
        """Tell whether the user may drop a table."""
        return self.may_use() and bool(self.privileges & {"OWNER", "SCHEMA OWNER"})

    def may_open(self, operation: str) -> bool:
        """Tell whether the user may open a table's files; to own the schema isn't enough."""
        needed = {"SELECT"} if operation == "READ" else {"SELECT", "MODIFY"}
        return self.may_use() and ("OWNER" in self.privileges or needed <= self.privileges)

    def _one(self, name: str, answer: Callable[[dict[str, Any]], Reply]) -> Reply:
        found = self._state.named(name)
        if not found:
            return _error(404, "TABLE_NOT_FOUND", f"Table not found: {name}")
        if len(found) > 1:
            what = f"Query did not return a unique result: {len(found)} results were returned"
            return _error(500, "INTERNAL", what)
        return answer(found[0])

    def _post_temporary_table_credentials(self, body: Any, _: Any) -> Reply:
        try:
            uuid.UUID(body["table_id"])
        except ValueError:
            return _error(400, "INVALID_ARGUMENT", f"Invalid UUID string: {body['table_id']}")
        places = {one: each.location for one, each in self.delta.staging.items()}
        tables = {table["table_id"]: table["storage_location"] for table in self._state.tables}
        place = (places | tables).get(body["table_id"])
        staged = self.delta.staging.get(body["table_id"])
        dropped = staged is not None and staged.used and body["table_id"] not in tables
        if dropped and not self.shows_dropped:
            return DENIED
        if place is None:
            what = "Neither table nor staging table found with id"
            return _error(404, "TABLE_NOT_FOUND", f"{what}: {body['table_id']}")
        if not self.may_open(body["operation"]) or body["operation"] in self.forbidden:
            return DENIED
        return self._credentials_for(place)

    def _post_temporary_path_credentials(self, body: Any, _: Any) -> Reply:
        operation = body["operation"].removeprefix("PATH_")
        inside = any(
            f"{body['url']}/".startswith(f"{table['storage_location']}/")
            for table in self._state.tables
        )
        if operation == "CREATE_TABLE":
            if inside or "CREATE EXTERNAL TABLE" not in self.privileges:
                return DENIED
            return self._credentials_for(body["url"])
        needed = {"READ FILES"} if operation == "READ" else {"READ FILES", "WRITE FILES"}
        if not (needed <= self.privileges or (inside and self.may_open(operation))):
            return DENIED
        return self._credentials_for(body["url"])

    def _credentials_for(self, place: str) -> Reply:
        """Return the credentials that the server has, for a place."""
        none = {"aws_temp_credentials": None, "azure_user_delegation_sas": None}
        none |= {"gcp_oauth_token": None, "expiration_time": None}
        status, given = self.credentials
        if status != 200:
            return status, given
        return 200, {**none, "url": place, **({} if place.startswith("file:") else given)}


def _error(status: int, code: str, message: str) -> Reply:
    details = [{"reason": code, "@type": "type.googleapis.com/google.rpc.ErrorInfo"}]
    return status, {"error_code": code, "details": details, "message": message}


DENIED = _error(403, "PERMISSION_DENIED", "Access denied.")


def _odd_field(field: Mapping[str, Any], path: str) -> str | None:
    """Return what the server doesn't take of a field of a schema, or ``None``."""
    for key in ("type", "nullable", "metadata"):
        if field.get(key) is None:
            return f"{path}.{key} is required."
    return _odd_type(field["type"], f"{path}.type")


def _odd_type(kind: Any, path: str) -> str | None:
    if isinstance(kind, str):
        known = PRIMITIVES.fullmatch(kind)
        return None if known else f"{path}: Unsupported Delta primitive type: {kind}"
    match kind["type"]:
        case "struct" if kind["fields"]:
            odd = (_odd_field(each, f"{path}.fields[{n}]") for n, each in enumerate(kind["fields"]))
            return next((each for each in odd if each is not None), None)
        case "struct":
            return f"{path}.fields must contain at least one field."
        case "array":
            return _odd_type(kind["elementType"], f"{path}.element-type")
        case "map":
            key = _odd_type(kind["keyType"], f"{path}.key-type")
            return key or _odd_type(kind["valueType"], f"{path}.value-type")
    return f"Failed to parse typeJson: {json.dumps(kind)}"


def _full_name(table: Mapping[str, Any]) -> str:
    return ".".join(table[key] for key in ("catalog_name", "schema_name", "name"))


def _page(what: str, found: list[dict[str, Any]], query: dict[str, str]) -> Reply:
    """One page of a listing, by name; its last name is the token for the next."""
    left = sorted((f for f in found if f["name"] > query.get("page_token", "")), key=_by_name)
    shown = left[:PAGE_SIZE]
    token = shown[-1]["name"] if len(left) > PAGE_SIZE else None
    return 200, {what: shown, "next_page_token": token}


def _by_name(found: dict[str, Any]) -> str:
    return str(found["name"])
