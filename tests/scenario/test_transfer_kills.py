"""Clients and servers that are killed, for real, while they make a call to the store.

Both stores are on one S3 server behind a proxy. A run that nothing happens to shows which
kinds of calls each process makes; then, for each kind, the process's first call of it hangs,
before it is done or after, and the process is killed there. What is left is whole, and to do
it once more completes it. A run takes its share of these moments.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from http.client import HTTPConnection
from pathlib import Path
from signal import SIGKILL
from typing import Any
from urllib.parse import urlsplit

import pytest

from lakeferry.errors import CommitStateUnknown, StorageUnavailable
from lakeferry.transfer.chain.hashes import Multihash
from lakeferry.transfer.client.remote_dataset import Terms
from lakeferry.transfer.client.transfer_progress import Transferred
from lakeferry.transfer.repository.access_tokens import Scope, Tokens
from tests.simulation.transfer_cases import chain_of, objects_named
from tests.support.forked import ForkedRun
from tests.support.hosting import (
    HASTY,
    NAME,
    ONCE,
    QUICK,
    Files,
    Place,
    contents,
    hold,
    hosted,
    wait_for,
)
from tests.support.http_proxy import CountingProxy, SeenRequest, Spoil
from tests.support.odf import AddData, Chain, Slice
from tests.support.reference_client import ReferenceClient, files_of, objects_of, run_of
from tests.support.servers import S3Bucket
from tests.support.serving import serving
from tests.support.shares import Share
from tests.support.stores import DictStore
from tests.support.transfers import pull, push
from tests.unit.cli.program import PROGRAM, environment

WITHIN_S = 60
FILES = files_of(Chain().append(checkpoint="c").append())
NAMED = objects_named(chain_of(FILES))


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of call: who makes it, with which method, and to what."""

    process: str
    method: str
    place: str
    folder: str


_FOLDERS = (
    *("/ids/", "/pushes/", "/tokens/", "dataset.json", "_delta_log"),
    *("/data/", "/checkpoints/", "/blocks/", "refs/head"),
)
"""What a transfer is about; servers also look after other things."""


def kind_of(request: SeenRequest) -> Kind:
    target = request.target.replace("%2F", "/").replace("%2f", "/")
    place = "client" if "/client" in target or "prefix=client" in target else "root"
    folder = next((name for name in _FOLDERS if name in target), "")
    # A client has no other way to the root than by what the server has signed.
    signed = "X-Amz-Signature=" in target
    process = "client" if place == "client" or signed else "server"
    return Kind(process, request.method, place, folder)


class Stage:
    """A bucket with a root and a client's dataset in it, and the way there."""

    def __init__(self, bucket: S3Bucket, proxy: CountingProxy, home: Path, operation: str) -> None:
        self.proxy = proxy
        self.home = home
        self.operation = operation
        options = bucket.storage_options
        self.root, self.client = (
            Place(f"{bucket.uri}/{name}", options) for name in ("root", "client")
        )
        self.variables = {**bucket.server.environment(), "AWS_ENDPOINT_URL": proxy.url}

    @property
    def received(self) -> Files:
        if self.operation == "pull":
            return contents(self.client.store)
        return contents(self.root.store, f"{NAME}/")

    def begin(self) -> None:
        """Have the dataset at one end, and nothing at the other."""
        for place in (self.root, self.client):
            place.store.delete_many([found.path for found in place.store.list("")])
        if self.operation == "push":
            hold(self.client.store, FILES)
        else:
            hold(self.root.store, FILES, f"{NAME}/")
        self.token = Tokens(self.root.store).create(Scope.WRITE)

    def run(self, url: str, client: Place, **changes: Any) -> Transferred:
        usual: dict[str, Any] = {"patience": ONCE, "pace": QUICK, "parallel": 1}
        terms = Terms(token=self.token, **usual | changes)
        if self.operation == "push":
            return push(client.store, f"{url}/{NAME}", terms)
        return pull(f"{url}/{NAME}", client.store, terms)

    def kinds(self, process: str) -> list[Kind]:
        """Return the kinds of calls that a process makes from its first word with the other."""
        self.begin()
        with hosted(self.root.through(self.proxy.url)) as server:
            self.proxy.reset()
            self.run(server.url, self.client.through(self.proxy.url))
            seen = [kind_of(request) for request in self.proxy.requests]
        kinds = {kind for kind in seen if kind.process == process and kind.folder}
        # In the same order each time, so that a kind is always in the same share.
        return sorted(kinds, key=astuple)

    def check(self) -> bool:
        """See that the receiver is whole, and tell whether it has everything."""
        received = self.received
        is_there = "refs/head" in received
        if is_there:
            assert objects_named(chain_of(received)) == NAMED
        return is_there

    def retry(self) -> None:
        """Do it once more, with nothing in the way."""
        is_there = self.check()
        missing = 0 if is_there else len(NAMED - self.received.keys())
        self.proxy.reset()
        with hosted(self.root) as server:
            done = self.run(server.url, self.client, patience=HASTY)
        assert done.changed is not is_there
        assert done.objects == missing
        assert self.check()
        assert FILES.items() <= self.received.items()

    def hang(self, kind: Kind, spoil: Spoil) -> None:
        """Let the next call of a kind hang."""
        self.proxy.reset()
        self.proxy.rule = lambda request: spoil if kind_of(request) == kind else None


@contextmanager
def client_process(stage: Stage, url: str) -> Iterator[ForkedRun]:
    dataset = f"{url}/{NAME}"
    ends = (stage.client.uri, dataset) if stage.operation == "push" else (dataset, stage.client.uri)
    command = [str(PROGRAM), stage.operation, *ends]
    command += ["--token", stage.token, "--parallel", "1", "--json"]
    env = environment(stage.home, stage.variables)
    with ForkedRun(command, cwd=stage.home, env=env) as process:
        yield process


def moments(kinds: list[Kind]) -> Iterator[tuple[Kind, Spoil]]:
    """Yield before each kind of call, and after each that changes something."""
    for kind in kinds:
        yield kind, Spoil.HANG
        if kind.method in ("PUT", "POST", "DELETE"):
            yield kind, Spoil.HANG_AFTER


@pytest.fixture
def stage(s3_bucket: S3Bucket, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Stage]:
    host = s3_bucket.server.endpoint.removeprefix("http://")
    with CountingProxy(host) as proxy:
        yield Stage(s3_bucket, proxy, tmp_path, request.param)


OPERATIONS = pytest.mark.parametrize("stage", ["push", "pull"], indirect=True)


@OPERATIONS
def test_a_client_that_is_killed_at_any_kind_of_call_is_simply_run_again(
    stage: Stage, share: Share
) -> None:
    killed = 0
    for kind, spoil in share.each(moments(stage.kinds("client"))):
        stage.begin()
        with hosted(stage.root.through(stage.proxy.url)) as server:
            stage.hang(kind, spoil)
            with client_process(stage, server.url) as process:
                assert stage.proxy.hanging.wait(WITHIN_S), (kind, process.has_ended)
                process.send_signal(SIGKILL)
                assert process.wait(WITHIN_S).returncode == -SIGKILL
            killed += 1
        stage.retry()
    assert killed >= 6 or not share.is_whole


@OPERATIONS
def test_a_server_that_is_killed_at_any_kind_of_call_is_simply_started_again(
    stage: Stage, share: Share
) -> None:
    killed = 0
    for kind, spoil in share.each(moments(stage.kinds("server"))):
        stage.begin()
        failed: list[Exception] = []
        with serving(stage.home, stage.variables, root=stage.root.store) as server:
            stage.hang(kind, spoil)

            def transfer(url: str = server.url, failed: list[Exception] = failed) -> None:
                try:
                    stage.run(url, stage.client)
                except (StorageUnavailable, CommitStateUnknown) as lost:
                    failed.append(lost)

            client = threading.Thread(target=transfer)
            client.start()
            assert stage.proxy.hanging.wait(WITHIN_S), kind
            assert server.end(SIGKILL) == -SIGKILL
            client.join(WITHIN_S)
            assert not client.is_alive()
        assert failed, kind
        killed += 1
        stage.retry()
    assert killed >= 4 or not share.is_whole


def test_a_server_that_is_killed_within_an_upload_shows_nothing_of_it(tmp_path: Path) -> None:
    """On local disk bytes come through the server itself."""
    place, data = Place((tmp_path / "root").as_uri()), bytes(range(256)) * (12 << 10)
    built = Chain()
    large = Multihash.sha3_256(data)
    built.objects[large] = data
    built.add(AddData(new_data=Slice(large, 0, 9, len(data))))
    files = {f"blocks/{name}": block for name, block in built.blocks}
    files |= {f"data/{large}": data, "refs/head": built.head.text.encode()}
    token = Tokens(place.store).create(Scope.WRITE)
    with serving(tmp_path, {}, root=place.store) as server:
        client = ReferenceClient(f"{server.url}/{NAME}", token)
        with client.open("push") as session:
            run = run_of(files)
            session.request_push(None)
            session.send_blocks(run)
            [strategy] = session.urls(objects_of(run))
            url = urlsplit(strategy["upload_to"]["url"])
            upload = HTTPConnection(url.netloc, timeout=WITHIN_S)
            upload.putrequest("PUT", f"{url.path}?{url.query}")
            upload.putheader("Content-Length", str(len(data)))
            upload.endheaders(data[: len(data) * 2 // 3])
            folder = tmp_path / "root" / NAME / "data"
            wait_for(lambda: folder.is_dir() and any(folder.iterdir()))
            assert server.end(SIGKILL) == -SIGKILL
            upload.close()
    assert contents(place.store, f"{NAME}/") == {}
    with hosted(place) as again:
        done = push(DictStore(files), again.dataset(), again.terms())
        assert (done.objects, done.skipped) == (1, 0)
        assert again.stored() == files
