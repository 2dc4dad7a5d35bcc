"""Spark's tasks tell how far they are within one large file, however few files there are."""

from __future__ import annotations

import os
import select
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from lakeferry.engine import (
    PAIR,
    TO_HASH,
    CarryPlan,
    Engine,
    HashPlan,
    LogCopy,
    LogCopyPlan,
    LookPlan,
    Observer,
    RewritePlan,
    Volume,
)
from lakeferry.engines.spark.tasks.counters import Counters, kept
from lakeferry.log import file_actions
from lakeferry.storage import Store, open_store
from tests.unit.engines.test_file_rewrite import column, metadata, put

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SIZE = 80 * 1024 * 1024
"""Ten pieces."""


@pytest.fixture
def engine(spark: SparkSession) -> Iterator[Engine]:
    from lakeferry.engines.spark.spark_engine import SparkEngine

    with SparkEngine() as engine:
        yield engine


@pytest.fixture
def gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A pipe at which a task waits inside its first large file, until somebody opens it."""
    from lakeferry.engines.spark import spark_session

    gate = str(tmp_path / "gate")
    os.mkfifo(gate)

    # Spark sends classes that aren't on the top level of a module by their values.
    class GatedCounters(Counters):
        @contextmanager
        def slot(self, number: int) -> Iterator[Callable[[int, int], None]]:
            waited = False

            with Counters.slot(self, number) as keep:

                def wait(size_bytes: int, objects: int) -> None:
                    nonlocal waited
                    if waited or not size_bytes or objects:
                        keep(size_bytes, objects)
                        return
                    opened = os.open(gate, os.O_RDONLY | os.O_NONBLOCK)
                    keep(size_bytes, objects)
                    assert select.select([opened], [], [], 60)[0], "nobody saw the progress"
                    os.close(opened)
                    waited = True

                yield wait

    @contextmanager
    def gated() -> Iterator[Counters | None]:
        with kept() as counters:
            assert counters
            yield GatedCounters(counters.path)

    monkeypatch.setattr(spark_session, "kept", gated)
    return gate


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """A table's folder with one large file of zeros."""
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "large").touch()
    os.truncate(tmp_path / "source" / "large", SIZE)
    return open_store(str(tmp_path / "source"))


def hashing(engine: Engine, store: Store, _folder: Path, observer: Observer) -> int:
    row = {"name": "large", "size": SIZE}
    plan = HashPlan(store.config, pa.Table.from_pylist([row], TO_HASH))
    assert sum(len(batch) for batch in engine.hash(plan, observer)) == 1
    return SIZE


def looking(engine: Engine, store: Store, folder: Path, observer: Observer) -> int:
    os.link(folder / "source" / "large", folder / "other")
    row = {"path_a": "large", "size_a": SIZE, "path_b": "other", "size_b": SIZE}
    other = open_store(str(folder))
    plan = LookPlan(store.config, other.config, pa.Table.from_pylist([row], PAIR), "digest")
    assert sum(len(batch) for batch in engine.look(plan, observer)) == 1
    return 2 * SIZE


def copying_the_log(engine: Engine, store: Store, folder: Path, observer: Observer) -> int:
    target = open_store(str(folder / "target"))
    files = (LogCopy("large", "_delta_log/new", size_bytes=SIZE),)
    assert engine.copy_log(LogCopyPlan(store.config, target.config, files), observer) == (SIZE,)
    return SIZE


def rewriting(engine: Engine, store: Store, _folder: Path, observer: Observer) -> int:
    data = [None, pa.py_buffer(os.urandom(16_000_000))]
    numbers = pa.Array.from_buffers(pa.int64(), 2_000_000, data)
    row = put(store, "part", pa.table({"id": numbers}), row_group_size=100_000)
    columns = metadata(column("id", "long"))
    files = pa.Table.from_pylist([row], file_actions.ADD)
    plan = RewritePlan(store.config, files, columns, columns, only_where_needed=False)
    assert sum(len(batch) for batch in engine.rewrite(plan, observer)) == 1
    return int(row["size"])


@pytest.mark.parametrize("work", [hashing, looking, copying_the_log, rewriting])
def test_progress_moves_inside_a_large_file(
    work: Callable[[Engine, Store, Path, Observer], int],
    engine: Engine,
    store: Store,
    gate: str,
    tmp_path: Path,
) -> None:
    told: list[tuple[int, int]] = []

    def observe(_what: str, done: int, total: int) -> None:
        if 0 < done < total and all(before == 0 for before, _ in told):
            # The task goes on only now.
            os.close(os.open(gate, os.O_WRONLY))
        told.append((done, total))

    size = work(engine, store, tmp_path, observe)
    assert told == sorted(told)
    assert told[0] == (0, size)
    assert told[-1] == (size, size)
    # Of two files that are compared, the whole first one isn't inside either.
    assert {done for done, _ in told if 0 < done < size and done != SIZE}


def test_progress_moves_inside_a_large_object_of_a_transfer(
    engine: Engine, store: Store, tmp_path: Path
) -> None:
    gate = str(tmp_path / "gate")
    os.mkfifo(gate)

    # Spark sends classes that aren't on the top level of a module by their values.
    class Carrier:
        def carry(
            self, numbers: Sequence[int], _tasks: int, tell: Callable[[int, int], None]
        ) -> Iterator[tuple[int, str]]:
            for number in numbers:
                opened = os.open(gate, os.O_RDONLY | os.O_NONBLOCK)
                tell(30, 0)
                assert select.select([opened], [], [], 60)[0], "nobody saw the progress"
                os.close(opened)
                tell(100, 1)
                yield number, "100"

    told: list[tuple[int, int, int]] = []

    def observe(_what: str, done: int, total: int) -> None:
        assert isinstance(done, Volume)
        told.append((done, done.objects, total))
        if done == 30 and told.count(told[-1]) == 1:
            # The task goes on only now.
            os.close(os.open(gate, os.O_WRONLY))

    plan = CarryPlan(Carrier(), store.config, (100,), "moving")
    assert list(engine.carry(plan, observe)) == [(0, "100")]
    assert told[0] == (0, 0, 100)
    assert (30, 0, 100) in told
    assert told[-1] == (100, 1, 100)
