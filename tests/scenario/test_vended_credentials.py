"""A store on a real S3 server, with credentials that Unity Catalog issues for a short while."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import lakeferry
from lakeferry.catalogs.unity_credentials import StagingCredentialSource
from lakeferry.errors import CatalogUnavailable, Unauthorized
from lakeferry.storage import StoreConfig, credential_renewal, open_config
from tests.support.history import Append, History
from tests.support.managed_tables import delta
from tests.support.moved_table import moved_table
from tests.support.servers import S3Bucket
from tests.support.unity_server import OurServer, UnityServer

LIFE_MS = 100_000


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Moves the clock that decides when credentials are renewed."""
    ahead_ms = 0

    def now_ms() -> int:
        return time.time_ns() // 1_000_000 + ahead_ms

    def move(by_ms: int) -> None:
        nonlocal ahead_ms
        ahead_ms += by_ms

    monkeypatch.setattr(credential_renewal, "_now_ms", now_ms)
    return move


@pytest.fixture
def server(unity: UnityServer, s3_bucket: S3Bucket, monkeypatch: pytest.MonkeyPatch) -> OurServer:
    """A Unity Catalog whose managed tables are in the bucket; we have no key of our own."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_bucket.server.endpoint)
    monkeypatch.setenv("AWS_REGION", s3_bucket.server.region)
    unity.ours.storage_root = f"{s3_bucket.uri}/uc"
    return unity.ours


def issue(server: OurServer, key: str, secret: str, *, ahead_ms: int = 0) -> None:
    """Let the server issue a key from now on."""
    given = {"access_key_id": key, "secret_access_key": secret, "session_token": ""}
    expires_ms = time.time_ns() // 1_000_000 + ahead_ms + LIFE_MS
    server.credentials = (200, {"aws_temp_credentials": given, "expiration_time": expires_ms})


def requests(server: OurServer) -> int:
    return sum(each.endswith("/credentials") for each in server.asked)


def test_a_key_is_asked_for_again_before_it_expires(
    unity: UnityServer,
    server: OurServer,
    s3_bucket: S3Bucket,
    later: Callable[[int], None],
) -> None:
    key, secret = s3_bucket.server.access_key, s3_bucket.server.secret_key
    staging = delta(unity).create_staging_table(f"{unity.schema}.t")
    source = StagingCredentialSource(
        unity.url, staging.location, staging.table_id, token=unity.token
    )
    config = StoreConfig(staging.location, renewal=source)
    issue(server, key, secret)
    open_config(config).put("x", b"1")
    assert requests(server) == 1

    # Another store of this process, as an executor opens it, has the same key.
    issue(server, key, "not the secret")
    again = pickle.loads(pickle.dumps(config))
    assert open_config(again).get("x") == b"1"
    assert requests(server) == 1

    # By now a tenth of its life is left.
    later(LIFE_MS * 9 // 10)
    with pytest.raises(Unauthorized):
        open_config(again).get("x")
    assert requests(server) == 2

    later(LIFE_MS)
    issue(server, key, secret, ahead_ms=LIFE_MS * 19 // 10)
    assert open_config(again).get("x") == b"1"
    assert requests(server) == 3

    # The catalog is away: the key is used until it has expired.
    later(LIFE_MS * 95 // 100)
    server.next_replies.append((500, b""))
    assert open_config(again).get("x") == b"1"
    later(LIFE_MS)
    server.next_replies.extend([(500, b"")] * 3)
    with pytest.raises(CatalogUnavailable):
        open_config(again).get("x")


def test_options_of_the_user_ask_nobody(
    unity: UnityServer, server: OurServer, s3_bucket: S3Bucket
) -> None:
    staging = delta(unity).create_staging_table(f"{unity.schema}.t")
    source = StagingCredentialSource(
        unity.url, staging.location, staging.table_id, token=unity.token
    )
    own = {
        "aws_access_key_id": s3_bucket.server.access_key,
        "aws_secret_access_key": s3_bucket.server.secret_key,
    }
    store = open_config(StoreConfig(staging.location, own, renewal=source))
    store.put("x", b"1")
    assert requests(server) == 0


def test_a_managed_table_is_sent_with_keys_that_are_renewed(
    unity: UnityServer,
    server: OurServer,
    s3_bucket: S3Bucket,
    later: Callable[[int], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    unity.name_in(monkeypatch)
    key, secret = s3_bucket.server.access_key, s3_bucket.server.secret_key
    issue(server, key, secret)
    moved = moved_table(unity, tmp_path / "orders", History().then(Append(1), Append(1)))
    assert moved.store().uri.startswith(s3_bucket.uri)
    root, copy, exported = (str(tmp_path / each) for each in ("root", "copy", "exported"))
    with lakeferry.Server(root) as running:
        token, url = lakeferry.create_token(root, scope="write"), f"{running.url}/acme/orders"
        table = lakeferry.Table(moved.source)
        first = table.push(url, token=token)
        asked = requests(server)
        moved.ratify()
        # The same objects go on with another key.
        later(LIFE_MS)
        issue(server, key, secret, ahead_ms=LIFE_MS)
        again = table.push(url, token=token)
        assert (first.changed, again.blocks) == (True, 1)
        assert requests(server) == asked + 1
        lakeferry.Table(copy).pull(url, token=token)
    table.export(exported)
    expected = lakeferry.open(moved.name).count_rows()
    assert lakeferry.open(copy).count_rows() == expected
    files = lakeferry.Table(moved.name).snapshot().num_files
    assert lakeferry.Table(exported).snapshot().num_files == files
