"""Moves to a managed table that can't be: each is refused by name, or goes on when that is mended.

The source is as it was, and nothing is left in the catalog.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import lakeferry
from lakeferry.api.redirects import Redirects
from lakeferry.catalogs import unity_managed_tables
from lakeferry.errors import (
    CatalogManaged,
    Forbidden,
    InvalidInput,
    LakeferryError,
    RedirectIllegalTransition,
    Unauthorized,
    UnsupportedFeature,
)
from lakeferry.redirect.enable import managed_move
from lakeferry.redirect.states import RedirectState
from lakeferry.storage import normalise, open_store
from tests.support.history import Append, History, Layout, SetProperties
from tests.support.moved_table import moved_table
from tests.support.unity_server import OurServer, UnityServer

PAST = History(Layout(column_mapping="name")).then(
    Append(2), SetProperties((("delta.appendOnly", "true"),))
)


@pytest.fixture(autouse=True)
def server(unity: UnityServer, monkeypatch: pytest.MonkeyPatch) -> OurServer:
    """Our server, which this process hasn't tried yet."""
    monkeypatch.setattr(unity_managed_tables, "_taken", {})
    unity.name_in(monkeypatch)
    return unity.ours


@pytest.fixture
def source(tmp_path: Path) -> str:
    """The table that moves."""
    return make(tmp_path / "orders", PAST)


def make(folder: Path, past: History) -> str:
    uri = normalise(str(folder))
    past.write(open_store(uri), with_data=True)
    return uri


def files(folder: Path) -> dict[str, bytes]:
    """Return all files below a folder."""
    found = (each for each in folder.rglob("*") if each.is_file())
    return {str(each.relative_to(folder)): each.read_bytes() for each in found}


def names(unity: UnityServer) -> list[str]:
    """Return the names of all tables in the schema."""
    unity.ours.privileges |= {"USE CATALOG", "USE SCHEMA", "OWNER"}
    catalog, schema = unity.schema.split(".")
    _, reply = unity.call("GET", f"/tables?catalog_name={catalog}&schema_name={schema}")
    return [table["name"] for table in reply["tables"]]


def refused(
    unity: UnityServer, source: str, folder: Path, *, dry_run: bool = True
) -> LakeferryError:
    """Return why a move is refused before anything has changed; a dry run says the same."""
    name, before = f"unity:{unity.schema}.orders", files(folder)
    errors = []
    with Redirects() as redirects:
        for move in (redirects.plan_enable, redirects.enable) if dry_run else (redirects.enable,):
            with pytest.raises(LakeferryError) as why:
                move(source, name, managed=True)
            errors.append(why.value)
        assert redirects.status(source).state is RedirectState.NORMAL
    assert len({each.code for each in errors}) == 1
    assert files(folder) == before
    return errors[-1]


@pytest.mark.parametrize("lacking", ["USE CATALOG", "USE SCHEMA", "CREATE TABLE"])
def test_the_privilege_that_is_missing_is_named(
    unity: UnityServer, server: OurServer, source: str, tmp_path: Path, lacking: str
) -> None:
    server.privileges.discard(lacking)
    # Only the server can tell by a refusal that a table can't be created: a dry run creates none.
    why = refused(unity, source, tmp_path, dry_run=lacking == "USE CATALOG")
    assert isinstance(why, Forbidden)
    place = unity.schema if lacking != "USE CATALOG" else unity.schema.split(".")[0]
    assert why.remedy == (f"ask the catalog's administrator to grant you {lacking} on {place}")
    assert names(unity) == []


def test_a_server_without_the_api_is_refused(
    unity: UnityServer, server: OurServer, source: str, tmp_path: Path
) -> None:
    server.without_delta = True
    why = refused(unity, source, tmp_path)
    assert isinstance(why, CatalogManaged)
    assert "external table" in (why.remedy or "")


@pytest.mark.parametrize("what", ["delta.appendOnly", "columnMapping"])
def test_what_the_catalog_forbids_is_refused_before_anything_is_copied(
    unity: UnityServer, server: OurServer, source: str, tmp_path: Path, what: str
) -> None:
    with Redirects() as redirects:
        # That the server takes one table says nothing of another one.
        other = make(tmp_path / "other", History().then(Append(1)))
        redirects.enable(other, f"unity:{unity.schema}.other", managed=True)
    server.restricted.add(what)
    why = refused(unity, source, tmp_path, dry_run=False)
    assert isinstance(why, InvalidInput)
    assert what in (why.cause or "")
    assert "leave out --managed" in (why.remedy or "")
    assert names(unity) == ["other"]


@pytest.mark.parametrize(
    ("setting", "words"),
    [("without_managed", "server.managed-table.enabled"), ("storage_root", "storage-root.tables")],
)
def test_a_server_that_is_not_set_up_for_managed_tables_is_refused(
    unity: UnityServer,
    server: OurServer,
    source: str,
    tmp_path: Path,
    setting: str,
    words: str,
) -> None:
    setattr(server, setting, True if setting == "without_managed" else None)
    # A dry run allocates no place, so it doesn't find out.
    why = refused(unity, source, tmp_path, dry_run=False)
    assert isinstance(why, CatalogManaged)
    assert words in (why.cause or "")
    assert "leave out --managed" in (why.remedy or "")
    assert names(unity) == []


def test_managed_tables_that_are_switched_off_later_are_read_and_not_changed(
    unity: UnityServer, server: OurServer, tmp_path: Path
) -> None:
    moved = moved_table(unity, tmp_path / "orders", PAST)
    before = lakeferry.open(moved.source).count_rows()
    server.without_managed = True
    with Redirects() as redirects:
        attempts: dict[str, Callable[[], object]] = {
            "publish": lambda: lakeferry.Table(moved.name).publish(),
            "freeze": lambda: redirects.freeze(moved.name),
            "disable": lambda: redirects.disable(moved.source),
        }
        for command, attempt in attempts.items():
            with pytest.raises((InvalidInput, CatalogManaged)) as why:
                attempt()
            assert "server.managed-table.enabled" in str(why.value), command
            assert "administrator" in (why.value.remedy or ""), command
        assert lakeferry.open(moved.source).count_rows() == before
        server.without_managed = False
        assert redirects.disable(moved.source).state is RedirectState.NORMAL


def test_a_server_that_takes_no_history_is_refused(
    unity: UnityServer, server: OurServer, source: str, tmp_path: Path
) -> None:
    server.begins_at_1 = True
    why = refused(unity, source, tmp_path, dry_run=False)
    assert isinstance(why, CatalogManaged)
    assert "must be 1" in (why.cause or "")
    assert names(unity) == []


def test_a_table_in_two_formats_is_refused(unity: UnityServer, tmp_path: Path) -> None:
    formats = SetProperties((("delta.universalFormat.enabledFormats", "iceberg"),))
    source = make(tmp_path / "orders", History().then(Append(1), formats))
    assert isinstance(refused(unity, source, tmp_path), UnsupportedFeature)
    assert names(unity) == []


def test_a_first_commit_that_is_refused_undoes_the_move(
    unity: UnityServer, server: OurServer, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before(monkeypatch, "check_name", lambda: setattr(server, "begins_at_1", True))
    with Redirects() as redirects:
        with pytest.raises(InvalidInput, match="doesn't accept") as why:
            redirects.enable(source, f"unity:{unity.schema}.orders", managed=True)
        assert "the move was undone" in (why.value.cause or "")
        assert redirects.status(source).state is RedirectState.NORMAL
        assert names(unity) == []
        server.begins_at_1 = False
        done = redirects.enable(source, f"unity:{unity.schema}.orders", managed=True)
    assert done.state is RedirectState.READY


@pytest.mark.parametrize("moment", ["create_table", "check_name", "give_final_name"])
def test_a_token_that_expires_is_replaced_and_the_move_goes_on(
    unity: UnityServer,
    server: OurServer,
    source: str,
    monkeypatch: pytest.MonkeyPatch,
    moment: str,
) -> None:
    before(monkeypatch, moment, lambda: setattr(server, "token", "renewed"))
    with Redirects() as redirects:
        with pytest.raises(Unauthorized) as why:
            redirects.enable(source, f"unity:{unity.schema}.orders", managed=True)
        assert "UC_TOKEN" in (why.value.remedy or "")
    monkeypatch.setenv("UC_TOKEN", "renewed")
    with Redirects() as redirects:
        assert redirects.resume(source).state is RedirectState.READY


def test_a_privilege_that_is_taken_away_is_named_and_the_move_goes_on(
    unity: UnityServer, server: OurServer, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before(monkeypatch, "give_final_name", lambda: server.privileges.discard("CREATE TABLE"))
    with Redirects() as redirects:
        with pytest.raises(Forbidden, match="rename") as why:
            redirects.enable(source, f"unity:{unity.schema}.orders", managed=True)
        assert why.value.remedy == (
            f"ask the catalog's administrator to grant you CREATE TABLE on {unity.schema}"
        )
        assert redirects.status(source).state is RedirectState.ENABLING
        server.privileges.add("CREATE TABLE")
        assert redirects.resume(source).state is RedirectState.READY


def test_another_user_does_not_go_on(
    unity: UnityServer, server: OurServer, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before(monkeypatch, "check_name", interrupt)
    with Redirects() as redirects:
        with pytest.raises(KeyboardInterrupt):
            redirects.enable(source, f"unity:{unity.schema}.orders", managed=True)
        monkeypatch.undo()
        unity.name_in(monkeypatch)
        server.user = server.delta.principal = "bob@example.com"
        for attempt in (redirects.resume, redirects.cancel):
            with pytest.raises(Forbidden, match="started by ann") as why:
                attempt(source)
            assert "ann@example.com" in (why.value.remedy or "")
        server.user = server.delta.principal = "ann@example.com"
        assert redirects.resume(source).state is RedirectState.READY


def test_the_source_of_a_move_whose_user_is_gone_is_taken_back_by_another_one(
    unity: UnityServer, server: OurServer, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = lakeferry.open(source).count_rows()
    before(monkeypatch, "check_name", interrupt)
    with Redirects() as redirects:
        with pytest.raises(KeyboardInterrupt):
            redirects.enable(source, f"unity:{unity.schema}.orders", managed=True)
        server.user = server.delta.principal = "bob@example.com"
        with pytest.raises(Forbidden) as why:
            redirects.cancel(source)
        assert "--leave-copies" in (why.value.remedy or "")
        assert redirects.status(source).state is RedirectState.ENABLING
    warnings: list[str] = []
    with Redirects(warn=warnings.append) as redirects:
        assert redirects.cancel(source, leave_copies=True).state is RedirectState.NORMAL
    assert any("catalog remove unity:" in each for each in warnings)
    assert lakeferry.open(source).count_rows() == rows
    # Who began it doesn't go on with what was taken back.
    server.user = server.delta.principal = "ann@example.com"
    with Redirects() as redirects:
        with pytest.raises(RedirectIllegalTransition):
            redirects.resume(source)
        name = f"unity:{unity.schema}.orders"
        assert redirects.enable(source, name, managed=True).state is RedirectState.READY


@pytest.mark.parametrize("token", ["expired", None])
def test_the_source_of_a_move_is_taken_back_without_a_valid_token(
    unity: UnityServer,
    source: str,
    monkeypatch: pytest.MonkeyPatch,
    token: str | None,
) -> None:
    before(monkeypatch, "check_name", interrupt)
    with Redirects() as redirects, pytest.raises(KeyboardInterrupt):
        redirects.enable(source, f"unity:{unity.schema}.orders", managed=True)
    if token is None:
        monkeypatch.delenv("UC_TOKEN")
    else:
        monkeypatch.setenv("UC_TOKEN", token)
    with Redirects() as redirects:
        with pytest.raises(Unauthorized):
            redirects.cancel(source)
        assert redirects.cancel(source, leave_copies=True).state is RedirectState.NORMAL


def before(monkeypatch: pytest.MonkeyPatch, step: str, happens: Callable[[], object]) -> None:
    """Let something happen before a step of the move, once."""
    real = getattr(managed_move, step)

    def late(*given: Any) -> Any:
        monkeypatch.setattr(managed_move, step, real)
        happens()
        return real(*given)

    monkeypatch.setattr(managed_move, step, late)


def interrupt() -> None:
    """Stop like Ctrl-C."""
    raise KeyboardInterrupt
