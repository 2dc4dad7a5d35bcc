"""A managed table comes back: from our Unity server, and from the real one at ``LAKEFERRY_UC_URL``.

The real server has to see the same local disk.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

import lakeferry
from lakeferry.api.redirects import Redirects
from lakeferry.catalogs.places import Places
from lakeferry.errors import Forbidden, RedirectTargetMissing
from lakeferry.log import actions
from lakeferry.log.commit import Transaction
from lakeferry.log.conflicts import Conflict
from lakeferry.log.features import REDIRECT_FEATURES
from lakeferry.redirect.disable import bring_back
from lakeferry.redirect.states import RedirectState
from lakeferry.storage.uris import split
from lakeferry.table import DeltaLog
from lakeferry.table.managed import ManagedStore
from tests.scenario.test_managed_move import (
    interrupt,
    listed,
    make,
    readable,
    rows,
    rows_of_path,
    writing,
)
from tests.support.history import History
from tests.support.moved_table import CUT, LONG
from tests.support.unity_server import UnityServer

pytestmark = pytest.mark.usefixtures("unity_here")


def by_name(name: str) -> DeltaLog:
    """Return the log of a managed table."""
    places = Places()
    return DeltaLog(places.open(places.locate(name)))


def change(name: str) -> None:
    """Set a property and a comment by the name."""
    log = by_name(name)
    state = log.state()
    configuration = {**state.metadata.configuration, "team": "eu"}
    metadata = actions.changed(
        state.metadata, configuration=configuration, description="since it is managed"
    )
    result = log.commit(Transaction("SET", str(uuid.uuid4()), metadata=metadata), state)
    assert not isinstance(result, Conflict)


@pytest.mark.parametrize("past", [LONG, CUT], ids=["twelve versions", "a log that was cut"])
def test_a_managed_table_comes_back_while_a_writer_appends_by_its_name(
    unity: UnityServer, tmp_path: Path, past: History
) -> None:
    source = make(past, tmp_path / "orders")
    name = f"unity:{unity.schema}.orders"
    before = readable(source)
    with Redirects() as redirects:
        redirects.enable(source, name, managed=True)
        change(name)
        with writing(by_name(name)) as writer:
            outcome = redirects.disable(source)
        found = redirects.status(source)
        assert not redirects.disable(source).changed
        there = readable(name)
        locked = by_name(name).state()
        assert locked.protocol.features & REDIRECT_FEATURES
        assert (found.state, found.warnings) == (RedirectState.NORMAL, ())
        assert outcome.version == locked.version + 1
        now = {version: rows_of_path(source, version) for version in before.keys() | there.keys()}
        assert now == there
        assert before.items() <= now.items()
        assert set(writer.committed) <= now.keys()
        state = lakeferry.Table(source).snapshot()
        assert "catalogManaged" not in state.protocol.features
        assert "v2Checkpoint" not in state.protocol.features
        assert state.metadata.configuration["team"] == "eu"
        assert state.metadata.description == "since it is managed"
        assert "io.unitycatalog.tableId" not in state.metadata.configuration
        assert redirects.disable(source, remove_target=True).changed
    assert listed(unity) == []
    assert rows(source, locked.version + 1) == there[locked.version]


def test_a_table_that_was_renamed_comes_back_after_an_interruption(
    unity: UnityServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = make(CUT, tmp_path / "orders")
    name, other = (f"unity:{unity.schema}.{each}" for each in ("orders", "others"))
    with Redirects() as redirects:
        redirects.enable(source, name, managed=True)
        change(name)
        unity.rename(name.removeprefix("unity:"), "others")
        there = readable(other)
        with monkeypatch.context() as patch:
            patch.setattr(bring_back, "bring_changes", interrupt)
            with pytest.raises(KeyboardInterrupt):
                redirects.disable(source)
        found = redirects.status(source)
        assert (found.state, found.name) == (RedirectState.READY, other)
        assert "is closed, and the redirect to it is still there" in found.warnings[0]
        plan = redirects.disable(source, dry_run=True)
        assert "add_features" in [step["op"] for step in plan]
        assert redirects.resume(source).state is RedirectState.NORMAL
        assert listed(unity) == ["others"]
        assert redirects.disable(source, remove_target=True).changed
    assert listed(unity) == []
    assert {version: rows_of_path(source, version) for version in there} == there


def test_commits_that_are_not_published_come_back_too(
    unity: UnityServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = make(CUT, tmp_path / "orders")
    name = f"unity:{unity.schema}.orders"
    with Redirects() as redirects:
        redirects.enable(source, name, managed=True)
        with monkeypatch.context() as patch:
            patch.setattr(ManagedStore, "_publish_ours", lambda *_: None)
            change(name)
            assert len(by_name(name).store.refresh().unpublished) == 1  # type: ignore[attr-defined]
            there = readable(name)
            redirects.disable(source)
        redirects.disable(source)
        assert by_name(name).store.refresh().unpublished == ()  # type: ignore[attr-defined]
    assert {version: rows_of_path(source, version) for version in there} == there
    assert lakeferry.Table(source).snapshot().metadata.configuration["team"] == "eu"


@pytest.mark.parametrize("stay", [False, True], ids=["without its files", "its files stay"])
def test_a_table_that_was_dropped_is_refused(
    unity: UnityServer, tmp_path: Path, stay: bool
) -> None:
    """In an object store the files stay, and an open server still says where they are."""
    source = make(CUT, tmp_path / "orders")
    name = f"unity:{unity.schema}.orders"
    with Redirects() as redirects:
        redirects.enable(source, name, managed=True)
        if unity.server is not None:
            unity.server.shows_dropped = stay
        there = split(lakeferry.Table(name).uri)
        assert lakeferry.open(source).count_rows() > 0
        if there.scheme == "file":
            shutil.copytree(f"/{there.path}", tmp_path / "kept")
        catalog, schema = unity.schema.split(".")
        path = f"/delta/v1/catalogs/{catalog}/schemas/{schema}/tables/orders"
        assert unity.call("DELETE", path)[0] == 204
        if there.scheme == "file" and stay:
            shutil.copytree(tmp_path / "kept", f"/{there.path}")
        # With authorization, the server says of any table that is gone that we may not see it.
        attempts: tuple[Callable[[], object], ...] = (
            lambda: redirects.disable(source),
            lambda: redirects.disable(source, remove_target=True),
            lambda: lakeferry.open(source),
            lambda: lakeferry.Table(source).history(),
        )
        for attempt in attempts:
            with pytest.raises((RedirectTargetMissing, Forbidden)) as refused:
                attempt()
            assert "--abandon-target" in (refused.value.remedy or "")
        assert "--abandon-target" in redirects.status(source).warnings[0]
        assert redirects.disable(source, abandon_target=True).abandoned
    assert lakeferry.Table(source).snapshot().version > 0
