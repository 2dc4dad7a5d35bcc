"""Garbage: what goes, what stays, how many requests it takes, and that no push loses anything."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

import lakeferry
from lakeferry.engine import Engine, choose
from lakeferry.engines.local_engine import LocalEngine
from lakeferry.errors import CommitConflict, InvalidInput, StorageUnavailable, TimedOut
from lakeferry.storage import local_durability, open_store
from lakeferry.storage.folder import FolderStore
from lakeferry.storage.process_identity import this_process
from lakeferry.table import DeltaLog
from lakeferry.transfer.chain.hashes import Multihash
from lakeferry.transfer.datasets.dataset import DatasetFormat
from lakeferry.transfer.datasets.delta.delta_dataset import FIRST_PULL_CLAIM, DeltaDataset
from lakeferry.transfer.datasets.odf import OdfDataset
from lakeferry.transfer.repository import garbage_collection
from lakeferry.transfer.repository.dataset_names import DatasetName
from lakeferry.transfer.repository.garbage_collection import (
    Collector,
    Garbage,
    GarbageCollected,
    Why,
    collect,
)
from lakeferry.transfer.repository.push_liveness import SILENT_FOR_MS
from lakeferry.transfer.repository.push_records import (
    PUSHES_FOLDER,
    SWEEPS,
    NameClaim,
    PushRecord,
    Records,
)
from lakeferry.transfer.repository.repository import Repository
from tests.support.clock import ManualClock
from tests.support.history import Append, History
from tests.support.odf import Chain, SetInfo
from tests.support.reference_client import Files, files_of
from tests.support.stores import DictStore, FaultyStore, StoreCall

Step = Callable[[], object]
HOUR_MS = 3_600_000
NAME = DatasetName("acc/d")


def chain(*steps: str) -> Files:
    built = Chain().append(checkpoint="c").append()
    for step in steps:
        built.add(SetInfo(step))
    return files_of(built.append(checkpoint=f"after {steps}") if steps else built)


def below(name: str, files: Files) -> Files:
    return {f"{name}/{path}": data for path, data in files.items()}


def root(**datasets: Files) -> DictStore:
    objects: Files = {}
    for name, files in datasets.items():
        objects |= below(name.replace("__", "/"), files)
    return DictStore(objects)


def orphan(number: int) -> str:
    return Multihash.sha3_256(b"%d" % number).text


def later(store: DictStore, ms: int = 25 * HOUR_MS) -> Callable[[], int]:
    now_ms = store.clock() + ms
    return lambda: now_ms


def run(store: DictStore, inner: DictStore | None = None, **options: object) -> GarbageCollected:
    opened = inner or store

    def engines(objects: int, size_bytes: int) -> Engine:
        return LocalEngine(lambda _: store, parallel=1)

    given: dict[str, object] = {"clock": later(opened), **options}
    done = collect(store, engines, **given)  # type: ignore[arg-type]
    assert isinstance(done, GarbageCollected)
    return done


def plan(store: DictStore, **options: object) -> list[Garbage]:
    given: dict[str, object] = {"clock": later(store), **options}
    done = collect(
        store,
        lambda *_: LocalEngine(lambda _: store, parallel=1),
        dry_run=True,
        **given,  # type: ignore[arg-type]
    )
    assert isinstance(done, list)
    return done


def head_of(files: Files) -> Multihash:
    return Multihash.parse(files["refs/head"].decode())


def without_head(files: Files) -> Files:
    return {path: data for path, data in files.items() if path != "refs/head"}


class Push:
    """A push as the server makes one, a step at a time."""

    def __init__(self, store: DictStore, files: Files, name: DatasetName = NAME) -> None:
        self.store = store
        self.files = below(name.text, files)
        self.head = OdfDataset(store, name.text).head()
        self.name = name
        self.record = PushRecord(store, name, self.head, clock=store.clock)
        self.paths = [path for path in self.files if not path.endswith("refs/head")]

    def begin(self) -> None:
        self.record.begin(self.paths)

    def ask(self) -> list[str]:
        """Return what isn't there, with addresses given out for it."""
        there = {info.path for info in self.store.list(f"{self.name}/")}
        missing = [path for path in self.paths if path not in there]
        self.record.grant(missing)
        return missing

    def send(self, paths: list[str]) -> None:
        for path in paths:
            self.store.put(path, self.files[path])

    def commit(self) -> None:
        self.record.commit()
        assert all(path in self.store.objects for path in self.paths)
        text = None if self.head is None else self.head.text.encode()
        path = f"{self.name}/refs/head"
        assert self.store.swap(path, text, self.files[path])
        self.record.end()

    def steps(self) -> list[Step]:
        """Return all of it, to be done one after the other."""
        missing: list[str] = []
        return [
            self.begin,
            lambda: missing.extend(self.ask()),
            lambda: self.send(missing),
            self.commit,
        ]

    def abandoned(self) -> None:
        self.begin()
        self.send(self.ask())
        self.record.leave()


# --- Full scan ----------------------------------------------------------------------------


def test_what_the_chain_reaches_stays_and_the_rest_goes() -> None:
    files, fork = chain("a"), chain("b")
    store = root(acc__d=fork | files, other=chain("c"))
    before = store.objects
    done = run(store)
    gone = {f"acc/d/{path}" for path in set(fork) - set(files)}
    assert gone
    assert set(done.deleted) == gone
    assert done.bytes == sum(len(before[path]) for path in gone)
    assert done.changed
    assert set(before) - set(store.objects) == gone
    again = run(store)
    assert (again.deleted, again.bytes, again.changed) == ((), 0, False)


def test_what_is_younger_than_the_grace_period_stays() -> None:
    store = root(d=chain())
    path = f"d/data/{orphan(1)}"
    store.put(path, b"young")
    assert run(store, clock=later(store, 23 * HOUR_MS)).deleted == ()
    assert run(store, clock=later(store, 24 * HOUR_MS)).deleted == (path,)


def test_a_dataset_that_never_came_to_be_goes_whole() -> None:
    store = root(acc__d=without_head(chain()), d=without_head(chain("x")))
    run(store)
    assert store.objects == {}


def test_what_isn_t_an_object_of_a_dataset_isn_t_touched() -> None:
    name = orphan(1)
    others = {
        "d/data/notes.txt": b"",
        f"d/data/{name}.bak": b"",
        f"d/{name}": b"",
        f"d/more/{name}": b"",
        f"a/b/c/data/{name}": b"",
        f"metrics/data/{name}": b"",
        f".hidden/data/{name}": b"",
        "top": b"",
        f".lakeferry/ids/{name}": b"",
        f"table/data/{name}": b"",
        "table/_delta_log/00000000000000000000.json": b"{}",
        f"acc/table/blocks/{name}": b"",
        "acc/table/_delta_log/00000000000000000000.json": b"{}",
    }
    store = DictStore(others | below("d", chain()))
    assert run(store).deleted == ()
    assert others.items() <= store.objects.items()


@pytest.mark.parametrize("damage", ["gone", "altered", "head"])
def test_a_dataset_whose_chain_is_damaged_loses_nothing(damage: str) -> None:
    files = chain("a")
    store = root(broken=files, whole=chain())
    store.put(f"broken/data/{orphan(1)}", b"1")
    store.put(f"whole/data/{orphan(1)}", b"1")
    first = min(path for path in store.objects if path.startswith("broken/blocks/"))
    match damage:
        case "gone":
            store.delete_many([first])
        case "altered":
            store.put(first, b"\0" * 100)
        case "head":
            store.put("broken/refs/head", b"nonsense")
    done = run(store)
    assert done.deleted == (f"whole/data/{orphan(1)}",)
    assert done.damaged == ("broken",)


def test_a_dry_run_says_what_would_go_and_writes_nothing() -> None:
    store = root(acc__d=chain())
    Push(store, chain("never finished")).abandoned()
    store.put(f"acc/d/data/{orphan(1)}", b"1")
    before = store.objects
    foreseen = plan(store)
    assert store.objects == before
    why = {each.path: each.why for each in foreseen}
    assert len(why) == len(foreseen)
    assert why[f"acc/d/data/{orphan(1)}"] is Why.UNREACHED
    assert set(why.values()) == {Why.UNREACHED, Why.UNFINISHED}
    assert foreseen[0].as_step()["op"] == "delete"
    assert set(run(store).deleted) == set(why)


def test_many_orphans_go_in_waves_and_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(garbage_collection, "WAVE", 10)
    monkeypatch.setattr("lakeferry.engines.orphans._PAGE_ROWS", 7)
    store = root(d=chain("a", "b"), e=chain())
    kept = set(store.objects)
    for number in range(57):
        store.put(f"{'de'[number % 2]}/data/{orphan(number)}", b"x")
    assert len(run(store).deleted) == 57
    assert set(store.objects) == kept


@pytest.mark.parametrize(("orphans", "chosen"), [(900, "local"), (1_100, "spark")])
def test_an_engine_is_chosen_by_how_much_there_is(orphans: int, chosen: str) -> None:
    store = root(d=chain())
    for number in range(orphans):
        store.put(f"d/data/{orphan(number)}", b"x")
    asked = []

    def engines(objects: int, size_bytes: int) -> Engine:
        asked.append(choose("auto", objects, size_bytes))
        return LocalEngine(lambda _: store, parallel=1)

    done = collect(store, engines, clock=later(store))
    assert isinstance(done, GarbageCollected)
    assert asked == [chosen]
    assert len(done.deleted) == orphans


def test_a_store_that_is_too_slow_loses_nothing() -> None:
    store, hours = left_over(), iter(range(0, 10**6, 3600))
    before = store.objects
    collector = Collector(store, grace_ms=0, clock=later(store), ticks=lambda: next(hours))
    with pytest.raises(TimedOut, match="too slow"):
        collector.unreached(lambda *_: LocalEngine(lambda _: store, parallel=1))
    assert store.objects == before


@pytest.mark.parametrize("grace", ["soon", "", "-1d"])
def test_a_grace_period_that_is_none_is_refused(grace: str) -> None:
    with pytest.raises(InvalidInput, match="duration"):
        lakeferry.gc("memory://nowhere/root", grace=grace)


def test_a_negative_grace_period_is_refused() -> None:
    with pytest.raises(InvalidInput):
        run(root(), grace_ms=-1)


def test_files_that_never_got_a_name_go(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    for path, data in below("d", chain()).items():
        store.put(path, data)
    names = [
        f"{folder}/{local_durability._TEMPORARY_PREFIX}x{local_durability.TEMPORARY_SUFFIX}"
        for folder in ("d/data", "d/refs", ".lakeferry/pushes")
    ]
    before = {info.path for info in store.list("")}
    for name in names:
        store.put(name, b"part of an object")
    now_ms = store.head(names[0]).modified_ms
    opened = LocalEngine(lambda _: store, parallel=1)
    for age_ms, gone in ((HOUR_MS - 1000, set()), (HOUR_MS + 1000, set(names))):
        done = collect(store, lambda *_: opened, grace_ms=0, clock=lambda a=age_ms: now_ms + a)  # type: ignore[misc]
        assert isinstance(done, GarbageCollected)
        assert set(done.deleted) - before == gone
    assert {info.path for info in store.list("")} == before


def test_what_a_push_to_a_delta_table_never_gave_a_name_goes_unless_one_is_under_way(
    tmp_path: Path,
) -> None:
    store = open_store(str(tmp_path))
    for path, data in below("acc/t", History().then(Append(1)).objects()).items():
        store.put(path, data)
    ours = [
        f"{folder}/{prefix}x{local_durability.TEMPORARY_SUFFIX}"
        for folder in ("acc/t", "acc/t/day=1", "acc/new", "t/_delta_log")
        for prefix in (local_durability.PARTS_PREFIX, local_durability._TEMPORARY_PREFIX)
    ]
    others = ["acc/t/.part-0.crc", "acc/t/_x.tmp", "acc/t/.x.tmp", ".other/.lakeferry-x.tmp"]
    for name in (*ours, *others):
        store.put(name, b"part of an object")
    now_ms = store.head(ours[0]).modified_ms
    opened = LocalEngine(lambda _: store, parallel=1)

    def went() -> set[str]:
        aged: dict[str, Any] = {"grace_ms": 2 * HOUR_MS, "clock": lambda: now_ms}
        done = collect(store, lambda *_: opened, **aged)
        assert isinstance(done, GarbageCollected)
        return set(done.deleted)

    assert went() == set()
    for name in (*ours, *others):
        os.utime(tmp_path / name, ((now_ms - 3 * HOUR_MS) / 1000,) * 2)
    push = PushRecord(store, DatasetName("acc/t"), None)
    push.begin([])
    assert went() == set()
    push.end()
    before = {path for path in store.entries("") if path not in ours}
    assert went() == set(ours)
    assert set(store.entries("")) == before


# --- Unfinished pushes --------------------------------------------------------------------


def test_what_an_unfinished_push_has_left_goes_with_its_record() -> None:
    store = root(acc__d=chain())
    before = set(store.objects)
    Push(store, chain() | chain("never finished")).abandoned()
    assert any(path.startswith(PUSHES_FOLDER) for path in store.objects)
    done = run(store, unfinished_only=True)
    assert done.bytes > 0
    assert done.pushes == 1
    assert set(store.objects) == before


def test_the_requests_grow_with_unfinished_pushes_and_not_with_the_repository() -> None:
    counts = []
    for size in (1, 50):
        history = chain(*(f"step {n}" for n in range(size)))
        store = root(acc__d=history, **{f"other{n}": history for n in range(size)})
        Push(store, history | chain("never finished")).abandoned()
        store.calls.reset()
        assert run(store, unfinished_only=True).deleted
        counts.append({verb: store.calls[verb] for verb in ("LIST", "HEAD", "GET", "RANGE")})
    assert counts[0] == counts[1]


def test_what_somebody_else_committed_meanwhile_stays() -> None:
    store = root(acc__d=chain())
    Push(store, chain("a")).abandoned()
    second = Push(store, chain("a"))
    second.begin()
    assert not [path for path in second.ask() if "/data/" in path]
    second.commit()
    whole = below("acc/d", chain("a"))
    run(store)
    assert whole.items() <= store.objects.items()
    assert not any(path.startswith(PUSHES_FOLDER) for path in store.objects)


def test_what_was_sent_again_lately_stays_and_the_record_with_it() -> None:
    store = root(acc__d=chain())
    push = Push(store, chain("a"))
    push.abandoned()
    sent = max(path for path in push.paths if "/checkpoints/" in path)
    clock = later(store)
    store.set_modified(sent, clock())
    done = run(store, unfinished_only=True, clock=clock)
    assert sent not in done.deleted
    assert sent in store.objects
    assert any(path.startswith(PUSHES_FOLDER) for path in store.objects)
    assert run(store, clock=later(store, 60 * HOUR_MS)).deleted == (sent,)
    assert not any(path.startswith(PUSHES_FOLDER) for path in store.objects)


def test_a_push_that_was_given_nothing_leaves_no_record() -> None:
    store = root(acc__d=chain())
    push = Push(store, chain())
    push.begin()
    assert push.ask() == []
    push.record.leave()
    assert not any(path.startswith(PUSHES_FOLDER) for path in store.objects)


def test_pages_of_a_record_without_a_note_go() -> None:
    store = root(d=chain())
    store.put(f"{PUSHES_FOLDER}x/named-000000.json", b"[]")
    assert run(store, clock=later(store, HOUR_MS)).pushes == 0
    assert run(store).pushes == 1
    assert not any(path.startswith(PUSHES_FOLDER) for path in store.objects)


def abandoned_in_a_table(store: DictStore, head: Multihash | None) -> list[str]:
    """Push two data files to a Delta table, and end before the commit."""
    record = PushRecord(store, NAME, head, clock=store.clock)
    paths = ["acc/d/part-1.parquet", "acc/d/part-2.parquet"]
    record.begin(paths)
    record.grant([*paths, *paths])
    for path in paths:
        store.put(path, b"rows")
    record.leave()
    return paths


def table_in(store: DictStore) -> DeltaDataset:
    for path, data in History().then(Append(2)).objects("memory://dict/acc/d").items():
        store.put(f"acc/d/{path}", data or b"rows")
    return DeltaDataset(store, "acc/d")


def test_what_an_unfinished_push_has_left_in_a_delta_table_goes() -> None:
    store = root()
    head = table_in(store).current()
    before = set(store.objects)
    paths = abandoned_in_a_table(store, head)
    assert sorted(run(store).deleted) == paths
    assert set(store.objects) == before


def test_a_delta_table_that_never_came_to_be_goes() -> None:
    store = root()
    paths = abandoned_in_a_table(store, None)
    assert sorted(run(store).deleted) == paths
    assert store.objects == {}


def test_what_a_delta_table_has_come_to_name_stays() -> None:
    store = root()
    table = table_in(store)
    head = table.current()
    kept, gone = abandoned_in_a_table(store, head)
    version = DeltaLog(FolderStore(store, "acc/d")).segment().version + 1
    add = {
        "path": kept.removeprefix("acc/d/"),
        "size": 4,
        "partitionValues": {},
        "modificationTime": 0,
        "dataChange": True,
    }
    commit = json.dumps({"add": add}).encode()
    store.put(f"acc/d/_delta_log/{version:020}.json", commit)
    # The chain doesn't know of that version yet: nothing can be said.
    assert run(store).deleted == ()
    assert any(path.startswith(PUSHES_FOLDER) for path in store.objects)
    table.current()
    assert run(store).deleted == (gone,)
    assert not any(path.startswith(PUSHES_FOLDER) for path in store.objects)


@pytest.mark.parametrize("leaves", [False, True])
def test_nothing_is_left_of_a_record_not_even_its_folder(tmp_path: Path, leaves: bool) -> None:
    store = open_store(str(tmp_path))
    record = PushRecord(store, NAME, None)
    record.begin([f"{NAME}/data/{orphan(1)}"])
    if leaves:
        record.grant([f"{NAME}/data/{orphan(1)}"])
        record.leave()
        assert list(tmp_path.rglob("push.json"))
        opened = LocalEngine(lambda _: store, parallel=1)
        collect(store, lambda *_: opened, grace_ms=0, clock=lambda: 2**52)
    else:
        record.end()
    assert not list(tmp_path.glob(".lakeferry/pushes/*"))


# --- Pushes under way ---------------------------------------------------------------------


def test_a_push_in_progress_loses_nothing_however_short_the_grace_period() -> None:
    store = left_over()
    push = Push(store, chain("a"))
    push.begin()
    run(store, grace_ms=0, clock=later(store, 1000))
    push.send(push.ask())
    run(store, grace_ms=0, clock=later(store, 60_000))
    push.commit()
    run(store, grace_ms=0)
    assert {path: store.objects.get(path) for path in push.files} == push.files


class WithUploads(DictStore):
    """Has unfinished uploads: when each was begun, by its name."""

    def __init__(self, uploads: dict[str, int]) -> None:
        super().__init__()
        self.uploads = uploads

    def drop_parts(self, is_ours: Callable[[str, int], bool]) -> int:
        ours = [path for path, begun_ms in self.uploads.items() if is_ours(path, begun_ms)]
        for path in ours:
            del self.uploads[path]
        return len(ours)


def test_parts_of_objects_go_when_they_are_old_and_no_push_is_under_way() -> None:
    old, young = f"{NAME.text}/data/{orphan(1)}", f"{NAME.text}/data/{orphan(2)}"
    store = WithUploads({old: 0})
    for path, data in below(NAME.text, chain()).items():
        store.put(path, data)
    push = Push(store, chain("a"))
    push.begin()
    clock = later(store, 1000)
    run(store, grace_ms=0, clock=clock)
    push.send(push.ask())
    push.commit()
    plan(store, grace_ms=0, clock=clock)
    store.uploads[young] = clock() - 5 * HOUR_MS
    assert store.uploads.keys() == {old, young}
    run(store, grace_ms=5 * HOUR_MS, clock=clock)
    assert store.uploads.keys() == {young}


@pytest.mark.parametrize("unfinished_only", [True, False])
def test_uploads_that_no_push_has_begun_stay(unfinished_only: bool) -> None:
    engines, pushed = "acc/d/part-9.parquet", "acc/d/part-1.parquet"
    store = WithUploads({engines: 0, pushed: 0})
    abandoned_in_a_table(store, table_in(store).current())
    run(store, unfinished_only=unfinished_only)
    assert store.uploads.keys() == {engines}


def test_a_push_that_has_left_is_tidied_up_at_once_without_a_grace_period() -> None:
    store = root(acc__d=chain())
    before = set(store.objects)
    Push(store, chain("a")).abandoned()
    run(store, grace_ms=0, clock=later(store, 0))
    assert set(store.objects) == before


def test_a_push_that_was_taken_for_dead_doesn_t_commit() -> None:
    store = root(acc__d=chain())
    push = Push(store, chain("a"))
    push.begin()
    push.send(push.ask())
    run(store, grace_ms=0, clock=later(store, HOUR_MS))
    with pytest.raises(TimedOut, match="the push was given up"):
        push.record.renew()
    push.record.end()


def test_a_push_that_is_renewed_is_alive() -> None:
    store = root(acc__d=chain())
    push = Push(store, chain("a"))
    push.begin()
    push.send(push.ask())
    store.clock.advance(HOUR_MS)  # type: ignore[attr-defined]
    push.record.renew()
    assert run(store, grace_ms=0, clock=later(store, 1000)).deleted == ()
    push.commit()


def left_over() -> DictStore:
    """A root where everything that a push is about to need lies about, old and unreached."""
    store = root(acc__d=chain())
    for path, data in below("acc/d", without_head(chain("a"))).items():
        store.put(path, data)
    return store


class Waits(Exception):
    """The push waits for a sweep, and a test goes on without it."""


def wait(_: float) -> None:
    raise Waits


def test_a_push_that_begins_while_its_objects_are_deleted_waits_until_they_are() -> None:
    disk, other = left_over(), Push(DictStore(), chain("a"), DatasetName("acc/other"))
    push = Push(disk, chain("a"))
    push.record = PushRecord(disk, NAME, push.head, pause=wait, clock=disk.clock)
    waited = []

    def rule(call: StoreCall) -> None:
        if call.verb == "DELETE" and "/blocks/" in call.paths[0]:
            with pytest.raises(Waits):
                push.begin()
            waited.append(call)
            # Who needs something else doesn't.
            other.store = disk
            other.record = PushRecord(disk, other.name, None, pause=wait, clock=disk.clock)
            other.begin()

    run(FaultyStore(disk, rule), disk, grace_ms=0, clock=later(disk, 1000))  # type: ignore[arg-type]
    assert len(waited) == 1
    push.begin()
    sent = push.ask()
    assert sent
    push.send(sent)
    push.commit()
    assert {path: disk.objects.get(path) for path in push.files} == push.files


def test_a_sweep_whose_owner_was_stopped_holds_nobody_up_for_long() -> None:
    store = left_over()
    push = Push(store, chain("a"))
    push.record = PushRecord(store, NAME, push.head, pause=wait, clock=store.clock)
    store.put(f"{SWEEPS}x.json", json.dumps(push.paths).encode())
    with pytest.raises(Waits):
        push.begin()
    store.clock.advance(11 * 60_000)  # type: ignore[operator, attr-defined, unused-ignore]
    push.begin()
    assert not list(store.list(SWEEPS))


def test_a_push_doesn_t_wait_for_a_sweep_for_ever() -> None:
    store, ticks = left_over(), iter(range(0, 10_000, 10))
    push = Push(store, chain("a"))
    push.record = PushRecord(
        store,
        NAME,
        push.head,
        clock=store.clock,
        ticks=lambda: next(ticks),
        pause=lambda _: None,
    )
    store.put(f"{SWEEPS}x.json", json.dumps(push.paths).encode())
    with pytest.raises(StorageUnavailable, match="garbage collection"):
        push.begin()


def interleaved(at: Mapping[int, int]) -> tuple[int, int, bool]:
    """Let a push go on while a sweep is under way, and see that it has all that it needs.

    ``at`` says before which calls of the sweep's, by their numbers, so many of the push's
    steps are made; the others come after it. Returns how many calls there were, how often
    the push waited, and whether anything was deleted.
    """
    disk = left_over()
    push = Push(disk, chain("a"))
    push.record = PushRecord(disk, NAME, push.head, pause=wait, clock=disk.clock)
    steps = push.steps()
    waited = 0

    def rule(call: StoreCall) -> None:
        nonlocal waited
        for _ in range(min(at.get(call.index, 0), len(steps))):
            try:
                steps[0]()
            except Waits:
                waited += 1
                return
            steps.pop(0)

    sweeping = FaultyStore(disk, rule)
    done = run(sweeping, disk, grace_ms=0, clock=later(disk, 1000))  # type: ignore[arg-type]
    for step in steps:
        step()
    assert {path: disk.objects.get(path) for path in push.files} == push.files
    assert not list(disk.list(PUSHES_FOLDER))
    assert not list(disk.list(SWEEPS))
    return len(sweeping.history), waited, bool(done.deleted)


def test_every_interleaving_of_the_steps_of_a_push_with_a_sweep_keeps_what_it_needs() -> None:
    """All at one call, and all but the commit at one and the commit at a later one."""
    calls, _, _ = interleaved({})
    outcomes = [interleaved({first: 4}) for first in range(calls)]
    outcomes += [
        interleaved({first: 3, second: 1})
        for first in range(calls)
        for second in range(first + 1, calls)
    ]
    assert any(waited for _, waited, _ in outcomes)
    assert {deleted for _, _, deleted in outcomes} == {True, False}


def test_a_long_record_comes_in_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lakeferry.transfer.repository.push_records._PAGE_PATHS", 3)
    store = root(acc__d=chain())
    push = Push(store, chain("a", "b", "c"))
    push.begin()
    missing = push.ask()
    [found] = Records(store).found()
    pages = list(Records(store).granted(found))
    assert len(pages) > 1
    assert [path for page in pages for path in page] == missing
    assert Records(store).needed([found]) == set(push.paths)
    push.send(missing)
    push.record.leave()
    assert sorted(run(store, unfinished_only=True).deleted) == sorted(missing)
    assert not any(path.startswith(PUSHES_FOLDER) for path in store.objects)


def test_records_are_found_by_anybody() -> None:
    store = root(acc__d=chain())
    push = Push(store, chain("a"))
    push.begin()
    [found] = Records(store).found()
    assert found.note is not None
    assert found.note.dataset == "acc/d"
    assert Records(store).needed([found]) == set(push.paths)


@pytest.mark.parametrize("name", ["acc", "acc/d"])
def test_a_first_push_that_went_away_keeps_nobody_from_its_name_and_its_mark_goes(
    name: str,
) -> None:
    store = root()
    now_ms = store.clock()
    repository = Repository(store, clock=lambda: now_ms)
    marked, below = DatasetName(name), DatasetName("acc/below")
    repository.delta(marked).claim()
    assert repository.kind(marked) is DatasetFormat.DELTA
    assert run(store, clock=lambda: now_ms).deleted == ()

    now_ms += SILENT_FOR_MS
    assert repository.kind(marked) is None
    repository.check_free(marked, DatasetFormat.DELTA)
    repository.check_free(below)

    assert run(store).deleted == (f"{name}/{FIRST_PULL_CLAIM}",)
    assert store.objects == {}


def test_a_first_push_that_goes_on_keeps_its_name_however_long_it_takes() -> None:
    store = root()
    push = PushRecord(store, DatasetName("acc"), None, clock=store.clock)
    repository = Repository(store, clock=later(store, HOUR_MS))
    repository.delta(DatasetName("acc")).claim()
    push.begin(["acc/part-0.parquet"])
    for path in store.objects:
        if path.startswith(PUSHES_FOLDER):
            store.set_modified(path, store.clock() + HOUR_MS)
    assert repository.kind(DatasetName("acc")) is DatasetFormat.DELTA
    with pytest.raises(CommitConflict):
        repository.check_free(DatasetName("acc/below"))
    assert run(store, clock=later(store, HOUR_MS), grace_ms=0).deleted == ()
    push.grant(["acc/part-0.parquet"])
    push.leave()
    assert repository.kind(DatasetName("acc")) is None


def test_a_first_push_that_has_left_keeps_nobody_from_its_name_from_then_on() -> None:
    store = root()
    clock = store.clock
    assert isinstance(clock, ManualClock)
    repository = Repository(store, clock=clock)
    name, below = DatasetName("acc"), DatasetName("acc/below")
    push = PushRecord(store, name, None, clock=clock)
    repository.delta(name).claim()
    push.begin(["acc/part-0.parquet"])
    push.grant(["acc/part-0.parquet"])
    with pytest.raises(CommitConflict):
        repository.check_free(below)
    push.leave()
    assert repository.kind(name) is None
    repository.check_free(below)
    # One that has just begun has no record yet.
    clock.advance(1)
    repository.delta(name).claim()
    assert repository.kind(name) is DatasetFormat.DELTA


def of_an_ended_process() -> str:
    """Return a process with this one's number that was started at another time."""
    machine, number, started = this_process().split("-")
    return f"{machine}-{number}-{int(started) + 1}"


@pytest.mark.parametrize("is_committing", [False, True])
def test_a_first_push_whose_server_has_ended_holds_no_name(is_committing: bool) -> None:
    store = root()
    clock = store.clock
    assert isinstance(clock, ManualClock)
    repository = Repository(store, clock=clock)
    name, below = DatasetName("acc"), DatasetName("acc/below")
    push = PushRecord(store, name, None, holder="token one", clock=clock)
    repository.delta(name).claim()
    push.begin(["acc/part-0.parquet"])
    push.grant(["acc/part-0.parquet"])
    if is_committing:
        push.commit()
    store.put("acc/part-0.parquet", b"1")
    claim = repository.claim_of(name)
    assert claim is not None
    assert claim.holder == "token one"
    # As if its server had been killed.
    for path, data in store.objects.items():
        store.put(path, data.replace(this_process().encode(), of_an_ended_process().encode()))
    if is_committing:
        # What it asked of the store may still take effect, but not for days.
        assert repository.claim_of(name) == NameClaim("token one", SILENT_FOR_MS)
        clock.advance(SILENT_FOR_MS)
    assert repository.claim_of(name) is None
    assert repository.kind(name) is None
    repository.check_free(below)
    run(store, clock=clock, grace_ms=0)
    assert store.objects == {}


@pytest.mark.parametrize("has_ended", [False, True])
def test_a_mark_without_a_record_counts_unless_its_writer_has_ended(has_ended: bool) -> None:
    store = root()
    repository = Repository(store, clock=store.clock)
    name = DatasetName("acc")
    repository.delta(name).claim()
    if has_ended:
        store.put(f"acc/{FIRST_PULL_CLAIM}", of_an_ended_process().encode())
    assert (repository.claim_of(name) is None) is has_ended


def test_a_mark_goes_with_the_push_that_left_it() -> None:
    store = root()
    push = PushRecord(store, DatasetName("acc"), None, clock=store.clock)
    Repository(store, clock=store.clock).delta(DatasetName("acc")).claim()
    push.begin(["acc/part-0.parquet"])
    push.grant(["acc/part-0.parquet"])
    push.leave()
    assert run(store, clock=store.clock, grace_ms=0).deleted == (f"acc/{FIRST_PULL_CLAIM}",)
    assert store.objects == {}


def test_the_mark_of_a_table_that_came_stays() -> None:
    store = root()
    table = table_in(store)
    table.claim()
    assert run(store).deleted == ()
    repository = Repository(store, clock=later(store))
    assert repository.kind(NAME) is DatasetFormat.DELTA
