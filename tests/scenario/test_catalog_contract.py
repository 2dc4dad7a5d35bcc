"""What every catalog promises: SQLite, a real PostgreSQL, and Unity Catalog's REST API."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from lakeferry.catalogs import Catalog, EditableCatalog, open_catalog
from lakeferry.catalogs.columns import catalog_columns
from lakeferry.errors import CatalogUnavailable, InvalidInput, LakeferryError, TableNotFound
from lakeferry.log.actions import Metadata
from tests.support import processes
from tests.support.unity_server import UnityServer

SCHEMA = '{"type":"struct","fields":[{"name":"id","type":"long","nullable":true,"metadata":{}}]}'
METADATA = Metadata("1", SCHEMA)


@dataclass(frozen=True, slots=True)
class Subject:
    """A catalog under test: how it is opened, anywhere, and a schema to use in it."""

    kind: str
    environment: Mapping[str, str]
    schema: str

    def open(self) -> EditableCatalog:
        return open_catalog(self.kind, self.environment)


@pytest.fixture(
    params=[
        "sqlite",
        pytest.param(
            "postgresql", marks=[pytest.mark.postgresql, pytest.mark.xdist_group("postgresql")]
        ),
        "unity",
    ]
)
def subject(request: pytest.FixtureRequest, tmp_path: Path) -> Subject:
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path}/some/folder/catalog.sqlite"
        return Subject("sql", {"LAKEFERRY_SQL_URL": url}, "cat.schema")
    if request.param == "postgresql":
        url = request.getfixturevalue("postgresql_url")
        return Subject("sql", {"LAKEFERRY_SQL_URL": url}, "cat.schema")
    server: UnityServer = request.getfixturevalue("unity")
    return Subject("unity", server.environment(), server.schema)


@pytest.fixture
def catalog(subject: Subject) -> EditableCatalog:
    return subject.open()


@pytest.fixture
def name(subject: Subject) -> str:
    return f"{subject.schema}.orders"


@pytest.fixture
def place(tmp_path: Path) -> str:
    return f"{tmp_path.as_uri()}/a table"


def test_a_name_that_nobody_gave_leads_nowhere(catalog: Catalog, name: str) -> None:
    assert catalog.find(name) is None
    assert catalog.find_id(str(uuid.uuid4())) is None
    assert catalog.locate_id(str(uuid.uuid4())) is None
    assert catalog.unregister(name) is False
    with pytest.raises(TableNotFound, match=name) as refused:
        catalog.get(name)
    assert catalog.place in str(refused.value)
    with pytest.raises(TableNotFound):
        catalog.move(name, "/anywhere")


def test_a_registered_table_is_found_by_name_and_by_id(
    subject: Subject, catalog: Catalog, name: str, place: str
) -> None:
    made = catalog.register(name, place, METADATA)
    assert (made.name, made.location) == (name, place.replace(" ", "%20"))
    again = subject.open()
    assert again.find(name) == made
    assert again.find_id(made.table_id) == made
    assert again.find_id(made.table_id.upper()) == made
    assert again.locate_id(made.table_id) == made.location
    assert again.find_id(made.table_id, made.metastore_id) == made
    assert again.access(made).options == {}


def test_an_id_that_is_none_leads_nowhere(catalog: Catalog, name: str, place: str) -> None:
    catalog.register(name, place, METADATA)
    for text in ("", "1", "x" * 36, "'; DROP TABLE lakeferry_tables"):
        assert catalog.find_id(text) is None
        assert catalog.locate_id(text) is None


def test_to_register_twice_changes_nothing(catalog: Catalog, name: str, place: str) -> None:
    made = catalog.register(name, place, METADATA)
    assert catalog.register(name, place, METADATA) == made
    assert catalog.register(name, f"{place}/", METADATA) == made


def test_a_name_that_leads_elsewhere_is_not_taken(catalog: Catalog, name: str, place: str) -> None:
    made = catalog.register(name, place, METADATA)
    with pytest.raises(InvalidInput) as refused:
        catalog.register(name, f"{place}/other", METADATA)
    assert refused.value.fields["location"] == made.location
    assert catalog.find(name) == made


def test_a_name_is_taken_away_only_from_where_it_leads(
    catalog: Catalog, name: str, place: str
) -> None:
    catalog.register(name, place, METADATA)
    assert catalog.unregister(name, f"{place}/other") is False
    assert catalog.find(name) is not None
    assert catalog.unregister(name, f"{place}/") is True
    assert catalog.find(name) is None
    assert catalog.unregister(name, place) is False


def test_a_name_given_anew_has_another_id(catalog: Catalog, name: str, place: str) -> None:
    first = catalog.register(name, place, METADATA)
    assert catalog.unregister(name) is True
    second = catalog.register(name, place, METADATA)
    assert second.table_id != first.table_id
    assert catalog.find_id(first.table_id) is None


def test_a_move_keeps_the_id_or_is_refused(catalog: Catalog, name: str, place: str) -> None:
    made = catalog.register(name, place, METADATA)
    assert catalog.move(name, f"{place}/") == made
    other = f"{made.location}/other"
    if catalog.kind == "unity":
        with pytest.raises(InvalidInput, match="another id"):
            catalog.move(name, other)
        assert catalog.find(name) == made
        return
    moved = catalog.move(name, other)
    assert (moved.location, moved.table_id) == (other, made.table_id)
    assert catalog.find(name) == catalog.find_id(made.table_id) == moved


NO_NAMES = ("", "t", "a.t", "a.b.c.t", "a..t", ".b.t", "a.b.", " a.b.t", "a.b\n.t", "a.b.t\0")


def test_names_are_listed_by_their_beginning(
    subject: Subject, catalog: EditableCatalog, place: str
) -> None:
    names = [f"{subject.schema}.{each}" for each in ("orders", "orders_2", "other", "x")]
    made = [catalog.register(name, f"{place}/{name}", METADATA) for name in names]
    parent = subject.schema.partition(".")[0]
    assert catalog.tables(parent) == made
    assert catalog.tables(f"{parent}.") == made
    assert catalog.tables(f"{subject.schema}.") == made
    assert catalog.tables(f"{subject.schema}.or") == made[:2]
    assert catalog.tables(f"{subject.schema}.nothing") == []
    assert catalog.tables(f"{parent}.nothing.x") == []
    assert catalog.tables("nothing.nothing.x") == []
    assert set(made) <= set(catalog.tables(""))


def test_a_rename_keeps_id_and_place(catalog: EditableCatalog, name: str, place: str) -> None:
    made = catalog.register(name, place, METADATA)
    renamed = catalog.rename(made, f"{name}_2")
    assert renamed == catalog.find(f"{name}_2") == catalog.find_id(made.table_id)
    assert (renamed.table_id, renamed.location) == (made.table_id, made.location)
    assert catalog.find(name) is None
    assert catalog.rename(renamed, f"{name}_2") == renamed
    # The name is free again, and the table is found by its id whatever it is called.
    other = catalog.register(name, f"{place}-other", METADATA)
    assert catalog.unregister(name, place, table_id=made.table_id) is True
    assert catalog.find(f"{name}_2") is None
    assert catalog.find(name) == other


def test_a_name_that_is_taken_is_given_to_nobody_else(
    catalog: EditableCatalog, name: str, place: str
) -> None:
    first = catalog.register(name, place, METADATA)
    second = catalog.register(f"{name}_2", f"{place}-2", METADATA)
    with pytest.raises(InvalidInput, match="taken"):
        catalog.check_rename(first, second.name)
    with pytest.raises(InvalidInput, match="taken"):
        # Another client may take it after it was looked at.
        catalog.rename(first, second.name)
    catalog.check_rename(first, first.name)
    assert (catalog.find(first.name), catalog.find(second.name)) == (first, second)


def test_what_is_removed_is_gone_under_any_name(
    catalog: EditableCatalog, name: str, place: str
) -> None:
    made = catalog.register(name, place, METADATA)
    catalog.rename(made, f"{name}_2")
    assert catalog.remove(made) is True
    assert catalog.find_id(made.table_id) is None
    assert catalog.remove(made) is False


def test_a_table_that_is_gone_is_not_renamed(
    catalog: EditableCatalog, name: str, place: str
) -> None:
    made = catalog.register(name, place, METADATA)
    catalog.unregister(name)
    with pytest.raises(TableNotFound):
        catalog.rename(made, f"{name}_2")


@pytest.mark.parametrize("name", [*NO_NAMES, "x:a.b.t", "a.b./t", f"a.b.{'t' * 256}"])
def test_what_is_no_name_is_refused_everywhere(catalog: Catalog, name: str) -> None:
    for ask in (
        lambda: catalog.find(name),
        lambda: catalog.register(name, "/x", METADATA),
        lambda: catalog.move(name, "/x"),
        lambda: catalog.unregister(name),
    ):
        with pytest.raises(InvalidInput, match="isn't the name of a table"):
            ask()


def claim(subject: Subject, name: str, place: str) -> str | None:
    """Register a place under a name; return the place if it has it now."""
    try:
        return subject.open().register(name, place, METADATA).location
    except InvalidInput:
        return None
    except CatalogUnavailable:
        if subject.kind != "unity":
            raise
        return None


def is_shown(subject: Subject, name: str) -> bool:
    """Tell whether a name leads anywhere.

    A real Unity Catalog may give one name to several in a race, and answers 500 then to
    whoever asks for it: nobody has it.
    """
    try:
        return subject.open().find(name) is not None
    except CatalogUnavailable:
        if subject.kind != "unity":
            raise
        return False


def test_of_many_who_want_a_name_for_different_places_one_wins(
    subject: Subject, tmp_path: Path
) -> None:
    places = [f"{tmp_path.as_uri()}/{who}" for who in range(8)]
    with ThreadPoolExecutor(len(places)) as pool:
        for turn in range(5):
            name = f"{subject.schema}.contested_{turn}"
            claims = [pool.submit(claim, subject, name, f"{place}/{turn}") for place in places]
            won = [place for each in claims if (place := each.result()) is not None]
            if is_shown(subject, name):
                assert won == [subject.open().get(name).location]


def test_many_who_register_the_same_all_succeed(subject: Subject, name: str, place: str) -> None:
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: claim(subject, name, place), range(16)))
    if is_shown(subject, name):
        assert set(made) == {place.replace(" ", "%20")}


def claim_all(subject: Subject, root: str, who: int) -> list[str]:
    names = [f"{subject.schema}.contested_{turn}" for turn in range(10)]
    return [name for name in names if claim(subject, name, f"{root}/{name}/{who}") is not None]


def test_processes_that_begin_at_once_share_one_catalog(subject: Subject, tmp_path: Path) -> None:
    """The first of them makes the table; every name has one winner."""
    with processes.pool(2) as pool:
        root = tmp_path.as_uri()
        won = [pool.submit(claim_all, subject, root, who) for who in range(2)]
        names = [name for each in won for name in each.result()]
    shown = [turn for turn in range(10) if is_shown(subject, f"{subject.schema}.contested_{turn}")]
    assert shown or subject.kind == "unity"
    for turn in shown:
        assert names.count(f"{subject.schema}.contested_{turn}") == 1


def test_whoever_loses_a_name_while_it_is_registered_gets_an_answer(
    subject: Subject, name: str, place: str
) -> None:
    """Names that come and go: no answer but a table, a refusal or the catalog's own excuse."""

    def come_and_go(who: int) -> set[str]:
        catalog, ends = subject.open(), set()
        for _ in range(10):
            try:
                made = catalog.register(name, place, METADATA)
                assert made.location == place.replace(" ", "%20")
                catalog.unregister(name, place)
                ends.add("done")
            except LakeferryError as error:
                ends.add(error.code)
        return ends

    with ThreadPoolExecutor(4) as pool:
        ends = set().union(*pool.map(come_and_go, range(4)))
    # Once several have got the name from a real Unity Catalog, nobody can use it any more.
    assert "done" in ends or not is_shown(subject, name)
    # A place that has a name for a moment is refused by Unity Catalog as forbidden.
    assert ends <= {"done", "catalog_unavailable", "invalid_input", "forbidden"}


# --- What Unity Catalog itself answers: our own server has to answer as the real one ----


def created(unity: UnityServer, name: str, place: str, **changes: object) -> tuple[int, Any]:
    catalog, schema = unity.schema.split(".")
    table = {
        "name": name,
        "catalog_name": catalog,
        "schema_name": schema,
        "table_type": "EXTERNAL",
        "data_source_format": "DELTA",
        "columns": catalog_columns(METADATA),
        "storage_location": place,
    }
    return unity.call("POST", "/tables", {**table, **changes})


def handed_out(unity: UnityServer, table_id: str) -> tuple[int, Any]:
    request = {"table_id": table_id, "operation": "READ"}
    return unity.call("POST", "/temporary-table-credentials", request)


def odd_columns() -> list[dict[str, Any]]:
    """Return columns that the server doesn't take, as the schema may have them."""
    (sound,) = catalog_columns(METADATA)
    field = json.loads(sound["type_json"])
    kinds: list[Any] = ["void", "interval day", "geometry(4326)", "decimal( 5 , 0 )"]
    kinds += [
        {"type": "struct", "fields": []},
        {"type": "array", "elementType": "void", "containsNull": True},
        {"type": "udt", "class": "org.example.Point", "sqlType": "long"},
    ]
    fields = [{**field, "type": kind} for kind in kinds]
    fields += [
        {key: field[key] for key in field if key != left} for left in ("nullable", "metadata")
    ]
    return [{**sound, "type_json": json.dumps(each)} for each in fields]


def test_schemas_of_every_sort_are_taken(unity: UnityServer, tmp_path: Path) -> None:
    """What the server doesn't take as it is, we tell it in another way."""
    kinds: list[Any] = ["void", "decimal( 5 , 0 )", "variant", "timestamp_ntz"]
    inner = [{"name": "n", "type": "void"}, {"name": "a b", "type": "binary"}]
    kinds += [
        {"type": "struct", "fields": inner},
        {"type": "udt", "class": "org.example.Point", "sqlType": "long"},
        {"type": "map", "keyType": "string", "valueType": "date", "valueContainsNull": True},
    ]
    fields = [{"name": f"c{n}", "type": kind, "metadata": {}} for n, kind in enumerate(kinds)]
    catalog, name = open_catalog("unity", unity.environment()), f"{unity.schema}.t"
    metadata = Metadata("1", json.dumps({"type": "struct", "fields": fields}), ("c1",))
    catalog.try_registration(name, tmp_path.as_uri(), metadata)
    catalog.register(name, tmp_path.as_uri(), metadata)
    _, info = unity.call("GET", f"/tables/{name}")
    shown = [(column["name"], column["type_text"]) for column in info["columns"]]
    assert shown == [
        ("c1", "decimal(5,0)"),
        ("c2", "variant"),
        ("c3", "timestamp_ntz"),
        ("c4", "struct<a b:binary>"),
        ("c5", "bigint"),
        ("c6", "map<string,date>"),
    ]


def test_what_a_real_server_refuses_ours_refuses_alike(unity: UnityServer, tmp_path: Path) -> None:
    root, schema = tmp_path.as_uri(), unity.schema
    status, made = created(unity, "t", f"{root}/t")
    assert (status, made["name"], made["storage_location"]) == (200, "t", f"{root}/t")
    for answer, expected in (
        (created(unity, "t", f"{root}/other"), (400, "TABLE_ALREADY_EXISTS")),
        *(
            (created(unity, odd, f"{root}/u"), (400, "INVALID_ARGUMENT"))
            for odd in ("u ", "\u00fc", "u$", "u'")
        ),
        *(
            (created(unity, "u", f"{root}/u", columns=[odd]), (400, "INVALID_ARGUMENT"))
            for odd in odd_columns()
        ),
        (created(unity, "u", f"{root}/__unitystorage/u"), (400, "INVALID_ARGUMENT")),
        *(
            (created(unity, "u", place), (400, "INVALID_ARGUMENT"))
            for place in ("az://container/u", "lakefs://repo/main/u", "s3a://b/u", "s3://b-of-u")
        ),
        (created(unity, "u", f"{root}/u", schema_name="nowhere"), (404, "SCHEMA_NOT_FOUND")),
        (created(unity, "u", f"{root}/u", catalog_name="nowhere"), (404, "CATALOG_NOT_FOUND")),
        (unity.call("GET", f"/tables/{schema}.T"), (404, "TABLE_NOT_FOUND")),
        (unity.call("GET", f"/tables/{schema}.t%20"), (404, "TABLE_NOT_FOUND")),
        (unity.call("GET", f"/tables/{schema}"), (400, "INVALID_ARGUMENT")),
        (unity.call("GET", f"/tables/{made['table_id']}"), (400, "INVALID_ARGUMENT")),
        (unity.call("GET", f"/schemas/{schema}x"), (404, "SCHEMA_NOT_FOUND")),
        (unity.call("DELETE", f"/tables/{schema}.u"), (404, "TABLE_NOT_FOUND")),
        (unity.call("DELETE", f"/tables/{schema}"), (400, "INVALID_ARGUMENT")),
        (handed_out(unity, str(uuid.uuid4())), (404, "TABLE_NOT_FOUND")),
        (handed_out(unity, "x"), (400, "INVALID_ARGUMENT")),
    ):
        status, body = answer
        assert (status, body["error_code"]) == expected, body
    assert unity.call("DELETE", f"/tables/{schema}.t") == (200, b"200 OK")


def test_a_rename_is_refused_as_the_delta_api_does(unity: UnityServer, tmp_path: Path) -> None:
    for name in ("t", "u"):
        assert created(unity, name, f"{tmp_path.as_uri()}/{name}")[0] == 200
    tables = f"/delta/v1/catalogs/{'/schemas/'.join(unity.schema.split('.'))}/tables"
    for name, new, status, kind in (
        ("v", "w", 404, "NoSuchTableException"),
        ("t", "u", 409, "AlreadyExistsException"),
    ):
        answer = unity.call("POST", f"{tables}/{name}/rename", {"new-name": new})
        assert answer[0] == status
        assert (answer[1]["error"]["type"], answer[1]["error"]["code"]) == (kind, status)
    assert unity.call("POST", f"{tables}/t/rename", {"new-name": "t"})[0] == 204


def test_a_table_that_was_renamed_is_found_and_unregistered_by_its_id(
    unity: UnityServer, tmp_path: Path
) -> None:
    catalog = open_catalog("unity", unity.environment())
    made = catalog.register(f"{unity.schema}.t", tmp_path.as_uri(), METADATA)
    unity.rename(made.name, "renamed")
    assert catalog.find(made.name) is None
    found = catalog.find_id(made.table_id)
    assert found is not None
    assert (found.name, found.table_id) == (f"{unity.schema}.renamed", made.table_id)
    assert catalog.unregister(made.name, made.location) is False
    assert catalog.unregister(made.name, made.location, table_id=made.table_id) is True
    assert catalog.find_id(made.table_id) is None


def test_columns_arrive_with_precision_and_scale(unity: UnityServer, tmp_path: Path) -> None:
    kinds = ["decimal(38,18)", "decimal(5,0)", "timestamp_ntz", "binary"]
    fields = ",".join(
        f'{{"name":"c{index}","type":"{kind}","nullable":true,"metadata":{{}}}}'
        for index, kind in enumerate(kinds)
    )
    metadata = Metadata("1", f'{{"type":"struct","fields":[{fields}]}}')
    catalog = open_catalog("unity", unity.environment())
    name = f"{unity.schema}.t"
    catalog.try_registration(name, tmp_path.as_uri(), metadata)
    assert catalog.find(name) is None
    catalog.register(name, tmp_path.as_uri(), metadata)
    _, info = unity.call("GET", f"/tables/{name}")
    shown = [
        (column["type_text"], column.get("type_precision"), column.get("type_scale"))
        for column in info["columns"]
    ]
    assert shown == [
        ("decimal(38,18)", 38, 18),
        ("decimal(5,0)", 5, 0),
        ("timestamp_ntz", None, None),
        ("binary", None, None),
    ]


def test_a_table_is_found_by_its_id_among_many(unity: UnityServer, tmp_path: Path) -> None:
    catalog = open_catalog("unity", unity.environment())
    names = [f"{unity.schema}.t{index:03}" for index in range(120 if unity.server is None else 7)]
    for name in names:
        catalog.register(name, f"{tmp_path.as_uri()}/{name}", METADATA)
    last = catalog.get(names[-1])
    assert open_catalog("unity", unity.environment()).find_id(last.table_id) == last
