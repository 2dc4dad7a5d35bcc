from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from lakeferry.engine import CopyPlan, CopyTotals, LogCopy, LogCopyPlan, Volume
from lakeferry.engines import object_copy, objects_to_copy
from lakeferry.engines.local_engine import LocalEngine
from lakeferry.engines.object_copy import CopyPlaces, Gone, Hands
from lakeferry.errors import CorruptLog, InvalidInput, MissingFile, ObjectNotFound
from lakeferry.log.paths import LogFileKind as LogKind
from lakeferry.log.references import REFERENCES
from lakeferry.log.rewrite import Absolute, Adopted, Relative, Unchanged
from lakeferry.log.segment import Segment
from lakeferry.storage import OpenedObject, Store, StoreConfig, open_store
from lakeferry.storage.store import StreamChunk
from lakeferry.table import DeltaLog
from tests.support.history import (
    Append,
    Change,
    Checkpoint,
    Clean,
    Compact,
    Delete,
    DeleteRows,
    History,
    Kind,
    Layout,
    Lines,
    Optimize,
)
from tests.support.stores import DictStore, Fault, FaultyStore, Stopped, at, on

RICH = Layout(partitioned=True, deletion_vectors="u", change_data=True)
V2 = Layout(partitioned=True, deletion_vectors="u", change_data=True, v2_checkpoints=True)
STEPS = (Append(6), DeleteRows(3), Change(), Delete(2), Optimize(2))
HISTORIES = {
    "commits alone": History(RICH).then(*STEPS),
    "classic": History(RICH).then(*STEPS, Checkpoint(), Append(2)),
    "multi-part": History(RICH).then(*STEPS, Checkpoint(Kind.MULTI_PART, parts=3), DeleteRows(1)),
    "V2 in JSON": History(V2).then(*STEPS, Checkpoint(Kind.V2_JSON), Append(2)),
    "V2 in Parquet": History(V2).then(*STEPS, Checkpoint(Kind.V2_PARQUET), Change()),
    "compacted": History(RICH).then(*STEPS, Compact(3), Append(1)),
}


class World:
    """Stores by their URI, as an engine is handed them."""

    def __init__(self, *stores: Store) -> None:
        self.stores = {store.uri: store for store in stores}

    def open(self, config: StoreConfig) -> Store:
        return self.stores[config.uri]

    def engine(self, parallel: int = 4) -> LocalEngine:
        return LocalEngine(self.open, parallel=parallel)


def data(store: DictStore) -> dict[str, bytes]:
    return {
        name: value for name, value in store.objects.items() if not name.startswith("_delta_log/")
    }


def newest(store: Store) -> Segment:
    return DeltaLog(store).segment()


def copy(source: Store, target: Store, *, resumed: bool = False) -> CopyTotals:
    plan = CopyPlan(source.config, target.config, newest(source), Unchanged(), resumed)
    return World(source, target).engine().copy(plan)


@pytest.mark.parametrize("parallel", [1, 4])
@pytest.mark.parametrize("name", HISTORIES)
def test_all_that_a_version_needs_is_copied(name: str, parallel: int) -> None:
    source, target = HISTORIES[name].store("memory://old/t"), DictStore(uri="memory://new/t")
    segment = newest(source)
    plan = CopyPlan(source.config, target.config, segment, Unchanged())
    totals = World(source, target).engine(parallel).copy(plan)
    copied = data(target)
    assert copied.items() <= data(source).items()
    assert totals.objects == len(copied)
    assert totals.bytes == sum(map(len, copied.values()))
    assert (totals.skipped, totals.missing_count, totals.missing, totals.renamed) == (0, 0, (), 0)
    for path, name in _live(source):
        assert name in copied, path
    if segment.checkpoint is None and all(file.kind is LogKind.COMMIT for file in segment.deltas):
        # All of history is in these commits, so all that there ever was is referred to.
        assert copied == data(source)


def _live(store: Store) -> Iterator[tuple[str, str]]:
    places = CopyPlaces(store.config, lambda _: store)
    for path in DeltaLog(store).snapshot().files["path"].to_pylist():
        yield path, places.find(path)[1]


def test_only_what_a_stretch_of_the_log_adds_is_copied() -> None:
    history = History(RICH).then(Append(3), Checkpoint(), Append(2), Change(), Delete(1))
    source, target = history.store(), DictStore(uri="memory://new")
    commits = newest(source).deltas
    segment = Segment(commits[-1].version, None, commits, None, None)
    plan = CopyPlan(source.config, target.config, segment, Unchanged())
    assert World(source, target).engine().copy(plan).objects == 2 + 1 + 1
    assert len(data(target)) == 4


def test_names_are_decoded_once() -> None:
    history = History(Layout(partitioned=True)).then(Append(6))
    source, target = history.store(), DictStore(uri="memory://new")
    copy(source, target)
    assert any("%" in name for name in target.objects)
    assert any(" ä" in name for name in target.objects)
    assert data(target) == data(source)


ABSOLUTE = Lines(
    (
        '{"add":{"path":"memory://else/where/a%20b","size":3,"partitionValues":{},"dataChange":true}}',
        '{"add":{"path":"./odd//x","size":3,"partitionValues":{},"dataChange":true}}',
    )
)


def test_files_of_other_places_come_along_if_they_get_a_name() -> None:
    source = History().then(ABSOLUTE).store("memory://old")
    source.put("odd/x", b"odd")
    target = DictStore(uri="memory://new")
    elsewhere = DictStore({"where/a b": b"abc"}, uri="memory://else")
    engine = World(source, target, elsewhere).engine()
    stay = CopyPlan(source.config, target.config, newest(source), Unchanged())
    assert engine.copy(stay) == CopyTotals(1, 3, 0, 0, (), 0)
    assert data(target) == {"odd/x": b"odd"}
    along = CopyPlan(source.config, target.config, newest(source), Adopted(source.uri))
    assert engine.copy(along) == CopyTotals(2, 6, 0, 0, (), 1)
    assert data(target) == {"odd/x": b"odd", "_adopted/memory/else/where/a b": b"abc"}


def test_what_gets_an_absolute_path_stays_where_it_is() -> None:
    source, target = HISTORIES["classic"].store("memory://old"), DictStore(uri="memory://new")
    plan = CopyPlan(source.config, target.config, newest(source), Absolute(source.uri))
    totals = World(source, target).engine().copy(plan)
    assert totals.objects == 0
    assert totals.renamed > 0
    assert target.objects == {}


def test_what_is_missing_is_counted_and_named() -> None:
    source, target = History().then(Append(5)).store(), DictStore(uri="memory://new")
    paths = DeltaLog(source).snapshot().files["path"].to_pylist()
    places = CopyPlaces(source.config, lambda _: source)
    source.delete_many([places.find(path)[1] for path in paths[1:3]])
    totals = copy(source, target)
    assert (totals.objects, totals.missing_count) == (3, 2)
    assert set(totals.missing) == set(paths[1:3])


def test_of_many_missing_files_some_are_named() -> None:
    source, target = History().then(Append(1_100)).store(), DictStore(uri="memory://new")
    source.delete_many(list(data(source)))
    totals = copy(source, target)
    assert (totals.missing_count, len(totals.missing)) == (1_100, 1_000)


def test_a_target_that_is_not_there_is_no_missing_file() -> None:
    source, target = History().then(Append(1)).store(), DictStore(uri="memory://new")

    class NoBucket(FaultyStore):
        def put(self, path: str, data: bytes) -> None:
            raise ObjectNotFound("No bucket", bucket_missing=True)

    with pytest.raises(ObjectNotFound):
        copy(source, NoBucket(target))


class TestResumed:
    def test_what_is_there_is_left_alone(self) -> None:
        source, target = HISTORIES["classic"].store(), DictStore(uri="memory://new")
        first = copy(source, target)
        target.calls.reset()
        again = copy(source, target, resumed=True)
        assert (again.objects, again.skipped) == (0, first.objects)
        assert target.calls["PUT"] == 0
        assert target.calls["LIST"] == 1

    def test_without_it_nothing_is_listed_and_all_is_copied(self) -> None:
        source, target = HISTORIES["classic"].store(), DictStore(uri="memory://new")
        first = copy(source, target)
        target.calls.reset()
        assert copy(source, target) == first
        assert target.calls["LIST"] == 0

    def test_what_has_another_size_is_copied_again(self) -> None:
        source, target = HISTORIES["classic"].store(), DictStore(uri="memory://new")
        copy(source, target)
        right = data(target)
        vector = next(name for name in right if name.endswith(".bin"))
        file = next(name for name in right if name.endswith(".parquet"))
        target.put(vector, b"")
        target.put(file, b"half")
        again = copy(source, target, resumed=True)
        assert again.objects == 2
        assert data(target) == right

    def test_a_copy_that_was_stopped_anywhere_is_completed(self) -> None:
        history = HISTORIES["V2 in Parquet"]
        source, whole = history.store(), DictStore(uri="memory://new")
        clean = FaultyStore(whole)
        copy(source, clean)
        for index in range(len(clean.history)):
            target = DictStore(uri="memory://new")
            stopping = FaultyStore(target, at(index, Fault.STOP_AFTER))
            plan = CopyPlan(source.config, target.config, newest(source), Unchanged())
            with pytest.raises(Stopped):
                World(source, stopping).engine(1).copy(plan)
            before = len(target.objects)
            again = copy(source, target, resumed=True)
            assert again.skipped == before
            assert target.objects == whole.objects


def test_progress_is_told_in_bytes_and_objects() -> None:
    source, target = History().then(Append(3)).store(), DictStore(uri="memory://new")
    told: list[tuple[str, int, int]] = []
    plan = CopyPlan(source.config, target.config, newest(source), Unchanged())
    World(source, target).engine().copy(plan, lambda *event: told.append(event))
    sizes = sum(map(len, data(source).values()))
    assert {what for what, _, _ in told} == {"reading the log", "copying data"}
    told = [event for event in told if event[0] == "copying data"]
    amounts = [done for _, done, _ in told]
    assert amounts == sorted(amounts)
    assert (amounts[0], amounts[-1]) == (0, sizes)
    assert {total for _, _, total in told} == {sizes}
    objects_told = [amount.objects for amount in amounts if isinstance(amount, Volume)]
    assert objects_told == [0, 1, 2, 3]


class CountedMemory(DictStore):
    """Large objects that exist only while they are copied; counts the bytes between two stores."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size
        self.held = self.most = self.taken = 0
        self.looked: dict[str, int] = {}
        self.lock = threading.Condition()
        self.read = dict.fromkeys(map(str, range(8)), 0)

    def open(self, path: str) -> OpenedObject:
        store = self

        class Opened(OpenedObject):
            size_bytes = store.size

            def read(self, start: int, length: int) -> bytes:
                with store.lock:
                    store.read[path] += length
                return store.hold(length)

            def check(self) -> None:
                pass

        return Opened()

    def get(self, path: str) -> bytes:
        return self.get_range(path, 0, self.size)

    def get_range(self, path: str, start: int, length: int) -> bytes:
        self.looked[path] = min(length, self.size - start)
        return self.hold(self.looked[path])

    def hold(self, count: int) -> bytes:
        with self.lock:
            self.held += count
            self.most = max(self.most, self.held)
            self.lock.notify_all()
        return bytes(count)

    def put(self, path: str, data: bytes) -> None:
        self.let_go(len(data))

    def put_stream(self, path: str, chunks: Iterator[StreamChunk], size_bytes: int) -> None:
        with self.lock:
            # What was read to learn that the object is large.
            self.held -= self.looked.pop(path, 0)
        taken = 0
        for chunk in chunks:
            # A slow target: as much is read ahead as can be.
            ahead = min(size_bytes, taken + object_copy.CHUNKS_AT_ONCE * object_copy.CHUNK_BYTES)
            with self.lock:
                assert self.lock.wait_for(lambda: self.read[path] >= ahead, timeout=20)  # noqa: B023
            self.let_go(len(chunk))
            taken += len(chunk)

    def let_go(self, count: int) -> None:
        with self.lock:
            self.held -= count
            self.taken += count


class TestLargeObjects:
    @pytest.fixture(autouse=True)
    def little(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Call little large, so that tests needn't move megabytes."""
        monkeypatch.setattr(object_copy, "SMALL_COPY_BYTES", 100)
        monkeypatch.setattr(object_copy, "CHUNK_BYTES", 64)

    @pytest.mark.parametrize("stated", [None, "right", 3, 5_000])
    @pytest.mark.parametrize("size", [0, 1, 99, 100, 101, 1_000])
    @pytest.mark.parametrize("parallel", [1, 4])
    def test_any_object_arrives_whole_whatever_the_log_says(
        self, size: int, stated: int | str | None, parallel: int
    ) -> None:
        whole = bytes(number % 251 for number in range(size))
        source, target = DictStore({"a": whole}), DictStore()
        said = size if stated == "right" else stated
        assert said is None or isinstance(said, int)
        with Hands(parallel) as hands:
            copied = hands.copy(source, "a", target, "b", said)
        assert target.objects == {"b": whole}
        assert copied.size_bytes == size

    @pytest.mark.parametrize("stated", [None, 1_000, 1])
    def test_what_is_gone_leaves_nothing(self, stated: int | None) -> None:
        target = DictStore()
        with Hands() as hands, pytest.raises(Gone):
            hands.copy(DictStore(), "a", target, "b", stated)
        assert target.objects == {}

    def test_what_is_deleted_meanwhile_leaves_nothing(self) -> None:
        source, target = DictStore({"a": b"x" * 1_000}), DictStore()

        class Vanishing(FaultyStore):
            def get_range(self, path: str, start: int, length: int) -> bytes:
                if start > 300:
                    self.inner.delete_many([path])
                return super().get_range(path, start, length)

        with Hands(1) as hands, pytest.raises(Gone):
            hands.copy(Vanishing(source), "a", target, "b", 1_000)
        assert target.objects == {}

    def test_small_objects_are_one_request_on_each_side(self) -> None:
        source, target = DictStore({"a": b"x" * 100}), DictStore()
        with Hands() as hands:
            hands.copy(source, "a", target, "b", 100)
        # A range, because the log may be wrong, and the object too large for memory.
        assert source.calls.log == (("RANGE", "a"),)
        assert target.calls.log == (("PUT", "b"),)

    def test_only_a_few_are_under_way_at_a_time(self) -> None:
        names = [f"{number}" for number in range(12)]
        source, target = DictStore(dict.fromkeys(names, b"x" * 1_000)), DictStore()
        lock, now, most = threading.Lock(), 0, 0

        class Watched(FaultyStore):
            def put_stream(self, path: str, chunks: Iterator[StreamChunk], size_bytes: int) -> None:
                nonlocal now, most
                with lock:
                    now += 1
                    most = max(most, now)
                super().put_stream(path, chunks, size_bytes)
                with lock:
                    now -= 1

        watched = Watched(target)
        with Hands(8) as hands:
            list(hands.each(lambda name: hands.copy(source, name, watched, name, 1_000), names))
        assert 1 <= most <= object_copy._LARGE_AT_ONCE
        assert target.objects == source.objects

    @pytest.mark.parametrize("stated", ["right", 3, None])
    def test_few_bytes_are_in_memory_whatever_the_sizes(self, stated: str | int | None) -> None:
        size = 64 * 500
        memory = CountedMemory(size)
        said = size if stated == "right" else stated
        assert said is None or isinstance(said, int)
        names = [f"{number}" for number in range(8)]
        with Hands(8) as hands:
            list(hands.each(lambda name: hands.copy(memory, name, memory, name, said), names))
        assert memory.taken == 8 * size
        large = object_copy._LARGE_AT_ONCE * object_copy.CHUNKS_AT_ONCE * object_copy.CHUNK_BYTES
        small = 8 * (object_copy.SMALL_COPY_BYTES + 1)
        assert large <= memory.most <= large + small


def test_the_first_failure_ends_the_work() -> None:
    done: list[int] = []

    def act(number: int) -> int:
        if number == 3:
            raise InvalidInput("three")
        done.append(number)
        return number

    for parallel in (1, 4):
        done.clear()
        with Hands(parallel) as hands, pytest.raises(InvalidInput, match="three"):
            list(hands.each(act, range(10_000)))
        assert len(done) < 1_000


def test_paths_that_lead_nowhere_are_refused() -> None:
    source = DictStore()
    places = CopyPlaces(source.config, lambda _: source)
    for path in ("a/../../b", "%ff", "weird:/x"):
        with pytest.raises(CorruptLog) as raised:
            places.find(path)
        assert raised.value.fields["path"] == path
    table = pa.table({"path": ["%2e%2e/x"], "size": [1]}, schema=REFERENCES)
    with pytest.raises(CorruptLog):
        objects_to_copy.named_objects(table, Unchanged(), source.uri)


class TestLogFiles:
    def plan(self, source: Store, target: Store, **more: object) -> LogCopyPlan:
        files = tuple(
            LogCopy(info.path, info.path, info.modified_ms, size_bytes=info.size_bytes)
            for info in source.list("_delta_log/")
            if info.path.endswith((".json", ".parquet"))
        )
        return LogCopyPlan(source.config, target.config, files, **more)  # type: ignore[arg-type]

    @pytest.mark.parametrize("name", HISTORIES)
    @pytest.mark.parametrize("parallel", [1, 4])
    def test_files_arrive_byte_for_byte_with_their_times(self, name: str, parallel: int) -> None:
        source, target = HISTORIES[name].store("memory://old"), DictStore(uri="memory://new")
        plan = self.plan(source, target)
        told: list[tuple[str, int, int]] = []
        engine = World(source, target).engine(parallel)
        sizes = engine.copy_log(plan, lambda *event: told.append(event))
        assert target.objects == {file.path: source.objects[file.path] for file in plan.files}
        assert sizes == tuple(len(source.objects[file.path]) for file in plan.files)
        assert [target.head(file.new_path).modified_ms for file in plan.files] == [
            file.modified_ms for file in plan.files
        ]
        done, total = told[-1][1:]
        assert done == total == Volume(sum(sizes), len(sizes))
        assert isinstance(done, Volume)
        assert done.objects == len(sizes)

    @pytest.mark.parametrize("name", HISTORIES)
    def test_rewritten_there_and_back_a_table_is_the_same(self, name: str) -> None:
        source, target = HISTORIES[name].store("memory://old"), DictStore(uri="memory://new")
        engine = World(source, target).engine()
        plan = self.plan(source, target, rewrite=Absolute(source.uri), sidecars={})
        sizes = engine.copy_log(plan)
        assert sizes == tuple(len(target.objects[file.path]) for file in plan.files)
        there = DeltaLog(target).snapshot()
        assert all(path.startswith(source.uri) for path in there.files["path"].to_pylist())
        back = DictStore(uri="memory://back")
        engine = World(target, back).engine()
        engine.copy_log(self.plan(target, back, rewrite=Relative(source.uri)))
        assert sorted(DeltaLog(back).snapshot().files["path"].to_pylist()) == sorted(
            DeltaLog(source).snapshot().files["path"].to_pylist()
        )

    def test_a_file_with_other_bytes_is_replaced_and_gets_its_new_name(self) -> None:
        source = DictStore({"_delta_log/0.json": b"{}\n"})
        target = DictStore({"_delta_log/staged": b"before"}, uri="memory://new")
        files = (LogCopy("_delta_log/0.json", "_delta_log/staged", 123),)
        plan = LogCopyPlan(source.config, target.config, files)
        assert World(source, target).engine().copy_log(plan) == (3,)
        assert target.objects == {"_delta_log/staged": b"{}\n"}
        assert target.head("_delta_log/staged").modified_ms == 123

    def test_a_file_that_is_gone_is_named(self) -> None:
        source, target = History().store(), DictStore(uri="memory://new")
        for rewrite in (None, Absolute("s3://b/t")):
            files = (LogCopy("_delta_log/7.json", "x"),)
            plan = LogCopyPlan(source.config, target.config, files, rewrite)
            with pytest.raises(MissingFile) as raised:
                World(source, target).engine().copy_log(plan)
            assert raised.value.fields["path"] == "_delta_log/7.json"
        assert target.objects == {}

    def test_a_file_that_cannot_be_rewritten_is_named(self) -> None:
        source = DictStore({"a.json": b'{"add":', "b.parquet": b"none", "c.crc": b"{}"})
        target = DictStore(uri="memory://new")
        kinds = {"a.json": CorruptLog, "b.parquet": CorruptLog, "c.crc": InvalidInput}
        for name, kind in kinds.items():
            files = (LogCopy(name, name),)
            plan = LogCopyPlan(source.config, target.config, files, Absolute("s3://b/t"))
            with pytest.raises(kind) as raised:
                World(source, target).engine().copy_log(plan)
            assert raised.value.fields["path"] == name

    def test_a_failing_target_fails_the_copy(self) -> None:
        source, target = History().store(), FaultyStore(DictStore(uri="memory://new"))
        for verb in ("PUT", "UTIME"):
            target.rule = on(verb, Fault.FAIL)
            with pytest.raises(Exception, match="the test said so"):
                World(source, target).engine().copy_log(self.plan(source, target))


def test_from_disk_to_disk(tmp_path: Path) -> None:
    source = HISTORIES["V2 in Parquet"].write(open_store(str(tmp_path / "a table, 100% ü")))
    target = open_store(str(tmp_path / "b"))
    with LocalEngine() as engine:
        plan = CopyPlan(source.config, target.config, newest(source), Unchanged())
        totals = engine.copy(plan)
    found = {info.path: info.size_bytes for info in target.list("")}
    assert totals.objects == len(found) > 5
    assert all(source.get(name) == target.get(name) for name in found)


def test_a_log_that_was_cleaned_up_is_named() -> None:
    source, target = HISTORIES["V2 in Parquet"].store(), DictStore(uri="memory://new")
    segment = newest(source)
    for part in ("_sidecars/", ".checkpoint.", ".json"):
        name = next(name for name in reversed(source.objects) if part in name)
        kept = source.get(name)
        source.delete_many([name])
        plan = CopyPlan(source.config, target.config, segment, Unchanged())
        with pytest.raises(CorruptLog, match="is gone") as raised:
            World(source, target).engine().copy(plan)
        assert raised.value.fields["path"] == name
        source.put(name, kept)


def test_cleaned_histories_are_copied_from_their_checkpoint() -> None:
    history = History(RICH).then(*STEPS, Checkpoint(), Clean())
    source, target = history.store(), DictStore(uri="memory://new")
    copy(source, target)
    for _, name in _live(source):
        assert name in target.objects
