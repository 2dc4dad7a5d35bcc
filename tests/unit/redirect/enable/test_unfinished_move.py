"""Moves that were broken off while they copied: what is known of them, on and back."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lakeferry.api.inspection import inspect
from lakeferry.errors import (
    CommitConflict,
    MissingFile,
    RedirectInProgress,
    RedirectTargetNotEmpty,
    StorageUnavailable,
)
from lakeferry.redirect import cancel, freeze, resuming, status
from lakeferry.redirect.disable import disabling
from lakeferry.redirect.enable import enabling, move_record
from lakeferry.redirect.entry import Data, Dialect, Mode
from lakeferry.redirect.no_redirect_rules import Rule
from lakeferry.redirect.states import RedirectState
from tests.support import plans
from tests.support.history import Append, History
from tests.support.places import below
from tests.support.redirects import (
    NEW,
    OLD,
    OTHER,
    WORLD,
    content,
    numbered,
    redirect_at,
    request_for,
    setting_of,
    world_with,
)
from tests.support.stores import DictStore, Fault, FaultyStore, Stopped, any_of, on
from tests.support.stores import Rule as FaultRule

PAST = History().then(Append(2), Append(1))
RECORD = "old/_delta_log/_lakeferry/move.json"
BEGINNING = f"old/_delta_log/{3:020d}.json"
BEFORE_ENABLING = on("PUT_IF_ABSENT", Fault.STOP_BEFORE, containing=BEGINNING)


def world() -> DictStore:
    """Return a world with one table in it."""
    return DictStore(world_with(PAST), uri=WORLD)


def broken_off(store: DictStore, rule: FaultRule | None = None, **options: object) -> None:
    """Break a move off before ENABLING."""
    rule = rule or on("PUT_IF_ABSENT", Fault.STOP_BEFORE, containing=BEGINNING)
    setting = setting_of(FaultyStore(store, rule), clock=store.clock, new_id=numbered("first"))
    with pytest.raises(Stopped):
        enabling.enable(setting, replace(request_for(), **options))  # type: ignore[arg-type]


def test_a_move_that_was_broken_off_is_known_and_can_be_taken_back() -> None:
    store = world()
    before = store.objects
    broken_off(store)
    setting = setting_of(store)
    found = status.status(setting, OLD)
    assert (found.state, found.target) == (RedirectState.NORMAL, None)
    assert found.unfinished is not None
    assert found.unfinished.files_copied == 3
    planned = plans.cancel(setting, OLD)
    assert planned == [{"op": "delete_copies", "table": NEW}]
    outcome = cancel.cancel(setting, OLD)
    assert (outcome.state, outcome.changed, outcome.kept) == (RedirectState.NORMAL, True, ())
    assert store.objects == before
    assert not cancel.cancel(setting, OLD).changed
    assert status.status(setting, OLD).as_document()["unfinished"] is None


def test_it_goes_on_with_the_options_that_it_had() -> None:
    store = world()
    broken_off(
        store,
        mode=Mode.WRITER_ONLY,
        data=Data.REFERENCE,
        dialects=(Dialect.RFC, Dialect.DELTA_SPARK),
        rules=(Rule("nightly", ("VACUUM START",)),),
    )
    assert plans.resume(setting_of(store), OLD)[0] == {"op": "claim", "table": NEW}
    outcome = resuming.resume(setting_of(store), OLD)
    assert (outcome.state, outcome.target) == (RedirectState.READY, NEW)
    found = redirect_at(setting_of(store))
    assert found is not None
    assert found.journal is not None
    assert (found.mode, found.journal.data) == (Mode.WRITER_ONLY, Data.REFERENCE)
    assert found.dialects == (Dialect.RFC, Dialect.DELTA_SPARK)
    assert found.rules == (Rule("nightly", ("VACUUM START",)),)
    assert RECORD not in store.objects


def test_what_isn_t_the_move_s_stays_at_the_target_and_is_listed() -> None:
    store = world()
    broken_off(store)
    theirs = {
        "new/notes.txt": b"mine",
        "new/_delta_log/readme.md": b"mine",
        "new/inner/_delta_log/00000000000000000000.json": b"{}",
        "new/inner/part-1.parquet": b"rows",
    }
    for name, data in theirs.items():
        store.put(name, data)
    outcome = cancel.cancel(setting_of(store), OLD)
    assert sorted(f"new/{name}" for name in outcome.kept) == sorted(theirs)
    assert {name: store.objects[name] for name in store.objects if "new/" in name} == theirs
    assert outcome.as_document()["kept"] == list(outcome.kept)


def test_a_move_elsewhere_waits_until_the_first_is_cancelled() -> None:
    store = world()
    broken_off(store)
    setting = setting_of(store)
    before = store.objects
    for act in (plans.enable, enabling.enable):
        for request in (request_for(OTHER), request_for(OTHER, data=Data.EXISTING)):
            with pytest.raises(RedirectInProgress, match=f"to {NEW} isn't finished") as refused:
                act(setting, request)
            assert f"redirect cancel {OLD}" in (refused.value.remedy or "")
    assert store.objects == before
    cancel.cancel(setting, OLD)
    assert enabling.enable(setting, request_for(OTHER)).state is RedirectState.READY


def test_the_same_move_in_another_way_is_refused_until_it_is_cancelled() -> None:
    store = world()
    broken_off(store)
    setting = setting_of(store)
    with pytest.raises(RedirectTargetNotEmpty) as refused:
        enabling.enable(setting, request_for(data=Data.REFERENCE))
    assert f"redirect cancel {OLD}" in (refused.value.remedy or "")
    cancel.cancel(setting, OLD)
    assert enabling.enable(setting, request_for(data=Data.REFERENCE)).state is RedirectState.READY


def test_a_move_that_was_refused_midway_is_known_too() -> None:
    store = world()
    (name, *_) = [name for name in store.objects if name.startswith("old/part")]
    gone = store.objects[name]
    store.delete_many([name])
    setting = setting_of(store)
    with pytest.raises(MissingFile):
        enabling.enable(setting, request_for())
    found = status.status(setting, OLD).unfinished
    assert found is not None
    assert found.files_copied == 2
    with pytest.raises(MissingFile):
        resuming.resume(setting, OLD)
    store.put(name, gone)
    assert resuming.resume(setting, OLD).state is RedirectState.READY


def test_a_record_whose_target_was_given_away_is_forgotten() -> None:
    store = world()
    broken_off(store)
    store.delete_many([name for name in store.objects if name.startswith("new/")])
    claim = b'{"move_id":"x","source":"memory://world/z","table_id":"z","data":"copy"}'
    store.put("new/_delta_log/_lakeferry/claim.json", claim)
    store.put("new/theirs.parquet", b"rows")
    setting = setting_of(store)
    found = status.status(setting, OLD)
    assert found.unfinished is not None
    assert found.unfinished.files_copied == 0
    assert "a move of " in found.warnings[0]
    with pytest.raises(RedirectTargetNotEmpty):
        resuming.resume(setting, OLD)
    theirs = below(store.objects, "new")
    assert enabling.enable(setting, request_for(OTHER)).state is RedirectState.READY
    disabling.disable(setting, OLD)
    assert RECORD not in store.objects
    assert below(store.objects, "new") == theirs


@pytest.mark.parametrize("begins", [False, True])
def test_a_move_that_is_cancelled_while_it_copies_ends_and_leaves_nothing(begins: bool) -> None:
    store = world()
    before = store.objects
    rule = on("PUT_IF_ABSENT" if begins else "PUT", Fault.DELAY, containing=BEGINNING)
    if not begins:
        rule = on("PUT", Fault.DELAY, containing="new/part")
    outcomes = []

    def cancel_meanwhile() -> None:
        outcomes.append(cancel.cancel(setting_of(store, new_id=numbered("c")), OLD))

    faulty = FaultyStore(store, rule, delay=cancel_meanwhile)
    with pytest.raises((CommitConflict, RedirectTargetNotEmpty)):
        enabling.enable(setting_of(faulty, clock=store.clock), request_for())
    assert [outcome.changed for outcome in outcomes] == [True]
    assert below(store.objects, "new") == {}
    assert RECORD not in store.objects
    assert redirect_at(setting_of(store)) is None
    assert before.items() <= store.objects.items()
    assert enabling.enable(setting_of(store), request_for()).state is RedirectState.READY
    assert content(store.objects, NEW) == content(store.objects, OLD)


def test_a_target_that_can_t_be_reached_is_told_with_a_way_out() -> None:
    store = world()
    broken_off(store)
    copies = below(store.objects, "new")
    dead = on("GET", Fault.FAIL, containing="new/", times=-1)
    setting = setting_of(FaultyStore(store, dead), clock=store.clock)
    found = status.status(setting, OLD)
    assert found.unfinished is not None
    assert found.unfinished.files_copied is None
    with pytest.raises(StorageUnavailable) as refused:
        cancel.cancel(setting, OLD)
    assert f"redirect cancel {OLD} --leave-copies" in (refused.value.remedy or "")
    outcome = cancel.cancel(setting, OLD, leave_copies=True)
    assert (outcome.state, outcome.changed) == (RedirectState.NORMAL, True)
    assert below(store.objects, "new") == copies
    assert status.status(setting, OLD).unfinished is None


def test_a_move_that_has_begun_ends_without_a_target_that_can_t_be_reached() -> None:
    store = world()
    broken_off(store, on("PUT_IF_ABSENT", Fault.STOP_AFTER, containing=BEGINNING))
    copies = below(store.objects, "new")
    dead = [on(verb, Fault.FAIL, containing="new/", times=-1) for verb in ("GET", "PUT_IF_ABSENT")]
    setting = setting_of(FaultyStore(store, any_of(*dead)), clock=store.clock)
    with pytest.raises(StorageUnavailable) as refused:
        cancel.cancel(setting, OLD)
    assert f"redirect cancel {OLD} --leave-copies" in (refused.value.remedy or "")
    planned = plans.cancel(setting, OLD, leave_copies=True)
    assert [step["state"] for step in planned] == ["NORMAL"]
    outcome = cancel.cancel(setting, OLD, leave_copies=True)
    assert (outcome.state, outcome.changed) == (RedirectState.NORMAL, True)
    assert below(store.objects, "new") == copies
    assert status.status(setting, OLD).unfinished is None
    assert enabling.enable(setting_of(store), request_for(OTHER)).state is RedirectState.READY


def test_the_record_in_a_copy_of_the_folder_says_nothing_about_the_copy() -> None:
    store = world()
    broken_off(store)
    for name, data in below(store.objects, "old").items():
        store.put(f"other/{name}", data)
    setting = setting_of(store)
    assert status.status(setting, OTHER).unfinished is None
    assert not cancel.cancel(setting, OTHER).changed
    assert move_record.read_record(setting.open_store(OLD)) is not None


def test_a_record_that_can_t_be_read_is_replaced_by_the_next_move() -> None:
    store = world()
    store.put(RECORD, b"{")
    setting = setting_of(store)
    assert status.status(setting, OLD).unfinished is None
    assert enabling.enable(setting, request_for()).state is RedirectState.READY
    assert RECORD not in store.objects


def test_a_table_that_was_frozen_meanwhile_is_thawed_and_goes_on() -> None:
    store = world()
    broken_off(store)
    setting = setting_of(store)
    freeze.freeze(setting, OLD)
    assert status.status(setting, OLD).unfinished is None
    freeze.thaw(setting, OLD)
    assert resuming.resume(setting, OLD).state is RedirectState.READY
    assert content(store.objects, NEW) == content(store.objects, OLD)


def test_inspect_mentions_it() -> None:
    store = world()
    broken_off(store)
    setting = setting_of(store)
    found = inspect(setting.open_store(OLD), open_store=setting.open_store)
    assert [each.code for each in found.warnings] == ["redirect_unfinished"]
    cancel.cancel(setting, OLD)
    assert inspect(setting.open_store(OLD), open_store=setting.open_store).warnings == ()
