"""Taking a move back, on stores in memory."""

from __future__ import annotations

import contextlib

import pytest

from lakeferry.errors import RedirectIllegalTransition, RedirectSpecInvalid
from lakeferry.log import actions
from lakeferry.redirect import cancel, freeze, resuming
from lakeferry.redirect.disable import disabling
from lakeferry.redirect.enable import enabling
from lakeferry.redirect.entry import Data
from lakeferry.redirect.states import RedirectState
from tests.support import plans
from tests.support.history import (
    Append,
    Checkpoint,
    Clean,
    DeleteRows,
    History,
    Kind,
    Layout,
)
from tests.support.places import below, inside
from tests.support.redirects import (
    NEW,
    OLD,
    REDIRECT_FEATURES,
    WORLD,
    content,
    is_openable,
    numbered,
    protocol_features,
    request_for,
    setting_of,
    world_with,
)
from tests.support.stores import DictStore, Fault, FaultyStore, Rule, Stopped, on

PAST = History().then(Append(2), Checkpoint(), Append(1))
LOCK = f"new/_delta_log/{3:020d}.json"
OPENING = f"new/_delta_log/{4:020d}.json"


def begun(rule: Rule, past: History = PAST) -> DictStore:
    """Return a world in which a move was broken off."""
    store = DictStore(world_with(past), uri=WORLD)
    faulty = FaultyStore(store, rule)
    with pytest.raises(Stopped):
        enabling.enable(setting_of(faulty, clock=store.clock), request_for())
    return store


@pytest.mark.parametrize(
    "rule",
    [
        on("PUT_IF_ABSENT", Fault.STOP_AFTER, containing=f"old/_delta_log/{3:020d}"),
        on("PUT_IF_ABSENT", Fault.STOP_AFTER, containing=LOCK),
        on("COPY", Fault.STOP_AFTER),
        on("PUT_IF_ABSENT", Fault.STOP_BEFORE, containing=OPENING),
    ],
    ids=["just begun", "locked", "half published", "about to be opened"],
)
def test_a_move_that_has_begun_is_taken_back_and_leaves_nothing(rule: Rule) -> None:
    store = begun(rule)
    expected = content(world_with(PAST), OLD)
    outcome = cancel.cancel(setting_of(store, new_id=numbered("cancel")), OLD)
    assert (outcome.state, outcome.version, outcome.changed) == (RedirectState.NORMAL, 4, True)
    assert content(store.objects, OLD) == expected
    assert not protocol_features(store.objects, OLD) & REDIRECT_FEATURES
    assert below(store.objects, "new") == {}


@pytest.mark.parametrize("kind", [Kind.V2_JSON, Kind.V2_PARQUET, Kind.CLASSIC])
def test_files_that_only_a_checkpoint_names_are_taken_away_too(kind: Kind) -> None:
    layout = Layout(v2_checkpoints=kind is not Kind.CLASSIC, deletion_vectors="u")
    past = History(layout).then(Append(3), DeleteRows(1), Checkpoint(kind), Clean())
    locked = on("PUT_IF_ABSENT", Fault.STOP_AFTER, containing=f"new/_delta_log/{3:020d}.json")
    store = begun(locked, past)
    brought = [name for name in store.objects if name.startswith("new/") and "_log" not in name]
    assert len(brought) > 3
    cancel.cancel(setting_of(store, new_id=numbered("cancel")), OLD)
    assert below(store.objects, "new") == {}


def test_the_protocol_is_what_it_was() -> None:
    store = begun(on("COPY", Fault.STOP_AFTER))
    setting = setting_of(store, new_id=numbered("cancel"))
    cancel.cancel(setting, OLD)
    protocol = setting.log(OLD).state().protocol
    assert (protocol.min_reader_version, protocol.min_writer_version) == (1, 2)


def test_what_nobody_brought_there_stays() -> None:
    store = begun(on("COPY", Fault.STOP_AFTER))
    store.put("new/notes.txt", b"mine")
    cancel.cancel(setting_of(store, new_id=numbered("cancel")), OLD)
    assert below(store.objects, "new") == {"notes.txt": b"mine"}


def test_past_the_point_of_no_return_it_is_refused_and_nothing_changes() -> None:
    store = begun(on("PUT_IF_ABSENT", Fault.STOP_AFTER, containing=OPENING))
    before = store.objects
    setting = setting_of(store, new_id=numbered("cancel"))
    with pytest.raises(RedirectIllegalTransition):
        cancel.cancel(setting, OLD)
    assert store.objects == before
    assert resuming.resume(setting, OLD).state is RedirectState.READY
    with pytest.raises(RedirectIllegalTransition):
        cancel.cancel(setting, OLD)


def test_a_table_without_a_redirect_has_nothing_to_take_back() -> None:
    store = DictStore(world_with(PAST), uri=WORLD)
    before = store.objects
    outcome = cancel.cancel(setting_of(store), OLD)
    assert (outcome.state, outcome.changed) == (RedirectState.NORMAL, False)
    assert store.objects == before


def test_a_resume_after_the_closing_commit_goes_back_too() -> None:
    store = begun(on("COPY", Fault.STOP_AFTER))
    faulty = FaultyStore(store, on("DELETE", Fault.STOP_BEFORE))
    with pytest.raises(Stopped):
        cancel.cancel(setting_of(faulty, clock=store.clock, new_id=numbered("cancel")), OLD)
    assert not is_openable(store.objects, NEW) or protocol_features(store.objects, NEW) & (
        REDIRECT_FEATURES
    )
    outcome = resuming.resume(setting_of(store, new_id=numbered("resume")), OLD)
    assert outcome.state is RedirectState.NORMAL
    assert below(store.objects, "new") == {}


def test_a_claim_that_a_cancel_left_is_taken_over() -> None:
    store = begun(on("COPY", Fault.STOP_AFTER))
    rule = on("DELETE", Fault.STOP_BEFORE, containing="claim.json")
    faulty = FaultyStore(store, rule)
    with pytest.raises(Stopped):
        cancel.cancel(setting_of(faulty, clock=store.clock, new_id=numbered("cancel")), OLD)
    assert list(below(store.objects, "new")) == ["_delta_log/_lakeferry/claim.json"]
    outcome = enabling.enable(setting_of(store, new_id=numbered("again")), request_for())
    assert outcome.state is RedirectState.READY
    assert content(store.objects, NEW) == content(store.objects, OLD)


def test_a_frozen_table_is_let_go_by_a_cancel() -> None:
    store = DictStore(world_with(PAST), uri=WORLD)
    setting = setting_of(store)
    freeze.freeze(setting, OLD)
    assert cancel.cancel(setting, OLD).state is RedirectState.NORMAL
    assert not protocol_features(store.objects, OLD) & REDIRECT_FEATURES


# ------------------------------------------- entries whose beginning isn't the newest version


def restored(store: DictStore, version: int) -> None:
    """Put an old version's entry on top of the source, as a RESTORE does."""
    log = setting_of(store).log(OLD)
    newest, old = log.state().version, log.state(version)
    lines = [b'{"commitInfo":{"operation":"RESTORE","timestamp":1}}']
    lines += [actions.encode_line(part) for part in (old.protocol, old.metadata)]
    log.store.put(f"_delta_log/{newest + 1:020d}.json", b"\n".join(lines))


def careless(store: DictStore) -> None:
    """Commit to the source as a writer does that doesn't look at features."""
    version = setting_of(store).log(OLD).state().version + 1
    store.put(f"old/_delta_log/{version:020d}.json", b'{"commitInfo":{"operation":"WRITE"}}')


def taken_away(store: DictStore) -> None:
    """Check that the entry can be planned to go, and goes, and that it is gone."""
    setting = setting_of(store, new_id=numbered("cancel"))
    with pytest.raises(RedirectSpecInvalid) as refused:
        resuming.resume(setting, OLD)
    assert "redirect cancel" in (refused.value.remedy or "")
    before = store.objects
    planned = plans.cancel(setting, OLD)
    assert store.objects == before
    outcome = cancel.cancel(setting, OLD)
    assert (outcome.state, outcome.changed) == (RedirectState.NORMAL, True)
    ends = [step for step in planned if step.get("table") == OLD]
    assert [(step["state"], step["version"]) for step in ends] == [("NORMAL", outcome.version)]
    assert not protocol_features(store.objects, OLD) & REDIRECT_FEATURES
    assert not cancel.cancel(setting, OLD).changed


@pytest.mark.parametrize("target", ["closed", "removed", "closed and cleaned up"])
def test_an_old_beginning_that_a_restore_brought_back_is_taken_away(target: str) -> None:
    store = DictStore(world_with(PAST), uri=WORLD)
    setting = setting_of(store)
    enabling.enable(setting, request_for())
    disabling.disable(setting, OLD, disabling.WithdrawalOptions(remove_target=target == "removed"))
    if target == "closed and cleaned up":
        setting.log(NEW).checkpoint()
        store.delete_many([f"new/_delta_log/{version:020d}.json" for version in range(5)])
    expected, left = content(store.objects, OLD), below(store.objects, "new")
    restored(store, 3)
    taken_away(store)
    assert content(store.objects, OLD) == expected
    assert below(store.objects, "new") == left


def test_an_old_beginning_leaves_alone_what_another_table_has_put_there_since() -> None:
    store = begun(on("COPY", Fault.STOP_AFTER))
    setting = setting_of(store, new_id=numbered("cancel"))
    cancel.cancel(setting, OLD)
    for name, data in below(world_with(History().then(Append(2), Append(1))), "old").items():
        store.put(f"new/{name}", data.replace(b'"id":"', b'"id":"another-'))
    target = below(store.objects, "new")
    restored(store, 3)
    taken_away(store)
    assert below(store.objects, "new") == target


@pytest.mark.parametrize(
    "rule",
    [
        on("PUT_IF_ABSENT", Fault.STOP_AFTER, containing=f"old/_delta_log/{3:020d}"),
        on("PUT_IF_ABSENT", Fault.STOP_AFTER, containing=LOCK),
        on("COPY", Fault.STOP_AFTER),
        on("PUT_IF_ABSENT", Fault.STOP_BEFORE, containing=OPENING),
    ],
    ids=["just begun", "locked", "half published", "about to be opened"],
)
def test_a_move_that_was_written_over_is_taken_back_and_leaves_nothing(rule: Rule) -> None:
    store = begun(rule)
    expected = content(world_with(PAST), OLD)
    careless(store)
    taken_away(store)
    assert content(store.objects, OLD) == expected
    assert below(store.objects, "new") == {}


@pytest.mark.parametrize("fault", [Fault.STOP_BEFORE, Fault.STOP_AFTER])
def test_taking_back_a_move_that_was_written_over_goes_on_wherever_it_was_broken_off(
    fault: Fault,
) -> None:
    left = begun(on("PUT_IF_ABSENT", Fault.STOP_BEFORE, containing=OPENING))
    careless(left)
    objects = left.objects

    def calls(rule: Rule, store: DictStore) -> FaultyStore:
        faulty = FaultyStore(store, rule)
        with contextlib.suppress(Stopped):
            cancel.cancel(setting_of(faulty, clock=store.clock, new_id=numbered("first")), OLD)
        return faulty

    whole = calls(lambda _: None, DictStore(objects, uri=WORLD))
    changing = [call.index for call in whole.history if call.verb in ("PUT_IF_ABSENT", "DELETE")]
    assert len(changing) > 4
    for index in changing:
        store = DictStore(objects, uri=WORLD)
        calls(lambda call, at=index: fault if call.index == at else None, store)  # type: ignore[misc]
        again = setting_of(store, new_id=numbered("second"))
        assert cancel.cancel(again, OLD).state is RedirectState.NORMAL
        outcome = enabling.enable(setting_of(store, new_id=numbered("third")), request_for())
        assert outcome.state is RedirectState.READY
        assert content(store.objects, NEW) == content(store.objects, OLD)


def test_a_move_that_was_opened_and_written_over_is_refused_with_a_way_out() -> None:
    store = begun(on("PUT_IF_ABSENT", Fault.STOP_AFTER, containing=OPENING))
    careless(store)
    before = store.objects
    setting = setting_of(store, new_id=numbered("cancel"))
    for act in (plans.cancel, cancel.cancel):
        with pytest.raises(RedirectIllegalTransition) as refused:
            act(setting, OLD)
        assert f"delete {NEW}" in (refused.value.remedy or "")
    assert store.objects == before
    store.delete_many([name for name in store.objects if name.startswith("new/")])
    taken_away(store)


def test_a_redirect_to_an_existing_table_that_was_written_over_is_taken_away() -> None:
    table = world_with(PAST)
    store = DictStore(table | inside("new", below(table, "old")), uri=WORLD)
    ready = on("PUT_IF_ABSENT", Fault.STOP_BEFORE, containing=f"old/_delta_log/{4:020d}.json")
    faulty = FaultyStore(store, ready)
    with pytest.raises(Stopped):
        enabling.enable(setting_of(faulty, clock=store.clock), request_for(data=Data.EXISTING))
    target = below(store.objects, "new")
    careless(store)
    taken_away(store)
    assert below(store.objects, "new") == target
