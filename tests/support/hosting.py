"""A server of ours in this process, as ``serve`` opens it, over a root of any kind.

What ``serve`` runs is :func:`lakeferry.server.running_server.open_server`, and so does this; only
the process is the test's own, so that hundreds of servers take no longer than a few. A proxy may
stand before it: what the server calls its address is then the proxy's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from lakeferry import config
from lakeferry.server import running_server
from lakeferry.storage import Store, open_store
from lakeferry.transfer.client.remote_dataset import Patience, Terms
from lakeferry.transfer.repository.access_tokens import Scope, Tokens
from lakeferry.transfer.repository.dataset_names import OWN_FOLDER, DatasetName
from lakeferry.transfer.session.machine import Pace
from tests.support.servers import S3Bucket

NAME = "acc/d"
OBJECTS = ("data/", "checkpoints/")
ROOTS = ("local", "s3")
HASTY = Patience(attempts=6, first_wait_s=0.001, longest_wait_s=0.02, connect_s=20, silence_s=20)
ONCE = Patience(attempts=1, first_wait_s=0.001, longest_wait_s=0.01, connect_s=20, silence_s=20)
QUICK = Pace(answer_ms=20_000, settle_ms=20, commit_ms=20_000, drain_ms=200)

Files = dict[str, bytes]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a root is, or a client's datasets are, and what a client needs to get there."""

    uri: str
    options: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, kind: str, request: pytest.FixtureRequest, folder: str) -> Place:
        """Return a place of one of :data:`ROOTS` that nothing is at yet."""
        if kind == "local":
            return cls((request.getfixturevalue("tmp_path") / folder).as_uri())
        bucket: S3Bucket = request.getfixturevalue("s3_bucket")
        return cls(f"{bucket.uri}/{folder}", bucket.storage_options)

    def through(self, endpoint: str) -> Place:
        """Return the same place, reached by another endpoint."""
        return Place(self.uri, {**self.options, "AWS_ENDPOINT_URL": endpoint})

    @property
    def store(self) -> Store:
        return open_store(self.uri, self.options)

    @property
    def everything(self) -> Files:
        """All that is there, whoever's it is."""
        return contents(self.store)


def contents(store: Store, lead: str = "") -> Files:
    """Return the objects whose names begin so, without that."""
    paths = [found.path for found in store.list(lead)]
    found = zip(paths, store.get_many(paths), strict=True)
    return {path.removeprefix(lead): data for path, data in found}


def objects_in(files: Mapping[str, bytes]) -> set[str]:
    """Return the names of a dataset's objects, without its blocks and its head."""
    return {path for path in files if path.startswith(OBJECTS)}


def hold(store: Store, files: Mapping[str, bytes], lead: str = "") -> Store:
    """Put a dataset somewhere by hand."""
    for path, data in files.items():
        store.put(f"{lead}{path}", data)
    return store


@dataclass(frozen=True, slots=True)
class Hosted:
    """A running server."""

    url: str
    place: Place
    server: running_server.RunningServer

    def dataset(self, name: str = NAME) -> str:
        return f"{self.url}/{name}"

    def token(
        self, scope: Scope = Scope.WRITE, dataset: str | None = None, lasts_ms: int | None = None
    ) -> str:
        name = None if dataset is None else DatasetName.parse(dataset)
        return Tokens(self.place.store).create(scope, dataset=name, lasts_ms=lasts_ms)

    def terms(self, **changes: Any) -> Terms:
        """Return a hurried client's terms, with a token that may write."""
        usual: dict[str, Any] = {"patience": HASTY, "pace": QUICK, "parallel": 4}
        if "token" not in changes:
            usual["token"] = self.token()
        return Terms(**usual | changes)

    def stored(self, name: str = NAME) -> Files:
        """Return a dataset's files, without what the server keeps beside them."""
        found = contents(self.place.store, f"{name}/")
        return {path: data for path, data in found.items() if not path.startswith(OWN_FOLDER)}


@contextmanager
def hosted(
    place: Place, *, before: Callable[[str], str] | None = None, **options: Any
) -> Iterator[Hosted]:
    """Serve a root on a free port until the context ends.

    ``before`` is given the server's address and returns the one by which it is known, that of
    a proxy. ``options`` are those of ``open_server``.
    """

    def export(*_: Any, **__: Any) -> Any:
        raise AssertionError("nothing is exported here")

    settings = config.load(storage_options=place.options, environment={})
    with running_server.listen("127.0.0.1", 0) as listener:
        own = running_server.url_of(listener, "127.0.0.1", None)
        url = own if before is None else before(own)
        server = running_server.open_server(
            settings, place.uri, listener, export, url=url, secret=None, **options
        )
        server.start()
        try:
            yield Hosted(url, place, server)
        finally:
            assert server.stop(requests_s=10, job_s=10)


def wait_for(holds: Callable[[], bool], what: str = "it didn't come to that") -> None:
    """Wait for something that another thread or process does."""
    deadline = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.005)
