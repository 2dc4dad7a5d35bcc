from __future__ import annotations

from pathlib import Path

import pytest

from lakeferry.api import live_file_counts
from lakeferry.api.live_file_counts import LiveFileCountsCache, count_live_files
from lakeferry.api.table import Table
from lakeferry.errors import LimitExceeded
from lakeferry.table import DeltaLog
from tests.support.history import Append, Checkpoint, Delete, DeleteRows, History, Layout
from tests.unit.cli.program import make

PARTITIONED = Layout(partitioned=True, deletion_vectors="u")


def test_files_are_counted_by_size_and_by_partition() -> None:
    past = History(PARTITIONED).then(Append(40), Checkpoint(), Append(3), Delete(2), DeleteRows(3))
    log = DeltaLog(past.store())
    found = count_live_files(log, log.segment())
    snapshot = log.snapshot()
    assert (found.files, found.size_bytes) == (snapshot.num_files, snapshot.size_bytes)
    assert found.with_deleted_rows == 3
    assert sum(each.files for each in found.classes) == found.files
    assert found.classes[0].files == found.files
    assert sum(each.files for each in found.partitions) == found.files
    assert sum(each.size_bytes for each in found.partitions) == found.size_bytes
    assert found.partition_count == len(found.partitions)
    assert any(value is None for each in found.partitions for _, value in each.values or ())


def test_a_table_without_partitions_has_none() -> None:
    log = DeltaLog(History().then(Append(2)).store())
    found = count_live_files(log, log.segment())
    assert (found.partitions, found.partition_count) == ((), 0)


def test_of_many_partitions_the_largest_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_file_counts, "SHOWN_PARTITIONS", 2)
    log = DeltaLog(History(PARTITIONED).then(Append(40)).store())
    found = count_live_files(log, log.segment())
    assert len(found.partitions) == 3
    assert found.partitions[-1].values is None
    assert found.partition_count is not None
    assert found.partition_count > 2
    monkeypatch.setattr(live_file_counts, "_MOST_PARTITIONS", 3)
    assert count_live_files(log, log.segment()).partition_count is None
    assert sum(each.files for each in count_live_files(log, log.segment()).partitions) == 40


def test_a_log_that_is_too_large_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_file_counts, "MOST_LOG_BYTES", 10)
    log = DeltaLog(History().then(Append(2)).store())
    with pytest.raises(LimitExceeded):
        count_live_files(log, log.segment())


def test_statistics_are_kept_by_version_and_bounded() -> None:
    cache = LiveFileCountsCache(most=2)
    stores = [History().then(Append(number)).store() for number in (1, 2, 3)]
    for number, store in enumerate(stores):
        store.config = type(store.config)(f"memory://{number}")
    first = cache.of_newest(DeltaLog(stores[0]))
    stores[0].calls.reset()
    assert cache.of_newest(DeltaLog(stores[0])) is first
    assert stores[0].calls["GET"] <= 1
    for store in stores:
        cache.of_newest(DeltaLog(store))
    assert len(cache) == 2


def test_a_cache_that_is_empty_yet_is_used(tmp_path: Path) -> None:
    cache = LiveFileCountsCache()
    table = Table(str(make(History().then(Append(2)), tmp_path / "orders")))
    first = table.live_file_counts(cache)
    assert table.live_file_counts(cache) is first
