"""Readers of a managed table see each accepted commit once, however late it is published.

While a reader works, other clients commit, publish and report, and cleaners delete the staged
files of what was published: before any call of the reader, to the store or to the catalog. Other
readers of such tables have lost commits then: they listed the folder first and asked the catalog
afterwards, they read a staged file that was gone, or they took a range that ended early for a
whole one (delta-io/delta 5871, 6314, 6339, 6353).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache

import pytest

from lakeferry.engines.local_engine import LocalEngine
from lakeferry.export.exporter import Export, ExportContext
from lakeferry.log import paths
from lakeferry.log.catalog_changes import CatalogChanges
from lakeferry.storage import Store, StoreConfig
from lakeferry.storage.aliases import AliasStore
from lakeferry.table import DeltaLog, load
from lakeferry.table.managed import ManagedStore, Proposal, RatifiedCommit, Verdict
from lakeferry.transfer.datasets.delta.delta_dataset import DeltaDataset
from tests.support.history import Append, Checkpoint, Commit, Delete, History, Layout
from tests.support.stored_catalog import StoredCatalog
from tests.support.stores import DictStore, FaultyStore, StoreCall
from tests.unit.transfer.datasets.delta.test_delta_dataset import transfer

SOURCE, TARGET = "memory://dict", "memory://partner/t"
PUBLISHED, RATIFIED, ALL = 3, 6, 12
"""Versions below the first are published, those below the second accepted, the others to come."""
STEPS: tuple[Commit, ...] = (
    Append(2),
    Append(1),
    Append(1),
    Delete(1),
    *(Append(1) for _ in range(ALL - 4)),
)
PAST = History(Layout(in_commit_timestamps=True)).then(*STEPS)


@cache
def files_of(version: int) -> list[str]:
    """Return the files of a version, in order."""
    return sorted(DeltaLog(PAST.store()).snapshot(version).files["path"].to_pylist())


@dataclass
class Others:
    """A table in memory, its catalog, and what other clients do with it."""

    past: History = PAST
    store: DictStore = field(init=False)
    catalog: StoredCatalog = field(init=False)
    bodies: list[bytes] = field(init=False)
    """The commits of all versions, also of those that nobody has proposed yet."""

    def __post_init__(self) -> None:
        self.store = self.past.store(SOURCE)
        self.bodies = [self.store.get(paths.commit(version)) for version in range(ALL)]
        self.store.delete_many([paths.commit(version) for version in range(PUBLISHED, ALL)])
        self.catalog = StoredCatalog(self.store)
        self.catalog.create()
        # The catalog's first commit is the newest one that was published by then.
        self.ratify(PUBLISHED - 1)
        self.catalog.report_published(PUBLISHED - 1)
        for _ in range(PUBLISHED, RATIFIED):
            self.ratify()

    @property
    def latest(self) -> int:
        return self.catalog.kept().latest

    def ratify(self, version: int | None = None) -> None:
        """Commit the next version, and don't publish it."""
        version = self.latest + 1 if version is None else version
        if version == ALL:
            return
        data = self.bodies[version]
        name = f"{version:020d}.00000000-0000-4000-8000-{version:012d}.json"
        moment = json.loads(data.splitlines()[0])["commitInfo"]["inCommitTimestamp"]
        commit = RatifiedCommit(version, name, len(data), 5, moment)
        self.store.put(commit.staged_path, data)
        assert self.catalog.propose(Proposal(commit, CatalogChanges())) is Verdict.RATIFIED

    def publish_next(self) -> None:
        """Publish the oldest commit that isn't, and end before it is reported."""
        for version in range(self.latest + 1):
            if self.store.put_if_absent(paths.commit(version), self.bodies[version]):
                return

    def publish(self) -> None:
        """Publish and report everything."""
        ManagedStore(self.store, self.catalog).publish()

    def clean(self) -> None:
        """Delete the staged files of all commits that are reported as published."""
        kept = self.catalog.kept()
        gone = [one.staged_path for one in kept.commits if one.version <= kept.published]
        self.store.delete_many(gone)

    def act(self, what: str) -> None:
        """Do several things in turn."""
        for each in what.split():
            {
                "commit": self.ratify,
                "publish-next": self.publish_next,
                "publish": self.publish,
                "clean": self.clean,
            }[each]()


MEANWHILE = (
    "commit",
    "publish-next",
    "publish",
    "publish clean",
    "commit publish clean",
    "commit commit publish clean commit",
)


def every_call(
    read: Callable[[Others, Store], Sequence[int]], past: History = PAST, *, new: int = 0
) -> None:
    """Check the versions that a reader sees, with each thing that happens before each call.

    ``new`` is the first version that isn't known to the reader yet.
    """
    for what in MEANWHILE:
        index, is_reached = 0, True
        while is_reached:
            others = Others(past)
            before = others.latest
            is_reached = False

            def rule(call: StoreCall) -> None:
                nonlocal is_reached
                if call.index == index:  # noqa: B023
                    is_reached = True
                    others.act(what)  # noqa: B023

            seen = list(read(others, FaultyStore(others.store, rule)))
            assert before <= seen[-1] <= others.latest, (what, index)
            assert seen == list(range(new, seen[-1] + 1)), (what, index)
            index += 1


def managed(store: Store) -> ManagedStore:
    return ManagedStore(store, StoredCatalog(store))


# --- One look -----------------------------------------------------------------------------


@pytest.mark.parametrize("past", [PAST, PAST.then(Checkpoint())])
def test_a_snapshot_has_the_files_of_all_its_versions(past: History) -> None:
    def read(_: Others, store: Store) -> list[int]:
        snapshot = DeltaLog(managed(store)).snapshot()
        assert sorted(snapshot.files["path"].to_pylist()) == files_of(snapshot.version)
        return list(range(snapshot.version + 1))

    every_call(read)


def test_history_has_each_version_once() -> None:
    def read(_: Others, store: Store) -> list[int]:
        return [revision.version for revision in DeltaLog(managed(store)).history()][::-1]

    every_call(read)


def test_old_versions_and_times_stay_what_they_were() -> None:
    def read(others: Others, store: Store) -> list[int]:
        log = DeltaLog(managed(store))
        # One that is published, the oldest that isn't, and the newest.
        for version in (PUBLISHED - 1, PUBLISHED, RATIFIED - 1):
            assert sorted(log.snapshot(version).files["path"].to_pylist()) == files_of(version)
            moment = json.loads(others.bodies[version].splitlines()[0])["commitInfo"]
            assert log.version_at(moment["inCommitTimestamp"]) == version
        return list(range(log.listing().newest_version + 1))

    every_call(read)


def test_executors_read_what_was_listed() -> None:
    def read(others: Others, store: Store) -> list[int]:
        seen = managed(store)
        listing = load.list_log(seen)
        # The executor knows only what its configuration says.
        there = AliasStore(store, dict(seen.config.aliases or ()))
        files = [listing.commits[version] for version in sorted(listing.commits)]
        for file, data in load.contents(there, files):
            assert data == others.bodies[file.version]
        return [file.version for file in files]

    every_call(read)


# --- Those that follow a table ------------------------------------------------------------


def test_a_follower_gets_each_commit_once() -> None:
    """It lists what is new, reads it, and goes on after the newest version that it has read."""

    def read(others: Others, store: Store) -> list[int]:
        seen, found = managed(store), list[int]()
        while True:
            known = found[-1] + 1 if found else 0
            commits = load.list_log(seen, known).commits
            files = [commits[version] for version in sorted(commits) if version >= known]
            for file, data in load.contents(seen, files):
                assert data == others.bodies[file.version]
                found.append(file.version)
            if not files:
                return found
            # Between two looks, too.
            others.act("commit")

    every_call(read)


def test_a_follower_by_names_gets_each_commit_once() -> None:
    """It asks for the next version until there is none."""

    def read(others: Others, store: Store) -> list[int]:
        seen = managed(store)
        version = 0
        while seen.exists(paths.commit(version)):
            assert seen.get(paths.commit(version)) == others.bodies[version]
            version += 1
        return list(range(version))

    every_call(read)


@pytest.mark.parametrize("again", [False, True])
def test_a_push_sends_each_version_once(again: bool) -> None:
    def read(others: Others, store: Store) -> list[int]:
        target = DictStore(uri="memory://receiver")
        if again:
            transfer(managed(others.store), target)
            others.act("commit publish-next")
        transfer(managed(store), target)
        # What is new by now is sent next.
        others.act("commit")
        transfer(managed(others.store), target)
        dataset = DeltaDataset(target, "")
        name, sent = dataset.current(), list[int]()
        while name is not None:
            block = dataset.parse(dataset._present_block(name), name)
            assert block.commit == others.bodies[block.sequence_number]
            sent.append(block.sequence_number)
            name = block.prev_hash
        for version in sent:
            assert target.get(paths.commit(version)) == others.bodies[version]
        return sent[::-1]

    every_call(read)


@pytest.mark.parametrize("again", [False, True])
def test_an_export_has_each_version_once(again: bool) -> None:
    def read(others: Others, store: Store) -> list[int]:
        target = DictStore(uri=TARGET)
        if again:
            export(managed(others.store), others.store, target)
            others.act("commit publish-next")
        export(managed(store), store, target)
        # What is new by now is exported next.
        done = export(managed(others.store), others.store, target)
        fresh = DictStore(uri=TARGET)
        export(managed(others.store), others.store, fresh)
        log, wanted = (DeltaLog(place).snapshot() for place in (target, fresh))
        assert sorted(log.files["path"].to_pylist()) == sorted(wanted.files["path"].to_pylist())
        assert done == log.version == wanted.version
        return sorted(DeltaLog(target).listing().commits)

    every_call(read)


def export(seen: Store, below: Store, target: Store) -> int:
    """Export a table; return the version."""

    def opened(config: StoreConfig) -> Store:
        place = {SOURCE: below, TARGET: target}[config.uri]
        return place if config.aliases is None else AliasStore(place, dict(config.aliases))

    engine = LocalEngine(opened, parallel=1)
    work = ExportContext(
        lambda *_: engine, {SOURCE: seen, TARGET: target}.__getitem__, new_id=lambda: "run"
    )
    return Export(work, seen, to=TARGET).export().version
