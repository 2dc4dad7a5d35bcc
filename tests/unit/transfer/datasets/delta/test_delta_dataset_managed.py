"""Managed tables as datasets: their chains don't bind a receiver to the sender's catalog."""

from __future__ import annotations

import pytest

from lakeferry.errors import UnsupportedFeature
from lakeferry.log import paths
from lakeferry.log.replay import Snapshot
from lakeferry.storage import Store
from lakeferry.table import DeltaLog
from lakeferry.transfer.datasets.delta.delta_dataset import DeltaDataset
from lakeferry.transfer.datasets.delta.root_checkpoints import CHAIN_FOLDER
from tests.support.history import Append, Checkpoint, DeleteRows, History, Kind
from tests.support.managed_history import (
    BECOMES_MANAGED,
    MANAGED_LAYOUT,
    MANAGED_PAST,
    TRACES,
    ManagedHistory,
    managed_history,
)
from tests.support.stores import DictStore
from tests.unit.transfer.datasets.delta.test_delta_dataset import transfer

LONGER = MANAGED_PAST.then(DeleteRows(1), Append(1))


def managed(history: History = MANAGED_PAST, *, unpublished: int = 1) -> ManagedHistory:
    return managed_history(history, unpublished=unpublished)


def received(store: Store, target: DictStore | None = None) -> DictStore:
    """Return a copy of a table as its receiver has it."""
    target = target or DictStore(uri="memory://receiver")
    transfer(store, target)
    return target


def live(snapshot: Snapshot) -> list[tuple[str, int, bool]]:
    """Return path and size of each live file, and whether it has a deletion vector."""
    columns = snapshot.files.select(["path", "size", "deletionVector"]).to_pylist()
    return sorted((row["path"], row["size"], row["deletionVector"] is not None) for row in columns)


def log_of(store: DictStore) -> dict[str, bytes]:
    names = [name for name in store.objects if name.startswith("_delta_log/0")]
    return {name: store.get(name) for name in names}


def test_a_receiver_has_a_table_of_its_own() -> None:
    table = managed(LONGER, unpublished=2)
    copy = received(table.store())
    seen, made = DeltaLog(table.store()).snapshot(), DeltaLog(copy).snapshot()
    assert made.version == seen.version
    assert live(made) == live(seen)
    assert "catalogManaged" not in made.protocol.features
    gone = {"catalogManaged", "vacuumProtocolCheck"}
    assert seen.protocol.features - made.protocol.features == gone
    assert made.metadata.id == seen.metadata.id
    assert "io.unitycatalog.tableId" not in made.metadata.configuration
    assert not any(trace in data for data in copy.objects.values() for trace in TRACES)
    for version in range(made.version + 1):
        before, after = DeltaLog(table.store()).snapshot(version), DeltaLog(copy).snapshot(version)
        assert live(after) == live(before)


def test_a_chain_does_not_depend_on_what_is_published() -> None:
    staged, published = managed(LONGER, unpublished=3), managed(LONGER, unpublished=3)
    published.publish()
    heads = [DeltaDataset(table.store(), "").current() for table in (staged, published)]
    assert heads[0] == heads[1]
    assert heads[0] is not None


@pytest.mark.parametrize("last_is_the_properties", [True, False])
def test_a_chain_goes_on(last_is_the_properties: bool) -> None:
    past = (
        MANAGED_PAST
        if not last_is_the_properties
        else History(MANAGED_LAYOUT).then(Append(2), *BECOMES_MANAGED)
    )
    first = managed(past)
    copy = received(first.store())
    before = log_of(copy)
    later = managed(past.then(Append(1), Checkpoint(Kind.V2_JSON), DeleteRows(1)))
    # Without the chain that is kept, another chain would have to begin at the checkpoint.
    later.objects.delete_many([paths.commit(0)])
    kept = {n: d for n, d in first.objects.objects.items() if n.startswith(CHAIN_FOLDER)}
    assert kept
    for name, data in kept.items():
        later.objects.put(name, data)
    received(later.store(), copy)
    assert {name: log_of(copy)[name] for name in before} == before
    assert DeltaDataset(later.store(), "").current() == DeltaDataset(copy, "").current()


@pytest.mark.parametrize("kind", list(Kind))
def test_a_chain_may_begin_with_a_checkpoint_of_the_managed_table(kind: Kind) -> None:
    table = managed(MANAGED_PAST.then(Checkpoint(kind), Append(1)), unpublished=1)
    root = max(DeltaLog(table.objects).listing().checkpoints, key=lambda one: one.version).version
    table.objects.delete_many([paths.commit(version) for version in range(root)])
    before = dict(table.objects.objects)
    copy = received(table.store())
    made, seen = DeltaLog(copy).snapshot(), DeltaLog(table.store()).snapshot()
    assert live(made) == live(seen)
    assert "catalogManaged" not in made.protocol.features
    assert "catalogManaged" not in DeltaLog(copy).state(root).protocol.features
    assert "io.unitycatalog.tableId" not in made.metadata.configuration
    # Nothing but the chain was written to the managed table.
    new = [name for name in table.objects.objects if name not in before]
    assert all(name.startswith(CHAIN_FOLDER) for name in new)


def test_a_path_alone_is_refused() -> None:
    table = managed(unpublished=0)
    with pytest.raises(UnsupportedFeature) as refused:
        DeltaDataset(table.objects, "").current()
    assert refused.value.fields["features"] == ["catalogManaged"]


def test_the_head_of_a_table_that_was_replaced_is_still_noticed() -> None:
    table = managed(History(MANAGED_LAYOUT).then(Append(2), *BECOMES_MANAGED), unpublished=0)
    dataset = DeltaDataset(table.store(), "")
    head = dataset.current()
    newest = DeltaLog(table.objects).listing().newest_version
    path = paths.commit(newest)
    table.objects.put(path, table.objects.get(path).replace(b'"owner"', b'"owners"'))
    assert DeltaDataset(table.store(), "").current() != head
