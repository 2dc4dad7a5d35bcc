"""Places that a move of another table has left something at, on stores in memory."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lakeferry.errors import RedirectSpecInvalid, RedirectTargetNotEmpty
from lakeferry.redirect import cancel, resuming
from lakeferry.redirect.enable import enabling
from lakeferry.redirect.enable.preflight import Request
from lakeferry.redirect.entry import Data
from lakeferry.redirect.states import RedirectState
from tests.support import plans
from tests.support.clock import ManualClock
from tests.support.history import Append, Checkpoint, History
from tests.support.places import below, inside
from tests.support.redirects import (
    NEW,
    OLD,
    OTHER,
    REDIRECT_FEATURES,
    WORLD,
    content,
    numbered,
    protocol_features,
    request_for,
    setting_of,
    unsettled,
    world_with,
)
from tests.support.stores import DictStore, Fault, FaultyStore, Rule, Stopped, StoreCall, on

MINE = History().then(Append(2), Checkpoint(), Append(1))
THEIRS = History().then(Append(1))
FROM_OTHER = request_for(source=OTHER)
CLAIM = "new/_delta_log/_lakeferry/claim.json"
BEGINNING = f"old/_delta_log/{3:020d}.json"
HOUR_MS = 3_600_000


def world() -> DictStore:
    """Return a world with two tables in it."""
    theirs = inside("other", below(world_with(THEIRS), "old"))
    theirs = {name: data.replace(b'"id":"', b'"id":"other-') for name, data in theirs.items()}
    # Names of data files are nobody else's.
    theirs = {
        name.replace("part-", "other-"): data.replace(b"part-", b"other-")
        for name, data in theirs.items()
    }
    return DictStore(world_with(MINE) | theirs, uri=WORLD)


def later(store: DictStore, milliseconds: int) -> None:
    """Let time pass."""
    assert isinstance(store.clock, ManualClock)
    store.clock.advance(milliseconds)


def broken_off(store: DictStore, rule: Rule, lead: str = "first") -> None:
    """Break the move of the first table off."""
    faulty = FaultyStore(store, rule)
    with pytest.raises(Stopped):
        enabling.enable(setting_of(faulty, clock=store.clock, new_id=numbered(lead)), request_for())


def cancel_broken_off(store: DictStore, rule: Rule) -> None:
    """Break the cancel of that move off."""
    faulty = FaultyStore(store, rule)
    with pytest.raises(Stopped):
        cancel.cancel(setting_of(faulty, clock=store.clock, new_id=numbered("cancel")), OLD)


def moves_there(store: DictStore, request: Request = FROM_OTHER) -> None:
    """Check that a table can be planned to move there, moves there, and nothing else is there."""
    before = store.objects
    planned = plans.enable(setting_of(store), request)
    assert store.objects == before
    assert planned[0] == {"op": "clear", "table": NEW}
    outcome = enabling.enable(setting_of(store, new_id=numbered("second")), request)
    assert outcome.state is RedirectState.READY
    assert content(store.objects, NEW) == content(store.objects, request.source)
    named = {f"new/{name}" for name in content(store.objects, NEW).names}
    data = {name for name in store.objects if name.startswith("new/") and "_delta_log" not in name}
    assert data == (named if request.data is Data.COPY else set())
    assert not unsettled(store.objects)


def refused(store: DictStore, request: Request = FROM_OTHER) -> RedirectTargetNotEmpty:
    """Check that a table can't move there, and that nothing changes."""
    before = store.objects
    for act in (plans.enable, enabling.enable):
        with pytest.raises(RedirectTargetNotEmpty) as caught:
            act(setting_of(store, new_id=numbered("refused")), request)
    assert store.objects == before
    return caught.value


@pytest.mark.parametrize(
    "rule",
    [
        on("DELETE", Fault.STOP_BEFORE, containing=f"new/_delta_log/{4:020d}.json"),
        on("DELETE", Fault.STOP_AFTER, containing=f"new/_delta_log/{4:020d}.json"),
        on("DELETE", Fault.STOP_AFTER, containing=f"new/_delta_log/{3:020d}.json"),
    ],
    ids=["lock and closing commit", "lock", "claim alone"],
)
def test_what_a_cancel_left_that_was_broken_off_is_cleared(rule: Rule) -> None:
    store = world()
    broken_off(store, on("COPY", Fault.STOP_AFTER))
    cancel_broken_off(store, rule)
    assert CLAIM in store.objects
    moves_there(store)


def test_what_a_cancel_is_still_taking_away_isn_t_another_table_s_place_yet() -> None:
    store = world()
    broken_off(store, on("COPY", Fault.STOP_AFTER))
    cancel_broken_off(
        store, on("PUT_IF_ABSENT", Fault.STOP_BEFORE, containing=f"old/_delta_log/{4:020d}")
    )
    assert f"redirect status {OLD}'" in (refused(store).remedy or "")


@pytest.mark.parametrize("data", [Data.COPY, Data.REFERENCE])
def test_what_a_move_left_that_never_began_is_cleared_when_it_was_quiet_for_long(
    data: Data,
) -> None:
    store = world()
    broken_off(store, on("PUT_IF_ABSENT", Fault.STOP_BEFORE, containing=BEGINNING))
    later(store, HOUR_MS // 2)
    refused(store)
    later(store, HOUR_MS)
    moves_there(store, request_for(source=OTHER, data=data))


def test_a_long_pre_copy_that_still_writes_keeps_its_place() -> None:
    store = world()
    broken_off(store, on("PUT_IF_ABSENT", Fault.STOP_BEFORE, containing=BEGINNING))
    later(store, 2 * HOUR_MS)
    store.put("new/part-late.parquet", b"rows")
    refused(store)


def test_the_same_table_may_move_in_another_way_after_a_while() -> None:
    store = world()
    broken_off(store, on("PUT_IF_ABSENT", Fault.STOP_BEFORE, containing=BEGINNING))
    again = request_for(data=Data.REFERENCE)
    refused(store, again)
    later(store, 2 * HOUR_MS)
    moves_there(store, again)


def test_a_move_that_has_begun_keeps_its_place_for_ever() -> None:
    for rule in (
        on("PUT_IF_ABSENT", Fault.STOP_AFTER, containing=BEGINNING),
        on("DELETE", Fault.STOP_BEFORE, containing="claim.json"),
    ):
        store = world()
        broken_off(store, rule)
        later(store, 1_000 * HOUR_MS)
        refused(store)
        outcome = resuming.resume(setting_of(store, new_id=numbered("resume")), OLD)
        assert outcome.state is RedirectState.READY


def test_files_that_the_move_didn_t_bring_are_in_the_way_and_stay() -> None:
    store = world()
    broken_off(store, on("PUT_IF_ABSENT", Fault.STOP_BEFORE, containing=BEGINNING))
    store.put("new/notes.txt", b"mine")
    later(store, 2 * HOUR_MS)
    with pytest.raises(RedirectTargetNotEmpty, match=r"notes\.txt"):
        enabling.enable(setting_of(store, new_id=numbered("second")), FROM_OTHER)
    assert below(store.objects, "new") == {"notes.txt": b"mine"}


def test_where_the_source_is_gone_only_a_log_can_be_cleared() -> None:
    store = world()
    broken_off(store, on("PUT_IF_ABSENT", Fault.STOP_BEFORE, containing=BEGINNING))
    store.delete_many([name for name in store.objects if name.startswith("old/")])
    later(store, 2 * HOUR_MS)
    refused(store)
    data = [name for name in store.objects if name.startswith("new/part-")]
    store.delete_many(data)
    later(store, 2 * HOUR_MS)
    moves_there(store)


def test_a_move_that_begins_as_its_place_is_cleared_keeps_it() -> None:
    store = world()
    broken_off(store, on("PUT_IF_ABSENT", Fault.STOP_BEFORE, containing=BEGINNING), "slow")
    slept = store.objects
    later(store, 2 * HOUR_MS)

    def wakes(call: StoreCall) -> None:
        if call.verb == "PUT" and call.paths == (CLAIM,):
            # The one who was thought to be gone begins, between the two looks.
            begun = DictStore(slept, uri=WORLD)
            broken_off(begun, on("PUT_IF_ABSENT", Fault.STOP_AFTER, containing=BEGINNING), "slow")
            store.put(BEGINNING, begun.objects[BEGINNING])

    faulty = FaultyStore(store, wakes)
    with pytest.raises(RedirectTargetNotEmpty, match="has begun there"):
        enabling.enable(
            setting_of(faulty, clock=store.clock, new_id=numbered("second")), FROM_OTHER
        )
    assert json.loads(store.objects[CLAIM])["source"] == OLD
    outcome = resuming.resume(setting_of(store, new_id=numbered("resume")), OLD)
    assert outcome.state is RedirectState.READY
    assert content(store.objects, NEW) == content(store.objects, OLD)


def claim_of_other() -> bytes:
    """Return the claim of a move of the other table."""
    claim: dict[str, Any] = {"move_id": "m", "source": OTHER, "table_id": "t", "data": "copy"}
    return json.dumps(claim).encode()


def test_a_move_that_begins_when_its_place_is_another_table_s_goes_back() -> None:
    store = world()

    def given_away(call: StoreCall) -> None:
        if call.verb == "PUT_IF_ABSENT" and call.paths == (BEGINNING,):
            for name in [name for name in store.objects if name.startswith("new/")]:
                store.delete_many([name])
            store.put(CLAIM, claim_of_other())

    faulty = FaultyStore(store, given_away)
    with pytest.raises(RedirectTargetNotEmpty, match="another table"):
        enabling.enable(setting_of(faulty, clock=store.clock), request_for())
    assert below(store.objects, "new") == {CLAIM.removeprefix("new/"): claim_of_other()}
    assert not protocol_features(store.objects, OLD) & REDIRECT_FEATURES


@pytest.mark.parametrize("arrived", [False, True], ids=["another's claim", "another's table"])
def test_a_move_whose_place_is_another_table_s_goes_back_and_not_on(arrived: bool) -> None:
    store = world()
    broken_off(store, on("PUT_IF_ABSENT", Fault.STOP_AFTER, containing=BEGINNING))
    store.delete_many([name for name in store.objects if name.startswith("new/")])
    if arrived:
        for name, data in below(store.objects, "other").items():
            store.put(f"new/{name}", data)
    else:
        store.put(CLAIM, claim_of_other())
    target = below(store.objects, "new")
    setting = setting_of(store, new_id=numbered("resume"))
    for act in (plans.resume, resuming.resume):
        with pytest.raises(RedirectTargetNotEmpty) as refused:
            act(setting, OLD)
        assert "redirect cancel" in (refused.value.remedy or "")
    assert [step["table"] for step in plans.cancel(setting, OLD)] == [OLD]
    assert cancel.cancel(setting, OLD).state is RedirectState.NORMAL
    assert below(store.objects, "new") == target


def test_a_source_that_can_t_be_understood_is_left_in_possession() -> None:
    store = world()
    broken_off(store, on("PUT_IF_ABSENT", Fault.STOP_AFTER, containing=BEGINNING))
    body = store.objects[BEGINNING].replace(b"ENABLE-REDIRECT-IN-PROGRESS", b"SOMETHING")
    store.put(BEGINNING, body)
    with pytest.raises(RedirectSpecInvalid):
        cancel.cancel(setting_of(store), OLD)
    later(store, 1_000 * HOUR_MS)
    refused(store)
