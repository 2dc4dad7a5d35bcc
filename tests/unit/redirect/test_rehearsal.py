"""Plans: what a dry run says is what is done, and what is refused is refused by both."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from lakeferry.errors import Diverged, InvalidInput, LakeferryError, NotEqual
from lakeferry.log.commit import Transaction
from lakeferry.redirect import cancel, resuming
from lakeferry.redirect.disable import disabling
from lakeferry.redirect.disable.disabling import WithdrawalOptions
from lakeferry.redirect.enable import enabling
from lakeferry.redirect.entry import Data, Mode
from lakeferry.redirect.no_redirect_rules import Rule
from lakeferry.redirect.outcome import Outcome
from lakeferry.redirect.redirect_context import Setting
from lakeferry.redirect.states import RedirectState
from tests.support import plans
from tests.support.history import Append, History
from tests.support.places import below, inside
from tests.support.redirects import (
    NEW,
    OLD,
    WORLD,
    append,
    numbered,
    request_for,
    setting_of,
    world_with,
)
from tests.support.stores import DictStore, Fault, FaultyStore, Stopped, on

PAST = History().then(Append(2), Append(1))
RULES = (Rule("app", ("VACUUM START",)), Rule("writer", ("WRITE",)))
COMMIT = re.compile(r"(old|new)/_delta_log/(\d{20})\.json")
Plan = list[dict[str, Any]]


def world(*, copied: bool = False) -> DictStore:
    """Return a world with a table, and a copy of it if asked."""
    table = world_with(PAST)
    return DictStore(table | (inside("new", below(table, "old")) if copied else {}), uri=WORLD)


def moved(data: Data = Data.COPY, rows: int = 1) -> DictStore:
    """Return a world in which a table has moved, and rows were written since."""
    store = world(copied=data is Data.EXISTING)
    setting = setting_of(store)
    enabling.enable(setting, request_for(data=data, mode=Mode.WRITER_ONLY, rules=RULES))
    for number in range(rows):
        append(setting.log(NEW), f"row-{number}.parquet")
    return store


def broken_off(store: DictStore, data: Data, verb: str, fault: Fault, name: str) -> DictStore:
    """Break a move off at a call."""
    faulty = FaultyStore(store, on(verb, fault, containing=name))
    with pytest.raises(Stopped):
        enabling.enable(setting_of(faulty, clock=store.clock), request_for(data=data))
    return store


def agree(
    store: DictStore,
    plan: Callable[[Setting], Plan],
    act: Callable[[Setting], Outcome],
) -> list[str]:
    """Check that a plan writes nothing and names every commit that is made; return its steps."""
    before = store.objects
    planned = plan(setting_of(store, new_id=numbered("plan")))
    assert store.objects == before
    faulty = FaultyStore(store, lambda _: None)
    act(setting_of(faulty, clock=store.clock, new_id=numbered("act")))
    made = [
        found.groups()
        for call in faulty.history
        if call.verb == "PUT_IF_ABSENT" and (found := COMMIT.fullmatch(call.paths[0]))
    ]
    made = [each for each in made if f"{each[0]}/_delta_log/{each[1]}.json" not in before]
    assert [(place, int(version)) for place, version in made] == list(_commits(planned))
    copies = any(
        call.verb == "PUT" and call.paths[0].endswith(".parquet") and "_log" not in call.paths[0]
        for call in faulty.history
    )
    assert not copies or any(step["op"] == "copy_changes" for step in planned)
    return [step["op"] for step in planned]


def _commits(planned: Plan) -> Any:
    for step in planned:
        if step["op"] == "commit":
            yield step["table"].rpartition("/")[2], step["version"]
        if step["op"] == "copy_commits":
            for version in range(step["from_version"], step["to_version"] + 1):
                yield step["to"].rpartition("/")[2], version


def resumes(setting: Setting) -> Outcome:
    return resuming.resume(setting, OLD)


def plans_resume(setting: Setting) -> Plan:
    return plans.resume(setting, OLD)


def cancels(setting: Setting) -> Outcome:
    return cancel.cancel(setting, OLD)


def plans_cancel(setting: Setting) -> Plan:
    return plans.cancel(setting, OLD)


def withdraws(options: WithdrawalOptions = WithdrawalOptions()) -> Callable[[Setting], Outcome]:  # noqa: B008
    return lambda setting: disabling.disable(setting, OLD, options)


def plans_withdrawal(options: WithdrawalOptions = WithdrawalOptions()) -> Callable[[Setting], Plan]:  # noqa: B008
    return lambda setting: plans.undo(setting, OLD, options)


def both_refuse(
    store: DictStore, kind: type[LakeferryError], options: WithdrawalOptions, match: str
) -> None:
    """Check that a withdrawal and its plan are refused in the same words."""
    before = store.objects
    for act in (plans_withdrawal(options), withdraws(options)):
        with pytest.raises(kind, match=match):
            act(setting_of(store, new_id=numbered("refused")))
        assert store.objects == before


# ------------------------------------------------------------------------------ resume


OPENING = f"new/_delta_log/{4:020d}.json"
BREAKS = {
    "begun": ("PUT_IF_ABSENT", Fault.STOP_AFTER, f"old/_delta_log/{3:020d}.json"),
    "locked": ("PUT_IF_ABSENT", Fault.STOP_AFTER, f"new/_delta_log/{3:020d}.json"),
    "published": ("PUT_IF_ABSENT", Fault.STOP_BEFORE, OPENING),
    "opened": ("PUT_IF_ABSENT", Fault.STOP_AFTER, OPENING),
}


@pytest.mark.parametrize("where", BREAKS)
def test_what_is_left_of_a_move_is_planned(where: str) -> None:
    store = broken_off(world(), Data.REFERENCE, *BREAKS[where])
    before = store.objects
    planned = plans.resume(setting_of(store), OLD)
    assert store.objects == before
    faulty = FaultyStore(store, lambda _: None)
    resuming.resume(setting_of(faulty, clock=store.clock, new_id=numbered("act")), OLD)
    puts = {c.paths[0] for c in faulty.history if c.verb == "PUT_IF_ABSENT"} - before.keys()
    made = {found.groups() for name in puts if (found := COMMIT.fullmatch(name))}
    assert {(place, int(version)) for place, version in made} == set(_commits(planned))
    assert ("publish" in [step["op"] for step in planned]) == (where != "opened")


def test_what_is_left_of_a_redirect_to_an_existing_table_is_planned() -> None:
    ready = ("PUT_IF_ABSENT", Fault.STOP_BEFORE, f"old/_delta_log/{4:020d}.json")
    store = broken_off(world(copied=True), Data.EXISTING, *ready)
    target = below(store.objects, "new")
    assert agree(store, plans_resume, resumes) == ["compare", "commit", "checkpoint"]
    assert below(store.objects, "new") == target


def test_a_redirect_to_a_table_that_changed_meanwhile_is_refused_by_the_plan_too() -> None:
    ready = ("PUT_IF_ABSENT", Fault.STOP_BEFORE, f"old/_delta_log/{4:020d}.json")
    store = broken_off(world(copied=True), Data.EXISTING, *ready)
    append(setting_of(store).log(NEW), "more.parquet")
    for act in (plans_resume, resumes):
        with pytest.raises(NotEqual):
            act(setting_of(store, new_id=numbered("refused")))


def test_a_move_that_is_closed_is_planned_to_go_back() -> None:
    store = broken_off(world(), Data.COPY, *BREAKS["published"])
    faulty = FaultyStore(store, on("DELETE", Fault.STOP_BEFORE))
    with pytest.raises(Stopped):
        cancel.cancel(setting_of(faulty, clock=store.clock, new_id=numbered("cancel")), OLD)
    assert agree(store, plans_resume, resumes) == ["delete_copies", "commit"]


def test_a_move_that_has_only_its_claim_to_let_go_is_planned_to() -> None:
    store = broken_off(world(), Data.COPY, "DELETE", Fault.STOP_BEFORE, "claim.json")
    assert agree(store, plans_resume, resumes) == ["clear"]
    assert agree(store, plans_resume, resumes) == []


@pytest.mark.parametrize("where", ["begun", "locked", "published"])
def test_the_way_back_is_planned(where: str) -> None:
    store = broken_off(world(), Data.COPY, *BREAKS[where])
    assert agree(store, plans_cancel, cancels) == ["commit", "delete_copies", "commit"]


# ----------------------------------------------------------------------------- disable


@pytest.mark.parametrize("rows", [0, 2])
@pytest.mark.parametrize("data", [Data.COPY, Data.REFERENCE])
def test_a_withdrawal_is_planned(data: Data, rows: int) -> None:
    ops = agree(moved(data, rows), plans_withdrawal(), withdraws())
    middle = ["copy_changes", "copy_commits"] if rows else []
    assert ops == ["commit", *middle, "commit", "commit", "checkpoint"]


def test_a_withdrawal_by_reference_copies_nothing() -> None:
    options = WithdrawalOptions(data=Data.REFERENCE)
    ops = agree(moved(Data.REFERENCE), plans_withdrawal(options), withdraws(options))
    assert "copy_changes" not in ops


@pytest.mark.parametrize("version", [5, 6])
def test_what_is_left_of_a_withdrawal_is_planned(version: int) -> None:
    store = moved(rows=2)
    rule = on("PUT_IF_ABSENT", Fault.STOP_AFTER, containing=f"old/_delta_log/{version:020d}")
    with pytest.raises(Stopped):
        disabling.disable(setting_of(FaultyStore(store, rule), clock=store.clock), OLD)
    ops = agree(store, plans_resume, resumes)
    assert ops.count("copy_commits") == (1 if version == 5 else 0)


def test_a_withdrawal_that_is_all_but_over_is_planned() -> None:
    store = moved(rows=1)
    rule = on("PUT_IF_ABSENT", Fault.STOP_AFTER, containing=f"old/_delta_log/{6:020d}")
    with pytest.raises(Stopped):
        disabling.disable(setting_of(FaultyStore(store, rule), clock=store.clock), OLD)
    assert agree(store, plans_resume, resumes) == ["commit", "checkpoint"]


@pytest.mark.parametrize("rows", [0, 1])
def test_a_net_change_is_planned_under_the_numbers_that_it_gets(rows: int) -> None:
    store = moved(rows=rows)
    log = setting_of(store).log(OLD)
    log.commit(Transaction("VACUUM START", "vacuum"), log.state())
    ops = agree(store, plans_withdrawal(), withdraws())
    assert ops.count("commit") == 3 + rows


def test_other_rules_make_it_a_net_change_too() -> None:
    store = moved()
    request = request_for(mode=Mode.WRITER_ONLY, rules=RULES[:1])
    enabling.enable(setting_of(store, new_id=numbered("rules")), request)
    assert agree(store, plans_withdrawal(), withdraws()).count("commit") == 4


def test_the_target_s_end_is_planned() -> None:
    options = WithdrawalOptions(remove_target=True)
    assert agree(moved(), plans_withdrawal(options), withdraws(options))[-1] == "delete"


def test_a_withdrawal_that_is_refused_has_no_plan() -> None:
    both_refuse(moved(), InvalidInput, WithdrawalOptions(data=Data.REFERENCE), "by reference")
    existing = moved(Data.EXISTING)
    both_refuse(existing, InvalidInput, WithdrawalOptions(remove_target=True), "can't be removed")
    store = moved()
    append(setting_of(store).log(OLD), "own.parquet")
    both_refuse(store, Diverged, WithdrawalOptions(), "have diverged")
    append(setting_of(existing).log(OLD), "own.parquet")
    both_refuse(existing, Diverged, WithdrawalOptions(bring_back=True), "have diverged")


@pytest.mark.parametrize("rows", [0, 1])
@pytest.mark.parametrize("brings", [False, True])
def test_the_way_from_an_existing_table_is_planned(rows: int, brings: bool) -> None:
    options = WithdrawalOptions(bring_back=brings)
    store = moved(Data.EXISTING, rows)
    before, planned = store.objects, plans.undo(setting_of(store), OLD, options)
    assert store.objects == before
    outcome = disabling.disable(setting_of(store, new_id=numbered("act")), OLD, options)
    (last,) = [
        step["version"] for step in planned if step.get("state") == RedirectState.NORMAL.value
    ]
    assert outcome.version == last == 6 + (1 if brings and rows else 0)
    assert ("copy_changes" in [step["op"] for step in planned]) == brings


def test_a_table_without_a_redirect_has_nothing_planned() -> None:
    for planned in (plans.undo, plans.cancel):
        assert planned(setting_of(world()), OLD) == []


def test_an_old_entry_that_is_back_is_planned_to_be_taken_away() -> None:
    store = moved()
    setting = setting_of(store, new_id=numbered("back"))
    ready = setting.log(OLD).state()
    disabling.disable(setting, OLD)
    log = setting.log(OLD)
    restore = Transaction("RESTORE", "r", protocol=ready.protocol, metadata=ready.metadata)
    version = log.state().version
    log.commit(restore, log.state())
    planned = plans.undo(setting, OLD)
    commits = [(step["version"], step["state"]) for step in planned if step["op"] == "commit"]
    assert commits == [(version + 2, "NORMAL")]
