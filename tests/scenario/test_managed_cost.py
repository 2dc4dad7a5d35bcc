"""What it costs to find a managed table, and that it is found by its id alone."""

from __future__ import annotations

from pathlib import Path

import pytest

import lakeferry
from lakeferry.api.redirects import Redirects
from lakeferry.catalogs import open_catalog
from lakeferry.catalogs.places import Places
from lakeferry.redirect.resolve import Resolver
from lakeferry.storage import Store, normalise, open_store
from lakeferry.table import DeltaLog
from tests.support import lake as lakes
from tests.support.history import Append, History
from tests.support.managed_tables import body, managed_table, ratified
from tests.support.unity_server import UnityServer

PAST = History().then(Append(1), Append(1))


pytestmark = pytest.mark.usefixtures("unity_here")


class Counted:
    """A resolver of a process that has just started, and what it asks of stores."""

    def __init__(self) -> None:
        self.places = Places()
        self.opened: list[Store] = []
        self.resolver = Resolver(self.open, self.places.catalog, grant=self.places.grant)

    def open(self, uri: str) -> Store:
        store = self.places.open(uri)
        self.opened.append(store)
        return store

    def lists(self, uri: str) -> int:
        """Return how many listings of a place there were."""
        return sum(store.calls["LIST"] for store in self.opened if store.uri == uri)


def moved(unity: UnityServer, folder: Path) -> tuple[str, str]:
    """Return the old path and the name of a table that became managed."""
    source, name = normalise(str(folder / "orders")), f"unity:{unity.schema}.orders"
    PAST.write(open_store(source), with_data=True)
    with Redirects() as redirects:
        redirects.enable(source, name, managed=True)
    return source, name


def test_an_old_path_costs_one_request_to_the_catalog_and_one_listing(
    unity: UnityServer, tmp_path: Path
) -> None:
    source, name = moved(unity, tmp_path)
    asked = unity.ours.asked
    counted = Counted()
    asked.clear()
    found = counted.resolver.resolve(source, allow_managed=True)
    table = f"GET /delta/v1/catalogs/{unity.schema.replace('.', '/schemas/')}/tables/orders"
    # Where a server issues credentials for the place, they are the second request.
    assert (found.name, asked) == (name, [table])
    assert (counted.lists(source), counted.lists(found.location)) == (1, 1)

    asked.clear()
    again = counted.resolver.resolve(source, allow_managed=True)
    assert (again, asked) == (found, [table])
    assert counted.lists(found.location) == 1


def test_a_name_costs_one_request_to_the_catalog_and_one_listing(
    unity: UnityServer, tmp_path: Path
) -> None:
    _, name = moved(unity, tmp_path)
    counted = Counted()
    unity.ours.asked.clear()
    place = counted.places.locate(name)
    assert DeltaLog(counted.open(place)).newest().version > 0
    assert len(unity.ours.asked) == 1
    assert counted.lists(place) == 1


def test_credentials_are_the_second_request(unity: UnityServer) -> None:
    keys = {"access_key_id": "a", "secret_access_key": "b", "session_token": ""}
    unity.ours.credentials = 200, {"aws_temp_credentials": keys}
    catalog_name, schema = unity.schema.split(".")
    parent = {"catalog_name": catalog_name, "schema_name": schema}
    place = {"storage_location": "s3://lake/managed", "table_type": "MANAGED"}
    unity.ours.add({**parent, **place, "name": "t"})
    unity.ours.asked.clear()
    catalog = open_catalog("unity")
    access = catalog.access(catalog.get_to_open(f"{unity.schema}.t"))
    assert access.commits is not None
    assert access.renewal is not None
    assert access.commits.head().table_id == access.commits.table_id
    assert len(unity.ours.asked) == 2


def test_what_was_found_answers_once_and_only_for_the_call_that_found_it(
    unity: UnityServer,
) -> None:
    table = managed_table(unity)
    name = f"unity:{table.name}"
    seen, other = lakeferry.Table(name), lakeferry.Table(name)
    assert seen.uri == table.below.uri
    ratified(table, 5, body(5))
    # It was found before that commit.
    assert [commit.version for commit in seen.history(1)] == [5]
    assert [commit.version for commit in other.history(1)] == [5]
    ratified(table, 6, body(6))
    assert [commit.version for commit in other.history(1)] == [6]


def test_a_server_without_managed_tables_is_asked_as_before(
    unity: UnityServer, tmp_path: Path
) -> None:
    place = normalise(str(tmp_path / "external"))
    PAST.write(open_store(place), with_data=True)
    lakeferry.Table(place)
    open_catalog("unity").register(
        f"{unity.schema}.t", place, DeltaLog(open_store(place)).state().metadata
    )
    unity.ours.without_delta = True
    assert lakeferry.Table(f"unity:{unity.schema}.t").uri == place
    assert lakeferry.open(f"unity:{unity.schema}.t").count_rows() > 0


@pytest.mark.parametrize("renamed", [False, True], ids=["the same name", "renamed"])
def test_a_managed_target_is_found_by_its_id_alone(
    unity: UnityServer, tmp_path: Path, renamed: bool
) -> None:
    old, name = moved(unity, tmp_path)
    expected = sorted(lakeferry.open(old).to_table()["id"].to_pylist())
    found = open_catalog("unity").get(name.removeprefix("unity:"))
    lake = lakes.on_disk(tmp_path)
    spec = {"Table": {"TableId": found.table_id, "MetastoreId": found.metastore_id}}
    # Another program wrote the entry: it has no name and no journal.
    value = lakes.entry(lake.uri("stranger"), Type="Unity Catalog", Spec=spec)
    stranger = lake.make("stranger", lakes.redirected(("delta.redirectReaderWriter", value)))
    if renamed:
        unity.rename(found.name, "elsewhere")
        name = f"unity:{unity.schema}.elsewhere"

    assert sorted(lakeferry.open(stranger).to_table()["id"].to_pylist()) == expected
    assert sorted(lakeferry.open(old).to_table()["id"].to_pylist()) == expected
    with Redirects() as redirects:
        assert redirects.status(stranger).name == name
        assert redirects.status(old).name == name
