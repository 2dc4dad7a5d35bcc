"""What others may do while a feature is dropped, each at the worst moment."""

from __future__ import annotations

import json
from collections.abc import Callable

import pyarrow as pa
import pytest

from lakeferry.engine import Engine, RewritePlan
from lakeferry.engines.local_engine import LocalEngine
from lakeferry.errors import (
    FeatureNotDroppable,
    FeatureNotPresent,
    HistoryRequired,
    RedirectInProgress,
    UnsupportedFeature,
)
from lakeferry.log import features, file_actions
from lakeferry.log.actions import changed
from lakeferry.log.commit import Transaction
from lakeferry.log.conflicts import Conflict
from lakeferry.protection import cleaning, dropping
from lakeferry.protection.drop_context import DropContext
from lakeferry.protection.features import row_tracking
from lakeferry.redirect import freeze
from lakeferry.table import DeltaLog
from tests.support.history import (
    Append,
    Checkpoint,
    DeleteRows,
    History,
    Kind,
    Layout,
    Lines,
    SetProperties,
    Upgrade,
    dated,
)
from tests.support.redirects import OLD, WORLD, setting_of, world_with
from tests.support.stores import DictStore

DAY_MS = 86_400_000
BOUNDARY = "delta.requireCheckpointProtectionBeforeVersion"
MAPPED = History(Layout(column_mapping="name")).then(Append(2))
CHECKED = History().then(Upgrade(reader=("vacuumProtocolCheck",)), Append(2))


def store_of(past: History) -> DictStore:
    return dated(past.objects(with_data=True))


def log_of(store: DictStore) -> DeltaLog:
    return DeltaLog(store, clock=store.clock)


class Meddled(LocalEngine):
    """An engine in whose rewriting others get to the table, once."""

    def __init__(self, store: DictStore, meddle: Callable[[], None]) -> None:
        super().__init__(lambda _: store, parallel=1)
        self.meddle: Callable[[], None] | None = meddle

    def rewrite(self, plan: RewritePlan, *arguments: object) -> object:  # type: ignore[override]
        done = list(super().rewrite(plan))
        if self.meddle is not None:
            meddle, self.meddle = self.meddle, None
            meddle()
        return iter(done)


def work_on(store: DictStore, meddle: Callable[[], None] = lambda: None) -> DropContext:
    engine = Meddled(store, meddle)

    def choose(objects: int, size_bytes: int) -> Engine:
        return engine

    return DropContext(log_of(store), choose)


def commit(store: DictStore, what: str, **changes: object) -> None:
    log = log_of(store)
    done = log.commit(Transaction(what, f"{what}-{len(store.objects)}", **changes), log.state())  # type: ignore[arg-type]
    assert not isinstance(done, Conflict)


def rename(store: DictStore, old: str, new: str) -> None:
    metadata = log_of(store).state().metadata
    text = metadata.schema_string.replace(f'"name":"{old}"', f'"name":"{new}"')
    commit(store, "RENAME COLUMN", metadata=changed(metadata, schema_string=text))


def values(store: DictStore, column: str) -> list[object]:
    """Return a column of all live files, as their own footers name it."""
    import pyarrow.parquet as pq

    found: list[object] = []
    for path in log_of(store).snapshot().files["path"].to_pylist():
        table = pq.read_table(pa.BufferReader(store.get(path)))
        found += table[column].to_pylist()
    return sorted(found, key=str)


@pytest.mark.parametrize("first", ["nothing", "an append", "a protocol"])
def test_a_column_that_is_renamed_meanwhile_keeps_its_values(first: str) -> None:
    store = store_of(MAPPED)
    untouched = store_of(MAPPED)
    dropping.drop(work_on(untouched), "columnMapping")
    expected = values(untouched, "value")
    assert None not in expected

    def meddle() -> None:
        if first == "an append":
            row = {"path": "gone.parquet", "partitionValues": {}, "size": 1, "dataChange": True}
            adds = pa.Table.from_pylist([{**row, "modificationTime": 1}], schema=file_actions.ADD)
            commit(store, "WRITE", adds=adds)
            live = log_of(store).snapshot().files
            mask = [path == "gone.parquet" for path in live["path"].to_pylist()]
            removes = file_actions.as_removes(live.filter(mask), 1, data_change=True)
            commit(store, "DELETE", removes=removes)
        if first == "a protocol":
            protocol = log_of(store).state().protocol
            named = (*(protocol.writer_features or ()), "domainMetadata")
            commit(store, "UPGRADE", protocol=changed(protocol, writer_features=named))
        rename(store, "value", "renamed")

    dropping.drop(work_on(store, meddle), "columnMapping")
    assert values(store, "renamed") == expected


def test_a_name_that_only_mapping_allows_is_refused_even_if_it_comes_late() -> None:
    store = store_of(MAPPED)
    work = work_on(store, lambda: rename(store, "value", "the value;"))
    with pytest.raises(FeatureNotDroppable, match="the value;"):
        dropping.drop(work, "columnMapping")
    assert "columnMapping" in log_of(store).state().protocol.features


def test_a_table_that_is_frozen_meanwhile_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = DictStore(world_with(CHECKED), uri=WORLD)
    setting = setting_of(whole)
    log = setting.log(OLD)
    barrier = dropping._barrier
    frozen: list[int] = []

    def freezing(work: DropContext) -> int:
        version = barrier(work)
        if not frozen:
            frozen.append(freeze.freeze(setting, OLD).version or 0)
        return version

    monkeypatch.setattr(dropping, "_barrier", freezing)

    def none(objects: int, size_bytes: int) -> Engine:
        raise AssertionError("no data has to be rewritten")

    with pytest.raises(RedirectInProgress):
        dropping.drop(DropContext(log, none), "vacuumProtocolCheck")
    assert log.state().version == frozen[0]


def test_a_column_of_a_kind_that_is_dropped_may_come_late(monkeypatch: pytest.MonkeyPatch) -> None:
    store = store_of(History().then(Upgrade(reader=("geospatial",)), Append(1)))
    barrier = dropping._barrier

    def adding(work: DropContext) -> int:
        version = barrier(work)
        metadata = log_of(store).state().metadata
        if "geometry" not in metadata.schema_string:
            schema = json.loads(metadata.schema_string)
            field = {"name": "g", "type": "geometry(OGC:CRS84)", "nullable": True, "metadata": {}}
            schema["fields"].append(field)
            new = changed(metadata, schema_string=json.dumps(schema))
            commit(store, "ADD COLUMNS", metadata=new)
        return version

    monkeypatch.setattr(dropping, "_barrier", adding)
    with pytest.raises(FeatureNotDroppable, match="the column g"):
        dropping.drop(work_on(store), "geospatial")
    assert "geospatial" in log_of(store).state().protocol.features


def test_two_who_drop_one_feature_make_one_boundary(monkeypatch: pytest.MonkeyPatch) -> None:
    store = store_of(CHECKED)
    barrier = dropping._barrier
    done: list[dropping.Dropped] = []

    def other_first(work: DropContext) -> int:
        version = barrier(work)
        if not done:
            monkeypatch.setattr(dropping, "_barrier", barrier)
            done.append(dropping.drop(work_on(store), "vacuumProtocolCheck"))
        return version

    monkeypatch.setattr(dropping, "_barrier", other_first)
    with pytest.raises(FeatureNotPresent):
        dropping.drop(work_on(store), "vacuumProtocolCheck")
    assert log_of(store).state().metadata.configuration[BOUNDARY] == str(done[0].version)


def test_protection_stays_while_a_newer_boundary_needs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    past = CHECKED.then(Upgrade(reader=("v2Checkpoint",)))
    store = store_of(past)
    first = dropping.drop(work_on(store), "vacuumProtocolCheck")
    store.clock.advance(40 * DAY_MS)  # type: ignore[attr-defined]
    truncate = dropping._truncate
    dropped: list[dropping.Dropped] = []

    def other_drops(*arguments: object, **options: object) -> None:
        truncate(*arguments, **options)  # type: ignore[arg-type]
        if not dropped:
            dropped.append(dropping.drop(work_on(store), "v2Checkpoint"))

    monkeypatch.setattr(dropping, "_truncate", other_drops)
    with pytest.raises(HistoryRequired):
        dropping.drop(work_on(store), "checkpointProtection")
    state = log_of(store).state()
    assert "checkpointProtection" in state.protocol.features
    assert int(state.metadata.configuration[BOUNDARY]) == dropped[0].version > first.version


# --- Refused before anything changes, and the same when nothing is to change --------


@pytest.mark.parametrize(
    ("past", "name"),
    [
        (
            CHECKED.then(
                Upgrade(writer=("checkpointProtection",)), SetProperties(((BOUNDARY, "abc"),))
            ),
            "vacuumProtocolCheck",
        ),
        (
            History(Layout(deletion_vectors="u")).then(
                Append(1),
                DeleteRows(1),
                SetProperties((("delta.deletedFileRetentionDuration", "interval 1 month"),)),
            ),
            "deletionVectors",
        ),
    ],
)
def test_a_property_that_makes_no_sense_is_found_first(past: History, name: str) -> None:
    store = store_of(past)
    before = store.objects
    with pytest.raises(UnsupportedFeature):
        dropping.drop(work_on(store), name)
    assert store.objects == before


def test_a_negative_retention_keeps_everything() -> None:
    store = store_of(
        CHECKED.then(SetProperties((("delta.logRetentionDuration", "interval -1 days"),)))
    )
    before = store.objects
    with pytest.raises(UnsupportedFeature):
        cleaning.clean(log_of(store))
    assert store.objects == before


@pytest.mark.parametrize("hasty", [True, False])
def test_a_dry_run_asks_for_patience_too(hasty: bool) -> None:
    store = store_of(CHECKED)
    dropping.drop(work_on(store), "vacuumProtocolCheck")
    with pytest.raises(HistoryRequired):
        dropping.foresee_drop(log_of(store), "checkpointProtection", truncate_history=hasty)


def test_history_that_has_to_stay_stops_a_drop_that_needs_it_gone() -> None:
    past = History(Layout(v2_checkpoints=True)).then(
        Append(2),
        Checkpoint(Kind.V2_PARQUET),
        Append(1),
        Upgrade(writer=("checkpointProtection",)),
        SetProperties(((BOUNDARY, "100"),)),
        Append(1),
    )
    store = store_of(past)
    store.clock.advance(40 * DAY_MS)  # type: ignore[attr-defined]
    with pytest.raises(HistoryRequired, match="could be deleted"):
        dropping.drop(work_on(store), "v2Checkpoint", truncate_history=True)
    assert "v2Checkpoint" in log_of(store).state().protocol.features


def test_columns_that_are_gone_still_show_in_history() -> None:
    field = {"name": "g", "type": "geometry(OGC:CRS84)", "nullable": True, "metadata": {}}
    plain = History().then(Upgrade(reader=("geospatial",)), Append(1))
    store = store_of(plain)
    metadata = log_of(store).state().metadata
    schema = json.loads(metadata.schema_string)
    schema["fields"].append(field)
    commit(store, "ADD COLUMNS", metadata=changed(metadata, schema_string=json.dumps(schema)))
    commit(store, "DROP COLUMNS", metadata=metadata)
    with pytest.raises(HistoryRequired):
        dropping.drop(work_on(store), "geospatial", truncate_history=True)


def test_a_log_that_lost_commits_below_a_boundary_is_cleaned_on() -> None:
    past = History().then(
        *(Append(1) for _ in range(5)),
        Checkpoint(),
        Upgrade(writer=("checkpointProtection",)),
        SetProperties(((BOUNDARY, "100"),)),
        Append(1),
        Checkpoint(),
        Append(1),
    )
    store = store_of(past)
    # A cleanup was broken off in the middle of a wave.
    store.delete_many([f"_delta_log/{version:020d}.json" for version in (0, 1)])
    store.clock.advance(400 * DAY_MS)  # type: ignore[attr-defined]
    done = cleaning.clean(log_of(store))
    assert f"_delta_log/{2:020d}.json" in done.deleted
    assert f"_delta_log/{7:020d}.json" in done.deleted


def test_what_stops_a_checkpoint_is_named() -> None:
    unknown = {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": ["somethingNew"]}
    plain = {"minReaderVersion": 1, "minWriterVersion": 2}
    past = History().then(
        *(Append(1) for _ in range(4)),
        Checkpoint(),
        Append(1),
        *(Lines((json.dumps({"protocol": each}),)) for each in (unknown, plain)),
        Append(1),
        Upgrade(writer=("checkpointProtection",)),
        SetProperties(((BOUNDARY, "100"),)),
        Append(1),
    )
    done = cleaning.clean(log_of(store_of(past)), before=8)
    assert any("somethingNew" in each.reason for each in done.kept)


def test_many_files_need_many_commits_and_no_luck(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_tracking, "_AT_ONCE", 1)
    store = store_of(History(Layout(row_tracking=True)).then(Append(60)))
    done = dropping.drop(work_on(store), "rowTracking")
    assert "rowTracking" not in features.implied_features(done.protocol)
