"""Names in catalogs wherever a table is named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import lakeferry
from lakeferry.catalogs import names, open_catalog, split_name
from lakeferry.catalogs.columns import catalog_columns
from lakeferry.errors import (
    CatalogUnavailable,
    CommitConflict,
    Forbidden,
    InvalidInput,
    TableNotFound,
)
from lakeferry.log.actions import Metadata
from tests.support.history import Append, History
from tests.support.unity_server import UnityServer
from tests.unit.cli.program import make


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return {"LAKEFERRY_SQL_URL": f"sqlite:///{tmp_path}/catalog.sqlite"}


@pytest.fixture
def table(tmp_path: Path) -> str:
    return make(History().then(Append(2)), tmp_path / "table").as_uri()


def test_only_the_two_kinds_are_names() -> None:
    assert split_name("sql:a.b.t") == ("sql", "a.b.t")
    assert split_name("unity:a.b.t") == ("unity", "a.b.t")
    for text in ("a.b.t", "./sql:a.b.t", "s3://bucket/sql:a.b.t", "/tmp/x", "SQL:a.b.t"):
        assert split_name(text) is None
    for text in ("sql:", "sql:t", "unity:a.b"):
        with pytest.raises(InvalidInput, match="isn't the name"):
            split_name(text)
    with pytest.raises(InvalidInput, match="kind"):
        open_catalog("hive")


def test_a_place_stays_as_it_was_written() -> None:
    assert names.locate("./a table") == names.TablePlace("./a table")


def test_a_name_leads_to_the_place_with_what_the_catalog_grants(unity: UnityServer) -> None:
    server, name = unity.ours, f"{unity.schema}.t"
    schema_of_it = '{"fields":[{"name":"id","type":"long","nullable":true,"metadata":{}}]}'
    catalog, schema, table = name.split(".")
    body = {"catalog_name": catalog, "schema_name": schema, "name": table}
    body |= {"table_type": "EXTERNAL", "data_source_format": "DELTA"}
    body |= {"storage_location": "s3://bucket/t"}
    described = catalog_columns(Metadata("1", schema_of_it))
    status, _ = unity.call("POST", "/tables", {**body, "columns": described})
    assert status == 200
    server.credentials = (200, {"aws_temp_credentials": {"access_key_id": "hunter2"}})
    place = names.locate(f"unity:{name}", unity.environment())
    assert place.uri == "s3://bucket/t"
    assert place.access.options == {"aws_access_key_id": "hunter2"}
    assert "hunter2" not in repr(place)


@pytest.mark.parametrize("lost", ["privilege", "place"])
def test_a_name_that_unity_catalog_would_not_give_anew_stays_where_it_leads(
    lost: str, unity: UnityServer, table: str, tmp_path: Path
) -> None:
    """It can't move a name, so that is taken away and given again; but not in vain."""
    server, name = unity.ours, f"unity:{unity.schema}.t"
    names.register(name, table, environment=unity.environment())
    other = make(History(), tmp_path / "volume" / "other").as_uri()
    if lost == "privilege":
        server.privileges.discard("CREATE TABLE")
    else:
        server.volumes.append((tmp_path / "volume").as_uri())
    environment = unity.environment()
    with pytest.raises(Forbidden):
        names.lead(name, other, may_leave=lambda _: True, environment=environment)
    assert names.show(name, environment).location == table
    server.privileges.add("CREATE TABLE")
    server.volumes.clear()
    led = names.lead(name, other, may_leave=lambda _: True, environment=environment)
    assert (led.location, led.was) == (other, table)


def test_a_name_that_somebody_else_moves_meanwhile_stays_where_it_leads(
    environment: dict[str, str], unity: UnityServer, table: str, tmp_path: Path
) -> None:
    ours, theirs = (make(History(), tmp_path / each).as_uri() for each in ("ours", "theirs"))
    for name, environ in (
        ("sql:a.b.t", environment),
        (f"unity:{unity.schema}.t", unity.environment()),
    ):
        names.register(name, table, environment=environ)

        def may_leave(place: str, name: str = name, environ: dict[str, str] = environ) -> bool:
            if place == table:
                names.lead(name, theirs, may_leave=lambda _: True, environment=environ)
            return place == table

        with pytest.raises((CommitConflict, InvalidInput)) as refused:
            names.lead(name, ours, may_leave=may_leave, environment=environ)
        assert refused.value.fields["location"] == theirs
        assert names.show(name, environ).location == theirs


def test_a_name_that_two_processes_move_to_one_place_leads_there(
    environment: dict[str, str], table: str, tmp_path: Path
) -> None:
    other = make(History(), tmp_path / "other").as_uri()
    names.register("sql:a.b.t", table, environment=environment)

    def may_leave(_: str) -> bool:
        names.move("sql:a.b.t", other, environment=environment)
        return True

    led = names.lead("sql:a.b.t", other, may_leave=may_leave, environment=environment)
    assert (led.location, led.was) == (other, table)


def test_a_name_is_registered_shown_and_moved(
    environment: dict[str, str], table: str, tmp_path: Path
) -> None:
    made = names.register("sql:a.b.t", table, environment=environment)
    assert (made.name, made.location, made.changed) == ("sql:a.b.t", table, True)
    assert not names.register("a.b.t", table, environment=environment).changed
    shown = names.show("a.b.t", environment)
    assert shown.as_document() == made.as_document()
    other = make(History(), tmp_path / "other").as_uri()
    moved = names.move("a.b.t", other, environment=environment)
    assert (moved.location, moved.was, moved.changed) == (other, table, True)
    assert moved.table_id == made.table_id
    assert not names.move("a.b.t", other, environment=environment).changed
    assert names.locate("sql:a.b.t", environment).uri == other


def test_a_dry_run_writes_nothing(environment: dict[str, str], table: str, tmp_path: Path) -> None:
    planned = names.register("a.b.t", table, dry_run=True, environment=environment)
    assert (planned.changed, planned.table_id) == (True, None)
    assert not (tmp_path / "catalog.sqlite").exists()
    names.register("a.b.t", table, environment=environment)
    assert not names.register("a.b.t", table, dry_run=True, environment=environment).changed
    assert names.move("a.b.t", f"{table}/x", dry_run=True, environment=environment).was == table
    assert names.show("a.b.t", environment).location == table
    with pytest.raises(InvalidInput, match="another place"):
        names.register("a.b.t", f"{table}/x", dry_run=True, environment=environment)


@pytest.mark.parametrize("change", [names.register, names.move])
def test_a_place_without_a_table_is_taken_with_a_warning(
    environment: dict[str, str], tmp_path: Path, change: Callable[..., names.CatalogEntry]
) -> None:
    warnings: list[str] = []
    if change is names.move:
        open_catalog("sql", environment).register("a.b.t", "/somewhere")
    made = change("a.b.t", f"{tmp_path}/none", environment=environment, warn=warnings.append)
    assert made.location == f"{tmp_path.as_uri()}/none"
    (warning,) = warnings
    assert f"no table at {tmp_path.as_uri()}/none" in warning


def test_unity_catalog_takes_tables_only(unity: UnityServer, table: str, tmp_path: Path) -> None:
    name, environment = f"unity:{unity.schema}.t", unity.environment()
    with pytest.raises(TableNotFound):
        names.register(name, f"{tmp_path}/none", environment=environment)
    made = names.register(name, table, environment=environment)
    assert made.metastore_id is not None
    _, info = unity.call("GET", f"/tables/{unity.schema}.t")
    assert [column["name"] for column in info["columns"]]
    for dry_run in (True, False):
        with pytest.raises(InvalidInput, match="can't be moved"):
            names.move(name, f"{table}/x", dry_run=dry_run, environment=environment)


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
    names.register("a.b.t", table)
    assert orders.inspect().num_files == 2
    assert orders.uri == table
    with pytest.raises(InvalidInput, match="isn't the name"):
        lakeferry.Table("sql:t")
    with pytest.raises(InvalidInput):
        lakeferry.Table("ftp://host/t")


def test_a_catalog_that_does_not_answer_is_no_missing_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "catalog.sqlite").write_bytes(b"no database" * 100)
    monkeypatch.setenv("LAKEFERRY_SQL_URL", f"sqlite:///{tmp_path}/catalog.sqlite")
    with pytest.raises(CatalogUnavailable):
        lakeferry.Table("sql:a.b.t").history()


@pytest.mark.parametrize("kind", ["sql", "unity"])
def test_a_name_follows_the_exports_of_a_table_and_leaves_no_other_place(
    kind: str, tmp_path: Path, table: str, environment: dict[str, str], unity: UnityServer
) -> None:
    name = f"{kind}:{unity.schema}.follows"
    settings = environment | unity.environment()
    source = lakeferry.Table(table, environment=settings)
    places = [tmp_path / "first", tmp_path / "second"]
    for place in places:
        source.export(str(place), register=name)
        assert names.show(name, settings).location == place.as_uri()
    source.export(str(places[1]), register=name)
    other = make(History().then(Append(1)), tmp_path / "other").as_uri()
    with pytest.raises(InvalidInput, match="at another place"):
        lakeferry.Table(other, environment=settings).export(str(tmp_path / "third"), register=name)
    assert not (tmp_path / "third").exists()
    assert names.show(name, settings).location == places[1].as_uri()
