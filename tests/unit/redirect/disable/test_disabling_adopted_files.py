"""A target that has the only copies of files that the source names outside of its folder.

A shallow clone names its base's files by absolute path, and a move by copy adopts them. Who
deletes the base then leaves the target with the only copies, so the target stays.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from lakeferry.errors import MissingFile, RedirectTargetNotEmpty
from lakeferry.log import file_actions, paths
from lakeferry.log.commit import Transaction
from lakeferry.log.conflicts import Conflict
from lakeferry.redirect import resuming
from lakeferry.redirect.disable import disabling
from lakeferry.redirect.disable.disabling import WithdrawalOptions
from lakeferry.redirect.enable import enabling
from lakeferry.redirect.entry import Data
from lakeferry.redirect.redirect_context import Setting
from lakeferry.redirect.states import RedirectState
from tests.support import plans
from tests.support.history import Append, History
from tests.support.places import below
from tests.support.redirects import (
    NEW,
    OLD,
    WORLD,
    added,
    append,
    bytes_at,
    content,
    redirect_at,
    request_for,
    setting_of,
    world_with,
)
from tests.support.stores import DictStore, Fault, FaultyStore, Stopped, on

BASE = ("part-1.parquet", "p=1/q=x/part-2.parquet", "a%20b/part-3.parquet")
"""Paths of the base's files, as a log spells them."""
BESIDE = "../beside/part-4.parquet"
REMOVE = WithdrawalOptions(remove_target=True)
AGAIN = replace(request_for(), replace_closed=True)
Act = Callable[[Setting], Any]
REMOVALS: tuple[Act, ...] = (
    lambda setting: plans.undo(setting, OLD, REMOVE),
    lambda setting: disabling.disable(setting, OLD, REMOVE),
)
REPLACEMENTS: tuple[Act, ...] = (
    lambda setting: plans.enable(setting, AGAIN),
    lambda setting: enabling.enable(setting, AGAIN),
)


def clone() -> tuple[DictStore, Setting]:
    """Return a world with a table that names files of its base, and one of a folder beside it."""
    store = DictStore(world_with(History().then(Append(1)), with_data=True), uri=WORLD)
    setting = setting_of(store)
    named = [*(f"{WORLD}/base/{path}" for path in BASE), BESIDE]
    contents = {path: f"the rows of {path}".encode() for path in named}
    for path, data in contents.items():
        name = path.removeprefix(f"{WORLD}/").removeprefix("../").replace("%20", " ")
        store.put(name, data)
    log = setting.log(OLD)
    adds = added(named, contents, log.clock())
    assert not isinstance(log.commit(Transaction("CLONE", "c", adds=adds), log.state()), Conflict)
    return store, setting


def moved(data: Data = Data.COPY) -> tuple[DictStore, Setting]:
    """Return a world in which such a table has moved, and was written to since."""
    store, setting = clone()
    enabling.enable(setting, request_for(data=data))
    append(setting.log(NEW), "x.parquet")
    return store, setting


def home_again() -> tuple[DictStore, Setting]:
    """Return a world in which such a table came home."""
    store, setting = moved()
    disabling.disable(setting, OLD)
    return store, setting


def delete(store: DictStore, name: str) -> bytes:
    """Delete a file of another table, and return what it held."""
    data = store.objects[name]
    store.delete_many([name])
    return data


@pytest.mark.parametrize("act", REMOVALS, ids=["plan", "disable"])
@pytest.mark.parametrize(
    "name",
    [
        "base/part-1.parquet",
        "base/p=1/q=x/part-2.parquet",
        "base/a b/part-3.parquet",
        "beside/part-4.parquet",
    ],
)
@pytest.mark.parametrize("world", [moved, home_again])
def test_a_target_that_has_the_only_copies_isn_t_removed(
    world: Callable[[], tuple[DictStore, Setting]], name: str, act: Act
) -> None:
    store, setting = world()
    data = delete(store, name)
    before = store.objects
    with pytest.raises(MissingFile, match="1 data files") as refused:
        act(setting)
    assert store.objects == before
    # What it says is the way out.
    _, _, told = (refused.value.remedy or "").partition("the copy of ")
    path, _, rest = told.partition(" is ")
    copy = rest.partition(")")[0]
    assert path.endswith(name.rpartition("/")[2])
    assert bytes_at(store.objects, copy, NEW) == data
    store.put(name, data)
    disabling.disable(setting, OLD, REMOVE)
    assert below(store.objects, "new") == {}


@pytest.mark.parametrize("act", REPLACEMENTS, ids=["plan", "enable"])
def test_a_target_that_has_the_only_copies_isn_t_replaced(act: Act) -> None:
    store, setting = home_again()
    name = "base/part-1.parquet"
    data = delete(store, name)
    before = store.objects
    with pytest.raises(RedirectTargetNotEmpty, match="missing"):
        act(setting)
    assert store.objects == before
    store.put(name, data)
    act(setting)


def test_a_file_that_was_cut_short_counts_as_gone() -> None:
    store, setting = moved()
    store.put("base/part-1.parquet", b"")
    with pytest.raises(MissingFile, match="1 data files"):
        disabling.disable(setting, OLD, REMOVE)


def test_a_base_whose_bucket_is_gone_is_told() -> None:
    store, setting = moved()
    store.delete_many([name for name in store.objects if name.startswith(("base/", "beside/"))])
    with pytest.raises(MissingFile, match="4 data files"):
        disabling.disable(setting, OLD, REMOVE)


def test_without_the_removal_the_table_comes_home_as_before() -> None:
    store, setting = home_again()
    expected = content(store.objects, OLD, with_bytes=False)
    store, setting = moved()
    delete(store, "base/part-1.parquet")
    assert [each["op"] for each in plans.undo(setting, OLD)][-1] == "checkpoint"
    outcome = disabling.disable(setting, OLD)
    assert outcome.state is RedirectState.NORMAL
    # Nothing but what was written since was brought.
    assert outcome.files_copied == 1
    assert content(store.objects, OLD, with_bytes=False) == expected
    assert below(store.objects, "new")


def test_files_that_the_newest_version_has_forgotten_are_in_nobody_s_way() -> None:
    store, setting = moved()
    log = setting.log(NEW)
    there = log.snapshot().files["path"].to_pylist()
    gone = next(path for path in there if path.endswith("part-1.parquet"))
    row = {"path": gone, "deletionTimestamp": log.clock(), "dataChange": True}
    removes = pa.Table.from_pylist([row], schema=file_actions.REMOVE)
    log.commit(Transaction("DELETE", "d", removes=removes), log.state())
    delete(store, "base/part-1.parquet")
    disabling.disable(setting, OLD, REMOVE)
    assert below(store.objects, "new") == {}


def test_a_withdrawal_that_goes_on_keeps_the_target() -> None:
    """The base was deleted after the withdrawal had begun; it ends, and its target stays."""
    store, setting = moved()
    rule = on("PUT_IF_ABSENT", Fault.STOP_AFTER, containing="new/_delta_log/")
    faulty = setting_of(FaultyStore(store, rule), clock=store.clock)
    with pytest.raises(Stopped):
        disabling.disable(faulty, OLD, REMOVE)
    delete(store, "base/part-1.parquet")
    with pytest.raises(MissingFile):
        disabling.disable(setting, OLD, REMOVE)
    assert "delete" not in [each["op"] for each in plans.undo(setting, OLD)]
    told: list[str] = []
    resuming.resume(setting_of(store, warn=told.append), OLD)
    assert redirect_at(setting) is None
    assert any(f"{NEW} isn't deleted" in each for each in told)
    assert any("_adopted/" in name for name in below(store.objects, "new"))


@pytest.mark.parametrize("act", REMOVALS, ids=["plan", "disable"])
@pytest.mark.parametrize("name", ["base/part-1.parquet", "old/{}"])
def test_a_target_that_refers_to_files_that_are_gone_isn_t_removed(name: str, act: Act) -> None:
    store, setting = moved(Data.REFERENCE)
    own = next(
        each
        for each in below(store.objects, "old")
        if each.endswith(".parquet") and not each.startswith("_delta_log/")
    )
    delete(store, name.format(own))
    before = store.objects
    with pytest.raises(MissingFile, match="1 data files") as refused:
        act(setting)
    assert "the move made no copy of" in (refused.value.remedy or "")
    assert store.objects == before


def test_a_target_that_refers_to_files_that_are_there_is_removed() -> None:
    store, setting = moved(Data.REFERENCE)
    assert plans.undo(setting, OLD, REMOVE)[-1]["op"] == "delete"
    disabling.disable(setting, OLD, REMOVE)
    assert below(store.objects, "new") == {}


def test_files_are_looked_for_in_one_listing_of_each_folder() -> None:
    store, setting = home_again()
    store.put("new/notes.txt", b"somebody's")
    store.calls.reset()
    with pytest.raises(RedirectTargetNotEmpty, match="notes"):
        plans.enable(setting, AGAIN)
    outside = [call for call in store.calls.log if call[1].startswith(("base", "beside"))]
    assert outside == [("LIST", "base/"), ("LIST", "beside/")]


def test_who_gives_a_target_up_is_told_which_files_are_gone() -> None:
    store, _ = moved()
    delete(store, "base/part-1.parquet")
    store.delete_many([f"new/{name}" for name in below(store.objects, "new")])
    told: list[str] = []
    warned = setting_of(store, warn=told.append)
    disabling.disable(warned, OLD, WithdrawalOptions(abandon_target=True))
    assert any("1 data files of" in each and "part-1.parquet" in each for each in told)


def test_a_table_that_names_no_other_files_is_listed_once() -> None:
    store = DictStore(world_with(History().then(Append(1)), with_data=True), uri=WORLD)
    setting = setting_of(store)
    enabling.enable(setting, request_for())
    disabling.disable(setting, OLD)
    store.calls.reset()
    disabling.disable(setting, OLD, REMOVE)
    calls = Counter(store.calls.log)
    assert calls["LIST", "old/"] == 1
    # By the newest version, by those who ask what is named, and by the deletion itself.
    assert calls["GET", f"old/{paths.commit(1)}"] == 3
