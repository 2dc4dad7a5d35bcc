"""Old exports of a table and a ref go, and nothing else does."""

from __future__ import annotations

import pytest

from lakeferry.errors import InvalidInput
from lakeferry.export import manifest, pruning
from lakeferry.export.manifest import Manifest
from lakeferry.export.origins import ExportTarget
from tests.support.clock import DEFAULT_START_MS, ManualClock
from tests.support.stores import DictStore, Fault, FaultyStore, Stopped, at

SOURCE = "lakefs://repo/t"
SHELF = "memory://shelf"
NOW = DEFAULT_START_MS + 60_000
FIRST = "_delta_log/00000000000000000000.json"


def shelf(*folders: str, source: str = SOURCE) -> DictStore:
    clock = ManualClock()
    store = DictStore(uri=SHELF, clock=clock)
    for folder in folders:
        clock.advance(1000)
        store.put(f"{folder}{FIRST}", b"{}")
        manifest.write_manifest(store, Manifest(source, folder, 0, complete=True), folder)
    return store


def target(store: DictStore | FaultyStore, folder: str) -> ExportTarget:
    return ExportTarget(DictStore(uri=f"{SHELF}/{folder}"), store, folder)


FOLDERS = ("main/c1/t/", "main/c2/t/", "main/c3/t/", "main/c4/t/")


def test_the_newest_stay_and_this_one_counts_as_the_newest() -> None:
    store = shelf(*FOLDERS)
    here = target(store, "main/c2/t/")
    foreseen = pruning.old(here, SOURCE, 2, NOW)
    assert foreseen == [f"{SHELF}/main/c1/t", f"{SHELF}/main/c3/t"]
    assert pruning.prune(here, SOURCE, 2, NOW) == foreseen
    left = {name.partition("_delta_log")[0] for name in store.objects}
    assert left == {"main/c2/t/", "main/c4/t/"}


def test_other_refs_tables_sources_and_exporters_keep_theirs() -> None:
    store = shelf(*FOLDERS, "dev/c1/t/", "main/c1/u/", "main/c0/x/t/")
    store.put(f"main/c9/t/{FIRST}", b"by somebody else")
    other = Manifest("lakefs://repo/moved", "c8", 0, complete=True)
    manifest.write_manifest(store, other, "main/c8/t/")
    pruning.prune(target(store, "main/c4/t/"), SOURCE, 1, NOW)
    left = {name.partition("_delta_log")[0] for name in store.objects}
    assert left == {
        *("main/c4/t/", "dev/c1/t/", "main/c1/u/", "main/c0/x/t/", "main/c9/t/", "main/c8/t/")
    }


@pytest.mark.parametrize("fault", [Fault.STOP_BEFORE, Fault.STOP_AFTER])
def test_broken_off_anywhere_it_is_not_taken_for_complete_and_goes_on(fault: Fault) -> None:
    step = 0
    while True:
        store = shelf(*FOLDERS[:2])
        faulty = FaultyStore(store, at(step, fault))
        try:
            pruning.prune(target(faulty, "main/c2/t/"), SOURCE, 1, NOW)
        except Stopped:
            step += 1
        else:
            break
        found = manifest.read_manifest(store, "main/c1/t/")
        is_whole = f"main/c1/t/{FIRST}" in store.objects
        assert found is None or is_whole or not found.complete
        later = NOW + 2 * pruning.ABANDONED_MS
        pruning.prune(target(store, "main/c2/t/"), SOURCE, 1, later)
        assert not [name for name in store.objects if name.startswith("main/c1/")]
    assert step > 4


def test_what_is_not_complete_does_not_count_and_goes_after_a_day() -> None:
    store = shelf(*FOLDERS)
    manifest.write_manifest(store, Manifest(SOURCE, "c3", 0, complete=False), "main/c3/t/")
    here = target(store, "main/c4/t/")
    assert pruning.old(here, SOURCE, 2, NOW) == [f"{SHELF}/main/c1/t"]
    later = NOW + pruning.ABANDONED_MS
    assert pruning.old(here, SOURCE, 2, later) == [f"{SHELF}/main/c1/t", f"{SHELF}/main/c3/t"]


def test_exports_of_another_table_of_that_name_do_not_count() -> None:
    store = shelf(*FOLDERS[:2], *FOLDERS[3:])
    manifest.write_manifest(
        store, Manifest("lakefs://repo/u", "c3", 0, complete=True), "main/c3/t/"
    )
    assert pruning.old(target(store, "main/c4/t/"), SOURCE, 3, NOW) == []


@pytest.mark.parametrize(("keep", "to"), [(0, None), (-1, None), (2, "memory://x")])
def test_what_cannot_be_kept_is_refused(keep: int, to: str | None) -> None:
    with pytest.raises(InvalidInput):
        pruning.check_pruning(keep, to)
