"""Ways back from a managed table whose process dies, or whose store or catalog fails, at any call.

As :mod:`tests.simulation.test_managed_move_crashes`. By the time the table comes back, it has
commits of many kinds that were made by its name, the newest of them not published. What has to hold
at the end: the source has all of them under the same numbers, it needs no catalog, and the table in
the catalog is locked, or dropped if that was asked for.
"""

from __future__ import annotations

from functools import partial

import pytest

from lakeferry.errors import RedirectIllegalTransition
from lakeferry.log import actions, paths
from lakeferry.log.commit import Transaction
from lakeferry.redirect import cancel, status
from lakeferry.redirect.disable import disabling
from lakeferry.redirect.disable.disabling import WithdrawalOptions
from lakeferry.redirect.outcome import Outcome
from lakeferry.redirect.redirect_context import Setting
from lakeferry.redirect.states import RedirectState
from tests.simulation.managed_cases import (
    CLEANED,
    PASTS,
    TIMESTAMPS,
    VECTORS,
    check_ratified,
    leftovers,
    move,
    run,
    state_of,
    tables_of,
)
from tests.simulation.redirect_cases import Objects, Past, delete_one, past_of, resume
from tests.support import naive
from tests.support.history import History
from tests.support.managed_worlds import (
    FIRST,
    FIRST_PLACE,
    granted_place,
    log_by_id,
    mark_deleted,
)
from tests.support.places import below
from tests.support.redirects import (
    OLD,
    REDIRECT_FEATURES,
    WORLD,
    append,
    content,
    folder_of,
    protocol_features,
    world_with,
)
from tests.support.shares import Share
from tests.support.stored_tables import managed_setting
from tests.support.stores import DictStore, Fault, FaultyStore, StoreCall

DROPS = WithdrawalOptions(remove_target=True)


def disable(setting: Setting, options: WithdrawalOptions = WithdrawalOptions()) -> Outcome:  # noqa: B008
    """End the redirect."""
    return disabling.disable(setting, OLD, options)


def moved(past: History) -> dict[str, bytes]:
    """Return the world after a move, with commits by name since; the newest isn't published."""
    _, objects = run(world_with(past), move, "moved")
    store = DictStore(objects, uri=WORLD)
    setting = managed_setting(store)
    log = log_by_id(setting)
    append(log, "x.parquet")
    mark_deleted(log, "x.parquet")
    state = log.state()
    changes = {"owner": "new", "delta.checkpointPolicy": "v2"}
    metadata = actions.changed(
        state.metadata, configuration=dict(state.metadata.configuration) | changes
    )
    log.commit(Transaction("SET TBLPROPERTIES", "txn-owner", metadata=metadata), state)
    delete_one(log)
    newest = append(log, "y.parquet") + 1

    def rule(call: StoreCall) -> Fault | None:
        name = f"{folder_of(FIRST_PLACE)}/{paths.commit(newest)}"
        put = call.verb == "PUT_IF_ABSENT" and name in call.paths
        return Fault.FAIL if put else None

    lagging = managed_setting(FaultyStore(store, rule), clock=store.clock)
    assert append(log_by_id(lagging), "z.parquet") == newest
    assert f"{folder_of(FIRST_PLACE)}/{paths.commit(newest)}" not in store.objects
    return store.objects


def check_home(objects: Objects, before: Past, there: Past, *, dropped: bool = False) -> None:
    """Check that the table is back with all commits, by their numbers, and needs no catalog."""
    now, last = past_of(objects, OLD), max(there)
    for version, expected in {**there, **before}.items():
        found = now[version]
        assert (found.files, found.txns, found.domains) == (
            expected.files,
            expected.txns,
            expected.domains,
        ), version
        assert {**found.metadata, "configuration": 0} == {**expected.metadata, "configuration": 0}
    own = before[max(before)].metadata["configuration"]
    newest = now[last + 2]
    assert max(now) == last + 2
    timed = {
        "delta.enableInCommitTimestamps",
        "delta.inCommitTimestampEnablementVersion",
        "delta.inCommitTimestampEnablementTimestamp",
    }
    configuration = newest.metadata["configuration"]
    assert configuration["delta.enableInCommitTimestamps"] == "true"
    assert {k: v for k, v in configuration.items() if k not in timed} == {
        **{k: v for k, v in own.items() if k not in timed},
        "owner": "new",
    }
    added = newest.features - before[max(before)].features
    assert added <= {"deletionVectors", "inCommitTimestamp", "appendOnly", "invariants"}
    for version in range(max(before) + 3, last + 3):
        features = now[version].features
        with_vectors = any(vector for _, vector in now[version].files)
        assert not with_vectors or "deletionVectors" in features
        assert "inCommitTimestamp" in features
        assert "catalogManaged" not in features
        assert "io.unitycatalog.tableId" not in now[version].metadata["configuration"]
    check_times(objects)
    assert not protocol_features(objects, OLD) & REDIRECT_FEATURES
    assert bool(tables_of(objects)) is not dropped
    if not dropped:
        ((_, table),) = tables_of(objects).items()
        assert (table.latest, table.published) == (last + 1, last + 1)
        assert protocol_features(objects, FIRST_PLACE) & REDIRECT_FEATURES


def check_times(objects: Objects) -> None:
    """Check that in-commit timestamps grow, from the version on that has the first one."""
    table = naive.replay(below(objects, "old"), root=OLD)
    first = int(table.metadata["configuration"].get("delta.inCommitTimestampEnablementVersion", 0))
    log = managed_setting(DictStore(objects, uri=WORLD)).log(OLD)
    times: list[int] = []
    for version in sorted(log.listing().commits):
        info = log.commit_info(version)
        if version >= first and info is not None:
            assert info.in_commit_timestamp is not None
            times.append(info.in_commit_timestamp)
    assert times == sorted(set(times))


def at_target(objects: Objects) -> Past:
    """Return every version that the catalog's log has, published or not."""
    published = dict(objects)
    setting = managed_setting(DictStore(objects, uri=WORLD))
    store = setting.open_store(granted_place(setting))
    for info in store.list("_delta_log/0"):
        if info.path.endswith(".json") and "checkpoint" not in info.path:
            published[f"{folder_of(FIRST_PLACE)}/{info.path}"] = store.get(info.path)
    versions = past_of(published, FIRST_PLACE)
    return {version: content(published, FIRST_PLACE, version) for version in versions}


@pytest.mark.parametrize("past", PASTS.values(), ids=PASTS)
def test_a_way_back_that_is_broken_off_anywhere_goes_on(past: History, share: Share) -> None:
    before = past_of(world_with(past))
    world = moved(past)
    there = at_target(world)
    for left in leftovers(share, world, disable):
        check_ratified(left, before)
        status.status(managed_setting(DictStore(left, uri=WORLD)), OLD)
        if state_of(left) is not RedirectState.NORMAL:
            with pytest.raises(RedirectIllegalTransition):
                run(left, lambda setting: cancel.cancel(setting, OLD), "second")
        outcome, after = run(left, disable, "second")
        assert outcome.state is RedirectState.NORMAL
        check_home(after, before, there)
        outcome, idle = run(after, disable, "again")
        assert (outcome.changed, idle) == (False, after)


@pytest.mark.parametrize("past", [VECTORS, CLEANED])
def test_a_way_back_that_drops_its_target_drops_it_last(past: History, share: Share) -> None:
    before = past_of(world_with(past))
    world = moved(past)
    there = at_target(world)
    drop = partial(disable, options=DROPS)
    for left in leftovers(share, world, drop):
        if not tables_of(left):
            check_home(left, before, there, dropped=True)
        outcome, after = run(left, drop, "second")
        assert outcome.state is RedirectState.NORMAL
        check_home(after, before, there, dropped=True)
        outcome, idle = run(after, drop, "again")
        assert (outcome.changed, idle) == (False, after)


def test_resume_goes_on_with_a_way_back(share: Share) -> None:
    before = past_of(world_with(TIMESTAMPS))
    world = moved(TIMESTAMPS)
    there = at_target(world)
    resumed = 0
    for left in leftovers(share, world, disable):
        if state_of(left) is RedirectState.NORMAL:
            continue
        outcome, after = run(left, resume, "second")
        if outcome.state is RedirectState.NORMAL:
            resumed += 1
            check_home(after, before, there)
        else:
            assert tables_of(after)[FIRST].latest == max(there)
    assert resumed or not share.is_whole
