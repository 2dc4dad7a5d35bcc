"""What can't be written where it belongs is kept aside, and found there again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from lakeferry.errors import Forbidden, ObjectNotFound
from lakeferry.storage.side_folder import Aside
from lakeferry.table import DeltaLog
from lakeferry.transfer.datasets.delta.delta_dataset import DeltaDataset
from lakeferry.transfer.datasets.delta.root_checkpoints import CHAIN_FOLDER
from tests.support import history as h
from tests.support.history import Append, History
from tests.support.stores import DictStore

KEPT = "folder/kept"


class ReadOnly(DictStore):
    """A store that takes nothing."""

    def put(self, path: str, data: bytes) -> None:
        raise Forbidden("no")

    def put_many(self, objects: Mapping[str, bytes]) -> None:
        raise Forbidden("no")

    def put_if_absent(self, path: str, data: bytes) -> bool:
        raise Forbidden("no")

    def swap(self, path: str, expected: bytes | None, data: bytes) -> bool:
        raise Forbidden("no")

    def copy_within(self, path: str, new_path: str) -> None:
        raise Forbidden("no")

    def delete_many(self, paths: Sequence[str]) -> None:
        raise Forbidden("no")


def test_what_the_store_takes_is_in_the_store() -> None:
    below, other = DictStore(), DictStore()
    store = Aside(below, "folder", other)
    store.put(KEPT, b"1")
    assert store.swap(KEPT, b"1", b"2")
    store.copy_within(KEPT, "folder/copy")
    store.delete_many([KEPT])
    assert (below.objects, other.objects, store.is_used) == ({"folder/copy": b"2"}, {}, False)


def test_what_it_refuses_is_kept_aside_and_found_again() -> None:
    below, other = ReadOnly({"file": b"data", "folder/old": b"old"}), DictStore()
    store = Aside(below, "folder", other)
    store.put_many({KEPT: b"1"})
    assert not store.put_if_absent(KEPT, b"2")
    assert store.swap("folder/old", b"old", b"new")
    assert not store.swap("folder/old", b"old", b"newer")
    assert not store.swap("folder/other", b"never", b"newer")
    assert store.swap("folder/old", b"new", b"newer")
    store.copy_within("file", "folder/copy")
    for again in (store, Aside(below, "folder", other)):
        assert again.is_used
        assert again.get_many([KEPT, "folder/old", "file"]) == [b"1", b"newer", b"data"]
        assert again.get_range("folder/copy", 1, 2) == b"at"
        assert again.head("folder/old").size_bytes == 5
        assert [info.path for info in again.list("")] == [
            "file",
            *("folder/copy", KEPT, "folder/old"),
        ]
        assert [info.path for info in again.list("file")] == ["file"]
    store.delete_many([KEPT])
    with pytest.raises(ObjectNotFound):
        store.head(KEPT)
    assert below.objects == {"file": b"data", "folder/old": b"old"}


def test_nothing_else_is_kept_aside() -> None:
    store = Aside(ReadOnly({"file": b""}), "folder", other := DictStore())
    store.put(KEPT, b"1")
    for act in (
        lambda: store.put("file", b"x"),
        lambda: store.put_many({"file": b"x"}),
        lambda: store.swap("file", b"", b"x"),
        lambda: store.copy_within(KEPT, "file"),
        lambda: store.delete_many(["file"]),
    ):
        with pytest.raises(Forbidden):
            act()
    assert other.objects == {KEPT: b"1"}


@pytest.mark.parametrize("is_cut", [False, True])
def test_a_table_that_can_only_be_read_has_a_chain_and_keeps_it(is_cut: bool) -> None:
    past = History().then(Append(2), h.Checkpoint(), Append(1))
    objects = past.store().objects
    if is_cut:
        objects = {name: data for name, data in objects.items() if "00000.json" not in name}
    table = ReadOnly(objects)
    aside = DictStore()
    head = DeltaDataset(Aside(table, CHAIN_FOLDER, aside), "").current()
    assert head is not None
    assert head == DeltaDataset(DictStore(objects), "").current()
    table.calls.reset()
    assert DeltaDataset(Aside(table, CHAIN_FOLDER, aside), "").current() == head
    read = [path for verb, path in table.calls.log if verb in ("GET", "RANGE")]
    assert not [path for path in read if path.endswith(".parquet")]
    assert DeltaLog(table).snapshot().version == 2
