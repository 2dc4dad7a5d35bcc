"""Exports of any history, commit after commit: right, repeatable, and the same however made."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lakeferry
from lakeferry.errors import MissingFile
from lakeferry.export import reuse
from lakeferry.export.exporter import Exported
from lakeferry.log import references
from lakeferry.log.file_identity import canonical_path
from lakeferry.log.replay import Snapshot
from lakeferry.storage import open_store
from lakeferry.table import DeltaLog
from tests.support.history import History, histories
from tests.support.lakefs_server import OurLakeFS
from tests.support.stores import DictStore

ROOT = "s3://repo/main/t"
"""What a writer through lakeFS's S3 gateway takes for the table's place."""


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with TemporaryDirectory() as made:
        yield Path(made)


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[OurLakeFS]:
    data = folder / "repo" / "data" / "blocks"
    data.mkdir(parents=True)
    with OurLakeFS(data) as running:
        yield running


def states(history: History, cuts: list[int]) -> Iterator[History]:
    """Yield the history as it was after so many of its steps."""
    for cut in sorted({*cuts, len(history.steps)}):
        yield History(history.layout, history.steps[: max(1, cut)], history.dialect)


def named(snapshot: Snapshot) -> list[str]:
    """Return the paths of all live files and their vectors, as the log has them."""
    found: list[str] = []
    for batch in snapshot.files.to_batches():
        found += references.of_adds(type(snapshot.files).from_batches([batch]))["path"].to_pylist()
    return sorted(set(found))


def name_of(path: str) -> str:
    whole = canonical_path(path, ROOT)
    return whole.removeprefix(f"{ROOT}/")


def without_dead(objects: Mapping[str, bytes], live: set[str]) -> dict[str, bytes]:
    """Return a table after VACUUM."""
    return {
        name: data
        for name, data in objects.items()
        if name.startswith("_delta_log/") or name in live
    }


def log_of(location: str) -> dict[str, bytes]:
    store = open_store(location)
    names = [entry.path for entry in store.list("_delta_log/")]
    return {name: store.get(name) for name in names if "/_lakeferry/" not in name}


@settings(max_examples=40)
@given(
    history=histories(max_steps=12),
    cuts=st.lists(st.integers(1, 13), max_size=4),
    vacuums=st.lists(st.booleans(), min_size=5, max_size=5),
    page_size=st.sampled_from([8, 1000]),
)
def test_every_commit_is_exported_right_and_the_same_with_and_without_an_earlier_export(
    server: OurLakeFS,
    folder: Path,
    history: History,
    cuts: list[int],
    vacuums: list[bool],
    page_size: int,
) -> None:
    server.commits.clear()
    server.page_size = page_size
    shutil.rmtree(folder / "repo" / "_lakefs", ignore_errors=True)
    shutil.rmtree(folder / "elsewhere", ignore_errors=True)
    for number, (state, vacuumed) in enumerate(zip(states(history, cuts), vacuums, strict=False)):
        objects = state.objects(ROOT)
        source = DeltaLog(DictStore(objects, uri=ROOT))
        if vacuumed:
            objects = without_dead(objects, set(map(name_of, named(source.snapshot()))))
        commit = server.commit(f"c{number}", {f"t/{n}": data for n, data in objects.items()})
        table = lakeferry.Table(f"lakefs://repo/{commit}/t", server.options)
        with mock.patch.object(reuse, "LAKEFS_PAGE", page_size):
            there = done(table.export(ref="main"))
        again = done(table.export(ref="main"))
        assert (there.changed, again.changed, again.location) == (True, False, there.location)
        alone = done(table.export(to=str(folder / "elsewhere" / commit)))
        assert log_of(there.location) == log_of(alone.location)
        # Taken over from the export before, where nothing of it has become wrong.
        assert alone.incremental_from is None
        check(server, commit, source, DeltaLog(open_store(there.location)))


def done(result: Any) -> Exported:
    assert isinstance(result, Exported)
    return result


def check(server: OurLakeFS, commit: str, source: DeltaLog, exported: DeltaLog) -> None:
    newest = source.snapshot().version
    first = exported.listing().earliest_version()
    assert first is not None
    for version in range(first, newest + 1):
        wanted, found = source.snapshot(version), exported.snapshot(version)
        assert found.num_files == wanted.num_files
        assert (found.protocol, found.metadata) == (wanted.protocol, wanted.metadata)
        addresses = set()
        for path in named(wanted):
            file = server.commits[commit].get(f"t/{name_of(path)}")
            gone = f"file:{server.folder.parent.parent}/_lakefs/gone/t/"
            addresses.add(f"file:{file}" if file else gone)
            assert file or version < newest
        there = {path if "/_lakefs/gone/" not in path else gone for path in named(found)}
        assert there == addresses


@given(history=histories(max_steps=8), number=st.integers(0, 20), deletes_bytes=st.booleans())
@settings(max_examples=20)
def test_a_live_file_that_is_gone_stops_the_export(
    server: OurLakeFS, folder: Path, history: History, number: int, deletes_bytes: bool
) -> None:
    server.commits.clear()
    server.page_size = 1000
    shutil.rmtree(folder / "repo" / "_lakefs", ignore_errors=True)
    objects = history.objects(ROOT)
    live = list(map(name_of, named(DeltaLog(DictStore(objects, uri=ROOT)).snapshot())))
    if not live:
        return
    lost = live[number % len(live)]
    first = server.commit("c0", {f"t/{name}": data for name, data in objects.items()})
    before = done(lakeferry.Table(f"lakefs://repo/{first}/t", server.options).export(ref="main"))
    kept = {name: data for name, data in objects.items() if name != lost or deletes_bytes}
    second = server.commit("c1", {f"t/{name}": data for name, data in {**kept, "_x": b""}.items()})
    if deletes_bytes:
        server.commits[second][f"t/{lost}"] = server.folder / "nowhere"
    table = lakeferry.Table(f"lakefs://repo/{second}/t", server.options)
    with pytest.raises(MissingFile) as refused:
        table.export(ref="main")
    assert [name_of(str(refused.value.fields["path"]))] == [lost]
    assert DeltaLog(open_store(before.location)).snapshot().num_files == len(
        DeltaLog(DictStore(objects, uri=ROOT)).snapshot().files
    )
    place = open_store(before.location.replace("/c0/", "/c1/"))
    with pytest.raises(lakeferry.LakeferryError):
        DeltaLog(place).snapshot()
