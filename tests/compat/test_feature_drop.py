"""A feature is dropped: every engine reads all that it read before, and goes on."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError

from lakeferry import Table
from lakeferry.storage import open_store
from lakeferry.table import DeltaLog
from tests.support import engines, opinions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lakeferry.api.table import Dropped

pytestmark = pytest.mark.usefixtures("unsplit_plans")

INSERT = "INSERT INTO {t} SELECT id, cast(id AS INT), 'x' FROM range(10)"
PROTECTION = "checkpointProtection"
BOUNDARY = "delta.requireCheckpointProtectionBeforeVersion"
DAY_S = 86_400


@dataclass(frozen=True)
class Case:
    """A table of delta-spark with a feature, and what others make of it.

    ``refused_by`` don't know the feature, ``misread_by`` read it wrongly. ``leaves`` is
    a feature that is left and that delta-rs doesn't write. delta-spark doesn't offer
    to drop every feature that we drop (``dropped_by_spark``).
    """

    feature: str
    properties: str = ""
    statements: tuple[str, ...] = (INSERT,)
    schema: str = "id BIGINT, i INT, s STRING"
    layout: str = ""
    afterwards: tuple[str, ...] = ()
    added_by_hand: bool = False
    truncates: bool = False
    protects: bool = False
    leaves: str | None = None
    dropped_by_spark: bool = True
    refused_by: frozenset[str] = field(default_factory=frozenset)
    misread_by: frozenset[str] = field(default_factory=frozenset)


MAPPED = (
    "INSERT INTO {t} SELECT id, cast(id AS INT), 'x', if(id % 3 = 0, 'a b/c', null) FROM range(10)",
    "ALTER TABLE {t} RENAME COLUMN s TO t",
    "INSERT INTO {t} VALUES (10, 10, 'y', 'd')",
)
CASES = {
    "deletion vectors": Case(
        "deletionVectors",
        "'delta.enableDeletionVectors' = 'true'",
        (INSERT, "DELETE FROM {t} WHERE id = 3", "DELETE FROM {t} WHERE id = 4"),
        protects=True,
    ),
    "column mapping by name": Case(
        "columnMapping",
        "'delta.columnMapping.mode' = 'name'",
        MAPPED,
        "id BIGINT, i INT, s STRING, p STRING",
        "PARTITIONED BY (p)",
        protects=True,
        refused_by=frozenset({"polars"}),
        # DuckDB finds no values of a partition column whose name is mapped, whoever wrote it.
        misread_by=frozenset({"duckdb"}),
    ),
    "column mapping by id": Case(
        "columnMapping",
        "'delta.columnMapping.mode' = 'id'",
        (INSERT, "ALTER TABLE {t} RENAME COLUMN s TO t"),
        protects=True,
        refused_by=frozenset({"polars"}),
    ),
    "v2 checkpoints": Case(
        "v2Checkpoint",
        "'delta.checkpointPolicy' = 'v2', 'delta.checkpointInterval' = '2'",
        (INSERT, INSERT, "DELETE FROM {t} WHERE id = 3"),
        protects=True,
        refused_by=frozenset({"polars"}),
    ),
    "the vacuum protocol check": Case(
        "vacuumProtocolCheck",
        "'delta.feature.vacuumProtocolCheck' = 'supported'",
        protects=True,
        refused_by=frozenset({"delta-rs", "polars"}),
    ),
    "type widening": Case(
        "typeWidening",
        "'delta.enableTypeWidening' = 'true'",
        (INSERT, "ALTER TABLE {t} CHANGE COLUMN i TYPE BIGINT", INSERT),
        protects=True,
        refused_by=frozenset({"delta-rs", "polars"}),
    ),
    "in-commit timestamps": Case("inCommitTimestamp", "'delta.enableInCommitTimestamps' = 'true'"),
    "row tracking": Case(
        "rowTracking",
        "'delta.enableRowTracking' = 'true'",
        (INSERT, "UPDATE {t} SET s = 'y' WHERE id = 3"),
        leaves="domainMetadata",
    ),
    "domain metadata": Case("domainMetadata", "'delta.feature.domainMetadata' = 'supported'"),
    "check constraints": Case(
        "checkConstraints",
        "'delta.feature.checkConstraints' = 'supported'",
        (
            "ALTER TABLE {t} ADD CONSTRAINT c CHECK (id >= 0)",
            INSERT,
            "ALTER TABLE {t} DROP CONSTRAINT c",
        ),
    ),
    "append only": Case(
        "appendOnly",
        "'delta.appendOnly' = 'true'",
        afterwards=("DELETE FROM {t} WHERE id = 3",),
        dropped_by_spark=False,
    ),
    "change data feed": Case(
        "changeDataFeed",
        "'delta.enableChangeDataFeed' = 'true'",
        (INSERT, "UPDATE {t} SET s = 'y' WHERE id = 3"),
        dropped_by_spark=False,
    ),
    "clustering": Case(
        "clustering", layout="CLUSTER BY (id)", leaves="domainMetadata", dropped_by_spark=False
    ),
    **{
        f"{name} left over": Case(
            name,
            added_by_hand=True,
            dropped_by_spark=False,
            refused_by=frozenset({"delta-rs", "polars", "duckdb"} if "Reader" in name else ()),
        )
        for name in (
            "redirectReaderWriter",
            "redirectWriterOnly-preview",
        )
    },
    "checkpoint protection": Case(
        PROTECTION,
        "'delta.feature.vacuumProtocolCheck' = 'supported'",
        (INSERT, "ALTER TABLE {t} DROP FEATURE vacuumProtocolCheck", INSERT),
        truncates=True,
        refused_by=frozenset({"delta-rs", "polars"}),
    ),
}
Reader = Callable[[str, int | None], engines.Rows]
REFUSED = "refused, for a feature that it doesn't know"
Answers = dict[int, engines.Rows | str]


def answers(read: Reader, location: str, versions: Collection[int]) -> Answers:
    """Return the rows that a reader finds at each version, or that it refuses it."""
    found: Answers = {}
    for version in versions:
        try:
            found[version] = read(location, version)
        except Exception as refused:
            if not re.search(r"(?i)not support|unsupported", str(refused)):
                raise
            found[version] = REFUSED
    return found


def opened_by_spark(spark: SparkSession, location: str, versions: Collection[int]) -> set[int]:
    """Return the versions that delta-spark doesn't refuse, whatever their rows."""
    opinions.forget(spark)
    found = set()
    for version in versions:
        try:
            spark.read.format("delta").option("versionAsOf", version).load(location)
        except Exception as refused:
            if "DELTA_UNSUPPORTED_FEATURES_FOR_READ" not in str(refused):
                raise
        else:
            found.add(version)
    return found


@pytest.fixture(scope="module")
def readers() -> Iterator[Mapping[str, Reader]]:
    """Everybody but delta-spark, each by name."""
    with engines.duckdb_with_delta() as connection:

        def by_duckdb(location: str, version: int | None) -> engines.Rows:
            query = f"SELECT * FROM delta_scan(?, version = {version})"
            return sorted(connection.execute(query, [location]).fetchall(), key=repr)

        yield {"delta-rs": engines.by_delta_rs, "polars": engines.by_polars, "duckdb": by_duckdb}


@dataclass(frozen=True)
class Made:
    """A table before we dropped its feature, with delta-spark's rows of each version; and after."""

    case: Case
    before: str
    rows: Mapping[int, engines.Rows]
    ours: str
    dropped: Dropped
    earliest: int

    @property
    def last(self) -> int:
        """The newest version before the drop."""
        return max(self.rows)

    @property
    def versions(self) -> range:
        """Every version that there is now."""
        return range(self.earliest, self.dropped.version + 1)


@pytest.fixture(scope="module")
def made(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Made]:
    """Tables by the names of their cases, each made once."""

    @cache
    def make(name: str) -> Made:
        case = CASES[name]
        folder = tmp_path_factory.mktemp("dropped")
        before, ours = str(folder / "before"), str(folder / "ours")
        create(spark, before, case)
        newest = DeltaLog(open_store(before)).segment().version
        rows = engines.by_spark_at(spark, before, range(newest + 1))
        if case.added_by_hand:
            rows[newest + 1] = rows[newest]
            add_by_hand(before, newest + 1, case.feature)
        if case.truncates:
            make_older(before, 2 * DAY_S)
        shutil.copytree(before, ours)
        done = Table(ours).drop_feature(
            case.feature, truncate_history=case.truncates, engine="local"
        )
        earliest = Table(ours).inspect().earliest_version
        assert earliest is not None
        return Made(case, before, rows, ours, done, earliest)

    return make


def create(spark: SparkSession, location: str, case: Case) -> None:
    table = f"delta.`{location}`"
    properties = f" TBLPROPERTIES ({case.properties})" if case.properties else ""
    spark.sql(f"CREATE TABLE {table} ({case.schema}) USING delta {case.layout}{properties}")
    for statement in case.statements:
        spark.sql(statement.format(t=table))


def add_by_hand(location: str, version: int, feature: str) -> None:
    """Commit a protocol with a feature that delta-spark doesn't let anybody add."""
    protocol: dict[str, Any] = {
        "minReaderVersion": 1,
        "minWriterVersion": 7,
        "writerFeatures": ["appendOnly", "invariants", feature],
    }
    if "Reader" in feature:
        protocol |= {"minReaderVersion": 3, "readerFeatures": [feature]}
    info = {"timestamp": int(time.time() * 1000), "operation": "UPGRADE PROTOCOL"}
    lines = [json.dumps({"commitInfo": info}), json.dumps({"protocol": protocol})]
    Path(location, "_delta_log", f"{version:020}.json").write_text("\n".join(lines) + "\n")


def make_older(location: str, seconds: int) -> None:
    """Set back the time of every file of the log."""
    for file in Path(location, "_delta_log").rglob("*"):
        then = file.stat().st_mtime - seconds
        os.utime(file, (then, then))


def protocol_sets(log: DeltaLog) -> tuple[int, int, set[str], set[str]]:
    """Return a table's newest protocol, whatever the order of its features."""
    protocol = log.state().protocol
    return (
        protocol.min_reader_version,
        protocol.min_writer_version,
        set(protocol.reader_features or ()),
        set(protocol.writer_features or ()),
    )


@pytest.mark.parametrize("name", CASES)
def test_engines_read_what_they_read_before_once_we_dropped(
    name: str,
    spark: SparkSession,
    made: Callable[[str], Made],
    readers: Mapping[str, Reader],
) -> None:
    """Every version that an engine could read, with the same rows; and the newest by all."""
    table = made(name)
    case, last, newest = table.case, table.last, table.dropped.version
    assert (table.dropped.boundary, len(table.dropped.checkpoints)) == (
        (newest, 3) if case.protects else (None, 0)
    )
    kept = [version for version in table.rows if version >= table.earliest]
    for reader, read in readers.items():
        before = answers(read, table.before, kept if case.truncates else table.rows)
        refuses = REFUSED in answers(read, table.before, table.rows).values()
        wrong = any(before[v] not in (table.rows[v], REFUSED) for v in before)
        assert (reader in case.refused_by, reader in case.misread_by) == (refuses, wrong), reader

        after = answers(read, table.ours, table.versions)

        assert after == before | {
            # While it is being dropped, the feature is there, and its traces aren't.
            version: REFUSED if reader in case.refused_by and version < newest else table.rows[last]
            for version in range(last + 1, newest + 1)
        }, reader
    # What lies between is the same to delta-spark, which knows the features; once is enough.
    asked = table.versions if name == "deletion vectors" else [*kept, newest]
    expected = {version: table.rows[min(version, last)] for version in asked}
    if case.added_by_hand and "Reader" in case.feature:
        del expected[last]
        assert not opened_by_spark(spark, table.ours, [last])
    assert engines.by_spark_at(spark, table.ours, expected) == expected


def test_protected_history_is_gone_once_protection_is(made: Callable[[str], Made]) -> None:
    """Older than a day, it goes with one command, up to the boundary."""
    table = made("checkpoint protection")
    boundary = DeltaLog(open_store(table.before)).state().metadata.configuration[BOUNDARY]
    assert table.earliest == int(boundary)
    log = Path(table.ours, "_delta_log")
    named = {int(file.name[:20]) for file in log.iterdir() if file.name[:20].isdigit()}
    assert min(named) == int(boundary)


@pytest.mark.parametrize("name", CASES)
def test_writers_go_on_once_we_dropped(
    name: str, spark: SparkSession, made: Callable[[str], Made], tmp_path: Path
) -> None:
    """delta-spark at once; delta-rs as soon as nothing is left that it doesn't know."""
    table = made(name)
    location = str(tmp_path / "table")
    shutil.copytree(table.ours, location)
    expected = list(table.rows[table.last])
    columns = len(table.case.schema.split(","))
    schema = pa.schema(DeltaTable(location).schema().to_arrow())
    row = dict(zip(schema.names, [100, 100, "z", "z"], strict=False))

    left = PROTECTION if table.case.protects else table.case.leaves
    if left is not None:
        with pytest.raises(CommitFailedError, match=rf"(?i)unsupported .*{left}"):
            write_deltalake(location, pa.Table.from_pylist([row], schema), mode="append")
    if table.case.leaves is not None:
        Table(location).drop_feature(table.case.leaves)
    if not table.case.protects:
        write_deltalake(location, pa.Table.from_pylist([row], schema), mode="append")
        expected.append((100, 100, "z", "z")[:columns])
    for statement in (
        f"INSERT INTO {{t}} VALUES (101, 7{', null' * (columns - 2)})",
        *table.case.afterwards,
    ):
        spark.sql(statement.format(t=f"delta.`{location}`"))
    expected.append((101, 7, None, None)[:columns])
    if table.case.afterwards:
        expected = [each for each in expected if each[0] != 3]

    assert engines.by_spark(spark, location) == sorted(expected, key=repr)
    assert engines.by_delta_rs(location) == sorted(expected, key=repr)


@pytest.mark.parametrize("name", [name for name in CASES if CASES[name].dropped_by_spark])
def test_delta_spark_drops_to_the_same_protocol_and_boundary(
    name: str, spark: SparkSession, made: Callable[[str], Made], tmp_path: Path
) -> None:
    """Of two equal tables, one is dropped from by it; the same versions stay readable."""
    table = made(name)
    case = table.case
    location = str(tmp_path / "table")
    shutil.copytree(table.before, location)

    how = " TRUNCATE HISTORY" if case.truncates else ""
    spark.sql(f"ALTER TABLE delta.`{location}` DROP FEATURE {case.feature}{how}")

    theirs, ours = DeltaLog(open_store(location)), DeltaLog(open_store(table.ours))
    assert protocol_sets(ours) == protocol_sets(theirs)
    version = theirs.segment().version
    boundaries = [log.state().metadata.configuration.get(BOUNDARY) for log in (ours, theirs)]
    if case.protects:
        assert version == table.dropped.version
        assert boundaries == [str(version)] * 2
    else:
        assert boundaries == [None, None]
    earliest = theirs.listing().earliest_version()
    assert earliest is not None
    # Truncating, it takes all that is old enough, and we what the feature asks for.
    assert earliest > table.earliest if case.truncates else earliest == table.earliest
    versions = range(earliest, version + 1)
    read_of_theirs = answers(engines.by_delta_rs, location, versions)
    read_of_ours = answers(engines.by_delta_rs, table.ours, table.versions)
    # Where one took more commits than the other, those are as the newest.
    for number in versions:
        assert read_of_theirs[number] == read_of_ours[min(number, table.dropped.version)]
    assert opened_by_spark(spark, location, versions) == set(versions)
    assert opened_by_spark(spark, table.ours, table.versions) == set(table.versions)


def test_deletion_vectors_are_dropped_on_the_users_spark(
    spark: SparkSession, made: Callable[[str], Made], tmp_path: Path
) -> None:
    """The same rows and protocol as with the engine of one process."""
    table = made("deletion vectors")
    location = str(tmp_path / "table")
    shutil.copytree(table.before, location)

    done = Table(location).drop_feature("deletionVectors", engine="spark")

    assert done.as_document() == table.dropped.as_document()
    for version in (table.last, done.version):
        assert engines.by_delta_rs(location, version) == table.rows[table.last]
    assert engines.by_spark(spark, location) == table.rows[table.last]
    assert spark.range(3).count() == 3


def test_a_vacuum_that_knows_no_vectors_keeps_what_time_travel_needs(
    made: Callable[[str], Made], tmp_path: Path
) -> None:
    """Vectors' files are old and named by no live file, and yet removed only just now."""
    table = made("deletion vectors")
    location = str(tmp_path / "table")
    shutil.copytree(table.ours, location)
    vectors = [file.name for file in Path(location).glob("*.bin")]
    assert vectors
    Path(location, "stray.bin").touch()
    for file in Path(location).iterdir():
        if file.is_file():
            os.utime(file, (time.time() - 30 * DAY_S,) * 2)

    assert DeltaTable(location).vacuum(dry_run=True, full=True) == ["stray.bin"]
