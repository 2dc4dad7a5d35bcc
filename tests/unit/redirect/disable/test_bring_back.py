"""What may have happened to a table by the time it comes back, on stores in memory."""

from __future__ import annotations

import uuid
from dataclasses import replace

import pyarrow as pa
import pytest

from lakeferry.errors import (
    Diverged,
    InvalidInput,
    MissingFile,
    RedirectTargetMissing,
    StorageUnavailable,
)
from lakeferry.log import deletion_vectors, file_actions
from lakeferry.log.actions import changed
from lakeferry.log.commit import Transaction
from lakeferry.log.conflicts import Conflict
from lakeferry.redirect import freeze, resuming
from lakeferry.redirect.disable import disabling
from lakeferry.redirect.disable.disabling import WithdrawalOptions
from lakeferry.redirect.enable import enabling
from lakeferry.redirect.entry import Data, Mode
from lakeferry.redirect.redirect_context import Setting
from lakeferry.redirect.states import RedirectState
from lakeferry.table import DeltaLog
from tests.support import plans
from tests.support.history import Append, Checkpoint, DeleteRows, History, Layout
from tests.support.places import below, inside
from tests.support.redirects import (
    NEW,
    OLD,
    OTHER,
    REDIRECT_FEATURES,
    WORLD,
    added,
    append,
    content,
    numbered,
    protocol_features,
    redirect_at,
    request_for,
    setting_of,
    world_with,
)
from tests.support.stores import (
    DictStore,
    Fault,
    FaultyStore,
    Rule,
    Stopped,
    StoreCall,
    on,
)

PAST = History(Layout(deletion_vectors="u")).then(Append(2), Checkpoint(), DeleteRows(1))


def moved(data: Data = Data.COPY, mode: Mode = Mode.READER_WRITER) -> tuple[DictStore, Setting]:
    store = DictStore(world_with(PAST), uri=WORLD)
    setting = setting_of(store)
    enabling.enable(setting, request_for(data=data, mode=mode))
    return store, setting


def remove(log: DeltaLog, name: str) -> None:
    """Delete a file's rows, as a modern writer does."""
    live = log.snapshot().files
    gone = live.filter([path == name for path in live["path"].to_pylist()])
    assert gone.num_rows == 1
    done = log.commit(
        Transaction(
            "DELETE",
            f"gone-{name}",
            removes=file_actions.as_removes(gone, log.clock(), data_change=True),
        ),
        log.state(),
    )
    assert not isinstance(done, Conflict)


def broken_off(store: DictStore, rule: Rule, options: WithdrawalOptions | None = None) -> None:
    faulty = setting_of(FaultyStore(store, rule), clock=store.clock, new_id=numbered("broken"))
    with pytest.raises(Stopped):
        disabling.disable(faulty, OLD, options or WithdrawalOptions())


def brought(version: int) -> Rule:
    """Break off when the source has got that version."""
    return on("PUT_IF_ABSENT", Fault.STOP_AFTER, containing=f"old/_delta_log/{version:020d}")


@pytest.mark.parametrize("second", [resuming.resume, disabling.disable], ids=["resume", "again"])
@pytest.mark.parametrize("data", [Data.COPY, Data.REFERENCE])
def test_a_withdrawal_goes_on_the_way_it_began(data: Data, second: object) -> None:
    store, setting = moved(Data.REFERENCE)
    new = setting.log(NEW)
    append(new, "y.parquet")
    append(new, "z.parquet")
    remove(new, "y.parquet")
    expected = content(store.objects, NEW)
    broken_off(store, brought(5), WithdrawalOptions(data=data))
    other = Data.COPY if data is Data.REFERENCE else Data.REFERENCE
    with pytest.raises(InvalidInput, match="was started with"):
        disabling.disable(setting, OLD, WithdrawalOptions(data=other))
    assert second(setting, OLD).state is RedirectState.NORMAL  # type: ignore[operator]
    assert content(store.objects, OLD) == expected


@pytest.mark.parametrize("second", [resuming.resume, disabling.disable], ids=["resume", "again"])
def test_the_target_is_removed_by_whoever_ends_the_withdrawal(second: object) -> None:
    store, setting = moved()
    append(setting.log(NEW), "x.parquet")
    expected = content(store.objects, NEW)
    broken_off(store, brought(5), WithdrawalOptions(remove_target=True))
    second(setting, OLD)  # type: ignore[operator]
    assert below(store.objects, "new") == {}
    assert content(store.objects, OLD) == expected


def test_a_target_that_was_to_go_goes_even_if_the_end_was_broken_off() -> None:
    store, setting = moved()
    append(setting.log(NEW), "x.parquet")
    expected = content(store.objects, NEW)
    broken_off(store, brought(7), WithdrawalOptions(remove_target=True))
    assert redirect_at(setting) is None
    assert below(store.objects, "new")
    append(setting.log(OLD), "later.parquet")
    outcome = disabling.disable(setting, OLD)
    assert (outcome.state, outcome.changed) == (RedirectState.NORMAL, True)
    assert below(store.objects, "new") == {}
    assert {*expected.names, "later.parquet"} == {*content(store.objects, OLD).names}
    assert not disabling.disable(setting, OLD).changed


@pytest.mark.parametrize("later", [False, True])
def test_a_target_that_was_written_to_in_spite_of_its_lock_isnt_deleted(later: bool) -> None:
    """A client that doesn't know the lock's feature mustn't write, and may do so all the same."""
    store, setting = moved()
    append(setting.log(NEW), "x.parquet")
    done: list[int] = []

    def write(_: StoreCall) -> None:
        # READY is 4, and the way back ends at 7.
        if f"old/_delta_log/{7:020}.json" in store.objects and not done:
            done.append(append(setting_of(store).log(NEW), "late.parquet"))

    warnings: list[str] = []
    if later:
        disabling.disable(setting, OLD)
        done.append(append(setting.log(NEW), "late.parquet"))
    telling = setting_of(FaultyStore(store, write), clock=store.clock, warn=warnings.append)
    disabling.disable(telling, OLD, WithdrawalOptions(remove_target=True))
    said = f"{NEW} isn't deleted: a writer added version {done[0]}"
    assert any(said in each for each in warnings), warnings
    assert "late.parquet" in content(store.objects, NEW).names


@pytest.mark.parametrize("index", range(4))
def test_a_target_that_is_half_removed_is_removed_by_the_next(index: int) -> None:
    store, setting = moved()
    append(setting.log(NEW), "x.parquet")
    expected = content(store.objects, NEW)
    deletions = iter(range(100))

    def rule(call: StoreCall) -> Fault | None:
        away = call.verb == "DELETE" and call.paths[0].startswith("new/")
        return Fault.STOP_HALFWAY if away and next(deletions) == index else None

    try:
        broken_off(store, rule, WithdrawalOptions(remove_target=True))
    except pytest.fail.Exception:
        assert index > 1
    disabling.disable(setting, OLD)
    assert below(store.objects, "new") == {}
    assert content(store.objects, OLD) == expected


def test_an_old_withdrawal_is_none_of_a_later_table_s_business() -> None:
    store, setting = moved()
    disabling.disable(setting, OLD, WithdrawalOptions(remove_target=True))
    theirs = inside("new", below(world_with(History().then(Append(1))), "old"))
    for name, body in theirs.items():
        store.put(name, body)
    before = store.objects
    assert not disabling.disable(setting, OLD, WithdrawalOptions(remove_target=True)).changed
    assert store.objects == before


@pytest.mark.parametrize("own", Mode)
@pytest.mark.parametrize("mode", Mode)
def test_a_target_that_was_frozen_for_a_while_comes_home_without_that(
    mode: Mode, own: Mode
) -> None:
    store, setting = moved(mode=mode)
    freeze.freeze(setting, NEW, own)
    freeze.thaw(setting, NEW)
    append(setting.log(NEW), "x.parquet")
    expected = content(store.objects, NEW)
    # READY is 4; 5 and 6 froze and thawed the target.
    broken_off(store, brought(5))
    found = redirect_at(setting)
    assert found is not None
    assert (found.mode, found.state, found.doubled) == (mode, RedirectState.READY, False)
    assert str(found.target) == NEW
    disabling.disable(setting, OLD)
    assert content(store.objects, OLD) == expected
    assert not protocol_features(store.objects, OLD) & REDIRECT_FEATURES


@pytest.mark.parametrize("data", [Data.COPY, Data.REFERENCE])
def test_a_vector_that_is_lost_at_the_target_is_noticed(data: Data) -> None:
    _, setting = moved(data)
    new = setting.log(NEW)
    where = deletion_vectors.relative_descriptor(f"deletion_vector_{uuid.UUID(int=7)}.bin")
    vector = {"storageType": "u", "pathOrInlineDv": where, "offset": 1, "sizeInBytes": 4}
    body = {"x.parquet": b"rows"}
    new.store.put("x.parquet", body["x.parquet"])
    (row,) = added(["x.parquet"], body, new.clock()).to_pylist()
    rows = [{**row, "deletionVector": {**vector, "cardinality": 1}}]
    adds = pa.Table.from_pylist(rows, schema=file_actions.ADD)
    new.commit(Transaction("WRITE", "with-vector", adds=adds), new.state())
    with pytest.raises(MissingFile, match="missing"):
        disabling.disable(setting, OLD)
    found = redirect_at(setting)
    assert found is not None
    assert found.state is RedirectState.READY


def test_a_target_that_is_gone_is_missing() -> None:
    store, setting = moved()
    store.delete_many([name for name in store.objects if name.startswith("new/")])
    before = store.objects
    with pytest.raises(RedirectTargetMissing):
        disabling.disable(setting, OLD)
    assert store.objects == before


def test_a_redirect_that_another_program_made_in_the_catalog_s_dialect_ends() -> None:
    store = DictStore(world_with(PAST) | inside("new", below(world_with(PAST), "old")), uri=WORLD)
    setting = setting_of(store)
    log = setting.log(OLD)
    state = log.state()
    entry = f'{{"Type":"Object Store","State":"READY","Spec":{{"Location":"{NEW}"}}}}'
    configuration = {**state.metadata.configuration, "redirectWriterOnly": entry}
    features = (*(state.protocol.writer_features or ()), "redirectWriterOnly")
    log.commit(
        Transaction(
            "SET TBLPROPERTIES",
            "foreign",
            protocol=changed(state.protocol, writer_features=features),
            metadata=changed(state.metadata, configuration=configuration),
        ),
        state,
    )
    expected = content(store.objects, OLD)
    for stop in (False, True):
        copy = DictStore(store.objects, uri=WORLD)
        if stop:
            broken_off(copy, brought(state.version + 2))
        outcome = disabling.disable(setting_of(copy), OLD)
        assert outcome.state is RedirectState.NORMAL
        assert content(copy.objects, OLD) == expected
        assert not protocol_features(copy.objects, OLD) & REDIRECT_FEATURES


# --- A target of its own ------------------------------------------------------


def to_existing(
    theirs: dict[str, bytes] | None = None, *, verified: bool = True
) -> tuple[DictStore, Setting]:
    """Return a world in which a table leads to another one, by default a copy of it."""
    mine = world_with(PAST)
    store = DictStore(mine | (theirs or inside("new", below(mine, "old"))), uri=WORLD)
    setting = setting_of(store)
    request = replace(request_for(data=Data.EXISTING), verified=verified)
    enabling.enable(setting, request)
    return store, setting


BRING = WithdrawalOptions(bring_back=True)


def test_what_the_source_has_of_its_own_isn_t_thrown_away() -> None:
    store, setting = to_existing()
    append(setting.log(OLD), "own.parquet")
    append(setting.log(NEW), "x.parquet")
    before = store.objects
    with pytest.raises(Diverged):
        disabling.disable(setting, OLD, BRING)
    assert store.objects == before


def test_a_file_that_the_other_table_lost_stops_it() -> None:
    store, setting = to_existing()
    append(setting.log(NEW), "x.parquet")
    store.delete_many(["new/x.parquet"])
    with pytest.raises(MissingFile):
        disabling.disable(setting, OLD, BRING)
    found = redirect_at(setting)
    assert found is not None
    assert found.state is RedirectState.READY


def test_two_files_of_one_name_stay_two() -> None:
    store, setting = to_existing()
    name = setting.log(OLD).snapshot().files["path"][0].as_py()
    larger = {name: b"other rows, and more of them"}
    new = setting.log(NEW)
    new.store.put(name, larger[name])
    new.commit(Transaction("WRITE", "other", adds=added([name], larger, 0)), new.state())
    before = below(store.objects, "old")
    with pytest.raises(Diverged, match="can't be brought back"):
        disabling.disable(setting, OLD, BRING)
    assert below(store.objects, "old") == before


def test_each_keeps_its_id_and_the_source_its_features() -> None:
    plain = History().then(Append(1))
    theirs = inside("new", below(world_with(plain), "old"))
    store, setting = to_existing(theirs, verified=False)
    append(setting.log(NEW), "x.parquet")
    mine = setting.log(OLD).state()
    outcome = disabling.disable(setting, OLD, BRING)
    assert outcome.state is RedirectState.NORMAL
    after = setting.log(OLD).state()
    assert after.metadata.id == mine.metadata.id
    assert "deletionVectors" in after.protocol.features
    assert "x.parquet" in content(store.objects, OLD).names


def test_a_clone_s_changes_come_home_and_the_source_s_files_stay_its_own() -> None:
    mine = world_with(PAST)
    store = DictStore(mine | inside("new", below(mine, "old")), uri=WORLD)
    setting = setting_of(store)
    clone = setting.log(NEW)
    live = clone.snapshot().files
    rows = [{name: row[name] for name in file_actions.ADD.names} for row in live.to_pylist()]
    for row in rows:
        row["path"], row["deletionVector"] = f"{OLD}/{row['path']}", absolute(row["deletionVector"])
    referring = pa.Table.from_pylist(rows, schema=file_actions.ADD)
    removes = file_actions.as_removes(live, clone.clock(), data_change=True)
    clone.commit(Transaction("CLONE", "clone", adds=referring, removes=removes), clone.state())
    enabling.enable(setting, replace(request_for(data=Data.EXISTING), verified=False))
    append(clone, "x.parquet")
    before = content(store.objects, OLD)
    disabling.disable(setting, OLD, BRING)
    after = setting.log(OLD).snapshot().files["path"].to_pylist()
    assert not [path for path in after if "://" in path]
    assert {*before.names, "x.parquet"} == {*content(store.objects, OLD).names}


def absolute(vector: dict[str, object] | None) -> dict[str, object] | None:
    """Return a vector's descriptor as a table elsewhere has it."""
    if vector is None or vector["storageType"] != "u":
        return vector
    path = deletion_vectors.relative_path(str(vector["pathOrInlineDv"]))
    return {**vector, "storageType": "p", "pathOrInlineDv": f"{OLD}/{path}"}


def test_an_entry_that_a_restore_brought_back_is_taken_away() -> None:
    store, setting = moved()
    append(setting.log(NEW), "x.parquet")
    log = setting.log(OLD)
    ready = log.state()
    disabling.disable(setting, OLD, WithdrawalOptions(remove_target=True))
    expected = content(store.objects, OLD)
    now = log.state()
    log.commit(
        Transaction("RESTORE", "restore", protocol=ready.protocol, metadata=ready.metadata), now
    )
    assert redirect_at(setting) is not None
    outcome = disabling.disable(setting, OLD)
    assert (outcome.state, outcome.changed) == (RedirectState.NORMAL, True)
    assert redirect_at(setting) is None
    assert content(store.objects, OLD) == expected


def restore(log: DeltaLog, version: int) -> None:
    """Give a table the properties and the protocol back that it had at a version."""
    old = log.state(version)
    wanted = Transaction("RESTORE", "r", {}, protocol=old.protocol, metadata=old.metadata)
    assert not isinstance(log.commit_exactly(wanted, log.state(), 1), Conflict)


@pytest.mark.parametrize("mode", Mode)
def test_a_lock_that_a_restore_at_the_target_brought_back_is_in_nobody_s_way(mode: Mode) -> None:
    store, setting = moved(mode=mode)
    append(setting.log(NEW), "x.parquet")
    expected = content(store.objects, NEW)
    restore(setting.log(NEW), 3)
    assert redirect_at(setting, NEW) is not None
    assert plans.undo(setting, OLD)
    disabling.disable(setting, OLD)
    assert content(store.objects, OLD) == expected
    assert redirect_at(setting) is None


@pytest.mark.parametrize("version", [3, 4, 5])
@pytest.mark.parametrize("mode", Mode)
def test_an_entry_of_an_earlier_move_that_is_back_at_the_target_is_in_nobody_s_way(
    mode: Mode, version: int
) -> None:
    store, setting = moved(mode=mode)
    disabling.disable(setting, OLD)
    enabling.enable(setting, request_for(OTHER, mode=mode))
    append(setting.log(OTHER), "x.parquet")
    expected = content(store.objects, OTHER)
    restore(setting.log(OTHER), version)
    assert redirect_at(setting, OTHER) is not None
    disabling.disable(setting, OLD)
    assert content(store.objects, OLD) == expected
    assert redirect_at(setting) is None
    assert protocol_features(store.objects, OTHER) & REDIRECT_FEATURES


def test_a_lock_stays_if_the_store_fails_right_after_it() -> None:
    """Another process may rely on it by then."""
    store, setting = moved()
    append(setting.log(NEW), "x.parquet")
    lock = f"new/_delta_log/{6:020d}.json"

    def rule(call: StoreCall) -> Fault | None:
        asks = call.verb == "GET" and call.paths == (f"new/_delta_log/{4:020d}.json",)
        return Fault.FAIL if asks and lock in store.objects else None

    with pytest.raises(StorageUnavailable):
        disabling.disable(setting_of(FaultyStore(store, rule), clock=store.clock), OLD)
    assert lock in store.objects
    assert disabling.disable(setting, OLD).state is RedirectState.NORMAL
