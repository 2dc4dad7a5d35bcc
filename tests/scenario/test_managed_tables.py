"""Managed tables by their names: what a user reads, and what is refused, on Unity Catalog."""

from __future__ import annotations

import io
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import lakeferry
from lakeferry.errors import CatalogManaged, TableNotFound, UnsupportedFeature
from lakeferry.log import paths
from tests.support.managed_tables import FIRST_MS, ManagedTable, body, managed_table, ratified
from tests.support.unity_server import UnityServer


@pytest.fixture
def table(unity: UnityServer, monkeypatch: pytest.MonkeyPatch) -> ManagedTable:
    """A managed table with rows in two versions, the newest of which isn't published."""
    unity.name_in(monkeypatch)
    made = managed_table(unity)
    assert made.commit(5, added(made, "a.parquet", [1, 2, 3]))
    ratified(made, 6, body(6, added(made, "b.parquet", [4])))
    return made


def added(table: ManagedTable, name: str, ids: list[int]) -> dict[str, object]:
    """Write a data file; return the action that adds it."""
    sink = io.BytesIO()
    pq.write_table(pa.table({"id": pa.array(ids, pa.int64())}), sink)
    table.below.put(name, sink.getvalue())
    stats = json.dumps({"numRecords": len(ids)})
    return {
        "add": {
            "path": name,
            "partitionValues": {},
            "size": len(sink.getvalue()),
            "modificationTime": 1,
            "dataChange": True,
            "stats": stats,
        }
    }


def rows(name: str, **options: object) -> list[int]:
    """Return the ids in a table, in order."""
    found = lakeferry.open(name, **options).to_table()  # type: ignore[arg-type]
    return sorted(found["id"].to_pylist())


def test_a_table_is_read_as_its_catalog_decides(table: ManagedTable) -> None:
    name = f"unity:{table.name}"
    warnings: list[str] = []
    seen = lakeferry.Table(name, warn=warnings.append)

    assert rows(name) == [1, 2, 3, 4]
    assert rows(name, version=5) == [1, 2, 3]
    assert rows(name, version=3) == []
    assert [commit.version for commit in seen.history(2)] == [6, 5]
    assert seen.inspect().version == 6
    assert seen.inspect().num_rows == 4
    assert seen.files().read_all().num_rows == 2
    assert seen.verify(seen).equal
    assert warnings == []
    assert not table.below.exists(paths.commit(6))


def test_times_are_those_that_commits_state(table: ManagedTable) -> None:
    seen = lakeferry.Table(f"unity:{table.name}")
    assert seen.files(timestamp_ms=FIRST_MS + 5).read_all().num_rows == 1
    assert seen.files(timestamp_ms=FIRST_MS + 6).read_all().num_rows == 2


def test_accepted_commits_are_published_by_one_command(table: ManagedTable) -> None:
    name = f"unity:{table.name}"
    first, again = lakeferry.Table(name).publish(), lakeferry.Table(name).publish()

    assert (first.published, first.latest_version) == ((6,), 6)
    assert (again.published, again.latest_version) == ((), 6)
    assert table.below.exists(paths.commit(6))
    assert rows(name) == [1, 2, 3, 4]


def test_a_checkpoint_is_of_what_is_published(table: ManagedTable) -> None:
    name = f"unity:{table.name}"
    assert lakeferry.Table(name).checkpoint().version == 6
    assert table.below.exists(paths.commit(6))
    assert rows(name) == [1, 2, 3, 4]


def test_a_path_is_not_enough(table: ManagedTable) -> None:
    with pytest.raises(CatalogManaged) as refused:
        lakeferry.resolve(f"unity:{table.name}")
    assert refused.value.fields["name"] == table.name
    if not table.below.uri.startswith("file:"):
        pytest.skip("only the catalog has the keys of a path in a bucket")
    with pytest.raises(CatalogManaged):
        lakeferry.resolve(table.below.uri)
    with pytest.raises(UnsupportedFeature):
        lakeferry.Table(table.below.uri).files()


def test_what_the_catalog_does_not_permit_is_refused(table: ManagedTable) -> None:
    with pytest.raises(CatalogManaged, match="can't be cleaned up"):
        lakeferry.Table(f"unity:{table.name}").cleanup(retention="0h", force=True)


def test_a_renamed_table_is_read_by_its_new_name(table: ManagedTable) -> None:
    renamed = f"{table.name}_2"
    table.api.rename(table.name, renamed, table.staging.table_id)

    assert rows(f"unity:{renamed}") == [1, 2, 3, 4]
    with pytest.raises(TableNotFound):
        lakeferry.open(f"unity:{table.name}")
