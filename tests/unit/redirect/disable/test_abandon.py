"""Ending a redirect whose target is lost, on stores in memory."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest

from lakeferry.errors import (
    InvalidInput,
    LakeferryError,
    RedirectIllegalTransition,
    RedirectTargetMissing,
    RedirectTargetReplaced,
    StorageUnavailable,
)
from lakeferry.log import paths
from lakeferry.log.commit import Transaction
from lakeferry.redirect import resuming, status
from lakeferry.redirect.disable import disabling
from lakeferry.redirect.disable.disabling import WithdrawalOptions
from lakeferry.redirect.enable import enabling
from lakeferry.redirect.entry import Data, Mode
from lakeferry.redirect.resolve import Resolver
from lakeferry.redirect.states import RedirectState
from lakeferry.storage import Store
from tests.support import plans
from tests.support.places import below, opener
from tests.support.redirects import (
    NEW,
    OLD,
    OTHER,
    append,
    content,
    redirect_at,
    request_for,
    setting_of,
)
from tests.support.shares import Share
from tests.support.stores import DictStore, Fault, FaultyStore, Stopped, StoreCall, at
from tests.support.strangers import (
    READY,
    moved,
    replace_target,
    stranger,
    to_existing,
    world,
)

ABANDON = WithdrawalOptions(abandon_target=True)


def lose(store: DictStore) -> None:
    replace_target(store, {})


def replace(store: DictStore) -> None:
    replace_target(store, stranger(9))


def break_log(store: DictStore) -> None:
    """Delete what the target's log begins with."""
    log = [name for name in store.objects if name.startswith("new/_delta_log/")]
    store.delete_many([name for name in log if "0000000007" not in name and "0006" not in name])


def lose_file(store: DictStore) -> None:
    store.delete_many(["new/x.parquet"])


@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize("data", [Data.COPY, Data.REFERENCE])
@pytest.mark.parametrize(
    ("trouble", "refused", "lost"),
    [(lose, RedirectTargetMissing, None), (replace, RedirectTargetReplaced, None)],
)
def test_the_source_becomes_normal_as_of_ready(
    trouble: Callable[[DictStore], None],
    refused: type[LakeferryError],
    lost: int | None,
    data: Data,
    mode: Mode,
) -> None:
    store, setting = moved(data, mode)
    before = content(store.objects, OLD, READY)
    trouble(store)
    target = below(store.objects, "new")
    with pytest.raises(refused) as error:
        disabling.disable(setting, OLD)
    assert f"lakeferry redirect disable {OLD} --abandon-target" in (error.value.remedy or "")
    plan = plans.undo(setting, OLD, ABANDON)
    assert plan[0] == {"op": "abandon", "table": NEW, "lost_versions": lost}
    assert [step.get("version") for step in plan[1:]] == [READY + 1, READY + 2, READY + 2]
    outcome = disabling.disable(setting, OLD, ABANDON)
    document = outcome.as_document()
    keys = ("state", "source", "target", "version", "changed", "lost_versions")
    assert [document[key] for key in keys] == ["NORMAL", OLD, NEW, READY + 2, True, lost]
    assert below(store.objects, "new") == target
    assert content(store.objects, OLD) == before
    assert Resolver(opener(store)).resolve(OLD, write=True).location == OLD
    assert append(setting.log(OLD), "z.parquet") == READY + 3
    again = disabling.disable(setting, OLD, ABANDON)
    assert (again.changed, again.as_document()["lost_versions"]) == (False, 0)
    assert plans.undo(setting, OLD, ABANDON) == []
    assert enabling.enable(setting, request_for(OTHER)).state is RedirectState.READY


@pytest.mark.parametrize(("trouble", "lost"), [(break_log, None), (lose_file, 2)])
def test_a_target_that_is_damaged_may_be_given_up(
    trouble: Callable[[DictStore], None], lost: int | None
) -> None:
    store, setting = moved()
    trouble(store)
    with pytest.raises(LakeferryError):
        disabling.disable(setting, OLD)
    outcome = disabling.disable(setting, OLD, ABANDON)
    assert (outcome.state, outcome.lost_versions) == (RedirectState.NORMAL, lost)


@pytest.mark.parametrize("locked", [False, True])
def test_a_target_that_is_there_isn_t_given_up(locked: bool) -> None:
    store, setting = moved()
    if locked:
        stop(store, lambda call: call.paths[0] == f"old/_delta_log/{READY + 1:020d}.json")
    before = store.objects
    for act in (disabling.disable, plans.undo):
        with pytest.raises(RedirectIllegalTransition, match="isn't lost") as refused:
            act(setting, OLD, ABANDON)
        assert "leave out --abandon-target" in (refused.value.remedy or "")
    assert store.objects == before
    assert disabling.disable(setting, OLD).state is RedirectState.NORMAL


def stop(store: DictStore, moment: Callable[[StoreCall], bool]) -> None:
    """Begin a disable that is killed right before a call."""

    def rule(call: StoreCall) -> Fault | None:
        is_it = call.verb == "PUT_IF_ABSENT" and moment(call)
        return Fault.STOP_BEFORE if is_it else None

    with pytest.raises(Stopped):
        disabling.disable(
            setting_of(FaultyStore(store, rule), clock=store.clock),
            OLD,
            WithdrawalOptions(remove_target=True),
        )


@pytest.mark.parametrize("trouble", [lose, replace])
def test_a_disable_that_was_interrupted_after_dropping_has_lost_nothing(
    trouble: Callable[[DictStore], None],
) -> None:
    store, setting = moved()
    expected = content(store.objects, NEW)
    stop(store, lambda call: call.paths[0] == f"old/_delta_log/{READY + 4:020d}.json")
    found = redirect_at(setting)
    assert found is not None
    assert found.state is RedirectState.DROPPING
    trouble(store)
    left = below(store.objects, "new")
    for act in (disabling.disable, resuming.resume):
        with pytest.raises((RedirectTargetMissing, RedirectTargetReplaced)):
            act(setting, OLD)
    outcome = disabling.disable(setting, OLD, ABANDON)
    assert (outcome.state, outcome.lost_versions) == (RedirectState.NORMAL, 0)
    assert content(store.objects, OLD) == expected
    assert below(store.objects, "new") == left


def test_an_abandoned_target_that_comes_back_is_never_deleted() -> None:
    store, setting = moved()
    stop(store, lambda call: call.paths[0] == f"old/_delta_log/{READY + 1:020d}.json")
    kept = below(store.objects, "new")
    replace_target(store, {})
    assert disabling.disable(setting, OLD, ABANDON).state is RedirectState.NORMAL
    replace_target(store, kept)
    for options in (WithdrawalOptions(), WithdrawalOptions(remove_target=True)):
        assert not disabling.disable(setting, OLD, options).changed
    assert below(store.objects, "new") == kept


@pytest.mark.parametrize("trouble", [lose, replace])
def test_it_goes_on_after_a_crash_at_any_call(
    trouble: Callable[[DictStore], None], share: Share
) -> None:
    ended = False
    for index in share.onwards(1):
        store, setting = moved()
        before = content(store.objects, OLD, READY)
        trouble(store)
        left = below(store.objects, "new")
        faulty = FaultyStore(store, at(index, Fault.STOP_BEFORE))
        try:
            disabling.disable(setting_of(faulty, clock=store.clock), OLD, ABANDON)
            ended = len(faulty.history) < index
        except Stopped:
            found = redirect_at(setting)
            begun = found is not None and found.state is RedirectState.DROPPING
            options = WithdrawalOptions() if begun else ABANDON
            assert disabling.disable(setting, OLD, options).state is RedirectState.NORMAL
        assert redirect_at(setting) is None
        assert content(store.objects, OLD) == before
        assert below(store.objects, "new") == left
        if ended:
            break
    assert index > 10


def test_a_target_that_was_there_before_may_be_given_up_too() -> None:
    store, setting = to_existing()
    before = content(store.objects, OLD)
    with pytest.raises(RedirectIllegalTransition):
        disabling.disable(setting, OLD, ABANDON)
    replace_target(store, stranger(12))
    left = below(store.objects, "new")
    with pytest.raises(RedirectTargetReplaced):
        disabling.disable(setting, OLD)
    outcome = disabling.disable(setting, OLD, ABANDON)
    assert (outcome.state, outcome.changed, outcome.lost_versions) == (
        RedirectState.NORMAL,
        True,
        None,
    )
    assert content(store.objects, OLD) == before
    assert below(store.objects, "new") == left


def test_a_target_out_of_reach_may_be_given_up() -> None:
    store, setting = moved()

    def opened(uri: str) -> Store:
        if uri == NEW:
            raise StorageUnavailable(f"{uri} doesn't answer")
        return opener(store)(uri)

    away = dataclasses.replace(setting, open_store=opened)
    with pytest.raises(StorageUnavailable):
        disabling.disable(away, OLD)
    assert disabling.disable(away, OLD, ABANDON).lost_versions is None
    assert redirect_at(setting) is None


def test_files_that_the_source_lacks_are_told() -> None:
    store, setting = moved(Data.REFERENCE)
    replace_target(store, {})
    store.delete_many([f"old/{content(store.objects, OLD).names[0]}"])
    warnings: list[str] = []
    outcome = disabling.disable(dataclasses.replace(setting, warn=warnings.append), OLD, ABANDON)
    assert outcome.state is RedirectState.NORMAL
    assert any("data files of memory://world/old are missing" in text for text in warnings)


@pytest.mark.parametrize(
    "options",
    [
        WithdrawalOptions(abandon_target=True, remove_target=True),
        WithdrawalOptions(abandon_target=True, bring_back=True),
        WithdrawalOptions(abandon_target=True, data=Data.COPY),
    ],
)
def test_it_goes_with_nothing_that_needs_the_target(options: WithdrawalOptions) -> None:
    store, setting = moved()
    lose(store)
    for act in (disabling.disable, plans.undo):
        with pytest.raises(InvalidInput):
            act(setting, OLD, options)


def test_a_move_that_isn_t_ready_has_no_target_to_give_up() -> None:
    store = world()

    def rule(call: StoreCall) -> Fault | None:
        opens = (call.verb, call.paths) == ("PUT_IF_ABSENT", (f"new/{paths.commit(READY)}",))
        return Fault.STOP_BEFORE if opens else None

    with pytest.raises(Stopped):
        enabling.enable(setting_of(FaultyStore(store, rule), clock=store.clock), request_for())
    with pytest.raises(RedirectIllegalTransition, match="disable"):
        disabling.disable(setting_of(store), OLD, ABANDON)


@pytest.mark.parametrize("version", [READY, READY + 1])
def test_an_old_entry_that_is_back_isn_t_followed_to_a_target_that_was_given_up(
    version: int,
) -> None:
    store, setting = moved()
    target = below(store.objects, "new")
    replace_target(store, {})
    disabling.disable(setting, OLD, ABANDON)
    # It was out of reach.
    replace_target(store, target)
    log = setting.log(OLD)
    append(log, "z.parquet")
    old = log.state(version)
    restore = Transaction("RESTORE", "r", protocol=old.protocol, metadata=old.metadata)
    log.commit(restore, log.state())
    for write in (False, True):
        with pytest.raises(RedirectTargetReplaced if version == READY else LakeferryError):
            Resolver(opener(store)).resolve(OLD, write=write)
    (warning,) = (
        status.status(setting, OLD).warnings if version == READY else ("old redirect came back",)
    )
    assert "old redirect came back" in warning
    expected = content(store.objects, OLD)
    disabling.disable(setting, OLD)
    assert content(store.objects, OLD) == expected
    assert below(store.objects, "new") == target
