"""What is told of a redirect, and of one that is about to end, on stores in memory."""

from __future__ import annotations

import pytest

from lakeferry.errors import RedirectInProgress
from lakeferry.redirect import resuming, status
from lakeferry.redirect.disable import disabling
from lakeferry.redirect.enable import enabling
from lakeferry.redirect.no_redirect_rules import Rule
from lakeferry.redirect.states import RedirectState
from tests.support import plans
from tests.support.history import Append, History
from tests.support.redirects import (
    NEW,
    OLD,
    WORLD,
    numbered,
    request_for,
    setting_of,
    world_with,
)
from tests.support.stores import DictStore, Fault, FaultyStore, Stopped, on


@pytest.fixture
def store() -> DictStore:
    """A world in which a table has moved."""
    store = DictStore(world_with(History().then(Append(2))), uri=WORLD)
    enabling.enable(setting_of(store), request_for())
    return store


def withdrawal_begun(store: DictStore) -> None:
    """Lock the target, and no more."""
    lock = on("PUT_IF_ABSENT", Fault.STOP_AFTER, containing=f"new/_delta_log/{4:020d}.json")
    faulty = FaultyStore(store, lock)
    with pytest.raises(Stopped):
        disabling.disable(setting_of(faulty, clock=store.clock, new_id=numbered("back")), OLD)


def test_a_redirect_that_is_ready_is_told_without_a_warning(store: DictStore) -> None:
    found = status.status(setting_of(store), OLD)
    assert (found.state, found.target, found.source_version, found.target_version) == (
        RedirectState.READY,
        NEW,
        3,
        3,
    )
    assert found.warnings == ()


def test_a_withdrawal_that_has_begun_is_warned_of_while_the_source_is_ready(
    store: DictStore,
) -> None:
    withdrawal_begun(store)
    found = status.status(setting_of(store), OLD)
    assert (found.state, found.target_version) == (RedirectState.READY, 4)
    (warning,) = found.warnings
    assert NEW in warning
    assert "'lakeferry redirect resume' removes it" in warning
    resuming.resume(setting_of(store, new_id=numbered("resume")), OLD)
    found = status.status(setting_of(store), OLD)
    assert (found.state, found.warnings) == (RedirectState.NORMAL, ())


@pytest.mark.parametrize("rules", [(), (Rule("x", ("WRITE",)),)])
def test_a_redirect_that_is_being_withdrawn_isn_t_what_was_asked_for(
    store: DictStore, rules: tuple[Rule, ...]
) -> None:
    withdrawal_begun(store)
    before = store.objects
    setting = setting_of(store, new_id=numbered("again"))
    for act in (plans.enable, enabling.enable):
        with pytest.raises(RedirectInProgress) as refused:
            act(setting, request_for(rules=rules))
        assert "redirect resume" in (refused.value.remedy or "")
    assert store.objects == before
    assert resuming.resume(setting, OLD).state is RedirectState.NORMAL
