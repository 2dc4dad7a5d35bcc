"""A move to a managed table in an object store, with credentials that expire while it copies."""

from __future__ import annotations

import itertools
import time
from pathlib import Path

import pytest

import lakeferry
from lakeferry.api.redirects import Redirects
from lakeferry.redirect.states import RedirectState
from lakeferry.storage import normalise, open_store, vended_credentials
from tests.support.history import Append, Checkpoint, DeleteRows, History, Layout
from tests.support.servers import S3Bucket
from tests.support.unity_server import OurServer, UnityServer

LIFE_MS = 60_000
PAST = History(Layout(deletion_vectors="u")).then(
    Append(3), DeleteRows(1), Append(2), Checkpoint(), Append(1)
)


@pytest.fixture
def server(unity: UnityServer, s3_bucket: S3Bucket, monkeypatch: pytest.MonkeyPatch) -> OurServer:
    """A Unity Catalog with tables in a bucket, and a clock that runs fast.

    We have no key of our own. Each look at the clock takes half the life of a key.
    """
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_bucket.server.endpoint)
    monkeypatch.setenv("AWS_REGION", s3_bucket.server.region)
    for name, value in unity.environment().items():
        monkeypatch.setenv(name, value)
    ticks = itertools.count(time.time_ns() // 1_000_000, LIFE_MS // 2)
    monkeypatch.setattr(vended_credentials, "_now_ms", lambda: next(ticks))
    server = unity.ours
    server.storage_root = f"{s3_bucket.uri}/uc"
    given = {
        "access_key_id": s3_bucket.server.access_key,
        "secret_access_key": s3_bucket.server.secret_key,
        "session_token": "",
    }
    real = server.delta.reply

    def reply(*request: object) -> object:
        expires_ms = next(ticks) + LIFE_MS
        server.credentials = (200, {"aws_temp_credentials": given, "expiration_time": expires_ms})
        return real(*request)  # type: ignore[arg-type]

    monkeypatch.setattr(server.delta, "reply", reply)
    return server


def make(folder: Path) -> str:
    uri = normalise(str(folder))
    PAST.write(open_store(uri), with_data=True)
    return uri


def rows(table: str, version: int) -> list[object]:
    found = lakeferry.open(table, version=version, follow=False).to_table()
    return sorted(found.to_pylist(), key=repr)


def asked(server: OurServer) -> int:
    """Return how often somebody asked for credentials of an allocated place."""
    return sum("/staging-tables/" in each for each in server.asked)


def test_credentials_are_renewed_while_a_table_moves(
    unity: UnityServer, server: OurServer, tmp_path: Path
) -> None:
    source, name = make(tmp_path / "orders"), f"unity:{unity.schema}.orders"
    newest = lakeferry.Table(source).snapshot().version
    before = {version: rows(source, version) for version in range(newest + 1)}
    with Redirects(engine="local") as redirects:
        assert redirects.enable(source, name, managed=True).state is RedirectState.READY
    assert asked(server) > 5
    assert {version: rows(name, version) for version in before} == before
    for version in (newest + 1, newest + 2):
        assert rows(name, version) == before[newest]
