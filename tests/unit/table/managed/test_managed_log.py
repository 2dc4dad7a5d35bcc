"""The log of a managed table: replay, history and commits go through its catalog."""

from __future__ import annotations

import json
from contextlib import suppress

import pytest

from lakeferry.errors import UnsupportedFeature
from lakeferry.log import actions, features, paths
from lakeferry.log.commit import Transaction
from lakeferry.log.conflicts import Conflict
from lakeferry.storage import Store
from lakeferry.table import DeltaLog
from lakeferry.table.managed import ManagedStore
from lakeferry.table.put_commit import Committed
from tests.support.history import Append, Checkpoint, History, Layout, Upgrade
from tests.support.stored_catalog import StoredCatalog
from tests.support.stores import DictStore, Fault, FaultyStore, Stopped, at

MANAGED = ("catalogManaged", "vacuumProtocolCheck")


def table() -> tuple[DictStore, StoredCatalog, int]:
    """Return a managed table with in-commit timestamps whose history its catalog doesn't know."""
    past = History(Layout(in_commit_timestamps=True)).then(Append(2), Append(1), Checkpoint())
    store = past.then(Upgrade(reader=MANAGED, writer=MANAGED)).store()
    catalog = StoredCatalog(store)
    catalog.create(dict(DeltaLog(store).state().metadata.configuration))
    return store, catalog, DeltaLog(store).state().version


def opened(store: Store, version: int) -> DeltaLog:
    return DeltaLog(ManagedStore(store, StoredCatalog(store), onboarding=version))


def with_property(log: DeltaLog, value: str) -> Transaction:
    metadata = log.state().metadata
    changed = {**metadata.configuration, "a.b": value}
    return Transaction(
        "TEST", f"txn-{value}", metadata=actions.changed(metadata, configuration=changed)
    )


def test_a_commit_is_ratified_and_read_back() -> None:
    store, catalog, version = table()
    log = opened(store, version)

    done = log.commit(with_property(log, "c"), log.state())

    assert isinstance(done, Committed)
    assert done.version == version + 1 == catalog.kept().latest
    assert catalog.kept().properties["a.b"] == "c"
    assert log.snapshot().metadata.configuration["a.b"] == "c"
    assert log.snapshot().files.num_rows == DeltaLog(store).snapshot(version).files.num_rows
    assert [revision.version for revision in log.history(1)] == [version + 1]
    info = json.loads(store.get(paths.commit(version + 1)).splitlines()[0])["commitInfo"]
    assert info["txnId"] == "txn-c"
    assert info["inCommitTimestamp"] > 0


def test_two_writers_of_one_version_have_one_winner() -> None:
    store, _, version = table()
    first, second = opened(store, version), opened(store, version)
    read = second.state()
    assert isinstance(first.commit(with_property(first, "c"), first.state()), Committed)

    lost = second.commit(with_property(second, "d"), read)

    assert isinstance(lost, Conflict)
    assert lost.version == version + 1


def test_by_its_path_a_managed_table_is_neither_written_nor_checkpointed() -> None:
    store, _, _ = table()
    log = DeltaLog(store)

    with pytest.raises(UnsupportedFeature, match="catalogManaged"):
        log.commit(with_property(log, "c"), log.state())
    with pytest.raises(UnsupportedFeature, match="catalogManaged"):
        log.checkpoint()
    with pytest.raises(UnsupportedFeature, match="catalogManaged"):
        features.check_readable(log.state().protocol)


def test_nobody_makes_a_table_managed_by_a_commit_of_its_own() -> None:
    store = History(Layout(in_commit_timestamps=True)).then(Append(2)).store()
    managed_store, _, _ = table()
    wanted = DeltaLog(managed_store).state().protocol
    log = DeltaLog(store)
    with pytest.raises(UnsupportedFeature, match="catalogManaged"):
        log.commit(Transaction("TEST", "t", protocol=wanted), log.state())


def test_a_checkpoint_is_written_once_its_commits_are_published() -> None:
    store, catalog, version = table()
    log = opened(store, version)
    assert isinstance(log.commit(with_property(log, "c"), log.state()), Committed)

    written = log.checkpoint(checksum=True)

    assert written.version == version + 1 == catalog.kept().published
    assert opened(store, version).snapshot().metadata.configuration["a.b"] == "c"


def test_a_commit_that_is_broken_off_anywhere_is_there_whole_or_not_at_all() -> None:
    store, _, version = table()
    counting = FaultyStore(store, lambda _: None)
    log = opened(counting, version)
    log.commit(with_property(log, "c"), log.state())
    for index in range(len(counting.history)):
        store, catalog, version = table()
        faulty = opened(FaultyStore(store, at(index, Fault.STOP_AFTER)), version)
        # A listing that is read only in part never comes to its end, and so isn't stopped.
        with suppress(Stopped):
            faulty.commit(with_property(faulty, "c"), faulty.state())
        later = opened(store, version)
        read = later.state()
        done = later.commit(with_property(later, "d"), read)
        assert isinstance(done, Committed)
        assert done.version == catalog.kept().latest
        values = [read.metadata.configuration.get("a.b"), "d"]
        assert values in ([None, "d"], ["c", "d"])
