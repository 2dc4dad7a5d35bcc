"""A dataset is renamed or deleted, or its name is taken, at any call of a push or a pull.

Whatever happens, no dataset is lost: each folder with a head has a name, or is deleted on purpose.
Every chain is whole, and a push that was acknowledged is in one of them.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pytest

from lakeferry.errors import CommitConflict, LakeferryError, ObjectNotFound
from lakeferry.storage import Store
from lakeferry.transfer.repository.dataset_changes import DatasetChanges
from lakeferry.transfer.repository.dataset_names import DatasetName
from lakeferry.transfer.repository.repository import Repository
from tests.simulation.transfer_cases import chain_of, terms_of
from tests.support.odf import Chain, SetInfo
from tests.support.places import below, inside
from tests.support.reference_client import files_of
from tests.support.shares import Share
from tests.support.stores import DictStore, FaultyStore, StoreCall
from tests.support.transfer_world import DATASET, NAME, World, running, without_network
from tests.support.transfers import async_pull, async_push

SALES = DatasetName("sales")
CLOCK = DictStore().clock
"""What all stores of memory show."""
BEGUN = Chain().append(checkpoint="begun")
GROWN = Chain().append(checkpoint="begun").add(SetInfo("more")).append(checkpoint="more")
OTHER = Chain(b"\xed\x01" + bytes(31) + b"x").append()

Change = Callable[[DatasetChanges], object]


def rename(changes: DatasetChanges) -> object:
    return changes.rename(NAME, SALES)


def delete(changes: DatasetChanges) -> object:
    return changes.delete(NAME)


def take_the_name(changes: DatasetChanges) -> object:
    return changes.rename(SALES, NAME)


def there_and_back(changes: DatasetChanges) -> object:
    changes.rename(NAME, SALES)
    return changes.rename(SALES, NAME)


class Meanwhile:
    """The server's store, in which somebody makes a change before the call with an index."""

    def __init__(self, disk: DictStore, change: Change, index: int) -> None:
        self.disk = disk
        self.refused: LakeferryError | None = None
        self.was_made = False
        self._change, self._index = change, index
        self.store = FaultyStore(disk, self._rule)

    def _rule(self, call: StoreCall) -> None:
        if call.index != self._index:
            return
        clock = self.disk.clock
        changes = DatasetChanges(Repository(self.disk, clock=clock), lambda _: None, clock=clock)
        try:
            self._change(changes)
            self.was_made = True
        except (CommitConflict, ObjectNotFound) as refused:
            self.refused = refused


def datasets(disk: DictStore) -> dict[str, list[str]]:
    """Return the blocks of each dataset by its name; one without a name has to be deleted."""
    table = Repository(disk).folders.read()
    folders = {
        path.removesuffix("/refs/head") for path in disk.objects if path.endswith("/refs/head")
    }
    found = {}
    for folder in folders - table.deleted.keys():
        name = table.name_of(folder)
        assert name is not None, f"{folder} has no name: {table}"
        assert name not in found
        found[name] = [block.hash.text for block in chain_of(below(disk.objects, folder))]
    return found


def calls_of(disk: DictStore, act: Callable[[Store], object]) -> int:
    counting = FaultyStore(disk)
    act(counting)
    return len(counting.history)


def push(store: Store, chain: Chain) -> str:
    client = DictStore(files_of(chain))
    world = World(store, clock=CLOCK)
    return running(world, lambda: async_push(client, DATASET, terms_of(once=True))).head


def pull(store: Store, client: DictStore) -> str:
    return running(
        World(store, clock=CLOCK), lambda: async_pull(DATASET, client, terms_of(once=True))
    ).head


@pytest.mark.parametrize("change", [rename, delete, there_and_back])
def test_a_push_to_a_dataset_that_is_changed_meanwhile(change: Change, share: Share) -> None:
    def begun() -> DictStore:
        return DictStore(inside(str(NAME), files_of(BEGUN)))

    outcomes = set()
    with without_network():
        for index in share.each(range(calls_of(begun(), lambda store: push(store, GROWN)))):
            meanwhile = Meanwhile(begun(), change, index)
            head = None
            with suppress(LakeferryError):
                head = push(meanwhile.store, GROWN)
            found = datasets(meanwhile.disk)
            outcomes.add((head is not None, meanwhile.was_made))
            assert (
                head is None
                or any(head in blocks for blocks in found.values())
                or (change is delete and meanwhile.was_made)
            )
            old = BEGUN.head.text
            assert change is delete or any(old in blocks for blocks in found.values())
            # Nobody waits for anything: the next push ends well, or is told of the new name.
            if str(SALES) in found:
                with pytest.raises(CommitConflict, match="under another name"):
                    push(meanwhile.disk, GROWN)
            else:
                again = push(meanwhile.disk, GROWN)
                assert again in datasets(meanwhile.disk)[str(NAME)]
    if share.is_whole:
        assert {(True, False), (True, True)} <= outcomes


def test_a_first_push_whose_name_is_taken_meanwhile(share: Share) -> None:
    def begun() -> DictStore:
        return DictStore(inside(str(SALES), files_of(OTHER)))

    with without_network():
        for index in share.each(range(calls_of(begun(), lambda store: push(store, GROWN)))):
            meanwhile = Meanwhile(begun(), take_the_name, index)
            head = None
            with suppress(LakeferryError):
                head = push(meanwhile.store, GROWN)
            found = datasets(meanwhile.disk)
            assert OTHER.head.text in found[str(NAME if meanwhile.was_made else SALES)]
            assert head is None or head in found[str(NAME)]
            assert not (head is not None and meanwhile.was_made)


@pytest.mark.parametrize("change", [rename, delete])
def test_a_pull_of_a_dataset_that_is_changed_meanwhile(change: Change, share: Share) -> None:
    def begun() -> DictStore:
        return DictStore(inside(str(NAME), files_of(GROWN)))

    with without_network():
        calls = calls_of(begun(), lambda store: pull(store, DictStore()))
        for index in share.each(range(calls)):
            meanwhile, client = Meanwhile(begun(), change, index), DictStore()
            head = None
            with suppress(LakeferryError):
                head = pull(meanwhile.store, client)
            assert meanwhile.was_made
            assert (head is not None) == ("refs/head" in client.objects)
            if head is not None:
                assert chain_of(client.objects)[0].hash.text == GROWN.head.text
