"""Redirecting to a table that is there already, on stores in memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from lakeferry.errors import (
    LakeferryError,
    NotEqual,
    RedirectCycle,
    RedirectIllegalTransition,
    RedirectInProgress,
    RedirectTargetMissing,
    RedirectTargetNotEmpty,
)
from lakeferry.redirect import cancel, freeze, resuming
from lakeferry.redirect.disable import disabling
from lakeferry.redirect.enable import enabling
from lakeferry.redirect.entry import Data
from lakeferry.redirect.redirect_context import Setting
from lakeferry.redirect.resolve import Resolver
from lakeferry.redirect.states import RedirectState
from lakeferry.redirect.steps import RedirectStep
from tests.support import plans
from tests.support.history import Append, History
from tests.support.places import below, inside, opener
from tests.support.redirects import (
    NEW,
    OLD,
    OTHER,
    WORLD,
    append,
    numbered,
    redirect_at,
    request_for,
    setting_of,
    world_with,
)
from tests.support.stores import DictStore, Fault, FaultyStore, Stopped, StoreCall, on

TABLE = world_with(History().then(Append(2)))
TO_NEW = request_for(data=Data.EXISTING)


@pytest.fixture
def store() -> DictStore:
    """A world with a table, and a copy of it."""
    return DictStore(TABLE | inside("new", below(TABLE, "old")), uri=WORLD)


def refused(store: DictStore, kind: type[LakeferryError], request: Any = TO_NEW) -> LakeferryError:
    """Check that a request is refused, planned or not, and that nothing changes."""
    before = store.objects
    errors = []
    for act in (plans.enable, enabling.enable):
        with pytest.raises(kind) as caught:
            act(setting_of(store, new_id=numbered("refused")), request)
        errors.append(caught.value)
    assert store.objects == before
    assert str(errors[0]) == str(errors[1])
    return errors[1]


def test_the_source_leads_to_the_copy_and_the_copy_isn_t_touched(store: DictStore) -> None:
    setting, copied = setting_of(store), below(store.objects, "new")
    planned = plans.enable(setting, TO_NEW)
    outcome = enabling.enable(setting, TO_NEW)
    assert (outcome.state, outcome.version) == (RedirectState.READY, 3)
    assert [step.get("version") for step in planned] == [None, 2, 3, 3]
    assert below(store.objects, "new") == copied
    assert Resolver(opener(store)).resolve(OLD, write=True).location == NEW


def closed(setting: Setting) -> None:
    """Leave a target behind that a withdrawal has closed."""
    enabling.enable(setting, request_for(source=OTHER))
    disabling.disable(setting, OTHER)


def frozen(setting: Setting) -> None:
    """Freeze the target."""
    freeze.freeze(setting, NEW)


@pytest.mark.parametrize(
    ("make", "kind", "remedy"),
    [
        (closed, RedirectIllegalTransition, "another place"),
        (frozen, RedirectIllegalTransition, "redirect thaw"),
    ],
)
def test_a_target_that_nobody_can_write_to_is_refused(
    make: Callable[[Setting], None], kind: type[LakeferryError], remedy: str
) -> None:
    world = TABLE | inside("other", below(TABLE, "old"))
    if make is frozen:
        world |= inside("new", below(TABLE, "old"))
    store = DictStore(world, uri=WORLD)
    make(setting_of(store))
    error = refused(store, kind)
    assert remedy in (error.remedy or "")
    assert "moment" not in (error.remedy or "")


def test_a_chain_that_ends_where_nobody_can_write_is_refused(store: DictStore) -> None:
    for name, data in below(TABLE, "old").items():
        store.put(f"other/{name}", data)
    setting = setting_of(store)
    enabling.enable(setting, request_for(OTHER, source=NEW, data=Data.EXISTING))
    freeze.freeze(setting, OTHER)
    assert OTHER in str(refused(store, RedirectIllegalTransition))


def test_a_target_that_another_table_is_moving_to_is_in_progress() -> None:
    store = DictStore(TABLE | inside("other", below(TABLE, "old")), uri=WORLD)
    opening = on("PUT_IF_ABSENT", Fault.STOP_BEFORE, containing=f"new/_delta_log/{3:020d}.json")
    faulty = FaultyStore(store, opening)
    with pytest.raises(Stopped):
        enabling.enable(setting_of(faulty, clock=store.clock), request_for(source=OTHER))
    assert OTHER in str(refused(store, RedirectInProgress))


def test_a_closed_target_is_no_place_to_move_to_and_to_existing_isn_t_suggested() -> None:
    store = DictStore(TABLE | inside("other", below(TABLE, "old")), uri=WORLD)
    closed(setting_of(store))
    error = refused(store, RedirectTargetNotEmpty, request_for())
    assert "closed" in (error.cause or "")
    assert "--to-existing" not in (error.remedy or "")


def test_a_table_that_is_open_may_be_what_to_existing_is_for(store: DictStore) -> None:
    error = refused(store, RedirectTargetNotEmpty, request_for())
    assert "--to-existing" in (error.remedy or "")


def test_what_is_missing_unequal_or_leads_back_is_refused_by_a_plan_too(store: DictStore) -> None:
    refused(store, RedirectTargetMissing, request_for(OTHER, data=Data.EXISTING))
    append(setting_of(store).log(NEW), "more.parquet")
    refused(store, NotEqual)
    setting = setting_of(store)
    append(setting.log(OLD), "more.parquet")
    enabling.enable(setting, request_for(OLD, source=NEW, data=Data.EXISTING))
    refused(store, RedirectCycle)


@pytest.mark.parametrize("go_on", [plans.resume, resuming.resume], ids=["plan", "resume"])
def test_a_target_that_is_frozen_meanwhile_is_refused_when_the_move_goes_on(
    store: DictStore, go_on: Callable[[Setting, str], object]
) -> None:
    ready = on("PUT_IF_ABSENT", Fault.STOP_BEFORE, containing=f"old/_delta_log/{3:020d}.json")
    with pytest.raises(Stopped):
        enabling.enable(setting_of(FaultyStore(store, ready), clock=store.clock), TO_NEW)
    setting = setting_of(store, new_id=numbered("again"))
    freeze.freeze(setting, NEW)
    with pytest.raises(RedirectIllegalTransition, match="frozen"):
        go_on(setting, OLD)
    assert cancel.cancel(setting, OLD).state is RedirectState.NORMAL
    assert redirect_at(setting) is None


@pytest.mark.parametrize("place", [None, OLD, NEW], ids=["nobody", "source", "target"])
def test_what_was_compared_is_compared_again_only_where_somebody_has_written(
    place: str | None, store: DictStore
) -> None:
    steps: list[RedirectStep] = []
    begins = f"old/_delta_log/{2:020d}.json"

    def written_meanwhile(call: StoreCall) -> Fault | None:
        if call.verb == "PUT_IF_ABSENT" and begins in call.paths and place and len(steps) == 1:
            steps.append(steps[0])
            append(setting_of(store).log(place), "more.parquet")
        return None

    setting = setting_of(FaultyStore(store, written_meanwhile), clock=store.clock)
    setting = replace(setting, step=steps.append)
    if place is None:
        assert enabling.enable(setting, TO_NEW).state is RedirectState.READY
        assert [step.op for step in steps] == ["compare", "commit", "commit", "checkpoint"]
        return
    with pytest.raises(NotEqual):
        enabling.enable(setting, TO_NEW)
    assert redirect_at(setting_of(store)) is None
