"""What nothing reaches, found by Spark and by this process: the same, on disk and on S3."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lakeferry.engine import Engine
from lakeferry.engines.local_engine import LocalEngine
from lakeferry.engines.spark import orphans_on_spark
from lakeferry.engines.spark.spark_engine import SparkEngine
from lakeferry.storage import Store, open_store
from lakeferry.transfer.chain.hashes import Multihash
from lakeferry.transfer.repository.garbage_collection import Collector, GarbageCollected, collect
from tests.support.odf import Chain, SetInfo
from tests.support.reference_client import files_of
from tests.support.servers import S3Bucket

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

HOUR_MS = 3_600_000


@pytest.fixture(autouse=True)
def few_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task lists several prefixes: a bucket has so many that each would have its own."""
    monkeypatch.setattr(orphans_on_spark, "_MOST_TASKS", 8)


@pytest.fixture(params=["local", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param == "local":
        return open_store(str(tmp_path / "root"))
    bucket: S3Bucket = request.getfixturevalue("s3_bucket")
    return open_store(f"{bucket.uri}/root", bucket.storage_options)


def history(step: str) -> dict[str, bytes]:
    return files_of(Chain().append(checkpoint="c").add(SetInfo(step)).append(checkpoint=step))


def fill(store: Store) -> set[str]:
    """Hold three datasets, one of them damaged, and return what nothing reaches."""
    garbage = set()
    for name in ("a", "acc/b", "broken"):
        files = history(name)
        for path, data in files.items():
            store.put(f"{name}/{path}", data)
        for number in range(20):
            path = f"{name}/data/{Multihash.sha3_256(b'%d' % number)}"
            store.put(path, b"x" * number)
            garbage.add(path)
        fork = history(f"fork of {name}")
        for path in fork.keys() - files.keys():
            store.put(f"{name}/{path}", fork[path])
            garbage.add(f"{name}/{path}")
    seed = Chain().blocks[0][0]
    store.delete_many([f"broken/blocks/{seed}"])
    return {path for path in garbage if not path.startswith("broken/")}


def test_both_engines_find_the_same(spark: SparkSession, store: Store) -> None:
    garbage = fill(store)
    found = {}
    for engine in (LocalEngine(), SparkEngine()):
        collector = Collector(store, grace_ms=0, dry_run=True, clock=lambda: 2**52)

        def noted(objects: int, size_bytes: int, engine: Engine = engine) -> Engine:
            return engine

        collector.unreached(noted)
        found[engine.name] = {each.path: each.size_bytes for each in collector.garbage}
        assert collector.collected().damaged == ("broken",)
    assert found["spark"] == found["local"]
    assert found["spark"].keys() == garbage


def test_spark_leaves_what_is_young_and_the_rest_is_deleted(
    spark: SparkSession, store: Store
) -> None:
    garbage = fill(store)
    before = {info.path for info in store.list("")}
    now_ms = max(info.modified_ms for info in store.list(""))
    young = collect(store, lambda *_: SparkEngine(), grace_ms=HOUR_MS, clock=lambda: now_ms)
    assert isinstance(young, GarbageCollected)
    assert young.deleted == ()
    done = collect(
        store, lambda *_: SparkEngine(), grace_ms=HOUR_MS, clock=lambda: now_ms + HOUR_MS
    )
    assert isinstance(done, GarbageCollected)
    assert set(done.deleted) == garbage
    assert {info.path for info in store.list("")} == before - garbage
