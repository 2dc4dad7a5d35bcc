"""Bringing a table back, on stores in memory."""

from __future__ import annotations

import pytest

from lakeferry.errors import CommitConflict, Diverged, InvalidInput, RedirectIllegalTransition
from lakeferry.log.commit import Transaction
from lakeferry.redirect.disable import disabling
from lakeferry.redirect.disable.disabling import WithdrawalOptions
from lakeferry.redirect.enable import enabling
from lakeferry.redirect.entry import Data, Mode
from lakeferry.redirect.no_redirect_rules import Rule
from lakeferry.redirect.redirect_context import Setting
from lakeferry.redirect.states import RedirectState
from tests.support.history import Append, Checkpoint, DeleteRows, History, Layout
from tests.support.places import below
from tests.support.redirects import (
    NEW,
    OLD,
    REDIRECT_FEATURES,
    WORLD,
    append,
    content,
    is_openable,
    protocol_features,
    request_for,
    setting_of,
    versions,
    world_with,
)
from tests.support.stores import DictStore, Fault, FaultyStore, Stopped, StoreCall, on

PAST = History(Layout(deletion_vectors="u")).then(Append(2), Checkpoint(), DeleteRows(1))
RULES = (Rule("app", ("VACUUM START",)),)


def moved(
    data: Data = Data.COPY, mode: Mode = Mode.READER_WRITER, past: History = PAST
) -> tuple[DictStore, Setting]:
    """Return a world in which a table has moved, and two rows were written since."""
    store = DictStore(world_with(past), uri=WORLD)
    setting = setting_of(store)
    enabling.enable(setting, request_for(data=data, mode=mode, rules=RULES))
    append(setting.log(NEW), "x.parquet")
    append(setting.log(NEW), "y.parquet")
    return store, setting


@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize("data", [Data.COPY, Data.REFERENCE])
def test_a_table_comes_home_number_by_number(data: Data, mode: Mode) -> None:
    store, setting = moved(data, mode)
    before = {v: content(store.objects, NEW, v) for v in versions(store.objects, NEW)}
    outcome = disabling.disable(setting, OLD)
    assert (outcome.state, outcome.version, outcome.changed) == (RedirectState.NORMAL, 8, True)
    assert outcome.files_copied == 2
    for version in versions(store.objects, OLD):
        assert content(store.objects, OLD, version) == before.get(version, before[6])
    assert not protocol_features(store.objects, OLD) & REDIRECT_FEATURES
    assert append(setting.log(OLD), "z.parquet") == 9


def test_the_target_stays_locked() -> None:
    store, setting = moved()
    disabling.disable(setting, OLD)
    assert protocol_features(store.objects, NEW) & REDIRECT_FEATURES
    assert max(versions(store.objects, NEW)) == 7


def test_twice_is_once() -> None:
    store, setting = moved()
    disabling.disable(setting, OLD)
    before = store.objects
    outcome = disabling.disable(setting, OLD)
    assert (outcome.state, outcome.changed) == (RedirectState.NORMAL, False)
    assert store.objects == before


def test_the_target_goes_if_asked() -> None:
    store, setting = moved()
    expected = content(store.objects, NEW)
    disabling.disable(setting, OLD, WithdrawalOptions(remove_target=True))
    assert below(store.objects, "new") == {}
    assert content(store.objects, OLD) == expected


def test_a_target_whose_files_are_referred_to_never_goes() -> None:
    store, setting = moved(Data.REFERENCE)
    expected = content(store.objects, NEW)
    with pytest.raises(InvalidInput):
        disabling.disable(setting, OLD, WithdrawalOptions(remove_target=True, data=Data.REFERENCE))
    rule = on("PUT_IF_ABSENT", Fault.STOP_AFTER, containing=f"old/_delta_log/{5:020d}")
    faulty = setting_of(FaultyStore(store, rule), clock=store.clock)
    with pytest.raises(Stopped):
        disabling.disable(faulty, OLD, WithdrawalOptions(data=Data.REFERENCE))
    with pytest.raises(InvalidInput, match="refers to"):
        disabling.disable(setting, OLD, WithdrawalOptions(remove_target=True))
    disabling.disable(setting, OLD)
    assert content(store.objects, OLD) == expected
    assert "new/x.parquet" in store.objects


def test_a_target_that_is_half_removed_can_t_be_taken_for_a_table() -> None:
    remove = WithdrawalOptions(remove_target=True)
    for fault in (Fault.STOP_HALFWAY, Fault.STOP_AFTER):
        store, setting = moved()
        setting.log(NEW).checkpoint()
        faulty = FaultyStore(store, on("DELETE", fault, containing="new/_delta_log"))
        with pytest.raises(Stopped):
            disabling.disable(setting_of(faulty, clock=store.clock), OLD, remove)
        assert not is_openable(store.objects, NEW) or protocol_features(store.objects, NEW) & (
            REDIRECT_FEATURES
        )


def test_by_reference_new_files_stay_where_they_are() -> None:
    store, setting = moved(Data.REFERENCE)
    expected = content(store.objects, NEW)
    outcome = disabling.disable(setting, OLD, WithdrawalOptions(data=Data.REFERENCE))
    assert outcome.files_copied == 0
    assert content(store.objects, OLD) == expected
    assert "old/x.parquet" not in store.objects


def test_what_was_copied_can_t_come_back_by_reference() -> None:
    store, setting = moved(Data.COPY)
    before = store.objects
    with pytest.raises(InvalidInput):
        disabling.disable(setting, OLD, WithdrawalOptions(data=Data.REFERENCE))
    assert store.objects == before


def test_where_the_source_has_commits_of_its_own_the_net_change_comes_home() -> None:
    store, setting = moved()
    expected = content(store.objects, NEW)
    log = setting.log(OLD)
    log.commit(Transaction("VACUUM START", "vacuum"), log.state())
    outcome = disabling.disable(setting, OLD)
    # READY was 4, the rule's commit 5; then the net change, DROPPING and NORMAL.
    assert outcome.version == 8
    assert content(store.objects, OLD) == expected


def test_where_the_target_s_commits_are_cleaned_up_the_net_change_comes_home() -> None:
    store, setting = moved()
    expected = content(store.objects, NEW)
    setting.log(NEW).checkpoint()
    store.delete_many([f"new/_delta_log/{version:020d}.json" for version in range(6)])
    outcome = disabling.disable(setting, OLD)
    assert outcome.version == 7
    assert content(store.objects, OLD) == expected


def remedy_if_cleaned_up_at(listing: int) -> str | None:
    """Clean the target's log up right before it is listed for the n-th time; bring it all home."""
    store, setting = moved()
    expected = content(store.objects, NEW)
    seen = 0

    def rule(call: StoreCall) -> Fault | None:
        nonlocal seen
        seen += call.verb == "LIST" and call.paths[0].startswith("new/_delta_log")
        if seen == listing:
            seen += 1
            setting.log(NEW).checkpoint(6)
            store.delete_many([f"new/_delta_log/{version:020d}.json" for version in range(6)])
        return None

    remedy = None
    try:
        disabling.disable(setting_of(FaultyStore(store, rule), clock=store.clock), OLD)
    except CommitConflict as told:
        remedy = told.remedy
        disabling.disable(setting, OLD)
    assert content(store.objects, OLD) == expected
    return remedy


def test_where_they_are_cleaned_up_meanwhile_the_same_command_brings_the_net_change() -> None:
    remedies = {remedy_if_cleaned_up_at(listing) for listing in range(1, 12)}
    again = "run the same command again: it brings all changes back in one commit"
    assert remedies == {None, again}


def test_where_both_sides_changed_data_nothing_is_done() -> None:
    store, setting = moved()
    append(setting.log(OLD), "own.parquet")
    before = store.objects
    with pytest.raises(Diverged):
        disabling.disable(setting, OLD)
    assert store.objects == before


def test_what_was_brought_before_a_crash_isn_t_taken_for_the_source_s_own() -> None:
    store, setting = moved()
    expected = content(store.objects, NEW)
    rule = on("PUT_IF_ABSENT", Fault.STOP_AFTER, containing=f"old/_delta_log/{5:020d}")
    with pytest.raises(Stopped):
        disabling.disable(setting_of(FaultyStore(store, rule), clock=store.clock), OLD)
    log = setting.log(OLD)
    log.commit(Transaction("VACUUM START", "vacuum"), log.state())
    assert disabling.disable(setting, OLD).state is RedirectState.NORMAL
    assert content(store.objects, OLD) == expected


def test_a_move_that_isn_t_ready_can_t_be_withdrawn() -> None:
    store = DictStore(world_with(PAST), uri=WORLD)
    faulty = FaultyStore(store, on("COPY", Fault.STOP_BEFORE))
    with pytest.raises(Stopped):
        enabling.enable(setting_of(faulty, clock=store.clock), request_for())
    with pytest.raises(RedirectIllegalTransition):
        disabling.disable(setting_of(store), OLD)


def test_a_file_that_is_missing_at_the_target_is_not_lost_without_a_word() -> None:
    store, setting = moved()
    store.delete_many(["new/y.parquet"])
    with pytest.raises(Exception, match="missing"):
        disabling.disable(setting, OLD)
    assert max(versions(store.objects, OLD)) == 4
    store.put("new/y.parquet", b"the rows of y.parquet")
    disabling.disable(setting, OLD)
    assert "y.parquet" in content(store.objects, OLD).names
