"""Redirects whose process dies, or whose store fails, at any storage call.

Each procedure is run once for every call that it makes and every way in which that
call can go wrong, or for this run's share of those. On a copy of each world that is
left, whatever a person might do next is done: go on, go back, begin anew. Whatever
that is, the table has the same rows in every version, and doing it twice changes
nothing.
"""

from __future__ import annotations

import pytest

from lakeferry.errors import RedirectIllegalTransition
from lakeferry.log.commit import Transaction
from lakeferry.redirect import freeze, status
from lakeferry.redirect.disable import disabling
from lakeferry.redirect.enable import enabling
from lakeferry.redirect.entry import Data, Mode
from lakeferry.redirect.no_redirect_rules import Rule
from lakeferry.redirect.outcome import Outcome
from lakeferry.redirect.redirect_context import Setting
from lakeferry.redirect.states import RedirectState
from tests.simulation.redirect_cases import (
    ABSOLUTE,
    CASES,
    CLEANED,
    SIDECARS,
    VECTORS,
    Case,
    Objects,
    Past,
    check_back,
    check_home,
    check_idle,
    check_ready,
    check_rows,
    has_record,
    is_decided,
    leftovers,
    moved,
    past_of,
    resume,
    run,
    stages,
    state_of,
    take_back,
    withdraw,
)
from tests.support.history import Append, History
from tests.support.places import below, inside
from tests.support.redirects import (
    NEW,
    OLD,
    REDIRECT_FEATURES,
    WORLD,
    append,
    content,
    protocol_features,
    request_for,
    setting_of,
)
from tests.support.shares import Share
from tests.support.stores import DictStore

# ------------------------------------------------------------------------------ enable


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_move_that_is_broken_off_anywhere_goes_on_or_back(case: Case, share: Share) -> None:
    before = past_of(case.world)
    past_no_return = 0
    for left in leftovers(share, case.world, case.enable, thorough=case is VECTORS):
        check_rows(left, OLD, before)
        _says_so(left, case)
        _goes_on(left, case, before)
        if is_decided(left, before):
            past_no_return += 1
            with pytest.raises(RedirectIllegalTransition):
                run(left, take_back, "second")
        else:
            _goes_back(left, case, before)
    assert past_no_return >= 3 or not share.is_whole


def _says_so(left: Objects, case: Case) -> None:
    """Check what ``status`` says of a move that was broken off before it began."""
    found = status.status(setting_of(DictStore(left, uri=WORLD)), OLD)
    if state_of(left) is not RedirectState.NORMAL or not has_record(left):
        assert found.unfinished is None
        return
    copied = {name: data for name, data in below(left, "new").items() if "_delta_log" not in name}
    assert found.unfinished is not None
    assert found.unfinished.as_document() == {
        "target": NEW,
        "mode": case.mode.value,
        "data": case.data.value,
        "files_copied": len(copied),
        "bytes_copied": sum(map(len, copied.values())),
        "cancelled": False,
    }


def _goes_on(left: Objects, case: Case, before: Past) -> None:
    begun = state_of(left) is not RedirectState.NORMAL
    ways = [resume] if begun else [resume, case.enable] if has_record(left) else [case.enable]
    for goes_on in ways:
        outcome, after = run(left, goes_on, "second")
        assert outcome.state is RedirectState.READY
        check_ready(after, before)
        check_idle(after, resume)
        check_idle(after, case.enable)


def _goes_back(left: Objects, case: Case, before: Past) -> None:
    begun = state_of(left) is not RedirectState.NORMAL or has_record(left)
    outcome, after = run(left, take_back, "second")
    assert (outcome.state, outcome.changed) == (RedirectState.NORMAL, begun)
    if begun:
        check_back(after, before)
    else:
        assert after == left
    check_idle(after, take_back)
    outcome, anew = run(after, case.enable, "third")
    assert outcome.state is RedirectState.READY
    check_ready(anew, before)


# ------------------------------------------------------------------------------ cancel


@pytest.mark.parametrize("case", [VECTORS, CLEANED, SIDECARS])
def test_a_cancel_that_is_broken_off_anywhere_goes_on(case: Case, share: Share) -> None:
    before = past_of(case.world)
    for begun in stages(case):
        for left in leftovers(share, begun, take_back, thorough=case is VECTORS):
            check_rows(left, OLD, before)
            outcome, after = run(left, take_back, "second")
            assert outcome.state is RedirectState.NORMAL
            check_back(after, before)
            check_idle(after, take_back)
            _resume_follows(left, before)
            outcome, anew = run(after, case.enable, "third")
            assert outcome.state is RedirectState.READY
            check_ready(anew, before)


def _resume_follows(left: Objects, before: Past) -> None:
    """Check that ``resume`` follows what the cancel has decided, if it has."""
    if state_of(left) is RedirectState.NORMAL and not has_record(left):
        with pytest.raises(RedirectIllegalTransition):
            run(left, resume, "second")
        return
    if state_of(left) is RedirectState.NORMAL:
        outcome, after = run(left, resume, "second")
        assert outcome.state is RedirectState.NORMAL
        check_back(after, before)
        return
    closed = is_decided(left, before)
    outcome, after = run(left, resume, "second")
    assert outcome.state is (RedirectState.NORMAL if closed else RedirectState.READY)
    (check_back if closed else check_ready)(after, before)


# ----------------------------------------------------------------------------- disable


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_withdrawal_that_is_broken_off_anywhere_goes_on(case: Case, share: Share) -> None:
    objects = moved(case)
    before = past_of(objects, NEW)
    for left in leftovers(share, objects, withdraw, thorough=case is VECTORS):
        outcome, after = run(left, withdraw, "second")
        assert outcome.state is RedirectState.NORMAL
        check_home(after, before)
        check_idle(after, withdraw)
        if left != objects and state_of(left) is not RedirectState.NORMAL:
            outcome, after = run(left, resume, "third")
            assert outcome.state is RedirectState.NORMAL
            check_home(after, before)


def by_reference(setting: Setting) -> Outcome:
    """Bring the table back, and leave its new files where they are."""
    return disabling.disable(setting, OLD, disabling.WithdrawalOptions(data=Data.REFERENCE))


def test_a_withdrawal_by_reference_that_is_broken_off_anywhere_goes_on(share: Share) -> None:
    objects = moved(SIDECARS)
    before = past_of(objects, NEW)
    for left in leftovers(share, objects, by_reference, thorough=False):
        _, after = run(left, by_reference, "second")
        check_home(after, before)
        assert below(after, "old").keys() & {"x.parquet", "y.parquet"} == set()
        check_idle(after, by_reference)


HOUSEKEEPING = Case(
    History().then(Append(2), Append(1)), rules=(Rule("housekeeping", ("VACUUM START",)),)
)


def test_a_net_change_that_is_broken_off_anywhere_comes_home_once(share: Share) -> None:
    store = DictStore(moved(HOUSEKEEPING), uri=WORLD)
    log = setting_of(store).log(OLD)
    log.commit(Transaction("VACUUM START", "vacuum"), log.state())
    expected = content(store.objects, NEW)
    for left in leftovers(share, store.objects, withdraw):
        outcome, after = run(left, withdraw, "second")
        assert outcome.state is RedirectState.NORMAL
        assert content(after, OLD) == expected
        assert not protocol_features(after, OLD) & REDIRECT_FEATURES
        check_idle(after, withdraw)


def test_a_commit_beside_a_withdrawal_that_was_broken_off_makes_it_a_net_change(
    share: Share,
) -> None:
    objects = moved(HOUSEKEEPING)
    expected = content(objects, NEW)
    beside = 0
    for left in leftovers(share, objects, withdraw, thorough=False):
        if state_of(left) is not RedirectState.READY:
            continue
        store = DictStore(left, uri=WORLD)
        log = setting_of(store).log(OLD)
        log.commit(Transaction("VACUUM START", "vacuum"), log.state())
        outcome, after = run(store.objects, withdraw, "second")
        assert outcome.state is RedirectState.NORMAL
        assert content(after, OLD) == expected
        beside += 1
    assert beside > 5 or not share.is_whole


# ------------------------------------------------------------- to what is there; freezing


def to_existing(setting: Setting) -> Outcome:
    """Redirect the table to a copy of it."""
    return enabling.enable(setting, request_for(data=Data.EXISTING))


def test_a_redirect_to_an_existing_table_that_is_broken_off_anywhere_goes_on_or_back(
    share: Share,
) -> None:
    copied = VECTORS.world | inside("new", below(VECTORS.world, "old"))
    before = past_of(copied)
    for left in leftovers(share, copied, to_existing):
        begun = state_of(left) is not RedirectState.NORMAL
        outcome, after = run(left, resume if begun else to_existing, "second")
        assert outcome.state is RedirectState.READY
        check_rows(after, OLD, before)
        assert below(after, "new") == below(copied, "new")
        check_idle(after, resume)
        if state_of(left) is RedirectState.READY:
            continue
        outcome, after = run(left, take_back, "second")
        assert outcome.state is RedirectState.NORMAL
        check_rows(after, OLD, before)
        assert below(after, "new") == below(copied, "new")
        check_idle(after, take_back)


def test_an_existing_table_s_changes_come_home_wherever_that_is_broken_off(share: Share) -> None:
    copied = VECTORS.world | inside("new", below(VECTORS.world, "old"))
    _, objects = run(copied, to_existing, "moved")
    store = DictStore(objects, uri=WORLD)
    append(setting_of(store).log(NEW), "x.parquet")
    expected = content(store.objects, NEW)

    def bring_back(setting: Setting) -> Outcome:
        return disabling.disable(setting, OLD, disabling.WithdrawalOptions(bring_back=True))

    for left in leftovers(share, store.objects, bring_back):
        _, after = run(left, bring_back, "second")
        assert content(after, OLD) == expected
        assert state_of(after) is RedirectState.NORMAL
        check_idle(after, bring_back)


@pytest.mark.parametrize("mode", Mode)
def test_freezing_and_thawing_that_is_broken_off_anywhere_goes_on(mode: Mode, share: Share) -> None:
    before = past_of(ABSOLUTE.world)

    def freezes(setting: Setting) -> Outcome:
        return freeze.freeze(setting, OLD, mode)

    def thaws(setting: Setting) -> Outcome:
        return freeze.thaw(setting, OLD)

    _, frozen = run(ABSOLUTE.world, freezes, "frozen")
    for objects, procedure, state in (
        (ABSOLUTE.world, freezes, RedirectState.ENABLING),
        (frozen, thaws, RedirectState.NORMAL),
    ):
        for left in leftovers(share, objects, procedure):
            _, after = run(left, procedure, "second")
            assert state_of(after) is state
            check_rows(after, OLD, before)
            check_idle(after, procedure)
