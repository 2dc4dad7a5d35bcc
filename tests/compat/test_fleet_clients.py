"""A fleet's plan names exactly the clients that break: twelve tables, written by five engines.

After the moves each client that wrote a table reads its old path, and what it sees is what the plan
has said: the new place, a frozen copy, or a refusal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from deltalake import write_deltalake

import lakeferry
from lakeferry.fleet.fleet import FleetStatus
from lakeferry.fleet.inventory import ClientForecast
from tests.support import components, engines
from tests.support.oldest_spark import OldestSpark, OldestSparkError, oldest_spark
from tests.support.redirected_tables import STOCK, STOCK_FOLLOWING, client_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

NEWEST, OLDEST, RUST, DUCKDB, OURS = (
    "delta-spark 4.4",
    "delta-spark 3.3",
    "delta-rs",
    "DuckDB",
    "Lakeferry",
)
WRITERS = {
    "reader-writer": {
        "a": (NEWEST,),
        "b": (OLDEST,),
        "c": (RUST,),
        "d": (RUST, DUCKDB),
        "e": (RUST, OURS),
        "f": (RUST, NEWEST, OLDEST),
    },
    "writer-only": {
        "a": (NEWEST,),
        "b": (OLDEST,),
        "c": (RUST,),
        "d": (RUST, DUCKDB),
        "e": (RUST, OURS),
        "f": (RUST, NEWEST, OLDEST),
    },
}
MOVED_ON = 1_000
FOLLOWS, STALE, BLOCKED = "follows", "stale", "blocked"


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64())})


def duckdb_append(at: str) -> None:
    with engines.duckdb_with_delta() as connection:
        connection.execute(f"ATTACH '{at}' AS t (TYPE delta)")
        connection.execute("INSERT INTO t VALUES (4)")


def frozen_and_thawed(at: str) -> None:
    table = lakeferry.Table(at)
    table.freeze()
    table.thaw()


def written_by(client: ClientForecast) -> str:
    """Return which of the five a client is, by what the plan says."""
    name = client.name or ""
    if "Delta-Lake/4.4" in name:
        return NEWEST
    if "Delta-Lake/3.3" in name:
        return OLDEST
    return next(each for each in (RUST, DUCKDB, OURS) if name.startswith(each))


def said_of(client: ClientForecast) -> str:
    """Return what a plan says in words, for a client as it is."""
    if "follows the redirect" in client.after:
        return FOLLOWS
    return BLOCKED if client.after.startswith("neither") else STALE


@dataclass(frozen=True)
class Lake:
    """Twelve tables that have moved, what was planned for each, and who can be asked."""

    root: Path
    planned: FleetStatus
    readers: Mapping[str, Callable[[str], list[int]]]

    def clients(self, mode: str, name: str) -> dict[str, ClientForecast]:
        uri = (self.root / "old" / mode / name).as_uri()
        (table,) = (each for each in self.planned.tables if each.uri == uri)
        assert table.job is not None
        return {written_by(each): each for each in table.job.forecast.clients}


@pytest.fixture(scope="module")
def oldest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OldestSpark]:
    components.require("oldest-spark")
    with oldest_spark(tmp_path_factory.mktemp("oldest")) as running:
        yield running


@pytest.fixture(scope="module")
def lake(
    spark: SparkSession, oldest: OldestSpark, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Lake]:
    root = tmp_path_factory.mktemp("lake")
    writes: dict[str, Callable[[str], object]] = {
        NEWEST: lambda at: (
            spark.range(2, 3).coalesce(1).write.format("delta").mode("append").save(at)
        ),
        OLDEST: lambda at: oldest.append(at, [3]),
        RUST: lambda at: write_deltalake(at, rows(1), mode="append"),
        DUCKDB: duckdb_append,
        OURS: frozen_and_thawed,
    }
    for mode, tables in WRITERS.items():
        for name, writers in tables.items():
            for writer in writers:
                writes[writer](str(root / "old" / mode / name))
    fleet = lakeferry.Fleet(f"sqlite:///{root}/fleet.db")
    fleet.scan(str(root / "old"))
    for mode in WRITERS:
        fleet.plan(to=str(root / "new"), select=[f"{mode}/*"], mode=mode)
    planned = fleet.status()
    moved = fleet.run()
    assert {each.state.value for each in moved.tables} == {"DONE"}
    for mode, tables in WRITERS.items():
        for name in tables:
            write_deltalake(str(root / "new" / mode / name), rows(MOVED_ON), mode="append")
    with client_session(spark, STOCK) as stock:
        yield Lake(
            root,
            planned,
            {
                NEWEST: lambda at: read_by(stock, at),
                OLDEST: oldest.ids,
                RUST: lambda at: [row[0] for row in engines.by_delta_rs(at)],
                DUCKDB: lambda at: [row[0] for row in engines.by_duckdb(at)],
                OURS: lambda at: lakeferry.open(at).to_table()["id"].to_pylist(),
            },
        )


def read_by(session: SparkSession, at: str) -> list[int]:
    return [row.id for row in session.read.format("delta").load(at).collect()]


def seen(read: Callable[[str], list[int]], at: str) -> str:
    try:
        found = read(at)
    except Exception as refused:
        if "redirectReaderWriter" not in str(refused):
            raise
        return BLOCKED
    return FOLLOWS if MOVED_ON in found else STALE


@pytest.mark.parametrize("mode", WRITERS)
def test_the_plan_names_exactly_the_clients_that_break(mode: str, lake: Lake) -> None:
    for name, writers in WRITERS[mode].items():
        clients, at = lake.clients(mode, name), str(lake.root / "old" / mode / name)
        assert set(clients) == set(writers)
        for writer, client in clients.items():
            found = seen(lake.readers[writer], at)
            assert found == said_of(client), (name, writer, client)
            assert client.breaks is (found != FOLLOWS), (name, writer, client)
            assert client.before == "reads and writes"


def test_only_the_newest_delta_spark_has_an_option_that_follows(
    lake: Lake, spark: SparkSession
) -> None:
    at = str(lake.root / "old" / "writer-only" / "f")
    clients = lake.clients("writer-only", "f")
    assert "unless spark.databricks" in clients[NEWEST].after
    assert "unless" not in clients[OLDEST].after
    with client_session(spark, STOCK_FOLLOWING) as following:
        assert seen(lambda at: read_by(following, at), at) == FOLLOWS
    # Its session has the option, too.
    assert seen(lake.readers[OLDEST], at) == STALE


@pytest.mark.parametrize("mode", WRITERS)
def test_who_breaks_can_not_write_by_the_old_path(
    mode: str, lake: Lake, oldest: OldestSpark
) -> None:
    at = str(lake.root / "old" / mode / "f")
    with pytest.raises(OldestSparkError):
        oldest.append(at, [5])
    with pytest.raises(Exception, match="redirect"):
        write_deltalake(at, rows(5), mode="append")
