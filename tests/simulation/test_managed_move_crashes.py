"""Moves to a managed table whose process dies, or whose store or catalog fails, at any call.

As in :mod:`tests.simulation.test_redirect_crashes`: each procedure is run once for every call that
it makes and every way in which that call can go wrong, or for this run's share of those. Calls of
the catalog are calls of the store. Then it is gone on with or taken back: the table has the same
rows in every version, and every ratified commit can be read.
"""

from __future__ import annotations

import pytest

from lakeferry.errors import RedirectIllegalTransition
from lakeferry.log import paths
from lakeferry.redirect import status
from lakeferry.redirect.entry import TargetKind
from lakeferry.redirect.states import RedirectState
from tests.simulation.managed_cases import (
    CLEANED,
    PASTS,
    VECTORS,
    check_ratified,
    decision_of,
    leftovers,
    move,
    run,
    state_of,
    tables_of,
)
from tests.simulation.redirect_cases import (
    Objects,
    Past,
    check_rows,
    has_record,
    past_of,
    resume,
    run_with,
    take_back,
)
from tests.support.history import History
from tests.support.managed_worlds import FIRST_PLACE
from tests.support.places import below
from tests.support.redirects import (
    OLD,
    REDIRECT_FEATURES,
    WORLD,
    content,
    folder_of,
    protocol_features,
    redirect_at,
    versions,
    world_with,
)
from tests.support.shares import Share
from tests.support.stored_tables import (
    MANAGED,
    NAME,
    managed_setting,
)
from tests.support.stores import DictStore, Fault, StoreCall


def check_ready(objects: Objects, before: Past, name: str = NAME) -> None:
    """Check that the table has moved, is managed under its name, and free to write."""
    check_rows(objects, OLD, before)
    check_ratified(objects, before)
    ((table_id, table),) = tables_of(objects).items()
    assert table.name == name
    last = max(versions(objects, OLD))
    assert (table.latest, table.published) == (last, last)
    place = f"{MANAGED}/{table_id}"
    there, newest = past_of(objects, place), before[max(before)]
    for version, expected in before.items():
        assert there[version] == expected, version
    assert max(there) == last
    for version in range(max(before) + 1, last + 1):
        found = there[version]
        assert (found.files, found.txns, found.domains) == (
            newest.files,
            newest.txns,
            newest.domains,
        )
        if version < last - 1:
            continue
        configuration = found.metadata["configuration"]
        assert configuration["io.unitycatalog.tableId"] == table_id
        assert newest.metadata["configuration"].items() <= configuration.items()
        assert {**found.metadata, "configuration": None} == {
            **newest.metadata,
            "configuration": None,
        }
    found = content(objects, place)
    assert {"catalogManaged", "inCommitTimestamp"} <= found.features
    assert not protocol_features(objects, place) & REDIRECT_FEATURES
    assert not [each for each in below(objects, folder_of(place)) if "_lakeferry" in each]
    assert not has_record(objects)
    redirect = redirect_at(managed_setting(DictStore(objects, uri=WORLD)))
    assert redirect is not None
    assert redirect.target is not None
    assert redirect.target.kind is TargetKind.UNITY
    assert (redirect.target.table_id, redirect.target.name) == (table_id, name)


def check_back(objects: Objects, before: Past) -> None:
    """Check that the table is where it was, and nothing is left of the move."""
    check_rows(objects, OLD, before)
    assert not protocol_features(objects, OLD) & REDIRECT_FEATURES
    assert not has_record(objects)
    assert tables_of(objects) == {}
    assert not [name for name in objects if name.startswith(folder_of(MANAGED))]


@pytest.mark.parametrize("past", PASTS.values(), ids=PASTS)
def test_a_managed_move_that_is_broken_off_anywhere_goes_on_or_back(
    past: History, share: Share
) -> None:
    world = world_with(past)
    before = past_of(world)
    past_no_return = 0
    for left in leftovers(share, world, move):
        check_rows(left, OLD, before)
        check_ratified(left, before)
        status.status(managed_setting(DictStore(left, uri=WORLD)), OLD)
        begun = state_of(left) is not RedirectState.NORMAL or has_record(left)
        outcome, after = run(left, resume if begun else move, "second")
        assert outcome.state is RedirectState.READY
        check_ready(after, before)
        for again in (resume, move):
            outcome, idle = run(after, again, "again")
            assert (outcome.changed, idle) == (False, after)
        if decision_of(left) == "READY":
            past_no_return += 1
            with pytest.raises(RedirectIllegalTransition):
                run(left, take_back, "second")
            continue
        outcome, after = run(left, take_back, "second")
        assert outcome.state is RedirectState.NORMAL
        check_back(after, before)
        outcome, after = run(after, move, "third")
        check_ready(after, before)
    assert past_no_return >= 3 or not share.is_whole


def stages(world: Objects, before: Past) -> list[dict[str, bytes]]:
    """Return worlds in which a move is under way: recorded, created, begun, locked."""
    place = folder_of(FIRST_PLACE)
    version = max(before) + 1
    ends = (
        f"{place}/_delta_log/_lakeferry/claim.json",
        f"old/{paths.commit(version)}",
        f"{place}/{paths.commit(version)}",
    )
    found = []
    for name in ends:

        def rule(call: StoreCall, name: str = name) -> Fault | None:
            put = call.verb == "PUT_IF_ABSENT" and name in call.paths
            return Fault.STOP_AFTER if put else None

        found.append(run_with(world, move, rule, managed_setting)[0])
    return found


@pytest.mark.parametrize("past", [VECTORS, CLEANED])
def test_a_cancel_that_is_broken_off_anywhere_goes_on(past: History, share: Share) -> None:
    world = world_with(past)
    before = past_of(world)
    for begun in stages(world, before):
        for left in leftovers(share, begun, take_back):
            check_rows(left, OLD, before)
            outcome, after = run(left, take_back, "second")
            assert outcome.state is RedirectState.NORMAL
            check_back(after, before)
            closed = decision_of(left) == "NORMAL"
            if state_of(left) is RedirectState.ENABLING and not closed:
                outcome, after = run(left, resume, "second")
                assert outcome.state is RedirectState.READY
                check_ready(after, before)
            elif state_of(left) is RedirectState.ENABLING:
                outcome, after = run(left, resume, "second")
                assert outcome.state is RedirectState.NORMAL
                check_back(after, before)
            outcome, after = run(after, take_back, "again") if closed else run(left, take_back, "x")
            outcome, after = run(after, move, "third")
            check_ready(after, before)
