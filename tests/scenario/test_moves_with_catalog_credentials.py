"""Moves into places for which only Unity Catalog has credentials, which expire while it copies."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import lakeferry
from lakeferry.api.redirects import Redirects
from lakeferry.errors import LakeferryError
from lakeferry.redirect.states import RedirectState
from lakeferry.storage import normalise, open_store
from tests.support.history import Append, Checkpoint, DeleteRows, History, Layout
from tests.support.servers import S3Bucket
from tests.support.unity_on_s3 import on_s3
from tests.support.unity_server import OurServer, UnityServer

PAST = History(Layout(deletion_vectors="u")).then(
    Append(3), DeleteRows(1), Append(2), Checkpoint(), Append(1)
)


@pytest.fixture
def server(unity: UnityServer, s3_bucket: S3Bucket) -> Iterator[OurServer]:
    with on_s3(unity, s3_bucket) as server:
        yield server


@pytest.fixture
def source(tmp_path: Path) -> str:
    """A table on local disk."""
    uri = normalise(str(tmp_path / "orders"))
    PAST.write(open_store(uri), with_data=True)
    return uri


def rows(table: str, version: int) -> list[object]:
    found = lakeferry.open(table, version=version, follow=False).to_table()
    return sorted(found.to_pylist(), key=repr)


def history(table: str) -> dict[int, list[object]]:
    """Return the rows of all versions."""
    newest = lakeferry.Table(table).snapshot().version
    return {version: rows(table, version) for version in range(newest + 1)}


def asked(server: OurServer, call: str) -> int:
    """Return how often somebody has asked for something."""
    return sum(call in each for each in server.asked)


def test_a_managed_table_is_copied_with_credentials_that_expire(
    unity: UnityServer, server: OurServer, source: str
) -> None:
    before, name = history(source), f"unity:{unity.schema}.orders"
    with Redirects(engine="local") as redirects:
        assert redirects.enable(source, name, managed=True).state is RedirectState.READY
    assert asked(server, "/staging-tables/") > 5
    found = history(name)
    assert {version: found[version] for version in before} == before
    assert len(found) == len(before) + 2


@pytest.mark.parametrize("right", ["CREATE EXTERNAL TABLE", "READ FILES"])
def test_an_external_table_is_made_where_only_the_catalog_may_write(
    unity: UnityServer, server: OurServer, source: str, s3_bucket: S3Bucket, right: str
) -> None:
    server.privileges |= {right, "WRITE FILES"}
    before, name = history(source), f"unity:{unity.schema}.orders"
    place = f"{s3_bucket.uri}/new/orders"
    with Redirects(engine="local") as redirects:
        done = redirects.enable(source, name, location=place)
        assert done.state is RedirectState.READY
    assert asked(server, "/temporary-path-credentials") > 3
    found = history(name)
    assert {version: found[version] for version in before} == before
    with Redirects(engine="local") as redirects:
        assert redirects.disable(source).state is RedirectState.NORMAL
    # Credentials for the table itself are renewed as well.
    assert asked(server, "/temporary-table-credentials") > 3


def test_a_cancelled_move_leaves_nothing_in_such_a_place(
    unity: UnityServer,
    server: OurServer,
    source: str,
    s3_bucket: S3Bucket,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server.privileges |= {"CREATE EXTERNAL TABLE"}
    place = f"{s3_bucket.uri}/new/orders"

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("lakeferry.redirect.enable.enabling._register", interrupt)
        with Redirects(engine="local") as redirects, pytest.raises(KeyboardInterrupt):
            redirects.enable(source, f"unity:{unity.schema}.orders", location=place)
    options = s3_bucket.storage_options
    assert list(open_store(place, options).list(""))
    with Redirects(engine="local") as redirects:
        assert redirects.cancel(source).state is RedirectState.NORMAL
    assert list(open_store(place, options).list("")) == []


def test_own_credentials_come_first(
    unity: UnityServer, server: OurServer, source: str, s3_bucket: S3Bucket
) -> None:
    server.privileges |= {"READ FILES", "WRITE FILES"}
    wrong = {**s3_bucket.storage_options, "AWS_SECRET_ACCESS_KEY": "wrong"}
    place = f"{s3_bucket.uri}/new/orders"
    with Redirects(wrong, engine="local") as redirects, pytest.raises(LakeferryError):
        redirects.enable(source, f"unity:{unity.schema}.orders", location=place)
    assert list(open_store(place, s3_bucket.storage_options).list("")) == []
