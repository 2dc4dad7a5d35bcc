"""What is read for a plan, and of which tables there is none."""

from __future__ import annotations

import json

import pytest

from lakeferry.api.change_plan import MoveTraits, plan_table
from lakeferry.errors import CorruptLog, InvalidInput, UnsupportedFeature
from lakeferry.log import paths
from lakeferry.storage import Store
from lakeferry.table import DeltaLog
from tests.support.history import Append, Checkpoint, History, Upgrade
from tests.support.stores import DictStore

VERSIONS = 400


class CountingStore(DictStore):
    """Counts which commits are read."""

    def __init__(self) -> None:
        super().__init__()
        self.read: set[str] = set()

    def get(self, path: str) -> bytes:
        self.read.add(path)
        return super().get(path)


def long_table() -> CountingStore:
    """A table with a checkpoint near its end, and many commits before it."""
    store = CountingStore()
    last = VERSIONS - 3
    steps = [Append(1) for _ in range(last)]
    History().then(*steps, Checkpoint(), Append(1), Append(1)).write(store)
    store.read.clear()
    return store


def commits_read(store: CountingStore) -> list[int]:
    names = {paths.commit(version): version for version in range(VERSIONS + 10)}
    return sorted(names[path] for path in store.read if path in names)


@pytest.mark.parametrize("wish", ["move", "protect", "share"])
def test_only_the_newest_hundred_commits_are_read(wish: str) -> None:
    store = long_table()
    found = plan_table(DeltaLog(store).keeping_reads(), wish)
    read = commits_read(store)
    assert len(read) <= 100
    assert read[0] == found.since == found.version - 99
    assert sum(each.commits or 0 for each in found.clients) == 100


def test_the_answer_is_about_the_versions_that_were_looked_at() -> None:
    found = plan_table(DeltaLog(long_table()).keeping_reads(), "share")
    newest = found.clients[-1].versions
    assert [(each.first, each.last) for each in newest] == [(found.since, found.version)]


def test_nothing_is_written() -> None:
    store = long_table()
    before = {entry.path: store.get(entry.path) for entry in store.list("")}
    for wish in ("move", "protect", "share"):
        plan_table(DeltaLog(store).keeping_reads(), wish)
    assert {entry.path: store.get(entry.path) for entry in store.list("")} == before


def test_a_managed_table_can_not_be_moved_and_is_refused_by_name() -> None:
    store = DictStore()
    names = ("catalogManaged",)
    more = ("inCommitTimestamp", "vacuumProtocolCheck")
    History().then(Append(1), Upgrade((*names, more[1]), (*names, *more))).write(store)
    with pytest.raises(UnsupportedFeature, match="catalogManaged"):
        plan_table(DeltaLog(store).keeping_reads(), "move")


def test_a_log_that_does_not_parse_is_corrupt() -> None:
    store = DictStore()
    store.put(paths.commit(0), b"nonsense\n")
    with pytest.raises(CorruptLog):
        plan_table(DeltaLog(store).keeping_reads(), "move")


def test_a_feature_goes_with_drop_and_with_nothing_else() -> None:
    log = DeltaLog(_small()).keeping_reads()
    for wish, feature in (("drop", None), ("move", "deletionVectors"), ("burn", None)):
        with pytest.raises(InvalidInput):
            plan_table(log, wish, feature)
    with pytest.raises(InvalidInput, match="--dialect"):
        plan_table(log, "move", traits=MoveTraits(dialects=("klingon",)))


def test_the_document_has_what_the_contract_says() -> None:
    document = plan_table(DeltaLog(_small()).keeping_reads(), "move").as_document()
    assert json.loads(json.dumps(document)) == document
    assert {"name", "version", "before", "during", "after", "source"} <= set(document["clients"][0])


def _small() -> Store:
    store = DictStore()
    History().then(Append(1)).write(store)
    return store
