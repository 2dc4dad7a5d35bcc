"""Garbage: what goes, what stays, how many requests it takes, and that no push loses anything."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import product

import pytest

from lakeferry.engine import Engine
from lakeferry.engines.local import LocalEngine
from lakeferry.errors import InvalidInput, StorageUnavailable, TimedOut
from lakeferry.storage import durable, open_store
from lakeferry.transfer import gc
from lakeferry.transfer.gc import Collected, Garbage, Why, collect
from lakeferry.transfer.hashes import Multihash
from lakeferry.transfer.odf_dataset import OdfDataset
from lakeferry.transfer.push_records import FOLDER, SWEEPS, PushRecord, Records
from lakeferry.transfer.repository import DatasetName
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


def run(store: DictStore, inner: DictStore | None = None, **options: object) -> Collected:
    opened = inner or store

    def engines(objects: int, size_bytes: int) -> Engine:
        return LocalEngine(lambda _: store, parallel=1)

    given: dict[str, object] = {"clock": later(opened), **options}
    done = collect(store, engines, **given)  # type: ignore[arg-type]
    assert isinstance(done, Collected)
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
    monkeypatch.setattr(gc, "WAVE", 10)
    monkeypatch.setattr("lakeferry.engines.orphans._PAGE_ROWS", 7)
    store = root(d=chain("a", "b"), e=chain())
    kept = set(store.objects)
    for number in range(57):
        store.put(f"{'de'[number % 2]}/data/{orphan(number)}", b"x")
    assert len(run(store).deleted) == 57
    assert set(store.objects) == kept


def test_a_negative_grace_period_is_refused() -> None:
    with pytest.raises(InvalidInput):
        run(root(), grace_ms=-1)


def test_files_that_never_got_a_name_go(tmp_path: object) -> None:
    store = open_store(str(tmp_path))
    for path, data in below("d", chain()).items():
        store.put(path, data)
    names = [
        f"{folder}/{durable._TEMPORARY_PREFIX}x{durable._TEMPORARY_SUFFIX}"
        for folder in ("d/data", "d/refs", ".lakeferry/pushes")
    ]
    before = {info.path for info in store.list("")}
    for name in names:
        store.put(name, b"part of an object")
    now_ms = store.head(names[0]).modified_ms
    opened = LocalEngine(lambda _: store, parallel=1)
    for age_ms, gone in ((HOUR_MS - 1000, set()), (HOUR_MS + 1000, set(names))):
        done = collect(store, lambda *_: opened, grace_ms=0, clock=lambda a=age_ms: now_ms + a)  # type: ignore[misc]
        assert isinstance(done, Collected)
        assert set(done.deleted) - before == gone
    assert {info.path for info in store.list("")} == before


# --- Unfinished pushes --------------------------------------------------------------------


def test_what_an_unfinished_push_has_left_goes_with_its_record() -> None:
    store = root(acc__d=chain())
    before = set(store.objects)
    Push(store, chain() | chain("never finished")).abandoned()
    assert any(path.startswith(FOLDER) for path in store.objects)
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
    assert not any(path.startswith(FOLDER) for path in store.objects)


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
    assert any(path.startswith(FOLDER) for path in store.objects)
    assert run(store, clock=later(store, 60 * HOUR_MS)).deleted == (sent,)
    assert not any(path.startswith(FOLDER) for path in store.objects)


def test_a_push_that_was_given_nothing_leaves_no_record() -> None:
    store = root(acc__d=chain())
    push = Push(store, chain())
    push.begin()
    assert push.ask() == []
    push.record.leave()
    assert not any(path.startswith(FOLDER) for path in store.objects)


def test_pages_of_a_record_without_a_note_go() -> None:
    store = root(d=chain())
    store.put(f"{FOLDER}x/named-000000.json", b"[]")
    assert run(store, clock=later(store, HOUR_MS)).pushes == 0
    assert run(store).pushes == 1
    assert not any(path.startswith(FOLDER) for path in store.objects)


def test_records_of_a_delta_table_are_left_to_whoever_knows_it() -> None:
    store = root()
    store.put("acc/d/_delta_log/00000000000000000000.json", b"{}")
    record = PushRecord(store, NAME, None, clock=store.clock)
    paths = ["acc/d/part-1.parquet", "acc/d/part-2.parquet"]
    record.begin(paths)
    record.grant(paths)
    for path in paths:
        store.put(path, b"rows")
    record.leave()
    assert run(store).deleted == ()

    class Table:
        def reached(self, paths: object, since: object) -> set[str]:
            return {"acc/d/part-2.parquet"}

    assert run(store, delta=lambda _: Table()).deleted == ("acc/d/part-1.parquet",)
    assert not any(path.startswith(FOLDER) for path in store.objects)


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
    with pytest.raises(TimedOut, match="taken for dead"):
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
    with pytest.raises(StorageUnavailable, match="tidied up"):
        push.begin()


def test_every_interleaving_of_the_steps_of_a_push_with_a_sweep_keeps_what_it_needs() -> None:
    """Some steps before, all that it can at one call of the sweep's, the rest after it."""
    calls = 40
    waited = kept = 0
    for before, at in product(range(4), range(calls)):
        disk = left_over()
        push = Push(disk, chain("a"))
        push.record = PushRecord(disk, NAME, push.head, pause=wait, clock=disk.clock)
        steps = push.steps()
        for step in steps[:before]:
            step()
        left = steps[before:]

        def rule(call: StoreCall, at: int = at, left: list[Step] = left) -> None:
            nonlocal waited
            while call.index == at and left:
                try:
                    left[0]()
                except Waits:
                    waited += 1
                    return
                left.pop(0)

        sweeping = FaultyStore(disk, rule)
        done = run(sweeping, disk, grace_ms=0, clock=later(disk, 1000))  # type: ignore[arg-type]
        kept += not done.deleted
        for step in left:
            step()
        assert {path: disk.objects.get(path) for path in push.files} == push.files
        assert not list(disk.list(FOLDER))
        assert not list(disk.list(SWEEPS))
    assert len(sweeping.history) < calls
    assert waited
    assert kept


def test_records_are_found_by_anybody() -> None:
    store = root(acc__d=chain())
    push = Push(store, chain("a"))
    push.begin()
    [found] = Records(store).found()
    assert found.note is not None
    assert found.note.dataset == "acc/d"
    assert Records(store).needed([found]) == set(push.paths)
