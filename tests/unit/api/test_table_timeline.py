from __future__ import annotations

import functools
import json
import tracemalloc
from collections.abc import Iterator

import pytest

from lakeferry.api.table_timeline import (
    MOST_READ_BYTES,
    PAGE_COMMITS,
    TableTimeline,
    read_timeline,
)
from lakeferry.errors import TableNotFound
from lakeferry.log import paths
from lakeferry.storage import ObjectInfo
from lakeferry.table import DeltaLog
from tests.support.history import (
    Append,
    Checkpoint,
    Checksum,
    History,
    Kind,
    Layout,
    SetProperties,
    Upgrade,
)
from tests.support.stores import DictStore

COMMITS = 100_000
EVIL = "<script>alert(1)</script>"


class CountingStore(DictStore):
    """Counts the objects that it lists."""

    listed = 0

    def list(
        self, prefix: str, *, start_after: str | None = None, stop_before: str | None = None
    ) -> Iterator[ObjectInfo]:
        for each in super().list(prefix, start_after=start_after, stop_before=stop_before):
            self.listed += 1
            yield each


@functools.cache
def long_log() -> CountingStore:
    """Return a log of 100,000 commits with a checkpoint after every thousandth."""
    past = History().then(Append(1), Checkpoint())
    objects = past.objects(with_data=False)
    checkpoint = objects[paths.classic_checkpoint(1)]
    first = objects[paths.commit(0)]
    info = {"timestamp": 1, "operation": "WRITE", "engineInfo": "x" * 60}
    body = json.dumps({"commitInfo": info}).encode()
    names = {paths.commit(version): body for version in range(1, COMMITS)}
    names |= {
        paths.classic_checkpoint(version): checkpoint for version in range(999, COMMITS, 1000)
    }
    names[paths.commit(0)] = first
    names[paths.classic_checkpoint(COMMITS - 60)] = checkpoint
    hint = {"version": COMMITS - 60, "size": 3}
    names[paths.LAST_CHECKPOINT] = json.dumps(hint).encode()
    return CountingStore(dict(sorted(names.items())))


def timeline(past: History, before: int | None = None, count: int = PAGE_COMMITS) -> TableTimeline:
    return read_timeline(DeltaLog(past.store()), before, count)


def test_a_page_of_a_hundred_thousand_commits_costs_as_much_as_one_of_a_hundred() -> None:
    store = long_log()
    store.calls.reset()
    store.listed = 0
    found = read_timeline(DeltaLog(store))
    assert found.newest_version == COMMITS - 1
    assert [each.version for each in found.versions] == [*range(99_999, 99_949, -1)]
    assert found.newest is not None
    assert found.older == 99_950
    # One listing from before the newest checkpoint on, and the commits of the page.
    assert store.calls["LIST"] == 1
    assert store.listed < 5 * PAGE_COMMITS
    assert store.calls["GET"] + store.calls["RANGE"] <= PAGE_COMMITS + 15
    assert found.summary is None


def test_older_pages_are_read_when_they_are_asked_for() -> None:
    store = long_log()
    store.calls.reset()
    store.listed = 0
    found = read_timeline(DeltaLog(store), 50_050)
    assert [each.version for each in found.versions] == [*range(50_049, 49_999, -1)]
    assert found.versions[-1].era == 0
    assert found.newest is not None
    assert store.calls["GET"] + store.calls["RANGE"] <= 2 * PAGE_COMMITS + 80
    assert store.calls["LIST"] == 2
    assert store.listed < 9 * PAGE_COMMITS
    last = read_timeline(DeltaLog(store), 20)
    assert last.older is None
    assert last.versions[-1].version == 0
    far = read_timeline(DeltaLog(store), 50_900)
    assert {each.era for each in far.versions} == {None}


def test_a_log_without_its_first_commits_is_shown_to_its_oldest() -> None:
    store = DictStore(dict(long_log().objects))
    store.delete_many([paths.commit(version) for version in range(99_800)])
    first = read_timeline(DeltaLog(store))
    assert first.older == 99_950
    page, versions = first, [each.version for each in first.versions]
    while page.older is not None:
        page = read_timeline(DeltaLog(store), page.older)
        versions += [each.version for each in page.versions]
    assert versions == [*range(99_999, 99_799, -1)]


@pytest.mark.parametrize("hint", [b"{", b'{"version": 7}', b'{"version": 999999}', None])
def test_a_wrong_hint_hides_no_version(hint: bytes | None) -> None:
    """Not even one that names a version far from the end, or a checkpoint that isn't there."""
    objects = dict(long_log().objects)
    objects.pop(paths.LAST_CHECKPOINT)
    if hint is not None:
        objects[paths.LAST_CHECKPOINT] = hint
    found = read_timeline(DeltaLog(DictStore(objects)))
    assert [each.version for each in found.versions] == [*range(99_999, 99_949, -1)]
    assert found.summary is not None
    assert found.summary.commits == COMMITS


def test_loading_it_again_and_again_keeps_nothing() -> None:
    past = History().then(*[Append(1)] * 30, Checkpoint(), Append(1))
    store = past.store()
    read_timeline(DeltaLog(store))
    tracemalloc.start()
    try:
        for _ in range(20):
            read_timeline(DeltaLog(store))
        store.calls.reset()
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(1_000):
            read_timeline(DeltaLog(store), count=3)
            store.calls.reset()
        assert tracemalloc.get_traced_memory()[0] - before < 256 * 1024
    finally:
        tracemalloc.stop()


def test_changes_of_the_protocol_begin_eras_and_properties_are_told() -> None:
    unprotected = History().then(
        Append(1),
        Upgrade(reader=("deletionVectors",), writer=("deletionVectors",)),
        Append(1),
        SetProperties((("delta.requireCheckpointProtectionBeforeVersion", "2"), ("a", EVIL))),
        Checkpoint(),
    )
    assert timeline(unprotected).boundary is None, "the protocol lacks the feature"
    found = timeline(unprotected.then(Upgrade(writer=("checkpointProtection",))))
    by_version = {each.version: each for each in found.versions}
    assert any("deletionVectors added" in each for each in by_version[2].changes)
    assert f"a = {EVIL}" in by_version[4].changes
    assert found.boundary == 2
    assert [each.version for each in found.versions if each.is_protected] == [1, 0]
    assert by_version[4].checkpoint == "classic"
    assert by_version[1].era == 0
    assert by_version[2].era == by_version[4].era == 1
    assert by_version[0].changes == ()
    assert found.eras[0].protocol.features <= found.eras[1].protocol.features


@pytest.mark.parametrize("step", [Checkpoint(), Checkpoint(Kind.V2_JSON), Checksum()])
def test_the_protocol_before_a_page_is_found_without_reading_all(step: Checkpoint) -> None:
    past = History(Layout(v2_checkpoints=True)).then(*[Append(1)] * 10, step, *[Append(1)] * 10)
    found = timeline(past, count=5)
    assert len(found.versions) == 5
    assert all(each.era == 0 for each in found.versions)
    assert found.newest is not None
    assert found.newest.version == found.versions[0].version


def test_where_it_would_cost_too_much_the_protocol_is_left_out() -> None:
    past = History().then(*[Append(1)] * 200)
    store = past.store()
    found = read_timeline(DeltaLog(store))
    assert found.newest is None
    assert all(each.era is None for each in found.versions)
    assert store.calls["GET"] <= PAGE_COMMITS + 5


def test_a_commit_that_is_too_large_or_broken_is_told() -> None:
    store = History().then(Append(1), Append(1), Append(1)).store()
    store.put(paths.commit(1), b" " * (MOST_READ_BYTES + 1))
    store.put(paths.commit(2), b"{")
    found = read_timeline(DeltaLog(store))
    problems = {each.version: each.problem for each in found.versions}
    assert problems[1] == "too large to be read here"
    assert "can't be read" in (problems[2] or "")
    assert problems[3] is None


def test_a_commit_that_is_deleted_meanwhile_is_told() -> None:
    store = History().then(Append(1), Append(1)).store()

    class Losing(DictStore):
        def get(self, path: str) -> bytes:
            if path == paths.commit(1):
                self.delete_many([path])
            return super().get(path)

    losing = Losing(store.objects)
    found = read_timeline(DeltaLog(losing))
    assert {each.version: each.problem for each in found.versions}[1] == "deleted meanwhile"


def test_a_place_without_a_table_is_refused() -> None:
    with pytest.raises(TableNotFound):
        read_timeline(DeltaLog(DictStore()))
