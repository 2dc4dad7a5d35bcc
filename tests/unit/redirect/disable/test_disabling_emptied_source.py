"""A source whose data files somebody has deleted since the table moved, on stores in memory.

A table moves to free its old place, so this is what people do. All of its rows are at the
target then, and come home with it.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from lakeferry.errors import MissingFile, RedirectTargetNotEmpty
from lakeferry.log import paths
from lakeferry.log.commit import Transaction
from lakeferry.redirect import resuming
from lakeferry.redirect.disable import disabling
from lakeferry.redirect.disable.disabling import WithdrawalOptions
from lakeferry.redirect.enable import enabling
from lakeferry.redirect.entry import Data
from lakeferry.redirect.redirect_context import Setting
from lakeferry.redirect.states import RedirectState
from tests.support import plans
from tests.support.places import below
from tests.support.redirects import (
    NEW,
    OLD,
    content,
    redirect_at,
    request_for,
    setting_of,
    versions,
)
from tests.support.stores import DictStore, Fault, FaultyStore, Stopped, on
from tests.support.strangers import moved


def data_files(store: DictStore, folder: str) -> list[str]:
    return [name for name in below(store.objects, folder) if not name.startswith("_delta_log/")]


def empty(store: DictStore, folder: str = "old") -> None:
    """Delete the data files at a place, as who wants to free it does."""
    store.delete_many([f"{folder}/{name}" for name in data_files(store, folder)])


def emptied() -> tuple[DictStore, Setting]:
    """Return a world in which a table has moved and its old place was emptied."""
    store, setting = moved()
    empty(store)
    return store, setting


@pytest.mark.parametrize("remove", [False, True])
def test_what_the_source_lacks_comes_home(remove: bool) -> None:
    store, setting = emptied()
    before = {v: content(store.objects, NEW, v) for v in versions(store.objects, NEW)}
    outcome = disabling.disable(setting, OLD, WithdrawalOptions(remove_target=remove))
    assert outcome.state is RedirectState.NORMAL
    for version in versions(store.objects, OLD):
        assert content(store.objects, OLD, version) == before.get(version, before[6])
    assert bool(below(store.objects, "new")) != remove


def test_one_file_that_was_cut_short_comes_home_whole() -> None:
    store, setting = moved()
    expected = content(store.objects, NEW)
    name = next(each for each in data_files(store, "old") if each.endswith(".parquet"))
    store.put(f"old/{name}", b"")
    assert disabling.disable(setting, OLD).files_copied == 3
    assert content(store.objects, OLD) == expected


def test_the_plan_says_so() -> None:
    store, setting = emptied()
    missing = len(data_files(store, "new")) - 2
    (step,) = [each for each in plans.undo(setting, OLD) if each["op"] == "copy_missing"]
    assert step == {"op": "copy_missing", "from": NEW, "to": OLD, "files": missing}
    store, setting = moved()
    assert "copy_missing" not in [each["op"] for each in plans.undo(setting, OLD)]


def test_who_goes_on_with_a_withdrawal_brings_them_too() -> None:
    store, setting = moved()
    expected = content(store.objects, NEW)
    rule = on("PUT_IF_ABSENT", Fault.STOP_AFTER, containing=f"new/_delta_log/{7:020d}")
    with pytest.raises(Stopped):
        disabling.disable(setting_of(FaultyStore(store, rule), clock=store.clock), OLD)
    empty(store)
    resuming.resume(setting, OLD)
    assert content(store.objects, OLD) == expected


def test_the_net_change_brings_them_too() -> None:
    store, setting = emptied()
    expected = content(store.objects, NEW)
    log = setting.log(OLD)
    log.commit(Transaction("VACUUM START", "vacuum"), log.state())
    disabling.disable(setting, OLD, WithdrawalOptions(remove_target=True))
    assert content(store.objects, OLD) == expected


def test_what_neither_place_has_is_told_and_nothing_is_done() -> None:
    store, setting = emptied()
    live = content(store.objects, NEW).names[0]
    store.delete_many([f"new/{live}"])
    before = store.objects
    with pytest.raises(MissingFile):
        disabling.disable(setting, OLD)
    assert redirect_at(setting).state is RedirectState.READY  # type: ignore[union-attr]
    assert below(store.objects, "new") == below(before, "new")


def test_a_table_that_is_referred_to_has_nothing_to_bring() -> None:
    store, setting = moved(Data.REFERENCE)
    empty(store)
    disabling.disable(setting, OLD)
    assert redirect_at(setting) is None


# --- The target goes only when all of it is home ----------------------------------


def closed() -> tuple[DictStore, Setting]:
    """Return a world in which a table came home, and the old place was emptied after that."""
    store, setting = moved()
    disabling.disable(setting, OLD)
    empty(store)
    return store, setting


def test_a_closed_target_that_has_the_only_rows_isn_t_removed() -> None:
    store, setting = closed()
    before = store.objects
    remove = WithdrawalOptions(remove_target=True)
    for act in (plans.undo, disabling.disable):
        with pytest.raises(MissingFile, match="can't be removed"):
            act(setting, OLD, remove)
        assert store.objects == before


def test_a_closed_target_that_has_the_only_rows_isn_t_replaced() -> None:
    store, setting = closed()
    before = store.objects
    again = replace(request_for(), replace_closed=True)
    for act in (plans.enable, enabling.enable):
        with pytest.raises(RedirectTargetNotEmpty, match="missing"):
            act(setting, again)
        assert store.objects == before


def test_a_closed_target_that_only_a_checkpoint_refers_to_isn_t_replaced() -> None:
    """The commits that name its files are cleaned up; a table by reference needs them still."""
    for older_checkpoint in (False, True):
        store, setting = moved(Data.REFERENCE)
        disabling.disable(setting, OLD, WithdrawalOptions(data=Data.REFERENCE))
        expected = content(store.objects, OLD)
        written = setting.log(OLD).checkpoint(7)
        keep = {f"old/{name}" for name in (*written.files, paths.commit(7), paths.commit(8))}
        log = [name for name in store.objects if name.startswith("old/_delta_log/0")]
        keep |= {name for name in log if "checkpoint" in name and older_checkpoint}
        store.delete_many([name for name in log if name not in keep])
        with pytest.raises(RedirectTargetNotEmpty, match="refers to"):
            enabling.enable(setting, replace(request_for(), replace_closed=True))
        assert content(store.objects, OLD) == expected
