"""The matrix of clients, cell by cell, asked of the releases that are installed here.

Each feature is put into the protocol of a table that doesn't use it, together with the features
that it requires. What is asked of a client is whether it opens the table, and whether it appends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import polars
import pytest
from deltalake import DeltaTable, write_deltalake

import lakeferry
from lakeferry.clients.client_lines import ClientLine
from lakeferry.clients.known_lines import KNOWN_LINES, MATRIX_TEST
from lakeferry.clients.readability import readable_by
from lakeferry.clients.verdicts import Ability
from lakeferry.log.actions import Protocol
from lakeferry.log.features import FEATURES
from tests.support import engines
from tests.support.delta_spark_features import known_features
from tests.support.feature_tables import (
    FOR_READERS,
    FOR_WRITERS,
    ROWS,
    FeatureTables,
    protocol_with,
    with_required,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FEATURE_NAMES = (*FEATURES, FOR_READERS, FOR_WRITERS)
OLD_VERSIONS = [(1, 1), (1, 2), (1, 3), (1, 4), (2, 5), (2, 6)]
PROTOCOLS = {
    **{name: protocol_with(*with_required(name)) for name in FEATURE_NAMES},
    **{
        f"({reader}, {writer})": {"minReaderVersion": reader, "minWriterVersion": writer}
        for reader, writer in OLD_VERSIONS
    },
}
REFUSALS = "feature|Feature|reader version|catalog|Catalog"
Calls = Mapping[str, Callable[[str], object]]


class DuckDB:
    """One connection for all tables, as loading the extension takes half a second."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._connection: duckdb.DuckDBPyConnection | None = None

    def connection(self) -> duckdb.DuckDBPyConnection:
        if self._connection is None:
            self._connection = self._stack.enter_context(engines.duckdb_with_delta())
        return self._connection

    def scan(self, location: str) -> object:
        return self.connection().execute("SELECT * FROM delta_scan(?)", [location]).fetchall()

    def append(self, location: str) -> None:
        name = Path(location).name.replace("-", "_")
        self.connection().execute(f"ATTACH '{location}' AS {name} (TYPE delta)")
        self.connection().execute(f"INSERT INTO {name} VALUES (3)")

    def close(self) -> None:
        self._stack.close()


DUCKDB = DuckDB()


def lakeferry_commit(location: str) -> None:
    """Commit a protocol and a property, which is what Lakeferry writes."""
    lakeferry.Table(location).freeze()


@dataclass(frozen=True)
class Client:
    """What is asked of a client. It reads a table if all of ``reads`` do, in part if some do."""

    release: str
    reads: Calls
    append: Callable[[str], object]


CLIENTS = {
    "Lakeferry": Client(
        version("lakeferry"),
        {"open": lambda at: lakeferry.open(at).to_table()},
        lakeferry_commit,
    ),
    "delta-rs": Client(
        version("deltalake"),
        {
            "query": engines.by_delta_rs,
            "Arrow": lambda at: DeltaTable(at).to_pyarrow_table(),
        },
        lambda at: write_deltalake(at, ROWS, mode="append"),
    ),
    "Polars": Client(
        polars.__version__,
        {"read": polars.read_delta},
        lambda at: polars.DataFrame({"id": [3]}).write_delta(at, mode="append"),
    ),
    "DuckDB": Client(duckdb.__version__, {"scan": DUCKDB.scan}, DUCKDB.append),
}


def line_of(client: str, release: str) -> ClientLine:
    (found,) = (line for line in KNOWN_LINES if (line.client, line.tried) == (client, release))
    return found


def can(call: Callable[[str], object], location: str) -> bool:
    """Return whether a client does something; what it says otherwise has to be a refusal."""
    try:
        call(location)
    except Exception as refused:
        text = str(refused)
        if not any(word in text for word in REFUSALS.split("|")):
            raise
        return False
    return True


def ability(answers: list[bool]) -> Ability:
    if all(answers):
        return Ability.YES
    return Ability.PARTLY if any(answers) else Ability.NO


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FeatureTables]:
    yield FeatureTables(tmp_path_factory.mktemp("features"))
    DUCKDB.close()


def value(document: Mapping[str, Any]) -> Protocol:
    return Protocol(
        document["minReaderVersion"],
        document["minWriterVersion"],
        tuple(document["readerFeatures"]) if "readerFeatures" in document else None,
        tuple(document["writerFeatures"]) if "writerFeatures" in document else None,
    )


@pytest.mark.parametrize("name", CLIENTS)
def test_the_client_reads_and_writes_what_the_matrix_says(name: str, tables: FeatureTables) -> None:
    client = CLIENTS[name]
    line = line_of(name, client.release)
    wrong = {}
    for feature, document in PROTOCOLS.items():
        location = tables.table(document)
        reads = ability([can(read, location) for read in client.reads.values()])
        writes = ability([can(client.append, location)])
        (row,) = readable_by(value(document), [line])
        # A path alone doesn't lead to a table that a catalog manages: "in part" is by its name.
        said = [
            Ability.NO if each is Ability.PARTLY and "path alone" in row.note else each
            for each in (row.reads, row.writes)
        ]
        if feature.startswith("(2,") and said[0] is Ability.PARTLY:
            # What a version implies without a name, every call of it opens.
            said[0] = Ability.YES
        if said != [reads, writes]:
            wrong[feature] = {"said": said, "found": [reads, writes]}
    assert wrong == {}


def test_delta_spark_knows_the_features_that_the_matrix_says(
    spark: SparkSession, tmp_path: Path
) -> None:
    line = line_of("delta-spark", version("delta-spark"))
    found = known_features(spark, tmp_path / "asked")
    assert set(found.reads) & line.reads == line.reads
    said = {name for name in FEATURES if line.reading(name).ability is not Ability.NO}
    assert {name for name in found.reads if FEATURES[name].kind.value != "writer"} == said
    assert set(found.writes) == {
        name for name in FEATURES if line.writing(name).ability is not Ability.NO
    }


def test_every_release_that_is_said_to_be_tried_is_tried() -> None:
    tried = {(line.client, line.tried) for line in KNOWN_LINES if line.tried is not None}
    here = {(name, client.release) for name, client in CLIENTS.items()}
    by_spark = {each for each in tried if each[0] == "delta-spark"}
    assert tried == here | by_spark
    assert ("delta-spark", version("delta-spark")) in by_spark
    proofs = (MATRIX_TEST, "tests/compat/test_oldest_spark.py")
    assert all(line.source.startswith(proofs) for line in KNOWN_LINES if line.tried is not None)
