"""Which old paths lead to a table, as far as the table and its old path tell."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lakeferry.errors import StorageUnavailable
from lakeferry.log import paths
from lakeferry.redirect.disable import disabling
from lakeferry.redirect.enable import enabling
from lakeferry.redirect.old_paths import OldPath, old_paths
from lakeferry.redirect.redirect_context import Setting
from lakeferry.redirect.states import RedirectState
from lakeferry.storage import Store
from lakeferry.table import DeltaLog
from tests.support.history import Append, History
from tests.support.places import below
from tests.support.redirects import (
    NEW,
    OLD,
    WORLD,
    append,
    request_for,
    setting_of,
    world_with,
)
from tests.support.stored_tables import OTHER_NAME, StoredTables, managed_request, managed_setting
from tests.support.stores import DictStore

FIRST = "00000000-0000-4000-8000-000000000000"
PAST = History().then(Append(1), Append(1))
READY = RedirectState.READY


def world() -> DictStore:
    return DictStore(world_with(PAST), uri=WORLD)


def by_id(setting: Setting) -> DeltaLog:
    """Return the log of the managed table, under whatever name."""
    unity = setting.catalog("unity")
    found = unity.find_id(FIRST)
    assert found is not None
    setting.grant(found.location, unity.access(found))
    return setting.log(found.location)


def test_the_old_path_of_a_managed_table_is_found_under_any_name() -> None:
    store = world()
    enabling.enable(managed_setting(store), managed_request())
    append(by_id(managed_setting(store)), "x.parquet")
    StoredTables(store).rename(FIRST, "main.sales.orders", OTHER_NAME)
    setting = managed_setting(store)
    assert old_paths(setting.log, by_id(setting)) == [OldPath(OLD, READY)]


def test_every_path_of_a_chain_is_found_the_latest_first() -> None:
    store = world()
    setting = managed_setting(store)
    enabling.enable(setting, request_for())
    enabling.enable(setting, managed_request(source=NEW))
    assert old_paths(setting.log, by_id(setting)) == [OldPath(NEW, READY), OldPath(OLD, READY)]


def test_a_path_that_leads_nowhere_or_elsewhere_is_none() -> None:
    store = world()
    enabling.enable(managed_setting(store), managed_request())
    setting = managed_setting(store)
    target = by_id(setting)
    disabling.disable(managed_setting(store), OLD)
    assert old_paths(setting.log, target) == []
    enabling.enable(setting_of(store), request_for())
    assert old_paths(setting.log, target) == []
    for name in below(store.objects, "old"):
        store.delete_many([f"old/{name}"])
    assert old_paths(setting.log, target) == []


def test_a_path_that_cannot_be_read_may_lead_here() -> None:
    store = world()
    enabling.enable(managed_setting(store), managed_request())
    setting = managed_setting(store)
    target = by_id(setting)

    def closed(uri: str) -> Store:
        raise StorageUnavailable(f"{uri} doesn't answer")

    (found,) = old_paths(replace(setting, open_store=closed).log, target)
    assert (found.source, found.state) == (OLD, None)
    assert "doesn't answer" in (found.why or "")


@pytest.mark.parametrize("ended", [False, True])
def test_a_move_whose_record_was_cleaned_up_may_have_left_a_path(ended: bool) -> None:
    store = world()
    enabling.enable(managed_setting(store), managed_request())
    setting = managed_setting(store)
    target = by_id(setting)
    if ended:
        disabling.disable(managed_setting(store), OLD)
    written = target.checkpoint()
    place = f"managed/{FIRST}"
    old = [paths.commit(version) for version in range(written.version)]
    store.delete_many([f"{place}/{name}" for name in old])
    (found,) = old_paths(setting.log, target)
    assert (found.source, found.state) == (None, None)
    assert "cleaned up" in (found.why or "")


@pytest.mark.parametrize("past", [PAST, History()])
def test_a_table_that_never_moved_has_none(past: History) -> None:
    store = DictStore(world_with(past), uri=WORLD)
    setting = setting_of(store)
    assert old_paths(setting.log, setting.log(OLD)) == []
