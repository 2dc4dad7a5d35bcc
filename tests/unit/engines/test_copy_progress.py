"""How far a copy, a comparison or a rewrite is, told within large objects too."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest

from lakeferry.engine import (
    PAIR,
    TO_HASH,
    HashPlan,
    LogCopy,
    LogCopyPlan,
    LogExportPlan,
    LookPlan,
    Observer,
    ReplayPlan,
    Volume,
)
from lakeferry.engines import object_copy
from lakeferry.engines.copy_progress import CopyProgress
from lakeferry.engines.local_engine import LocalEngine
from lakeferry.engines.object_copy import Hands
from lakeferry.errors import CorruptLog
from lakeferry.log import checkpoint_read
from lakeferry.log.rewrite import Absolute, Listed, rewrite_parquet
from lakeferry.storage import Store, StoreConfig, local_durability, open_store
from lakeferry.table import DeltaLog
from tests.support.history import Append, Checkpoint, History, Kind, Layout
from tests.support.stores import DictStore


def test_a_large_object_is_told_piece_by_piece(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_copy, "SMALL_COPY_BYTES", 10)
    monkeypatch.setattr(local_durability, "_COPIED_AT_ONCE", 10)
    source, target = open_store(str(tmp_path / "a")), open_store(str(tmp_path / "b"))
    sizes = {"large": 35, "small": 5}
    for name, size in sizes.items():
        source.put(name, os.urandom(size))
    told: list[tuple[int, int]] = []
    progress = CopyProgress(lambda size_bytes, count: told.append((size_bytes, count)))
    with Hands(1, progress.moved) as hands:
        for name, size in sizes.items():
            progress.ended(size, hands.copy(source, name, target, name, size).size_bytes)
    assert told == [(0, 0), (20, 0), (30, 0), (35, 0), (35, 1), (40, 2)]
    assert target.get("large") == source.get("large")


class _Slow(DictStore):
    """Copies an object for as long as somebody waits for it."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.ended = threading.Event(), threading.Event()

    def copy_from(
        self,
        source: Store,
        path: str,
        new_path: str,
        moved: Callable[[int], None],
    ) -> int | None:
        for _ in range(1_000):
            self.begun.set()
            try:
                moved(1)
            except BaseException:
                self.ended.set()
                raise
            time.sleep(0.01)
        return 1_000


def test_a_copy_by_the_store_ends_when_nobody_waits_for_it() -> None:
    target = _Slow()

    def act(name: str) -> None:
        if name == "slow":
            hands.copy(DictStore(), name, target, name, None)

    with Hands() as hands:
        results = hands.each(act, ["first", "slow"])
        next(results)
        assert target.begun.wait(5)
        # As after Ctrl-C, nobody asks for the second result.
    assert target.ended.is_set()


@pytest.fixture
def _pieces_of_ten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_copy, "SMALL_COPY_BYTES", 10)
    monkeypatch.setattr(object_copy, "CHUNK_BYTES", 10)


Told = list[tuple[int, int, int, int]]


def observer_of(told: Told) -> Observer:
    """Return an observer that notes bytes and objects, done and in all."""

    def observe(_what: str, done: int, total: int) -> None:
        assert isinstance(done, Volume)
        assert isinstance(total, Volume)
        told.append((int(done), done.objects, int(total), total.objects))

    return observe


@pytest.mark.usefixtures("_pieces_of_ten")
def test_hashing_tells_how_far_it_is_within_a_large_object() -> None:
    store = DictStore({"large": b"x" * 25, "small": b"x" * 5})
    rows = [{"name": "large", "size": 25}, {"name": "small", "size": 5}, {"name": "no", "size": 2}]
    plan = HashPlan(store.config, pa.Table.from_pylist(rows, TO_HASH))
    told: Told = []
    found = list(LocalEngine(lambda _: store, parallel=1).hash(plan, observer_of(told)))
    assert sum(len(batch) for batch in found) == 3
    done = [(0, 0), (10, 0), (20, 0), (25, 0), (25, 1), (30, 2), (32, 3)]
    assert told == [(size, count, 32, 3) for size, count in done]


@pytest.mark.usefixtures("_pieces_of_ten")
@pytest.mark.parametrize("is_one", [False, True])
def test_comparing_digests_tells_how_far_it_is_within_a_large_file(is_one: bool) -> None:
    a, b = (DictStore({"x": b"x" * 15}, uri=f"memory://{name}") for name in "ab")
    path_b = "memory://a/x" if is_one else "x"
    pair = {"path_a": "x", "size_a": 15, "path_b": path_b, "size_b": 15}
    plan = LookPlan(a.config, b.config, pa.Table.from_pylist([pair], PAIR), "digest")
    stores = {store.uri: store for store in (a, b)}
    told: Told = []
    engine = LocalEngine(lambda config: stores[config.uri], parallel=1)
    list(engine.look(plan, observer_of(told)))
    first = [(0, 0), (10, 0), (15, 0), (15, 1)]
    # A file that both tables name is read once.
    second = [(30, 2)] if is_one else [(25, 1), (30, 1), (30, 2)]
    assert told == [(size, count, 30, 2) for size, count in first + second]


HISTORY = History().then(Append(500), Checkpoint())
CHECKPOINT = "_delta_log/00000000000000000001.checkpoint.parquet"


class ReplacedStore(DictStore):
    """A store in which an object is replaced after its third range was read."""

    new: bytes | None = None
    ranges = 0

    def get_range(self, path: str, start: int, length: int) -> bytes:
        data = super().get_range(path, start, length)
        self.ranges += 1
        if self.ranges == 3 and self.new is not None:
            self.put(path, self.new)
        return data


@pytest.fixture
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_copy, "SMALL_COPY_BYTES", 1000)
    monkeypatch.setattr(object_copy, "CHUNK_BYTES", 1000)


def log_plan(source: DictStore, target: DictStore, how: str) -> LogCopyPlan | LogExportPlan:
    size = source.head(CHECKPOINT).size_bytes
    files = (LogCopy(CHECKPOINT, "copy", exclusive=how == "exclusive", size_bytes=size),)
    if how == "exported":
        listed = Listed.below(source.uri, pa.array([], pa.string()))
        return LogExportPlan(source.config, target.config, files, listed, {})
    rewrite = Absolute(source.uri) if how == "rewritten" else None
    return LogCopyPlan(source.config, target.config, files, rewrite, {})


def run(plan: LogCopyPlan | LogExportPlan, *stores: DictStore) -> Told:
    told: Told = []
    by_uri = {store.uri: store for store in stores}

    def opened(config: StoreConfig) -> DictStore:
        return by_uri[config.uri]

    engine = LocalEngine(opened, parallel=1)
    if isinstance(plan, LogExportPlan):
        engine.export_log(plan, observer_of(told))
    else:
        engine.copy_log(plan, observer_of(told))
    return told


@pytest.mark.usefixtures("_small_chunks")
@pytest.mark.parametrize("how", ["copied", "rewritten", "exclusive", "exported"])
def test_a_copy_of_the_log_tells_how_far_it_is_within_a_large_checkpoint(how: str) -> None:
    source, target = HISTORY.store("memory://old"), DictStore(uri="memory://new")
    told = run(log_plan(source, target, how), source, target)
    size = source.head(CHECKPOINT).size_bytes
    assert size > 10_000
    assert told == sorted(told)
    assert told[0] == (0, 0, size, 1)
    assert told[-2:] == [(size, 0, size, 1), (size, 1, size, 1)]
    done = [size_bytes for size_bytes, *_ in told]
    read = done if how == "copied" else [each for each in done if each <= size // 3]
    assert len(read) > size // 1000
    assert max(after - before for before, after in pairwise(read)) <= 1000
    # Only an exclusive file is written in one request: no other one can be refused atomically.
    if how in ("rewritten", "exported"):
        written = [each for each in done if each > size // 3 * 2]
        assert len(written) > size // 1000


@pytest.mark.usefixtures("_small_chunks")
def test_a_checkpoint_that_is_replaced_while_it_is_read_is_read_again() -> None:
    source = ReplacedStore(HISTORY.objects("memory://old"), uri="memory://old")
    target = DictStore(uri="memory://new")
    plan = log_plan(source, target, "rewritten")
    before = source.get(CHECKPOINT)
    source.new = History().then(Append(400), Checkpoint()).objects("memory://old")[CHECKPOINT]
    run(plan, source, target)
    assert source.get(CHECKPOINT) == source.new != before
    assert target.get("copy") == rewrite_parquet(source.new, Absolute(source.uri), {})


SIDECARS = History(Layout(v2_checkpoints=True)).then(
    Append(500), Checkpoint(Kind.V2_PARQUET, sidecars=2), Append(1)
)


@pytest.mark.usefixtures("_small_chunks")
@pytest.mark.parametrize("history", [HISTORY, SIDECARS])
@pytest.mark.parametrize("parallel", [1, 4])
def test_reading_a_log_tells_how_far_it_is_within_a_large_checkpoint(
    history: History, parallel: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint_read, "BATCH_ROWS", 50)
    store = history.store("memory://old")
    segment = DeltaLog(store).segment()
    large = [info.size_bytes for info in store.list("_delta_log/") if ".parquet" in info.path]
    told: Told = []
    engine = LocalEngine(lambda _: store, parallel=parallel)
    plan = ReplayPlan(store.config, segment)
    engine.replay(plan, observer_of(told)).close()
    assert [(size, count) for size, count, *_ in told] == sorted(each[:2] for each in told)
    assert told[0][:2] == (0, 0)
    size, count, total, objects = told[-1]
    assert (size, count) == (total, objects)
    assert total >= sum(large) > 20_000
    done = {size_bytes for size_bytes, *_ in told}
    # One half of each file is its fetching, in pieces; the other one is decoding its rows.
    assert len(done) > sum(large) // 1000 + 10
    assert max(after - before for before, after in pairwise(sorted(done))) < max(large) // 2


@pytest.mark.usefixtures("_small_chunks")
def test_a_large_file_of_the_log_that_is_gone_is_named() -> None:
    store = HISTORY.store("memory://old")
    plan = ReplayPlan(store.config, DeltaLog(store).segment())
    store.delete_many([CHECKPOINT])
    with pytest.raises(CorruptLog, match="is gone") as gone:
        LocalEngine(lambda _: store, parallel=1).replay(plan)
    assert gone.value.fields["path"] == CHECKPOINT
