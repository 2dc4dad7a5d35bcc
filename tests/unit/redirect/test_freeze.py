"""Making a table read-only and writable again, on stores in memory."""

from __future__ import annotations

import pytest

from lakeferry.errors import RedirectIllegalTransition, RedirectInProgress, RedirectSpecInvalid
from lakeferry.redirect import freeze, resuming, status
from lakeferry.redirect.disable import disabling
from lakeferry.redirect.enable import enabling
from lakeferry.redirect.entry import Mode
from lakeferry.redirect.resolve import Resolver
from lakeferry.redirect.states import RedirectState
from tests.support import plans
from tests.support.history import Append, History, SetProperties
from tests.support.lake import entry
from tests.support.places import opener
from tests.support.redirects import (
    OLD,
    REDIRECT_FEATURES,
    WORLD,
    content,
    protocol_features,
    request_for,
    setting_of,
    world_with,
)
from tests.support.stores import DictStore, Fault, FaultyStore, Stopped, on


@pytest.fixture
def store() -> DictStore:
    """A world with one table in it."""
    return DictStore(world_with(History().then(Append(2))), uri=WORLD)


@pytest.mark.parametrize("mode", Mode)
def test_a_frozen_table_is_read_where_it_is_and_not_written(store: DictStore, mode: Mode) -> None:
    setting = setting_of(store)
    before = content(store.objects, OLD)
    outcome = freeze.freeze(setting, OLD, mode)
    assert (outcome.state, outcome.version, outcome.changed) == (RedirectState.ENABLING, 2, True)
    assert content(store.objects, OLD) == before
    resolver = Resolver(opener(store))
    assert resolver.resolve(OLD).location == OLD
    with pytest.raises(RedirectInProgress):
        resolver.resolve(OLD, write=True)
    assert not freeze.freeze(setting, OLD, mode).changed
    outcome = freeze.thaw(setting, OLD)
    assert (outcome.state, outcome.version, outcome.changed) == (RedirectState.NORMAL, 3, True)
    assert not protocol_features(store.objects, OLD) & REDIRECT_FEATURES
    assert not freeze.thaw(setting, OLD).changed


def test_a_frozen_table_has_nothing_to_go_on_with(store: DictStore) -> None:
    setting = setting_of(store)
    freeze.freeze(setting, OLD)
    for act in (resuming.resume, disabling.disable):
        with pytest.raises(RedirectIllegalTransition):
            act(setting, OLD)
    with pytest.raises(RedirectInProgress):
        enabling.enable(setting, request_for())


STRAYS = ["redirectWriterOnly", "delta.redirectWriterOnly", "delta.redirectReaderWriter-preview"]


@pytest.mark.parametrize("name", STRAYS)
def test_a_table_with_a_property_without_its_feature_isn_t_frozen(name: str) -> None:
    stray = SetProperties(((name, entry("s3://elsewhere/t")),))
    store = DictStore(world_with(History().then(Append(2), stray)), uri=WORLD)
    setting, before = setting_of(store), store.objects
    for act in (freeze.freeze, plans.freeze):
        with pytest.raises(RedirectSpecInvalid, match="without its table feature") as refused:
            act(setting, OLD, Mode.WRITER_ONLY)
        assert name in (refused.value.remedy or "")
    assert store.objects == before


def test_a_move_is_neither_frozen_nor_thawed(store: DictStore) -> None:
    faulty = FaultyStore(store, on("COPY", Fault.STOP_BEFORE))
    with pytest.raises(Stopped):
        enabling.enable(setting_of(faulty, clock=store.clock), request_for())
    setting = setting_of(store)
    with pytest.raises(RedirectIllegalTransition):
        freeze.freeze(setting, OLD)
    with pytest.raises(RedirectIllegalTransition):
        freeze.thaw(setting, OLD)


def test_a_frozen_table_says_so_and_that_thawing_it_lets_it_move(store: DictStore) -> None:
    setting = setting_of(store)
    assert freeze.freeze(setting, OLD).as_document()["frozen"] is True
    assert freeze.freeze(setting, OLD).as_document()["frozen"] is True
    found = status.status(setting, OLD).as_document()
    assert (found["state"], found["frozen"]) == ("ENABLE-REDIRECT-IN-PROGRESS", True)
    for act in (enabling.enable, plans.enable):
        with pytest.raises(RedirectInProgress) as refused:
            act(setting, request_for())
        assert f"redirect thaw {OLD}" in (refused.value.remedy or "")
    assert freeze.thaw(setting, OLD).as_document()["frozen"] is False
    assert status.status(setting, OLD).as_document()["frozen"] is False
    assert enabling.enable(setting, request_for()).state is RedirectState.READY
