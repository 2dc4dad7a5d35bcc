"""A managed table's log is what its catalog has accepted, for readers and for writers."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from lakeferry.errors import (
    CatalogManaged,
    CatalogUnavailable,
    CommitConflict,
    CorruptLog,
    ObjectNotFound,
    StorageUnavailable,
)
from lakeferry.log import paths
from lakeferry.log.catalog_changes import CatalogChanges
from lakeferry.storage import Store
from lakeferry.storage.aliases import AliasStore
from lakeferry.table import put_commit
from lakeferry.table.managed import CatalogHead, ManagedStore, Proposal, RatifiedCommit, Verdict
from tests.support.stored_catalog import STATE, StoredCatalog, managed
from tests.support.stores import DictStore, Fault, FaultyStore, Stopped, at, on


def body(version: int, who: str = "a", **more: object) -> bytes:
    """Return a commit that only has provenance, and ``more`` actions."""
    info = {"inCommitTimestamp": 1_000 + version, "txnId": f"{who}-{version}", "operation": "WRITE"}
    actions = [{"commitInfo": info}, *({key: value} for key, value in more.items())]
    return b"\n".join(json.dumps(action).encode() for action in actions) + b"\n"


FIRST: dict[str, Any] = {
    "protocol": {"minReaderVersion": 1, "minWriterVersion": 2},
    "metaData": {
        "id": "1",
        "format": {"provider": "parquet", "options": {}},
        "schemaString": '{"type":"struct","fields":[]}',
        "configuration": {},
    },
}


def table(versions: int = 3) -> tuple[DictStore, StoredCatalog]:
    """Return a table with that many published versions, the last of which the catalog accepted."""
    store = DictStore()
    for version in range(versions - 1):
        more = {} if version else FIRST
        store.put(paths.commit(version), body(version, "a", **more))
    catalog = StoredCatalog(store)
    catalog.create({"delta.enableInCommitTimestamps": "true"})
    last = ManagedStore(store, catalog, onboarding=versions - 2)
    assert last.put_if_absent(paths.commit(versions - 1), body(versions - 1))
    return store, catalog


def ratified(store: Store, catalog: StoredCatalog, version: int, who: str = "a") -> RatifiedCommit:
    """Let another client commit a version, and not publish it."""
    name = f"{version:020d}.{'0' * 8}-0000-0000-0000-{version:012d}.json"
    commit = RatifiedCommit(version, name, len(body(version, who)), 5, 1_000 + version)
    store.put(commit.staged_path, body(version, who))
    assert catalog.propose(Proposal(commit, CatalogChanges())) is Verdict.RATIFIED
    return commit


def names(store: Store) -> list[str]:
    return [info.path for info in store.list("_delta_log/0")]


def test_a_ratified_commit_is_listed_and_read_before_it_is_published() -> None:
    store, catalog = table()
    commit = ratified(store, catalog, 3, "other")
    seen = managed(store)

    assert names(seen) == [paths.commit(version) for version in range(4)]
    assert seen.get(paths.commit(3)) == body(3, "other")
    assert seen.get_range(paths.commit(3), 0, 5) == body(3, "other")[:5]
    assert seen.head(paths.commit(3)).size_bytes == commit.size_bytes
    assert seen.head(paths.commit(3)).modified_ms == commit.modified_ms
    wanted = [paths.commit(2), paths.commit(3)]
    assert seen.get_many(wanted) == [body(2), body(3, "other")]


def test_where_both_have_a_version_the_file_that_the_catalog_names_is_read() -> None:
    store, catalog = table()
    ratified(store, catalog, 3, "winner")
    store.put(paths.commit(3), body(3, "put past the catalog"))

    assert managed(store).get(paths.commit(3)) == body(3, "winner")


@pytest.mark.parametrize(
    "name",
    [
        paths.commit(3),
        paths.checksum(3),
        paths.classic_checkpoint(3),
        paths.compacted(2, 3),
    ],
)
def test_files_after_the_catalogs_latest_version_are_ignored(name: str) -> None:
    store, _ = table()
    store.put(name, b"{}")

    assert name not in [info.path for info in managed(store).list("")]


def test_a_version_that_the_catalog_does_not_have_is_not_found() -> None:
    store, _ = table()
    store.put(paths.commit(3), body(3, "not ratified"))
    seen = managed(store)

    with pytest.raises(ObjectNotFound):
        seen.get(paths.commit(3))
    with pytest.raises(ObjectNotFound):
        seen.head(paths.commit(3))


def test_a_commit_that_came_after_the_listing_is_found() -> None:
    store, catalog = table()
    seen = managed(store)
    names(seen)
    ratified(store, catalog, 3, "later")

    assert seen.get(paths.commit(3)) == body(3, "later")


def test_a_staged_file_that_is_cleaned_up_meanwhile_is_read_where_it_was_published() -> None:
    store, catalog = table()
    commit = ratified(store, catalog, 3, "other")
    seen = managed(store)
    names(seen)
    managed(store).publish()
    store.delete_many([commit.staged_path])

    assert seen.get(paths.commit(3)) == body(3, "other")
    assert seen.get_many([paths.commit(2), paths.commit(3)])[1] == body(3, "other")


def test_a_commit_is_staged_ratified_and_published() -> None:
    store, catalog = table()
    assert managed(store).put_if_absent(paths.commit(3), body(3))

    kept = catalog.kept()
    assert [commit.version for commit in kept.commits] == [2, 3]
    assert kept.published == 3
    assert store.get(paths.commit(3)) == body(3)
    assert store.get(kept.commits[-1].staged_path) == body(3)


def test_a_version_that_is_taken_is_not_committed_to() -> None:
    store, catalog = table()
    ratified(store, catalog, 3, "winner")

    assert not managed(store).put_if_absent(paths.commit(3), body(3))
    assert managed(store).get(paths.commit(3)) == body(3, "winner")


def test_no_commit_may_leave_a_gap() -> None:
    store, _ = table()
    with pytest.raises(CommitConflict):
        managed(store).put_if_absent(paths.commit(4), body(4))


def test_a_commit_without_its_time_is_refused() -> None:
    store, _ = table()
    with pytest.raises(CorruptLog, match="inCommitTimestamp"):
        managed(store).put_if_absent(paths.commit(3), b'{"commitInfo":{"operation":"WRITE"}}\n')


def test_changed_properties_are_proposed_with_the_commit() -> None:
    store, catalog = table()
    configuration = {"delta.enableInCommitTimestamps": "true", "a.b": "c"}
    metadata = {
        "id": "1",
        "format": {"provider": "parquet", "options": {}},
        "schemaString": '{"type":"struct","fields":[]}',
        "partitionColumns": [],
        "configuration": configuration,
    }
    assert managed(store).put_if_absent(paths.commit(3), body(3, metaData=metadata))
    assert catalog.kept().properties == configuration

    metadata["configuration"] = {"a.b": "d"}
    assert managed(store).put_if_absent(paths.commit(4), body(4, metaData=metadata))
    assert catalog.kept().properties == {"a.b": "d"}


def test_a_full_catalog_is_published_and_asked_again() -> None:
    store, catalog = table()
    for version in range(3, 13):
        ratified(store, catalog, version)

    assert managed(store).put_if_absent(paths.commit(13), body(13))
    assert store.get(paths.commit(12)) == body(12)
    assert catalog.kept().published == 13


@pytest.mark.parametrize("fault", [Fault.FAIL, Fault.LOSE_ANSWER])
def test_whatever_call_fails_the_commit_is_there_once_or_not_at_all(fault: Fault) -> None:
    store, _ = table()
    counting = FaultyStore(store, lambda _: None)
    managed(counting).put_if_absent(paths.commit(3), body(3))
    calls = len(counting.history)
    assert calls > 5
    for index in range(calls):
        store, catalog = table()
        faulty = FaultyStore(store, at(index, fault))
        try:
            found = put_commit.put_commit(managed(faulty), paths.commit(3), body(3))
        except (StorageUnavailable, CatalogUnavailable):
            found = put_commit.put_commit(managed(store), paths.commit(3), body(3))
        assert found is None
        assert [commit.version for commit in catalog.kept().commits] == [2, 3]
        assert managed(store).get(paths.commit(3)) == body(3)


def test_wherever_a_process_ends_the_next_one_goes_on() -> None:
    store, _ = table()
    counting = FaultyStore(store, lambda _: None)
    managed(counting).put_if_absent(paths.commit(3), body(3))
    for index in range(len(counting.history)):
        for fault in (Fault.STOP_BEFORE, Fault.STOP_AFTER):
            store, catalog = table()
            with pytest.raises(Stopped):
                managed(FaultyStore(store, at(index, fault))).put_if_absent(
                    paths.commit(3), body(3)
                )
            assert put_commit.put_commit(managed(store), paths.commit(3), body(3)) is None
            managed(store).publish()
            assert store.get(paths.commit(3)) == body(3)
            assert catalog.kept().published == 3


def test_a_lost_answer_is_settled_by_the_file_that_the_catalog_names() -> None:
    store, catalog = table()
    lossy = FaultyStore(store, on("SWAP", Fault.LOSE_ANSWER, containing=STATE))

    assert managed(lossy).put_if_absent(paths.commit(3), body(3))
    assert catalog.kept().latest == 3


def test_commits_that_cannot_be_published_are_committed_all_the_same() -> None:
    store, catalog = table()
    warnings: list[str] = []
    broken = FaultyStore(
        store, on("PUT_IF_ABSENT", Fault.FAIL, containing=paths.commit(3), times=-1)
    )
    seen = ManagedStore(broken, StoredCatalog(broken), warn=warnings.append)

    assert seen.put_if_absent(paths.commit(3), body(3))
    assert catalog.kept().published == 2
    assert "lakeferry publish unity:main.sales.orders" in warnings[0]
    assert dict(seen.config.aliases or ()) == {
        paths.commit(3): catalog.kept().commits[-1].staged_path
    }


def test_a_report_comes_after_the_last_byte() -> None:
    store, catalog = table()
    for version in range(3, 6):
        ratified(store, catalog, version)
    watched = FaultyStore(store, lambda _: None)
    assert managed(watched).publish().published == (3, 4, 5)

    changes = [call for call in watched.history if call.verb in ("PUT_IF_ABSENT", "SWAP")]
    assert [call.paths[0] for call in changes] == [*map(paths.commit, (3, 4, 5)), STATE]


def test_a_published_file_with_other_bytes_is_not_reported() -> None:
    store, catalog = table()
    ratified(store, catalog, 3, "winner")
    store.put(paths.commit(3), body(3, "put past the catalog"))

    with pytest.raises(CorruptLog, match="can't be published"):
        managed(store).publish()
    assert catalog.kept().published == 2


def test_a_checkpoint_waits_for_its_commits() -> None:
    store, catalog = table()
    ratified(store, catalog, 3)
    seen = managed(store)
    names(seen)

    seen.put(paths.classic_checkpoint(3), b"rows")
    assert store.get(paths.commit(3)) == body(3)
    assert catalog.kept().published == 3


@pytest.mark.parametrize(
    "change",
    [
        lambda store: store.put(paths.commit(3), b"{}"),
        lambda store: store.put(paths.classic_checkpoint(9), b"rows"),
        lambda store: store.delete_many([paths.commit(0)]),
        lambda store: store.delete_many([paths.classic_checkpoint(1)]),
        lambda store: store.copy_within("a.parquet", paths.commit(3)),
    ],
    ids=["commit", "checkpoint", "delete a commit", "delete a checkpoint", "copy"],
)
def test_the_log_is_not_changed_past_the_catalog(change: Callable[[Store], None]) -> None:
    store, _ = table()
    store.put("a.parquet", b"rows")
    with pytest.raises(CatalogManaged):
        change(managed(store))


def test_everything_else_is_an_ordinary_store() -> None:
    store, _ = table()
    seen = managed(store)
    seen.put("part-0.parquet", b"rows")
    seen.put(f"{paths.OWN_DIR}/x", b"mine")
    seen.delete_many(["part-0.parquet"])

    assert seen.get(f"{paths.OWN_DIR}/x") == b"mine"
    assert not seen.exists("part-0.parquet")
    assert seen.asks_catalog


def test_executors_read_ratified_commits_without_the_catalog() -> None:
    store, catalog = table()
    commit = ratified(store, catalog, 3, "other")
    seen = managed(store)
    names(seen)
    config = pickle.loads(pickle.dumps(seen.config))

    assert config.aliases == ((paths.commit(3), commit.staged_path),)
    there = AliasStore(store, dict(config.aliases))
    assert there.get(paths.commit(3)) == body(3, "other")
    assert paths.commit(3) in names(there)
    assert there.asks_catalog


class Leaving(StoredCatalog):
    """A catalog that owns the table's files and leaves its commits to the log."""

    def head(self) -> CatalogHead:
        return replace(super().head(), decides=False)

    def propose(self, proposal: Proposal) -> Verdict:
        raise AssertionError("asked")


def test_where_the_catalog_decides_nothing_the_log_counts() -> None:
    store, _ = table()
    store.put(paths.commit(3), body(3))
    seen = ManagedStore(store, Leaving(store))

    assert names(seen) == [paths.commit(version) for version in range(4)]
    assert not seen.asks_catalog
    assert seen.put_if_absent(paths.commit(4), body(4))
    assert not seen.put_if_absent(paths.commit(4), body(4, "other"))
    seen.put(paths.classic_checkpoint(4), b"rows")
    seen.delete_many([paths.commit(0)])
    assert store.objects[paths.commit(4)] == body(4)
    assert paths.commit(0) not in store.objects
    assert seen.config.aliases is None


def test_no_request_is_sent_before_the_first_use() -> None:
    class Silent(StoredCatalog):
        def head(self) -> CatalogHead:
            raise AssertionError("asked")

    store, _ = table()
    seen = ManagedStore(store, Silent(store))
    assert seen.config == replace(store.config, aliases=())
    assert seen.uri == store.uri
