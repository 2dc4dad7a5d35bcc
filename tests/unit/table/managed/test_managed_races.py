"""What a managed table's store makes of other clients, of silent catalogs and of lost files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from lakeferry.errors import (
    CatalogManaged,
    CatalogUnavailable,
    CommitStateUnknown,
    CorruptLog,
    LakeferryError,
    ObjectNotFound,
    Unauthorized,
)
from lakeferry.log import paths
from lakeferry.storage.aliases import AliasStore
from lakeferry.storage.overlay import Overlay
from lakeferry.storage.side_folder import Aside
from lakeferry.table import DeltaLog, put_commit
from lakeferry.table.managed import CatalogHead, ManagedStore, Proposal, Verdict
from lakeferry.table.put_commit import Committed
from tests.support.stored_catalog import StoredCatalog, managed
from tests.support.stores import DictStore, Fault, FaultyStore, on
from tests.unit.table.managed import test_managed_log
from tests.unit.table.managed.test_managed_store import body, names, ratified, table

SILENT = CatalogUnavailable("the catalog doesn't answer")


class Interposed(StoredCatalog):
    """A catalog that does something else before it answers for the first time."""

    meanwhile: Callable[[], object] | None = None

    def head(self) -> CatalogHead:
        act, self.meanwhile = self.meanwhile, None
        if act is not None:
            act()
        return super().head()


class FallsSilent(StoredCatalog):
    """A catalog that fails after the first proposal; loses its answer unless it ``answers``."""

    failure: LakeferryError | None = None

    def __init__(self, store: DictStore, after: LakeferryError, *, answers: bool) -> None:
        super().__init__(store)
        self._after, self._answers = after, answers

    def head(self) -> CatalogHead:
        if self.failure is not None:
            raise self.failure
        return super().head()

    def propose(self, proposal: Proposal) -> Verdict:
        if self.failure is not None:
            raise self.failure
        verdict = super().propose(proposal)
        self.failure = self._after
        if not self._answers:
            raise SILENT
        return verdict


def test_the_log_is_listed_after_the_catalog_was_asked() -> None:
    store, _ = table()
    catalog = Interposed(store)

    def commit_and_publish() -> None:
        ratified(store, StoredCatalog(store), 3, "other")
        managed(store).publish()

    catalog.meanwhile = commit_and_publish
    assert paths.commit(3) in names(ManagedStore(store, catalog))


def test_a_log_without_the_catalogs_latest_version_is_not_taken_for_an_older_one() -> None:
    store, catalog = table()
    assert managed(store).put_if_absent(paths.commit(3), body(3))
    assert catalog.kept().published == 3
    store.delete_many([paths.commit(3)])

    with pytest.raises(CorruptLog, match=paths.commit(3)):
        names(managed(store))
    with pytest.raises(CorruptLog, match=paths.commit(3)):
        DeltaLog(managed(store)).segment()
    listed = managed(store).list(f"{paths.LOG_DIR}/", stop_before=paths.commit(3))
    assert [info.path for info in listed] == [paths.commit(version) for version in range(3)]


@pytest.mark.parametrize("after", [SILENT, Unauthorized("the token has expired")])
def test_a_lost_answer_of_a_catalog_that_then_is_silent_leaves_the_outcome_unknown(
    after: LakeferryError,
) -> None:
    store, catalog = table()
    silent = ManagedStore(store, FallsSilent(store, after, answers=False))

    with pytest.raises(CommitStateUnknown):
        put_commit.put_commit(silent, paths.commit(3), body(3))
    assert catalog.kept().latest == 3
    assert put_commit.put_commit(managed(store), paths.commit(3), body(3)) is None


def test_our_published_commit_is_known_by_its_bytes_when_its_staged_file_is_gone() -> None:
    store, _ = table()

    class Tidy(StoredCatalog):
        def propose(self, proposal: Proposal) -> Verdict:
            super().propose(proposal)
            managed(store).publish()
            store.delete_many([proposal.commit.staged_path])
            raise SILENT

    assert ManagedStore(store, Tidy(store)).put_if_absent(paths.commit(3), body(3))


def test_a_commit_stays_made_if_the_catalog_falls_silent_right_after_it() -> None:
    store, catalog, version = test_managed_log.table()
    warnings: list[str] = []
    silent = FallsSilent(store, SILENT, answers=True)
    log = DeltaLog(ManagedStore(store, silent, onboarding=version, warn=warnings.append))

    done = log.commit(test_managed_log.with_property(log, "c"), log.state())

    assert isinstance(done, Committed)
    assert catalog.kept().latest == done.version
    assert "aren't published yet" in warnings[0]
    newest = catalog.kept().commits[-1]
    assert (paths.commit(done.version), newest.staged_path) in (log.store.config.aliases or ())
    assert log.store.get(paths.commit(done.version)) == done.body


def test_a_table_whose_catalog_begins_to_decide_is_not_written_past_it() -> None:
    class Upgraded(StoredCatalog):
        decides = False

        def head(self) -> CatalogHead:
            return replace(super().head(), decides=self.decides)

    store, _ = table()
    catalog = Upgraded(store)
    seen = ManagedStore(store, catalog)
    assert not seen.asks_catalog
    catalog.decides = True
    ratified(store, catalog, 3, "other")

    assert not seen.put_if_absent(paths.commit(3), body(3))
    assert paths.commit(3) not in store.objects
    assert seen.get(paths.commit(3)) == body(3, "other")


def test_a_table_whose_catalog_stops_deciding_is_written_by_its_log() -> None:
    class Downgraded(StoredCatalog):
        decides = True

        def head(self) -> CatalogHead:
            return replace(super().head(), decides=self.decides)

    store, _ = table()
    catalog = Downgraded(store)
    seen = ManagedStore(store, catalog)
    assert seen.asks_catalog
    catalog.decides = False

    assert put_commit.put_commit(seen, paths.commit(3), body(3)) is None
    assert store.objects[paths.commit(3)] == body(3)


def test_a_file_of_another_size_is_not_published_for_a_lost_staged_file() -> None:
    store, catalog = table()
    commit = ratified(store, catalog, 3, "winner")
    store.put(paths.commit(3), body(3, "put past the catalog"))
    store.delete_many([commit.staged_path])

    with pytest.raises(CorruptLog, match="can't be published"):
        managed(store).publish()
    assert catalog.kept().published == 2


def test_the_staged_file_of_an_unpublished_commit_is_not_deleted() -> None:
    store, catalog = table()
    commit = ratified(store, catalog, 3, "other")
    loser = f"{paths.STAGED_DIR}/{3:020d}.{'1' * 8}-0000-0000-0000-{3:012d}.json"
    store.put(loser, body(3, "lost"))

    managed(store).delete_many([loser])
    with pytest.raises(CatalogManaged):
        managed(store).delete_many([commit.staged_path])
    assert commit.staged_path in store.objects
    assert loser not in store.objects


def test_an_executor_lists_a_commit_whose_staged_file_was_cleaned_up() -> None:
    store, catalog = table()
    commit = ratified(store, catalog, 3, "other")
    there = AliasStore(store, {paths.commit(3): commit.staged_path})
    managed(store).publish()
    store.delete_many([commit.staged_path])

    assert names(there) == [paths.commit(version) for version in range(4)]


def test_no_url_lets_a_commit_be_put_past_the_catalog() -> None:
    store, catalog = table()
    ratified(store, catalog, 3, "other")
    seen = managed(store)
    names(seen)

    assert seen.sign("GET", paths.commit(3), 60)
    for path in (paths.commit(3), paths.commit(4)):
        with pytest.raises(CatalogManaged):
            seen.sign("PUT", path, 60)


@pytest.mark.parametrize("over", [Overlay, lambda store: Aside(store, "aside", DictStore())])
def test_executors_of_a_dry_run_know_the_commits_that_were_listed(
    over: Callable[[ManagedStore], Overlay | Aside],
) -> None:
    store, catalog = table()
    commit = ratified(store, catalog, 3, "other")
    seen = over(managed(store))
    names(seen)

    assert seen.config.aliases == ((paths.commit(3), commit.staged_path),)


def test_a_commit_that_was_ratified_but_is_nowhere_is_not_reported() -> None:
    store, catalog = table()
    commit = ratified(store, catalog, 3, "other")
    store.delete_many([commit.staged_path])

    with pytest.raises(ObjectNotFound):
        managed(store).publish()
    assert catalog.kept().published == 2


def test_a_staged_file_that_fails_to_be_written_is_never_proposed() -> None:
    store, catalog = table()
    broken = FaultyStore(store, on("PUT_IF_ABSENT", Fault.FAIL, containing=paths.STAGED_DIR))

    assert put_commit.put_commit(managed(store), paths.commit(3), body(3)) is None
    with pytest.raises(LakeferryError):
        managed(broken).put_if_absent(paths.commit(4), body(4))
    assert catalog.kept().latest == 3


def test_a_commit_outlives_the_loss_of_its_staged_file_before_it_is_published() -> None:
    store, catalog = table()

    class Swept(StoredCatalog):
        def propose(self, proposal: Proposal) -> Verdict:
            # A cleaner takes the file for one that has lost.
            store.delete_many([proposal.commit.staged_path])
            return super().propose(proposal)

    assert ManagedStore(store, Swept(store)).put_if_absent(paths.commit(3), body(3))
    assert store.get(paths.commit(3)) == body(3)
    assert catalog.kept().published == 3
