"""A commit is reported as published only when its file is durably there.

The catalog forgets where a reported commit was staged, and a cleaner may delete the staged file
then. So publishing is broken off here between any two of its calls, and the answer of each call is
lost: whatever happens, what is reported is there, and whoever comes next does the rest.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from lakeferry.errors import LakeferryError, StorageUnavailable
from lakeferry.log import paths
from lakeferry.storage import Store, open_store
from lakeferry.table.managed import ManagedStore
from tests.support.stored_catalog import STATE, StoredCatalog, managed
from tests.support.stores import DictStore, Fault, FaultyStore, Stopped, StoreCall
from tests.unit.table.managed.test_managed_store import body, ratified, table

FAULTS = (Fault.FAIL, Fault.LOSE_ANSWER, Fault.STOP_BEFORE, Fault.STOP_AFTER)
NEWEST = 5


def behind(newest: int = NEWEST) -> DictStore:
    """Return a table of which the versions from 3 on are accepted and not published."""
    store, catalog = table()
    for version in range(3, newest + 1):
        ratified(store, catalog, version)
    return store


def check_reported(store: DictStore) -> None:
    """Check that everything is there that the catalog takes for published."""
    for version in range(3, StoredCatalog(store).kept().published + 1):
        assert store.objects.get(paths.commit(version)) == body(version), version


def clean(store: DictStore) -> None:
    """Delete the staged files of all commits that are reported as published."""
    kept = StoredCatalog(store).kept()
    gone = [one.staged_path for one in kept.commits if one.version <= kept.published]
    store.delete_many(gone)


def publishing(store: Store) -> None:
    managed(store).publish()


def committing(store: Store) -> None:
    managed(store).put_if_absent(paths.commit(NEWEST + 1), body(NEWEST + 1))


def writing_a_checkpoint(store: Store) -> None:
    managed(store).put(f"_delta_log/{NEWEST:020d}.checkpoint.parquet", b"a checkpoint")


@pytest.mark.parametrize("act", [publishing, committing, writing_a_checkpoint])
@pytest.mark.parametrize("fault", FAULTS)
def test_whatever_call_fails_only_what_is_there_is_reported(
    act: Callable[[Store], None], fault: Fault
) -> None:
    index, is_reached = 0, True
    while is_reached:
        store = behind()
        is_reached = False

        def rule(call: StoreCall) -> Fault | None:
            nonlocal is_reached
            # What the calls before this one have left, also if their answers were lost.
            check_reported(store)  # noqa: B023
            if call.index != index:  # noqa: B023
                return None
            is_reached = True
            return fault

        with suppress(LakeferryError, Stopped):
            act(FaultyStore(store, rule))
        check_reported(store)
        clean(store)

        # Another process does the rest, and cleaning up destroys nothing.
        act(store)
        publishing(store)
        clean(store)
        kept = StoredCatalog(store).kept()
        assert kept.published == kept.latest
        assert kept.latest == NEWEST + (act is committing)
        check_reported(store)
        index += 1
    # The catalog was asked, three commits were copied, and one report was made.
    assert index > 8


def test_two_who_publish_at_once_lose_nothing() -> None:
    index, is_reached = 0, True
    while is_reached:
        store = behind()
        is_reached = False

        def rule(call: StoreCall) -> None:
            nonlocal is_reached
            check_reported(store)  # noqa: B023
            if call.index == index:  # noqa: B023
                is_reached = True
                committing(store)  # noqa: B023
                clean(store)  # noqa: B023

        publishing(FaultyStore(store, rule))
        check_reported(store)
        kept = StoredCatalog(store).kept()
        assert kept.published == kept.latest == NEWEST + is_reached
        index += 1


def test_a_report_that_is_repeated_late_forgets_nothing() -> None:
    """Its answer was lost, and it arrives again when there are newer commits."""
    store = behind()
    publishing(store)
    catalog = StoredCatalog(store)
    ratified(store, catalog, NEWEST + 1)
    catalog.report_published(NEWEST)
    assert [one.version for one in catalog.head().unpublished] == [NEWEST + 1]


# --- On a disk ----------------------------------------------------------------------------


def is_folder(fd: int) -> bool:
    return stat.S_ISDIR(os.fstat(fd).st_mode)


def on_disk(folder: Path, newest: int = NEWEST) -> tuple[Store, DictStore]:
    """Return a table on local disk with commits to publish, and the store of its catalog."""
    memory = behind(newest)
    store = open_store(str(folder))
    for name, data in memory.objects.items():
        if name != STATE:
            store.put(name, data)
    return store, memory


class Noting(StoredCatalog):
    """A catalog that notes when it hears that something is published."""

    def __init__(self, store: Store, events: list[str]) -> None:
        super().__init__(store)
        self._events = events

    def report_published(self, version: int) -> None:
        self._events.append(f"report {version}")
        super().report_published(version)


def noting(events: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Note each file and each folder that is forced to the disk."""
    real = os.fsync

    def noted(fd: int) -> None:
        real(fd)
        events.append("folder" if is_folder(fd) else "file")

    monkeypatch.setattr(os, "fsync", noted)


def test_what_is_published_is_on_the_disk_before_it_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, memory = on_disk(tmp_path / "t")
    events: list[str] = []
    noting(events, monkeypatch)
    ManagedStore(store, Noting(memory, events)).publish()
    assert events == [*["file", "folder"] * 3, f"report {NEWEST}"]


@pytest.mark.parametrize("cleaned", [False, True])
def test_what_others_have_published_is_on_the_disk_before_it_is_reported(
    tmp_path: Path, cleaned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client may end after it has written a file, and others don't force files to the disk."""
    store, memory = on_disk(tmp_path / "t")
    for version in range(3, NEWEST + 1):
        (tmp_path / "t" / paths.commit(version)).write_bytes(body(version))
    if cleaned:
        store.delete_many([one.staged_path for one in StoredCatalog(memory).head().unpublished])
    events: list[str] = []
    noting(events, monkeypatch)
    ManagedStore(store, Noting(memory, events)).publish()
    assert events == [*["file", "folder"] * 3, f"report {NEWEST}"]


def test_a_file_that_may_not_survive_a_crash_is_not_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, memory = on_disk(tmp_path / "t", 3)
    real, is_broken = os.fsync, True

    def broken(fd: int) -> None:
        if is_broken and is_folder(fd):
            raise OSError(errno.EIO, "broken")
        real(fd)

    monkeypatch.setattr(os, "fsync", broken)
    for _ in range(2):
        # The second time the file has its name.
        with pytest.raises(StorageUnavailable):
            ManagedStore(store, StoredCatalog(memory)).publish()
        assert store.exists(paths.commit(3))
        assert StoredCatalog(memory).kept().published == 2
    is_broken = False
    ManagedStore(store, StoredCatalog(memory)).publish()
    assert StoredCatalog(memory).kept().published == 3
