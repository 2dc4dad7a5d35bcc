"""Names in catalogs wherever a table is named."""

from __future__ import annotations

from pathlib import Path

import pytest

import lakeferry
from lakeferry.catalogs import names, open_catalog, split_name
from lakeferry.catalogs.columns import catalog_columns
from lakeferry.errors import (
    CatalogUnavailable,
    InvalidInput,
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
