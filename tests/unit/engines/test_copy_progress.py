"""How far a copy or a comparison is, told within large objects too."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pytest

from lakeferry.engine import PAIR, TO_HASH, HashPlan, LookPlan, Observer, Volume
from lakeferry.engines import object_copy
from lakeferry.engines.copy_progress import CopyProgress
from lakeferry.engines.local_engine import LocalEngine
from lakeferry.engines.object_copy import Hands
from lakeferry.storage import open_store
from tests.support.stores import DictStore


def test_a_large_object_is_told_piece_by_piece(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_copy, "SMALL_COPY_BYTES", 10)
    monkeypatch.setattr(object_copy, "CHUNK_BYTES", 10)
    source, target = open_store(str(tmp_path / "a")), open_store(str(tmp_path / "b"))
    sizes = {"large": 35, "small": 5}
    for name, size in sizes.items():
        source.put(name, os.urandom(size))
    told: list[tuple[int, int]] = []
    progress = CopyProgress(lambda size_bytes, count: told.append((size_bytes, count)))
    with Hands(1, progress.moved) as hands:
        for name, size in sizes.items():
            progress.ended(size, hands.copy(source, name, target, name, size))
    assert told == [(0, 0), (10, 0), (20, 0), (30, 0), (35, 0), (35, 1), (40, 2)]
    assert target.get("large") == source.get("large")


@pytest.fixture
def _pieces_of_ten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_copy, "SMALL_COPY_BYTES", 10)
    monkeypatch.setattr(object_copy, "CHUNK_BYTES", 10)


Told = list[tuple[int, int, int, int]]


def observer_of(told: Told) -> Observer:
    """Return an observer that notes bytes and objects, done and in all."""

    def observe(what: str, done: int, total: int) -> None:
        assert what in ("reading digests", "comparing digests")
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
