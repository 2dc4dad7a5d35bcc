"""Redirect entries that arrive with a table: they travel, and nobody is led anywhere by them."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from lakeferry.errors import (
    LakeferryError,
    NotATable,
    RedirectIllegalTransition,
    RedirectSpecInvalid,
    TableNotFound,
)
from lakeferry.log import actions
from lakeferry.log.commit import Transaction
from lakeferry.redirect import arrivals, enable, foreign_entries, freeze, status
from lakeferry.redirect.model import Dialect, Mode
from lakeferry.redirect.resolve import Resolver
from lakeferry.redirect.states import State
from lakeferry.storage import Store
from lakeferry.table import DeltaLog
from lakeferry.transfer.delta_dataset import DeltaDataset
from lakeferry.transfer.here import arrived_entry
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
from tests.support.stores import DictStore, Fault, FaultyStore, Stopped, at
from tests.unit.transfer.test_delta_dataset import carry, log_of, transfer

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
        enable.enable(setting, request_for(OLD, source=NEW))
        assert resolver_of(world).resolve(NEW, write=True).location == OLD
    else:
        freeze.freeze(setting, NEW, Mode.WRITER_ONLY)
        with pytest.raises(LakeferryError):
            resolver_of(world).resolve(NEW, write=True)


def test_a_redirect_that_was_there_before_anything_arrived_goes_on_counting() -> None:
    world = DictStore(world_with(History().then(Append(2))), uri=WORLD)
    enable.enable(setting_of(world), request_for(NEW, source=OLD))
    arrivals.mark(Place(world, "old"))
    arrivals.mark(Place(world, "old"))
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


def go_on(world: DictStore, changes: dict[str, str]) -> None:
    """Let a publisher who has our table add a version that sets properties, and take it back."""
    DeltaDataset(Place(world, "new"), "").current()
    publisher = DictStore(below(world.objects, "new"), uri="memory://publisher")
    log = DeltaLog(publisher)
    state = log.state()
    configuration = {**state.metadata.configuration, **changes}
    metadata = actions.changed(state.metadata, configuration=configuration)
    log.commit_exactly(Transaction("SET TBLPROPERTIES", "t", {}, metadata=metadata), state, 1)
    DeltaDataset(publisher, "").current()
    transfer(publisher, Place(world, "new"))


def test_an_entry_that_repeats_a_move_of_ours_leads_nobody_to_another_place() -> None:
    _, world = received(History().then(Append(2), Append(1)))
    enable.enable(setting_of(world), request_for(OLD, source=NEW))
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
    enable.enable(setting_of(world), replace(request_for(place, source=NEW), dialects=dialects))
    assert resolver_of(world).resolve(NEW, write=True).location == place


@pytest.mark.parametrize("name", ["delta.redirectWriterOnly", "delta.redirectReaderWriter-preview"])
def test_a_property_that_arrived_without_its_feature_is_taken_away_as_the_warning_says(
    name: str,
) -> None:
    past = History().then(Append(2), SetProperties(((name, ENTRIES[name]),)))
    _, world = received(past)
    place = Place(world, "new")
    assert arrived_entry(place) == name
    with pytest.raises(RedirectIllegalTransition, match="arrived by transfer"):
        foreign_entries.check_none(setting_of(world), NEW)
    assert foreign_entries.withdraw(setting_of(world), NEW, dry_run=False) is not None
    assert arrived_entry(place) is None
    assert foreign_entries.withdraw(setting_of(world), NEW, dry_run=False) is None
    enable.enable(setting_of(world), request_for(OLD, source=NEW))
    assert resolver_of(world).resolve(NEW, write=True).location == OLD


def test_status_says_how_an_entry_goes_that_arrived_and_cant_be_read() -> None:
    _, world = received(hostile("delta.redirectWriterOnly", "[]"))
    with pytest.raises(RedirectSpecInvalid) as refused:
        status.status(setting_of(world), NEW)
    assert f"lakeferry redirect disable {NEW}" in str(refused.value.remedy)
    assert foreign_entries.withdraw(setting_of(world), NEW, dry_run=False) is not None
    assert status.status(setting_of(world), NEW).state is State.NORMAL
