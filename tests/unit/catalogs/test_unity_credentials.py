"""Sources of credentials: what they ask, what travels with them, and what nobody is shown."""

from __future__ import annotations

import pickle

import pytest

from lakeferry.catalogs.unity_credentials import (
    PathCredentialSource,
    StagingCredentialSource,
    TableCredentialSource,
    issued_for,
)
from lakeferry.catalogs.unity_delta_messages import StorageCredential
from lakeferry.errors import Unauthorized
from lakeferry.storage.vended_credentials import VendedCredentials
from tests.support.managed_tables import delta
from tests.support.unity_server import OurServer, UnityServer

PLACE = "s3://lake/r"
LATER_MS = 4_000_000_000_000
KEYS = {"access_key_id": "k", "secret_access_key": "s3cret", "session_token": ""}
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
