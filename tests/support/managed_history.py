"""A history as the log of a managed table, in memory: its newest commits aren't published."""

from __future__ import annotations

import json
from dataclasses import dataclass

from lakeferry.log import paths
from lakeferry.log.features import TABLE_ID_PROPERTY
from lakeferry.table.managed import ManagedStore, RatifiedCommit
from tests.support.history import (
    Append,
    Commit,
    History,
    KeepTime,
    Layout,
    SetProperties,
    Upgrade,
)
from tests.support.stored_catalog import STATE, Kept, StoredCatalog
from tests.support.stores import DictStore

TABLE_ID = "7c0e"
TRACES = (b"catalogManaged", TABLE_ID_PROPERTY.encode())
"""What no file of a copy may have in it."""
BECOMES_MANAGED: tuple[Commit, ...] = (
    KeepTime(),
    Upgrade(reader=("catalogManaged", "vacuumProtocolCheck")),
    SetProperties(((TABLE_ID_PROPERTY, TABLE_ID), ("owner", "ann"))),
)
MANAGED_LAYOUT = Layout(deletion_vectors="u", v2_checkpoints=True, in_commit_timestamps=True)
MANAGED_PAST = History(MANAGED_LAYOUT).then(Append(2), *BECOMES_MANAGED, Append(1))
"""A table with vectors, V2 checkpoints and times, which becomes managed."""


@dataclass(frozen=True)
class ManagedHistory:
    """A managed table in memory, and its catalog."""

    objects: DictStore
    catalog: StoredCatalog

    def store(self) -> ManagedStore:
        """Return the table as a client that asks the catalog sees it."""
        return ManagedStore(self.objects, self.catalog)

    def publish(self) -> None:
        """Publish all commits."""
        self.store().publish()


def managed_history(
    history: History, uri: str = "memory://dict", *, unpublished: int = 1
) -> ManagedHistory:
    """Return a table of a history that ends with commits; the last ones are ratified only."""
    objects = history.store(uri)
    newest = max(
        file.version
        for name in objects.objects
        if (file := paths.parse(name)) and file.kind is paths.LogFileKind.COMMIT
    )
    commits = []
    for version in range(newest - max(unpublished, 1) + 1, newest + 1):
        path = paths.commit(version)
        data, modified_ms = objects.get(path), objects.head(path).modified_ms
        moment = json.loads(data.splitlines()[0])["commitInfo"]["inCommitTimestamp"]
        name = f"{version:020d}.00000000-0000-4000-8000-{version:012d}.json"
        commit = RatifiedCommit(version, name, len(data), modified_ms, moment)
        commits.append(commit)
        if version > newest - unpublished:
            objects.put(commit.staged_path, data)
            objects.delete_many([path])
    kept = Kept(TABLE_ID, commits=tuple(commits), published=newest - unpublished)
    catalog = StoredCatalog(objects, TABLE_ID)
    catalog.create()
    assert catalog._swap(objects.get(STATE), kept)
    return ManagedHistory(objects, catalog)
