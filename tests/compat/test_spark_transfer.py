"""Transfers on Spark: executors move the objects, and the driver none; a server's digests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from signal import SIGTERM

import pytest

from lakeferry.storage import Store, open_store
from lakeferry.transfer.datasets.delta.delta_dataset import DeltaDataset
from tests.scenario.test_transfer_rest import Root, laid_out
from tests.scenario.test_transfer_rest import root as root
from tests.support import components
from tests.support.history import Append, History
from tests.support.odf import Chain
from tests.support.serving import serving
from tests.support.spark_cluster import standalone
from tests.unit.cli.program import make

# In the driver nothing can be moved: executors are other processes, and have their own code.
PROGRAM = """
import json, sys
from lakeferry.engines.spark.spark_engine import SparkEngine
from lakeferry.storage import open_store
from lakeferry.transfer.client import downloads, event_loop, uploads
from lakeferry.transfer.client.push_and_pull import Pull, Push
from lakeferry.transfer.client.remote_dataset import Terms

async def never(*_):
    raise AssertionError("an object came to the driver")

downloads.Downloads.fetch = downloads.Downloads._chunks = never
uploads.Uploads.put = uploads.Uploads._put = never
here, url, there, settings, token = sys.argv[1:]
told, terms = [], Terms(token=token, page=30)
with SparkEngine(json.loads(settings)) as engine:
    choose = lambda objects, size_bytes: engine
    store = open_store(here)
    push = Push(store, url, terms, lambda *one: told.append(one[0]), choose=choose)
    pushed = event_loop.run_in_loop(push.run())
    read = store.calls.bytes_read
    store = open_store(there)
    pulled = event_loop.run_in_loop(Pull(url, store, terms, choose=choose).run())
print(json.dumps([pushed.as_document(), pulled.as_document(), read, store.calls["PUT"], told[-1]]))
"""


def dataset() -> dict[str, bytes]:
    built = Chain()
    for number in range(40):
        built.append(checkpoint=f"checkpoint {number} " + "c" * 50_000)
    return laid_out(built)


def files_of(store: Store) -> dict[str, bytes]:
    return {found.path: store.get(found.path) for found in store.list("")}


@dataclass(frozen=True)
class Cluster:
    """A Spark whose executors are other processes."""

    master: str
    home: Path


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One for both roots: it takes three JVMs before it drives anything."""
    components.require("spark-jars")
    folder = tmp_path_factory.mktemp("cluster")
    with standalone(folder) as master:
        yield Cluster(master, folder / "spark-home")


@pytest.mark.spark
@pytest.mark.xdist_group("spark of its own")
def test_executors_move_the_same_bytes_and_the_driver_none(
    root: Root, cluster: Cluster, tmp_path: Path
) -> None:
    files = dataset()
    here = open_store(str(tmp_path / "here"))
    for path, data in files.items():
        here.put(path, data)
    there = open_store(str(tmp_path / "there"))
    with serving(root.home, root.variables, root=root.store) as server:
        settings = {"spark.master": cluster.master, "spark.executor.memory": "512m"}
        done = subprocess.run(
            [
                *(sys.executable, "-c", PROGRAM, here.uri, f"{server.url}/acc/a", there.uri),
                *(json.dumps(settings), root.token("--scope", "write")),
            ],
            capture_output=True,
            text=True,
            env={**os.environ, "SPARK_HOME": str(cluster.home), "TMPDIR": str(tmp_path)},
            cwd=tmp_path,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    pushed, pulled, read, put, told = json.loads(done.stdout)
    objects = {path: data for path, data in files.items() if path[0] in "dc"}
    assert pushed == pulled
    assert (pushed["objects"], pushed["skipped"]) == (len(objects), 0)
    assert pushed["bytes"] == sum(map(len, objects.values()))
    assert files_of(there) == files
    # What the driver read and wrote itself are blocks, and the head.
    assert read < 10 * sum(len(data) for path, data in files.items() if path not in objects)
    assert read < pushed["bytes"]
    assert put <= len(files) - len(objects)
    assert told == "pushing"


@pytest.mark.spark
@pytest.mark.xdist_group("spark of its own")
def test_a_server_has_the_digests_of_a_table_made_by_spark(tmp_path: Path) -> None:
    components.require("spark-jars")
    history = History().then(Append(5), Append(3))
    for place in (tmp_path / "server" / "orders", tmp_path / "local"):
        make(history, place)
    variables = {"TMPDIR": str(tmp_path)}
    with serving(tmp_path, variables, "--anonymous-read", "--engine", "spark") as server:
        assert not list(tmp_path.glob("lakeferry-spark-*"))
        with urllib.request.urlopen(f"{server.url}/orders/refs/head", timeout=120) as answer:
            head = answer.read().decode()
        # The session is there for the next one, until the server ends.
        assert len(list(tmp_path.glob("lakeferry-spark-*"))) == 1
        assert server.end(SIGTERM) == 0, server.shown()
    assert not list(tmp_path.glob("lakeferry-spark-*"))
    assert head == str(DeltaDataset(open_store(str(tmp_path / "local")), "").current())
