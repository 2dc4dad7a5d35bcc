"""What names lead to is changed: registered, moved, made to lead elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import lakeferry
from lakeferry.catalogs import name_changes, names, open_catalog
from lakeferry.errors import (
    CommitConflict,
    Forbidden,
    InvalidInput,
    TableNotFound,
)
from tests.support.history import Append, History
from tests.support.unity_server import UnityServer
from tests.unit.cli.program import make


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return {"LAKEFERRY_SQL_URL": f"sqlite:///{tmp_path}/catalog.sqlite"}


@pytest.fixture
def table(tmp_path: Path) -> str:
    return make(History().then(Append(2)), tmp_path / "table").as_uri()


@pytest.mark.parametrize("lost", ["privilege", "place"])
def test_a_name_that_unity_catalog_would_not_give_anew_stays_where_it_leads(
    lost: str, unity: UnityServer, table: str, tmp_path: Path
) -> None:
    """It can't move a name, so that is taken away and given again; but not in vain."""
    server, name = unity.ours, f"unity:{unity.schema}.t"
    name_changes.register(name, table, environment=unity.environment())
    other = make(History(), tmp_path / "volume" / "other").as_uri()
    if lost == "privilege":
        server.privileges.discard("CREATE TABLE")
    else:
        server.volumes.append((tmp_path / "volume").as_uri())
    environment = unity.environment()
    with pytest.raises(Forbidden):
        name_changes.lead(name, other, may_leave=lambda _: True, environment=environment)
    assert names.show(name, environment).location == table
    server.privileges.add("CREATE TABLE")
    server.volumes.clear()
    led = name_changes.lead(name, other, may_leave=lambda _: True, environment=environment)
    assert (led.location, led.was) == (other, table)


def test_a_name_that_somebody_else_moves_meanwhile_stays_where_it_leads(
    environment: dict[str, str], unity: UnityServer, table: str, tmp_path: Path
) -> None:
    ours, theirs = (make(History(), tmp_path / each).as_uri() for each in ("ours", "theirs"))
    for name, environ in (
        ("sql:a.b.t", environment),
        (f"unity:{unity.schema}.t", unity.environment()),
    ):
        name_changes.register(name, table, environment=environ)

        def may_leave(place: str, name: str = name, environ: dict[str, str] = environ) -> bool:
            if place == table:
                name_changes.lead(name, theirs, may_leave=lambda _: True, environment=environ)
            return place == table

        with pytest.raises((CommitConflict, InvalidInput)) as refused:
            name_changes.lead(name, ours, may_leave=may_leave, environment=environ)
        assert refused.value.fields["location"] == theirs
        assert names.show(name, environ).location == theirs


def test_a_name_that_two_processes_move_to_one_place_leads_there(
    environment: dict[str, str], table: str, tmp_path: Path
) -> None:
    other = make(History(), tmp_path / "other").as_uri()
    name_changes.register("sql:a.b.t", table, environment=environment)

    def may_leave(_: str) -> bool:
        name_changes.move("sql:a.b.t", other, environment=environment)
        return True

    led = name_changes.lead("sql:a.b.t", other, may_leave=may_leave, environment=environment)
    assert (led.location, led.was) == (other, table)


def test_a_name_is_registered_shown_and_moved(
    environment: dict[str, str], table: str, tmp_path: Path
) -> None:
    made = name_changes.register("sql:a.b.t", table, environment=environment)
    assert (made.name, made.location, made.changed) == ("sql:a.b.t", table, True)
    assert not name_changes.register("a.b.t", table, environment=environment).changed
    shown = names.show("a.b.t", environment)
    assert shown.as_document() == made.as_document()
    other = make(History(), tmp_path / "other").as_uri()
    moved = name_changes.move("a.b.t", other, environment=environment)
    assert (moved.location, moved.was, moved.changed) == (other, table, True)
    assert moved.table_id == made.table_id
    assert not name_changes.move("a.b.t", other, environment=environment).changed
    assert names.locate("sql:a.b.t", environment).uri == other


def test_a_dry_run_writes_nothing(environment: dict[str, str], table: str, tmp_path: Path) -> None:
    planned = name_changes.register("a.b.t", table, dry_run=True, environment=environment)
    assert (planned.changed, planned.table_id) == (True, None)
    assert not (tmp_path / "catalog.sqlite").exists()
    name_changes.register("a.b.t", table, environment=environment)
    assert not name_changes.register("a.b.t", table, dry_run=True, environment=environment).changed
    assert (
        name_changes.move("a.b.t", f"{table}/x", dry_run=True, environment=environment).was == table
    )
    assert names.show("a.b.t", environment).location == table
    with pytest.raises(InvalidInput, match="another place"):
        name_changes.register("a.b.t", f"{table}/x", dry_run=True, environment=environment)


@pytest.mark.parametrize("change", [name_changes.register, name_changes.move])
def test_a_place_without_a_table_is_taken_with_a_warning(
    environment: dict[str, str], tmp_path: Path, change: Callable[..., names.CatalogEntry]
) -> None:
    warnings: list[str] = []
    if change is name_changes.move:
        open_catalog("sql", environment).register("a.b.t", "/somewhere")
    made = change("a.b.t", f"{tmp_path}/none", environment=environment, warn=warnings.append)
    assert made.location == f"{tmp_path.as_uri()}/none"
    (warning,) = warnings
    assert f"no table at {tmp_path.as_uri()}/none" in warning


def test_unity_catalog_takes_tables_only(unity: UnityServer, table: str, tmp_path: Path) -> None:
    name, environment = f"unity:{unity.schema}.t", unity.environment()
    with pytest.raises(TableNotFound):
        name_changes.register(name, f"{tmp_path}/none", environment=environment)
    made = name_changes.register(name, table, environment=environment)
    assert made.metastore_id is not None
    _, info = unity.call("GET", f"/tables/{unity.schema}.t")
    assert [column["name"] for column in info["columns"]]
    for dry_run in (True, False):
        with pytest.raises(InvalidInput, match="can't be moved"):
            name_changes.move(name, f"{table}/x", dry_run=dry_run, environment=environment)


def test_a_table_is_asked_for_by_its_name_when_it_is_used(
    environment: dict[str, str],
    table: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LAKEFERRY_SQL_URL", environment["LAKEFERRY_SQL_URL"])
    orders = lakeferry.Table("sql:a.b.t")
    assert repr(orders) == "Table('sql:a.b.t')"
    with pytest.raises(TableNotFound, match=r"catalog\.sqlite"):
        orders.inspect()
    name_changes.register("a.b.t", table)
    assert orders.inspect().num_files == 2
    assert orders.uri == table
    with pytest.raises(InvalidInput, match="isn't the name"):
        lakeferry.Table("sql:t")
    with pytest.raises(InvalidInput):
        lakeferry.Table("ftp://host/t")
