"""A large object that is pushed in parts, over as many sessions as it takes."""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from lakeferry.errors import LakeferryError
from lakeferry.storage import Store, open_store
from lakeferry.transfer.client.rate_limit import Rate
from lakeferry.transfer.client.remote_dataset import Patience, Terms
from tests.scenario.test_transfer_rest import Root
from tests.support.http_proxy import CountingProxy, SeenRequest, Spoil
from tests.support.servers import S3Bucket
from tests.support.serving import Serving, serving
from tests.support.transfers import pull, push
from tests.unit.transfer.client.test_push_and_pull import laid_out, with_large_object

SIZE = (66 << 20) + 7
HASTY = Patience(attempts=2, first_wait_s=0.001, longest_wait_s=0.01)


@pytest.fixture
def proxy(s3_bucket: S3Bucket) -> Iterator[CountingProxy]:
    with CountingProxy(s3_bucket.server.endpoint.removeprefix("http://")) as running:
        yield running


@pytest.fixture
def root(s3_bucket: S3Bucket, proxy: CountingProxy, tmp_path: Path) -> Root:
    store = open_store(f"{s3_bucket.uri}/a root", s3_bucket.storage_options)
    variables = {**s3_bucket.server.environment(), "AWS_ENDPOINT_URL": proxy.url}
    return Root(store, variables, tmp_path)


@pytest.fixture
def server(root: Root) -> Iterator[Serving]:
    with serving(root.home, root.variables, root=root.store) as running:
        yield running
        assert "Traceback" not in running.shown(), running.shown()


def files_of(store: Store, lead: str = "") -> dict[str, bytes]:
    paths = [found.path for found in store.list(lead)]
    return {path.removeprefix(lead): store.get(path) for path in paths}


def part_of(request: SeenRequest) -> int | None:
    found = re.search(r"[?&]partNumber=([0-9]+)", request.target)
    return int(found[1]) if found and request.method == "PUT" else None


def test_a_push_that_broke_off_inside_of_an_object_sends_only_the_parts_that_are_missing(
    root: Root, server: Serving, proxy: CountingProxy, tmp_path: Path
) -> None:
    built, path = with_large_object(SIZE)
    files = laid_out(built)
    here = open_store(str(tmp_path / "here"))
    for name, data in files.items():
        here.put(name, data)
    terms = Terms(token=root.token("--scope", "write"), patience=HASTY)
    url, place = f"{server.url}/acc/a", f"acc/a/{path}"

    proxy.rule = lambda request: Spoil.STATUS_503 if part_of(request) == 4 else None
    with pytest.raises(LakeferryError):
        push(here, url, terms)
    upload = root.store.parts_upload(place, SIZE, begin=False)
    assert upload is not None
    missing = upload.missing()
    assert 4 in missing
    assert 1 not in missing

    proxy.reset()
    done = push(here, url, terms)
    assert (done.changed, done.objects) == (True, 1)
    assert sorted(filter(None, map(part_of, proxy.requests))) == missing
    assert files.items() <= files_of(root.store, "acc/a/").items()
    assert root.store.parts_upload(place, SIZE, begin=False) is None

    there = open_store(str(tmp_path / "there"))
    pull(url, there, terms)
    assert files_of(there) == files


def test_parts_that_all_arrived_before_the_session_broke_are_one_object_for_the_next(
    root: Root, server: Serving, proxy: CountingProxy, tmp_path: Path
) -> None:
    built, path = with_large_object(SIZE)
    here = open_store(str(tmp_path / "here"))
    for name, data in laid_out(built).items():
        here.put(name, data)
    terms = Terms(token=root.token("--scope", "write"), patience=HASTY)
    place = f"acc/a/{path}"
    upload = root.store.parts_upload(place, SIZE, begin=True)
    assert upload is not None
    data = here.get(path)
    url, queries = upload.sign(upload.missing(), 600)
    for number, query in enumerate(queries):
        part = data[number * upload.part_bytes : (number + 1) * upload.part_bytes]
        with urllib.request.urlopen(
            urllib.request.Request(f"{url}&{query}", part, method="PUT"), timeout=60
        ) as answer:
            assert answer.status == 200
    done = push(here, f"{server.url}/acc/a", terms)
    assert (done.changed, done.objects, done.skipped) == (True, 0, 1)
    assert not any(map(part_of, proxy.requests))
    assert root.store.get(place) == data


@pytest.mark.parametrize("left", ["right", "wrong"])
def test_a_push_to_local_disk_goes_on_within_an_object(
    left: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = Root(open_store(str(tmp_path / "a root")), {}, tmp_path)
    built, path = with_large_object(SIZE)
    files = laid_out(built)
    here = open_store(str(tmp_path / "here"))
    for name, data in files.items():
        here.put(name, data)
    upload = root.store.parts_upload(f"acc/a/{path}", SIZE, begin=True)
    assert upload is not None
    arrived = upload.missing()[: 3 if left == "right" else None]
    for number in arrived:
        begin = (number - 1) * upload.part_bytes
        part = files[path][begin : begin + upload.part_bytes]
        upload.put(number, iter([part if left == "right" else part[::-1]]), len(part))
    sent: list[int] = []

    async def take(_: Rate, size_bytes: int) -> None:
        sent.append(size_bytes)

    monkeypatch.setattr(Rate, "take", take)
    with serving(root.home, {}, root=root.store) as server:
        terms = Terms(token=root.token("--scope", "write"), patience=HASTY)
        done = push(here, f"{server.url}/acc/a", terms)
        assert done.changed, server.shown()
    assert files.items() <= files_of(root.store, "acc/a/").items()
    expected = SIZE - 3 * upload.part_bytes if left == "right" else SIZE
    assert sum(sent) == done.bytes == expected
    assert not [name for name in root.store.entries("") if name.endswith(".tmp")]
