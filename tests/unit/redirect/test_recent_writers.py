"""Which clients wrote a table lately, and what is read to find out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from lakeferry.errors import ObjectNotFound
from lakeferry.log import paths
from lakeferry.redirect.entry import Dialect, Mode
from lakeferry.redirect.recent_writers import COMMITS, RecentWriter, ago, recent_writers
from lakeferry.table import DeltaLog
from tests.support.history import Append, Checkpoint, History
from tests.support.stores import DictStore

NOW = 1_790_000_000_000
MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000
OLD_SPARK = "Apache-Spark/3.5.9 Delta-Lake/3.3.3"
SPARK = "Apache-Spark/4.2.0 Delta-Lake/4.4.0"
BOTH = (Dialect.RFC, Dialect.DELTA_SPARK)


def commit(engine: str | None, ago_ms: int, more: str = "", **info: Any) -> bytes:
    stated = {"timestamp": NOW - ago_ms, "operation": "WRITE", **info}
    if engine is not None:
        stated["engineInfo"] = engine
    return (json.dumps({"commitInfo": stated}) + "\n" + more).encode()


def table(*commits: bytes, checkpoint_at: int | None = None) -> DictStore:
    """A table whose first commit Lakeferry made, and then these."""
    history = History() if checkpoint_at is None else History().then(Checkpoint())
    store = history.write(DictStore(clock=lambda: NOW))
    first = store.get(paths.commit(0)).replace(b'"history"', b'"Lakeferry/0.2.0"')
    store.put(paths.commit(0), first)
    for version, data in enumerate(commits, 1):
        store.put(paths.commit(version), data)
    return store


def found_in(store: DictStore, mode: Mode = Mode.WRITER_ONLY) -> tuple[RecentWriter, ...]:
    log = DeltaLog(store, clock=lambda: NOW).keeping_reads()
    return recent_writers(log, log.newest(), mode, BOTH)


def names(found: Sequence[RecentWriter]) -> list[str | None]:
    return [each.writer.name for each in found]


def test_who_will_read_old_rows_is_named_first_with_the_day() -> None:
    store = table(commit(OLD_SPARK, 26 * HOUR), commit(SPARK, 2 * HOUR), commit("DuckDB", MINUTE))
    duck, old, spark, ours = found_in(store)
    assert old.message == (
        "Apache-Spark/3.5.9 Delta-Lake/3.3.3 wrote yesterday; in writer-only mode it will read the "
        "frozen copy and its option doesn't follow"
    )
    assert names((duck, old, spark, ours)) == ["DuckDB", OLD_SPARK, SPARK, "Lakeferry/0.2.0"]
    assert spark.message.startswith(f"{SPARK} wrote 2 hours ago; ")
    assert [each.reads_old_rows for each in (duck, old, spark, ours)] == [True, True, True, False]


def test_a_client_is_named_once_with_its_newest_commit() -> None:
    (spark, _) = found_in(table(commit(SPARK, 2 * DAY), commit(SPARK, HOUR), commit(SPARK, MINUTE)))
    assert (spark.commits, spark.version, spark.written_ms) == (3, 3, NOW - MINUTE)


def test_the_document_has_the_time_in_utc() -> None:
    (spark, *_) = found_in(table(commit(OLD_SPARK, DAY)), Mode.READER_WRITER)
    assert spark.as_document() == {
        "name": OLD_SPARK,
        "client": "delta-spark",
        "client_version": "3.3.3",
        "version": 1,
        "written": "2026-09-20T14:13:20Z",
        "commits": 1,
        "reads": "blocked",
        "writes": "blocked",
        "follows_if": None,
        "message": f"{OLD_SPARK} wrote yesterday; in reader-writer mode it can't use the old path "
        "any more",
        "proof": "tests/compat/test_oldest_spark.py",
    }


def test_a_commit_without_an_engine_is_by_a_client_without_a_name() -> None:
    (unnamed, _) = found_in(table(commit(None, MINUTE)))
    assert unnamed.writer.name is None
    assert unnamed.message.startswith("a client that doesn't say its name wrote 1 minute ago; ")


def test_a_commit_without_information_is_by_a_client_without_a_name_at_its_files_time() -> None:
    store = table(b'{"txn": {"appId": "a", "version": 1}}\n')
    store.set_modified(paths.commit(1), NOW - DAY)
    (unnamed, _) = found_in(store)
    assert (unnamed.writer.name, unnamed.written_ms) == (None, NOW - DAY)


@pytest.mark.parametrize("stated", [True, -5, 10**30, "yesterday", None])
def test_a_time_that_is_none_is_taken_from_the_file(stated: object) -> None:
    (spark, _) = found_in(table(commit(SPARK, 0, timestamp=stated)))
    assert spark.written_ms == NOW
    assert spark.as_document()["written"] == "2026-09-21T14:13:20Z"


def test_only_the_newest_commits_are_asked_at_a_bounded_cost() -> None:
    recent = [commit("delta-rs:py-1.6.6", MINUTE)] * COMMITS
    store = table(commit(OLD_SPARK, HOUR), *recent)
    for version in range(COMMITS + 1):
        store.put(paths.commit(version).replace(".json", ".crc"), b"{}")
    log = DeltaLog(store, clock=lambda: NOW).keeping_reads()
    reading = log.newest()
    before = store.calls["GET"], store.calls["LIST"]
    found = recent_writers(log, reading, Mode.WRITER_ONLY, BOTH)
    assert (names(found), found[0].commits) == (["delta-rs:py-1.6.6"], COMMITS)
    # All of them were read to open the table, which has no checkpoint.
    assert (store.calls["GET"], store.calls["LIST"]) == before


def test_only_commits_that_opening_the_table_did_not_read_are_read() -> None:
    store = History().then(*[Append(1)] * 5, Checkpoint(), Append(1)).store()
    log = DeltaLog(store, clock=lambda: NOW).keeping_reads()
    reading = log.newest()
    store.calls.reset()
    (found,) = recent_writers(log, reading, Mode.WRITER_ONLY, BOTH)
    assert (found.writer.name, found.commits) == ("history", 7)
    assert store.calls["LIST"] == 1
    assert store.calls["GET"] == 6


def test_commits_that_were_cleaned_up_are_no_error() -> None:
    store = History().then(*[Append(1)] * 5, Checkpoint(), Append(1)).store()
    store.delete_many([paths.commit(version) for version in range(4)])
    (found,) = found_in(store)
    assert found.commits == 3


def test_commits_that_are_cleaned_up_meanwhile_are_no_error() -> None:
    class Cleaned(DictStore):
        def get_many(self, paths: Sequence[str]) -> list[bytes]:
            raise ObjectNotFound("cleaned up", path=paths[0])

    history = History().then(*[Append(1)] * 5, Checkpoint(), Append(1))
    log = DeltaLog(history.write(Cleaned()), clock=lambda: NOW)
    reading = DeltaLog(history.store()).newest()
    (found,) = recent_writers(log, reading, Mode.WRITER_ONLY, BOTH)
    assert found.commits == 1


def test_a_commit_that_cannot_be_read_is_left_out() -> None:
    store = History().then(Append(1), Checkpoint(), Append(1)).store()
    store.put(paths.commit(0), b'{"commitInfo": {"operation"\n')
    assert [each.commits for each in found_in(store)] == [2]


def test_of_a_large_commit_only_the_beginning_is_read() -> None:
    store = History().then(Append(1), Append(1), Checkpoint(), Append(1)).store()
    store.put(paths.commit(1), commit(SPARK, HOUR, more='{"add": {}}\n' * 100_000))
    log = DeltaLog(store, clock=lambda: NOW).keeping_reads()
    reading = log.newest()
    store.calls.reset()
    found = recent_writers(log, reading, Mode.WRITER_ONLY, BOTH)
    assert set(names(found)) == {SPARK, "history"}
    assert store.calls["RANGE"] == 1
    assert store.calls.bytes_read < 100_000


@pytest.mark.parametrize(
    ("passed", "said"),
    [
        (-HOUR, "just now"),
        (59_999, "just now"),
        (MINUTE, "1 minute ago"),
        (HOUR - 1, "59 minutes ago"),
        (2 * HOUR, "2 hours ago"),
        (DAY - 1, "23 hours ago"),
        (DAY, "yesterday"),
        (2 * DAY, "2 days ago"),
        (59 * DAY, "59 days ago"),
        (60 * DAY, "on 2026-07-23"),
    ],
)
def test_a_time_is_said_as_people_say_it(passed: int, said: str) -> None:
    assert ago(NOW - passed, NOW) == said
