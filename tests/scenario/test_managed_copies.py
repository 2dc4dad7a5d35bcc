"""What leaves a managed table by push and export is a table that needs no catalog.

It runs on our Unity server, and on the real one at ``LAKEFERRY_UC_URL``, which has to see the same
local disk.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

import lakeferry
from lakeferry.api.redirects import Redirects
from lakeferry.catalogs.unity import UnityCatalog
from lakeferry.engine import LogCopy, LogExportPlan
from lakeferry.engines.copy_progress import CopyProgress
from lakeferry.engines.spark.tasks.copy_tasks import export_log_batches
from lakeferry.errors import CatalogManaged, InvalidInput
from lakeferry.export.surveys import of_store
from lakeferry.log import paths
from lakeferry.log.rewrite import Listed
from lakeferry.storage import StoreConfig, normalise, open_store
from tests.support.history import Append, Checkpoint, DeleteRows, History, Layout
from tests.support.managed_history import TRACES
from tests.support.moved_table import Moved, moved_table
from tests.support.unity_server import UnityServer

PAST = History(Layout(deletion_vectors="u")).then(
    Append(2), DeleteRows(1), Append(1), Checkpoint(), Append(1)
)


@pytest.fixture
def moved(unity: UnityServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Moved:
    """A table that was moved into the catalog, with one commit that isn't published."""
    unity.name_in(monkeypatch)
    return moved_table(unity, tmp_path / "orders", PAST)


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
    if not lakeferry.Table(moved.name).uri.startswith("file:"):
        pytest.skip("an export names files that are read with keys of one's own")
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


def test_an_executor_exports_what_is_not_published(moved: Moved, tmp_path: Path) -> None:
    store, whole = moved.store(), normalise(str(tmp_path / "whole"))
    version = store.refresh().latest_version
    assert store.refresh().commit(version) is not None
    lakeferry.Table(moved.name).export(whole)
    target = StoreConfig(normalise(str(tmp_path / "task")))
    files = tuple(LogCopy(name, name) for name in map(paths.commit, (version - 2, version)))
    listed = Listed.below(store.uri, of_store(store).names)
    plan = LogExportPlan(store.config, target, files, listed, managed=True)
    sent = pickle.loads(pickle.dumps(plan))
    export_log_batches(sent, range(len(files)), CopyProgress(lambda *_: None))
    # The first one made the table a managed one.
    assert any(trace in store.get(files[0].path) for trace in TRACES)
    assert traces(target.uri) == []
    name = files[1].path.rpartition("/")[2]
    assert log_of(target.uri)[name] == log_of(whole)[name]


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


def test_a_table_that_was_pushed_before_its_move_goes_on(
    unity: UnityServer, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unity.name_in(monkeypatch)
    place, token = url.split()
    source = normalise(str(tmp_path / "orders"))
    PAST.write(open_store(source), with_data=True)
    before = lakeferry.Table(source).push(place, token=token)
    with Redirects() as redirects:
        redirects.enable(source, f"unity:{unity.schema}.orders", managed=True)
    after = lakeferry.Table(source).push(place, token=token)
    # The two versions of the move, without their data.
    assert (before.blocks, after.blocks, after.objects) == (5, 2, 0)
