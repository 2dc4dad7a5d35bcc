"""A table that was moved into Unity Catalog, and has a commit that isn't published."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

import lakeferry
from lakeferry.api.redirects import Redirects
from lakeferry.log.catalog_changes import CatalogChanges
from lakeferry.storage import normalise, open_store
from lakeferry.table import DeltaLog
from lakeferry.table.managed import ManagedStore, Proposal, RatifiedCommit, Verdict
from tests.support.history import (
    Append,
    Checkpoint,
    Clean,
    Delete,
    DeleteRows,
    History,
    Layout,
    SetProperties,
)
from tests.support.unity_server import UnityServer

# The history is of a time that delta-spark reads only if it is told to keep it.
KEEP = (
    ("delta.deletedFileRetentionDuration", "interval 10000 days"),
    ("delta.logRetentionDuration", "interval 10000 days"),
)
LAYOUT = Layout(partitioned=True, deletion_vectors="u", column_mapping="name", properties=KEEP)
LONG = History(LAYOUT).then(
    Append(2),
    DeleteRows(2),
    Append(1),
    Delete(1),
    Append(1),
    Checkpoint(),
    DeleteRows(1),
    SetProperties((("owner", "ann"),)),
    Append(2),
    Append(1),
    DeleteRows(1),
    Append(1),
)
"""Twelve versions, all of which can be read."""
LONG_CUT = LONG.then(Clean())
"""The same twelve versions without the log before the checkpoint: the newest seven can be read."""
CUT = History(LAYOUT).then(Append(2), DeleteRows(1), Append(1), Checkpoint(), Append(1), Clean())
"""Only its newest two versions can be read."""


@dataclass(frozen=True)
class Moved:
    """A table that became managed: its old path, and its name."""

    source: str
    name: str

    def store(self) -> ManagedStore:
        """Return the store of the table, as a new client sees it."""
        store = lakeferry.Table(self.name)._store
        assert isinstance(store, ManagedStore)
        return store

    def ratify(self) -> int:
        """Commit as a client that ends before it publishes; return the version."""
        store = self.store()
        snapshot = DeltaLog(store).snapshot()
        row = min(snapshot.files.to_pylist(), key=lambda each: each["path"])
        version, moment = snapshot.version + 1, time.time_ns() // 1_000_000
        copy = f"copy-{version}.parquet"
        store.put(copy, store.get(unquote(row["path"])))
        add = {"path": copy, "partitionValues": {}, "size": row["size"], "dataChange": True}
        info = {"inCommitTimestamp": moment, "timestamp": moment, "txnId": str(version)}
        lines = [
            {"commitInfo": {**info, "operation": "WRITE"}},
            {"add": {**add, "modificationTime": moment}},
        ]
        data = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
        name = f"{version:020d}.00000000-0000-4000-8000-{version:012d}.json"
        commit = RatifiedCommit(version, name, len(data), moment, moment)
        store.below.put(commit.staged_path, data)
        assert store.catalog.propose(Proposal(commit, CatalogChanges())) is Verdict.RATIFIED
        return version


def moved_table(
    unity: UnityServer, folder: Path, past: History, mode: str = "reader-writer"
) -> Moved:
    """Move a table into the catalog; the environment has to name the server."""
    source = normalise(str(folder))
    past.write(open_store(source), with_data=True)
    found = Moved(source, f"unity:{unity.schema}.{folder.name}")
    with Redirects() as redirects:
        redirects.enable(source, found.name, mode=mode, managed=True)
    found.ratify()
    return found
