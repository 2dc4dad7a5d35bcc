"""What leaves a managed table by push and export is a table that needs no catalog.

It runs on our Unity server, and on the real one at ``LAKEFERRY_UC_URL``, which has to see the same
local disk.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

import lakeferry
from lakeferry.api.redirects import Redirects
from lakeferry.catalogs.unity import UnityCatalog
from lakeferry.errors import CatalogManaged, InvalidInput
from lakeferry.log import paths
from lakeferry.log.catalog_changes import CatalogChanges
from lakeferry.storage import normalise, open_store
from lakeferry.table import DeltaLog
from lakeferry.table.managed import ManagedStore, Proposal, RatifiedCommit, Verdict
from tests.support.history import Append, Checkpoint, DeleteRows, History, Layout
from tests.support.managed_history import TRACES
from tests.support.unity_server import UnityServer

PAST = History(Layout(deletion_vectors="u")).then(
    Append(2), DeleteRows(1), Append(1), Checkpoint(), Append(1)
)


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


@pytest.fixture
def moved(unity: UnityServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Moved:
    """A table that was moved into the catalog, with one commit that isn't published."""
    monkeypatch.delenv("UC_TOKEN", raising=False)
    for variable, value in unity.environment().items():
        monkeypatch.setenv(variable, value)
    source = normalise(str(tmp_path / "orders"))
    PAST.write(open_store(source), with_data=True)
    found = Moved(source, f"unity:{unity.schema}.orders")
    with Redirects() as redirects:
        redirects.enable(source, found.name, managed=True)
    found.ratify()
    return found


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    """The URL of a server's dataset that a push creates, and its token, as one text."""
    with lakeferry.Server(str(tmp_path / "root")) as server:
        token = lakeferry.create_token(str(tmp_path / "root"), scope="write", expires="1h")
        yield f"{server.url}/acme/orders {token}"


def readable(table: str) -> dict[int, list[dict[str, Any]]]:
    """Return the rows of every version."""
    newest = lakeferry.Table(table).snapshot().version
    return {
        version: sorted(lakeferry.open(table, version=version).to_table().to_pylist(), key=repr)
        for version in range(newest + 1)
    }


def traces(folder: str) -> list[str]:
    """Return the files of a log that name the catalog's feature or the catalog's id."""
    log = Path(unquote(urlsplit(folder).path)) / paths.LOG_DIR
    files = [file for file in log.rglob("*") if file.is_file()]
    assert files
    return [str(file) for file in files if any(each in file.read_bytes() for each in TRACES)]


@pytest.mark.parametrize("by_name", [True, False], ids=["by its name", "by its old path"])
def test_what_is_pushed_and_pulled_has_the_same_rows_at_each_version(
    moved: Moved, url: str, tmp_path: Path, by_name: bool
) -> None:
    place, token = url.split()
    table = lakeferry.Table(moved.name if by_name else moved.source)
    plan = table.push(place, token=token, dry_run=True)
    first = table.push(place, token=token)
    copy = normalise(str(tmp_path / "copy"))
    lakeferry.Table(copy).pull(place, token=token)

    assert plan
    assert first.changed
    expected = readable(moved.name)
    assert len(expected) > len(PAST.steps)
    assert readable(copy) == expected
    assert traces(copy) == []
    protocol = lakeferry.Table(copy).snapshot().protocol
    assert (protocol.min_reader_version, protocol.min_writer_version) == (3, 7)
    assert "inCommitTimestamp" in (protocol.writer_features or ())
    # Publishing changes nothing of what is sent.
    lakeferry.Table(moved.name).publish()
    assert not table.push(place, token=token).changed


def test_a_push_goes_on_where_the_last_one_ended(moved: Moved, url: str, tmp_path: Path) -> None:
    place, token = url.split()
    copy = normalise(str(tmp_path / "copy"))
    lakeferry.Table(moved.name).push(place, token=token)
    lakeferry.Table(copy).pull(place, token=token)
    lakeferry.Table(moved.name).publish()
    moved.ratify()

    again = lakeferry.Table(moved.source).push(place, token=token)
    assert (again.blocks, again.objects) == (1, 1)
    assert lakeferry.Table(copy).pull(place, token=token).head == again.head
    assert readable(copy) == readable(moved.name)


def test_an_export_needs_no_catalog_and_goes_on(moved: Moved, tmp_path: Path) -> None:
    to, fresh = (normalise(str(tmp_path / each)) for each in ("export", "fresh"))
    first = lakeferry.Table(moved.name).export(to)
    assert traces(to) == []
    newest = max(readable(moved.name).items())
    assert (first.version, rows_of(to)) == newest

    lakeferry.Table(moved.name).publish()
    assert not lakeferry.Table(moved.source).export(to).changed
    version = moved.ratify()
    again = lakeferry.Table(moved.source).export(to)
    assert (again.version, again.incremental_from) == (version, first.version)
    assert again.files_written == 1
    assert rows_of(to) == readable(moved.name)[version]
    lakeferry.Table(moved.name).export(fresh)
    assert log_of(to) == log_of(fresh)


def test_nothing_is_pulled_into_a_managed_table(moved: Moved, url: str) -> None:
    place, token = url.split()
    lakeferry.Table(moved.name).push(place, token=token)
    version = lakeferry.Table(moved.name).snapshot().version
    for table in (moved.name, moved.source):
        with pytest.raises(CatalogManaged) as refused:
            lakeferry.Table(table).pull(place, token=token)
        assert refused.value.fields["name"] == moved.name.removeprefix("unity:")
    assert lakeferry.Table(moved.name).snapshot().version == version


def test_a_place_inside_of_the_managed_table_is_refused(moved: Moved) -> None:
    inside = f"{lakeferry.Table(moved.name).uri}/export"
    with pytest.raises(InvalidInput, match="itself"):
        lakeferry.Table(moved.name).export(inside)


def test_what_is_pushed_under_another_name_is_the_same(
    moved: Moved, url: str, unity: UnityServer
) -> None:
    place, token = url.split()
    first = lakeferry.Table(moved.name).push(place, token=token)
    unity.rename(moved.name.removeprefix("unity:"), "renamed")
    assert UnityCatalog(unity.url, unity.token).find(f"{unity.schema}.orders") is None
    again = lakeferry.Table(moved.source).push(place, token=token)
    assert (again.head, again.changed) == (first.head, False)


def rows_of(table: str) -> list[dict[str, Any]]:
    return sorted(lakeferry.open(table).to_table().to_pylist(), key=repr)


def log_of(folder: str) -> dict[str, bytes]:
    """Return the files of an export's log."""
    log = Path(unquote(urlsplit(folder).path)) / paths.LOG_DIR
    return {file.name: file.read_bytes() for file in log.glob("0*")}
