"""Commits: which bytes are put, what is followed, what conflicts, and lost answers."""

from __future__ import annotations

import itertools
import json
import uuid
from dataclasses import replace

import pyarrow as pa
import pytest

from lakeferry.errors import (
    CommitStateUnknown,
    CorruptLog,
    FeatureRequired,
    Forbidden,
    InvalidInput,
    StorageUnavailable,
    UnsupportedFeature,
)
from lakeferry.log import actions, file_actions, paths
from lakeferry.log.actions import DomainMetadata, Txn
from lakeferry.log.commit import Reads, Transaction
from lakeferry.log.conflicts import Conflict
from lakeferry.log.file_actions import RAW
from lakeferry.storage import Store
from lakeferry.table import DeltaLog
from lakeferry.table.put_commit import Committed
from tests.support.clock import ManualClock
from tests.support.history import (
    Append,
    Checkpoint,
    Checksum,
    Clean,
    Delete,
    Domain,
    History,
    Layout,
    Lines,
    SetProperties,
    Stream,
    Upgrade,
)
from tests.support.stores import DictStore, Fault, FaultyStore, StoreCall, on


def transaction(**changes: object) -> Transaction:
    return replace(Transaction("TEST", str(uuid.uuid4())), **changes)  # type: ignore[arg-type]


def with_property(log: DeltaLog, name: str, value: str) -> Transaction:
    metadata = log.state().metadata
    configuration = {**metadata.configuration, name: value}
    return transaction(metadata=actions.changed(metadata, configuration=configuration))


def lines(store: Store, version: int) -> list[dict[str, dict[str, object]]]:
    return [json.loads(line) for line in store.get(paths.commit(version)).splitlines()]


def test_a_property_is_set_and_everything_else_is_kept() -> None:
    store = History().then(Append(2)).store()
    log = DeltaLog(store)
    before = log.snapshot()

    done = log.commit(with_property(log, "a.b", "c"), log.state())

    assert isinstance(done, Committed)
    after = log.snapshot()
    assert after.version == before.version + 1 == done.version
    assert after.metadata.configuration == {**before.metadata.configuration, "a.b": "c"}
    assert after.metadata.schema_string == before.metadata.schema_string
    assert after.metadata.unknown == before.metadata.unknown
    assert after.files.equals(before.files)
    assert [next(iter(line)) for line in lines(store, done.version)] == ["commitInfo", "metaData"]


@pytest.mark.parametrize(
    ("winner", "reason"),
    [
        (SetProperties((("x", "y"),)), "metadata_changed"),
        (
            Upgrade(writer=("vacuumProtocolCheck",), reader=("vacuumProtocolCheck",)),
            "protocol_changed",
        ),
        (Append(1), None),
        (Delete(1), None),
        (Stream("some-app", 7), None),
    ],
)
def test_a_metadata_commit_follows_data_and_conflicts_with_metadata(
    winner: object, reason: str | None
) -> None:
    history = History(Layout(domains=True)).then(Append(2))
    log = DeltaLog(history.store())
    read = log.state()
    wanted = with_property(log, "a.b", "c")
    won = DeltaLog(history.then(winner).store())  # type: ignore[arg-type]

    done = won.commit(wanted, read)

    if reason is None:
        assert isinstance(done, Committed)
        assert done.version == read.version + 2
        assert won.snapshot().metadata.configuration["a.b"] == "c"
    else:
        assert isinstance(done, Conflict)
        assert done.reason == reason
        assert done.version == read.version + 1
        assert done.error().code == "conflict"
        assert won.segment().version == read.version + 1


def test_transactions_and_domains_conflict_with_their_own_kind_only() -> None:
    history = History(Layout(domains=True)).then(Append(1), Stream("app", 1), Domain("mine", "{}"))
    read = replace(DeltaLog(history.store()).state(1))
    for wanted, reason in (
        (transaction(txns=(Txn("app", 2),)), "transaction_changed"),
        (transaction(domains=(DomainMetadata("mine", "1"),)), "domain_changed"),
        (transaction(txns=(Txn("other", 2),), domains=(DomainMetadata("other", "1"),)), None),
        (transaction(), None),
    ):
        done = DeltaLog(history.store()).commit(wanted, read)
        assert (done.reason if isinstance(done, Conflict) else None) == reason


def replacement(log: DeltaLog, rows: int = 1) -> Transaction:
    live = log.snapshot().files.slice(0, rows)
    new = live.drop_columns([RAW.name])
    paths_ = pa.array([f"new-{n}.parquet" for n in range(rows)])
    adds = new.set_column(0, "path", paths_)
    removes = pa.table(
        {
            name: live[name] if name in live.column_names else pa.nulls(rows, kind)
            for name, kind in zip(file_actions.REMOVE.names, file_actions.REMOVE.types, strict=True)
        }
    )
    return transaction(adds=adds, removes=removes)


def test_files_are_replaced_unless_somebody_touched_them() -> None:
    history = History().then(Append(3))
    log = DeltaLog(history.store())
    read = log.state()
    wanted = replacement(log)

    appended = DeltaLog(history.then(Append(1)).store())
    assert isinstance(appended.commit(wanted, read), Committed)
    assert appended.snapshot().num_files == 4

    deleted = DeltaLog(history.then(Delete(3)).store())
    refused = deleted.commit(wanted, read)
    assert isinstance(refused, Conflict)
    assert refused.reason == "file_changed"

    strict = DeltaLog(history.then(Append(1)).store())
    refused = strict.commit(replace(wanted, reads=Reads.FILES), read)
    assert isinstance(refused, Conflict)
    assert refused.reason == "data_changed"


def test_in_commit_timestamps_grow_whatever_the_clock_says() -> None:
    clock = ManualClock(5)
    log = DeltaLog(History(Layout(in_commit_timestamps=True)).then(Append(1)).store(), clock=clock)
    previous = log.commit_info(1)
    assert previous is not None
    assert previous.in_commit_timestamp is not None

    done = log.commit(transaction(), log.state())

    assert isinstance(done, Committed)
    info = log.commit_info(done.version)
    assert info is not None
    assert info.in_commit_timestamp == previous.in_commit_timestamp + 1


def test_enabling_timestamps_writes_where_they_begin() -> None:
    history = History(Layout(domains=True)).then(Append(1), Upgrade(writer=("inCommitTimestamp",)))
    store = history.then(Append(1)).store()
    log = DeltaLog(store, clock=ManualClock(7))
    wanted = with_property(log, "delta.enableInCommitTimestamps", "true")

    done = log.commit(wanted, log.state(2))

    assert isinstance(done, Committed)
    configuration = log.state().metadata.configuration
    info = log.commit_info(done.version)
    assert info is not None
    assert configuration["delta.inCommitTimestampEnablementVersion"] == str(done.version) == "4"
    moment = int(configuration["delta.inCommitTimestampEnablementTimestamp"])
    assert moment == info.in_commit_timestamp
    assert moment > store.head(paths.commit(3)).modified_ms


def test_row_ids_go_on_above_the_high_water_mark_after_a_rebase() -> None:
    history = History(Layout(row_tracking=True)).then(Append(2))
    log = DeltaLog(history.store())
    read = log.state()
    live = log.snapshot().files.drop_columns([RAW.name])
    fresh = live.slice(0, 1).set_column(0, "path", pa.array(["fresh.parquet"]))
    for column in ("baseRowId", "defaultRowCommitVersion"):
        index = fresh.schema.get_field_index(column)
        fresh = fresh.set_column(index, column, pa.nulls(1, pa.int64()))

    won = DeltaLog(history.then(Append(1)).store())
    done = won.commit(transaction(adds=fresh), read)

    assert isinstance(done, Committed)
    rows = won.snapshot().files.to_pylist()
    ranges = sorted(
        (row["baseRowId"], row["baseRowId"] + json.loads(row["stats"])["numRecords"])
        for row in rows
    )
    assert all(first[1] <= second[0] for first, second in itertools.pairwise(ranges))
    added = next(row for row in rows if row["path"] == "fresh.parquet")
    assert added["defaultRowCommitVersion"] == done.version
    mark = json.loads(won.snapshot().domains["delta.rowTracking"].configuration)
    assert mark["rowIdHighWaterMark"] == ranges[-1][1] - 1


def test_a_checksum_file_follows_one() -> None:
    store = History().then(Append(2), Checksum()).store()
    log = DeltaLog(store)
    before = json.loads(store.get(paths.checksum(1)))

    done = log.commit(with_property(log, "a.b", "c"), log.state())

    assert isinstance(done, Committed)
    after = json.loads(store.get(paths.checksum(done.version)))
    assert after["numFiles"] == before["numFiles"]
    assert after["tableSizeBytes"] == before["tableSizeBytes"]
    assert after["metadata"]["configuration"]["a.b"] == "c"
    assert log.state().metadata == log.snapshot().metadata


def test_what_we_do_not_support_is_refused_by_name() -> None:
    store = History(Layout(domains=True)).then(Upgrade(writer=("futureFeature",))).store()
    log = DeltaLog(store)
    with pytest.raises(UnsupportedFeature) as refused:
        log.commit(transaction(), log.state())
    assert refused.value.fields["features"] == ["futureFeature"]
    assert log.segment().version == 1


@pytest.mark.parametrize("fault", [Fault.LOSE_ANSWER, Fault.FAIL])
def test_a_lost_answer_is_settled_by_reading_back(fault: Fault) -> None:
    inner = History().then(Append(1)).store()
    store = FaultyStore(inner, on("PUT_IF_ABSENT", fault, containing=".json"))
    log = DeltaLog(store)
    if fault is Fault.FAIL:
        with pytest.raises(StorageUnavailable):
            log.commit(transaction(), log.state())
        assert log.segment().version == 1
        return
    done = log.commit(transaction(), log.state())
    assert isinstance(done, Committed)
    assert log.segment().version == done.version == 2
    assert inner.get(paths.commit(2)) == done.body


def test_an_outcome_that_cannot_be_asked_for_is_said_to_be_unknown() -> None:
    inner = History().then(Append(1)).store()
    read = DeltaLog(inner).state()
    store = FaultyStore(
        inner,
        lambda call: (
            Fault.LOSE_ANSWER
            if call.verb == "PUT_IF_ABSENT"
            else Fault.FAIL
            if call.verb == "GET" and call.paths[0].endswith("2.json")
            else None
        ),
    )
    with pytest.raises(CommitStateUnknown):
        DeltaLog(store).commit(transaction(), read)


def test_a_backfill_is_byte_exact_and_repeatable() -> None:
    log = DeltaLog(History().then(Append(1)).store())
    body = b'{"commitInfo":{"operation":"X"}}\n'
    assert log.backfill(2, body) is None
    assert log.backfill(2, body) is None
    other = log.backfill(2, b'{"commitInfo":{"operation":"Y"}}\n')
    assert isinstance(other, Conflict)
    assert other.reason == "version_taken"
    assert other.winner is not None
    assert other.winner.operation == "X"


def test_a_commit_into_a_log_that_was_cleaned_up_meanwhile_is_refused() -> None:
    history = History().then(Append(1))
    read = DeltaLog(history.store()).state()
    grown = history.then(*[Append(1)] * 4, Checkpoint(), Clean())
    store = grown.store()
    before = dict(store.objects)

    done = DeltaLog(store).commit(transaction(), read)

    assert isinstance(done, Conflict)
    assert done.reason == "history_cleaned"
    assert store.objects == before


def test_a_cleanup_between_looking_and_putting_is_noticed() -> None:
    history = History().then(Append(1))
    inner = history.store()
    read = DeltaLog(inner).state()

    def clean_up(call: StoreCall) -> Fault | None:
        if call.verb == "PUT_IF_ABSENT" and call.paths[0] == paths.commit(2):
            inner.delete_many([paths.commit(version) for version in range(2)])
        return None

    done = DeltaLog(FaultyStore(inner, clean_up)).commit(transaction(), read)

    assert isinstance(done, Conflict)
    assert done.reason == "history_cleaned"


def test_many_winners_cost_one_listing_and_one_put() -> None:
    history = History().then(Append(1))
    read = DeltaLog(history.store()).state()
    store = history.then(*[Append(1)] * 200).store()
    store.calls.reset()

    done = DeltaLog(store).commit(transaction(), read)

    assert isinstance(done, Committed)
    assert done.version == 202
    assert store.calls["LIST"] == 1
    assert store.calls["PUT_IF_ABSENT"] == 1
    assert json.loads(done.body.splitlines()[0])["commitInfo"]["readVersion"] == read.version


def test_a_transaction_that_drops_a_feature_follows_no_change_of_files() -> None:
    history = History(Layout(deletion_vectors="i")).then(Append(1))
    read = DeltaLog(history.store()).state()
    writers = tuple(n for n in read.protocol.writer_features or () if n != "deletionVectors")
    smaller = actions.changed(
        read.protocol, min_reader_version=1, reader_features=None, writer_features=writers
    )
    metadata = actions.changed(read.metadata, configuration={})
    wanted = transaction(protocol=smaller, metadata=metadata)

    refused = DeltaLog(history.then(Append(1)).store()).commit(wanted, read)

    assert isinstance(refused, Conflict)
    assert refused.reason == "data_changed"
    assert isinstance(DeltaLog(history.store()).commit(wanted, read), Committed)


@pytest.mark.parametrize(
    "changes",
    [
        {"min_reader_version": 2, "reader_features": ("columnMapping",)},
        {"min_writer_version": 7, "writer_features": ("clustering",)},
        {"min_reader_version": 3, "min_writer_version": 7, "reader_features": ()},
    ],
)
def test_a_protocol_against_the_specification_is_refused(changes: dict[str, object]) -> None:
    store = History().then(Append(1)).store()
    log = DeltaLog(store)
    before = dict(store.objects)
    protocol = actions.changed(log.state().protocol, **changes)
    with pytest.raises(FeatureRequired):
        log.commit(transaction(protocol=protocol), log.state())
    assert store.objects == before


def test_domains_need_their_feature_and_row_ids_are_ours_to_count() -> None:
    plain = DeltaLog(History().then(Append(1)).store())
    with pytest.raises(FeatureRequired):
        plain.commit(transaction(domains=(DomainMetadata("mine", "1"),)), plain.state())
    tracked = DeltaLog(History(Layout(row_tracking=True)).then(Append(1)).store())
    with pytest.raises(InvalidInput):
        tracked.commit(
            transaction(domains=(DomainMetadata("delta.rowTracking", "{}"),)), tracked.state()
        )


def test_files_that_are_added_again_end_the_chain_of_checksums() -> None:
    store = History().then(Append(2), Checksum()).store()
    log = DeltaLog(store)
    again = log.snapshot().files.slice(0, 1)

    done = log.commit(transaction(adds=again), log.state())

    assert isinstance(done, Committed)
    assert log.segment().checksum is None
    assert log.snapshot().num_files == 2
    assert log.checkpoint().created


def test_a_refused_checksum_file_does_not_make_the_commit_fail() -> None:
    class Strict(DictStore):
        def put_if_absent(self, path: str, data: bytes) -> bool:
            if path.endswith(".crc"):
                raise Forbidden("no", path=path)
            return super().put_if_absent(path, data)

    store = Strict(History().then(Append(2), Checksum()).objects())
    log = DeltaLog(store)
    done = log.commit(transaction(), log.state())
    assert isinstance(done, Committed)
    assert log.segment().version == done.version


def test_restated_files_keep_what_we_do_not_know_and_their_statistics() -> None:
    line = (
        '{"add":{"path":"x.parquet","partitionValues":{},"size":1,"modificationTime":1,'
        '"dataChange":true,"stats":"{\\"numRecords\\":1}","later":[1]}}'
    )
    store = History().then(Lines((line,))).store()
    log = DeltaLog(store)
    rows = log.snapshot().files
    parsed = pa.array([{"numRecords": 1}])
    without_text = rows.set_column(
        rows.schema.get_field_index("stats"), "stats", pa.nulls(1, pa.string())
    ).append_column("stats_parsed", parsed)

    done = log.commit(transaction(adds=without_text), log.state())

    assert isinstance(done, Committed)
    written = lines(store, done.version)[-1]["add"]
    assert written["later"] == [1]
    assert written["stats"] == '{"numRecords":1}'
    assert "stats_parsed" not in written


def test_timestamps_do_not_go_on_where_the_last_one_is_lost() -> None:
    history = History(Layout(in_commit_timestamps=True)).then(Append(1), Checkpoint())
    store = history.store()
    store.delete_many([paths.commit(0), paths.commit(1)])
    log = DeltaLog(store)
    with pytest.raises(CorruptLog, match="is unknown: its commit was cleaned up"):
        log.commit(transaction(), log.state())


def test_timestamps_do_not_go_on_where_the_last_commit_has_none() -> None:
    store = History(Layout(in_commit_timestamps=True)).then(Append(1)).store()
    store.put(paths.commit(2), b'{"txn":{"appId":"a","version":1}}\n')
    log = DeltaLog(store)
    with pytest.raises(CorruptLog, match="its commit has no inCommitTimestamp") as refused:
        log.commit(transaction(), log.state())
    assert "delta.enableInCommitTimestamps" in str(refused.value.remedy)


def test_a_backfill_that_is_no_commit_is_refused() -> None:
    store = History().then(Append(1)).store()
    with pytest.raises(CorruptLog):
        DeltaLog(store).backfill(2, b"not json\n")
    assert paths.commit(2) not in store.objects
