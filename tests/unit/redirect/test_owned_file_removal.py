"""What is deleted when a move ends."""

from __future__ import annotations

import json

import pytest

from lakeferry.errors import StorageUnavailable
from lakeferry.redirect.owned_file_removal import FileRemoval
from tests.support.clock import ManualClock
from tests.support.stores import DictStore

OPENING = "_delta_log/00000000000000000001.json"


class _WithUploads(DictStore):
    """Notes until when uploads are dropped."""

    before_ms: int | None = None
    refuses = False

    def drop_parts(self, before_ms: int) -> int:
        if self.refuses:
            raise StorageUnavailable("uploads can't be listed")
        self.before_ms = before_ms
        return 0


def opened(made_ms: int | None, modified_ms: int) -> _WithUploads:
    """A target whose opening commit says when it was made."""
    info = {} if made_ms is None else {"inCommitTimestamp": made_ms}
    commit = json.dumps({"commitInfo": info}).encode()
    return _WithUploads({OPENING: commit}, clock=ManualClock(modified_ms))


@pytest.mark.parametrize("made_ms", [None, 5_000, 20_000])
def test_uploads_that_were_begun_after_the_opening_stay(made_ms: int | None) -> None:
    # A managed table's commit is copied to its name when it is published.
    store = opened(made_ms, modified_ms=10_000)
    FileRemoval().sweep(store, OPENING)
    assert store.before_ms == min(made_ms or 10_000, 10_000)


def test_uploads_stay_where_nobody_may_list_them() -> None:
    store = opened(None, 10_000)
    store.refuses = True
    FileRemoval().sweep(store, OPENING)
    assert store.before_ms is None


def test_a_target_without_its_opening_commit_keeps_its_uploads() -> None:
    store = _WithUploads()
    FileRemoval().sweep(store, OPENING)
    assert store.before_ms is None
