"""Which protocols the newest versions have, from the newest commits alone."""

from __future__ import annotations

import json
import uuid

import pytest

from lakeferry.log import paths
from lakeferry.log.actions import Protocol
from lakeferry.storage import Store, open_store
from lakeferry.table import DeltaLog
from lakeferry.table.recent_protocols import recent_protocols
from tests.support.history import Append, History, Upgrade

NOW = Protocol(1, 2)


@pytest.fixture
def store() -> Store:
    return open_store(f"memory://{uuid.uuid4().hex}")


def spans(store: Store, commits: int = 100) -> list[tuple[int, int, tuple[int, int] | None]]:
    log = DeltaLog(store).keeping_reads()
    newest = log.newest()
    found = recent_protocols(log, newest, newest.state().protocol, commits)
    return [
        (
            first,
            last,
            None if each is None else (each.min_reader_version, each.min_writer_version),
        )
        for first, last, each in found
    ]


def commit(store: Store, version: int, *actions: dict[str, object]) -> None:
    text = "".join(f"{json.dumps(action)}\n" for action in actions)
    store.put(paths.commit(version), text.encode())


def protocol(reader: int, writer: int) -> dict[str, object]:
    return {"protocol": {"minReaderVersion": reader, "minWriterVersion": writer}}


def info(text: str = "WRITE") -> dict[str, object]:
    return {"commitInfo": {"timestamp": 1, "operation": text}}


METADATA: dict[str, object] = {
    "metaData": {
        "id": "t",
        "format": {"provider": "parquet", "options": {}},
        "schemaString": '{"type":"struct","fields":[]}',
        "partitionColumns": [],
        "configuration": {},
    }
}


def test_each_change_begins_a_span(store: Store) -> None:
    commit(store, 0, info(), METADATA, protocol(1, 1))
    for version in (1, 3, 4):
        commit(store, version, info())
    commit(store, 2, info(), protocol(1, 2))
    commit(store, 5, info(), protocol(1, 4))
    assert spans(store) == [(0, 1, (1, 1)), (2, 4, (1, 2)), (5, 5, (1, 4))]


def test_only_the_newest_commits_are_read(store: Store) -> None:
    commit(store, 0, info(), METADATA, protocol(1, 2))
    for version in range(1, 9):
        commit(store, version, info())
    assert spans(store, 4) == [(5, 8, (1, 2))]


def test_what_was_before_the_oldest_change_is_unknown(store: Store) -> None:
    commit(store, 0, info(), METADATA, protocol(1, 1))
    for version in (1, 2, 3, 5):
        commit(store, version, info())
    commit(store, 4, info(), protocol(1, 4))
    assert spans(store, 4) == [(2, 3, None), (4, 5, (1, 4))]


def test_a_word_in_a_commit_info_is_no_protocol(store: Store) -> None:
    commit(store, 0, info(), METADATA, protocol(1, 2))
    commit(store, 1, info('say "protocol"'))
    assert spans(store) == [(0, 1, (1, 2))]


def test_a_history_of_ours(store: Store) -> None:
    History().then(Append(1), Upgrade(), Append(1)).write(store)
    found = spans(store)
    assert found[-1][1] == 3
    assert len(found) >= 1
