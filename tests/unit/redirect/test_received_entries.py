"""Redirect entries that arrive with a table: they travel, and nobody is led anywhere by them."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from lakeferry.errors import (
    LakeferryError,
    NotATable,
    RedirectIllegalTransition,
    RedirectInProgress,
    RedirectSpecInvalid,
    RedirectTargetReplaced,
    TableNotFound,
)
from lakeferry.log import actions, protocols
from lakeferry.log.commit import Transaction
from lakeferry.redirect import cancel, freeze, received_entries, received_entry_commands, status
from lakeferry.redirect.disable import disabling
from lakeferry.redirect.enable import enabling
from lakeferry.redirect.entry import Data, Dialect, Mode
from lakeferry.redirect.resolve import Resolver
from lakeferry.redirect.states import RedirectState
from lakeferry.storage import Store
from lakeferry.table import DeltaLog
from lakeferry.transfer.datasets.delta.delta_dataset import DeltaDataset
from lakeferry.transfer.datasets.local_dataset import arrived_entry
from tests.support.history import (
    Append,
    Checkpoint,
    Clean,
    History,
    SetProperties,
    Upgrade,
)
from tests.support.lake import entry
from tests.support.places import Place, below, opener
from tests.support.redirects import (
    NEW,
    OLD,
    OTHER,
    WORLD,
    request_for,
    setting_of,
    world_with,
)
from tests.support.stores import DictStore, Fault, FaultyStore, Stopped, StoreCall, at
from tests.unit.transfer.datasets.delta.test_delta_dataset import carry, log_of, transfer

JOURNAL = json.dumps({"data": "copy", "moveId": "known", "readyVersion": 2, "protocol": [1, 2]})


def spark_entry(source: str, state: str = "REDIRECT-READY") -> str:
    spec = json.dumps({"sourcePath": source, "destPath": OTHER})
    return json.dumps(
        {"type": "PathBasedRedirect", "state": state, "spec": spec, "noRedirectRules": []}
    )


ENTRIES = {
    "delta.redirectWriterOnly": entry(OTHER),
    "delta.redirectReaderWriter": entry(OTHER, Spec={"Location": OTHER, "Source": NEW}),
    "redirectWriterOnly": entry(OTHER),
    "redirectReaderWriter": entry(OTHER),
    "delta.redirectWriterOnly-preview": spark_entry("/elsewhere"),
    "delta.redirectReaderWriter-preview": spark_entry("/elsewhere"),
}


def hostile(name: str, value: str) -> History:
    feature = name.removeprefix("delta.")
    reader = (feature,) if "Reader" in feature else ()
    return History().then(
        Append(2),
        SetProperties(((name, value), ("lakeferry.redirect", JOURNAL))),
        Upgrade(reader=reader, writer=(feature,)),
    )


def received(past: History) -> tuple[DictStore, DictStore]:
    """Return a publisher's table, and a world in which it has arrived beside a private one."""
    publisher = past.store("memory://publisher")
    world = DictStore(world_with(History().then(Append(1)), OTHER), uri=WORLD)
    transfer(publisher, Place(world, "new"))
    return publisher, world


def resolver_of(world: Store) -> Resolver:
    return Resolver(opener(world), cache_seconds=0)


@pytest.mark.parametrize("name", ENTRIES)
@pytest.mark.parametrize("state", ["READY", "ENABLE-REDIRECT-IN-PROGRESS", "NONSENSE"])
def test_an_entry_that_arrived_leads_nobody_anywhere(name: str, state: str) -> None:
    value = ENTRIES[name].replace("READY", state, 1) if "preview" not in name else ENTRIES[name]
    publisher, world = received(hostile(name, value))
    for write in (False, True):
        found = resolver_of(world).resolve(NEW, write=write)
        assert (found.location, found.redirected) == (NEW, False)
    assert log_of(publisher) == log_of(DictStore(below(world.objects, "new")))
    assert DeltaDataset(Place(world, "new"), "").current() == DeltaDataset(publisher, "").head()


def test_an_entry_in_the_checkpoint_that_a_chain_begins_with_leads_nobody_anywhere() -> None:
    past = hostile("delta.redirectWriterOnly", entry(OTHER))
    _, world = received(past.then(Checkpoint(), Append(1), Clean()))
    found = resolver_of(world).resolve(NEW, write=True)
    assert (found.location, found.redirected) == (NEW, False)


def test_a_local_change_of_other_properties_brings_no_entry_into_force() -> None:
    _, world = received(hostile("delta.redirectWriterOnly", entry(OTHER)))
    log = DeltaLog(Place(world, "new"))
    state = log.state()
    configuration = {**state.metadata.configuration, "owner": "us"}
    metadata = actions.changed(state.metadata, configuration=configuration)
    log.commit_exactly(Transaction("SET TBLPROPERTIES", "t", {}, metadata=metadata), state, 1)
    assert log.state().version == state.version + 1
    assert not resolver_of(world).resolve(NEW, write=True).redirected


def test_no_crash_while_a_table_arrives_leaves_its_entry_in_force() -> None:
    publisher = hostile("delta.redirectWriterOnly", entry(OTHER)).store("memory://publisher")
    for call in range(200):
        world = DictStore(world_with(History().then(Append(1)), OTHER), uri=WORLD)
        target = Place(world, "new")
        run = carry(publisher, target)
        faulty = FaultyStore(world, at(call, Fault.STOP_AFTER))
        try:
            DeltaDataset(Place(faulty, "new"), "").commit(run, None)
        except Stopped:
            try:
                found = resolver_of(world).resolve(NEW, write=True)
            except (NotATable, TableNotFound):
                continue
            assert not found.redirected, call
        else:
            # Some calls are asked for again, and then nothing stops.
            if call >= len(faulty.history):
                assert call > 20
                return
    raise AssertionError("it never ends")


@pytest.mark.parametrize("how", ["enable", "freeze"])
def test_a_redirect_that_its_receiver_sets_is_followed(how: str) -> None:
    _, world = received(History().then(Append(2), Append(1)))
    setting = setting_of(world)
    if how == "enable":
        enabling.enable(setting, request_for(OLD, source=NEW))
        assert resolver_of(world).resolve(NEW, write=True).location == OLD
    else:
        freeze.freeze(setting, NEW, Mode.WRITER_ONLY)
        with pytest.raises(LakeferryError):
            resolver_of(world).resolve(NEW, write=True)


def test_a_redirect_that_was_there_before_anything_arrived_goes_on_counting() -> None:
    world = DictStore(world_with(History().then(Append(2))), uri=WORLD)
    enabling.enable(setting_of(world), request_for(NEW, source=OLD))
    received_entries.mark(Place(world, "old"))
    received_entries.mark(Place(world, "old"))
    assert resolver_of(world).resolve(OLD).location == NEW


@pytest.mark.parametrize(
    "value",
    [
        spark_entry("/new"),
        spark_entry("/new/"),
        spark_entry("/new", "ENABLE-REDIRECT-IN-PROGRESS"),
        f"{spark_entry('/new')} trailing",
    ],
)
@pytest.mark.parametrize("in_root", [False, True])
def test_a_table_that_stock_spark_would_follow_from_here_is_refused(
    value: str, in_root: bool
) -> None:
    past = History().then(Append(1), SetProperties((("delta.redirectWriterOnly-preview", value),)))
    if in_root:
        past = past.then(Checkpoint(), Append(1), Clean())
    world = DictStore(uri=WORLD)
    with pytest.raises(RedirectSpecInvalid):
        transfer(past.store("memory://publisher"), Place(world, "new"))
    assert not any("/_delta_log/0" in name for name in world.objects)


def test_only_the_newest_version_counts_for_what_stock_spark_would_follow() -> None:
    name = "delta.redirectWriterOnly-preview"
    past = History().then(Append(1), SetProperties(((name, spark_entry("/new")),)))
    _, world = received(past.then(SetProperties(((name, spark_entry("/elsewhere")),)), Append(1)))
    assert DeltaLog(Place(world, "new")).state().version == 4


def go_on(world: DictStore, changes: dict[str, str], features: tuple[str, ...] = ()) -> None:
    """Let a publisher who has our table add a version that sets properties, and take it back."""
    DeltaDataset(Place(world, "new"), "").current()
    publisher = DictStore(below(world.objects, "new"), uri="memory://publisher")
    log = DeltaLog(publisher)
    state = log.state()
    configuration = {**state.metadata.configuration, **changes}
    metadata = actions.changed(state.metadata, configuration=configuration)
    protocol = protocols.adding(state.protocol, features) if features else None
    wanted = Transaction("SET TBLPROPERTIES", "t", {}, protocol=protocol, metadata=metadata)
    log.commit_exactly(wanted, state, 1)
    DeltaDataset(publisher, "").current()
    transfer(publisher, Place(world, "new"))


def test_an_entry_that_repeats_a_move_of_ours_leads_nobody_to_another_place() -> None:
    _, world = received(History().then(Append(2), Append(1)))
    enabling.enable(setting_of(world), request_for(OLD, source=NEW))
    assert resolver_of(world).resolve(NEW, write=True).location == OLD
    ours = DeltaLog(Place(world, "new")).state().metadata.configuration
    move_id = json.loads(ours["lakeferry.redirect"])["moveId"]
    theirs = {
        name: value.replace(OLD, OTHER) for name, value in ours.items() if "delta.redirect" in name
    }
    assert theirs
    go_on(world, theirs | {"lakeferry.redirect": json.dumps({"moveId": move_id})})
    found = resolver_of(world).resolve(NEW, write=True)
    assert (found.location, found.redirected) == (NEW, False)


@pytest.mark.parametrize(
    "dialects", [*((each,) for each in Dialect), (Dialect.RFC, Dialect.DELTA_SPARK)]
)
@pytest.mark.parametrize("place", [OLD, f"{WORLD}/a%20b%25/%C3%BC"])
def test_a_redirect_that_its_receiver_sets_is_followed_however_it_is_spelled(
    dialects: tuple[Dialect, ...], place: str
) -> None:
    _, world = received(History().then(Append(2), Append(1)))
    enabling.enable(setting_of(world), replace(request_for(place, source=NEW), dialects=dialects))
    assert resolver_of(world).resolve(NEW, write=True).location == place


@pytest.mark.parametrize("name", ["delta.redirectWriterOnly", "delta.redirectReaderWriter-preview"])
def test_a_property_that_arrived_without_its_feature_is_taken_away_as_the_warning_says(
    name: str,
) -> None:
    past = History().then(Append(2), SetProperties(((name, ENTRIES[name]),)))
    _, world = received(past)
    place = Place(world, "new")
    assert arrived_entry(place) == name
    with pytest.raises(RedirectIllegalTransition, match="arrived by push or pull"):
        received_entry_commands.check_no_received_entry(setting_of(world), NEW)
    assert received_entry_commands.withdraw_received(setting_of(world), NEW) is not None
    assert arrived_entry(place) is None
    assert received_entry_commands.withdraw_received(setting_of(world), NEW) is None
    enabling.enable(setting_of(world), request_for(OLD, source=NEW))
    assert resolver_of(world).resolve(NEW, write=True).location == OLD


def test_status_says_how_an_entry_goes_that_arrived_and_cant_be_read() -> None:
    _, world = received(hostile("delta.redirectWriterOnly", "[]"))
    with pytest.raises(RedirectSpecInvalid) as refused:
        status.status(setting_of(world), NEW)
    assert f"lakeferry redirect disable {NEW}" in str(refused.value.remedy)
    assert received_entry_commands.withdraw_received(setting_of(world), NEW) is not None
    assert status.status(setting_of(world), NEW).state is RedirectState.NORMAL


# ------------------------------------------------------------------ tables that arrived and move


PASSED = "delta.redirectWriterOnly"
"""The property of an entry that a publisher's table had for a while."""
OPENING = "00000000000000000003.json"
"""What opens the target of a table with two versions of its own."""


def restore(store: Store, version: int) -> None:
    """Give a table the properties and the protocol back that it had at a version."""
    log = DeltaLog(store)
    old = log.state(version)
    wanted = Transaction("RESTORE", "r", {}, protocol=old.protocol, metadata=old.metadata)
    log.commit_exactly(wanted, log.state(), 1)


def received_once_hostile() -> DictStore:
    """Return a world where a table arrived that had an entry at version 3, and has none now."""
    publisher = hostile(PASSED, entry(OTHER)).store("memory://publisher")
    restore(publisher, 1)
    world = DictStore(world_with(History().then(Append(1)), OTHER), uri=WORLD)
    transfer(publisher, Place(world, "new"))
    return world


def check_stays(world: Store, table: str) -> None:
    found = resolver_of(world).resolve(table, write=True)
    assert (found.location, found.redirected) == (table, False)


@pytest.mark.parametrize("data", [Data.COPY, Data.REFERENCE])
def test_a_restore_where_a_received_table_has_moved_leads_nobody_anywhere(data: Data) -> None:
    world = received_once_hostile()
    enabling.enable(setting_of(world), request_for(OLD, source=NEW, data=data))
    assert resolver_of(world).resolve(NEW, write=True).location == OLD
    restore(Place(world, "old"), 3)
    check_stays(world, OLD)


def test_a_restore_after_a_second_move_leads_nobody_anywhere() -> None:
    world = received_once_hostile()
    setting = setting_of(world)
    enabling.enable(setting, request_for(OLD, source=NEW))
    enabling.enable(setting, request_for(f"{WORLD}/third", source=OLD))
    restore(Place(world, "third"), 3)
    check_stays(world, f"{WORLD}/third")


def test_a_restore_after_a_received_table_came_home_leads_nobody_anywhere() -> None:
    world = received_once_hostile()
    setting = setting_of(world)
    enabling.enable(setting, request_for(OLD, source=NEW))
    disabling.disable(setting, NEW)
    restore(Place(world, "new"), 3)
    check_stays(world, NEW)


def test_what_arrived_at_a_target_leads_nobody_anywhere_when_it_is_home() -> None:
    world = DictStore(world_with(History().then(Append(2))), uri=WORLD)
    setting = setting_of(world)
    enabling.enable(setting, request_for(NEW, source=OLD))
    newest = DeltaLog(Place(world, "new")).state().version
    go_on(world, {PASSED: entry(OTHER), "lakeferry.redirect": JOURNAL}, (PASSED[6:],))
    with pytest.raises(RedirectIllegalTransition):
        disabling.disable(setting, OLD)
    assert received_entry_commands.withdraw_received(setting, NEW) is not None
    disabling.disable(setting, OLD)
    restore(Place(world, "old"), newest + 1)
    with pytest.raises(RedirectTargetReplaced, match=f"the redirect of {OLD} to {NEW} has ended"):
        resolver_of(world).resolve(OLD)


@pytest.mark.parametrize("begin", ["enable", "freeze"])
def test_a_redirect_counts_if_a_pull_comes_just_before_its_first_commit(begin: str) -> None:
    world = DictStore(world_with(History().then(Append(2))), uri=WORLD)

    def pull(call: StoreCall) -> None:
        if call.verb == "PUT_IF_ABSENT" and call.paths[0].startswith("old/_delta_log/0"):
            received_entries.mark(Place(world, "old"))

    setting = setting_of(FaultyStore(world, pull), clock=world.clock)
    if begin == "enable":
        enabling.enable(setting, request_for(NEW, source=OLD))
        assert resolver_of(world).resolve(OLD).location == NEW
    else:
        freeze.freeze(setting, OLD)
        with pytest.raises(RedirectInProgress):
            resolver_of(world).resolve(OLD, write=True)


def test_the_lock_of_a_received_table_s_target_counts() -> None:
    _, world = received(History().then(Append(2)))
    setting = setting_of(world)
    enabling.enable(setting, request_for(OLD, source=NEW))
    disabling.disable(setting, NEW)
    with pytest.raises(RedirectInProgress):
        resolver_of(world).resolve(OLD, write=True)


def test_a_cancelled_move_of_a_received_table_leaves_nothing() -> None:
    _, world = received(History().then(Append(2)))
    _stopped_before_opening(world)
    assert received_entries.is_received(Place(world, "old"))
    with pytest.raises(RedirectInProgress):
        resolver_of(world).resolve(OLD, write=True)
    cancel.cancel(setting_of(world), NEW)
    assert below(world.objects, "old") == {}


def test_a_cancel_leaves_the_mark_of_what_arrived_meanwhile() -> None:
    _, world = received(History().then(Append(2)))
    _stopped_before_opening(world)
    received_entries.mark(Place(world, "old"))
    cancel.cancel(setting_of(world), NEW)
    assert received_entries.is_received(Place(world, "old"))


def _stopped_before_opening(world: DictStore) -> None:
    """Break a move off where its target is locked and isn't open yet."""

    def stop(call: StoreCall) -> Fault | None:
        opening = call.paths[0] == f"old/_delta_log/{OPENING}"
        return Fault.STOP_BEFORE if opening and call.verb == "PUT_IF_ABSENT" else None

    with pytest.raises(Stopped):
        enabling.enable(
            setting_of(FaultyStore(world, stop), clock=world.clock), request_for(OLD, source=NEW)
        )


def test_a_lock_that_arrived_at_a_target_withdraws_nothing() -> None:
    """A publisher who has our history knows the move's id, and could say that it is withdrawn."""
    world = DictStore(world_with(History().then(Append(2))), uri=WORLD)
    setting = setting_of(world)
    enabling.enable(setting, request_for(NEW, source=OLD))
    ours = DeltaLog(Place(world, "old")).state().metadata.configuration
    move_id = json.loads(ours["lakeferry.redirect"])["moveId"]
    journal = {"data": "existing", "moveId": move_id, "dropping": True, "removesTarget": True}
    lock = entry(NEW, State="DROP-REDIRECT-IN-PROGRESS")
    go_on(world, {PASSED: lock, "lakeferry.redirect": json.dumps(journal)}, (PASSED[6:],))
    with pytest.raises(RedirectIllegalTransition, match="redirect of its own"):
        disabling.disable(setting, OLD)
    assert received_entry_commands.withdraw_received(setting, NEW) is not None
    disabling.disable(setting, OLD)
    assert below(world.objects, "new")


def test_a_received_table_that_moved_and_is_sent_on_leads_nobody_anywhere() -> None:
    world = received_once_hostile()
    enabling.enable(setting_of(world), request_for(OLD, source=NEW))
    transfer(Place(world, "old"), Place(world, "third"))
    restore(Place(world, "third"), 3)
    check_stays(world, f"{WORLD}/third")
