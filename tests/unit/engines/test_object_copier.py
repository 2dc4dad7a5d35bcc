"""Copies of many objects, small ones together, and their comparison at both ends."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from lakeferry.engine import Compared, Compares, CopyPlan, CopyTotals, LogCopy, LogCopyPlan
from lakeferry.engines import object_copy
from lakeferry.engines.copy_progress import CopyProgress
from lakeferry.engines.local_engine import LocalEngine
from lakeferry.engines.object_copier import CopyTally, ObjectCopier
from lakeferry.engines.object_copy import CopyPlaces, Hands
from lakeferry.engines.objects_to_copy import WANTED
from lakeferry.errors import HashMismatch
from lakeferry.log.rewrite import Unchanged
from lakeferry.log.segment import Segment
from lakeferry.storage import Store, StoreConfig, open_store
from lakeferry.storage.byte_rate import ByteRate
from lakeferry.table import DeltaLog
from tests.support.corrupting import CorruptingStore, flipped
from tests.support.history import Append, DeleteRows, History, Layout
from tests.support.stores import DictStore

OLD, NEW = "memory://old", "memory://new"
PAST = History(Layout(deletion_vectors="u")).then(Append(4), DeleteRows(2))


class TogetherStore(DictStore):
    """A store that is faster if it gets many small objects at a time."""

    writes_together = True

    def __init__(self, *, uri: str = NEW) -> None:
        super().__init__(uri=uri)
        self.together: list[list[str]] = []

    def put_many(self, objects: Mapping[str, bytes]) -> None:
        self.together.append([*objects])
        super().put_many(objects)


class RememberedReads(DictStore):
    """Knows how many bytes its callers have got at once, and which threads they were."""

    def __init__(self, objects: Mapping[str, bytes]) -> None:
        super().__init__(objects, uri=OLD)
        self.longest = 0
        self.threads: set[threading.Thread] = set()

    def get(self, path: str) -> bytes:
        data = super().get(path)
        self.longest = max(self.longest, len(data))
        return data

    def get_range(self, path: str, start: int, length: int) -> bytes:
        data = super().get_range(path, start, length)
        self.longest = max(self.longest, len(data))
        self.threads.add(threading.current_thread())
        return data


def plan_for(source: Store, target: Store, compares: Compares = "nothing") -> CopyPlan:
    return CopyPlan(
        source.config,
        target.config,
        Segment(0, None, (), None, None),
        Unchanged(),
        compares=compares,
        replaces=True,
    )


def copied(
    source: Store, target: Store, stated: Mapping[str, int], compares: Compares = "nothing"
) -> CopyTotals:
    """Copy objects, of which a log states the sizes."""
    names = list(stated)
    table = pa.table([names, names, list(stated.values())], schema=WANTED)
    tally, progress = CopyTally(), CopyProgress(lambda *_: None)
    stores = {store.uri: store for store in (source, target)}

    def opened(config: StoreConfig) -> Store:
        return stores[config.uri]

    with Hands(4, progress.moved) as hands:
        places = CopyPlaces(source.config, opened)
        copier = ObjectCopier(hands, places, target, plan_for(source, target, compares))
        for outcome in copier.each(table.to_batches(), progress):
            tally.add(outcome)
    return tally.totals(0, 0)


class TestSizesInTheLog:
    @pytest.fixture(autouse=True)
    def little(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Call little large, so that tests needn't move megabytes."""
        monkeypatch.setattr(object_copy, "SMALL_COPY_BYTES", 800)
        monkeypatch.setattr(object_copy, "CHUNK_BYTES", 64)

    @pytest.mark.parametrize("stated", [-7, 0, 1, 9, 10, 11, 90])
    def test_objects_arrive_whole_whatever_the_log_says(self, stated: int) -> None:
        names = [f"{number}" for number in range(6)]
        objects = {name: name.encode() * 10 for name in names}
        source, target = DictStore(objects, uri=OLD), TogetherStore()
        total = copied(source, target, dict.fromkeys(names, stated))
        assert target.objects == objects
        assert (total.objects, total.bytes) == (6, 60)

    def test_large_objects_that_the_log_calls_small_are_not_held_in_memory(self) -> None:
        large = {f"{number}": bytes([number]) * 100_000 for number in range(6)}
        source, target = RememberedReads({**large, "small": b"s" * 40}), TogetherStore()
        copied(source, target, {**dict.fromkeys(large, 40), "small": 40})
        assert target.objects == source.objects
        assert source.longest <= object_copy.SMALL_COPY_BYTES + 1
        # Those of the right size are still written together.
        assert target.together == [["small"]]

    def test_files_on_disk_that_the_log_calls_small_are_copied_one_by_one(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        source, target = open_store(str(tmp_path / "a")), open_store(str(tmp_path / "b"))
        sizes = {"small": 10, "other": 5, "large": 5_000}
        for name, size in sizes.items():
            source.put(name, name.encode() * size)
        many: list[Sequence[str]] = []
        together = type(target).copy_many_from

        def seen(self: Store, *given: object) -> dict[str, int]:
            done: dict[str, int] = together(self, *given)  # type: ignore[arg-type]
            many.append(sorted(done))
            return done

        monkeypatch.setattr(type(target), "copy_many_from", seen)
        copied(source, target, dict.fromkeys(sizes, 10))
        assert many == [["other", "small"]]
        assert all(target.get(name) == source.get(name) for name in sizes)

    def test_a_missing_object_does_not_keep_others_from_going_together(self) -> None:
        source, target = DictStore({"a": b"1", "b": b"2"}, uri=OLD), TogetherStore()
        total = copied(source, target, {"a": 1, "gone": 1, "b": 1})
        assert (total.objects, total.missing) == (2, ("gone",))
        assert target.together == [["a", "b"]]


def engine_copy(
    source: Store,
    target: Store,
    compares: Compares,
    *,
    replaces: bool = True,
    resumed: bool = False,
    rate: ByteRate | None = None,
) -> CopyTotals:
    """Copy a whole table with the engine of this process."""
    stores = {store.uri: store for store in (source, target)}
    engine = LocalEngine(lambda config: stores[config.uri], parallel=4, rate=rate)
    segment = DeltaLog(source).segment()
    return engine.copy(
        CopyPlan(
            source.config, target.config, segment, Unchanged(), resumed, compares, replaces=replaces
        )
    )


def data_of(store: DictStore) -> dict[str, bytes]:
    return {name: data for name, data in store.objects.items() if "_delta_log/" not in name}


class TestComparison:
    @pytest.fixture
    def source(self) -> DictStore:
        return PAST.store(OLD)

    def test_right_copies_are_counted_with_their_vectors(self, source: DictStore) -> None:
        target = DictStore(uri=NEW)
        total = engine_copy(source, target, "copied")
        size_bytes = sum(map(len, data_of(target).values()))
        assert any(name.startswith("deletion_vector") for name in target.objects)
        assert total.compared == Compared(total.objects, size_bytes)

    @pytest.mark.parametrize("small_bytes", [1, 1 << 20])
    @pytest.mark.parametrize("wrong", ["part-", "deletion_vector"])
    def test_a_copy_of_the_same_size_with_other_bytes_is_found(
        self, source: DictStore, wrong: str, small_bytes: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(object_copy, "SMALL_COPY_BYTES", small_bytes)
        target = CorruptingStore(uri=NEW, wrong={wrong: 1})
        compared = engine_copy(source, target, "copied").compared
        assert compared.unequal_count == 1
        (path,) = compared.unequal
        assert wrong in path
        assert target.objects[path] == flipped(source.objects[path])

    def test_with_all_what_an_earlier_run_has_copied_is_compared_and_replaced(
        self, source: DictStore
    ) -> None:
        target = DictStore(uri=NEW)
        engine_copy(source, target, "nothing")
        name, missing, *_ = data_of(target)
        target.put(name, flipped(target.get(name)))
        target.delete_many([missing])
        # By size alone nothing is wrong with it.
        assert not engine_copy(source, target, "nothing", resumed=True).compared.replaced
        target.delete_many([missing])
        total = engine_copy(source, target, "all", resumed=True)
        assert data_of(target) == data_of(source)
        assert (total.objects, total.skipped) == (2, len(data_of(source)) - 2)
        assert total.compared.objects == len(data_of(source))
        assert (total.compared.unequal_count, total.compared.replaced) == (0, (name,))

    def test_an_object_of_the_target_itself_is_not_replaced(self, source: DictStore) -> None:
        target = DictStore(uri=NEW)
        engine_copy(source, target, "nothing")
        own, short, *_ = data_of(target)
        mine = flipped(target.get(own))
        target.put(own, mine)
        target.put(short, b"x")
        total = engine_copy(source, target, "all", replaces=False)
        assert total.compared.unequal == (own,)
        assert target.get(own) == mine
        # One of another size was begun by somebody and is no file of the table.
        assert target.get(short) == source.get(short)

    def test_a_copy_that_differs_twice_is_unequal(self, source: DictStore) -> None:
        target = CorruptingStore(uri=NEW)
        engine_copy(source, target, "nothing")
        name = next(iter(data_of(target)))
        target.put(name, flipped(target.get(name)))
        target.wrong = {name: 1}
        compared = engine_copy(source, target, "all").compared
        assert (compared.unequal, compared.replaced_count) == ((name,), 0)

    def test_what_the_source_has_lost_since_is_told(self, source: DictStore) -> None:
        target = DictStore(uri=NEW)
        engine_copy(source, target, "nothing")
        name = next(iter(data_of(target)))
        source.delete_many([name])
        total = engine_copy(source, target, "all")
        assert (total.compared.unread, total.missing_count) == ((name,), 0)
        assert name in target.objects

    def test_both_ends_are_read_within_the_limit(
        self, source: DictStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        taken: list[int] = []

        def reserve(_: ByteRate, size_bytes: int) -> float:
            taken.append(size_bytes)
            return 0.0

        monkeypatch.setattr(ByteRate, "reserve", reserve)
        total = engine_copy(source, DictStore(uri=NEW), "copied", rate=ByteRate(1 << 20))
        assert sum(taken) == 3 * total.bytes

    def test_progress_is_told_to_its_end(self, source: DictStore) -> None:
        told: list[tuple[str, int, int]] = []
        target = DictStore(uri=NEW)
        stores = {store.uri: store for store in (source, target)}
        engine = LocalEngine(lambda config: stores[config.uri], parallel=1)
        segment = DeltaLog(source).segment()
        ways: tuple[Compares, ...] = ("copied", "all")
        for compares in ways:
            plan = CopyPlan(
                source.config,
                target.config,
                segment,
                Unchanged(),
                compares=compares,
            )
            told.clear()
            engine.copy(plan, lambda *event: told.append(event))
            what, done, total = told[-1]
            assert (what, done) == ("copying and comparing data", total)


class TestLogFiles:
    @pytest.mark.parametrize("exclusive", [False, True])
    @pytest.mark.parametrize("small_bytes", [1, 1 << 20])
    def test_a_log_file_that_came_out_wrong_is_named(
        self, small_bytes: int, exclusive: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(object_copy, "SMALL_COPY_BYTES", small_bytes)
        source, target = PAST.store(OLD), CorruptingStore(uri=NEW, wrong={f"{1:020d}": 1})
        stores: dict[str, Store] = {OLD: source, NEW: target}
        names = [file.path for file in DeltaLog(source).segment().deltas]
        files = tuple(LogCopy(name, name, exclusive=exclusive) for name in names)
        plan = LogCopyPlan(source.config, target.config, files, compares=True)
        engine = LocalEngine(lambda config: stores[config.uri], parallel=4)
        with pytest.raises(HashMismatch) as found:
            engine.copy_log(plan)
        assert found.value.fields["uri"] == f"{NEW}/{names[1]}"
        again = tuple(LogCopy(name, name) for name in names)
        engine.copy_log(LogCopyPlan(source.config, target.config, again, compares=True))
        assert all(target.get(name) == source.get(name) for name in names)


def test_many_groups_are_compared_in_order() -> None:
    objects = {f"{number:03}": b"%d" % number for number in range(700)}
    source, target = DictStore(objects, uri=OLD), TogetherStore()
    first = copied(source, target, {name: len(data) for name, data in objects.items()}, "all")
    assert (first.objects, first.compared.objects) == (700, 700)
    assert sum(map(len, target.together)) == 700

    def names() -> Iterator[str]:
        yield from (name for some in target.together for name in some)

    assert sorted(names()) == sorted(objects)
    second = copied(source, target, {name: len(data) for name, data in objects.items()}, "all")
    assert (second.objects, second.skipped) == (0, 700)


def test_all_groups_share_the_requests_that_are_made_at_a_time() -> None:
    objects = {f"{number:04}": b"%d" % number for number in range(2_000)}
    source, target = RememberedReads(objects), TogetherStore()
    copied(source, target, {name: len(data) for name, data in objects.items()})
    assert target.objects == objects
    assert len(target.together) == 8
    assert len(source.threads) <= 8
