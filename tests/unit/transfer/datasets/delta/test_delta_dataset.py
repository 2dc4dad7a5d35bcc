"""Delta tables as datasets: their chains, and what becomes of them at the other end."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings

from lakeferry.engines.local_engine import LocalEngine
from lakeferry.errors import (
    CommitConflict,
    CorruptLog,
    Diverged,
    HashMismatch,
    IncompatibleVersion,
    InvalidInput,
    LakeferryError,
    LimitExceeded,
    MissingFile,
    UnsupportedFeature,
)
from lakeferry.log import paths
from lakeferry.protection import dropping
from lakeferry.protection.drop_context import DropContext
from lakeferry.protection.dropping import Dropped
from lakeferry.storage import Store
from lakeferry.table import DeltaLog
from lakeferry.transfer.chain.hashes import Multihash
from lakeferry.transfer.chain.odf_blocks import ObjectKind, ObjectRef
from lakeferry.transfer.datasets.dataset import OtherDataset
from lakeferry.transfer.datasets.delta import (
    named_files,
    publishing_commits,
    root_checkpoints,
    version_blocks,
)
from lakeferry.transfer.datasets.delta.delta_dataset import DeltaDataset
from lakeferry.transfer.datasets.delta.required_objects import Judging
from lakeferry.transfer.datasets.delta.root_checkpoints import CHAIN_FOLDER
from tests.support import history as h
from tests.support.history import Append, Delete, DeleteRows, History, Layout, Upgrade, dated
from tests.support.shares import Share
from tests.support.stores import DictStore, Fault, FaultyStore, Stopped, StoreCall, at, on

Run = list[tuple[Multihash, bytes]]
VECTORS = Layout(deletion_vectors="u")
CHECKED = History().then(Upgrade(reader=("vacuumProtocolCheck",)), Append(2))
PAST = History(VECTORS).then(Append(2), DeleteRows(1), Append(1), Delete(1))


def run_of(dataset: DeltaDataset, lower: Multihash | None = None) -> Run:
    head = dataset.current()
    assert head is not None
    return list(dataset.read(dataset.interval(head, lower)))


def carry(source: Store, target: Store, lower: Multihash | None = None) -> Run:
    """Do what a transfer does before its commit: have the objects there."""
    theirs, mine = DeltaDataset(source, ""), DeltaDataset(target, "")
    run = run_of(theirs, lower)
    judged = mine.judge(run, lower, force=False)
    for ref in (*judged.required, *judged.optional):
        target.put(mine.place(ref), source.get(theirs.place(ref)))
    return run


@pytest.mark.parametrize("begins", [0, 2])
def test_a_chain_is_made_by_reading_each_commit_once(begins: int) -> None:
    past = History().then(Append(2), Delete(1), h.Checkpoint(), Append(1), Delete(1))
    objects = past.objects(with_data=True)
    gone = {paths.commit(version) for version in range(begins)}
    store = dated({name: data for name, data in objects.items() if name not in gone})
    store.calls.reset()
    DeltaDataset(store, "").current()
    read = [path for verb, path in store.calls.log if verb == "GET" and paths.parse(path)]
    commits = [path for path in read if path.endswith(".json")]
    assert sorted(commits) == [paths.commit(version) for version in range(begins, 5)]


def transfer(source: Store, target: Store) -> Multihash:
    mine = DeltaDataset(target, "")
    lower = mine.current()
    return mine.commit(carry(source, target, lower), lower)


def log_of(store: DictStore) -> dict[str, bytes]:
    return {
        name: data
        for name, data in store.objects.items()
        if name.startswith("_delta_log/0") and name.endswith(".json") and "checkpoint" not in name
    }


def assert_same(source: Store, target: Store, version: int | None = None) -> None:
    a, b = DeltaLog(source).snapshot(version), DeltaLog(target).snapshot(version)
    assert a.version == b.version
    # A checkpoint may know of more than the commits that it was made of.
    assert replace(a.metadata, unknown={}) == replace(b.metadata, unknown={})
    assert a.protocol.unordered == b.protocol.unordered
    assert sorted(a.files["path"].to_pylist()) == sorted(b.files["path"].to_pylist())


def test_a_version_is_a_block_with_its_commits_own_bytes() -> None:
    store = PAST.store()
    dataset = DeltaDataset(store, "")
    run = run_of(dataset)
    parsed = [dataset.parse(data, name) for name, data in run]
    assert [block.sequence_number for block in parsed] == list(range(5))
    for block in parsed:
        assert block.commit == store.get(paths.commit(block.sequence_number))
        for ref in block.objects:
            assert ref.path is not None
            data = store.get(ref.path)
            assert (ref.size_bytes, ref.hash) == (len(data), Multihash.sha3_256(data))


def test_a_block_that_is_too_large_isn_t_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(version_blocks, "LARGEST_VERSION_BLOCK_BYTES", 1000)
    with pytest.raises(LimitExceeded, match="too large to be transferred"):
        run_of(DeltaDataset(PAST.store(), ""))


def test_a_block_of_a_later_format_asks_for_an_update() -> None:
    data = run_of(DeltaDataset(PAST.store(), ""))[0][1]
    later = data.replace(version_blocks._MAGIC + b"1", version_blocks._MAGIC + b"2", 1)
    with pytest.raises(IncompatibleVersion) as refused:
        version_blocks.parse_version_block(later)
    assert refused.value.remedy == "update Lakeferry"


def test_a_root_never_replaces_what_somebody_else_has_put_into_the_log() -> None:
    name = f"{7:020}.checkpoint.parquet"
    ref = ObjectRef(ObjectKind.CHECKPOINT, Multihash.sha3_256(b"ours"), 4, name)
    store = DictStore({f"_delta_log/{name}": b"theirs"})
    with pytest.raises(CommitConflict, match="somebody else is making a table here"):
        root_checkpoints.publish_root_checkpoint(store, version_blocks.Root((ref,)))
    assert store.objects == {f"_delta_log/{name}": b"theirs"}


def test_two_versions_never_give_one_path_different_bytes() -> None:
    store = History().then(Append(1)).store()
    run = run_of(DeltaDataset(store, ""))
    judging = Judging(None)
    for name, data in run:
        judging.take(version_blocks.parse_version_block(data, name))
    last = version_blocks.parse_version_block(*run[-1][::-1])
    (file,) = last.files
    assert file.path is not None
    again = {"path": file.path, "size": 1, "partitionValues": {}, "modificationTime": 0}
    commit = json.dumps({"add": {**again, "dataChange": True}}).encode()
    other = version_blocks.FoundObject(1, Multihash.sha3_256(b"x").digest)
    objects = [(file.path, other)]
    block = version_blocks.make(2, last.hash, last.time_ns // 10**6, last.table_id, commit, objects)
    with pytest.raises(HashMismatch, match="two versions give one path different bytes"):
        judging.take(version_blocks.parse_version_block(block))


def test_what_arrives_is_an_ordinary_table() -> None:
    source, target = PAST.store(), DictStore()
    head = transfer(source, target)
    assert head == DeltaDataset(source, "").head() == DeltaDataset(target, "").current()
    assert log_of(source) == log_of(target)
    for version in range(5):
        assert_same(source, target, version)


def test_whoever_makes_a_chain_of_the_same_log_makes_the_same_chain() -> None:
    first, second = PAST.store(), PAST.store("memory://other")
    assert DeltaDataset(first, "").current() == DeltaDataset(second, "").current()


def test_only_what_is_new_gets_blocks_and_is_read() -> None:
    store = PAST.store()
    dataset = DeltaDataset(store, "")
    before = dataset.current()
    reads = store.calls["RANGE"]
    assert dataset.current() == before
    assert store.calls["RANGE"] - reads <= 2
    for name, data in PAST.then(Append(1)).objects().items():
        store.put_if_absent(name, data)
    reads = store.calls["RANGE"]
    after = dataset.current()
    # What is to be published, the head, the last block, and the one new file.
    assert store.calls["RANGE"] - reads == 4
    assert after is not None
    assert after != before
    assert len(dataset.interval(after, before)) == 1


def test_a_file_that_gets_another_vector_isnt_read_again() -> None:
    past = History(VECTORS).then(Append(1), DeleteRows(1), DeleteRows(1))
    run = run_of(DeltaDataset(past.store(), ""))
    named = [
        [ref.path for ref in version_blocks.parse_version_block(data).objects] for _, data in run
    ]
    assert [len(names) for names in named] == [0, 1, 1, 1]
    assert len({name for names in named for name in names}) == 3


def test_an_advanced_table_sends_only_its_new_versions() -> None:
    source, target = PAST.store(), DictStore()
    old = transfer(source, target)
    more = PAST.then(Append(2), DeleteRows(2))
    for name, data in more.objects().items():
        source.put_if_absent(name, data)
    run = carry(source, target, old)
    assert len(run) == 2
    DeltaDataset(target, "").commit(run, old)
    assert_same(source, target)


@cache
def dropped_objects() -> tuple[dict[str, bytes], dict[str, bytes], Dropped]:
    past = dated(CHECKED.objects(with_data=True))
    before = past.objects
    engine = LocalEngine(lambda _: past, parallel=1)
    work = DropContext(DeltaLog(past, clock=past.clock), lambda *_: engine)
    done = dropping.drop(work, "vacuumProtocolCheck")
    return before, past.objects, done


def dropped() -> tuple[DictStore, DictStore, Dropped]:
    """Return a table as it was, the same after it lost a feature behind barriers, and how."""
    before, after, done = dropped_objects()
    return dated(before), dated(after), done


def checkpoints_of(store: Store) -> set[int]:
    return {each.version for each in DeltaLog(store).listing().checkpoints}


def test_a_feature_that_was_dropped_behind_barriers_has_them_at_the_other_end_too() -> None:
    past, source, done = dropped()
    target = DictStore()
    transfer(past, target)
    assert done.version not in checkpoints_of(target)
    transfer(source, target)
    assert set(done.checkpoints) | {done.version} <= checkpoints_of(target)
    assert_same(source, target)
    for version in (*done.checkpoints, done.version):
        assert_same(source, target, version)


def test_barriers_are_there_if_the_boundary_comes_in_a_part_of_its_own() -> None:
    _, source, done = dropped()
    target = DictStore()
    run = carry(source, target)
    mine = DeltaDataset(target, "")
    before = mine.commit(run[:-1], None)
    mine.commit(run[-1:], before)
    assert set(done.checkpoints) | {done.version} <= checkpoints_of(target)


def test_a_cleanup_at_one_end_is_no_divergence() -> None:
    long = History(VECTORS).then(*(Append(1) for _ in range(6)), h.Checkpoint(), Append(1))
    source, target = long.store(), DictStore()
    old = transfer(source, target)
    source.delete_many([paths.commit(version) for version in range(6)])
    assert DeltaDataset(source, "").current() == old
    for name, data in long.then(Append(1)).objects().items():
        if name > paths.commit(7) or not name.startswith("_delta_log/"):
            source.put_if_absent(name, data)
    transfer(source, target)
    assert_same(source, target)
    # A third end gets all of it, also what the source's own log doesn't have any more.
    third = DictStore()
    transfer(source, third)
    assert_same(target, third, 2)


@pytest.mark.parametrize("kind", list(h.Kind))
def test_a_log_without_its_beginning_begins_with_its_oldest_checkpoint(kind: h.Kind) -> None:
    layout = Layout(deletion_vectors="u", v2_checkpoints=kind.is_v2)
    long = History(layout).then(
        Append(3), DeleteRows(2), Append(1), h.Checkpoint(kind, sidecars=2), Append(1), Delete(2)
    )
    source, target = long.store(), DictStore()
    source.delete_many([paths.commit(version) for version in range(3)])
    transfer(source, target)
    for version in (3, 4, 5):
        assert_same(source, target, version)
    assert DeltaLog(target).listing().earliest_version() == 3


def test_files_that_no_version_needs_any_more_may_be_gone() -> None:
    source, target = History().then(Append(1), Append(1), Delete(1)).store(), DictStore()
    gone = DeltaLog(source).snapshot(1).files["path"].to_pylist()
    source.delete_many(gone)
    transfer(source, target)
    assert_same(source, target)


def test_files_that_go_after_their_block_was_made_may_be_gone_too() -> None:
    source, target = History().then(Append(1), Append(1), Delete(1)).store(), DictStore()
    theirs, mine = DeltaDataset(source, ""), DeltaDataset(target, "")
    run = run_of(theirs)
    judged = mine.judge(run, None, force=False)
    assert len(judged.optional) == 1
    for ref in judged.required:
        target.put(mine.place(ref), source.get(theirs.place(ref)))
    mine.commit(run, None)
    assert_same(source, target)


def test_a_file_that_the_newest_version_needs_may_not_be_gone() -> None:
    source = History().then(Append(2)).store()
    source.delete_many(DeltaLog(source).snapshot().files["path"].to_pylist()[:1])
    run = run_of(DeltaDataset(source, ""))
    with pytest.raises(MissingFile):
        DeltaDataset(DictStore(), "").judge(run, None, force=False)


def test_absolute_paths_arent_transferred() -> None:
    past = History().then(
        h.Lines(('{"add":{"path":"s3://b/x.parquet","size":1,"dataChange":true}}',))
    )
    with pytest.raises(UnsupportedFeature, match="files outside of its folder"):
        DeltaDataset(past.store(), "").current()


# --- Two ends that differ -------------------------------------------------------------


def diverged_pair() -> tuple[DictStore, DictStore]:
    source, target = PAST.store(), DictStore()
    transfer(source, target)
    ours, theirs = PAST.then(Append(3), Append(1)), PAST.then(DeleteRows(1), Append(1), Delete(1))
    for store, past in ((source, ours), (target, theirs)):
        for name, data in past.objects().items():
            store.put_if_absent(name, data)
    return source, target


def forced(source: Store, target: Store) -> Multihash:
    theirs, mine = DeltaDataset(source, ""), DeltaDataset(target, "")
    head, run = mine.current(), run_of(theirs)
    judged = mine.judge(run, head, force=True)
    for ref in (*judged.required, *judged.optional):
        target.put(mine.place(ref), source.get(theirs.place(ref)))
    return mine.commit(run, head, force=True)


def test_diverged_tables_are_left_alone() -> None:
    source, target = diverged_pair()
    mine = DeltaDataset(target, "")
    head = mine.current()
    before = target.objects
    with pytest.raises(Diverged):
        mine.commit(run_of(DeltaDataset(source, "")), head)
    assert target.objects == before


def test_force_replaces_content_in_one_more_version_and_no_commit() -> None:
    source, target = diverged_pair()
    DeltaDataset(target, "").current()
    before, old = log_of(target), DeltaLog(target).snapshot()
    head = forced(source, target)
    now = DeltaLog(target).snapshot()
    wanted = DeltaLog(source).snapshot()
    assert now.version == old.version + 1
    assert sorted(now.files["path"].to_pylist()) == sorted(wanted.files["path"].to_pylist())
    assert before.items() <= log_of(target).items()
    assert DeltaLog(target).snapshot(old.version).num_files == old.num_files
    mine = DeltaDataset(target, "")
    assert head == mine.current()
    root = mine.parse(mine.block(head))
    assert root.root is not None
    assert root.prev_hash is None
    assert root.root.origin == DeltaDataset(source, "").head()
    # Once more is nothing new.
    assert forced(source, target) == head


def test_a_table_after_force_can_be_cloned() -> None:
    source, target = diverged_pair()
    forced(source, target)
    third = DictStore()
    transfer(target, third)
    assert_same(target, third)


def test_force_doesnt_replace_one_table_by_another() -> None:
    target = PAST.store()
    other = History().then(Append(1)).objects()
    changed = {
        name: data.replace(h.unique("table").encode(), h.unique("another").encode())
        for name, data in other.items()
    }
    with pytest.raises(OtherDataset):
        forced(h.dated(changed), target)


def test_the_second_of_two_commits_is_told_and_changes_nothing() -> None:
    source, target = PAST.store(), DictStore()
    old = transfer(source, target)
    first, second = PAST.then(Append(3)), PAST.then(Append(1), Delete(1))
    runs = []
    for past in (first, second):
        store = past.store()
        runs.append(carry(store, target, old))
    DeltaDataset(target, "").commit(runs[0], old)
    before = target.objects
    with pytest.raises(CommitConflict):
        DeltaDataset(target, "").commit(runs[1], old)
    assert target.objects == before


def test_a_writer_in_between_ends_the_run_before_its_version() -> None:
    source, target = PAST.store(), DictStore()
    old = transfer(source, target)
    more = PAST.then(Append(1), Append(1))
    run = carry(more.store(), target, old)
    theirs = PAST.then(h.SetProperties((("a", "b"),))).objects()[paths.commit(5)]

    class Overtaken(FaultyStore):
        def put_if_absent(self, path: str, data: bytes) -> bool:
            if path == paths.commit(6):
                self.inner.put(path, theirs)
            return super().put_if_absent(path, data)

    with pytest.raises(CommitConflict):
        DeltaDataset(Overtaken(target), "").commit(run, old)
    # What was published before is the sender's, and the other writer's commit stands.
    mine = DeltaDataset(target, "")
    head = mine.current()
    assert head is not None
    assert run[0][0] in [block.hash for _, block in mine.walk(head)]
    assert target.get(paths.commit(6)) == theirs


def test_a_run_that_another_writer_ends_isnt_told_as_finished() -> None:
    source, target = PAST.store(), DictStore()
    old = transfer(source, target)
    run = carry(PAST.then(Append(1), Append(1)).store(), target, old)
    with pytest.raises(Stopped):
        DeltaDataset(FaultyStore(target, on("PUT_IF_ABSENT", Fault.STOP_AFTER)), "").commit(
            run, old
        )
    assert publishing_commits.is_declared(target)
    theirs = PAST.then(h.SetProperties((("a", "b"),))).objects()[paths.commit(5)]
    target.put(paths.commit(6), theirs)
    mine = DeltaDataset(target, "")
    head = mine.current()
    assert head is not None
    assert run[-1][0] not in [block.hash for _, block in mine.walk(head)]
    assert mine.finished is None
    assert not publishing_commits.is_declared(target)


# --- Stopped anywhere -----------------------------------------------------------------


@pytest.mark.parametrize("fault", [Fault.STOP_BEFORE, Fault.STOP_AFTER])
@pytest.mark.parametrize("what", ["new", "root", "advanced", "dropped", "force"])
def test_a_commit_that_stops_at_any_call_is_completed_by_the_next(
    what: str, fault: Fault, share: Share
) -> None:
    stops = 0
    for index in share.onwards():
        source, target, act = _prepared(what)
        faulty = FaultyStore(target, at(index, fault))
        try:
            act(faulty)
        except Stopped:
            stops += 1
            _assert_whole(target)
            act(target)
        _assert_whole(target)
        if what == "dropped":
            assert checkpoints_of(target) >= checkpoints_of(source)
        expected = DeltaLog(source).snapshot().files["path"].to_pylist()
        assert sorted(DeltaLog(target).snapshot().files["path"].to_pylist()) == sorted(expected)
        if len(faulty.history) <= index:
            break
    assert stops > 5 or not share.is_whole


def test_whatever_fails_once_the_last_version_is_there_is_done_by_the_next() -> None:
    def fails(call: StoreCall) -> None:
        if call.verb == "SWAP":
            raise ValueError("not an error of ours")

    for what in ("advanced", "force"):
        source, target, act = _prepared(what)
        head = act(FaultyStore(target, fails))
        assert isinstance(head, Multihash)
        dataset = DeltaDataset(target, "")
        assert log_of(target).keys() >= log_of(source).keys()
        assert dataset.is_replaced_by(dataset.current() or head, head)


@pytest.mark.parametrize("text", [b"", b"\xff\n", b"no hash\n"])
def test_a_damaged_intent_doesnt_stop_anything(text: bytes) -> None:
    source, target = PAST.then(Append(1)).store(), DictStore()
    transfer(PAST.store(), target)
    target.put(publishing_commits.NEXT, text)
    transfer(source, target)
    assert log_of(target) == log_of(source)
    assert not publishing_commits.is_declared(target)


def _prepared(what: str) -> tuple[DictStore, DictStore, Callable[[Store], object]]:
    if what == "force":
        source, target = diverged_pair()
        run = run_of(DeltaDataset(source, ""))
        head = DeltaDataset(target, "").current()
        for ref in DeltaDataset(target, "").judge(run, head, force=True).required:
            target.put(str(ref.path), source.get(str(ref.path)))

        def force(store: Store) -> object:
            return DeltaDataset(store, "").commit(run, head, force=True)

        return source, target, force
    if what == "dropped":
        past_of, source, _ = dropped()
        head = transfer(past_of, target := DictStore())
        run = carry(source, target, head)
        return source, target, lambda store: DeltaDataset(store, "").commit(run, head)
    past = PAST.then(h.Checkpoint(), Append(1))
    source, target, head = past.store(), DictStore(), None
    if what == "root":
        source.delete_many([paths.commit(version) for version in range(4)])
    elif what == "advanced":
        head = transfer(PAST.store(), target)
    run = carry(source, target, head)
    return source, target, lambda store: DeltaDataset(store, "").commit(run, head)


def _assert_whole(store: DictStore) -> None:
    """Every version that a reader can see has all of its files."""
    listing = DeltaLog(store)
    if not log_of(store):
        return
    snapshot = listing.snapshot()
    objects = store.objects
    for path in snapshot.files["path"].to_pylist():
        assert named_files.decoded(path) in objects


# --- Peers that lie -------------------------------------------------------------------


def _changed(run: Run, index: int, old: bytes, new: bytes) -> Run:
    data = run[index][1].replace(old, new)
    assert data != run[index][1]
    return [*run[:index], (Multihash.sha3_256(data), data)]


@pytest.mark.parametrize(
    "path",
    ["../x", "/x", "a/../../x", "_delta_log/00000000000000000009.json", "a\\\\b", ".", "a//b"],
)
def test_a_path_that_leads_elsewhere_is_refused(path: str) -> None:
    run = run_of(DeltaDataset(History().then(Append(1)).store(), ""))
    name = str(version_blocks.parse_version_block(run[1][1]).objects[0].path).encode()
    lied = _changed(run, 1, name, path.encode())
    with pytest.raises(LakeferryError):
        DeltaDataset(DictStore(), "").judge(lied[:2], None, force=False)


OUTSIDE = [
    *("file:///private/x", "file:/private/x", "/private/x", "s3://private/x", "x:/private"),
    *("../private/x", "..%2Fprivate/x", "%2e%2e/private/x", "a/../../private/x", " ../private/x"),
    *("a/%2E%2E/%2e%2e/private/x", "./../private/x", "%2Fprivate/x", "file%3A///private/x"),
]


@pytest.mark.parametrize("outside", OUTSIDE)
@pytest.mark.parametrize("action", ["add", "cdc", "vector"])
def test_no_commit_that_names_a_file_outside_of_the_table_is_taken(
    action: str, outside: str
) -> None:
    run = run_of(DeltaDataset(History().store(), ""))
    file = {"path": outside, "size": 1, "partitionValues": {}, "dataChange": True}
    if action == "vector":
        vector = {"storageType": "p", "pathOrInlineDv": outside, "sizeInBytes": 1, "offset": 0}
        file |= {"path": "x", "deletionVector": {**vector, "cardinality": 1}}
    commit = json.dumps({"cdc" if action == "cdc" else "add": file}).encode()
    table_id = version_blocks.parse_version_block(run[0][1]).table_id
    names = {"x", outside, "private/x", "../private/x"} if action != "vector" else {"x"}
    for listed in ([], *([name] for name in sorted(names)), ["x", "private/x"]):
        objects = [(name, version_blocks.FoundObject(1, b"\1" * 32)) for name in listed]
        data = version_blocks.make(1, run[0][0], 1, table_id, commit, objects)
        with pytest.raises(LakeferryError):
            DeltaDataset(DictStore(), "").judge(
                [run[0], (Multihash.sha3_256(data), data)], None, force=False
            )


@pytest.mark.parametrize("outside", OUTSIDE)
def test_no_table_with_a_file_outside_is_sent(outside: str) -> None:
    file = {"path": outside, "size": 1, "partitionValues": {}, "dataChange": True}
    past = History().then(h.Lines((json.dumps({"add": file}),)))
    for history in (past, past.then(h.Checkpoint(), Append(1), h.Clean())):
        with pytest.raises(LakeferryError):
            DeltaDataset(history.store(), "").current()


def test_a_block_that_lists_other_objects_than_its_commit_is_refused() -> None:
    run = run_of(DeltaDataset(History().then(Append(1)).store(), ""))
    block = version_blocks.parse_version_block(run[1][1])
    assert block.commit is not None
    for objects in ([], [("x.parquet", version_blocks.FoundObject(1, b"\1" * 32))]):
        data = version_blocks.make(1, run[0][0], 1, block.table_id, block.commit, objects)
        lied = [run[0], (Multihash.sha3_256(data), data)]
        with pytest.raises(InvalidInput):
            DeltaDataset(DictStore(), "").judge(lied, None, force=False)


def test_a_roots_checkpoint_has_to_say_what_its_block_says() -> None:
    source, target = PAST.then(h.Checkpoint(), Append(1)).store(), DictStore()
    source.delete_many([paths.commit(version) for version in range(4)])
    run = carry(source, target)
    block = version_blocks.parse_version_block(run[0][1])
    data = version_blocks.make(
        block.sequence_number, None, 0, block.table_id, block.commit, [], block.root
    )
    with pytest.raises(InvalidInput):
        DeltaDataset(target, "").commit([(Multihash.sha3_256(data), data)], None)
    assert not log_of(target)


def test_objects_with_other_bytes_are_found_out() -> None:
    source, target = PAST.store(), DictStore()
    run = carry(source, target)
    mine = DeltaDataset(target, "")
    ref = next(ref for ref in mine.judge(run, None, force=False).required)
    target.put(mine.place(ref), b"x" * ref.size_bytes)
    with pytest.raises(HashMismatch):
        mine.commit(run, None, unproven={ref})
    assert not log_of(target)


@settings(max_examples=60, deadline=None)
@given(h.histories(max_steps=8))
def test_any_table_travels(past: History) -> None:
    source, target = past.store(), DictStore()
    try:
        transfer(source, target)
    except UnsupportedFeature:
        assert past.layout.deletion_vectors == "p" or b"memory://" in b"".join(
            log_of(source).values()
        )
        return
    for version in range(past.newest_version + 1):
        assert_same(source, target, version)
    assert not any(name.startswith(CHAIN_FOLDER) and "next" in name for name in target.objects)


def test_many_objects_are_found_by_listing_wherever_they_are() -> None:
    for layout in (Layout(), Layout(partitioned=True)):
        store = History(layout).then(Append(100), Delete(10)).store()
        dataset = DeltaDataset(store, "")
        run = run_of(dataset)
        judged = dataset.judge(run, None, force=False)
        assert None not in dataset.sizes([*judged.required, *judged.optional])
        nested = DictStore({f"acc/t/{name}": data for name, data in store.objects.items()})
        assert None not in DeltaDataset(nested, "acc/t").sizes(judged.required)


# --- What readers could be led astray by ------------------------------------------------


def _run_with(line: str) -> Run:
    """Return the blocks of a table with one more action in its last commit."""
    past = History().then(Append(1))
    first, second = run_of(DeltaDataset(past.store(), ""))
    block = version_blocks.parse_version_block(second[1])
    assert block.commit is not None
    commit = block.commit + line.encode() + b"\n"
    objects = _listed(block)
    data = version_blocks.make(1, first[0], block.time_ns // 10**6, block.table_id, commit, objects)
    return [first, (Multihash.sha3_256(data), data)]


@pytest.mark.parametrize(
    "path",
    [
        " file:/etc/passwd",
        "file:tmp/x",
        "http:host/x",
        "s3://b/x",
        "x.parquet ",
        "victim/_delta_log/00000000000000000000.json",
        "victim/.lakeferry/dataset.json",
        "refs/head",
        "a/refs/head",
        "%2e%2e/x",
        "a%2f..%2f..%2fx",
        "y" * 256,
    ],
)
def test_paths_that_a_reader_may_take_for_others_are_refused(path: str) -> None:
    line = f'{{"add":{{"path":"{path}","size":1,"dataChange":true}}}}'
    with pytest.raises(LakeferryError):
        DeltaDataset(DictStore(), "").judge(_run_with(line), None, force=False)


def test_a_file_that_is_kept_has_to_be_there() -> None:
    line = (
        '{"remove":{"path":"never.parquet","dataChange":true}}\n'
        '{"add":{"path":"never.parquet","size":1,"dataChange":true,"partitionValues":{}}}'
    )
    run = _run_with(line)
    with pytest.raises(InvalidInput, match="none of them adds"):
        DeltaDataset(DictStore(), "").judge(run, None, force=False)
    target = DictStore()
    mine = DeltaDataset(target, "")
    source = History().then(Append(1)).store()
    mine.commit(run[:1], None)
    judged = mine.judge(run[1:], run[0][0], force=False)
    for ref in judged.required:
        target.put(mine.place(ref), source.get(str(ref.path)))
    with pytest.raises(MissingFile, match="keep"):
        mine.commit(run[1:], run[0][0])


def test_a_block_of_another_table_than_its_commit_says_is_refused() -> None:
    run = run_of(DeltaDataset(History().store(), ""))
    block = version_blocks.parse_version_block(run[0][1])
    data = version_blocks.make(0, None, 0, "another", block.commit, [])
    with pytest.raises(InvalidInput):
        DeltaDataset(DictStore(), "").judge([(Multihash.sha3_256(data), data)], None, force=False)
    data = version_blocks.make(0, None, 0, "another", b"{}\n", [])
    with pytest.raises(LakeferryError):
        DeltaDataset(DictStore(), "").judge([(Multihash.sha3_256(data), data)], None, force=False)


def _cut() -> tuple[DictStore, DictStore, Run]:
    source, target = PAST.then(h.Checkpoint(), Append(1)).store(), DictStore()
    source.delete_many([paths.commit(version) for version in range(4)])
    return source, target, carry(source, target)


def _listed(block: version_blocks.DeltaBlock) -> list[tuple[str, version_blocks.FoundObject]]:
    """Return a block's data files as whoever makes a block lists them."""
    return [
        (str(ref.path), version_blocks.FoundObject(ref.size_bytes, ref.hash.digest))
        for ref in block.files
    ]


def test_a_roots_own_commit_is_looked_at_too() -> None:
    _, target, run = _cut()
    block = version_blocks.parse_version_block(run[0][1])
    objects = _listed(block)
    commit = b'{"cdc":{"path":"file:/etc/passwd","size":1,"dataChange":false}}\n'
    data = version_blocks.make(4, None, 0, block.table_id, commit, objects, block.root)
    with pytest.raises(LakeferryError):
        DeltaDataset(target, "").commit([(Multihash.sha3_256(data), data)], None)
    assert not log_of(target)


def test_a_roots_checkpoint_is_that_of_its_version() -> None:
    _, target, run = _cut()
    block = version_blocks.parse_version_block(run[0][1])
    assert block.root is not None
    objects = _listed(block)
    files = tuple(
        replace(ref, path=str(ref.path).replace(f"{4:020d}", f"{99:020d}"))
        for ref in block.root.files
    )
    root = replace(block.root, files=files)
    data = version_blocks.make(4, None, 0, block.table_id, None, objects, root)
    with pytest.raises(LakeferryError):
        DeltaDataset(target, "").commit([(Multihash.sha3_256(data), data)], None)
    assert not any("checkpoint.parquet" in name for name in target.objects)


def test_a_run_whose_files_are_taken_away_before_it_is_published_is_dropped() -> None:
    source, target = PAST.store(), DictStore()
    run = carry(source, target)
    faulty = FaultyStore(target, lambda call: Fault.STOP_AFTER if _is_next(call) else None)
    with pytest.raises(Stopped):
        DeltaDataset(faulty, "").commit(run, None)
    for name in table_files(target):
        target.delete_many([name])
    assert DeltaDataset(target, "").current() is None
    assert not log_of(target)
    # And the same run again is as good as the first time.
    DeltaDataset(target, "").commit(carry(source, target), None)
    assert_same(source, target)


def _is_next(call: StoreCall) -> bool:
    return call.verb == "PUT" and call.paths[0].endswith("refs/next")


def table_files(store: DictStore) -> list[str]:
    return [name for name in store.objects if not name.startswith("_delta_log/")]


def test_equal_objects_at_two_places_are_both_looked_at() -> None:
    source, target = History().then(Append(2)).store(), DictStore()
    names = sorted(table_files(source))
    for name in names:
        source.put(name, b"the same")
    run = carry(source, target)
    target.put(names[0], b"the junk")
    mine = DeltaDataset(target, "")
    refs = mine.judge(run, None, force=False).required
    with pytest.raises(HashMismatch):
        mine.commit(run, None, unproven=[ref for ref in refs if ref.path == names[0]])


def test_a_commit_that_speaks_of_an_origin_of_no_meaning_is_an_ordinary_one() -> None:
    info = '{"commitInfo":{"operation":"X","timestamp":1,"lakeferryOrigin":"junk"}}'
    store = History().then(h.Lines((info,))).store()
    assert len(run_of(DeltaDataset(store, ""))) == 2


def test_a_head_that_says_nothing_of_its_version_is_told_of() -> None:
    store = PAST.store()
    head = DeltaDataset(store, "").current()
    assert head is not None
    store.put(f"{CHAIN_FOLDER}/refs/head", head.text.encode())
    with pytest.raises(CorruptLog, match="transfer head"):
        DeltaDataset(store, "").current()


def test_each_object_is_asked_for_once_when_a_run_is_divided() -> None:
    past = History().then(*(Append(1) for _ in range(60)))
    store = past.store()
    dataset = DeltaDataset(store, "")
    run = run_of(dataset)
    first = version_blocks.parse_version_block(run[1][1]).files[0]
    store.delete_many([str(first.path)])
    ends = dataset.part_ends()
    store.calls.reset()
    for _, data in run:
        block = version_blocks.parse_version_block(data)
        ends.take(block)
        # The file is needed by every version from the first that has it.
        assert ends.may_end == (block.sequence_number == 0)
    assert store.calls["HEAD"] <= 70


def test_a_roots_checkpoint_that_unfolds_to_very_much_is_refused_unread() -> None:
    _, target, run = _cut()
    block = version_blocks.parse_version_block(run[0][1])
    assert block.root is not None
    objects = _listed(block)
    sink = io.BytesIO()
    nothing = pa.nulls(5_000_000, pa.struct([("path", pa.string())]))
    pq.write_table(pa.table({"add": nothing}), sink, compression="zstd")
    bomb = sink.getvalue()
    assert len(bomb) < 64 << 10
    [ref] = block.root.files
    ref = ObjectRef(ref.kind, Multihash.sha3_256(bomb), len(bomb), ref.path)
    root = replace(block.root, files=(ref,))
    data = version_blocks.make(4, None, 0, block.table_id, None, objects, root)
    mine = DeltaDataset(target, "")
    target.put(mine.place(ref), bomb)
    with pytest.raises(CorruptLog, match="5,000,000 rows"):
        mine.commit([(Multihash.sha3_256(data), data)], None)
    assert not log_of(target)


@pytest.mark.parametrize("modified_ms", [-1, -(2**40), 2**62])
def test_a_commit_file_of_any_date_has_a_block(modified_ms: int) -> None:
    """Where no commit says its time, its file's counts, which may be before 1970."""
    store = History().then(Append(1)).store()
    for version in range(2):
        name = paths.commit(version)
        lines = [line for line in store.get(name).splitlines() if b"commitInfo" not in line]
        store.put(name, b"\n".join(lines))
        store.set_modified(name, modified_ms)
    target = DictStore()
    assert len(carry(store, target)) == 2


@pytest.mark.parametrize("moment", [-1, 2**62])
def test_a_commit_of_any_time_has_a_block(moment: int) -> None:
    store = History(Layout(in_commit_timestamps=True)).then(Append(1)).store()
    name = paths.commit(1)
    lines = [json.loads(line) for line in store.get(name).splitlines()]
    lines[0]["commitInfo"]["inCommitTimestamp"] = moment
    store.put(name, b"\n".join(json.dumps(line).encode() for line in lines))
    assert len(carry(store, DictStore())) == 2
