"""Copies under a limit: what waits, in which pieces, and what the store may do without waiting."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError
from pathlib import Path

import pytest

from lakeferry.engine import CopyPlan, LogCopy, LogCopyPlan
from lakeferry.engines import object_copy
from lakeferry.engines.copy_progress import CopyProgress
from lakeferry.engines.local_engine import LocalEngine
from lakeferry.engines.object_copy import Hands
from lakeferry.log.rewrite import Unchanged
from lakeferry.storage import Store, StoreConfig, open_store
from lakeferry.storage.byte_rate import ByteRate
from lakeferry.table import DeltaLog
from tests.support.history import Append, History
from tests.support.stores import DictStore

PIECE = 4096


class Taken(ByteRate):
    """A rate that notes what is taken, and lets nobody wait."""

    def __init__(self, bytes_per_s: int = PIECE) -> None:
        super().__init__(bytes_per_s)
        self.sizes: list[int] = []

    def take(self, size_bytes: int, ended: threading.Event) -> bool:
        self.sizes.append(size_bytes)
        return not ended.is_set()


class CopyingStore(DictStore):
    """Copies what another store has, as one service does."""

    def copy_from(
        self, source: Store, path: str, new_path: str, moved: Callable[[int], None]
    ) -> int | None:
        data = source.get(path)
        self.put(new_path, data)
        moved(len(data))
        return len(data)


@pytest.mark.parametrize("size", [1, PIECE, PIECE + 1, 3 * PIECE + 7, 3 * PIECE])
@pytest.mark.parametrize("known", [True, False])
def test_each_byte_is_taken_once_in_pieces_of_a_second(size: int, known: bool) -> None:
    source, target = DictStore({"x": os.urandom(size)}), DictStore()
    rate = Taken()
    with Hands(1, rate=rate) as hands:
        copied = hands.copy(source, "x", target, "y", size if known else None)
    assert (copied.size_bytes, copied.by_store) == (size, False)
    assert target.get("y") == source.get("x")
    # If the size isn't known, the first piece and one byte show whether the object is small.
    probed = PIECE + 1 if not known and size > PIECE else 0
    assert sum(rate.sizes) == size + probed
    assert max(rate.sizes) <= PIECE + 1


def test_a_wrong_size_in_the_log_is_no_way_around_the_limit() -> None:
    source, target, rate = DictStore({"x": bytes(100)}), DictStore(), Taken()
    with Hands(1, rate=rate) as hands:
        hands.copy(source, "x", target, "x", 10)
    assert rate.sizes == [10, 90]


def test_what_the_store_copies_itself_is_not_limited() -> None:
    source, target, rate = DictStore({"x": bytes(10 * PIECE)}), CopyingStore(), Taken()
    with Hands(1, rate=rate) as hands:
        assert hands.copy(source, "x", target, "x", 10 * PIECE).by_store
    assert rate.sizes == []


def test_local_files_are_limited(tmp_path: Path) -> None:
    source, target = open_store(str(tmp_path / "a")), open_store(str(tmp_path / "b"))
    for name, size in (("large", 3 * PIECE), ("small", 10), ("other", 20)):
        source.put(name, os.urandom(size))
    rate = Taken()
    with Hands(1, rate=rate) as hands:
        assert not hands.copy(source, "large", target, "large", 3 * PIECE).by_store
        copied = hands.copy_together(
            source, target, {"s": "small", "o": "other"}, {"s": 10, "o": 20}
        )
    assert rate.sizes == [PIECE, PIECE, PIECE, 30]
    assert [(each.size_bytes, each.by_store) for each in copied.values()] == [
        (10, False),
        (20, False),
    ]
    assert target.get("large") == source.get("large")


def test_progress_tells_the_pieces() -> None:
    source, target = DictStore({"x": bytes(2 * PIECE + 5), "y": bytes(5)}), DictStore()
    told: list[tuple[int, int]] = []
    rate = Taken()
    progress = CopyProgress(lambda size, count: told.append((size, count)), rate)
    with Hands(1, progress.moved, rate) as hands:
        for name in ("x", "y"):
            size = len(source.get(name))
            progress.ended(size, hands.copy(source, name, target, name, size).size_bytes)
    assert told == [
        (0, 0),
        (PIECE, 0),
        (2 * PIECE, 0),
        (2 * PIECE + 5, 0),
        (2 * PIECE + 5, 1),
        (2 * PIECE + 10, 2),
    ]


def test_waiting_threads_end_with_the_copy() -> None:
    """As after Ctrl-C: bytes are due in an hour, and nobody waits for them."""
    source, target = DictStore({"x": bytes(8), "y": bytes(3600 * PIECE)}), DictStore()
    begun = threading.Event()

    class Slow(ByteRate):
        def take(self, size_bytes: int, ended: threading.Event) -> bool:
            if size_bytes > 8:
                begun.set()
            return super().take(size_bytes * 3600 if size_bytes > 8 else 0, ended)

    ended: list[Exception] = []

    def act(name: str) -> None:
        try:
            hands.copy(source, name, target, name, len(source.get(name)))
        except (CancelledError, RuntimeError) as error:
            # A thread that waited, or one that wanted to begin with the next piece.
            ended.append(error)
            raise

    with Hands(2, rate=Slow(PIECE)) as hands:
        results = hands.each(act, ["x", "y"])
        next(results)
        assert begun.wait(5)
    assert ended
    assert not target.exists("y")


def engine_for(rate: ByteRate, *stores: Store) -> LocalEngine:
    by_uri = {store.uri: store for store in stores}

    def opened(config: StoreConfig) -> Store:
        return by_uri[config.uri]

    return LocalEngine(opened, parallel=1, rate=rate)


def test_an_engine_limits_data_and_log() -> None:
    source = DictStore(
        History().then(Append(3)).objects("memory://old", with_data=True), uri="memory://old"
    )
    target, rate = DictStore(uri="memory://new"), Taken(1 << 20)
    engine = engine_for(rate, source, target)
    segment = DeltaLog(source).segment()
    totals = engine.copy(CopyPlan(source.config, target.config, segment, Unchanged()))
    assert sum(rate.sizes) == totals.bytes > 0
    rate.sizes.clear()
    files = tuple(LogCopy(file.path, file.path) for file in segment.deltas)
    sizes = engine.copy_log(LogCopyPlan(source.config, target.config, files))
    assert sorted(rate.sizes) == sorted(sizes)


def test_without_a_limit_objects_are_as_large_as_before() -> None:
    assert object_copy.small_bytes(None) == object_copy.SMALL_COPY_BYTES
    assert object_copy.small_bytes(ByteRate(1 << 30)) == object_copy.SMALL_COPY_BYTES
