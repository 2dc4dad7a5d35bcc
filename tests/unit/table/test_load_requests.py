"""What opening a table asks of its store, counted."""

from __future__ import annotations

import pytest

from lakeferry.table import DeltaLog
from tests.support.history import (
    Append,
    Checkpoint,
    Checksum,
    Delete,
    History,
    Kind,
    Layout,
    SetProperties,
)
from tests.support.stores import DictStore

HINT = "_delta_log/_last_checkpoint"
TEN_COMMITS = tuple(Append(1) for _ in range(10))
RECENT = History().then(Append(3), Delete(1), Checkpoint(), *TEN_COMMITS)
LARGE_BYTES = 256 * 1024


def opened(past: History) -> tuple[DictStore, DeltaLog]:
    store = past.store()
    return store, DeltaLog(store)


def names(store: DictStore, verb: str) -> list[str]:
    return [path for used, path in store.calls.log if used == verb]


def test_the_newest_version_takes_the_hint_one_listing_and_each_file_once() -> None:
    store, log = opened(RECENT)
    assert log.snapshot().version == 12
    checkpoint = "_delta_log/00000000000000000002.checkpoint.parquet"
    commits = [f"_delta_log/{version:020d}.json" for version in range(3, 13)]
    assert store.calls.log[0] == ("GET", HINT)
    assert store.calls["LIST"] == 1
    assert sorted(names(store, "GET")) == sorted([HINT, checkpoint, *commits])
    assert store.calls["RANGE"] == store.calls["HEAD"] == 0


def test_the_listing_begins_at_the_hint() -> None:
    class Watching(DictStore):
        began: str | None = None

        def list(  # type: ignore[no-untyped-def]
            self, prefix, *, start_after=None, stop_before=None
        ):
            self.began = start_after
            return super().list(prefix, start_after=start_after, stop_before=stop_before)

    store = Watching(RECENT.objects())
    DeltaLog(store).snapshot()
    assert store.began == "_delta_log/00000000000000000002-"


def test_without_a_hint_it_takes_one_listing_and_no_more_gets() -> None:
    store, log = opened(History().then(Append(1), Checkpoint(hint=False), Append(1)))
    log.snapshot()
    assert store.calls["LIST"] == 1
    assert len(names(store, "GET")) == 3


def test_protocol_and_metadata_take_one_get_after_the_listing_where_a_checksum_has_them() -> None:
    store, log = opened(RECENT.then(Checksum()))
    state = log.state()
    assert state.version == 12
    assert names(store, "GET") == [HINT, "_delta_log/00000000000000000012.crc"]
    assert store.calls["LIST"] == 1
    assert store.calls["RANGE"] == 0


def test_protocol_and_metadata_that_commits_have_need_no_checkpoint() -> None:
    both = SetProperties((("a", "b"),))
    past = History().then(Append(1), Checkpoint(), both)
    store, log = opened(past)
    log.state()
    # The metadata is in the commit, the protocol is not.
    assert len(names(store, "GET")) == 3
    store, log = opened(History().then(both))
    log.state()
    assert names(store, "GET") == [HINT, *(f"_delta_log/{v:020d}.json" for v in range(2))]


LARGE = History().then(Append(20_000))


@pytest.mark.parametrize("row_group_rows", [None, 4_000])
def test_a_large_checkpoint_gives_its_protocol_for_a_fraction_of_its_bytes(
    row_group_rows: int | None,
) -> None:
    past = LARGE.then(Checkpoint(row_group_rows=row_group_rows), Append(1))
    store, log = opened(past)
    size = len(store.objects["_delta_log/00000000000000000001.checkpoint.parquet"])
    assert size > 3 * LARGE_BYTES
    store.calls.reset()
    assert log.state().metadata.id
    assert 1 <= store.calls["RANGE"] <= 3
    assert names(store, "GET") == [HINT, "_delta_log/00000000000000000002.json"]
    assert store.calls.bytes_read < size / 4


def test_a_checkpoint_of_two_large_parts_takes_three_ranges_of_each_at_most() -> None:
    store, log = opened(LARGE.then(Checkpoint(Kind.MULTI_PART, parts=2)))
    sizes = [len(data) for name, data in store.objects.items() if ".checkpoint." in name]
    assert min(sizes) > LARGE_BYTES
    store.calls.reset()
    log.state()
    assert 2 <= store.calls["RANGE"] <= 6
    assert names(store, "GET") == [HINT]
    assert store.calls.bytes_read < sum(sizes) / 4


def test_transactions_and_domains_don_t_read_files_either() -> None:
    store, log = opened(LARGE.then(Checkpoint()))
    size = sum(len(data) for name, data in store.objects.items() if ".checkpoint." in name)
    store.calls.reset()
    assert log.small_snapshot().num_files == 0
    assert store.calls["RANGE"] <= 3
    assert store.calls.bytes_read < size / 4


def test_a_small_checkpoint_is_fetched_whole() -> None:
    store, log = opened(RECENT)
    log.state()
    assert store.calls["RANGE"] == 0
    assert len(names(store, "GET")) == 12


@pytest.mark.parametrize("kind", [Kind.V2_JSON, Kind.V2_PARQUET, Kind.V2_CLASSIC])
def test_sidecars_are_fetched_for_files_and_for_nothing_else(kind: Kind) -> None:
    past = History(Layout(v2_checkpoints=True)).then(Append(3), Checkpoint(kind, sidecars=2))
    store, log = opened(past)
    log.state()
    log.small_snapshot()
    assert not [name for name in names(store, "GET") if "_sidecars/" in name]
    store.calls.reset()
    assert log.snapshot().num_files == 3
    assert len([name for name in names(store, "GET") if "_sidecars/" in name]) == 2
    assert store.calls["GET"] == 4
    assert store.calls["LIST"] == 1


def test_a_version_before_the_hint_takes_one_whole_listing() -> None:
    store, log = opened(RECENT)
    assert log.snapshot(1).num_files == 3
    assert store.calls["LIST"] == 1
    assert names(store, "GET") == [HINT, *(f"_delta_log/{v:020d}.json" for v in range(2))]


def test_an_unreadable_checkpoint_takes_one_more_listing() -> None:
    objects = RECENT.objects()
    objects["_delta_log/00000000000000000002.checkpoint.parquet"] = b"torn"
    store = DictStore(objects)
    warnings: list[str] = []
    assert DeltaLog(store, warn=warnings.append).snapshot().num_files == 12
    assert store.calls["LIST"] == 2
    assert len(warnings) == 1
