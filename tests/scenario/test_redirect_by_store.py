"""A move between two prefixes of one S3 service: the store copies, and nothing unfinished stays."""

from __future__ import annotations

import random
from collections.abc import Iterator
from urllib.parse import parse_qs, urlsplit

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from lakeferry.api.redirects import Redirects
from lakeferry.errors import LakeferryError
from lakeferry.storage import Store, multipart, open_store, s3_copy
from lakeferry.storage.objects import ObjectStore
from tests.support.http_proxy import CountingProxy, SeenRequest, Spoil
from tests.support.large_files import put_with_large_file
from tests.support.servers import S3Bucket

MIB = 1 << 20


@pytest.fixture
def proxy(s3_bucket: S3Bucket) -> Iterator[CountingProxy]:
    with CountingProxy(s3_bucket.server.endpoint.removeprefix("http://")) as running:
        yield running


@pytest.fixture
def options(s3_bucket: S3Bucket, proxy: CountingProxy) -> dict[str, str]:
    return {**s3_bucket.storage_options, "AWS_ENDPOINT_URL": proxy.url, "max_retries": "0"}


@pytest.fixture
def old(s3_bucket: S3Bucket, options: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Store:
    """A table with a file that is copied in three parts."""
    for name in ("lakeferry.storage.s3_copy", "lakeferry.storage.cloud_copy"):
        monkeypatch.setattr(f"{name}.LARGE_BYTES", 5 * MIB)
    monkeypatch.setattr(s3_copy, "_PART_BYTES", 5 * MIB)
    monkeypatch.setattr(multipart, "_PAUSES_S", (0.01,))
    store = open_store(f"{s3_bucket.uri}/old", options)
    put_with_large_file(store, 12 * MIB)
    return store


def unfinished(store: Store) -> list[str]:
    """Return the ids of the uploads in parts below a place."""
    assert isinstance(store, ObjectStore)
    uploads = store._uploads_of("x")
    assert uploads is not None
    return [id_ for _, id_, _ in uploads.below(urlsplit(store.uri).path.strip("/"))]


def begin_upload(store: Store, name: str) -> str:
    """Begin an upload, as another program does."""
    assert isinstance(store, ObjectStore)
    uploads = store._uploads_of(name)
    assert uploads is not None
    return uploads.begin()


def fails_like_a_kill(seen: SeenRequest) -> Spoil | None:
    """Let no second part be copied, and nothing be tidied up."""
    query = parse_qs(urlsplit(seen.target).query)
    is_part = query.get("partNumber") == ["2"]
    return (
        Spoil.STATUS_500 if is_part or (seen.method == "DELETE" and "uploadId" in query) else None
    )


@pytest.mark.versitygw
def test_no_byte_of_a_data_file_passes_through(
    old: Store, s3_bucket: S3Bucket, options: dict[str, str], proxy: CountingProxy
) -> None:
    proxy.reset()
    with Redirects(storage_options=options, engine="local") as redirects:
        redirects.enable(old.uri, f"{s3_bucket.uri}/new")
    read = [seen.target for seen in proxy.requests if seen.method == "GET"]
    assert not [target for target in read if ".parquet" in target and "uploads" not in target]
    new = open_store(f"{s3_bucket.uri}/new", options)
    for info in old.list("part"):
        assert new.get(info.path) == old.get(info.path)
    assert unfinished(new) == []


@pytest.mark.versitygw
@pytest.mark.parametrize("after", ["resume", "cancel"])
def test_an_upload_that_a_killed_move_left_goes_and_others_stay(
    old: Store, s3_bucket: S3Bucket, options: dict[str, str], proxy: CountingProxy, after: str
) -> None:
    new = open_store(f"{s3_bucket.uri}/new", options)
    strangers = [begin_upload(new, "part-of-theirs.parquet")]
    with Redirects(storage_options=options, engine="local") as redirects:
        proxy.rule = fails_like_a_kill
        with pytest.raises(LakeferryError):
            redirects.enable(old.uri, new.uri)
        proxy.reset()
        assert len(unfinished(new)) == 2
        strangers.append(begin_upload(new, "notes.bin"))
        if after == "resume":
            redirects.resume(old.uri)
        else:
            redirects.cancel(old.uri)
    assert sorted(unfinished(new)) == sorted(strangers)


@pytest.mark.versitygw
def test_an_upload_that_a_killed_withdrawal_left_goes_and_others_stay(
    old: Store, s3_bucket: S3Bucket, options: dict[str, str], proxy: CountingProxy
) -> None:
    new = open_store(f"{s3_bucket.uri}/new", options)
    with Redirects(storage_options=options, engine="local") as redirects:
        redirects.enable(old.uri, new.uri)
        noise = pa.table({"id": [7], "noise": [random.randbytes(6 * MIB)]})
        write_deltalake(new.uri, noise, mode="append", schema_mode="merge", storage_options=options)
        strangers = [begin_upload(old, "part-of-theirs.parquet")]
        proxy.rule = fails_like_a_kill
        with pytest.raises(LakeferryError):
            redirects.disable(old.uri)
        proxy.reset()
        assert len(unfinished(old)) == 2
        redirects.disable(old.uri)
    assert unfinished(old) == strangers


@pytest.mark.versitygw
def test_an_upload_whose_beginning_was_not_heard_of_goes(
    old: Store, s3_bucket: S3Bucket, options: dict[str, str], proxy: CountingProxy
) -> None:
    lost: list[str] = []

    def lose(seen: SeenRequest) -> Spoil | None:
        if lost or seen.method != "POST" or "uploads=" not in seen.target:
            return None
        lost.append(seen.target)
        return Spoil.LOSE_ANSWER

    new = open_store(f"{s3_bucket.uri}/new", options)
    with Redirects(storage_options=options, engine="local") as redirects:
        proxy.rule = lose
        redirects.enable(old.uri, new.uri)
    assert lost
    assert unfinished(new) == []


@pytest.mark.versitygw
@pytest.mark.parametrize("after", ["resume", "cancel"])
def test_who_may_not_list_uploads_can_end_a_move(
    old: Store, s3_bucket: S3Bucket, options: dict[str, str], proxy: CountingProxy, after: str
) -> None:
    def refuse(seen: SeenRequest) -> Spoil | None:
        lists = seen.method == "GET" and "uploads=" in seen.target
        return Spoil.STATUS_403 if lists else None

    new = open_store(f"{s3_bucket.uri}/new", options)
    warnings: list[str] = []
    with Redirects(storage_options=options, engine="local", warn=warnings.append) as redirects:
        proxy.rule = fails_like_a_kill
        with pytest.raises(LakeferryError):
            redirects.enable(old.uri, new.uri)
        warnings.clear()
        proxy.rule = refuse
        if after == "resume":
            redirects.resume(old.uri)
        else:
            redirects.cancel(old.uri)
    assert not warnings
