"""Renames and deletions: no dataset is lost, whoever acts at the same time, and who crashes."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from lakeferry.engines.local_engine import LocalEngine
from lakeferry.errors import (
    CommitConflict,
    CorruptLog,
    LakeferryError,
    LimitExceeded,
    ObjectNotFound,
    RedirectIllegalTransition,
    StorageUnavailable,
    TimedOut,
)
from lakeferry.log.paths import MOVE_CLAIM
from lakeferry.storage import Store, open_store
from lakeferry.storage.process_identity import this_process
from lakeferry.table.delta_log import wall_clock
from lakeferry.transfer.chain.hashes import Multihash
from lakeferry.transfer.datasets.dataset import DatasetFormat
from lakeferry.transfer.datasets.delta.delta_dataset import FIRST_PULL_CLAIM
from lakeferry.transfer.datasets.odf import OdfDataset
from lakeferry.transfer.repository import dataset_folders
from lakeferry.transfer.repository.dataset_changes import DatasetChanges
from lakeferry.transfer.repository.dataset_folders import (
    HOLD_LASTS_MS,
    NAMES_FILE,
    DatasetFolders,
    FolderTable,
    NamedFolder,
    NameHold,
)
from lakeferry.transfer.repository.dataset_names import DatasetName
from lakeferry.transfer.repository.garbage_collection import collect
from lakeferry.transfer.repository.push_liveness import SILENT_FOR_MS
from lakeferry.transfer.repository.push_records import PUSHES_FOLDER, PushRecord
from lakeferry.transfer.repository.repository import Repository, Visibility
from tests.support.clock import ManualClock
from tests.support.history import Append, History
from tests.support.odf import Chain
from tests.support.stores import DictStore, Fault, FaultyStore, Stopped, StoreCall, at
from tests.unit.transfer.repository.test_garbage_collection import (
    HOUR_MS,
    below,
    chain,
    later,
    plan,
    root,
    run,
)

OLD, NEW, THIRD = DatasetName("orders"), DatasetName("sales"), DatasetName("third")
OTHER_SEED = b"\xed\x01" + bytes(32)


def changes(
    store: Store,
    clock: Callable[[], int] | None = None,
    check_unused: Callable[[str], None] = lambda _: None,
) -> DatasetChanges:
    now = clock or getattr(store, "clock", None) or (lambda: 0)
    return DatasetChanges(Repository(store, clock=now), check_unused, clock=now)


def named(store: Store) -> dict[str, str]:
    """Return the names that lead to a dataset, each with its folder."""
    repository = Repository(store)
    table = repository.folders.read()
    texts = {*table.named, "orders", "sales", "third", "acc/d", "acc/e", "acc"}
    found = {}
    for text in texts:
        folder = table.folder(DatasetName(text))
        if folder is not None and repository.kind(folder) is not None:
            found[text] = folder.text
    return found


def calls_of(act: Callable[[Store], object], make: Callable[[], DictStore]) -> int:
    store = FaultyStore(make())
    act(store)
    return len(store.history)


def one_dataset() -> DictStore:
    return root(orders=chain())


class TestRename:
    def test_no_object_is_moved(self) -> None:
        store = one_dataset()
        before = store.objects
        done = changes(store).rename(OLD, NEW)
        assert done.as_document() == {
            "name": "sales",
            "was": "orders",
            "visibility": None,
            "changed": True,
        }
        assert {**store.objects, NAMES_FILE: b""} == {**before, NAMES_FILE: b""}
        assert named(store) == {"sales": "orders"}

    def test_what_was_renamed_is_renamed_no_more(self) -> None:
        store = one_dataset()
        for changed in (True, False, False):
            assert changes(store).rename(OLD, NEW).changed is changed
        assert changes(store).rename(NEW, NEW).changed is False
        with pytest.raises(ObjectNotFound):
            changes(store).rename(THIRD, NEW)
        with pytest.raises(ObjectNotFound):
            changes(store).rename(OLD, THIRD)

    def test_a_name_comes_back(self) -> None:
        store = one_dataset()
        changes(store).rename(OLD, NEW)
        changes(store).rename(NEW, OLD)
        assert named(store) == {"orders": "orders"}
        assert changes(store).rename(NEW, OLD).changed is False
        for _ in range(3):
            changes(store).rename(OLD, NEW)
            changes(store).rename(NEW, THIRD)
            changes(store).rename(THIRD, OLD)
        assert named(store) == {"orders": "orders"}

    def test_names_change_places(self) -> None:
        store = root(orders=chain("a"), sales=chain("b"))
        for old, new in ((OLD, THIRD), (NEW, OLD), (THIRD, NEW)):
            changes(store).rename(old, new)
        assert named(store) == {"orders": "sales", "sales": "orders"}

    @pytest.mark.parametrize("new", ["sales", "acc", "acc/e", "orders/x", "acc/d/x"])
    def test_a_name_that_is_taken_is_refused(self, new: str) -> None:
        store = DictStore(
            {**below("orders", chain("a")), **below("sales", chain()), **below("acc/e", chain())}
        )
        before = store.objects
        with pytest.raises(LakeferryError) as refused:
            changes(store).rename(OLD, DatasetName.parse(new) if new != "acc/d/x" else NEW)
        assert isinstance(refused.value, CommitConflict) or new == "orders/x"
        assert {**store.objects, NAMES_FILE: b""} == {**before, NAMES_FILE: b""}
        assert named(store).get("orders") == "orders"

    def test_a_name_may_be_an_account_again(self) -> None:
        """A folder that isn't called by its name any more is in nobody's way."""
        store = root(orders=chain("a"), third=chain("b"))
        changes(store).rename(OLD, NEW)
        inside = DatasetName("orders/x")
        assert Repository(store).folders.read().folder(inside) is None
        changes(store).rename(THIRD, inside)
        assert Repository(store).folders.read().folder(inside) == THIRD
        with pytest.raises(CommitConflict, match="there can't be a dataset named orders"):
            changes(store).rename(NEW, OLD)
        folder = Repository(store).folders.folder_for_push(DatasetName("orders/y"))
        assert "/" not in folder.text

    def test_who_may_see_it_stays(self) -> None:
        store = one_dataset()
        assert changes(store).set_visibility(OLD, Visibility.PUBLIC).changed
        assert not changes(store).set_visibility(OLD, Visibility.PUBLIC).changed
        changes(store).rename(OLD, NEW)
        assert not changes(store).set_visibility(NEW, Visibility.PUBLIC).changed
        with pytest.raises(ObjectNotFound):
            changes(store).set_visibility(OLD, Visibility.PRIVATE)

    def test_a_dry_run_changes_nothing(self) -> None:
        store = one_dataset()
        before = store.objects
        assert changes(store).rename(OLD, NEW, dry_run=True).changed
        assert changes(store).delete(OLD, dry_run=True).changed
        assert changes(store).set_visibility(OLD, Visibility.PUBLIC, dry_run=True).changed
        assert store.objects == before
        with pytest.raises(ObjectNotFound):
            changes(store).rename(NEW, OLD, dry_run=True)


class TestCrashes:
    """A process that ends at any call, and a store whose answers are lost."""

    @pytest.mark.parametrize("fault", [Fault.STOP_BEFORE, Fault.STOP_AFTER])
    def test_a_rename_is_done_or_not_and_can_be_repeated(self, fault: Fault) -> None:
        done: set[str] = set()
        for index in range(calls_of(lambda store: changes(store).rename(OLD, NEW), one_dataset)):
            store = one_dataset()
            # A listing that is read in part doesn't stop at its end.
            with suppress(Stopped):
                changes(FaultyStore(store, at(index, fault)), store.clock).rename(OLD, NEW)
            assert named(store) in ({"orders": "orders"}, {"sales": "orders"})
            done.add(*named(store))
            # Others wait for a hold, and remove it when it is old.
            later = ManualClock(store.clock() + HOLD_LASTS_MS + 1)
            changes(store, later).rename(OLD, NEW)
            assert named(store) == {"sales": "orders"}
            assert not DatasetFolders(store).read().held
        assert done == {"orders", "sales"}

    @pytest.mark.parametrize("fault", [Fault.STOP_BEFORE, Fault.STOP_AFTER])
    def test_a_deletion_is_done_or_not_and_can_be_repeated(self, fault: Fault) -> None:
        for index in range(calls_of(lambda store: changes(store).delete(OLD), one_dataset)):
            store = one_dataset()
            with suppress(Stopped):
                changes(FaultyStore(store, at(index, fault)), store.clock).delete(OLD)
            changes(store, ManualClock(store.clock() + HOLD_LASTS_MS + 1)).delete(OLD)
            assert named(store) == {}
            assert changes(store).delete(OLD).changed is False

    @pytest.mark.parametrize("fault", [Fault.LOSE_ANSWER, Fault.FAIL])
    def test_an_answer_is_lost(self, fault: Fault) -> None:
        for index in range(calls_of(lambda store: changes(store).rename(OLD, NEW), one_dataset)):
            store = one_dataset()
            try:
                renamed = changes(FaultyStore(store, at(index, fault)), store.clock).rename(
                    OLD, NEW
                )
            except StorageUnavailable:
                assert len(named(store)) == 1
            else:
                assert renamed.changed
                assert named(store) == {"sales": "orders"}

    def test_a_swap_that_the_store_did_though_it_says_no_is_ours(self) -> None:
        class Retrying(DictStore):
            def swap(self, path: str, expected: bytes | None, data: bytes) -> bool:
                return super().swap(path, expected, data) and path != NAMES_FILE

        store = Retrying(below("orders", chain()))
        assert changes(store).rename(OLD, NEW).changed
        assert named(store) == {"sales": "orders"}
        assert changes(store).delete(NEW).changed

    def test_a_hold_of_a_process_that_has_ended_stops_nobody(self) -> None:
        store = one_dataset()
        gone = this_process().split("/")
        hold = NameHold(("orders",), ("orders",), store.clock(), "/".join(gone))
        folders = DatasetFolders(store, store.clock)
        folders.change(lambda table: table.with_hold("x", hold))
        with pytest.raises(CommitConflict, match="can't be changed now"):
            changes(store).rename(OLD, NEW)
        late = ManualClock(store.clock() + HOLD_LASTS_MS + 1)
        assert changes(store, late).rename(OLD, NEW).changed

    def test_a_change_whose_hold_was_removed_is_given_up(self) -> None:
        store = one_dataset()
        folders = DatasetFolders(store, store.clock)
        with folders.hold((OLD,), (OLD,)) as held:
            folders.change(lambda table: table.without_holds(table.held))
            with pytest.raises(TimedOut):
                held.decide(lambda table: table.renamed(OLD, NEW, "orders"), lambda _: False)
        assert named(store) == {"orders": "orders"}

    def test_a_damaged_list_is_not_guessed_at(self) -> None:
        store = one_dataset()
        for damaged in (
            b"{",
            b'{"named":{"x":{"folder":"../y"}}}',
            b'{"deleted":{".lakeferry":1}}',
            # A later version's: what it means is unknown, and the next change would lose it.
            b'{"aliases":{}}',
            b'{"named":{"x":{"folder":"y","until":1}}}',
            # Garbage collection would delete a dataset that has a name.
            b'{"named":{"x":{"folder":"y"}},"deleted":{"y":{"name":"z","deleted_ms":1}}}',
            b'{"named":{"x":{"folder":"y/x"}},"deleted":{"y":{"name":"z","deleted_ms":1}}}',
            b'{"named":{"x":{"folder":"y"},"z":{"folder":"y"}}}',
        ):
            store.put(NAMES_FILE, damaged)
            with pytest.raises(CorruptLog):
                changes(store).rename(OLD, NEW)
            assert store.get(NAMES_FILE) == damaged

    def test_the_list_is_bounded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(dataset_folders, "MOST_RENAMED", 1)
        store = root(orders=chain("a"), sales=chain("b"))
        changes(store).rename(OLD, THIRD)
        with pytest.raises(LimitExceeded):
            changes(store).delete(NEW)
        assert named(store) == {"third": "orders", "sales": "sales"}


def meanwhile(store: DictStore, index: int, act: Callable[[], None]) -> FaultyStore:
    """Return a store that lets somebody else act before its caller's call with that index."""

    def rule(call: StoreCall) -> None:
        if call.index == index:
            act()

    return FaultyStore(store, rule)


class TestOthers:
    """Somebody else does something between any two calls of a change."""

    def interleaved(
        self,
        make: Callable[[], DictStore],
        first: Callable[[Store], None],
        second: Callable[[Store], None],
    ) -> Iterator[tuple[DictStore, bool, bool]]:
        for index in range(calls_of(first, make) + 1):
            store, was_done = make(), [False]

            def other(store: DictStore = store, was_done: list[bool] = was_done) -> None:
                was_done[0] = succeeds(lambda: second(store))

            faulty = meanwhile(store, index, other)
            own = succeeds(lambda faulty=faulty: first(faulty))  # type: ignore[misc]
            if index < calls_of(first, make):
                yield store, own, was_done[0]

    def test_two_datasets_want_one_name(self) -> None:
        def make() -> DictStore:
            return root(orders=chain("a"), sales=chain("b"))

        def rename(name: DatasetName) -> Callable[[Store], None]:
            return lambda store: void(changes(store, lambda: 0).rename(name, THIRD))

        for store, first, second in self.interleaved(make, rename(OLD), rename(NEW)):
            found = named(store)
            assert set(found.values()) == {"orders", "sales"}
            assert first != second
            assert found["third"] == ("orders" if first else "sales")

    @pytest.mark.parametrize(("one", "other"), [("a", "a/b"), ("a/b", "a")])
    def test_two_datasets_want_names_inside_each_other(self, one: str, other: str) -> None:
        def make() -> DictStore:
            return root(orders=chain("a"), sales=chain("b"))

        def rename(name: DatasetName, new: str) -> Callable[[Store], None]:
            return lambda store: void(changes(store, lambda: 0).rename(name, DatasetName(new)))

        for _, first, second in self.interleaved(make, rename(OLD, one), rename(NEW, other)):
            assert first != second

    def test_a_dataset_gets_two_names(self) -> None:
        for store, first, second in self.interleaved(
            one_dataset,
            lambda store: void(changes(store, lambda: 0).rename(OLD, NEW)),
            lambda store: void(changes(store, lambda: 0).rename(OLD, THIRD)),
        ):
            assert (first, second) in ((True, False), (False, True))
            assert named(store) == {"sales" if first else "third": "orders"}

    def test_a_dataset_is_renamed_and_deleted(self) -> None:
        for store, first, second in self.interleaved(
            one_dataset,
            lambda store: void(changes(store, lambda: 0).rename(OLD, NEW)),
            lambda store: void(changes(store, lambda: 0).delete(OLD)),
        ):
            # A deletion of a name that is gone by then has nothing to do.
            assert first or second
            assert named(store) in ({}, {"sales": "orders"})

    @pytest.mark.parametrize("name", [OLD, NEW])
    def test_a_push_begins(self, name: DatasetName) -> None:
        """Either the push is refused or the rename; never both go on."""

        def push(store: Store) -> None:
            folders = DatasetFolders(store, lambda: 0)
            folder = folders.folder_for_push(name)
            record = PushRecord(store, folder, None, clock=lambda: 0)
            record.begin([f"{folder}/data/x"])
            try:
                folders.check_push(name, folder)
            except BaseException:
                record.leave()
                raise

        def rename(store: Store) -> None:
            changes(store, lambda: 0).rename(OLD, NEW)

        outcomes = set()
        for store, first, second in self.interleaved(one_dataset, rename, push):
            outcomes.add((first, second))
            assert (first, second) != (True, True) or self.was_before(store, name)
        for store, first, second in self.interleaved(one_dataset, push, rename):
            outcomes.add((second, first))
            assert (first, second) != (True, True) or self.was_before(store, name)
        assert {(True, False), (False, True)} <= outcomes

    def was_before(self, store: DictStore, name: DatasetName) -> bool:
        """Return True if the living push is to the folder to which its name leads now."""
        table = DatasetFolders(store).read()
        folder = table.folder(name)
        notes = [
            json.loads(data)["dataset"]
            for path, data in store.objects.items()
            if path.startswith(PUSHES_FOLDER) and path.endswith("push.json")
        ]
        return folder is not None and notes == [folder.text]


def succeeds(act: Callable[[], None]) -> bool:
    try:
        act()
    except (CommitConflict, ObjectNotFound, StorageUnavailable, TimedOut):
        return False
    return True


def void(_: object) -> None:
    """Return nothing."""


class TestPushes:
    def test_a_push_under_way_refuses_the_change(self) -> None:
        store = one_dataset()
        record = PushRecord(store, OLD, None, clock=store.clock)
        record.begin(["orders/data/x"])
        made: tuple[Callable[[], object], ...] = (
            lambda: changes(store).rename(OLD, NEW),
            lambda: changes(store).delete(OLD),
        )
        for change in made:
            with pytest.raises(CommitConflict, match="a push") as refused:
                change()
            assert refused.value.fields["held_s"] == SILENT_FOR_MS // 1000
        record.end()
        assert changes(store).rename(OLD, NEW).changed

    def test_a_push_to_the_new_name_refuses_the_rename(self) -> None:
        store = one_dataset()
        PushRecord(store, NEW, None, clock=store.clock).begin(["sales/data/x"])
        with pytest.raises(CommitConflict, match="or to its new name"):
            changes(store).rename(OLD, NEW)

    def test_a_push_that_seems_dead_cannot_commit_afterwards(self) -> None:
        store = DictStore(below("orders", chain()), clock=(clock := ManualClock(HOUR_MS)))
        record = PushRecord(store, OLD, None, clock=clock)
        record.begin(["orders/data/x"])
        clock.advance(SILENT_FOR_MS)
        assert changes(store).rename(OLD, NEW).changed
        with pytest.raises(TimedOut):
            record.commit()

    def test_a_push_that_began_before_a_rename_is_refused(self) -> None:
        store = one_dataset()
        folders = DatasetFolders(store, store.clock)
        folder = folders.folder_for_push(OLD)
        changes(store).rename(OLD, NEW)
        with pytest.raises(CommitConflict, match="renamed or deleted"):
            folders.check_push(OLD, folder)

    def test_an_old_hold_stops_no_push(self) -> None:
        store = one_dataset()
        hold = NameHold(("orders",), (), store.clock(), "")
        folders = DatasetFolders(store, store.clock)
        folders.change(lambda table: table.with_hold("x", hold))
        with pytest.raises(StorageUnavailable):
            folders.check_push(OLD, OLD)
        later = DatasetFolders(store, ManualClock(store.clock() + HOLD_LASTS_MS + 1))
        later.check_push(OLD, OLD)
        assert not later.read().held


class TestDelete:
    def test_the_name_is_free_at_once_and_gc_frees_the_bytes(self) -> None:
        store = root(orders=chain("a"), sales=chain("b"))
        assert changes(store).delete(OLD).changed
        assert changes(store).delete(OLD).changed is False
        assert named(store) == {"sales": "sales"}
        fresh = DatasetFolders(store).folder_for_push(OLD)
        assert fresh != OLD
        kept = {path for path in store.objects if path.startswith("orders/")}
        assert run(store, clock=lambda: store.clock() + HOUR_MS).deleted == ()
        planned = plan(store)
        assert {each.path for each in planned} == kept
        assert {each.as_step()["because"] for each in planned} == {"deleted_dataset"}
        assert set(run(store).deleted) == kept
        assert not [path for path in store.objects if path.startswith("orders/")]
        assert DatasetFolders(store).read() == FolderTable({"orders": NamedFolder(fresh.text)})
        assert run(store).deleted == ()

    def test_gc_goes_on_after_a_crash(self) -> None:
        def make() -> DictStore:
            store = root(orders=chain(), sales=chain("b"))
            changes(store).delete(OLD)
            return store

        others = {path for path in make().objects if path.startswith("sales/")}
        whole = {path for path in make().objects if path.startswith("orders/")}
        probe = make()
        counting = FaultyStore(probe)
        run(counting, probe)  # type: ignore[arg-type]
        for index in range(len(counting.history)):
            store = make()
            with suppress(Stopped):
                run(FaultyStore(store, at(index, Fault.STOP_AFTER)), store)  # type: ignore[arg-type]
            left = {path for path in store.objects if path.startswith("orders/")}
            # What is left of it can't be read as a dataset.
            assert left == whole or "orders/refs/head" not in left
            # The stopped run's hold has expired.
            run(store, clock=later(store, 26 * HOUR_MS))
            assert others <= store.objects.keys()
            assert not [path for path in store.objects if path.startswith("orders/")]
            assert not DatasetFolders(store).read().deleted

    def test_two_gcs_at_once_keep_what_is_pushed_to_the_free_name(self) -> None:
        """One of them is slow, and deletes names that the push has put again meanwhile."""

        def make() -> DictStore:
            store = root(orders=chain("a"), sales=chain("b"))
            changes(store).delete(OLD)
            return store

        def come_between(store: DictStore) -> None:
            run(store)
            folder = DatasetFolders(store).folder_for_push(OLD)
            pushed.update(below(folder.text, chain("a")))
            store.put_many(below(folder.text, chain("a")))

        probe = make()
        counting = FaultyStore(probe)
        run(counting, probe)  # type: ignore[arg-type]
        deletions = 0
        for index, each in enumerate(counting.history):
            store, pushed = make(), dict[str, bytes]()

            def rule(call: StoreCall, at: int = index, store: DictStore = store) -> None:
                if call.index == at:
                    come_between(store)

            run(FaultyStore(store, rule), store)  # type: ignore[arg-type]
            deletions += each.verb == "DELETE"
            assert pushed.items() <= store.objects.items()
            run(store)
            assert pushed.items() <= store.objects.items()
            assert not DatasetFolders(store).read().deleted
        assert deletions

    @pytest.mark.parametrize("seconds", [0, 1], ids=["in the same second", "later"])
    def test_gc_keeps_a_table_that_was_written_after_its_deletion(self, seconds: int) -> None:
        history = History().then(Append(1))
        store = root(orders=history.objects(), sales=chain("b"))
        before = dict(store.objects)
        assert changes(store).delete(OLD).changed
        store.clock.advance(seconds * 1000)  # type: ignore[attr-defined]
        later = history.then(Append(2)).objects()
        for path, data in below("orders", later).items():
            if path not in before:
                store.put(path, data)
        kept = dict(store.objects)
        assert plan(store) == []
        freed = run(store)
        assert (freed.deleted, freed.written) == ((), ("orders",))
        assert store.objects == kept
        # Somebody has moved it elsewhere: then nothing is left to free.
        store.delete_many([path for path in kept if path.startswith("orders/")])
        assert run(store).written == ()
        assert not DatasetFolders(store).read().deleted

    def test_gc_keeps_a_new_table_that_took_the_folder(self) -> None:
        store = root(orders=History().then(Append(1), Append(1)).objects())
        assert changes(store).delete(OLD).changed
        store.delete_many([each.path for each in store.list("orders/")])
        store.clock.advance(1000)  # type: ignore[attr-defined]
        for path, data in below("orders", History().then(Append(1)).objects()).items():
            store.put(path, data)
        assert run(store).written == ("orders",)
        assert "orders/_delta_log/00000000000000000000.json" in store.objects

    @pytest.mark.parametrize("mark", [MOVE_CLAIM, FIRST_PULL_CLAIM])
    def test_gc_keeps_a_table_that_comes_without_the_server(self, mark: str) -> None:
        """What looked like a dataset may have been no more than what an attempt had left."""
        store = DictStore({"orders/_delta_log/_lakeferry/probe": b"1", "orders/part-0": b"1"})
        assert changes(store).delete(OLD).changed
        assert DatasetFolders(store).read().deleted["orders"].written is None
        store.put(f"orders/{mark}", this_process().encode())
        copied = dict(store.objects)
        freed = run(store, clock=later(store, 1), grace_ms=0)
        assert (freed.deleted, freed.written) == ((), ("orders",))
        assert copied.items() <= store.objects.items()
        table = below("orders", History().then(Append(2)).objects())
        store.put_many(table)
        store.delete_many([f"orders/{mark}"])
        assert run(store).written == ("orders",)
        assert table.items() <= store.objects.items()

    def test_a_dataset_that_is_pulled_for_the_first_time_is_not_deleted(self) -> None:
        store = DictStore({f"orders/{FIRST_PULL_CLAIM}": this_process().encode()})
        with pytest.raises(CommitConflict, match="first push or pull to this dataset is under way"):
            changes(store).delete(OLD)
        assert not DatasetFolders(store).read().deleted
        soon = ManualClock(store.clock() + SILENT_FOR_MS + 1)
        assert changes(store, soon).delete(OLD).changed is False

    def test_gc_keeps_a_table_inside_of_a_deleted_dataset(self) -> None:
        store = root(orders=chain("a"))
        assert changes(store).delete(OLD).changed
        table = below("orders/new", History().then(Append(1)).objects())
        store.put_many(table)
        assert run(store).written == ("orders",)
        assert table.items() <= store.objects.items()

    def test_gc_frees_a_table_that_was_pulled_after_its_deletion(self) -> None:
        store = root(orders=History().then(Append(1)).objects())
        assert changes(store).delete(OLD).changed
        store.clock.advance(1000)  # type: ignore[attr-defined]
        store.put("orders/_delta_log/_lakeferry/chain/block", b"1")
        assert run(store).written == ()
        assert not [path for path in store.objects if path.startswith("orders/")]

    @pytest.mark.parametrize("is_link", [False, True], ids=["links inside", "a link itself"])
    def test_gc_deletes_nothing_behind_links(self, tmp_path: Path, is_link: bool) -> None:
        store, others = open_store(str(tmp_path / "root")), tmp_path / "others"
        (others / "refs").mkdir(parents=True)
        (others / "data").write_bytes(b"1")
        for path, data in root(sales=chain("b")).objects.items():
            store.put(path, data)
        orders = tmp_path / "root" / "orders"
        if is_link:
            (others / "refs" / "head").write_bytes(b"1")
            orders.symlink_to(others)
        else:
            (orders / "refs").mkdir(parents=True)
            (orders / "refs" / "head").write_bytes(b"1")
            (orders / "more").symlink_to(others)
            (orders / "_delta_log").symlink_to(others)
            (orders / "one").symlink_to(others / "data")
        kept = sorted(others.rglob("*"))
        assert changes(store).delete(OLD).changed
        collect(
            store,
            lambda *_: LocalEngine(lambda _: store),
            clock=lambda: wall_clock() + 25 * HOUR_MS,
        )
        assert sorted(others.rglob("*")) == kept
        assert not os.path.lexists(orders)
        assert not DatasetFolders(store).read().deleted
        assert (tmp_path / "root" / "sales" / "refs" / "head").exists()

    def test_the_same_dataset_may_be_pushed_again_under_any_name(self) -> None:
        built = Chain().append()
        store = DictStore()
        repository = Repository(store)
        assert built.blocks
        dataset = repository.odf(OLD)
        seed_block = built.blocks[:1]
        dataset.commit(seed_block, None)
        seed = dataset.seed()
        assert seed is not None
        repository.claim_id(OLD, seed)
        with pytest.raises(CommitConflict) as refused:
            repository.claim_id(NEW, seed)
        assert refused.value.fields["dataset_alias"] == "orders"
        changes(store).rename(OLD, THIRD)
        with pytest.raises(CommitConflict) as refused:
            repository.claim_id(NEW, seed)
        assert refused.value.fields["dataset_alias"] == "third"
        changes(store).delete(THIRD)
        repository.claim_id(NEW, seed)

    def test_a_table_that_a_redirect_leads_to_is_kept(self) -> None:
        def refuse(uri: str) -> None:
            asked.append(uri)
            raise RedirectIllegalTransition("the old path leads here")

        asked: list[str] = []
        store = DictStore(below("orders", History().then(Append(2)).objects()))
        assert Repository(store).kind(OLD) is DatasetFormat.DELTA
        for dry_run in (True, False):
            with pytest.raises(RedirectIllegalTransition):
                changes(store, None, refuse).delete(OLD, dry_run=dry_run)
        assert asked == ["memory://dict/orders"] * 2
        assert changes(store, None, refuse).delete(OLD, force=True).changed
        # Redirects lead to tables alone.
        assert changes(one_dataset(), None, refuse).delete(OLD).changed

    def test_a_dataset_around_another_is_kept(self) -> None:
        store = DictStore({**below("orders", chain()), **below("orders/inner", chain("x"))})
        with pytest.raises(CommitConflict, match="orders/inner"):
            changes(store).delete(OLD)

    def test_deleting_costs_the_same_however_many_objects_there_are(self) -> None:
        def calls(objects: int) -> int:
            files = {f"data/{Multihash.sha3_256(b'%d' % number)}": b"" for number in range(objects)}
            store = DictStore(below("orders", {**chain(), **files}))
            counting = FaultyStore(store)
            changes(counting, store.clock).delete(OLD)
            return len(counting.history)

        assert calls(0) == calls(500)


def test_a_reader_knows_of_a_rename_within_a_second() -> None:
    store = one_dataset()
    seconds = [0.0]
    folders = DatasetFolders(store, store.clock, lambda: seconds[0])
    assert folders.folder(OLD) == OLD
    changes(store).rename(OLD, NEW)
    assert folders.folder(OLD) == OLD
    seconds[0] = 0.6
    assert (folders.folder(OLD), folders.folder(NEW)) == (None, OLD)
    assert OdfDataset(store, "orders").head() is not None
