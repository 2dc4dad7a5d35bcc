"""What happens after the commit that decides: nothing of it turns success into an error."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial

import pytest

from lakeferry.errors import RedirectTargetNotEmpty, StorageUnavailable
from lakeferry.log import paths
from lakeferry.log.commit import Transaction
from lakeferry.redirect import cancel, freeze, redirect_commits, resuming, settling, status
from lakeferry.redirect.disable import disabling
from lakeferry.redirect.disable.disabling import WithdrawalOptions
from lakeferry.redirect.enable import enabling, log_staging
from lakeferry.redirect.outcome import Outcome
from lakeferry.redirect.redirect_context import Setting
from lakeferry.redirect.states import RedirectState
from lakeferry.storage import Store
from lakeferry.table import DeltaLog
from tests.support import plans
from tests.support.history import Append, Change, Checkpoint, Checksum, History, Layout
from tests.support.places import below
from tests.support.redirects import (
    NEW,
    OLD,
    OTHER,
    WORLD,
    append,
    content,
    numbered,
    redirect_at,
    request_for,
    setting_of,
    unsettled,
    world_with,
)
from tests.support.shares import Share
from tests.support.stores import DictStore, Fault, FaultyStore, Stopped, StoreCall, at, on
from tests.support.strangers import replace_table, replace_target, stranger

PAST = History().then(Append(2), Checkpoint(), Append(1))
Procedure = Callable[[Setting], Outcome]


def moves(setting: Setting) -> Outcome:
    """Move the table."""
    return enabling.enable(setting, request_for())


def goes_back(setting: Setting) -> Outcome:
    """Cancel the move."""
    return cancel.cancel(setting, OLD)


def comes_home(setting: Setting) -> Outcome:
    """End the redirect, and delete the target."""
    return disabling.disable(setting, OLD, WithdrawalOptions(remove_target=True))


def disables(setting: Setting) -> Outcome:
    """End the redirect."""
    return disabling.disable(setting, OLD)


def gives_up(setting: Setting) -> Outcome:
    """End the redirect without its target."""
    return disabling.disable(setting, OLD, WithdrawalOptions(abandon_target=True))


def failing_after(
    store: DictStore, procedure: Procedure, decided: str, index: int, *, once: bool
) -> tuple[Outcome, list[str], bool]:
    """Run a procedure whose calls after the commit ``decided`` fail from the given one on.

    With ``once`` that one alone.
    """
    seen = -1
    failed = False

    def rule(call: StoreCall) -> Fault | None:
        nonlocal seen, failed
        if seen >= 0:
            seen += 1
        if call.verb == "PUT_IF_ABSENT" and decided in call.paths:
            seen = 0
        if seen <= index or (once and failed):
            return None
        failed = True
        return Fault.FAIL

    warnings: list[str] = []
    setting = setting_of(
        FaultyStore(store, rule),
        clock=store.clock,
        new_id=numbered("first"),
        warn=warnings.append,
    )
    return procedure(setting), warnings, failed


def _but_hints(store: DictStore) -> set[str]:
    return {name for name in store.objects if not name.endswith("_last_checkpoint")}


def check_everywhere(
    before: DictStore,
    procedure: Procedure,
    decided: str,
    state: RedirectState,
    again: Procedure,
    *,
    once: bool,
) -> None:
    """Let the store fail at each call after the deciding commit; the next command completes."""
    wanted = DictStore(before.objects, uri=WORLD, clock=before.clock)
    procedure(setting_of(wanted, new_id=numbered("first")))
    # What follows a commit at once is reading it back, which belongs to it.
    index, tried = 3, 0
    while True:
        store = DictStore(before.objects, uri=WORLD, clock=before.clock)
        outcome, warnings, failed = failing_after(store, procedure, decided, index, once=once)
        if not failed:
            break
        tried += 1
        assert (outcome.state, outcome.changed) == (state, True)
        assert warnings or once, index
        found = redirect_at(setting_of(store))
        assert (found.state if found else RedirectState.NORMAL) is state
        again(setting_of(store, new_id=numbered("second")))
        # The hint is left to the next checkpoint, where it alone is missing.
        assert _but_hints(store) == _but_hints(wanted), index
        assert content(store.objects, OLD) == content(wanted.objects, OLD)
        index += 1
    assert tried >= 3


def resumed(setting: Setting) -> Outcome:
    """Do what a move has left to do."""
    return resuming.resume(setting, OLD)


# A store that is back at once is the harder case: what comes later succeeds.
FOR_HOW_LONG = pytest.mark.parametrize("once", [False, True], ids=["for good", "once"])


@FOR_HOW_LONG
def test_a_move_succeeds_whatever_fails_once_it_is_ready(once: bool) -> None:
    store = DictStore(world_with(PAST), uri=WORLD)
    ready = f"old/_delta_log/{4:020d}.json"
    check_everywhere(store, moves, ready, RedirectState.READY, resumed, once=once)


@FOR_HOW_LONG
def test_a_cancel_succeeds_whatever_fails_once_the_source_is_normal(once: bool) -> None:
    store = DictStore(world_with(PAST), uri=WORLD)
    lock = f"new/_delta_log/{3:020d}.json"
    faulty = FaultyStore(store, on("PUT_IF_ABSENT", Fault.FAIL, containing=lock, times=-1))
    with pytest.raises(StorageUnavailable):
        moves(setting_of(faulty, clock=store.clock))
    normal = f"old/_delta_log/{4:020d}.json"
    check_everywhere(store, goes_back, normal, RedirectState.NORMAL, goes_back, once=once)
    assert below(store.objects, "new")


@FOR_HOW_LONG
def test_a_withdrawal_succeeds_whatever_fails_once_the_source_is_normal(once: bool) -> None:
    store = DictStore(world_with(PAST), uri=WORLD)
    moves(setting_of(store, new_id=numbered("moved")))
    append(setting_of(store).log(NEW), "x.parquet")
    normal = f"old/_delta_log/{7:020d}.json"
    check_everywhere(store, comes_home, normal, RedirectState.NORMAL, comes_home, once=once)


@FOR_HOW_LONG
def test_giving_a_target_up_succeeds_whatever_fails_once_the_source_is_normal(once: bool) -> None:
    store = DictStore(world_with(PAST), uri=WORLD)
    moves(setting_of(store, new_id=numbered("moved")))
    store.delete_many([name for name in store.objects if name.startswith("new/")])
    normal = f"old/_delta_log/{6:020d}.json"
    check_everywhere(store, gives_up, normal, RedirectState.NORMAL, disables, once=once)


def test_a_checkpoint_that_a_withdrawal_owes_is_planned() -> None:
    store = DictStore(world_with(PAST), uri=WORLD)
    moves(setting_of(store))
    outcome = comes_home(setting_of(store))
    checkpoints = [name for name in store.objects if ".checkpoint." in name]
    store.delete_many(checkpoints)
    owed = {"op": "checkpoint", "table": OLD, "version": outcome.version}
    assert plans.undo(setting_of(store), OLD) == [owed]
    assert disables(setting_of(store)).changed
    assert plans.undo(setting_of(store), OLD) == []
    assert not disables(setting_of(store)).changed


def test_a_checkpoint_that_crashes_is_a_warning_and_resume_writes_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = DictStore(world_with(PAST), uri=WORLD)
    warnings: list[str] = []

    def crash(self: DeltaLog, version: int | None = None, **_: object) -> None:
        raise AttributeError("'list' object has no attribute 'get'")

    with monkeypatch.context() as patch:
        patch.setattr(DeltaLog, "checkpoint", crash)
        outcome = moves(setting_of(store, warn=warnings.append))
    assert outcome.state is RedirectState.READY
    assert f"'lakeferry redirect resume {OLD}' finishes it" in warnings[0]
    resuming.resume(setting_of(store), OLD)
    for place in ("old", "new"):
        assert f"{place}/_delta_log/{4:020d}.checkpoint.parquet" in store.objects
    assert not unsettled(store.objects)


def test_a_checksum_file_that_contradicts_the_log_is_named_and_resume_settles_without_it() -> None:
    """The files that it counts go into the checksum files of the redirect's own commits."""
    lying = History().then(Append(2), Checksum(files_off=1))
    store = DictStore(world_with(lying), uri=WORLD)
    warnings: list[str] = []
    setting = setting_of(store, warn=warnings.append)
    assert moves(setting).state is RedirectState.READY
    (said,) = warnings
    assert paths.checksum(3) in said
    assert "delete that checksum file if the log is right" in said
    assert said.endswith(f"; then 'lakeferry redirect resume {OLD}' finishes it")
    store.delete_many([f"old/{paths.checksum(3)}"])
    assert resuming.resume(setting, OLD).state is RedirectState.READY
    assert warnings == [said]
    assert f"old/{paths.classic_checkpoint(3)}" in store.objects
    assert not unsettled(store.objects)


def test_a_removed_target_keeps_what_isn_t_the_table_s() -> None:
    changed = History(Layout(change_data=True)).then(Append(2), Change(), Append(1))
    store = DictStore(world_with(changed), uri=WORLD)
    moves(setting_of(store, new_id=numbered("moved")))
    log = setting_of(store).log(NEW)
    append(log, "x.parquet")
    theirs = {
        "new/notes.txt": b"mine",
        "new/_delta_log/readme.md": b"mine",
        "new/inner/_delta_log/00000000000000000000.json": b"{}",
        "new/inner/part-1.parquet": b"rows",
        "new/_change_data/cdc-0.parquet": b"changes of another table",
    }
    assert any(name.startswith("new/_change_data/") for name in store.objects)
    for name, data in theirs.items():
        store.put(name, data)
    outcome = comes_home(setting_of(store))
    assert {f"new/{name}": data for name, data in below(store.objects, "new").items()} == theirs
    assert sorted(f"new/{name}" for name in outcome.kept) == sorted(theirs)
    assert not comes_home(setting_of(store)).changed


@pytest.mark.parametrize("removes", [True, False])
def test_what_was_written_in_spite_of_the_lock_of_a_broken_off_withdrawal_is_told(
    removes: bool,
) -> None:
    store = DictStore(world_with(PAST), uri=WORLD)
    moves(setting_of(store, new_id=numbered("moved")))
    lock = append(setting_of(store).log(NEW), "x.parquet") + 1
    options = WithdrawalOptions(remove_target=removes)
    killed = FaultyStore(store, on("PUT_IF_ABSENT", Fault.STOP_AFTER, containing=f"{lock}.json"))
    with pytest.raises(Stopped):
        disabling.disable(setting_of(killed, clock=store.clock), OLD, options)
    late = append(setting_of(store).log(NEW), "late.parquet")
    warnings: list[str] = []
    setting = setting_of(store, warn=warnings.append)
    assert disabling.disable(setting, OLD, options).state is RedirectState.NORMAL
    (said,) = warnings
    assert f"a writer added version {late} after the lock" in said
    assert ("isn't deleted" in said) == removes
    assert "new/late.parquet" in store.objects
    assert content(store.objects, OLD).names


# --- Moving to a closed target again -----------------------------------------------


def closed_world() -> DictStore:
    """Return a world in which a redirect was withdrawn, and its target is closed."""
    store = DictStore(world_with(PAST), uri=WORLD)
    moves(setting_of(store, new_id=numbered("moved")))
    append(setting_of(store).log(NEW), "x.parquet")
    disabling.disable(setting_of(store, new_id=numbered("back")), OLD)
    return store


AGAIN = replace(request_for(), replace_closed=True)


def test_a_closed_target_is_replaced_if_that_is_asked_for() -> None:
    store = closed_world()
    setting = setting_of(store, new_id=numbered("again"))
    with pytest.raises(RedirectTargetNotEmpty) as refused:
        enabling.enable(setting, request_for())
    assert "--replace-closed-target" in (refused.value.remedy or "")
    before = store.objects
    assert plans.enable(setting, AGAIN)[0] == {"op": "delete", "table": NEW}
    assert store.objects == before
    append(setting.log(OLD), "y.parquet")
    assert enabling.enable(setting, AGAIN).state is RedirectState.READY
    assert content(store.objects, NEW) == content(store.objects, OLD)
    assert not unsettled(store.objects)


def test_a_closed_target_isn_t_replaced_where_files_of_others_are() -> None:
    store = closed_world()
    store.put("new/notes.txt", b"mine")
    before = store.objects
    with pytest.raises(RedirectTargetNotEmpty, match="can't be replaced"):
        enabling.enable(setting_of(store), AGAIN)
    assert store.objects == before


def test_a_closed_target_that_was_written_to_in_spite_of_its_lock_isn_t_replaced() -> None:
    store = closed_world()
    version = append(setting_of(store).log(NEW), "late.parquet")
    before, warnings = store.objects, list[str]()
    with pytest.raises(RedirectTargetNotEmpty, match="can't be replaced") as refused:
        enabling.enable(setting_of(store, warn=warnings.append), AGAIN)
    assert f"a writer added version {version} after" in str(refused.value)
    assert "--replace-closed-target" not in (refused.value.remedy or "")
    assert warnings == []
    assert store.objects == before


def test_a_closed_target_isn_t_replaced_unless_the_source_tells_that_it_ended() -> None:
    store = closed_world()
    ended = max(name for name in store.objects if name.startswith("old/_delta_log/0"))
    version = int(ended.split("/")[2][:20])
    names = [f"old/_delta_log/{version:020d}.{kind}" for kind in ("json", "crc")]
    store.delete_many([*names, f"old/_delta_log/{version:020d}.checkpoint.parquet"])
    state = setting_of(store).log(OLD).state()
    bare = redirect_commits.bare(state.protocol, state.metadata, None)
    wanted = Transaction("UNSET", "by hand", protocol=bare.protocol, metadata=bare.metadata)
    setting_of(store).log(OLD).commit(wanted, state)
    before = store.objects
    with pytest.raises(RedirectTargetNotEmpty):
        enabling.enable(setting_of(store), AGAIN)
    assert store.objects == before


def test_replacing_a_closed_target_that_is_broken_off_anywhere_goes_on(share: Share) -> None:
    objects = closed_world().objects
    broken = 0
    for index in share.onwards():
        store = DictStore(objects, uri=WORLD)
        faulty = FaultyStore(store, at(index, Fault.STOP_BEFORE))
        try:
            enabling.enable(setting_of(faulty, clock=store.clock), AGAIN)
            break
        except Stopped:
            broken += 1
        setting = setting_of(store, new_id=numbered("second"))
        found = redirect_at(setting)
        if found is None and status.status(setting, OLD).unfinished is None:
            assert enabling.enable(setting, AGAIN).state is RedirectState.READY, index
        else:
            assert resuming.resume(setting, OLD).state is RedirectState.READY, index
        assert content(store.objects, NEW) == content(store.objects, OLD)
    assert broken > 3


@pytest.mark.parametrize("what", ["commits", "frozen", "cancelled"])
def test_a_closed_target_is_removed_whatever_happened_since(what: str) -> None:
    store = DictStore(world_with(PAST), uri=WORLD)
    setting = setting_of(store)
    moves(setting)
    disabling.disable(setting, OLD)
    if what == "commits":
        for number in range(30):
            append(setting.log(OLD), f"{number}.parquet")
    elif what == "frozen":
        freeze.freeze(setting, OLD)
        freeze.thaw(setting, OLD)
    else:
        faulty = FaultyStore(store, on("COPY", Fault.STOP_BEFORE))
        other = setting_of(faulty, clock=store.clock, new_id=numbered("c"))
        with pytest.raises(Stopped):
            enabling.enable(other, request_for(OTHER))
        cancel.cancel(setting, OLD)
    expected = content(store.objects, OLD)
    assert comes_home(setting).changed
    assert below(store.objects, "new") == {}
    assert content(store.objects, OLD) == expected


def test_a_target_that_an_earlier_move_has_closed_is_replaced() -> None:
    store = DictStore(world_with(PAST), uri=WORLD)
    setting = setting_of(store)
    for target in (NEW, OTHER):
        enabling.enable(setting, request_for(target))
        append(setting.log(target), f"at-{target.rpartition('/')[2]}.parquet")
        disabling.disable(setting, OLD)
    expected = content(store.objects, OLD)
    with pytest.raises(RedirectTargetNotEmpty):
        moves(setting)
    enabling.enable(setting, replace(request_for(), replace_closed=True))
    assert content(store.objects, NEW) == expected


class Swapped(DictStore):
    """A world in which another table takes the target's place while its log is read."""

    swaps = False

    def get(self, path: str) -> bytes:
        """Return the object; before the third commit is read the whole log is another one."""
        if self.swaps and path == f"new/{paths.commit(2)}":
            self.swaps = False
            replace_target(self, stranger(9))
        return super().get(path)

    def put_if_absent(self, path: str, data: bytes) -> bool:
        """Put the object; once the source says READY the other table may come."""
        done = super().put_if_absent(path, data)
        self.swaps = self.swaps or path == f"old/{paths.commit(4)}"
        return done


def test_a_stranger_gets_no_checksum_file_that_is_made_of_two_logs() -> None:
    store = Swapped(world_with(PAST), uri=WORLD)
    moves(setting_of(store))
    assert not store.swaps
    left = below(store.objects, "new")
    assert {name: left[name] for name in stranger(9)} == stranger(9)
    assert [name for name in left if name.endswith((".crc", ".parquet")) and "_log" in name] == []


def settling_with_swap(nth: int, then: Fault | None, place: str) -> tuple[DictStore, bool]:
    """Move; right before the nth change of a log after READY another table comes there.

    ``then`` is how that change ends. Returns the store, and whether the table came.
    """
    store = DictStore(world_with(PAST), uri=WORLD)
    ready = f"old/{paths.commit(4)}"
    seen, settles, came = -1, False, False

    def rule(call: StoreCall) -> Fault | None:
        nonlocal seen, settles, came
        if settles and call.verb in ("PUT", "PUT_IF_ABSENT", "COPY"):
            seen += any(name.startswith(f"{place}/_delta_log/") for name in call.paths)
            if seen == nth and not came:
                came = True
                replace_table(store, place, stranger(9))
                return then
        # The commit's own checksum file belongs to it.
        settles = settles or (ready in call.paths and call.verb == "GET" and ready in store.objects)
        return None

    with suppress(Stopped):
        moves(setting_of(FaultyStore(store, rule), clock=store.clock))
    return store, came


def log_at(store: DictStore, place: str) -> dict[str, bytes]:
    """Return what readers see of the log at a place."""
    found = below(store.objects, place)
    is_seen = (name for name in found if paths.parse(name) or name == paths.LAST_CHECKPOINT)
    return {name: found[name] for name in is_seen}


THEIRS = {name: data for name, data in stranger(9).items() if paths.parse(name)}


@pytest.mark.parametrize(
    ("place", "then"),
    [
        ("new", None),
        ("new", Fault.STOP_AFTER),
        ("new", Fault.LOSE_ANSWER),
        ("old", None),
        ("old", Fault.LOSE_ANSWER),
    ],
)
def test_a_stranger_that_comes_at_a_write_of_settling_keeps_no_log_file_of_ours(
    place: str, then: Fault | None
) -> None:
    nth = 0
    while True:
        store, came = settling_with_swap(nth, then, place)
        if not came:
            break
        assert log_at(store, place) == THEIRS, nth
        nth += 1
    assert nth >= 3


def pinned(store: Store) -> settling.PinnedWrites:
    """Return writes into the log at the target as long as it has the version 2 of now."""
    ours = store.get(paths.commit(2))
    stage = partial(log_staging.staged_name, move_id="m")
    return settling.PinnedWrites(store, 2, lambda body, _: body == ours, stage)


def test_a_staged_file_that_another_process_has_deleted_isn_t_published() -> None:
    """It has settled the same move, and deletes everything that is staged at the end."""
    store = DictStore(History().then(Append(1), Append(1)).objects(NEW))
    name = paths.classic_checkpoint(2)

    def rule(call: StoreCall) -> Fault | None:
        if call.verb == "COPY":
            store.delete_many(call.paths)
        return None

    writes = pinned(FaultyStore(store, rule))
    assert not writes.put_if_absent(name, b"rows")
    assert not writes.withdraw()
    assert name not in store.objects


def test_what_is_pinned_to_a_commit_stays_where_a_cleanup_has_deleted_the_commit() -> None:
    store = DictStore(History().then(Append(1), Append(1), Append(1)).objects(NEW))
    name = paths.classic_checkpoint(2)
    writes = pinned(store)
    assert writes.put_if_absent(name, b"rows")
    store.delete_many([paths.commit(version) for version in (0, 1, 2)])
    assert not writes.withdraw()
    assert store.objects[name] == b"rows"


def test_what_a_stranger_has_put_under_our_name_stays() -> None:
    store = DictStore(History().then(Append(1), Append(1)).objects(NEW))
    name = paths.classic_checkpoint(2)
    writes = pinned(store)
    writes.put(name, b"rows")
    store.put(paths.commit(2), b"{}\n")
    store.put(name, b"theirs")
    assert writes.withdraw()
    assert store.objects[name] == b"theirs"


@pytest.mark.parametrize("settles", [resuming.resume], ids=["resume"])
def test_a_move_that_another_process_settles_right_after_the_decision_stays_decided(
    settles: Callable[[Setting, str], Outcome],
) -> None:
    store = DictStore(world_with(PAST), uri=WORLD)
    opening = paths.commit(4)
    done: list[Outcome] = []

    def rule(call: StoreCall) -> Fault | None:
        """Let the other process run right after the commit that opens the target was put."""
        if not done and f"new/{opening}" in store.objects:
            done.append(Outcome(RedirectState.ENABLING, OLD, NEW, None, False))
            done.append(settles(setting_of(store), OLD))
        return None

    mine = enabling.enable(setting_of(FaultyStore(store, rule), clock=store.clock), request_for())

    assert done[-1].state is mine.state is RedirectState.READY
    assert opening in below(store.objects, "new")
    redirect = redirect_at(setting_of(store))
    assert redirect is not None
    assert redirect.state is RedirectState.READY
    assert DeltaLog(setting_of(store).open_store(NEW)).state().version == 4
