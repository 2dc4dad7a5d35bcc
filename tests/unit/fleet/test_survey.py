"""What a survey says of one table, and what it reads for that."""

from __future__ import annotations

import json
import uuid
from collections import Counter

import pytest

from lakeferry.api.redirects import Redirects
from lakeferry.fleet.survey import FROZEN, commits_per_day, newest_mark, survey_table
from lakeferry.storage import open_store
from lakeferry.table import DeltaLog
from tests.support.history import (
    Append,
    Checkpoint,
    Checksum,
    Delete,
    History,
    SetProperties,
    Upgrade,
)
from tests.support.stores import DictStore, FaultyStore, StoreCall

MINUTE_MS, DAY_MS = 60_000, 86_400_000


def codes(store: DictStore | FaultyStore) -> list[str]:
    return [each.code for each in survey_table(store).problems]


def test_a_survey_counts_what_is_live() -> None:
    store = History().then(Append(3), Delete(1), Checkpoint(), Append(2)).store()
    found = survey_table(store)
    assert found.num_files == 4
    assert found.size_bytes == DeltaLog(store).snapshot().size_bytes
    assert found.mark is not None
    assert found.mark.version == 3
    assert found.features == ("appendOnly", "invariants")
    assert (found.redirect_state, found.redirect_target, found.problems) == (None, None, ())


def test_each_log_file_is_read_once() -> None:
    history = History().then(Append(3), Checkpoint(), *[Append(1)] * 5)
    read: Counter[str] = Counter()

    def count(call: StoreCall) -> None:
        if call.verb.startswith("GET"):
            read.update(path for path in call.paths)

    found = survey_table(FaultyStore(history.store(), count))
    assert found.num_files == 8
    assert set(read.values()) == {1}


def test_a_checksum_file_saves_reading_the_checkpoint() -> None:
    history = History().then(Append(3), Checkpoint(), Append(1), Checksum())
    read: list[str] = []

    def note(call: StoreCall) -> None:
        if call.verb.startswith("GET"):
            read.extend(call.paths)

    found = survey_table(FaultyStore(history.store(), note))
    assert found.num_files == 4
    assert not [path for path in read if "checkpoint.parquet" in path]


def test_a_checksum_file_with_impossible_counts_is_not_believed() -> None:
    store = History().then(Append(3), Checksum()).store()
    name = f"_delta_log/{1:020d}.crc"
    stated = json.loads(store.get(name))
    stated["tableSizeBytes"] = 2**63
    store.put(name, json.dumps(stated).encode())
    found = survey_table(store)
    assert found.size_bytes == DeltaLog(store).snapshot().size_bytes


def test_who_wrote_is_told_with_the_newest_first() -> None:
    store = History().then(Append(1), Append(1)).store()
    name = f"_delta_log/{2:020d}.json"
    lines = [json.loads(line) for line in store.get(name).splitlines()]
    for line in lines:
        if "commitInfo" in line:
            line["commitInfo"]["engineInfo"] = "delta-rs:py-1.6.6"
    store.put(name, "\n".join(map(json.dumps, lines)).encode())
    first, second = survey_table(store).writers
    assert (first.name, first.client, first.client_version) == (
        "delta-rs:py-1.6.6",
        "delta-rs",
        "1.6.6",
    )
    assert (first.commits, first.last_version, second.commits) == (1, 2, 2)
    assert first.commit_writer.kind is not None


@pytest.mark.parametrize(
    ("count", "apart_ms", "rate"),
    [
        (0, 1, None),
        (1, 1, 1.0),
        (10, MINUTE_MS, 10.0),
        (10, DAY_MS, 1.0),
        (100, MINUTE_MS, 24 * 60.0),
        (100, 1, 100 * 24 * 60.0),
    ],
)
def test_commits_a_day_are_those_of_the_newest_commits_until_now(
    count: int, apart_ms: int, rate: float | None
) -> None:
    now = 1_700_000_000_000
    times = [now - (number + 1) * apart_ms for number in range(count)]
    assert commits_per_day(times, now) == rate


def test_a_mark_changes_with_the_newest_commit() -> None:
    store = History().then(Append(1)).store()
    mark = survey_table(store).mark
    assert mark is not None
    assert newest_mark(store, mark) == mark
    more = History().then(Append(1), Append(1)).store()
    assert newest_mark(more, mark) != mark
    assert newest_mark(DictStore(), mark) is None


def test_the_problems_of_a_table_have_the_codes_of_their_errors() -> None:
    assert codes(DictStore()) == ["table_not_found"]
    torn = History().then(Append(1)).store()
    torn.put(f"_delta_log/{1:020d}.json", b'{"add"')
    assert codes(torn) == ["corrupt_log"]
    unknown = History().then(Append(1), Upgrade(reader=("teleport",), writer=("teleport",)))
    assert "unsupported_feature" in codes(unknown.store())
    stray = History().then(SetProperties((("delta.redirectReaderWriter-preview", "x"),)))
    assert "property_without_feature" in codes(stray.store())


def test_the_state_of_a_redirect_is_told() -> None:
    root = f"memory://{uuid.uuid4().hex}"
    History().then(Append(1)).write(open_store(f"{root}/a"), with_data=True)
    with Redirects() as redirects:
        redirects.freeze(f"{root}/a")
        frozen = survey_table(open_store(f"{root}/a"))
        assert (frozen.redirect_state, frozen.redirect_target) == (FROZEN, None)
        redirects.thaw(f"{root}/a")
        redirects.enable(f"{root}/a", f"{root}/b")
        moved = survey_table(open_store(f"{root}/a"))
        assert (moved.redirect_state, moved.redirect_target) == ("READY", f"{root}/b")
        redirects.disable(f"{root}/a")
        back = survey_table(open_store(f"{root}/a"))
        assert (back.redirect_state, back.redirect_target) == (None, None)
