"""A table becomes a managed one: on our Unity server, and on the real one at ``LAKEFERRY_UC_URL``.

The real server has to see the same local disk.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pytest

import lakeferry
from lakeferry.api.move_list import Mover, move_all
from lakeferry.api.move_list_file import Wanted
from lakeferry.api.redirects import Redirects
from lakeferry.errors import (
    InvalidInput,
    LakeferryError,
    RedirectTargetNotEmpty,
)
from lakeferry.log import file_actions
from lakeferry.log.commit import Transaction
from lakeferry.log.conflicts import Conflict
from lakeferry.log.features import REDIRECT_FEATURES
from lakeferry.redirect.enable import enabling_commit, managed_move
from lakeferry.redirect.move import Move
from lakeferry.redirect.states import RedirectState
from lakeferry.storage import normalise, open_store
from lakeferry.table import DeltaLog
from tests.support.history import History
from tests.support.moved_table import CUT, LONG
from tests.support.unity_server import UnityServer

pytestmark = pytest.mark.usefixtures("unity_here")


def make(past: History, folder: Path) -> str:
    """Make a table on local disk; return its URI."""
    uri = normalise(str(folder))
    past.write(open_store(uri), with_data=True)
    return uri


def rows(table: str, version: int) -> list[dict[str, Any]]:
    """Return the rows of a version, in an order of their own."""
    found = lakeferry.open(table, version=version).to_table()
    return sorted(found.to_pylist(), key=repr)


def readable(table: str) -> dict[int, list[dict[str, Any]]]:
    """Return every version that can be read."""
    newest = lakeferry.Table(table).snapshot().version
    found = {}
    for version in range(newest + 1):
        try:
            found[version] = rows(table, version)
        except LakeferryError:
            continue
    return found


def listed(unity: UnityServer) -> list[str]:
    """Return the names of all tables in the schema of the test."""
    catalog, schema = unity.schema.split(".")
    status, reply = unity.call("GET", f"/tables?catalog_name={catalog}&schema_name={schema}")
    assert status == 200
    return [table["name"] for table in reply.get("tables") or ()]


@dataclass
class Writer:
    """Appends until a redirect or a lock is there; ``committed`` are its versions."""

    log: DeltaLog
    began: threading.Event = field(default_factory=threading.Event)
    committed: list[int] = field(default_factory=list)

    def run(self) -> None:
        """Append copies of a file that the table has."""
        log = self.log
        first = log.snapshot().files.slice(0, 1).to_pylist()[0]
        data = log.store.get(unquote(first["path"]))
        while True:
            state = log.state()
            if state.protocol.features & REDIRECT_FEATURES:
                return
            name = f"{uuid.uuid4()}.parquet"
            log.store.put(name, data)
            row = {**first, "path": name, "deletionVector": None, "dataChange": True}
            adds = pa.Table.from_pylist([row], schema=file_actions.ADD)
            write = Transaction("WRITE", str(uuid.uuid4()), adds=adds, new_names=True)
            result = log.commit(write, state)
            if isinstance(result, Conflict):
                return
            self.committed.append(result.version)
            self.began.set()


@contextmanager
def writing(log: DeltaLog) -> Iterator[Writer]:
    """Let somebody append meanwhile."""
    writer = Writer(log)
    thread = threading.Thread(target=writer.run)
    thread.start()
    assert writer.began.wait(30)
    yield writer
    thread.join(60)
    assert not thread.is_alive()


@pytest.mark.parametrize("past", [LONG, CUT], ids=["twelve versions", "a log that was cut"])
def test_a_table_becomes_managed_while_a_writer_appends(
    unity: UnityServer, tmp_path: Path, past: History
) -> None:
    source = make(past, tmp_path / "orders")
    name = f"unity:{unity.schema}.orders"
    before = readable(source)
    assert before
    warnings: list[str] = []
    with Redirects(warn=warnings.append) as redirects:
        with writing(DeltaLog(open_store(source))) as writer:
            outcome = redirects.enable(source, name, managed=True)
        assert outcome.state is RedirectState.READY
        found = redirects.status(source)
    assert (found.name, found.source_version, found.warnings) == (name, found.target_version, ())
    assert writer.committed
    assert listed(unity) == ["orders"]
    last = max(writer.committed)
    for table in (name, source):
        for version, expected in before.items():
            assert rows(table, version) == expected
        assert rows(table, last) == rows(table, outcome.version or 0)
        assert set(readable(table)) == set(range(min(before), last + 3))
    managed = lakeferry.Table(name)
    assert "catalogManaged" in managed.snapshot().protocol.features
    # A plain reader of the source, which follows nothing, finds the same history.
    assert {v: rows_of_path(source, v) for v in before} == before


def rows_of_path(uri: str, version: int) -> list[dict[str, Any]]:
    found = lakeferry.open(uri, version=version, follow=False).to_table()
    return sorted(found.to_pylist(), key=repr)


def test_a_move_to_a_managed_table_is_rehearsed_and_refused(
    unity: UnityServer, tmp_path: Path
) -> None:
    source = make(CUT, tmp_path / "orders")
    name = f"unity:{unity.schema}.orders"
    warnings: list[str] = []
    with Redirects(warn=warnings.append) as redirects:
        with pytest.raises(InvalidInput, match="--location"):
            redirects.enable(source, name, managed=True, location=str(tmp_path / "new"))
        with pytest.raises(InvalidInput, match="managed"):
            redirects.enable(source, "sql:a.b.c", managed=True)
        plan = redirects.plan_enable(source, name, managed=True)
        assert listed(unity) == []
        redirects.enable(source, name, managed=True)
        assert redirects.status(source).state is RedirectState.READY
    assert [step["op"] for step in plan] == [
        *("stage", "claim", "copy_data", "copy_log", "create", "commit", "commit", "publish"),
        *("commit", "rename", "commit", "checkpoint", "checkpoint"),
    ]


def test_a_name_that_is_taken_meanwhile_is_replaced_by_another_one(
    unity: UnityServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (make(CUT, tmp_path / each) for each in ("first", "second"))
    name, other = (f"unity:{unity.schema}.{each}" for each in ("orders", "others"))
    with Redirects() as redirects:
        # The second move gets the name while the first one is about to be decided.
        real = enabling_commit.commit_enabling

        def late(*given: Any) -> Move:
            monkeypatch.setattr(enabling_commit, "commit_enabling", real)
            moved = real(*given)
            redirects.enable(second, name, managed=True)
            return moved

        monkeypatch.setattr(enabling_commit, "commit_enabling", late)
        with pytest.raises(RedirectTargetNotEmpty, match="is taken"):
            redirects.enable(first, name, managed=True)
        assert redirects.status(first).state is RedirectState.ENABLING
        assert redirects.resume(first, name=other).state is RedirectState.READY
        assert redirects.status(first).name == other
    assert sorted(listed(unity)) == ["orders", "others"]


def test_a_copy_of_a_managed_table_leads_to_it(unity: UnityServer, tmp_path: Path) -> None:
    first, second = (make(CUT, tmp_path / each) for each in ("first", "second"))
    name = f"unity:{unity.schema}.orders"
    newest = max(readable(first))
    with Redirects() as redirects:
        redirects.enable(first, name, managed=True)
        assert redirects.enable(second, name, to_existing=True).state is RedirectState.READY
        assert redirects.status(second).name == name
        assert rows(second, newest) == rows(name, newest)
        unity.rename(name.removeprefix("unity:"), "renamed")
        assert rows(second, newest) == rows(first, newest)
        assert redirects.disable(second).state is RedirectState.NORMAL
    assert listed(unity) == ["renamed"]


def test_a_cancelled_move_leaves_no_table(
    unity: UnityServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = make(CUT, tmp_path / "orders")
    before = readable(source)
    name = f"unity:{unity.schema}.orders"
    with Redirects() as redirects:
        monkeypatch.setattr(managed_move, "check_name", interrupt)
        with pytest.raises(KeyboardInterrupt):
            redirects.enable(source, name, managed=True)
        assert redirects.status(source).state is RedirectState.ENABLING
        (private,) = listed(unity)
        assert private.startswith("_lakeferry_")
        assert redirects.cancel(source).state is RedirectState.NORMAL
        assert listed(unity) == []
        monkeypatch.undo()
    assert {version: rows_of_path(source, version) for version in before} == before


def test_a_list_goes_on_with_a_move_that_was_broken_off_while_writers_wait(
    unity: UnityServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = []
    with monkeypatch.context() as patch, Redirects() as redirects:
        patch.setattr(managed_move, "check_name", interrupt)
        for title in ("same", "renamed", "external"):
            source, name = make(CUT, tmp_path / title), f"unity:{unity.schema}.{title}"
            with pytest.raises(KeyboardInterrupt):
                redirects.enable(source, name, managed=True)
            wanted.append(Wanted(0, source, name, {"managed": True}))
    same, renamed, external = wanted
    moves = (
        same,
        Wanted(0, renamed.source, f"unity:{unity.schema}.other", {"managed": True}),
        Wanted(0, external.source, external.target, {"location": str(tmp_path / "new")}),
    )
    with Mover() as mover, Redirects() as redirects:
        planned = [step["state"] for step in mover.plan(same) if "state" in step]
        assert planned[-1] == "READY"
        ended = [move.error and move.error["code"] for move in move_all(mover, moves).moves]
        assert ended == [None, "redirect_in_progress", "redirect_in_progress"]
        states = [redirects.status(each.source).state for each in wanted]
        assert states == [RedirectState.READY, *[RedirectState.ENABLING] * 2]
        for each in (renamed, external):
            redirects.cancel(each.source)
    assert listed(unity) == ["same"]


def interrupt(*_: object) -> None:
    """Stop like Ctrl-C."""
    raise KeyboardInterrupt
