"""Unity Catalog's API for managed tables: what its answers mean."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from lakeferry.catalogs import name_changes, private_names
from lakeferry.catalogs.unity_delta import UnityDelta, UpdateRefusal
from lakeferry.catalogs.unity_delta_messages import SetProperties
from lakeferry.errors import (
    CatalogManaged,
    CatalogUnavailable,
    CommitConflict,
    Forbidden,
    InvalidInput,
    NotATable,
    TableNotFound,
    Unauthorized,
)
from tests.support.managed_tables import allocated as allocated_table
from tests.support.managed_tables import created, delta, managed_table
from tests.support.unity_client import connect
from tests.support.unity_delta_rules import Refused
from tests.support.unity_server import OurServer, UnityServer

UPDATES = [SetProperties(updates={"a": "1"})]
UNKNOWN = "00000000-0000-4000-8000-000000000000"
LATER_MS = 4_000_000_000_000


@pytest.fixture
def server(unity: UnityServer) -> OurServer:
    return unity.ours


def failed(status: int, kind: str) -> tuple[int, Any]:
    return status, {"error": {"message": "words", "type": kind, "code": status, "stack": None}}


@pytest.mark.parametrize(
    "answer",
    [
        (404, b"Status: 404\nDescription: Not Found\n"),
        (405, b"Status: 405\n"),
        (404, {"error_code": "ENDPOINT_NOT_FOUND", "message": "no API"}),
        (500, {"error_code": "INTERNAL", "message": "Couldn't unwrap service."}),
    ],
)
def test_a_server_without_the_api_is_named(
    unity: UnityServer, server: OurServer, answer: tuple[int, Any]
) -> None:
    server.next_replies.append(answer)
    with pytest.raises(CatalogManaged, match="has no API for managed tables"):
        delta(unity).find(f"{unity.schema}.t")


def test_a_server_of_before_is_one_without_the_api(unity: UnityServer, server: OurServer) -> None:
    server.without_delta = True
    with pytest.raises(CatalogManaged):
        delta(unity).create_staging_table(f"{unity.schema}.t")


def test_the_server_is_asked_once_what_it_can_do(unity: UnityServer, server: OurServer) -> None:
    api, catalog = delta(unity), unity.schema.partition(".")[0]
    for _ in range(2):
        api.create_staging_table(f"{unity.schema}.t")
    assert sum("/config" in each for each in server.asked) == 1
    assert api.config(catalog).protocol_version == "1.0"
    with pytest.raises(TableNotFound, match="has no nowhere"):
        api.config("nowhere")


def test_the_address_may_have_the_path_of_the_api(unity: UnityServer) -> None:
    api = UnityDelta(f"{unity.url}/api/2.1/unity-catalog/", unity.token)
    assert api.find(f"{unity.schema}.t") is None
    environment = unity.environment()
    assert UnityDelta.from_environment(environment).find(f"{unity.schema}.t") is None
    with pytest.raises(InvalidInput, match="UC_URL isn't set"):
        UnityDelta.from_environment({})


@pytest.mark.parametrize("token", [None, "wrong"])
def test_a_token_that_nobody_knows_is_refused(unity: UnityServer, token: str | None) -> None:
    if unity.token is None:
        pytest.skip("the real server asks nobody for a token")
    with pytest.raises(Unauthorized, match="NotAuthorizedException") as refused:
        delta(replace(unity, token=token)).find(f"{unity.schema}.t")
    assert "UC_TOKEN" in str(refused.value.remedy)


@pytest.mark.parametrize(
    ("lost", "call", "needed"),
    [
        (
            "CREATE TABLE",
            lambda api, name, _: api.create_staging_table(f"{name}_2"),
            "CREATE TABLE",
        ),
        ("USE SCHEMA", lambda api, name, _: api.find(name), "USE SCHEMA"),
        ("USE CATALOG", lambda api, name, _: api.find(name), "USE CATALOG"),
        ("OWNER", lambda api, name, table_id: api.update(name, table_id, UPDATES), "MODIFY"),
        ("OWNER", lambda api, name, _: api.issued.for_table(name), "SELECT"),
        ("CREATE TABLE", lambda api, name, i: api.rename(name, f"{name}_2", i), "CREATE TABLE"),
        ("OWNER", lambda api, *_: api.issued.for_path("s3://b/x"), "READ FILES"),
    ],
    ids=["staging", "schema", "catalog", "update", "credentials", "rename", "path"],
)
def test_a_refusal_says_which_privilege_is_needed(
    unity: UnityServer,
    server: OurServer,
    lost: str,
    call: Callable[[UnityDelta, str, str], object],
    needed: str,
) -> None:
    table = managed_table(unity, history=1)
    server.privileges = {*server.privileges, "SELECT"} - {lost}
    if needed == "SELECT":
        server.privileges.discard("SELECT")
    with pytest.raises(Forbidden) as refused:
        call(delta(unity), table.name, table.staging.table_id)
    assert needed in str(refused.value.remedy)


def test_only_who_owns_a_table_drops_it(unity: UnityServer, server: OurServer) -> None:
    table = managed_table(unity, history=1)
    server.privileges = {"USE CATALOG", "USE SCHEMA", "SELECT"}
    with pytest.raises(Forbidden, match=f"drop {table.name}"):
        table.api.delete(table.name, table.staging.table_id)


def test_a_staging_table_belongs_to_who_allocated_it(unity: UnityServer, server: OurServer) -> None:
    table = allocated_table(unity)
    server.delta.principal = "bob@example.com"
    with pytest.raises(Forbidden) as refused:
        created(table)
    assert "the user who started the move" in str(refused.value.remedy)
    with pytest.raises(Forbidden):
        table.api.issued.for_staging_table(table.staging.table_id)
    with pytest.raises(TableNotFound):
        table.api.issued.for_staging_table(UNKNOWN)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (failed(409, "CommitVersionConflictException"), UpdateRefusal.CONFLICT),
        (failed(429, "ResourceExhaustedException"), UpdateRefusal.FULL),
        (failed(409, "UpdateRequirementConflictException"), UpdateRefusal.OTHER_TABLE),
        (failed(404, "NoSuchTableException"), UpdateRefusal.OTHER_TABLE),
        (failed(404, "NoSuchSchemaException"), UpdateRefusal.OTHER_TABLE),
    ],
)
def test_the_type_of_an_error_decides(
    unity: UnityServer, server: OurServer, answer: tuple[int, Any], expected: UpdateRefusal
) -> None:
    server.next_replies.append(answer)
    assert delta(unity).update(f"{unity.schema}.t", UNKNOWN, UPDATES) is expected
    assert len(server.asked) == 3


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (failed(500, "CommitStateUnknownException"), CatalogUnavailable),
        (failed(500, "InternalServerErrorException"), CatalogUnavailable),
        (failed(409, "SomethingNewException"), CatalogUnavailable),
        (failed(400, "InvalidParameterValueException"), InvalidInput),
        (failed(400, "UnsupportedTableFormatException"), NotATable),
        ((500, b"<html>"), CatalogUnavailable),
        ((200, {}), CatalogUnavailable),
    ],
)
def test_what_is_no_answer_to_a_commit_is_raised(
    unity: UnityServer, server: OurServer, answer: tuple[int, Any], error: type[Exception]
) -> None:
    server.next_replies.append(answer)
    with pytest.raises(error):
        delta(unity).update(f"{unity.schema}.t", UNKNOWN, UPDATES)


def test_a_busy_server_is_asked_again_and_a_full_table_is_not(
    unity: UnityServer, server: OurServer
) -> None:
    table = managed_table(unity, history=1)
    server.next_replies.append(failed(429, "TooManyRequestsException"))
    server.next_replies.append((503, b""))
    asked = len(server.asked)
    found = table.api.update(table.name, table.staging.table_id, UPDATES)
    assert not isinstance(found, UpdateRefusal)
    assert (found.metadata.properties or {})["a"] == "1"
    assert len(server.asked) == asked + 3


def test_credentials_are_for_reading_where_writing_is_not_allowed(
    unity: UnityServer, server: OurServer
) -> None:
    server.storage_root = "s3://lake/uc"
    server.credentials = (
        200,
        {"aws_temp_credentials": {"access_key_id": "s3cret"}, **_until(LATER_MS)},
    )
    staging = delta(unity).create_staging_table(f"{unity.schema}.t")
    (one,) = staging.storage_credentials or ()
    assert one.config == {"s3.access-key-id": "s3cret"}
    assert one.expiration_time_ms == LATER_MS
    assert "s3cret" not in repr(staging)
    server.add(
        {
            "catalog_name": unity.schema.partition(".")[0],
            "schema_name": "tests",
            "name": "r",
            "storage_location": "s3://lake/r",
            "table_type": "EXTERNAL",
        }
    )
    server.forbidden = {"READ_WRITE"}
    (one,) = delta(unity).issued.for_table(f"{unity.schema}.r")
    assert one.operation == "READ"
    # A server that isn't configured for the place issues none.
    server.credentials = (400, {})
    assert delta(unity).issued.for_table(f"{unity.schema}.r") == ()


@pytest.mark.parametrize(
    ("cloud", "fields", "config"),
    [
        ("azure_user_delegation_sas", {"sas_token": "sig"}, {"azure.sas-token": "sig"}),
        ("gcp_oauth_token", {"oauth_token": "tok"}, {"gcs.oauth-token": "tok"}),
        (
            "aws_temp_credentials",
            {"access_key_id": "k", "secret_access_key": "s", "session_token": ""},
            {"s3.access-key-id": "k", "s3.secret-access-key": "s", "s3.session-token": ""},
        ),
    ],
)
def test_credentials_for_a_place(
    unity: UnityServer,
    server: OurServer,
    cloud: str,
    fields: dict[str, str],
    config: dict[str, str],
) -> None:
    server.privileges |= {"READ FILES", "WRITE FILES"}
    server.credentials = (200, {cloud: fields, **_until(LATER_MS)})
    (one,) = delta(unity).issued.for_path("s3://lake/x")
    assert (one.config, one.expiration_time_ms) == (config, LATER_MS)
    server.credentials = (400, {"error_code": "FAILED_PRECONDITION", "message": "no bucket"})
    assert delta(unity).issued.for_path("s3://lake/x") == ()


def test_a_server_without_the_older_call_has_the_newer_one(
    unity: UnityServer, server: OurServer
) -> None:
    entry = {"prefix": "s3://lake/x", "operation": "READ", "config": {"s3.access-key-id": "k"}}
    server.next_replies.append((404, b"Status: 404\n"))
    server.next_replies.append((200, {"storage-credentials": [entry]}))
    (one,) = delta(unity).issued.for_path("s3://lake/x", write=False)
    assert one.config == {"s3.access-key-id": "k"}


def test_a_listing_that_is_too_long_proves_nothing(unity: UnityServer) -> None:
    table = managed_table(unity, history=1)
    far = delta(unity, listing_requests=1)
    assert far.find_name(table.staging.table_id, f"{unity.schema}.former") == table.name
    with pytest.raises(CatalogUnavailable, match="isn't among the first"):
        far.find_name(UNKNOWN, f"{unity.schema}.former")
    assert delta(unity).find_name(UNKNOWN, f"{unity.schema}.former") is None


def test_an_answer_that_is_lost_is_settled_by_the_id(unity: UnityServer, server: OurServer) -> None:
    table = allocated_table(unity, history=1)
    server.lost_answers = 1
    assert created(table).catalog().head().table_id == table.staging.table_id
    # Nothing was created: the request never got there.
    other = allocated_table(unity, history=1)
    server.next_replies.append(None)
    with pytest.raises(CatalogUnavailable):
        created(other)


class Swap:
    """Two tables, of which the second gets the name of the first just before a change.

    ``later`` is what happens before the next one.
    """

    def __init__(self, unity: UnityServer, call: str) -> None:
        self.table, self.stranger = managed_table(unity, history=1), managed_table(unity, history=1)
        self.schema, self.delta, self._call = unity.schema, unity.ours.delta, call
        self.later: Callable[[str], object] = lambda _: None
        self._mine, self._theirs = (
            unity.ours.tables_named(each.name)[0] for each in (self.table, self.stranger)
        )
        self.former = self._mine["name"]
        self.delta.before_change = self._swap

    def _swap(self, call: str) -> None:
        if call == self._call:
            self.delta.before_change = self.later
            if self._mine["name"] == self.former:
                self._mine["name"] = "kept"
            self._theirs["name"] = self.former

    @property
    def names(self) -> tuple[str, str]:
        """What the two tables are called now."""
        return self._mine["name"], self._theirs["name"]

    def rename(self) -> None:
        table = self.table
        table.api.rename(table.name, f"{self.schema}.wanted", table.staging.table_id)

    def delete(self) -> bool:
        return self.table.api.delete(self.table.name, self.table.staging.table_id)


def test_a_table_that_was_renamed_by_mistake_gets_its_name_back(unity: UnityServer) -> None:
    swap = Swap(unity, "rename")
    with pytest.raises(CommitConflict, match="now belongs to another table") as other:
        swap.rename()
    assert swap.names == ("kept", swap.former)
    assert f"catalog show unity:{swap.table.staging.table_id}" in (other.value.remedy or "")
    # Who looks first doesn't ask for it.
    asked = len(unity.ours.asked)
    with pytest.raises(CommitConflict, match="now belongs to another table"):
        swap.rename()
    assert not [each for each in unity.ours.asked[asked:] if each.startswith("POST")]


def test_a_table_that_cannot_get_its_name_back_is_named(unity: UnityServer) -> None:
    swap = Swap(unity, "rename")
    third = unity.ours.tables_named(managed_table(unity, history=1).name)[0]
    swap.later = lambda _: third.update(name=swap.former)
    with pytest.raises(CommitConflict, match=f"was renamed to {unity.schema}.wanted") as other:
        swap.rename()
    assert swap.names == ("kept", "wanted")
    assert f"unity:{swap.stranger.staging.table_id}" in (other.value.remedy or "")
    assert other.value.fields["table_id"] == swap.stranger.staging.table_id


def test_a_drop_never_hits_another_table(unity: UnityServer) -> None:
    swap = Swap(unity, "rename")
    with pytest.raises(CommitConflict, match="now belongs to another table"):
        swap.delete()
    assert swap.names == ("kept", swap.former)
    assert [each.catalog().head().latest_version for each in (swap.table, swap.stranger)] == [2, 2]

    # By its new name nobody can give away, it is dropped.
    late = Swap(unity, "delete")
    assert late.delete()
    assert late.table.api.find_name(late.table.staging.table_id, late.table.name) is None
    assert late.stranger.catalog().head().latest_version == 2


def test_who_may_not_rename_drops_by_name_and_is_told_what_was_hit(
    unity: UnityServer, server: OurServer
) -> None:
    table = managed_table(unity, history=1)
    server.privileges.discard("CREATE TABLE")
    assert table.api.delete(table.name, table.staging.table_id)
    server.privileges.add("CREATE TABLE")
    swap = Swap(unity, "delete")
    server.privileges.discard("CREATE TABLE")
    with pytest.raises(
        CommitConflict, match=f"wrong table was dropped: {swap.table.name}"
    ) as other:
        swap.delete()
    assert f"{unity.schema}.kept" in (other.value.cause or "")
    assert swap.table.catalog().head().latest_version == 2
    with pytest.raises(TableNotFound):
        swap.stranger.catalog().head()


@pytest.mark.parametrize("kind", ["PermissionDeniedException", "InternalServerErrorException"])
def test_a_drop_that_is_refused_leaves_the_name(
    unity: UnityServer, server: OurServer, kind: str
) -> None:
    table = managed_table(unity, history=1)

    def refuse(call: str) -> None:
        if call == "delete":
            raise Refused(403 if kind.startswith("Perm") else 500, kind, "words")

    server.delta.before_change = refuse
    with pytest.raises((Forbidden, CatalogUnavailable)):
        table.api.delete(table.name, table.staging.table_id)
    assert table.api.load(table.name).metadata.table_uuid == table.staging.table_id


def test_a_drop_whose_answer_is_lost_is_looked_up(unity: UnityServer, server: OurServer) -> None:
    table = managed_table(unity, history=1)

    def lose(call: str) -> None:
        server.lost_answers = int(call == "delete")

    server.delta.before_change = lose
    assert table.api.delete(table.name, table.staging.table_id)
    assert table.api.find_name(table.staging.table_id, table.name) is None


@pytest.mark.parametrize("call", ["rename", "delete"])
def test_a_drop_that_the_server_leaves_half_done_is_named_and_found(
    unity: UnityServer, server: OurServer, call: str
) -> None:
    table, other = managed_table(unity, history=1), managed_table(unity, history=1)
    kept = server.tables_named(table.name)[0]
    short = kept["name"]

    def expire(asked: str) -> None:
        # From now on the token is refused; a rename is still made, a drop isn't.
        if asked == call:
            server.next_replies.extend([failed(401, "NotAuthorizedException")] * 20)
            if call == "delete":
                raise Refused(401, "NotAuthorizedException", "words")

    server.delta.before_change = expire
    with pytest.raises(Unauthorized) as left:
        table.api.delete(table.name, table.staging.table_id)
    server.next_replies.clear()
    server.delta.before_change = lambda _: None
    assert kept["name"] != short
    assert f"{unity.schema}.{kept['name']}" in (left.value.remedy or "")

    catalog = connect(unity)
    found = catalog.half_removed(table.name)
    assert found is not None
    assert (found.table_id, found.managed) == (table.staging.table_id, True)
    assert catalog.half_removed(other.name) is None
    # The same command ends it.
    wanted, environment = f"unity:{table.name}", unity.environment()
    again = name_changes.remove_from_catalog(wanted, deletes_files=True, environment=environment)
    assert (again.changed, again.name) == (True, f"unity:{found.name}")
    assert not name_changes.remove_from_catalog(wanted, environment=environment).changed


@pytest.mark.parametrize("length", [1, 206, 207, 255])
def test_a_table_that_was_to_be_dropped_is_found_by_its_name_of_any_length(length: int) -> None:
    table, other = "t" * length, f"{'t' * (length - 1)}u"
    private = private_names.to_drop(table)
    assert len(private) <= 255
    assert private_names.is_of(private, table)
    assert not private_names.is_of(private, other)
    assert private.startswith(private_names.DROP_LEAD)


def _until(expires_ms: int) -> dict[str, int]:
    return {"expiration_time": expires_ms}
