"""Moves and withdrawals with ``--verify full``: copies with other bytes are found and replaced."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import pytest

from lakeferry.errors import HashMismatch, InvalidInput
from lakeferry.redirect import cancel, resuming, status
from lakeferry.redirect.disable import disabling
from lakeferry.redirect.disable.disabling import WithdrawalOptions
from lakeferry.redirect.enable import enabling, move_record
from lakeferry.redirect.enable.preflight import Request
from lakeferry.redirect.entry import Data
from lakeferry.redirect.states import RedirectState
from lakeferry.storage import Store
from lakeferry.storage.uris import join
from tests.support import plans
from tests.support.corrupting import CorruptingStore, flipped
from tests.support.history import Append, Checkpoint, DeleteRows, History, Layout
from tests.support.managed_worlds import FIRST, world_of
from tests.support.places import below, inside, opener
from tests.support.redirects import (
    NEW,
    OLD,
    WORLD,
    append,
    content,
    numbered,
    redirect_at,
    request_for,
    setting_of,
    world_with,
)
from tests.support.shares import Share
from tests.support.stored_tables import managed_request, managed_setting
from tests.support.stores import DictStore, Fault, FaultyStore, Stopped, StoreCall, at, on
from tests.support.stores import Rule as FaultRule

PAST = History(Layout(deletion_vectors="u")).then(Append(3), Checkpoint(), DeleteRows(1), Append(1))
BEGINNING = f"old/_delta_log/{PAST.newest_version + 1:020d}.json"
BEFORE_ENABLING = ("PUT_IF_ABSENT", Fault.STOP_BEFORE)
AFTER_ENABLING = ("PUT_IF_ABSENT", Fault.STOP_AFTER)


def full(**options: object) -> Request:
    """Return the request to move the table with ``--verify full``."""
    return replace(request_for(), compares=True, **options)  # type: ignore[arg-type]


def world(**wrong: int) -> CorruptingStore:
    """Return a world with one table; ``data=1`` makes the first copy of a data file wrong."""
    parts = {"data": "new/part-", "vector": "new/deletion_vector", "log": f"{2:020d}.json"}
    objects = world_with(PAST)
    return CorruptingStore(objects, uri=WORLD, wrong={parts[name]: n for name, n in wrong.items()})


def enable(store: Store, rule: FaultRule, request: Request, warn: Callable[[str], None]) -> None:
    """Run a move that stops where the rule says."""
    assert isinstance(store, DictStore)
    faulty = FaultyStore(store, rule)
    setting = setting_of(faulty, clock=store.clock, new_id=numbered("first"), warn=warn)
    with pytest.raises(Stopped):
        enabling.enable(setting, request)


def broken_off(store: Store, fault: tuple[str, Fault], request: Request) -> None:
    """Break a move off at the commit that says ENABLING."""
    enable(store, on(*fault, containing=BEGINNING), request, lambda _: None)


def resumed(
    store: DictStore, compares: bool | None = None
) -> tuple[RedirectState, FaultyStore, list[str]]:
    """Resume what was broken off; return the state, the calls, and the warnings."""
    seen, warnings = FaultyStore(store), list[str]()
    setting = setting_of(seen, clock=store.clock, warn=warnings.append)
    return resuming.resume(setting, OLD, compares=compares).state, seen, warnings


def reads_of_data(seen: FaultyStore) -> list[str]:
    """Return the data files that were read, at either end."""
    return [
        call.paths[0]
        for call in seen.history
        if call.verb in ("GET", "RANGE") and "_delta_log" not in call.paths[0]
    ]


def is_right(store: DictStore) -> bool:
    return content(store.objects, NEW) == content(store.objects, OLD)


@pytest.mark.parametrize("what", ["data", "vector", "log"])
def test_a_wrong_copy_stops_the_move_before_writers_wait_and_resume_replaces_it(what: str) -> None:
    store = world(**{what: 1})
    with pytest.raises(HashMismatch) as refused:
        enabling.enable(setting_of(store), full())
    assert str(refused.value.fields["uri"]).startswith(f"{NEW}/")
    assert f"'lakeferry redirect resume {OLD}'" in (refused.value.remedy or "")
    found = status.status(setting_of(store), OLD)
    assert found.state is RedirectState.NORMAL
    assert found.unfinished is not None
    # Without being told again that everything is compared.
    state, _, warnings = resumed(store)
    assert state is RedirectState.READY
    assert is_right(store)
    assert bool(warnings) == (what != "log")


def test_by_the_sizes_alone_such_a_copy_is_not_found() -> None:
    store = world(data=1)
    assert enabling.enable(setting_of(store), request_for()).state is RedirectState.READY
    assert not is_right(store)


def test_a_copy_that_stays_wrong_never_becomes_ready() -> None:
    store = world(data=99)
    with pytest.raises(HashMismatch):
        enabling.enable(setting_of(store), full())
    for _ in range(2):
        with pytest.raises(HashMismatch):
            resumed(store)
    assert redirect_at(setting_of(store)) is None


def test_what_a_killed_process_has_copied_is_compared_too() -> None:
    store = world(data=1)
    # The process ends right after the wrong copy was written, before it was read.
    enable(store, on("PUT", Fault.STOP_AFTER, containing="new/part-"), full(), lambda _: None)
    assert not any(name.startswith("new/_delta_log/0") for name in store.objects)
    state, _, warnings = resumed(store)
    assert state is RedirectState.READY
    assert is_right(store)
    assert any("copied again" in text for text in warnings)


def _is_on_record(store: DictStore) -> bool:
    return move_record.read_record(opener(store)(OLD)) is not None


def test_wherever_it_stops_no_wrong_copy_becomes_ready(share: Share) -> None:
    for index in share.onwards():
        store = world(data=1, vector=1)
        faulty = FaultyStore(store, at(index, Fault.STOP_AFTER))
        with pytest.raises((Stopped, HashMismatch)):
            enabling.enable(setting_of(faulty, clock=store.clock, new_id=numbered("one")), full())
        if len(faulty.history) <= index:
            # It was refused before that call.
            break
        for _ in range(3):
            with suppress(HashMismatch):
                setting = setting_of(store, new_id=numbered("next"))
                if _is_on_record(store):
                    # It isn't told again that everything is compared.
                    resuming.resume(setting, OLD)
                else:
                    enabling.enable(setting, full())
                break
        assert redirect_at(setting_of(store)) is not None
        assert is_right(store), index


@pytest.mark.parametrize("fault", [BEFORE_ENABLING, AFTER_ENABLING])
def test_what_was_compared_before_is_not_read_again(fault: tuple[str, Fault]) -> None:
    store = world()
    broken_off(store, fault, full())
    state, seen, _ = resumed(store)
    assert state is RedirectState.READY
    assert reads_of_data(seen) == []


def _without_copies(store: CorruptingStore, *, claimed: bool) -> None:
    """Delete the copies of a move, which its record says were compared."""
    gone = [name for name in store.objects if name.startswith("new/")]
    store.delete_many([name for name in gone if not (claimed and "claim.json" in name)])


@pytest.mark.parametrize("claimed", [True, False])
def test_a_wrong_copy_of_what_was_compared_before_never_becomes_ready(claimed: bool) -> None:
    store = world()
    broken_off(store, BEFORE_ENABLING, full())
    _without_copies(store, claimed=claimed)
    store.wrong = {"new/part-": 1}
    with pytest.raises(HashMismatch):
        resumed(store)
    assert resumed(store)[0] is RedirectState.READY
    assert is_right(store)


def test_nor_does_one_that_the_rest_of_a_move_has_copied_again() -> None:
    store = world()
    broken_off(store, AFTER_ENABLING, full())
    store.delete_many([name for name in store.objects if name.startswith("new/part-")])
    store.wrong = {"new/part-": 1}
    with pytest.raises(HashMismatch):
        resumed(store)
    assert resumed(store)[0] is RedirectState.READY
    assert is_right(store)


@pytest.mark.parametrize("claimed", [True, False])
def test_nor_does_one_that_a_killed_process_has_not_compared(claimed: bool) -> None:
    store = world()
    broken_off(store, BEFORE_ENABLING, full())
    _without_copies(store, claimed=claimed)
    store.wrong = {"new/part-": 1}
    killed = FaultyStore(store, on("PUT", Fault.STOP_AFTER, containing="new/part-"))
    with pytest.raises(Stopped):
        resuming.resume(setting_of(killed, clock=store.clock, new_id=numbered("two")), OLD)
    assert resumed(store)[0] is RedirectState.READY
    assert is_right(store)


@pytest.mark.parametrize("fault", [BEFORE_ENABLING, AFTER_ENABLING])
def test_what_began_by_sizes_is_read_completely_if_resume_asks_for_it(
    fault: tuple[str, Fault],
) -> None:
    store = world(data=1)
    broken_off(store, fault, request_for())
    state, seen, _ = resumed(store, compares=True)
    assert state is RedirectState.READY
    assert is_right(store)
    files = [name for name in store.objects if "_delta_log" not in name]
    assert set(reads_of_data(seen)) >= set(files)


@pytest.mark.parametrize("fault", [BEFORE_ENABLING, AFTER_ENABLING])
def test_what_began_with_reading_can_not_go_on_with_less(fault: tuple[str, Fault]) -> None:
    store = world()
    broken_off(store, fault, full())
    with pytest.raises(InvalidInput, match="started with --verify full") as refused:
        resumed(store, compares=False)
    assert "leave out --verify" in (refused.value.remedy or "")
    assert resumed(store)[0] is RedirectState.READY


def test_the_same_move_requested_with_less_is_still_compared() -> None:
    store = world(data=1)
    with pytest.raises(HashMismatch):
        enabling.enable(setting_of(store), full())
    warnings: list[str] = []
    setting = setting_of(store, warn=warnings.append, new_id=numbered("again"))
    assert enabling.enable(setting, request_for()).state is RedirectState.READY
    assert is_right(store)
    assert any("started with --verify full" in text for text in warnings)


def test_what_writers_add_is_compared_while_they_wait_and_nothing_else_is() -> None:
    store = world()
    store.wrong = {"new/late": 1}
    seen: list[StoreCall] = []
    added = False

    def late(call: StoreCall) -> None:
        nonlocal added
        seen.append(call)
        if not added and call.verb == "PUT_IF_ABSENT" and call.paths[0] == BEGINNING:
            # Another writer is quicker than the commit that says ENABLING.
            added = True
            append(setting_of(store).log(OLD), "late.parquet")
            seen.clear()

    setting = setting_of(FaultyStore(store, late), clock=store.clock)
    with pytest.raises(HashMismatch) as refused:
        enabling.enable(setting, full())
    assert refused.value.fields["uri"] == f"{NEW}/late.parquet"
    found = redirect_at(setting_of(store))
    assert found is not None
    assert found.state is RedirectState.ENABLING
    read = [call.paths[0] for call in seen if call.verb in ("GET", "RANGE")]
    assert {name for name in read if "_delta_log" not in name} == {
        "old/late.parquet",
        "new/late.parquet",
    }
    state, again, warnings = resumed(store)
    assert state is RedirectState.READY
    assert is_right(store)
    assert {*reads_of_data(again)} == {"old/late.parquet", "new/late.parquet"}
    assert any("late.parquet" in text for text in warnings)


@pytest.mark.parametrize("ending", ["resume", "cancel"])
def test_a_wrong_commit_that_was_copied_while_writers_wait_is_deleted_by_the_user(
    ending: str,
) -> None:
    store = world()
    name = f"new/_delta_log/{PAST.newest_version + 1:020d}.json"
    store.wrong = {name: 1}
    late: list[int] = []

    def write_late(call: StoreCall) -> None:
        if call.verb == "PUT_IF_ABSENT" and call.paths == (BEGINNING,) and not late:
            late.append(append(setting_of(store).log(OLD), "late.parquet"))

    with pytest.raises(HashMismatch) as refused:
        enabling.enable(setting_of(FaultyStore(store, write_late), clock=store.clock), full())
    found = redirect_at(setting_of(store))
    assert found is not None
    assert found.state is RedirectState.ENABLING
    remedy = refused.value.remedy or ""
    assert remedy.startswith(f"delete {join(WORLD, name)}; then 'lakeferry redirect resume {OLD}'")
    if ending == "cancel":
        assert f"or 'lakeferry redirect cancel {OLD}'" in remedy
        assert cancel.cancel(setting_of(store), OLD).state is RedirectState.NORMAL
        assert not [name for name in store.objects if name.startswith("new/")]
        return
    store.delete_many([name])
    assert resumed(store)[0] is RedirectState.READY
    assert is_right(store)
    assert "late.parquet" in content(store.objects, NEW).names


def test_a_move_by_reference_reads_its_log_files() -> None:
    store = world(log=1)
    with pytest.raises(HashMismatch) as refused:
        enabling.enable(setting_of(store), full(data=Data.REFERENCE))
    assert f"{2:020d}.json" in str(refused.value.fields["uri"])
    state, seen, _ = resumed(store)
    assert state is RedirectState.READY
    assert reads_of_data(seen) == []


def test_the_record_of_another_process_is_not_changed() -> None:
    store = world()
    broken_off(store, BEFORE_ENABLING, full())
    source = opener(store)(OLD)
    before = move_record.read_record(source)
    assert before is not None
    assert before.compared_version == PAST.newest_version
    move_record.note_compared(source, "another", 99)
    assert move_record.read_record(source) == before
    move_record.cancelling(source, before)
    move_record.note_compared(source, before.move_id, 99)
    assert move_record.read_record(source) == replace(before, cancelled=True)


def test_after_a_cancel_nothing_counts_as_compared() -> None:
    store = world()
    broken_off(store, BEFORE_ENABLING, full())
    source = opener(store)(OLD)
    before = move_record.read_record(source)
    assert before is not None
    again = replace(before, move_id="again", compared_version=-1)
    assert move_record.take_record(source, again, None).compared_version == before.compared_version
    move_record.cancelling(source, before)
    assert move_record.take_record(source, again, None) == again


def test_a_dry_run_shows_it_and_reads_no_data() -> None:
    store = world()
    seen = FaultyStore(store)
    before = store.objects
    plans.enable(setting_of(seen, clock=store.clock), full())
    assert reads_of_data(seen) == []
    assert store.objects == before


class TestWithdrawals:
    @pytest.fixture
    def store(self) -> CorruptingStore:
        """Return a world in which a table has moved, and got two more files since."""
        store = world()
        setting = setting_of(store)
        enabling.enable(setting, request_for())
        append(setting.log(NEW), "x.parquet")
        append(setting.log(NEW), "y.parquet")
        return store

    def disable(self, store: Store, compares: bool | None = True) -> RedirectState:
        options = WithdrawalOptions(compares=compares)
        return disabling.disable(setting_of(store), OLD, options).state

    def test_right_copies_are_counted(self, store: CorruptingStore) -> None:
        outcome = disabling.disable(setting_of(store), OLD, WithdrawalOptions(compares=True))
        assert (outcome.as_document()["files_compared"], outcome.files_copied) == (2, 2)

    @pytest.mark.parametrize("again", ["disable", "resume"])
    def test_a_wrong_copy_stops_it_and_the_next_run_replaces_it(
        self, store: CorruptingStore, again: str
    ) -> None:
        expected = content(store.objects, NEW)
        store.wrong = {"old/x": 1}
        with pytest.raises(HashMismatch) as refused:
            self.disable(store)
        assert refused.value.fields["uri"] == f"{OLD}/x.parquet"
        assert f"delete {OLD}/x.parquet" in (refused.value.remedy or "")
        store.delete_many(["old/x.parquet"])
        # The lock of the target knows that everything is compared.
        store.wrong = {"old/y": 1}
        with pytest.raises(HashMismatch):
            self.disable(store, None) if again == "disable" else resumed(store)
        store.delete_many(["old/y.parquet"])
        assert resumed(store)[0] is RedirectState.NORMAL
        assert content(store.objects, OLD) == expected

    def test_less_than_at_its_beginning_is_refused(self, store: CorruptingStore) -> None:
        store.wrong = {"old/x": 1}
        with pytest.raises(HashMismatch):
            self.disable(store)
        with pytest.raises(InvalidInput, match="started with --verify full"):
            self.disable(store, compares=False)

    def test_a_file_of_the_source_that_differs_is_not_replaced(
        self, store: CorruptingStore
    ) -> None:
        # A lost file makes the withdrawal look at all files; another one was damaged.
        lost, damaged = [name for name in store.objects if name.startswith("old/part-")][:2]
        store.delete_many([lost])
        mine = flipped(store.get(damaged))
        store.put(damaged, mine)
        with pytest.raises(HashMismatch) as refused:
            self.disable(store)
        assert refused.value.fields["uri"] == join(WORLD, damaged)
        assert store.get(damaged) == mine
        store.delete_many([damaged])
        assert self.disable(store) is RedirectState.NORMAL
        assert content(store.objects, OLD).names

    def test_what_an_existing_target_brings_back_is_compared(self) -> None:
        objects = world_with(PAST)
        copy = inside("new", below(objects, "old"))
        store = CorruptingStore(objects | copy, uri=WORLD, wrong={"old/x": 1})
        setting = setting_of(store)
        enabling.enable(setting, request_for(data=Data.EXISTING))
        append(setting.log(NEW), "x.parquet")
        options = WithdrawalOptions(bring_back=True, compares=True)
        with pytest.raises(HashMismatch) as refused:
            disabling.disable(setting, OLD, options)
        assert refused.value.fields["uri"] == f"{OLD}/x.parquet"
        assert redirect_at(setting) is not None
        # The copy that differs isn't taken for the source's own file by the next run either.
        with pytest.raises(HashMismatch):
            disabling.disable(setting, OLD, options)
        store.delete_many(["old/x.parquet"])
        outcome = disabling.disable(setting, OLD, options)
        assert outcome.state is RedirectState.NORMAL
        assert outcome.compared is not None
        assert outcome.compared.objects == len([n for n in store.objects if "old/part-" in n]) + 2
        assert store.get("old/x.parquet") == store.get("new/x.parquet")


@pytest.mark.parametrize("again", ["disable", "resume"])
def test_what_is_written_during_a_bring_back_is_compared_too(again: str) -> None:
    objects = world_with(PAST)
    store = CorruptingStore(objects | inside("new", below(objects, "old")), uri=WORLD)
    enabling.enable(setting_of(store), request_for(data=Data.EXISTING))
    append(setting_of(store).log(NEW), "x.parquet")
    store.wrong = {"old/late": 1}
    dropping = f"old/_delta_log/{PAST.newest_version + 4:020d}.json"
    late: list[int] = []

    def write_late(call: StoreCall) -> None:
        # The commit that says DROPPING at the source.
        if call.verb == "PUT_IF_ABSENT" and call.paths == (dropping,) and not late:
            late.append(append(setting_of(store).log(NEW), "late.parquet"))

    setting = setting_of(FaultyStore(store, write_late), clock=store.clock)
    options = WithdrawalOptions(bring_back=True, compares=True)
    with pytest.raises(HashMismatch) as refused:
        disabling.disable(setting, OLD, options)
    assert late
    assert refused.value.fields["uri"] == f"{OLD}/late.parquet"
    found = redirect_at(setting_of(store))
    assert found is not None
    assert found.state is RedirectState.DROPPING
    store.delete_many(["old/late.parquet"])
    if again == "resume":
        # It goes on as it began.
        store.wrong = {"old/late": 1}
        with pytest.raises(HashMismatch):
            resumed(store)
        store.delete_many(["old/late.parquet"])
        assert resumed(store)[0] is RedirectState.NORMAL
    else:
        assert disabling.disable(setting_of(store), OLD, options).state is RedirectState.NORMAL
    assert store.get("old/late.parquet") == store.get("new/late.parquet")
    assert "late.parquet" in content(store.objects, OLD).names


def test_a_move_into_a_catalog_is_compared_and_resumed() -> None:
    place = f"managed/{FIRST}/part-"
    store = CorruptingStore(world_of(PAST).objects, uri=WORLD, wrong={place: 1})
    request = replace(managed_request(), compares=True)
    with pytest.raises(HashMismatch) as refused:
        enabling.enable(managed_setting(store), request)
    assert place in str(refused.value.fields["uri"])
    outcome = resuming.resume(managed_setting(store), OLD)
    assert outcome.state is RedirectState.READY
    assert outcome.compared is not None
    copies = {name: data for name, data in store.objects.items() if name.startswith(place)}
    assert copies
    for name, data in copies.items():
        assert store.get(name.replace(place, "old/part-")) == data
