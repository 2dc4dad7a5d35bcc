"""What is deleted when a move ends."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from lakeferry.errors import StorageUnavailable
from lakeferry.redirect.enable.target_claim import Claim, replace_claim
from lakeferry.redirect.entry import Data
from lakeferry.redirect.owned_file_removal import FileRemoval, files_referred_to
from lakeferry.table import DeltaLog
from tests.support.clock import ManualClock
from tests.support.history import Append, History
from tests.support.stores import DictStore

OPENING = "_delta_log/00000000000000000001.json"
CLAIMED_MS, OPENED_MS = 5_000, 10_000
CLAIM = Claim("m", "memory://dict/old", "t", Data.COPY)


class _WithUploads(DictStore):
    """A target with unfinished uploads: when each was begun, by its name."""

    def __init__(self) -> None:
        super().__init__(clock=ManualClock(CLAIMED_MS))
        self.uploads: dict[str, int] = {}
        self.refuses = False

    def drop_parts(self, is_ours: Callable[[str, int], bool]) -> int:
        if self.refuses:
            raise StorageUnavailable("uploads can't be listed")
        ours = [path for path, begun_ms in self.uploads.items() if is_ours(path, begun_ms)]
        for path in ours:
            del self.uploads[path]
        return len(ours)


@pytest.fixture
def source() -> DeltaLog:
    return DeltaLog(DictStore(History().then(Append(2)).objects("memory://dict/old")))


@pytest.fixture
def copied(source: DeltaLog) -> str:
    """The name of a data file that the move copies."""
    name: str = files_referred_to(source)[0].as_py()
    return name


def claimed() -> _WithUploads:
    store = _WithUploads()
    replace_claim(store, CLAIM)
    return store


def opened(made_ms: int | None = None) -> _WithUploads:
    """A target whose opening commit may say when it was made."""
    store = claimed()
    store.clock.advance(OPENED_MS - CLAIMED_MS)  # type: ignore[attr-defined]
    # A process that resumes the move claims the place again.
    replace_claim(store, CLAIM)
    info = {} if made_ms is None else {"inCommitTimestamp": made_ms}
    store.put(OPENING, json.dumps({"commitInfo": info}).encode())
    return store


@pytest.mark.parametrize("made_ms", [None, 7_000, 20_000])
def test_an_upload_of_the_move_goes(source: DeltaLog, copied: str, made_ms: int | None) -> None:
    # A managed table's commit is copied to its name when it is published.
    ends_ms = min(made_ms or OPENED_MS, OPENED_MS)
    for begun_ms, goes in ((4_999, False), (5_000, True), (ends_ms, True), (11_000, False)):
        store = opened(made_ms)
        store.uploads[copied] = begun_ms
        FileRemoval().drop_uploads(source, store, OPENING)
        assert (not store.uploads) is goes, begun_ms


def test_an_upload_of_a_log_file_goes(source: DeltaLog) -> None:
    store = claimed()
    names = ["_delta_log/_lakeferry/m/staged-00000000000000000000.json"]
    names.append("_delta_log/00000000000000000000.json")
    store.uploads = dict.fromkeys(names, CLAIMED_MS)
    FileRemoval().drop_uploads(source, store, None)
    assert not store.uploads


@pytest.mark.parametrize("opening", [OPENING, None])
@pytest.mark.parametrize("name", ["notes.txt", "part-9.parquet", "_delta_log/07.json", "_x/y"])
def test_an_upload_of_another_writer_stays(
    source: DeltaLog, opening: str | None, name: str
) -> None:
    store = opened()
    store.uploads[name] = CLAIMED_MS + 1
    FileRemoval().drop_uploads(source, store, opening)
    assert store.uploads


def test_uploads_stay_where_nobody_may_list_them(source: DeltaLog, copied: str) -> None:
    store = opened()
    store.uploads[copied] = CLAIMED_MS
    store.refuses = True
    FileRemoval().drop_uploads(source, store, OPENING)
    assert store.uploads


def test_a_target_without_its_opening_commit_keeps_its_uploads(
    source: DeltaLog, copied: str
) -> None:
    store = claimed()
    store.uploads[copied] = CLAIMED_MS
    FileRemoval().drop_uploads(source, store, OPENING)
    assert store.uploads


def test_a_place_without_a_claim_keeps_its_uploads(source: DeltaLog, copied: str) -> None:
    store = _WithUploads()
    store.uploads[copied] = CLAIMED_MS
    FileRemoval().drop_uploads(source, store, None)
    assert store.uploads
