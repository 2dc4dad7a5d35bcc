"""Datasets below a server's root: names, kinds, walks, commits that stop anywhere or race."""

from __future__ import annotations

import posixpath
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakeferry.errors import (
    CommitConflict,
    CommitStateUnknown,
    CorruptLog,
    Diverged,
    HashMismatch,
    InvalidInput,
    LakeferryError,
    LimitExceeded,
    MissingFile,
    StorageUnavailable,
)
from lakeferry.transfer.chain import odf_blocks
from lakeferry.transfer.chain.hashes import Multihash
from lakeferry.transfer.chain.odf_blocks import Block, DatasetKind, ObjectKind, ObjectRef, Seed
from lakeferry.transfer.datasets.dataset import DatasetFormat, Judged
from lakeferry.transfer.datasets.odf import OdfDataset
from lakeferry.transfer.repository import repository as repositories
from lakeferry.transfer.repository.dataset_names import DatasetName
from lakeferry.transfer.repository.repository import Repository, Visibility
from tests.support.odf import DATASET_ID, Chain, SetInfo, hash_of
from tests.support.stores import DictStore, Fault, FaultyStore, Stopped, at, on

NAME = DatasetName.parse("acc/d")
PIECES = ["a", "b.c", ".", "..", "/", "//", "\\", "%2e", "~", "\0", "refs", "_delta_log", "-", " "]


def chain(appends: int = 3) -> Chain:
    built = Chain()
    for number in range(appends):
        built.append(checkpoint=f"checkpoint {number // 2}")
    return built


def laid_out(built: Chain, folder: str = "acc/d", *, head: bool = True) -> dict[str, bytes]:
    """Return a dataset as it lies in a store."""
    objects = sent(built, folder)
    for name, data in built.blocks:
        objects[f"{folder}/blocks/{name}"] = data
    if head:
        objects[f"{folder}/refs/head"] = built.head.text.encode()
    return objects


def sent(built: Chain, folder: str = "acc/d") -> dict[str, bytes]:
    """Return the objects of a dataset as they lie in a store before its blocks do."""
    return {
        f"{folder}/{'data' if data.startswith(b'rows') else 'checkpoints'}/{name}": data
        for name, data in built.objects.items()
    }


def dataset(objects: Mapping[str, bytes]) -> tuple[DictStore, OdfDataset]:
    store = DictStore(objects)
    return store, Repository(store).odf(NAME)


class TestNames:
    @pytest.mark.parametrize("text", ["a", "orders", "acc/orders", "A-b_c.d/0", "data", "a..b"])
    def test_a_name_is_one_segment_or_two(self, text: str) -> None:
        assert str(DatasetName.parse(text)) == text

    @pytest.mark.parametrize(
        "text",
        [
            *("", "/", "a/", "/a", "a//b", "a/b/c", ".", "..", "a/..", "../a", "a/.", "./a"),
            *(".lakeferry", ".a/b", "a/.b", "metrics", "healthz", "metrics/a", "healthz/a"),
            *("a/refs", "a/blocks", "a/data", "a/checkpoints", "a/info", "a/pull", "a/push"),
            *("_delta_log", "a/_delta_log", "a\\b", "a\\..\\b", "a\0", "a\n", "a b", "a%2e", "a?"),
            *("a:b", "~", "a.", "ä", "a\u202e", "a" * 101, "a/" + "b" * 101, "C:", "-a"),
        ],
    )
    def test_a_name_that_could_lead_elsewhere_is_refused(self, text: str) -> None:
        with pytest.raises(InvalidInput, match="not a dataset's name"):
            DatasetName.parse(text)

    @given(st.text(max_size=30) | st.lists(st.sampled_from(PIECES), max_size=6).map("".join))
    def test_any_name_is_refused_or_stays_below_the_root(self, text: str) -> None:
        try:
            name = DatasetName.parse(text)
        except InvalidInput:
            return
        segments = name.text.split("/")
        assert len(segments) <= 2
        assert posixpath.normpath(f"/lake/{name}") == f"/lake/{text}"
        assert not any(segment.startswith(".") for segment in segments)
        assert text.isascii()
        assert text.isprintable()


class TestRepository:
    def test_a_dataset_is_what_its_folder_holds(self) -> None:
        repository = Repository(
            DictStore({"t/_delta_log/0.json": b"", "x/data/a": b"", **laid_out(chain())})
        )
        kinds = {name: repository.kind(DatasetName.parse(name)) for name in ("t", "acc/d", "x")}
        assert kinds == {"t": DatasetFormat.DELTA, "acc/d": DatasetFormat.ODF, "x": None}

    def test_nobody_sees_what_nobody_has_called_public(self) -> None:
        store = DictStore(laid_out(chain()))
        repository = Repository(store)
        assert repository.visibility(NAME) is Visibility.PRIVATE
        repository.set_visibility(NAME, Visibility.PUBLIC)
        assert repository.visibility(NAME) is Visibility.PUBLIC
        assert repository.visibility(DatasetName.parse("acc/e")) is Visibility.PRIVATE
        [record] = [path for path in store.objects if ".lakeferry" in path]
        store.put(record, b"{not json")
        assert repository.visibility(NAME) is Visibility.PRIVATE

    def test_datasets_are_never_inside_each_other(self) -> None:
        store = DictStore(
            {**laid_out(chain(), "acc/d"), **laid_out(chain(), "top"), **sent(chain(), "begun")}
        )
        repository = Repository(store)
        for free in ("acc/e", "new", "new/one", "begun"):
            repository.check_free(DatasetName.parse(free))
        for taken in ("acc", "top/d"):
            with pytest.raises(CommitConflict):
                repository.check_free(DatasetName.parse(taken))

    def test_an_account_is_found_behind_many_objects(self) -> None:
        store = DictStore({f"acc/data/{number}": b"" for number in range(50)} | {"acc/z/x": b""})
        with pytest.raises(CommitConflict):
            Repository(store).check_free(DatasetName.parse("acc"))
        assert store.calls["LIST"] == 2

    def test_an_id_has_one_name_as_long_as_the_dataset_is_there(self) -> None:
        store = DictStore(laid_out(chain()))
        repository, other = Repository(store), DatasetName.parse("acc/other")
        seed = Seed(DATASET_ID, DatasetKind.ROOT)
        repository.claim_id(NAME, seed)
        repository.claim_id(NAME, seed)
        with pytest.raises(CommitConflict) as raised:
            repository.claim_id(other, seed)
        assert raised.value.fields["dataset_alias"] == "acc/d"
        store.delete_many([path for path in store.objects if path.startswith("acc/d/")])
        repository.claim_id(other, seed)
        store.delete_many(["acc/d/refs/head"])
        repository.claim_id(NAME, seed)

    def test_a_dataset_that_was_put_there_by_hand_has_its_id_too(self) -> None:
        store = DictStore(
            {
                **laid_out(chain(), "by/hand"),
                **sent(chain(), "begun"),
                "broken/refs/head": b"no hash",
                "table/_delta_log/00000000000000000000.json": b"",
                **{f"table/part={number}/file": b"" for number in range(50)},
            }
        )
        repository = Repository(store)
        seed = Seed(DATASET_ID, DatasetKind.ROOT)
        with pytest.raises(CommitConflict) as raised:
            repository.claim_id(NAME, seed)
        assert raised.value.fields["dataset_alias"] == "by/hand"
        asked = store.calls["LIST"]
        assert asked < 30
        with pytest.raises(CommitConflict):
            repository.claim_id(NAME, seed)
        assert store.calls["LIST"] == asked

    def test_a_store_that_heeds_conditions_is_left_as_it_was(self) -> None:
        store = DictStore()
        Repository(store).probe()
        assert store.objects == {}

    @pytest.mark.parametrize("verb", ["swap", "put_if_absent"])
    def test_a_store_that_ignores_conditions_is_refused(self, verb: str) -> None:
        class Careless(DictStore):
            def swap(self, path: str, expected: bytes | None, data: bytes) -> bool:
                if verb != "swap":
                    return super().swap(path, expected, data)
                self.put(path, data)
                return True

            def put_if_absent(self, path: str, data: bytes) -> bool:
                if verb != "put_if_absent":
                    return super().put_if_absent(path, data)
                self.put(path, data)
                return True

        store = Careless()
        with pytest.raises(StorageUnavailable, match="overwriting"):
            Repository(store).probe()
        assert store.objects == {}


class TestWalks:
    def test_an_interval_is_what_lies_between(self) -> None:
        built = chain()
        _, there = dataset(laid_out(built))
        names = [name for name, _ in built.blocks]
        assert there.head() == built.head
        assert list(there.interval(built.head)) == names
        suffix = there.interval(built.head, names[1])
        assert (list(suffix), len(suffix)) == (names[2:], 2)
        assert list(there.interval(names[2], names[0])) == names[1:3]
        assert list(there.interval(built.head, built.head)) == []
        assert list(there.read(suffix)) == built.blocks[2:]

    def test_a_plan_counts_every_mention(self) -> None:
        built = chain(3)
        _, there = dataset(laid_out(built))
        plan = there.interval(built.head).plan
        parsed = [odf_blocks.parse_odf_block(data) for _, data in built.blocks]
        refs = [ref for block in parsed for ref in block.objects]
        assert (plan.num_blocks, plan.num_objects, plan.num_records) == (4, 6, 30)
        assert plan.bytes_in_raw_blocks == sum(len(data) for _, data in built.blocks)
        assert plan.bytes_in_raw_objects == sum(ref.size_bytes for ref in refs)

    def test_a_tail_that_is_not_met_has_diverged_or_is_ignored(self) -> None:
        built, old = chain(), Chain().add(SetInfo("another"))
        store, there = dataset(laid_out(built))
        for tail in (hash_of("never seen"), old.head):
            with pytest.raises(Diverged) as raised:
                there.interval(built.head, tail)
            assert raised.value.fields == {"head": built.head.text, "tail": tail.text}
            whole = there.interval(built.head, tail, ignore_missing_tail=True)
            assert list(whole) == [name for name, _ in built.blocks]
            store.put(f"acc/d/blocks/{old.head}", old.blocks[-1][1])
        with pytest.raises(Diverged):
            there.interval(built.blocks[1][0], built.head)

    def test_a_client_with_another_history_costs_one_look(self) -> None:
        built = chain(20)
        store, there = dataset(laid_out(built))
        with pytest.raises(Diverged):
            there.interval(built.head, hash_of("never seen"))
        assert store.calls["RANGE"] == 1

    def test_a_long_way_is_fetched_at_once_and_a_short_one_is_not(self) -> None:
        built = chain(400)
        store, there = dataset(laid_out(built))
        names = [name for name, _ in built.blocks]
        assert list(there.interval(built.head)) == names
        assert (store.calls["LIST"], store.calls["RANGE"], store.calls["GET"]) == (1, 32, 401)
        store.calls.reset()
        assert len(list(there.read(there.interval(built.head)))) == len(names)
        # A server has them by then; only whoever begins anew asks again.
        assert (store.calls["LIST"], store.calls["RANGE"], store.calls["GET"]) == (0, 0, 0)
        store, there = dataset(laid_out(built))
        assert list(there.interval(built.head, names[360])) == names[361:]
        assert (store.calls["LIST"], store.calls["RANGE"], store.calls["GET"]) == (1, 41, 0)

    def test_a_block_is_known_only_to_the_dataset_that_it_was_read_from(self) -> None:
        secret, public = chain(), Chain().add(SetInfo("another"))
        store = DictStore({**laid_out(secret), **laid_out(public, "open")})
        repository = Repository(store)
        there = repository.odf(NAME)
        assert len(list(there.read(there.interval(secret.head)))) == 4
        other = repository.odf(DatasetName.parse("open"))
        with pytest.raises(LakeferryError):
            other.interval(secret.head)
        store.calls.reset()
        assert len(list(there.read(there.interval(secret.head)))) == 4
        assert store.calls["RANGE"] == 0

    def test_a_way_is_walked_once_and_known_only_to_its_dataset(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        built = chain(appends=50)
        repository = Repository(DictStore({**laid_out(built), **laid_out(chain(1), "acc/other")}))
        read: list[bytes] = []

        def parse(_: OdfDataset, data: bytes, name: Multihash | None = None) -> Block:
            read.append(data)
            return odf_blocks.parse_odf_block(data, name)

        monkeypatch.setattr(OdfDataset, "parse", parse)
        whole = repository.odf(NAME).interval(built.head)
        assert len(read) == len(whole)
        assert repository.odf(NAME).interval(built.head) == whole
        assert len(read) == len(whole)
        with pytest.raises(LimitExceeded):
            repository.odf(NAME).interval(built.head, limit=len(whole) - 1)
        with pytest.raises(MissingFile):
            repository.odf(DatasetName.parse("acc/other")).interval(built.head)

    def test_a_damaged_block_is_found_on_a_long_way_too(self) -> None:
        built = chain(100)
        objects = laid_out(built)
        path = f"acc/d/blocks/{built.blocks[10][0]}"
        for wrong in (built.blocks[11][1], b""):
            with pytest.raises(HashMismatch):
                dataset(objects | {path: wrong})[1].interval(built.head)
        del objects[path]
        with pytest.raises(MissingFile):
            dataset(objects)[1].interval(built.head)

    def test_a_walk_is_bounded(self) -> None:
        built = chain(5)
        _, there = dataset(laid_out(built))
        assert len(there.interval(built.head, limit=6)) == 6
        with pytest.raises(LimitExceeded):
            there.interval(built.head, limit=5)

    def test_what_is_damaged_in_the_store_is_found(self) -> None:
        built = chain()
        objects = laid_out(built)
        path = f"acc/d/blocks/{built.blocks[1][0]}"
        _, damaged = dataset(objects | {path: built.blocks[2][1]})
        with pytest.raises(HashMismatch):
            damaged.interval(built.head)
        del objects[path]
        with pytest.raises(MissingFile):
            dataset(objects)[1].interval(built.head)
        with pytest.raises(CorruptLog):
            dataset({"acc/d/refs/head": b"../../etc/passwd"})[1].head()

    def test_a_head_may_end_with_a_newline(self) -> None:
        built = chain()
        more = chain(4)
        objects = laid_out(built) | sent(more)
        objects["acc/d/refs/head"] += b"\n"
        store, there = dataset(objects)
        assert there.head() == built.head
        there.commit(more.blocks[-1:], built.head)
        assert store.objects["acc/d/refs/head"] == more.head.text.encode()


class TestObjects:
    @staticmethod
    def refs(count: int) -> list[ObjectRef]:
        return [
            ObjectRef(
                list(ObjectKind)[number % 2],
                Multihash.sha3_256(b"%d" % number),
                len(b"%d" % number),
            )
            for number in range(count)
        ]

    @pytest.mark.parametrize("count", [0, 1, 10, 200])
    def test_sizes_come_in_the_order_asked_for(self, count: int) -> None:
        refs = self.refs(count)
        store, there = dataset(
            {there_path(ref): b"x" * ref.size_bytes for ref in refs[::3]}
            | {"acc/d/data/other": b""}
        )
        found = there.sizes(refs)
        assert found == [
            ref.size_bytes if index % 3 == 0 else None for index, ref in enumerate(refs)
        ]
        if count == 200:
            assert (store.calls["LIST"], store.calls["HEAD"]) == (2, 0)

    def test_a_folder_with_far_more_in_it_is_not_listed_to_its_end(self) -> None:
        refs = [ref for ref in self.refs(80) if ref.kind is ObjectKind.DATA_SLICE]
        crowd = {hash_of(f"crowd {number}") for number in range(5000)}
        store, there = dataset(
            {f"acc/d/data/{name}": b"" for name in crowd}
            | {there_path(ref): b"x" for ref in refs[::2]}
        )
        found = there.sizes(refs)
        assert found == [1 if index % 2 == 0 else None for index in range(40)]
        assert store.calls["LIST"] == 1
        assert 0 < store.calls["HEAD"] < 40

    def test_what_is_not_there_or_not_as_large_is_refused(self) -> None:
        built = chain()
        objects = sent(built)
        refs = [ref for _, data in built.blocks for ref in odf_blocks.parse_odf_block(data).objects]
        dataset(objects)[1].check(Judged(1, tuple(refs)))
        first, *_ = objects
        with pytest.raises(MissingFile) as raised:
            dataset({path: data for path, data in objects.items() if path != first})[1].check(
                Judged(1, tuple(refs))
            )
        assert raised.value.fields["missing"] == [first.rpartition("/")[2]]
        with pytest.raises(HashMismatch, match="have the size"):
            dataset(objects | {first: objects[first] + b"."})[1].check(Judged(1, tuple(refs)))

    def test_bytes_that_nobody_has_proven_are_read_and_go_if_they_are_wrong(self) -> None:
        built = chain()
        objects = sent(built)
        refs = [ref for _, data in built.blocks for ref in odf_blocks.parse_odf_block(data).objects]
        first, *_ = objects
        wrong = {first: bytes(len(objects[first]))}
        store, there = dataset(objects | wrong)
        there.check(Judged(1, tuple(refs)))
        with pytest.raises(HashMismatch):
            there.check(Judged(1, tuple(refs)), unproven=refs)
        assert first not in store.objects
        store.put(first, objects[first])
        there.check(Judged(1, tuple(refs)), unproven=refs)

    def test_what_is_being_sent_again_meanwhile_stays(self) -> None:
        data = b"right"
        ref = ObjectRef(ObjectKind.DATA_SLICE, Multihash.sha3_256(data), len(data))
        disk = DictStore({there_path(ref): b"wrong"})

        class Mended(FaultyStore):
            def get_range(self, path: str, start: int, length: int) -> bytes:
                found = super().get_range(path, start, length)
                # Once it was read to its end.
                if len(found) < length:
                    disk.put(path, data)
                return found

        there = OdfDataset(Mended(disk), "acc/d")
        with pytest.raises(HashMismatch):
            there.check(Judged(1, (ref,)), unproven=[ref])
        assert disk.objects == {there_path(ref): data}
        there.check(Judged(1, (ref,)), unproven=[ref])


def there_path(ref: ObjectRef) -> str:
    folder = "data" if ref.kind is ObjectKind.DATA_SLICE else "checkpoints"
    return f"acc/d/{folder}/{ref.hash}"


class TestCommits:
    def test_a_new_dataset_is_stored_byte_for_byte(self) -> None:
        built = chain()
        store, there = dataset(sent(built))
        assert there.commit(built.blocks, None) == built.head
        assert store.objects == laid_out(built)

    def test_an_advance_writes_only_what_is_new(self) -> None:
        built, more = chain(3), chain(5)
        store, there = dataset(laid_out(built) | sent(more))
        assert there.commit(more.blocks[4:], built.head) == more.head
        assert store.objects == laid_out(more)
        assert (store.calls["PUT"], store.calls["SWAP"]) == (2, 1)

    def test_what_was_committed_is_committed(self) -> None:
        built = chain()
        store, there = dataset(laid_out(built))
        before = store.objects
        assert there.commit(built.blocks, None) == built.head
        assert there.commit(built.blocks[2:], built.blocks[1][0]) == built.head
        assert store.objects == before

    @pytest.mark.parametrize(
        ("what", "error"),
        [
            ("backwards", Diverged),
            ("without its beginning", Diverged),
            ("with a gap", InvalidInput),
            ("with its last block twice", InvalidInput),
            ("under another's name", HashMismatch),
            ("with other bytes", HashMismatch),
            ("no block at all", InvalidInput),
            ("empty", InvalidInput),
        ],
    )
    def test_a_run_that_is_no_chain_stores_nothing(
        self, what: str, error: type[LakeferryError]
    ) -> None:
        built = chain()
        run, garbage = built.blocks, b"garbage"
        spoilt = {
            "backwards": run[::-1],
            "without its beginning": run[1:],
            "with a gap": [run[0], run[2]],
            "with its last block twice": [*run, run[-1]],
            "under another's name": [(run[1][0], run[0][1]), *run[1:]],
            "with other bytes": [(run[0][0], garbage), *run[1:]],
            "no block at all": [(Multihash.sha3_256(garbage), garbage)],
            "empty": [],
        }
        store, there = dataset(sent(built))
        with pytest.raises(error):
            there.commit(spoilt[what], None)
        assert store.objects == sent(built)

    def test_a_commit_without_its_objects_stores_nothing(self) -> None:
        built = chain()
        store, there = dataset({})
        with pytest.raises(MissingFile):
            there.commit(built.blocks, None)
        assert store.objects == {}

    def test_a_head_that_moved_is_a_conflict_with_force_too(self) -> None:
        built, more = chain(3), chain(4)
        store, there = dataset(laid_out(built) | sent(more))
        before = store.objects
        for force in (False, True):
            for claimed in (None, built.blocks[0][0], hash_of("x")):
                with pytest.raises(CommitConflict) as raised:
                    there.commit(more.blocks, claimed, force=force)
                assert raised.value.fields["actual_head"] == built.head.text
        assert store.objects == before

    def test_force_replaces_a_chain_and_leaves_its_blocks(self) -> None:
        built, other = chain(3), Chain().append(7)
        store, there = dataset(laid_out(built) | sent(other))
        with pytest.raises(Diverged):
            there.commit(other.blocks, built.head)
        assert there.commit(other.blocks, built.head, force=True) == other.head
        assert store.objects == laid_out(built) | laid_out(other)

    @pytest.mark.parametrize("seed", [{"dataset_id": b"\xed\x01" + bytes(32)}, {"dataset_kind": 1}])
    def test_force_never_replaces_a_seed(self, seed: dict[str, object]) -> None:
        built, other = chain(3), Chain(**seed)  # type: ignore[arg-type]
        store, there = dataset(laid_out(built))
        with pytest.raises(Diverged, match="a different dataset"):
            there.commit(other.blocks, built.head, force=True)
        assert store.objects == laid_out(built)


RUNS = {
    "new": (None, chain(3)),
    "advanced": (chain(2), chain(40)),
    "forced": (chain(2), Chain().append(7).append(8)),
}


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize(
    "fault", [Fault.FAIL, Fault.LOSE_ANSWER, Fault.STOP_BEFORE, Fault.STOP_AFTER, Fault.HALFWAY]
)
def test_a_commit_may_end_at_any_call_and_the_next_one_makes_it(run: str, fault: Fault) -> None:
    before, after = RUNS[run]
    old = None if before is None else before.head
    begin = {} if before is None else laid_out(before)
    added = after.blocks[len(before.blocks) :] if before and run != "forced" else after.blocks

    def commit(store: FaultyStore) -> None:
        OdfDataset(store, "acc/d").commit(added, old, force=run == "forced")

    clean = FaultyStore(DictStore(begin | sent(after)))
    commit(clean)
    assert clean.history[-1].verb == "SWAP"
    for index in range(len(clean.history)):
        disk = DictStore(begin | sent(after))
        try:
            commit(FaultyStore(disk, at(index, fault)))
        except (Stopped, StorageUnavailable):
            head = OdfDataset(disk, "acc/d").head()
            assert head in (old, after.head)
        there = OdfDataset(disk, "acc/d")
        if (head := there.head()) is not None:
            assert len(there.interval(head)) > 0, "the head's chain is whole"
        if head == old:
            there.commit(added, old, force=run == "forced")
        assert disk.objects == begin | laid_out(after)


def test_an_answer_that_was_lost_is_looked_up() -> None:
    built = chain()
    store = FaultyStore(DictStore(sent(built)), on("SWAP", Fault.LOSE_ANSWER))
    assert OdfDataset(store, "acc/d").commit(built.blocks, None) == built.head


def test_an_answer_that_was_lost_is_found_behind_a_later_push() -> None:
    built, more = chain(3), chain(4)
    disk = DictStore(sent(built) | sent(more))

    class Overtaken(FaultyStore):
        def swap(self, path: str, expected: bytes | None, data: bytes) -> bool:
            super().swap(path, expected, data)
            OdfDataset(disk, "acc/d").commit(more.blocks[-1:], built.head)
            return False

    assert OdfDataset(Overtaken(disk), "acc/d").commit(built.blocks, None) == built.head
    assert OdfDataset(disk, "acc/d").head() == more.head


def test_what_cannot_be_looked_up_is_unknown() -> None:
    built = chain()

    class Silent(FaultyStore):
        def swap(self, path: str, expected: bytes | None, data: bytes) -> bool:
            self.rule = lambda call: Fault.FAIL if call.verb == "RANGE" else None
            raise StorageUnavailable("no answer", outcome_unknown=True)

    disk = DictStore(sent(built))
    with pytest.raises(CommitStateUnknown):
        OdfDataset(Silent(disk), "acc/d").commit(built.blocks, None)

    class Late(FaultyStore):
        def swap(self, path: str, expected: bytes | None, data: bytes) -> bool:
            raise StorageUnavailable("no answer", outcome_unknown=True)

    with pytest.raises(CommitStateUnknown):
        OdfDataset(Late(disk), "acc/d").commit(built.blocks, None)


@pytest.mark.parametrize("contest", ["create", "advance", "force"])
def test_of_two_commits_at_once_one_wins_and_the_other_is_told(contest: str) -> None:
    base = None if contest == "create" else chain(1)
    ours = [Chain() if contest == "force" else chain(0 if base is None else 1) for _ in range(2)]
    for number, racer in enumerate(ours):
        racer.append(5, checkpoint=f"of {number}").add(SetInfo(f"racer {number}"))
    begin = {} if base is None else laid_out(base)
    disk = DictStore(begin | sent(ours[0]) | sent(ours[1]))
    gate = threading.Barrier(2)

    class Together(FaultyStore):
        def swap(self, path: str, expected: bytes | None, data: bytes) -> bool:
            gate.wait(30)
            return super().swap(path, expected, data)

    def commit(racer: Chain) -> Multihash | CommitConflict:
        start = len(base.blocks) if base and contest == "advance" else 0
        there = OdfDataset(Together(disk), "acc/d")
        try:
            return there.commit(
                racer.blocks[start:], base.head if base else None, force=contest == "force"
            )
        except CommitConflict as lost:
            return lost

    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(commit, ours))
    [won] = [result for result in results if isinstance(result, Multihash)]
    [lost] = [result for result in results if isinstance(result, CommitConflict)]
    winner = next(racer for racer in ours if racer.head == won)
    assert lost.fields["actual_head"] == won.text
    assert laid_out(winner).items() <= disk.objects.items()


def test_a_table_is_the_same_to_all_for_as_long_as_somebody_has_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(repositories, "_MOST_TABLES", 3)
    repository = Repository(DictStore())
    held = repository.delta(NAME)
    names = [DatasetName.parse(f"acc/t{number}") for number in range(10)]

    def ask(number: int) -> int:
        return id(repository.delta(names[number % 3]))

    for name in names:
        repository.delta(name)
    assert repository.delta(NAME) is held
    kept = [repository.delta(name) for name in names[:3]]
    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(ask, range(300))) == set(map(id, kept))
