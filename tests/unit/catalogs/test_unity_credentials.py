"""Sources of credentials: what they ask, what travels with them, and what nobody is shown."""

from __future__ import annotations

import pickle

import pytest

from lakeferry.catalogs import CatalogAccess, CatalogTable, open_catalog
from lakeferry.catalogs.catalog import NO_ACCESS
from lakeferry.catalogs.fitting_credentials import issued_for
from lakeferry.catalogs.places import Places
from lakeferry.catalogs.unity_credentials import (
    PathCredentialSource,
    StagingCredentialSource,
    TableCredentialSource,
)
from lakeferry.catalogs.unity_delta_messages import StorageCredential
from lakeferry.errors import Forbidden, Unauthorized
from lakeferry.storage.credential_renewal import VendedCredentials
from tests.support.managed_tables import delta
from tests.support.unity_server import OurServer, UnityServer

PLACE = "s3://lake/r"
LATER_MS = 4_000_000_000_000
KEYS = {"access_key_id": "k", "secret_access_key": "s3cret", "session_token": ""}
DENIED = (403, {"error": {"type": "PermissionDeniedException", "message": "Access denied."}})
OPTIONS = {"aws_access_key_id": "k", "aws_secret_access_key": "s3cret"}


@pytest.fixture
def server(unity: UnityServer) -> OurServer:
    unity.ours.credentials = (200, {"aws_temp_credentials": KEYS, "expiration_time": LATER_MS})
    return unity.ours


@pytest.fixture
def table_id(unity: UnityServer, server: OurServer) -> str:
    """A table called ``r``."""
    catalog, _, schema = unity.schema.partition(".")
    made = server.add(
        {
            "catalog_name": catalog,
            "schema_name": schema,
            "name": "r",
            "storage_location": PLACE,
            "table_type": "EXTERNAL",
        }
    )
    return str(made["table_id"])


def test_a_source_travels_without_the_token_of_the_environment(
    unity: UnityServer, table_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"{unity.schema}.r"
    source = TableCredentialSource(unity.url, PLACE, name, table_id)
    assert source == pickle.loads(pickle.dumps(source))
    assert hash(source) == hash(pickle.loads(pickle.dumps(source)))
    monkeypatch.delenv("UC_TOKEN", raising=False)
    with pytest.raises(Unauthorized):
        source()
    assert unity.token is not None
    monkeypatch.setenv("UC_TOKEN", unity.token)
    assert unity.token.encode() not in pickle.dumps(source)
    assert source() == VendedCredentials(OPTIONS, LATER_MS)


def test_a_token_that_was_given_travels_and_is_not_shown(
    unity: UnityServer, table_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UC_TOKEN", "somebody else's")
    name, token = f"{unity.schema}.r", unity.token
    source = TableCredentialSource(unity.url, PLACE, name, table_id, token=token)
    again = pickle.loads(pickle.dumps(source))
    assert again().options == OPTIONS
    assert str(token) not in repr(again)
    assert "s3cret" not in repr(again())


def test_a_renamed_table_is_found_by_its_id(
    unity: UnityServer, server: OurServer, table_id: str
) -> None:
    name = f"{unity.schema}.r"
    source = TableCredentialSource(unity.url, PLACE, name, table_id, token=unity.token)
    server.rename(name, "s")
    assert source().options == OPTIONS
    # Another table has the name now: its credentials are for another place.
    catalog, _, schema = unity.schema.partition(".")
    server.add(
        {
            "catalog_name": catalog,
            "schema_name": schema,
            "name": "r",
            "storage_location": "s3://lake/r2",
            "table_type": "EXTERNAL",
        }
    )
    assert source().options == OPTIONS
    # It may be one that we must not see.
    server.next_replies.extend([DENIED, DENIED])
    assert source().options == OPTIONS
    server.drop(f"{unity.schema}.s")
    with pytest.raises(Unauthorized, match=PLACE):
        source()


def test_a_staging_table_has_credentials(unity: UnityServer, server: OurServer) -> None:
    server.storage_root = "s3://lake/uc"
    staging = delta(unity).create_staging_table(f"{unity.schema}.t")
    source = StagingCredentialSource(
        unity.url, staging.location, staging.table_id, token=unity.token
    )
    assert source() == VendedCredentials(OPTIONS, LATER_MS)


def test_a_place_has_credentials(unity: UnityServer, server: OurServer) -> None:
    server.privileges |= {"READ FILES", "WRITE FILES"}
    source = PathCredentialSource(unity.url, "s3://lake/x", token=unity.token)
    assert source() == VendedCredentials(OPTIONS, LATER_MS)
    server.credentials = (200, {})
    with pytest.raises(Unauthorized, match="issues no credentials for s3://lake/x"):
        source()


@pytest.mark.parametrize(
    ("location", "key"),
    [
        ("s3://lake/a", "a"),
        ("s3://lake/a/b", "ab"),
        ("s3://lake/a/b/c", "ab"),
        ("s3://lake/ab", None),
        ("s3://other/a", None),
    ],
)
def test_the_longest_prefix_decides(location: str, key: str | None) -> None:
    entries = [
        StorageCredential(prefix="s3a://lake/a/", config={"s3.access-key-id": "a"}),
        StorageCredential(prefix="s3://lake/a/b", config={"s3.access-key-id": "ab", "new": "x"}),
    ]
    found = issued_for(location, entries)
    expected = None if key is None else VendedCredentials({"aws_access_key_id": key})
    assert found == expected


def test_who_may_only_create_a_table_gets_credentials_for_its_place(
    unity: UnityServer, server: OurServer, table_id: str
) -> None:
    server.privileges |= {"CREATE EXTERNAL TABLE"}
    assert PathCredentialSource(unity.url, "s3://lake/new", token=unity.token)() == (
        VendedCredentials(OPTIONS, LATER_MS)
    )
    server.privileges -= {"OWNER"}
    with pytest.raises(Forbidden, match="doesn't allow you to open") as refused:
        PathCredentialSource(unity.url, PLACE, token=unity.token)()
    assert "CREATE EXTERNAL TABLE" in (refused.value.remedy or "")


def test_an_external_table_has_credentials_that_are_renewed(
    unity: UnityServer, server: OurServer, table_id: str
) -> None:
    catalog = open_catalog("unity", unity.environment())
    table = CatalogTable(f"{unity.schema}.r", PLACE, table_id)
    access = catalog.access(table)
    assert access.options == OPTIONS
    assert access.renewal is not None
    assert access.renewal() == VendedCredentials(OPTIONS, LATER_MS)
    server.privileges = {"USE CATALOG", "USE SCHEMA", "SELECT"}
    assert access.renewal() == VendedCredentials(OPTIONS, LATER_MS)
    server.credentials = (200, {"aws_temp_credentials": KEYS})
    assert catalog.access(table) == CatalogAccess(OPTIONS)


def test_a_place_that_the_catalog_does_not_open_needs_credentials_of_our_own(
    unity: UnityServer, server: OurServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
    catalog = open_catalog("unity", unity.environment())
    assert catalog.place_access("file:///lake/new") == NO_ACCESS
    assert catalog.place_access("s3://lake/new/t1") == NO_ACCESS
    server.privileges |= {"CREATE EXTERNAL TABLE"}
    access = catalog.place_access("s3://lake/new/t2")
    assert access.is_fallback
    places = Places(environment={})
    places.grant("s3://lake/new/t2", access)
    assert places.granted("s3://lake/new/t2") == access
    own = Places({"aws_access_key_id": "k", "aws_secret_access_key": "s"}, environment={})
    own.grant("s3://lake/new/t2", access)
    assert own.granted("s3://lake/new/t2") == NO_ACCESS
    known = Places(environment={})
    known.grant("s3://lake/new/t2", CatalogAccess(OPTIONS))
    known.grant("s3://lake/new/t2", access)
    assert known.granted("s3://lake/new/t2") == CatalogAccess(OPTIONS)
