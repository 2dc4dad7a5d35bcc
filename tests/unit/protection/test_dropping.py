"""Dropping features, on stores in memory with real data files."""

from __future__ import annotations

import json
from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from lakeferry.engine import Engine
from lakeferry.engines.local_engine import LocalEngine
from lakeferry.errors import (
    CommitConflict,
    FeatureNotDroppable,
    FeatureNotPresent,
    FeatureRequired,
    HistoryRequired,
    InvalidInput,
    LakeferryError,
    RedirectInProgress,
)
from lakeferry.log import features, file_actions, paths
from lakeferry.log.actions import changed
from lakeferry.log.commit import Transaction
from lakeferry.protection import drop_context as works
from lakeferry.protection import dropping
from lakeferry.protection.drop_context import DropContext
from lakeferry.protection.dropping import Dropped, ListedFeature
from lakeferry.storage import Store
from lakeferry.table import DeltaLog
from tests.support import naive
from tests.support.history import (
    Append,
    Checkpoint,
    Checksum,
    DeleteRows,
    Domain,
    History,
    Kind,
    Layout,
    SetProperties,
    Upgrade,
    bitmap,
    dated,
    z85,
)
from tests.support.managed_history import BECOMES_MANAGED, managed_history
from tests.support.stores import DictStore, Fault, FaultyStore, Stopped, at

DAY_MS = 86_400_000
HOUR_MS = 3_600_000
BOUNDARY = "delta.requireCheckpointProtectionBeforeVersion"
VECTORS = History(Layout(deletion_vectors="u")).then(Append(3), DeleteRows(2), Append(1))
MAPPED = History(Layout(column_mapping="name", partitioned=True)).then(Append(3))
V2 = History(Layout(v2_checkpoints=True, properties=(("delta.checkpointPolicy", "v2"),))).then(
    Append(2), Checkpoint(Kind.V2_PARQUET), Append(1)
)
CHECKED = History().then(Upgrade(reader=("vacuumProtocolCheck",)), Append(2))
TIMED = History(Layout(in_commit_timestamps=True)).then(Append(2))
TRACKED = History(Layout(row_tracking=True)).then(Append(3))
FED = History(Layout(change_data=True)).then(Append(2))
PLAIN = History().then(Append(2))
CASES = {
    "deletionVectors": VECTORS,
    "columnMapping": MAPPED,
    "v2Checkpoint": V2,
    "vacuumProtocolCheck": CHECKED,
    "inCommitTimestamp": TIMED,
    "rowTracking": TRACKED,
    "changeDataFeed": FED,
    "appendOnly": PLAIN.then(SetProperties((("delta.appendOnly", "true"),))),
    "domainMetadata": History(Layout(domains=True)).then(Append(1)),
    "redirectWriterOnly": PLAIN.then(Upgrade(writer=("redirectWriterOnly",))),
    "redirectReaderWriter-preview": PLAIN.then(Upgrade(reader=("redirectReaderWriter-preview",))),
}
PROTECTED = ("deletionVectors", "columnMapping", "v2Checkpoint", "vacuumProtocolCheck")


def store_of(past: History) -> DictStore:
    return dated(past.objects(with_data=True))


def work_on(store: Store, clock: Callable[[], int]) -> DropContext:
    engine = LocalEngine(lambda _: store, parallel=1)

    def choose(objects: int, size_bytes: int) -> Engine:
        return engine

    return DropContext(DeltaLog(store, clock=clock), choose)


def drop(store: DictStore, name: str, **options: bool) -> Dropped:
    return dropping.drop(work_on(store, store.clock), name, **options)


def log_of(store: DictStore) -> DeltaLog:
    return DeltaLog(store, clock=store.clock)


def row_count(store: DictStore) -> int:
    live = log_of(store).snapshot().files
    deleted = pc.sum(pc.struct_field(live["deletionVector"].combine_chunks(), "cardinality"))
    records = sum(json.loads(text)["numRecords"] for text in live["stats"].to_pylist())
    return int(records - (deleted.as_py() or 0))


def past_of(store: DictStore) -> dict[int, object]:
    newest = naive.newest_version(store.objects)
    return {version: naive.replay(store.objects, version) for version in range(newest + 1)}


@pytest.mark.parametrize("name", CASES)
def test_a_feature_leaves_and_history_stays(name: str) -> None:
    store = store_of(CASES[name])
    before, rows = past_of(store), row_count(store)
    done = drop(store, name)
    log = log_of(store)
    state = log.state()
    assert state.version == done.version
    assert state.protocol == done.protocol
    assert name not in features.implied_features(state.protocol)
    assert row_count(store) == rows
    assert {v: naive.replay(store.objects, v) for v in before} == before
    checkpoints = {each.version for each in log.listing().checkpoints}
    assert {done.version, *done.checkpoints} <= checkpoints
    if name in PROTECTED:
        assert done.checkpoints == tuple(range(done.version - 3, done.version))
        assert done.boundary == done.version
        assert state.metadata.configuration[BOUNDARY] == str(done.version)
        assert "checkpointProtection" in state.protocol.features
        assert state.protocol.min_reader_version == 1
    else:
        assert (done.boundary, done.checkpoints) == (None, ())
        assert "checkpointProtection" not in state.protocol.features
    with pytest.raises(FeatureNotPresent):
        drop(store, name)


def test_no_vector_is_left_and_none_is_swept_away() -> None:
    store = store_of(VECTORS)
    named = {name for name in store.objects if name.endswith(".bin")}
    drop(store, "deletionVectors")
    snapshot = log_of(store).snapshot()
    assert snapshot.files["deletionVector"].null_count == snapshot.num_files
    # A VACUUM that knows no vectors keeps what was removed within its retention.
    assert named <= set(snapshot.tombstones["path"].to_pylist())
    assert "delta.enableDeletionVectors" not in snapshot.metadata.configuration


def test_columns_have_the_names_that_users_see() -> None:
    store = store_of(MAPPED)
    drop(store, "columnMapping")
    snapshot = log_of(store).snapshot()
    assert "columnMapping" not in snapshot.metadata.schema_string
    assert not [k for k in snapshot.metadata.configuration if k.startswith("delta.columnMapping")]
    for values in snapshot.files["partitionValues"].to_pylist():
        assert [key for key, _ in values] == ["part"]


def test_rows_forget_their_ids() -> None:
    store = store_of(TRACKED)
    drop(store, "rowTracking")
    snapshot = log_of(store).snapshot()
    assert snapshot.files["baseRowId"].null_count == snapshot.num_files
    assert snapshot.domains == {}
    assert not [k for k in snapshot.metadata.configuration if "owTracking" in k]


def test_a_boundary_never_moves_back() -> None:
    past = CHECKED.then(
        Upgrade(writer=("checkpointProtection",)), SetProperties(((BOUNDARY, "1000"),))
    )
    store = store_of(past)
    done = drop(store, "vacuumProtocolCheck")
    assert done.boundary == 1000
    assert log_of(store).state().metadata.configuration[BOUNDARY] == "1000"


def test_versions_alone_say_what_is_left_where_they_can() -> None:
    store = store_of(TIMED)
    done = drop(store, "inCommitTimestamp")
    assert (done.protocol.min_reader_version, done.protocol.min_writer_version) == (1, 2)
    assert done.protocol.writer_features is None


# --- Others go on writing -----------------------------------------------------


class Busy(FaultyStore):
    """A store on which somebody else commits right before some of our commits."""

    def __init__(self, store: DictStore, at_puts: set[int], commit: Callable[[], None]) -> None:
        super().__init__(store, lambda _: None)
        self.puts = 0
        self.at_puts = at_puts
        self.commit = commit

    def put_if_absent(self, path: str, data: bytes) -> bool:
        if path.endswith(".json") and "checkpoint" not in path:
            self.puts += 1
            if self.puts in self.at_puts:
                self.commit()
        return super().put_if_absent(path, data)


def empty_commit(store: DictStore) -> Callable[[], None]:
    def commit() -> None:
        log = log_of(store)
        numbers = len(store.objects)
        log.commit(Transaction("WRITE", f"other-{numbers}"), log.state())

    return commit


@pytest.mark.parametrize("put", range(1, 6))
def test_the_boundary_is_the_version_that_it_is_committed_at(put: int) -> None:
    store = store_of(CHECKED)
    busy = Busy(store, {put}, empty_commit(store))
    done = dropping.drop(work_on(busy, store.clock), "vacuumProtocolCheck")
    state = log_of(store).state()
    assert state.metadata.configuration[BOUNDARY] == str(done.version) == str(state.version)
    assert len(done.checkpoints) == 3


def test_a_table_whose_properties_others_set_without_a_pause_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(works, "MAX_ATTEMPTS", 3)
    store = store_of(CHECKED)

    def set_a_property() -> None:
        state = log_of(store).state()
        metadata = works.with_properties(state.metadata, {"others": str(state.version)})
        log_of(store).commit(Transaction("SET", f"x-{state.version}", metadata=metadata), state)

    def set_ours(store: Store, clock: Callable[[], int]) -> None:
        work_on(store, clock).set_properties("SET", {"ours": "1"}, lambda _: True)

    with pytest.raises(CommitConflict, match="other writers committed first") as told:
        set_ours(Busy(store, set(range(1, 100)), set_a_property), store.clock)
    assert "what was done so far stays valid" in (told.value.remedy or "")
    assert "ours" not in log_of(store).state().metadata.configuration
    set_ours(store, store.clock)
    assert log_of(store).state().metadata.configuration["ours"] == "1"


def vector_again(store: DictStore) -> Callable[[], None]:
    """Return a writer that deletes a row by a vector, as one that began earlier may."""

    def commit() -> None:
        log = log_of(store)
        snapshot = log.snapshot()
        rows = snapshot.files.slice(0, 1).to_pylist()
        if rows[0]["deletionVector"] is not None:
            return
        deleted = bitmap([0])
        vector = {"storageType": "i", "pathOrInlineDv": z85(deleted), "cardinality": 1}
        vector["sizeInBytes"] = len(deleted)
        adds = pa.Table.from_pylist(
            [{**rows[0], "deletionVector": vector}], schema=file_actions.ADD
        )
        removes = file_actions.as_removes(snapshot.files.slice(0, 1), log.clock(), data_change=True)
        log.commit(
            Transaction("DELETE", f"dv-{snapshot.version}", adds=adds, removes=removes),
            snapshot.state,
        )

    return commit


@pytest.mark.parametrize("put", range(1, 9))
def test_a_vector_that_comes_meanwhile_is_purged_too(put: int) -> None:
    store = store_of(VECTORS)
    busy = Busy(store, {put}, vector_again(store))
    done = dropping.drop(work_on(busy, store.clock), "deletionVectors")
    snapshot = log_of(store).snapshot()
    assert snapshot.version == done.version
    assert snapshot.files["deletionVector"].null_count == snapshot.num_files


@pytest.mark.parametrize("name", ["deletionVectors", "columnMapping", "rowTracking", "appendOnly"])
def test_wherever_it_is_broken_off_it_can_be_done_again(name: str) -> None:
    whole = store_of(CASES[name])
    before, rows = past_of(whole), row_count(whole)
    done = drop(whole, name)
    for index in range(400):
        store = store_of(CASES[name])
        faulty = FaultyStore(store, at(index, Fault.STOP_AFTER))
        try:
            dropping.drop(work_on(faulty, store.clock), name)
        except Stopped:
            pass
        else:
            return
        assert row_count(store) == rows
        assert {v: naive.replay(store.objects, v) for v in before} == before
        try:
            again = drop(store, name)
        except FeatureNotPresent:
            again = None
        state = log_of(store).state()
        assert state.protocol.unordered == done.protocol.unordered
        assert row_count(store) == rows
        if again is not None and again.boundary is not None:
            assert again.boundary == again.version == state.version
    raise AssertionError("it never ended")


# --- What can't be dropped ----------------------------------------------------

ENTRY = '{"Type":"Object Store","State":"READY","Spec":{"Location":"memory://other/t"}}'
REDIRECTED = CHECKED.then(
    Upgrade(writer=("redirectWriterOnly",)), SetProperties((("delta.redirectWriterOnly", ENTRY),))
)


@pytest.mark.parametrize(
    ("past", "name", "error"),
    [
        (PLAIN, "deletionVectors", FeatureNotPresent),
        (PLAIN, "nonsense", FeatureNotPresent),
        (PLAIN, "invariants", FeatureNotDroppable),
        (PLAIN.then(Upgrade(writer=("somethingNew",))), "somethingNew", FeatureNotDroppable),
        (TRACKED, "domainMetadata", FeatureNotDroppable),
        (History(Layout(domains=True)).then(Domain()), "domainMetadata", FeatureNotDroppable),
        (
            PLAIN.then(
                Upgrade(writer=("checkConstraints",)),
                SetProperties((("delta.constraints.positive", "id > 0"),)),
            ),
            "checkConstraints",
            FeatureNotDroppable,
        ),
        (REDIRECTED, "vacuumProtocolCheck", RedirectInProgress),
        (REDIRECTED, "redirectWriterOnly", RedirectInProgress),
        (CHECKED.then(SetProperties(((BOUNDARY, "3"),))), "vacuumProtocolCheck", FeatureRequired),
    ],
)
def test_what_can_t_be_dropped_is_refused_and_nothing_changes(
    past: History, name: str, error: type[LakeferryError]
) -> None:
    store = store_of(past)
    before = store.objects
    with pytest.raises(error) as refused:
        drop(store, name)
    assert refused.value.code == error.code
    with pytest.raises(error):
        dropping.foresee_drop(log_of(store), name)
    assert store.objects == before


def test_a_name_that_only_mapping_allows_is_in_the_way() -> None:
    store = store_of(MAPPED)
    log = log_of(store)
    state = log.state()
    spaced = state.metadata.schema_string.replace('"name":"value"', '"name":"the value"')
    metadata = changed(state.metadata, schema_string=spaced)
    log.commit(Transaction("RENAME COLUMN", "rename", metadata=metadata), state)
    with pytest.raises(FeatureNotDroppable, match="'the value'"):
        drop(store, "columnMapping")


@pytest.mark.parametrize("name", CASES)
def test_a_dry_run_changes_nothing(name: str) -> None:
    store = store_of(CASES[name])
    before = store.objects
    steps = dropping.foresee_drop(log_of(store), name)
    assert store.objects == before
    assert [step["op"] for step in steps].count("barrier") == (3 if name in PROTECTED else 0)
    (commit,) = [step for step in steps if step["op"] == "commit"]
    done = drop(store, name)
    assert commit["protocol"] == done.as_document()["protocol"]


# --- History that goes --------------------------------------------------------


def test_protection_itself_goes_when_history_has() -> None:
    store = store_of(CHECKED)
    done = drop(store, "vacuumProtocolCheck")
    with pytest.raises(HistoryRequired) as early:
        drop(store, "checkpointProtection")
    free_at = early.value.fields["free_at_ms"]
    assert isinstance(free_at, int)
    assert early.value.fields["before_version"] == done.version
    store.clock.advance(free_at - store.clock() + 1)  # type: ignore[attr-defined]
    ended = drop(store, "checkpointProtection")
    assert ended.protocol.writer_features is None
    assert ended.boundary is None
    assert BOUNDARY not in log_of(store).state().metadata.configuration
    assert log_of(store).listing().earliest_version() == done.version


def test_a_day_is_enough_where_history_is_given_up() -> None:
    store = store_of(CHECKED)
    drop(store, "vacuumProtocolCheck")
    store.clock.advance(DAY_MS + HOUR_MS)  # type: ignore[attr-defined]
    with pytest.raises(HistoryRequired):
        drop(store, "checkpointProtection")
    assert drop(store, "checkpointProtection", truncate_history=True).boundary is None


def test_the_old_way_asks_for_patience_and_protects_nothing() -> None:
    store = store_of(VECTORS)
    rows = row_count(store)
    with pytest.raises(HistoryRequired):
        drop(store, "deletionVectors", truncate_history=True)
    assert "deletionVectors" in log_of(store).state().protocol.features
    store.clock.advance(DAY_MS + HOUR_MS)  # type: ignore[attr-defined]
    done = drop(store, "deletionVectors", truncate_history=True)
    assert (done.boundary, done.checkpoints) == (None, ())
    assert (done.protocol.min_reader_version, done.protocol.min_writer_version) == (1, 2)
    assert row_count(store) == rows
    listing = log_of(store).listing()
    for version in range(listing.earliest_version() or 0, done.version):
        live = log_of(store).snapshot(version).files
        assert live["deletionVector"].null_count == live.num_rows
    assert paths.commit(0) not in store.objects


def test_history_isn_t_truncated_for_nothing() -> None:
    with pytest.raises(InvalidInput):
        drop(store_of(TIMED), "inCommitTimestamp", truncate_history=True)


@pytest.mark.parametrize("name", ["deletionVectors", "changeDataFeed"])
def test_a_drop_succeeds_though_its_last_checkpoint_fails(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = drop(store_of(CASES[name]), name)
    store = store_of(CASES[name])
    warnings: list[str] = []
    work = work_on(store, store.clock)
    work.log.warn = warnings.append
    write = DeltaLog.checkpoint

    def fails_at_last(log: DeltaLog, version: int) -> object:
        if version == wanted.version:
            raise AttributeError("'list' object has no attribute 'get'")
        return write(log, version)

    with monkeypatch.context() as patch:
        patch.setattr(DeltaLog, "checkpoint", fails_at_last)
        dropped = dropping.drop(work, name)
    assert (dropped.version, dropped.checkpoints) == (wanted.version, wanted.checkpoints)
    assert name not in log_of(store).state().protocol.features
    assert "'lakeferry checkpoint" in warnings[0]
    assert log_of(store).checkpoint().version == wanted.version


def test_the_warning_of_a_last_checkpoint_that_fails_says_what_to_do_first() -> None:
    store = store_of(FED.then(Checksum(files_off=1)))
    warnings: list[str] = []
    work = work_on(store, store.clock)
    work.log.warn = warnings.append
    dropped = dropping.drop(work, "changeDataFeed")
    assert paths.checksum(dropped.version) in warnings[0]
    assert "delete that checksum file if the log is right" in warnings[0]
    store.delete_many([paths.checksum(dropped.version)])
    assert log_of(store).checkpoint().version == dropped.version


@pytest.mark.parametrize("name", ["deletionVectors", "v2Checkpoint", "checkpointProtection"])
def test_what_a_managed_table_needs_is_refused_before_anything_is_committed(name: str) -> None:
    layout = Layout(deletion_vectors="u", v2_checkpoints=True, in_commit_timestamps=True)
    past = History(layout).then(
        Append(2), Upgrade(writer=("checkpointProtection",)), *BECOMES_MANAGED, Append(1)
    )
    table = managed_history(past)
    before = table.objects.objects
    log = DeltaLog(table.store())
    engine = LocalEngine(lambda _: table.store(), parallel=1)
    with pytest.raises(FeatureNotDroppable) as foreseen:
        dropping.foresee_drop(log, name)
    with pytest.raises(FeatureNotDroppable) as refused:
        dropping.drop(DropContext(log, lambda *_: engine), name)
    assert "managed" in (refused.value.cause or "")
    assert str(foreseen.value) == str(refused.value)
    assert table.objects.objects == before


def managed_table_log() -> DeltaLog:
    """Return the log of a managed table with features of several kinds."""
    layout = Layout(deletion_vectors="u", in_commit_timestamps=True)
    more = Upgrade(writer=("checkpointProtection", "changeDataFeed"))
    return DeltaLog(managed_history(History(layout).then(more, *BECOMES_MANAGED)).store())


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("catalogManaged", "its catalog manages"),
        ("inCommitTimestamp", "catalogManaged needs it, and can't be dropped"),
        ("vacuumProtocolCheck", "may require the feature"),
        ("deletionVectors", "may require the feature"),
        ("checkpointProtection", "may require the feature"),
        ("invariants", "it can't be dropped"),
    ],
)
def test_a_list_says_of_a_managed_table_what_a_drop_says(name: str, why: str) -> None:
    log = managed_table_log()
    found = dropping.listed_features(log.state(), log.store.uri, asks_catalog=True)
    listed = {each.name: each for each in found}
    assert (listed[name].droppable, why in listed[name].how) == (False, True)
    with pytest.raises(FeatureNotDroppable) as refused:
        dropping.foresee_drop(log, name)
    assert refused.value.cause == listed[name].how
    # What is left can be dropped, and all are supported: the catalog is asked.
    assert listed["changeDataFeed"].droppable
    assert dropping.foresee_drop(log, "changeDataFeed")
    assert all(each.supported for each in listed.values())


def listed(past: History) -> dict[str, ListedFeature]:
    """Return the features of a table by their names."""
    log = log_of(store_of(past))
    return {each.name: each for each in dropping.listed_features(log.state(), log.store.uri)}


def test_a_list_says_what_has_to_go_first() -> None:
    found = listed(History().then(Upgrade(writer=("clustering", "domainMetadata"))))
    assert (found["domainMetadata"].droppable, found["clustering"].droppable) == (True, True)
    assert found["domainMetadata"].how.startswith("after clustering: ")


@pytest.mark.parametrize(
    ("past", "name", "why"),
    [
        (
            History().then(Upgrade(("columnMapping",), ("icebergCompatV2",))),
            "columnMapping",
            "icebergCompatV2 needs it, and can't be dropped",
        ),
        (
            History().then(Upgrade(writer=("changeDataFeed", "somethingNew"))),
            "changeDataFeed",
            "Lakeferry can't write to the table, because of somethingNew",
        ),
        (
            History().then(Upgrade(writer=("somethingNew",))),
            "somethingNew",
            "Lakeferry doesn't know it",
        ),
        (
            REDIRECTED,
            "vacuumProtocolCheck",
            "it has a redirect to memory://other/t, which is READY",
        ),
    ],
)
def test_a_list_says_what_stops_a_drop(past: History, name: str, why: str) -> None:
    found = listed(past)[name]
    assert (found.droppable, found.how) == (False, why)
    assert found.supported is (name != "somethingNew")
