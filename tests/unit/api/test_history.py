from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from typing import Any

import pytest

from lakeferry.api.history import HISTORY, Commit, History, commit_of
from lakeferry.errors import PackageMissing
from lakeferry.log.actions import CommitInfo
from lakeferry.table.delta_log import Revision

EVIL = "<script>alert(1)</script>"


def commit(version: int, **values: Any) -> Commit:
    return commit_of(Revision(version, 1_700_000_000_000, CommitInfo(values=values)))


def test_a_history_is_the_list_of_its_commits() -> None:
    commits = [commit(2), commit(1), commit(0)]
    history = History(commits)
    assert history == commits
    assert history[0].version == 2
    assert isinstance(history[:2], History)
    assert [each.version for each in history[1:]] == [1, 0]


def test_a_notebook_shows_the_newest_commits_and_their_number() -> None:
    history = History(commit(version, operation=EVIL) for version in range(99_999, -1, -1))
    shown = history._repr_html_()
    assert "<script" not in shown
    assert "History of 100,000 commits" in shown
    assert shown.count("<tr>") == 21
    assert ">99999<" in shown
    assert len(shown) < 10_000
    assert repr(history).splitlines()[0] == "History of 100,000 commits"
    assert len(repr(history)) < 4_000
    assert repr(History()) == "History of 0 commits"


def test_a_history_becomes_an_arrow_table() -> None:
    odd = commit(1, operationParameters=["a", 1], userMetadata={"a": [1]}, isBlindAppend=True)
    usual = commit(
        2,
        operation="WRITE",
        operationParameters={"mode": "Append", "partitionBy": ["a"]},
        operationMetrics={"numFiles": 3},
        readVersion=1,
    )
    table = History([usual, odd, commit(0)]).to_arrow()
    assert table.schema == HISTORY
    first, second, last = table.to_pylist()
    assert first["operation_parameters"] == [("mode", "Append"), ("partitionBy", '["a"]')]
    assert first["operation_metrics"] == [("numFiles", "3")]
    assert first["timestamp"] == datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)
    assert first["read_version"] == 1
    assert second["operation_parameters"] == [("", '["a",1]')]
    assert json.loads(second["user_metadata"]) == {"a": [1]}
    assert last["operation_metrics"] is None
    frame = History([usual]).to_polars()
    assert frame["operation"].to_list() == ["WRITE"]


def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(PackageMissing, match="pandas"):
        History().to_pandas()
