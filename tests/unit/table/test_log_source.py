"""Reads that are kept for the next question, while other writers change the log."""

from __future__ import annotations

import io

import pyarrow.parquet as pq
import pytest

from lakeferry.storage import ObjectInfo
from lakeferry.table import DeltaLog
from lakeferry.table.log_source import KeptReads
from tests.support.history import Append, Checkpoint, History
from tests.support.stores import DictStore

CHECKPOINT = "_delta_log/00000000000000000001.checkpoint.parquet"
NEWEST = "_delta_log/00000000000000000002.json"


def cleaned_up(appended: int) -> DictStore:
    """Return a table of two commits, whose first version only has a checkpoint."""
    objects = History().then(Append(appended), Checkpoint(), Append(1)).objects(with_data=False)
    for version in (0, 1):
        del objects[f"_delta_log/{version:020}.json"]
    return DictStore(objects)


def compressed(checkpoint: bytes, compression: str) -> bytes:
    """Return a checkpoint with the same rows and other bytes."""
    written = io.BytesIO()
    pq.write_table(pq.read_table(io.BytesIO(checkpoint)), written, compression=compression)
    return written.getvalue()


@pytest.mark.parametrize("compression", ["none", "gzip", "zstd"])
def test_a_checkpoint_that_was_replaced_is_never_mixed_with_the_new_one(compression: str) -> None:
    store = cleaned_up(9_000)
    log = DeltaLog(store).keeping_reads()
    newest = log.newest(keeps_files=True)
    assert store.calls["RANGE"]
    store.put(CHECKPOINT, compressed(store.objects[CHECKPOINT], compression))
    assert log.snapshot(newest=newest).files.num_rows == 9_001


def test_a_file_that_is_larger_than_what_is_kept_is_read_in_one_piece() -> None:
    store = DictStore({"_delta_log/a": bytes(range(100))})
    kept = KeptReads(store, most_bytes=99)
    assert list(kept.list("_delta_log/"))
    assert kept.get_range("_delta_log/a", 90, 10) == bytes(range(90, 100))
    assert kept.get("_delta_log/a") == bytes(range(100))
    assert kept.get_range("_delta_log/a", 90, 10) == bytes(range(90, 100))
    assert store.calls["RANGE"] == 1


@pytest.mark.parametrize(("listed_ms", "told_ms"), [(1_234, 1_000), (1_000, 1_234), (1_234, 1_234)])
def test_a_service_that_tells_times_in_seconds_has_replaced_nothing(
    listed_ms: int, told_ms: int
) -> None:
    class InSeconds(DictStore):
        def head(self, path: str) -> ObjectInfo:
            return ObjectInfo(path, super().head(path).size_bytes, told_ms)

    store = InSeconds({"_delta_log/a": b"0123456789"})
    store.set_modified("_delta_log/a", listed_ms)
    kept = KeptReads(store)
    assert list(kept.list("_delta_log/"))
    assert kept.get_range("_delta_log/a", 8, 2) == b"89"
    assert kept.get("_delta_log/a") == b"0123456789"
    assert store.calls["GET"] == 0


def test_history_has_no_commits_of_a_table_that_was_replaced() -> None:
    store = cleaned_up(1)
    log = DeltaLog(store).keeping_reads()
    newest = log.newest()
    assert newest.listing is not None
    assert newest.listing.since > 0
    store.put(NEWEST, store.objects[NEWEST].replace(b'"WRITE"', b'"MERGE INTO"'))
    (revision,) = log.history(newest=newest)
    assert revision.commit_info is not None
    assert revision.commit_info.operation == "MERGE INTO"
