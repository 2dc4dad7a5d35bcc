"""A kept listing says what a new one says, whatever happened to the log in between."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lakeferry.api.log_summary_cache import KEPT_MS, LogSummaryCache
from lakeferry.log import paths
from lakeferry.table import DeltaLog
from tests.support.history import Append, Checkpoint, History
from tests.support.stores import DictStore
from tests.unit.api.test_table_timeline import COMMITS, long_log


def test_the_numbers_of_a_long_log() -> None:
    found = LogSummaryCache().summary(DeltaLog(long_log()))
    assert (found.commits, found.oldest, found.newest) == (COMMITS, 0, COMMITS - 1)
    assert len(found.stretches) <= 60
    assert sum(each.commits for each in found.stretches) == COMMITS
    assert sum(each.checkpoints for each in found.stretches) == found.checkpoints == 101
    assert found.is_gapless


def test_of_a_log_that_is_known_only_what_is_new_is_listed() -> None:
    cache, store = LogSummaryCache(), long_log()
    log = DeltaLog(store, clock=lambda: 0)
    first = cache.summary(log)
    store.listed = 0
    store.calls.reset()
    assert cache.summary(log) == first
    assert (store.calls["LIST"], store.calls["HEAD"]) == (1, 1)
    assert store.listed < 250


def _grow(store: DictStore) -> None:
    for version in range(500, 900):
        store.put(paths.commit(version), b"{}")
    store.put(paths.classic_checkpoint(899), b"x" * 900)


def _check_point_late(store: DictStore) -> None:
    store.put(paths.classic_checkpoint(450), b"x" * 500)


def _clean_up(store: DictStore) -> None:
    store.delete_many([paths.commit(version) for version in range(120)])


def _begin_anew(store: DictStore) -> None:
    store.delete_many(list(store.objects))
    for version in range(700):
        store.put(paths.commit(version), b"other")


def _become_shorter(store: DictStore) -> None:
    store.delete_many([paths.commit(version) for version in range(300, 500)])


def _end(store: DictStore) -> None:
    store.delete_many(list(store.objects))


@pytest.mark.parametrize(
    "change",
    [_grow, _check_point_late, _clean_up, _begin_anew, _become_shorter, _end, lambda _: None],
)
def test_what_changed_is_seen(change: Callable[[DictStore], None]) -> None:
    cache = LogSummaryCache()
    store = DictStore({paths.commit(version): b"{}" for version in range(500)})
    store.put(paths.classic_checkpoint(100), b"x")
    log = DeltaLog(store, clock=lambda: 0)
    cache.summary(log)
    change(store)
    assert cache.summary(log) == LogSummaryCache().summary(log)


def test_a_change_in_the_middle_is_seen_later() -> None:
    now_ms = 0
    cache = LogSummaryCache()
    store = DictStore({paths.commit(version): b"{}" for version in range(500)})
    log = DeltaLog(store, clock=lambda: now_ms)
    assert cache.summary(log).is_gapless
    store.delete_many([paths.commit(7)])
    now_ms = KEPT_MS
    assert not cache.summary(log).is_gapless


def test_what_is_kept_is_bounded() -> None:
    cache = LogSummaryCache(most=10)
    for number in range(6):
        store = History().then(*[Append(1)] * 3, Checkpoint()).store()
        store.config = type(store.config)(f"memory://{number}")
        assert cache.summary(DeltaLog(store)).commits == 4
    assert cache.commits == 8
    store = History().then(*[Append(1)] * 20).store()
    assert cache.summary(DeltaLog(store)).commits == 21
    assert cache.commits == 0
