"""Where a path leads, on stores in memory, and what it costs to find out."""

from __future__ import annotations

import pytest

from lakeferry.errors import (
    RedirectCycle,
    RedirectInProgress,
    RedirectRuleViolated,
    RedirectTargetMissing,
    TableNotFound,
)
from lakeferry.redirect.disable import disabling
from lakeferry.redirect.enable import enabling
from lakeferry.redirect.entry import Data
from lakeferry.redirect.no_redirect_rules import Rule
from lakeferry.redirect.redirect_context import Setting
from lakeferry.redirect.resolve import CACHE_SECONDS, Resolver
from tests.support.history import Append, Checkpoint, History
from tests.support.places import below, inside, opener
from tests.support.redirects import (
    NEW,
    OLD,
    OTHER,
    WORLD,
    append,
    request_for,
    setting_of,
    world_with,
)
from tests.support.stores import DictStore, Fault, FaultyStore, Stopped, StoreCall, on
from tests.support.strangers import stranger

PAST = History().then(Append(2), Checkpoint(), Append(1))
READY = 4
APP = Rule("app", ("VACUUM START",))


@pytest.fixture
def store() -> DictStore:
    """A world with one table in it."""
    return DictStore(world_with(PAST), uri=WORLD)


@pytest.fixture
def setting(store: DictStore) -> Setting:
    """What procedures in that world are given."""
    return setting_of(store)


def resolver_of(store: DictStore) -> Resolver:
    """Return a resolver that remembers nothing."""
    return Resolver(opener(store), cache_seconds=0)


def test_a_table_without_a_redirect_is_where_it_is(store: DictStore) -> None:
    found = resolver_of(store).resolve(OLD, write=True)
    assert (found.location, found.redirected, found.chain) == (OLD, False, (OLD,))


def test_while_a_table_is_on_its_way_it_is_read_at_the_source(store: DictStore) -> None:
    faulty = FaultyStore(store, on("COPY", Fault.STOP_AFTER))
    with pytest.raises(Stopped):
        enabling.enable(setting_of(faulty, clock=store.clock), request_for())
    assert resolver_of(store).resolve(OLD).location == OLD
    with pytest.raises(RedirectInProgress):
        resolver_of(store).resolve(OLD, write=True)


def test_once_it_is_ready_everybody_is_sent_on(store: DictStore, setting: Setting) -> None:
    enabling.enable(setting, request_for())
    for write in (False, True):
        found = resolver_of(store).resolve(OLD, write=write)
        assert (found.location, found.redirected, found.chain) == (NEW, True, (OLD, NEW))


def test_while_it_comes_back_it_is_read_at_the_target(store: DictStore, setting: Setting) -> None:
    enabling.enable(setting, request_for())
    for name in (f"new/_delta_log/{5:020d}", f"old/_delta_log/{5:020d}"):
        rule = on("PUT_IF_ABSENT", Fault.STOP_AFTER, containing=name)
        with pytest.raises(Stopped):
            disabling.disable(setting_of(FaultyStore(store, rule), clock=store.clock), OLD)
        assert resolver_of(store).resolve(OLD).location == NEW
        with pytest.raises(RedirectInProgress):
            resolver_of(store).resolve(OLD, write=True)
    disabling.disable(setting, OLD)
    assert resolver_of(store).resolve(OLD, write=True).location == OLD
    # The target is locked for ever; who goes there directly is told so.
    assert resolver_of(store).resolve(NEW).location == NEW
    with pytest.raises(RedirectInProgress):
        resolver_of(store).resolve(NEW, write=True)


def test_a_rule_keeps_an_app_at_the_source(store: DictStore, setting: Setting) -> None:
    enabling.enable(setting, request_for(rules=(APP,)))
    found = resolver_of(store).resolve(OLD, app_name="APP", write=True)
    assert (found.location, found.rule) == (OLD, APP)
    found.check_operation("vacuum start")
    with pytest.raises(RedirectRuleViolated):
        found.check_operation("WRITE")
    assert resolver_of(store).resolve(OLD, app_name="another").location == NEW


def test_redirects_are_followed_from_table_to_table(store: DictStore, setting: Setting) -> None:
    enabling.enable(setting, request_for(NEW))
    enabling.enable(setting, request_for(OTHER, source=NEW))
    found = resolver_of(store).resolve(OLD, write=True)
    assert found.chain == (OLD, NEW, OTHER)


def test_a_redirect_that_leads_back_is_a_cycle(store: DictStore) -> None:
    copied = DictStore(store.objects | inside("new", below(store.objects, "old")), uri=WORLD)
    setting = setting_of(copied)
    enabling.enable(setting, request_for(NEW, data=Data.EXISTING))
    with pytest.raises(RedirectCycle):
        enabling.enable(setting, request_for(OLD, source=NEW, data=Data.EXISTING))


def test_a_target_that_is_gone_is_said_to_be(store: DictStore, setting: Setting) -> None:
    enabling.enable(setting, request_for())
    store.delete_many([f"new/{name}" for name in below(store.objects, "new")])
    with pytest.raises(RedirectTargetMissing) as missing:
        resolver_of(store).resolve(OLD)
    assert missing.value.fields["target"] == NEW
    with pytest.raises(TableNotFound):
        resolver_of(store).resolve(f"{WORLD}/nothing")


def test_it_costs_a_few_requests_per_table_and_one_for_each_when_asked_again(
    store: DictStore, setting: Setting
) -> None:
    enabling.enable(setting, request_for(NEW))
    enabling.enable(setting, request_for(OTHER, source=NEW))
    resolver = Resolver(opener(store))
    store.calls.reset()
    assert len(resolver.resolve(OLD).chain) == 3
    # Three for each table; one for each redirect, whether it arrived; one for each target.
    assert len(store.calls.log) <= 3 * 3 + 2 + 2
    store.calls.reset()
    assert resolver.resolve(OLD, write=True).location == OTHER
    assert [verb for verb, _ in store.calls.log] == ["LIST", "GET", "GET"]


def test_a_commit_at_the_target_makes_it_no_dearer(store: DictStore, setting: Setting) -> None:
    enabling.enable(setting, request_for())
    append(setting.log(NEW), "x.parquet")
    store.calls.reset()
    resolver_of(store).resolve(OLD)
    assert len(store.calls.log) <= 4 * 2


def test_what_is_remembered_is_asked_for_anew_when_the_source_moves_on(
    store: DictStore, setting: Setting
) -> None:
    now = 0.0
    resolver = Resolver(opener(store), monotonic=lambda: now)
    assert resolver.resolve(OLD).location == OLD
    enabling.enable(setting, request_for())
    assert resolver.resolve(OLD).location == NEW
    disabling.disable(setting, OLD)
    assert resolver.resolve(OLD, write=True).location == OLD
    now = CACHE_SECONDS + 1
    store.calls.reset()
    resolver.resolve(OLD)
    assert len(store.calls.log) > 1


def replace_source(store: DictStore, objects: dict[str, bytes]) -> None:
    """Delete the source, and put another table in its place."""
    store.delete_many([f"old/{name}" for name in below(store.objects, "old")])
    for name, data in inside("old", objects).items():
        store.put(name, data)


@pytest.mark.parametrize("commits", [1, 2, READY + 1])
def test_another_table_at_the_source_is_noticed_by_a_resolver_that_remembers(
    store: DictStore, setting: Setting, commits: int
) -> None:
    enabling.enable(setting, request_for())
    assert setting.log(OLD).state().version == READY
    resolver = Resolver(opener(store))
    assert resolver.resolve(OLD).location == NEW
    replace_source(store, stranger(commits))
    assert resolver.resolve(OLD, write=True).location == OLD
    replace_source(store, {})
    with pytest.raises(TableNotFound):
        resolver.resolve(OLD)


def test_a_redirect_at_the_place_of_a_longer_log_is_noticed_by_a_resolver_that_remembers(
    store: DictStore, setting: Setting
) -> None:
    moved = DictStore(store.objects, uri=WORLD)
    enabling.enable(setting_of(moved), request_for())
    for number in range(9):
        append(setting.log(OLD), f"{number}.parquet")
    resolver = Resolver(opener(store))
    assert resolver.resolve(OLD).location == OLD
    replace_source(store, below(moved.objects, "old"))
    for name, data in below(moved.objects, "new").items():
        store.put(f"new/{name}", data)
    assert resolver.resolve(OLD).location == NEW


def test_who_looked_before_a_withdrawal_ended_doesn_t_take_it_for_a_restore(
    store: DictStore, setting: Setting
) -> None:
    enabling.enable(setting, request_for())
    ended: list[bool] = []

    def rule(call: StoreCall) -> Fault | None:
        # The source has been looked at, and the target is about to be.
        if not ended and call.paths[0].startswith("new/"):
            ended.append(True)
            disabling.disable(setting, OLD)
        return None

    resolver = Resolver(opener(FaultyStore(store, rule)))
    assert resolver.resolve(OLD).location == NEW
    assert resolver.resolve(OLD).location == OLD
