"""Processes that are really killed while the store copies: a move ends exactly, or leaves nothing.

A run takes its share of the moments to be killed at.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from lakeferry.api.redirects import Redirects
from lakeferry.redirect.states import RedirectState
from lakeferry.storage import Store, open_store
from lakeferry.storage.objects import ObjectStore
from tests.support.forked import ForkedRun
from tests.support.http_proxy import CountingProxy, SeenRequest, Spoil
from tests.support.killed_copy import PART_BYTES
from tests.support.large_files import put_with_large_file
from tests.support.servers import S3Bucket, S3Server
from tests.support.shares import Share

KINDS = (
    "HEAD of the source",
    "CopyObject",
    "CreateMultipartUpload",
    "UploadPartCopy",
    "CompleteMultipartUpload",
    "AbortMultipartUpload",
    "HEAD of the copy",
)
WAIT_S = 60.0


def start(source: str, target: str, *more: str, **options: str) -> ForkedRun:
    settings = {"PYTHONWARNINGS": "error", "LAKEFERRY_TEST_OPTIONS": json.dumps(options)}
    return ForkedRun(
        ["killed_copy", source, target, *more],
        cwd=Path.cwd(),
        env={**os.environ, **settings},
        module="tests.support.killed_copy",
    )


def names(store: Store) -> set[str]:
    return {info.path for info in store.list("")}


def check_moved(old: Store, new: Store, moment: object) -> None:
    """Every file of the source is at the target, with the same bytes."""
    for name in names(old):
        if not name.startswith("_delta_log/"):
            assert new.get(name) == old.get(name), (moment, name)
    assert not [name for name in names(new) if "_lakeferry" in name], moment


# --- On S3 --------------------------------------------------------------------------------


@pytest.fixture
def in_parts() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        for name in ("s3_copy.LARGE_BYTES", "cloud_copy.LARGE_BYTES", "s3_copy._PART_BYTES"):
            patched.setattr(f"lakeferry.storage.{name}", PART_BYTES)
        yield


@pytest.fixture
def proxy(s3_bucket: S3Bucket) -> Iterator[CountingProxy]:
    with CountingProxy(s3_bucket.server.endpoint.removeprefix("http://")) as running:
        yield running


def kind_of(seen: SeenRequest, target: str) -> str | None:
    """Return what a request of a copy is called."""
    parts = urlsplit(seen.target)
    query = parse_qs(parts.query, keep_blank_values=True)
    if "uploadId" in query:
        kinds = {"PUT": "UploadPartCopy", "POST": "CompleteMultipartUpload"}
        return {**kinds, "DELETE": "AbortMultipartUpload"}.get(seen.method)
    if not parts.path.endswith(".parquet"):
        return None
    whose = "copy" if parts.path.startswith(f"/{target}/") else "source"
    single = {"PUT": "CopyObject", "POST": "CreateMultipartUpload"}
    return {**single, "HEAD": f"HEAD of the {whose}"}.get(seen.method)


def kill_at(
    kind: str, when: str, target: str, proxy: CountingProxy, mover: Callable[[], ForkedRun]
) -> None:
    """Kill a move at the first request of a kind, before or after the server has heard of it."""

    def rule(seen: SeenRequest) -> Spoil | None:
        found = kind_of(seen, target)
        if found == kind and not proxy.hanging.is_set():
            return Spoil.HANG if when == "before" else Spoil.HANG_AFTER
        # Only a copy that failed is aborted.
        is_failing = kind == "AbortMultipartUpload" and "partNumber=2" in seen.target
        return Spoil.STATUS_500 if found == "UploadPartCopy" and is_failing else None

    proxy.rule = rule
    with mover() as process:
        reached = proxy.hanging.wait(WAIT_S)
        process.kill()
        killed = process.wait(WAIT_S)
    assert reached, killed.stderr.decode()
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
    proxy.reset()


def unfinished(store: Store) -> list[str]:
    """Return the keys of the unfinished uploads below a place, as ListMultipartUploads says."""
    assert isinstance(store, ObjectStore)
    uploads = store._uploads_of("x")
    assert uploads is not None
    return [key for key, _, _ in uploads.below(urlsplit(store.uri).path.strip("/"))]


@pytest.mark.parametrize("then", ["resume", "cancel"])
def test_a_move_whose_process_is_killed_at_a_request_of_a_copy(
    versitygw: S3Server,
    s3_bucket: S3Bucket,
    proxy: CountingProxy,
    in_parts: None,
    share: Share,
    then: str,
) -> None:
    options = {
        **s3_bucket.storage_options,
        "AWS_ENDPOINT_URL": proxy.url,
        "max_retries": "0",
    }
    other = versitygw.create_bucket(f"bucket-{uuid.uuid4().hex[:16]}")
    # After a request that changes nothing is before the next one.
    changes = [kind for kind in KINDS if not kind.startswith("HEAD")]
    moments = [(kind, "before") for kind in KINDS] + [(kind, "after") for kind in changes]
    for number, (kind, when) in share.each([*enumerate(moments)]):
        moment = (kind, when)
        old = open_store(f"{s3_bucket.uri}/old-{number}", options)
        new = open_store(f"{other.uri}/new-{number}", options)
        put_with_large_file(old, PART_BYTES)
        before = names(old)

        def mover(old: Store = old, new: Store = new) -> ForkedRun:
            return start(old.uri, new.uri, **options)

        kill_at(kind, when, other.name, proxy, mover)
        with Redirects(storage_options=options, engine="local") as redirects:
            if then == "resume":
                redirects.resume(old.uri)
                assert redirects.status(old.uri).state is RedirectState.READY, moment
                check_moved(old, new, moment)
            else:
                redirects.cancel(old.uri)
                assert redirects.status(old.uri).state is RedirectState.NORMAL, moment
                assert names(old) == before, moment
                assert names(new) == set(), moment
        assert unfinished(new) == [], moment


# --- On local disk ------------------------------------------------------------------------


def test_a_move_whose_process_is_killed_at_a_call_of_a_local_copy(
    tmp_path: Path, share: Share
) -> None:
    folder, kept = tmp_path / "here", tmp_path / "kept"
    put_with_large_file(open_store(str(kept / "old")), 9 << 20)
    shutil.copytree(kept, folder)
    with start(str(folder / "old"), str(folder / "new")) as process:
        clean = process.wait(WAIT_S)
    assert clean.returncode == 0, clean.stderr.decode()
    # After a call that changes no file is before the next one.
    moments = [
        each
        for each in clean.stdout.decode().split()
        if not each.endswith(("sync/after", "syncfs/after"))
    ]
    assert {moment.split("/")[1] for moment in moments} >= {"copy_file_range", "fsync", "rename"}
    assert {moment.split("/")[0] for moment in moments} == {"copy_from", "copy_many_from"}
    for moment in share.each(moments):
        shutil.rmtree(folder)
        shutil.copytree(kept, folder)
        with start(str(folder / "old"), str(folder / "new"), "--at", moment) as process:
            killed = process.wait(WAIT_S)
        assert killed.returncode == -signal.SIGKILL, f"{moment}: {killed.stderr.decode()}"
        left = tmp_path / "left"
        shutil.copytree(folder, left)
        _is_resumed(folder, moment)
        # A redirect knows its places by their addresses, so both take turns at one.
        shutil.rmtree(folder)
        left.rename(folder)
        _is_cancelled(folder, kept, moment)


def _is_resumed(folder: Path, moment: str) -> None:
    with Redirects(engine="local") as redirects:
        redirects.resume(str(folder / "old"))
    check_moved(open_store(str(folder / "old")), open_store(str(folder / "new")), moment)
    assert not [*folder.rglob(".lakeferry-*")], moment


def _is_cancelled(folder: Path, kept: Path, moment: str) -> None:
    with Redirects(engine="local") as redirects:
        redirects.cancel(str(folder / "old"))
    assert not [*(folder / "new").rglob("*")], moment
    assert _files(folder / "old") == _files(kept / "old"), moment


def _files(place: Path) -> set[str]:
    return {str(path.relative_to(place)) for path in place.rglob("*") if path.is_file()}
