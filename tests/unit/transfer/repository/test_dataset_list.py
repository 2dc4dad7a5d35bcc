"""What ``ls`` shows of a root: the names, in order and in pages, and what is known of each."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from lakeferry.engines.local_engine import LocalEngine
from lakeferry.storage import open_store
from lakeferry.transfer.chain.hashes import Multihash
from lakeferry.transfer.datasets.dataset import Judged
from lakeferry.transfer.repository import dataset_list
from lakeferry.transfer.repository.dataset_list import ListedDataset, list_datasets, one_dataset
from lakeferry.transfer.repository.dataset_names import DatasetName
from lakeferry.transfer.repository.dataset_sizes import keep_size, kept_size
from lakeferry.transfer.repository.repository import Repository, Visibility
from tests.support.history import Append, History
from tests.support.odf import Chain
from tests.support.stores import DictStore, FaultyStore
from tests.unit.transfer.repository.test_dataset_changes import changes
from tests.unit.transfer.repository.test_garbage_collection import below, chain

NAMES = ("a", "acc-b", "acc/c", "acc/d", "acc0", "b")


def store_of(*names: str) -> DictStore:
    objects: dict[str, bytes] = {}
    for name in names:
        objects |= below(name, chain(name))
    return DictStore(objects)


def names(repository: Repository, **options: object) -> list[str]:
    page = list_datasets(repository, **options)  # type: ignore[arg-type]
    return [each.name for each in page.datasets]


def test_pages_have_each_name_once_and_in_order() -> None:
    repository = Repository(store_of(*NAMES))
    repository.store.put("notes.txt", b"")
    repository.store.put("empty/readme", b"")
    for limit in range(1, len(NAMES) + 2):
        found: list[str] = []
        after: str | None = None
        while True:
            page = list_datasets(repository, after=after, limit=limit)
            assert len(page.datasets) <= limit
            found += [each.name for each in page.datasets]
            after = page.next
            if after is None:
                break
        assert found == list(NAMES)
    assert names(repository, after="acc/c") == ["acc/d", "acc0", "b"]
    assert names(repository, after="acc") == ["acc/c", "acc/d", "acc0", "b"]
    assert names(Repository(DictStore())) == []


def test_renamed_datasets_are_in_their_new_places() -> None:
    store = store_of(*NAMES)
    for old, new in (("b", "acc/cc"), ("acc/c", "z"), ("acc0", "b")):
        changes(store).rename(DatasetName(old), DatasetName(new))
    changes(store).delete(DatasetName("acc-b"))
    expected = ["a", "acc/cc", "acc/d", "b", "z"]
    assert names(Repository(store)) == expected
    for position, after in enumerate(expected):
        assert names(Repository(store), after=after) == expected[position + 1 :]
    assert one_dataset(Repository(store), DatasetName("acc/c")) is None
    moved = one_dataset(Repository(store), DatasetName("z"))
    assert moved is not None
    assert moved.name == "z"


def test_a_page_costs_nothing_for_what_is_in_the_datasets() -> None:
    def calls(objects: int) -> int:
        store = store_of("a", "acc/b")
        for number in range(objects):
            store.put(f"a/data/{Multihash.sha3_256(b'%d' % number)}", b"")
        history = History().then(*(Append(1) for _ in range(3))).objects()
        more = {f"part-{number}": b"" for number in range(objects)}
        for path, data in {**history, **more}.items():
            store.put(f"table/{path}", data)
        Repository(store).delta(DatasetName("table")).current()
        counting = FaultyStore(store)
        assert len(list_datasets(Repository(counting)).datasets) == 3
        return len(counting.history)

    assert calls(0) == calls(300)


def test_an_odf_dataset_has_a_head_and_a_size_that_was_kept() -> None:
    built = Chain().append(checkpoint="c").append(checkpoint="c")
    files = {f"blocks/{name}": data for name, data in built.blocks}
    store = DictStore(below("a", {**files, "refs/head": built.head.text.encode()}))
    repository, name = Repository(store), DatasetName("a")
    shown = ListedDataset("a", "odf", built.head.text, len(built.blocks), None, "private")
    assert list_datasets(repository).datasets == (shown,)

    dataset = repository.odf(name)
    first = next(at for at, (_, data) in enumerate(built.blocks) if dataset.parse(data).objects)
    half = built.blocks[first][0]
    refs = {
        ref: None for _, data in built.blocks[: first + 1] for ref in dataset.parse(data).objects
    }
    keep_size(repository, name, None, half, Judged(first + 1, tuple(refs)))
    kept = sum(ref.size_bytes for ref in refs)
    assert kept_size(repository, name, half) == kept
    assert kept_size(repository, name, built.head) is None
    # The next blocks name the same checkpoint again.
    more = tuple(ref for ref in dataset.parse(built.blocks[-1][1]).objects)
    keep_size(repository, name, half, built.head, Judged(1, more))
    new = sum(ref.size_bytes for ref in more if ref.hash not in {each.hash for each in refs})
    assert list_datasets(repository).datasets[0].bytes == kept + new
    assert new < sum(ref.size_bytes for ref in more)


def test_a_table_has_a_head_while_its_chain_is_complete() -> None:
    history = History().then(Append(2), Append(1))
    store = DictStore(below("t", history.objects()))
    choose = lambda *_: LocalEngine(lambda _: store, parallel=1)  # noqa: E731
    repository, name = Repository(store, choose), DatasetName("t")
    unknown = ListedDataset("t", "delta", None, None, None, "private")
    assert one_dataset(repository, name) == unknown
    head = repository.delta(name).current()
    assert head is not None
    found = one_dataset(repository, name)
    assert found is not None
    assert (found.head, found.bytes) == (head.text, None)
    assert found.blocks is not None
    newest = found.blocks - 1
    store.put(f"t/_delta_log/{newest:020}.crc", json.dumps({"tableSizeBytes": 17}).encode())
    assert one_dataset(repository, name) == ListedDataset(
        "t", "delta", head.text, newest + 1, 17, "private"
    )
    store.put(f"t/_delta_log/{newest:020}.crc", b"{")
    assert getattr(one_dataset(repository, name), "bytes", 1) is None
    store.put(f"t/_delta_log/{newest + 1:020}.json", b"{}")
    assert one_dataset(repository, name) == unknown


@pytest.mark.parametrize("is_proposed", [False, True])
def test_a_damaged_dataset_is_listed_too(is_proposed: bool) -> None:
    store, name = store_of("a", "b"), DatasetName("a")
    if is_proposed:
        head = Repository(store).odf(name).head()
        assert head is not None
        Repository(store).propose_visibility(name, head, Visibility.PUBLIC)
    store.put("a/refs/head", b"nonsense")
    found = list_datasets(Repository(store)).datasets
    assert [each.head is None for each in found] == [True, False]
    assert {each.visibility for each in found} == {"private"}


def test_folders_whose_names_are_not_text_are_no_datasets(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    for path, data in store_of(*NAMES).objects.items():
        store.put(path, data)
    for account in ("", "acc", "new"):
        (tmp_path / account / os.fsdecode(b"\xff")).mkdir(parents=True)
    repository = Repository(store)
    assert names(repository) == list(NAMES)
    assert changes(store).rename(DatasetName("a"), DatasetName("new")).changed
    assert names(repository) == [*NAMES[1:], "new"]


def test_who_may_see_little_learns_nothing_of_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    store = store_of(*NAMES)
    repository = Repository(store)
    repository.set_visibility(DatasetName("acc/d"), Visibility.PUBLIC)
    repository.set_visibility(DatasetName("b"), Visibility.PUBLIC)

    def is_public(_: DatasetName, visibility: Visibility) -> bool:
        return visibility is Visibility.PUBLIC

    first = list_datasets(repository, limit=1, sees=is_public)
    assert ([each.name for each in first.datasets], first.next) == (["acc/d"], "acc/d")
    second = list_datasets(repository, after=first.next, limit=1, sees=is_public)
    assert ([each.name for each in second.datasets], second.next) == (["b"], None)
    # A page looks at so many names; it ends at one that may be seen, or the list does.
    monkeypatch.setattr(dataset_list, "MOST_LOOKED_AT", 4)
    first = list_datasets(repository, sees=is_public)
    assert ([each.name for each in first.datasets], first.next) == (["acc/d"], "acc/d")
    monkeypatch.setattr(dataset_list, "MOST_LOOKED_AT", 3)
    nothing = list_datasets(repository, sees=is_public)
    assert (nothing.datasets, nothing.next) == ((), None)
