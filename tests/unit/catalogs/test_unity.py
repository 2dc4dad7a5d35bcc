"""Unity Catalog over REST: what its answers mean, and what comes of no answer."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lakeferry.catalogs import CatalogTable
from lakeferry.catalogs.unity import UnityCatalog
from lakeferry.errors import (
    CatalogUnavailable,
    Forbidden,
    InvalidInput,
    NotATable,
    Unauthorized,
)
from lakeferry.storage import open_store, rest_request
from tests.support.unity_client import connect, registered
from tests.support.unity_server import UnityServer

UNKNOWN_ID = "00000000-0000-4000-8000-000000000000"


@pytest.fixture
def catalog(unity: UnityServer) -> UnityCatalog:
    _ = unity.ours
    return connect(unity)


@pytest.mark.parametrize("suffix", ["", "/", "/api/2.1/unity-catalog", "/api/2.1/unity-catalog/"])
def test_the_address_may_have_the_path_of_the_api(unity: UnityServer, suffix: str) -> None:
    catalog = UnityCatalog(f"{unity.url}{suffix}", unity.token)
    assert catalog.find(f"{unity.schema}.t") is None


@pytest.mark.parametrize(
    "url",
    [
        "",
        "host:8080",
        "ftp://host",
        "file:///etc",
        "https://",
        "https://user:hunter2@host",
        "https://host?token=hunter2",
        "https://host:port",
        "https://ho\nst",
    ],
)
def test_addresses_that_cannot_work_are_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(InvalidInput, match="UC_URL") as refused:
        UnityCatalog.from_environment({"UC_URL": url})
    assert refused.value.remedy
    assert "hunter2" not in str(refused.value.as_document())


def test_a_token_that_cannot_be_sent_is_refused_and_not_repeated() -> None:
    for token in ("hunter2\nX-Evil: 1", "hunter2ü"):
        with pytest.raises(InvalidInput, match="UC_TOKEN") as refused:
            UnityCatalog("https://host", token)
        assert "hunter2" not in str(refused.value.as_document())


def test_no_token_and_a_wrong_one_are_unauthorized(unity: UnityServer) -> None:
    server = unity.ours
    for token in (None, "hunter2"):
        with pytest.raises(Unauthorized, match="UNAUTHENTICATED") as refused:
            UnityCatalog(server.url, token).find(f"{unity.schema}.t")
        assert "UC_TOKEN" in (refused.value.remedy or "")
        assert "hunter2" not in str(refused.value.as_document())


def test_403_is_forbidden(unity: UnityServer, catalog: UnityCatalog) -> None:
    unity.ours.next_replies.append((403, {"error_code": "PERMISSION_DENIED", "message": "no"}))
    with pytest.raises(Forbidden, match="PERMISSION_DENIED: no"):
        catalog.find(f"{unity.schema}.t")


@pytest.mark.parametrize(
    "reply",
    [
        (500, {"error_code": "INTERNAL", "message": "oh"}),
        (500, b"<html>oh</html>"),
        (501, {"error_code": "UNIMPLEMENTED"}),
        (400, {"error_code": "INVALID_ARGUMENT"}),
        (302, b""),
        (404, b"<html>no such page</html>"),
        (404, b""),
        (404, []),
        (200, b"<html>welcome</html>"),
        (200, b"[1]"),
        (200, b"{"),
        (200, b""),
        (200, {}),
        (200, {"table_id": 1}),
    ],
    ids=str,
)
def test_what_is_no_answer_is_unavailable_and_never_no_such_table(
    unity: UnityServer, catalog: UnityCatalog, reply: tuple[int, Any]
) -> None:
    unity.ours.next_replies.append(reply)
    with pytest.raises(CatalogUnavailable) as refused:
        catalog.find(f"{unity.schema}.t")
    assert refused.value.cause
    assert refused.value.remedy
    assert unity.ours.asked[-1] == f"GET /tables/{unity.schema}.t"


def test_a_redirect_gets_no_token(unity: UnityServer, catalog: UnityCatalog) -> None:
    unity.ours.next_replies.append((307, b""))
    with pytest.raises(CatalogUnavailable, match="status 307"):
        catalog.find(f"{unity.schema}.t")
    assert not any("elsewhere" in asked for asked in unity.ours.asked)


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_a_service_that_is_busy_is_asked_again_a_few_times(unity: UnityServer, status: int) -> None:
    pauses: list[float] = []
    catalog = connect(unity, pause=pauses.append)
    busy = (status, b"later")
    unity.ours.next_replies.extend([busy] * len(rest_request.PAUSES_S))
    assert catalog.find(f"{unity.schema}.t") is None
    assert pauses == list(rest_request.PAUSES_S)
    unity.ours.next_replies.extend([busy] * (len(rest_request.PAUSES_S) + 1))
    with pytest.raises(CatalogUnavailable, match=f"status {status}"):
        catalog.find(f"{unity.schema}.t")
    assert not unity.ours.next_replies


def test_a_server_that_is_down_is_unavailable(unity: UnityServer) -> None:
    unity.ours.go_down()
    pauses: list[float] = []
    with pytest.raises(CatalogUnavailable, match="refused") as refused:
        connect(unity, pause=pauses.append).find(f"{unity.schema}.t")
    assert pauses == list(rest_request.PAUSES_S)
    assert "UC_URL" in (refused.value.remedy or "")


def test_a_server_that_says_nothing_is_given_up(unity: UnityServer) -> None:
    unity.ours.fall_silent()
    with pytest.raises(CatalogUnavailable, match=r"within 0\.2 seconds"):
        connect(unity, timeout_s=0.2).find(f"{unity.schema}.t")


def test_an_answer_that_trickles_in_for_too_long_is_given_up(
    unity: UnityServer, catalog: UnityCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = iter([0.0, rest_request.TIMEOUT_S + 1])
    monkeypatch.setattr(rest_request, "monotonic", lambda: next(times))
    with pytest.raises(CatalogUnavailable, match="within 30 seconds"):
        catalog.find(f"{unity.schema}.t")


def test_an_answer_without_end_is_given_up(
    unity: UnityServer, catalog: UnityCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rest_request, "LARGEST_ANSWER_BYTES", 1000)
    unity.ours.next_replies.append((200, json.dumps({"padding": "x" * 1000}).encode()))
    with pytest.raises(CatalogUnavailable, match="more than 1,000 bytes"):
        catalog.find(f"{unity.schema}.t")


def test_what_is_no_delta_table_is_refused(unity: UnityServer, catalog: UnityCatalog) -> None:
    parts = {"catalog_name": "a", "schema_name": "b", "name": "c", "table_id": UNKNOWN_ID}
    for more in (
        {"data_source_format": "CSV", "storage_location": "file:///x"},
        {"table_type": "VIEW"},
    ):
        unity.ours.next_replies.append((200, {**parts, **more}))
        with pytest.raises(NotATable, match=r"unity:a\.b\.c"):
            catalog.find("a.b.c")


@pytest.mark.parametrize(
    ("told", "location"),
    [
        ("s3a://bucket/t/", "s3://bucket/t"),
        ("file:/tmp/t", "file:///tmp/t"),
        ("/tmp/t", "file:///tmp/t"),
        ("gs://bucket/t", "gs://bucket/t"),
        (
            "abfss://c@account.dfs.core.windows.net/t",
            "abfss://c@account.dfs.core.windows.net/t",
        ),
    ],
)
def test_locations_come_back_in_our_spelling(
    unity: UnityServer, catalog: UnityCatalog, told: str, location: str
) -> None:
    parts = {"catalog_name": "a", "schema_name": "b", "name": "c", "table_id": UNKNOWN_ID}
    info = {**parts, "data_source_format": "DELTA", "storage_location": told}
    unity.ours.next_replies.append((200, info))
    assert catalog.get("a.b.c").location == location


def test_a_place_that_cannot_be_opened_is_unavailable(
    unity: UnityServer, catalog: UnityCatalog
) -> None:
    parts = {"catalog_name": "a", "schema_name": "b", "name": "c", "table_id": UNKNOWN_ID}
    for told in ("dbfs:/x", "relative/path"):
        info = {**parts, "data_source_format": "DELTA", "storage_location": told}
        unity.ours.next_replies.append((200, info))
        with pytest.raises(CatalogUnavailable, match="can't be opened"):
            catalog.find("a.b.c")


def test_an_id_is_located_in_one_request(unity: UnityServer) -> None:
    made = registered(unity)
    unity.ours.asked.clear()
    assert connect(unity).locate_id(made.table_id) == "s3://bucket/t"
    assert unity.ours.asked == ["POST /temporary-table-credentials"]


def test_an_id_is_found_by_its_name_on_any_page_and_then_known(unity: UnityServer) -> None:
    for index in range(5):
        unity.call("POST", "/catalogs", {"name": f"a{index}"})
        unity.call("POST", "/schemas", {"name": f"s{index}", "catalog_name": "a3"})
        registered(unity, f"s3://bucket/{index}", f"t{index}")
    made = registered(unity, "s3://bucket/z", "z")
    catalog = connect(unity)
    assert catalog.find_id(made.table_id) == made
    unity.ours.asked.clear()
    assert catalog.find_id(made.table_id) == made
    assert unity.ours.asked == [f"GET /tables/{made.name}"]


def test_a_table_that_no_listing_shows_goes_by_its_id(unity: UnityServer) -> None:
    # A real server knows no credentials for a bucket, and then it doesn't tell the place.
    made = registered(unity, "/somewhere/t")
    found = connect(unity, listing_requests=1).find_id(made.table_id)
    assert found == CatalogTable(made.table_id, made.location, made.table_id, made.metastore_id)


@pytest.mark.parametrize("told", ["forbidden", "precondition"])
def test_where_credentials_do_not_tell_the_place_the_listing_does(
    unity: UnityServer, told: str
) -> None:
    made = registered(unity)
    if told == "forbidden":
        unity.ours.forbidden = {"READ", "READ_WRITE"}
    else:
        unity.ours.credentials = (400, {"error_code": "FAILED_PRECONDITION", "message": "none"})
    assert connect(unity).locate_id(made.table_id) == made.location
    assert connect(unity).find_id(made.table_id) == made
    assert connect(unity).access(made).options == {}
    # A table that is there, and that nothing shows, isn't one that isn't there.
    with pytest.raises((Forbidden, CatalogUnavailable)):
        connect(unity, listing_requests=1).find_id(made.table_id)


def test_another_metastore_is_unavailable_and_not_missing(
    unity: UnityServer, catalog: UnityCatalog
) -> None:
    made = registered(unity)
    assert made.metastore_id == unity.ours.metastore_id
    assert catalog.locate_id(made.table_id, made.metastore_id) == made.location
    for ask in (catalog.find_id, catalog.locate_id):
        with pytest.raises(CatalogUnavailable, match="another metastore"):
            ask(made.table_id, UNKNOWN_ID)


def test_a_table_that_may_not_be_seen_is_named_with_the_privileges_that_it_takes(
    unity: UnityServer, catalog: UnityCatalog
) -> None:
    made = registered(unity)
    unity.ours.privileges.discard("OWNER")
    with pytest.raises(Forbidden, match=f"see the table {made.name}") as refused:
        catalog.find(made.name)
    for privilege in ("USE CATALOG", "USE SCHEMA", f"SELECT on {made.name}"):
        assert privilege in (refused.value.remedy or "")
    unity.ours.privileges.add("SELECT")
    assert catalog.find(made.name) == made


AWS = {"access_key_id": "key", "secret_access_key": "secret", "session_token": "session"}


@pytest.mark.parametrize(
    ("location", "given", "options"),
    [
        (
            "s3://bucket/t",
            {"aws_temp_credentials": AWS},
            {f"aws_{name}": value for name, value in AWS.items()},
        ),
        (
            "abfss://c@account.dfs.core.windows.net/t",
            {"azure_user_delegation_sas": {"sas_token": "sv=2026&sig=x"}},
            {"azure_storage_sas_token": "sv=2026&sig=x"},
        ),
        (
            "gs://bucket/t",
            {"gcp_oauth_token": {"oauth_token": "token"}},
            {"google_bearer_token": "token"},
        ),
        ("s3://bucket/t", {}, {}),
        ("file:///t", {"aws_temp_credentials": AWS}, {}),
    ],
)
def test_credentials_are_options_that_our_stores_take(
    unity: UnityServer, location: str, given: dict[str, Any], options: dict[str, str]
) -> None:
    made = registered(unity, location)
    unity.ours.credentials = (200, given)
    assert connect(unity).access(made).options == options
    assert open_store(made.location, options).uri == location


def test_whoever_may_only_read_gets_credentials_to_read(unity: UnityServer) -> None:
    made = registered(unity)
    unity.ours.credentials = (200, {"aws_temp_credentials": AWS})
    unity.ours.forbidden = {"READ_WRITE"}
    assert connect(unity).access(made).options["aws_access_key_id"] == "key"


def test_a_listing_that_is_too_long_is_not_taken_for_all(unity: UnityServer) -> None:
    assert unity.ours is unity.server, "its pages are short"
    for number in range(5):
        registered(unity, f"s3://lake/{number}", f"t{number}")
    with pytest.raises(CatalogUnavailable, match="more tables than are listed"):
        connect(unity, listing_requests=2).tables(f"{unity.schema}.")
    assert len(connect(unity).tables(f"{unity.schema}.")) == 5
