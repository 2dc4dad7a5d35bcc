"""Commits: which bytes are put, what is followed, what conflicts, and lost answers."""

from __future__ import annotations

import itertools
import json
import uuid
from dataclasses import replace

import pyarrow as pa
import pytest

from lakeferry.errors import CommitStateUnknown, StorageUnavailable, UnsupportedFeature
from lakeferry.log import actions, files, paths
from lakeferry.log.actions import DomainMetadata, Txn
from lakeferry.log.commit import Conflict, Transaction
from lakeferry.storage import Store
from lakeferry.table import DeltaLog
from lakeferry.table.commit import Committed
from tests.support.clock import ManualClock
from tests.support.history import (
    Append,
    Checksum,
    Delete,
    Domain,
    History,
    Layout,
    SetProperties,
    Stream,
    Upgrade,
)
from tests.support.stores import Fault, FaultyStore, on


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
    new = live.drop_columns(["raw"])
    paths_ = pa.array([f"new-{n}.parquet" for n in range(rows)])
    adds = new.set_column(0, "path", paths_)
    removes = pa.table(
        {
            name: live[name] if name in live.column_names else pa.nulls(rows, kind)
            for name, kind in zip(files.REMOVE.names, files.REMOVE.types, strict=True)
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
    refused = strict.commit(replace(wanted, reads_files=True), read)
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
    live = log.snapshot().files.drop_columns(["raw"])
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
