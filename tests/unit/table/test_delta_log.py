"""A log at a location: which versions there are, what each is, and when it came to be."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from lakeferry.errors import (
    CorruptLog,
    NotATable,
    TableNotFound,
    UnsupportedFeature,
    VersionNotAvailable,
)
from lakeferry.log import paths
from lakeferry.storage import ObjectInfo
from lakeferry.table import DeltaLog
from tests.support.clock import DEFAULT_START_MS
from tests.support.history import (
    MINUTE_MS,
    Append,
    Checkpoint,
    Checksum,
    Clean,
    Clutter,
    Compact,
    Delete,
    Hint,
    HintState,
    History,
    KeepTime,
    Kind,
    Layout,
    SetProperties,
    Upgrade,
    dated,
)
from tests.support.stores import DictStore

CHECKPOINT = paths.classic_checkpoint(2)
PAST = History().then(Append(2), Delete(1), Checkpoint(), Append(1), Append(1))


def damaged(objects: dict[str, bytes], warnings: list[str] | None = None) -> DeltaLog:
    said = [] if warnings is None else warnings
    return DeltaLog(dated(objects), warn=said.append)


def test_nothing_is_there() -> None:
    with pytest.raises(TableNotFound) as nothing:
        DeltaLog(DictStore()).snapshot()
    assert nothing.value.fields["location"] == "memory://dict"


@pytest.mark.parametrize(
    "objects",
    [
        {"data.parquet": b""},
        {"_delta_log/_last_checkpoint": b'{"version":1,"size":1}'},
        {"_delta_log/.keep": b"", "_delta_log/00000000000000000000.crc": b""},
        {paths.multi_part_checkpoint(1, 1, 2): b""},
    ],
)
def test_something_else_is_there(objects: dict[str, bytes]) -> None:
    for read in (DeltaLog.snapshot, DeltaLog.state, DeltaLog.listing, DeltaLog.history):
        with pytest.raises(NotATable):
            read(DeltaLog(DictStore(objects)))


def test_what_others_leave_in_a_log_is_none_of_it() -> None:
    assert DeltaLog(PAST.then(Clutter()).store()).snapshot().version == 4


def test_a_broken_checkpoint_costs_a_warning_while_the_commits_are_there() -> None:
    warnings: list[str] = []
    log = damaged(PAST.objects() | {CHECKPOINT: b"PAR1 but not really PAR1"}, warnings)
    assert log.snapshot().num_files == 3
    assert len(warnings) == 1
    assert CHECKPOINT in warnings[0]
    assert log.small_snapshot().version == log.state().version == 4
    assert len(warnings) == 3


def test_a_broken_checkpoint_is_the_error_once_the_commits_are_gone() -> None:
    log = damaged(PAST.then(Clean()).objects() | {CHECKPOINT: b""})
    for read in (log.snapshot, log.small_snapshot, log.state):
        with pytest.raises(CorruptLog) as broken:
            read()
        assert broken.value.fields["path"] == CHECKPOINT


def test_a_lost_sidecar_is_a_broken_checkpoint() -> None:
    past = History(Layout(v2_checkpoints=True)).then(Append(2), Checkpoint(Kind.V2_JSON))
    objects = past.then(Append(1)).objects()
    lost = next(name for name in objects if "_sidecars/" in name)
    del objects[lost]
    warnings: list[str] = []
    assert damaged(objects, warnings).snapshot().num_files == 3
    assert lost in warnings[0]


def test_an_older_checkpoint_is_next() -> None:
    past = History().then(Append(1), Checkpoint(), Append(1), Checkpoint(), Append(1))
    objects = past.objects() | {CHECKPOINT: b"torn"}
    store = dated(objects)
    warnings: list[str] = []
    assert DeltaLog(store, warn=warnings.append).snapshot().num_files == 3
    assert ("GET", paths.classic_checkpoint(1)) in store.calls.log
    assert len(warnings) == 1


def test_a_broken_commit_is_an_error_whatever_else_is_there() -> None:
    objects = PAST.then(Compact(2)).objects()
    commit = paths.commit(3)
    del objects[paths.compacted(3, 4)]
    log = damaged(objects | {commit: b'{"add":'})
    with pytest.raises(CorruptLog) as broken:
        log.snapshot()
    assert broken.value.fields["path"] == commit
    assert log.snapshot(2).num_files == 1


def test_versions_of_a_log_that_was_cleaned_up() -> None:
    log = DeltaLog(PAST.then(Clean()).store())
    assert log.snapshot(2).num_files == 1
    with pytest.raises(VersionNotAvailable) as gone:
        log.snapshot(1)
    assert gone.value.fields["earliest_version"] == 2
    with pytest.raises(VersionNotAvailable):
        log.snapshot(5)
    assert [revision.version for revision in log.history()] == [4, 3, 2]


class Vanishing(DictStore):
    """The newest commit is deleted between the listing and the reading of it."""

    def get(self, path: str) -> bytes:
        if path == paths.commit(4):
            self.delete_many([path])
        return super().get(path)


def test_a_commit_that_vanishes_after_the_listing_makes_us_list_again() -> None:
    assert DeltaLog(Vanishing(PAST.objects())).snapshot().version == 3
    assert DeltaLog(Vanishing(PAST.objects())).state().version == 3
    assert DeltaLog(Vanishing(PAST.objects())).history()[0].version == 3


def test_a_version_that_vanishes_after_the_listing_is_not_available() -> None:
    with pytest.raises(VersionNotAvailable):
        DeltaLog(Vanishing(PAST.objects())).snapshot(4)


def test_a_checksum_file_that_can_t_be_read_is_as_good_as_none() -> None:
    past = PAST.then(Checksum())
    state = damaged(past.objects() | {paths.checksum(4): b"{"}).state()
    assert state.metadata == DeltaLog(past.store()).state().metadata


@pytest.mark.parametrize(
    ("offset_ms", "version"), [(0, 0), (1, 0), (MINUTE_MS, 1), (4 * MINUTE_MS + 5, 4)]
)
def test_the_version_at_a_time_by_file_times(offset_ms: int, version: int) -> None:
    assert DeltaLog(PAST.store()).version_at(DEFAULT_START_MS + offset_ms) == version


def test_the_version_at_a_time_when_files_are_younger_than_their_successors() -> None:
    store = PAST.store()
    store.set_modified(paths.commit(2), DEFAULT_START_MS - MINUTE_MS)
    log = DeltaLog(store)
    assert log.version_at(DEFAULT_START_MS + MINUTE_MS) == 1
    assert log.version_at(DEFAULT_START_MS + MINUTE_MS + 1) == 2


def test_no_version_is_as_old() -> None:
    for past in (PAST, PAST.then(Clean()), History(Layout(in_commit_timestamps=True))):
        with pytest.raises(VersionNotAvailable):
            DeltaLog(past.store()).version_at(DEFAULT_START_MS - 1)
    with pytest.raises(VersionNotAvailable) as gone:
        DeltaLog(PAST.then(Clean()).store()).version_at(DEFAULT_START_MS + MINUTE_MS)
    assert gone.value.fields["earliest_version"] == 2


def test_in_commit_timestamps_count_and_not_file_times() -> None:
    past = History(Layout(in_commit_timestamps=True)).then(*[Append(1)] * 9)
    store = past.store()
    for version in range(10):
        store.set_modified(paths.commit(version), 5)
    log = DeltaLog(store)
    for version in range(10):
        moment = DEFAULT_START_MS + version * MINUTE_MS
        assert log.version_at(moment) == log.version_at(moment + 1) == version
    assert [revision.timestamp for revision in log.history(2)] == [
        DEFAULT_START_MS + 9 * MINUTE_MS,
        DEFAULT_START_MS + 8 * MINUTE_MS,
    ]


def test_in_commit_timestamps_that_began_later() -> None:
    past = History().then(Append(1), Append(1), KeepTime(), Append(1))
    store = past.store()
    store.set_modified(paths.commit(4), 1)
    log = DeltaLog(store)
    for version in range(5):
        moment = DEFAULT_START_MS + version * MINUTE_MS
        assert log.version_at(moment) == log.version_at(moment + MINUTE_MS - 1) == version


def test_a_promised_timestamp_that_is_missing_is_a_corrupt_log() -> None:
    past = History().then(SetProperties((("delta.enableInCommitTimestamps", "true"),)))
    with pytest.raises(CorruptLog):
        DeltaLog(past.store()).version_at(DEFAULT_START_MS + 5)


def test_history_is_newest_first() -> None:
    revisions = DeltaLog(PAST.store()).history()
    assert [revision.version for revision in revisions] == [4, 3, 2, 1, 0]
    first = revisions[-1]
    assert first.timestamp == DEFAULT_START_MS
    assert first.commit_info is not None
    assert first.commit_info.operation == "CREATE TABLE"
    assert len(DeltaLog(PAST.store()).history(2)) == 2


@pytest.mark.parametrize(("limit", "lists"), [(3, 1), (4, 1), (20, 2), (34, 2), (90, 3), (None, 2)])
def test_a_short_history_lists_no_older_versions(
    monkeypatch: pytest.MonkeyPatch, limit: int | None, lists: int
) -> None:
    store = History().then(*[Append(1)] * 30, Checkpoint(), *[Append(1)] * 3).store()
    whole = DeltaLog(store).history()
    listed: list[str] = []
    list_store = store.list

    def watched(prefix: str, **window: str | None) -> Iterator[ObjectInfo]:
        for each in list_store(prefix, **window):
            listed.append(each.path)
            yield each

    monkeypatch.setattr(store, "list", watched)
    store.calls.reset()
    assert DeltaLog(store).history(limit) == whole[:limit]
    assert store.calls["LIST"] <= lists
    if limit is not None and 4 < limit < len(whole):
        assert min(listed) == paths.commit(34 - limit)


def test_a_history_of_a_log_with_gaps_is_as_long_as_was_asked() -> None:
    store = History().then(*[Append(1)] * 30, Checkpoint(), *[Append(1)] * 3).store()
    store.delete_many([paths.commit(version) for version in range(20, 27)])
    versions = [each.version for each in DeltaLog(store).history(15)]
    assert versions == [33, 32, 31, 30, 29, 28, 27, 19, 18, 17, 16, 15, 14, 13, 12]


def test_what_a_commit_says_of_itself() -> None:
    log = DeltaLog(PAST.store())
    info = log.commit_info(2)
    assert info is not None
    assert info.operation == "DELETE"
    with pytest.raises(VersionNotAvailable):
        log.commit_info(9)
    snapshot = log.snapshot(2)
    assert snapshot.commit_info in (None, info)


def test_a_v2_checkpoint_under_another_version_s_name_is_not_believed() -> None:
    past = History(Layout(v2_checkpoints=True)).then(
        Append(2), Checkpoint(Kind.V2_PARQUET), Append(2)
    )
    objects = past.objects()
    (name,) = [n for n in objects if ".checkpoint." in n and n.startswith(paths.LOG_DIR)]
    objects[name.replace(f"{1:020d}", f"{2:020d}")] = objects.pop(name)
    warnings: list[str] = []
    log = DeltaLog(DictStore(objects), warn=warnings.append)
    assert log.snapshot().num_files == 4
    assert len(warnings) == 1
    assert log.state().version == 2


def test_a_checkpoint_of_an_old_version_is_refused_where_the_table_is_beyond_us_now() -> None:
    past = History(Layout(domains=True)).then(Append(1), Upgrade(writer=("futureFeature",)))
    store = past.store()
    before = dict(store.objects)
    with pytest.raises(UnsupportedFeature):
        DeltaLog(store).checkpoint(1)
    assert store.objects == before


def test_a_hint_that_leads_nowhere_is_moved_back() -> None:
    store = PAST.then(Hint(HintState.DANGLING)).store()
    store.put(paths.LAST_CHECKPOINT, b'{"version":99}')
    log = DeltaLog(store)
    written = log.checkpoint()
    hint = log.hint()
    assert hint is not None
    assert hint.version == written.version


def test_features_in_another_order_are_the_same_protocol() -> None:
    past = History(Layout(domains=True, change_data=True)).then(Append(1), Checksum())
    objects = past.objects()
    name = paths.checksum(1)
    value = json.loads(objects[name])
    value["protocol"]["writerFeatures"].reverse()
    objects[name] = json.dumps(value).encode()
    assert DeltaLog(DictStore(objects)).checkpoint().created
