"""We read what the engines write with each feature, and they read what we write on top."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from lakeferry.log import actions
from lakeferry.log.commit import Transaction
from lakeferry.storage import open_store
from lakeferry.table import DeltaLog
from lakeferry.table.put_commit import Committed
from tests.support import engines, opinions
from tests.support.shares import Share

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class Case:
    """A table with one feature, made by delta-spark; some readers don't know the feature."""

    properties: dict[str, str]
    statements: tuple[str, ...]
    schema: str = "id BIGINT, name STRING, part INT"
    partitioned: bool = True
    refused_by: frozenset[str] = field(default_factory=frozenset)
    misread_by: frozenset[str] = field(default_factory=frozenset)


INSERT = "INSERT INTO {t} VALUES (1, 'a', 1), (2, 'b', 1), (3, 'c', 2), (4, NULL, NULL)"
CASES = {
    "plain": Case({}, (INSERT, "UPDATE {t} SET name = 'x' WHERE id = 2")),
    "deletion vectors": Case(
        {"delta.enableDeletionVectors": "true"},
        (
            INSERT,
            "INSERT INTO {t} SELECT id, 'n', 3 FROM range(10, 90)",
            "DELETE FROM {t} WHERE id % 7 = 3",
        ),
    ),
    "column mapping": Case(
        {"delta.columnMapping.mode": "name"},
        (INSERT, "ALTER TABLE {t} RENAME COLUMN name TO `full name`", INSERT),
        refused_by=frozenset({"polars"}),
        # DuckDB finds no values of a partition column whose name is mapped, whoever wrote it.
        misread_by=frozenset({"duckdb"}),
    ),
    "v2 checkpoints": Case(
        {"delta.checkpointPolicy": "v2", "delta.checkpointInterval": "2"},
        (INSERT, INSERT, INSERT, "DELETE FROM {t} WHERE id = 1"),
        refused_by=frozenset({"polars"}),
    ),
    "row tracking": Case(
        {"delta.enableRowTracking": "true"},
        (INSERT, "UPDATE {t} SET name = 'x' WHERE id = 3"),
    ),
    "in-commit timestamps": Case(
        {"delta.enableInCommitTimestamps": "true"},
        (INSERT, "DELETE FROM {t} WHERE id = 1"),
    ),
    "type widening": Case(
        {"delta.enableTypeWidening": "true"},
        (INSERT, "ALTER TABLE {t} CHANGE COLUMN small TYPE INT", INSERT),
        schema="id BIGINT, name STRING, small SMALLINT",
        partitioned=False,
        refused_by=frozenset({"delta-rs", "polars"}),
    ),
    "change data feed": Case(
        {"delta.enableChangeDataFeed": "true"},
        (INSERT, "UPDATE {t} SET name = 'x' WHERE id = 2", "DELETE FROM {t} WHERE id = 3"),
    ),
}


READERS: dict[str, Callable[[str], engines.Rows]] = {
    "delta-rs": engines.by_delta_rs,
    "polars": engines.by_polars,
    "duckdb": engines.by_duckdb,
}
REFUSED = "refused, for a feature that it doesn't know"


def answer(read: Callable[[str], engines.Rows], location: str) -> engines.Rows | str:
    """Return the rows that a reader finds, or that it refuses the table."""
    try:
        return read(location)
    except Exception as refused:
        if re.search(r"(?i)not support|unsupported", str(refused)):
            return REFUSED
        raise


def create(spark: SparkSession, location: str, case: Case) -> None:
    properties = ", ".join(f"'{key}' = '{value}'" for key, value in case.properties.items())
    table = f"delta.`{location}`"
    spark.sql(
        f"CREATE TABLE {table} ({case.schema}) USING delta"
        + (" PARTITIONED BY (part)" if case.partitioned else "")
        + (f" TBLPROPERTIES ({properties})" if properties else "")
    )
    for statement in case.statements:
        spark.sql(statement.format(t=table))


def set_property(log: DeltaLog, name: str, value: str) -> Committed:
    """Commit one more table property, as a user would."""
    read = log.state()
    configuration = {**read.metadata.configuration, name: value}
    transaction = Transaction(
        "SET TBLPROPERTIES",
        str(uuid.uuid4()),
        {"properties": f'{{"{name}":"{value}"}}'},
        metadata=actions.changed(read.metadata, configuration=configuration),
    )
    done = log.commit(transaction, read)
    assert isinstance(done, Committed)
    return done


@pytest.mark.parametrize("name", CASES)
def test_engines_and_we_agree_on_a_table_with(
    name: str, spark: SparkSession, tmp_path: Path, share: Share
) -> None:
    """Versions are read right, a share of them in each run; what we write is, by everybody."""
    case = CASES[name]
    location = str(tmp_path / "table")
    create(spark, location, case)
    log = DeltaLog(open_store(location))

    newest = log.segment().version
    for version in sorted({*share.some(range(newest + 1)), newest}):
        theirs = opinions.delta_spark(spark, location, version)
        assert opinions.ours(log.snapshot(version), log.store.uri) == theirs

    expected = engines.by_spark(spark, location)
    before = {reader: answer(read, location) for reader, read in READERS.items()}
    assert {reader for reader in before if before[reader] == REFUSED} == case.refused_by
    done = set_property(log, "lakeferry.test", "1")
    assert done.version == newest + 1
    # Without older checkpoints and commits, nobody can get around reading ours.
    written = log.checkpoint()
    assert written.created
    assert written.version == done.version
    for file in Path(location, "_delta_log").glob("*"):
        if file.name[:20].isdigit() and int(file.name[:20]) < done.version:
            file.unlink()
            Path(file.parent, f".{file.name}.crc").unlink(missing_ok=True)

    ours = opinions.ours(log.snapshot(), log.store.uri)
    assert ours == opinions.delta_spark(spark, location)
    assert engines.by_spark(spark, location) == expected
    for reader, read in READERS.items():
        assert answer(read, location) == before[reader], reader
        if reader not in case.refused_by:
            assert (before[reader] == expected) == (reader not in case.misread_by), reader

    # delta-spark goes on from our version: its own checks accept what we wrote.
    spark.sql(f"DELETE FROM delta.`{location}` WHERE id = 2")
    assert opinions.ours(log.snapshot(), log.store.uri) == opinions.delta_spark(spark, location)


def test_tables_of_delta_rs_are_read_and_continued(spark: SparkSession, tmp_path: Path) -> None:
    """delta-rs writes, we commit and checkpoint, delta-rs and delta-spark go on."""
    location = str(tmp_path / "table")
    rows = pa.table({"id": [1, 2, 3], "part": ["a b", "c/d", None]})
    write_deltalake(location, rows, partition_by=["part"])
    write_deltalake(location, rows, mode="append")
    DeltaTable(location).delete("id = 2")
    log = DeltaLog(open_store(location))
    for version in range(3):
        theirs = opinions.delta_spark(spark, location, version)
        assert opinions.ours(log.snapshot(version), log.store.uri) == theirs

    set_property(log, "lakeferry.test", "1")
    assert log.checkpoint().created
    write_deltalake(location, rows, mode="append")

    expected = engines.by_spark(spark, location)
    assert len(expected) == 7
    assert engines.by_delta_rs(location) == expected
    assert engines.by_polars(location) == expected
    assert engines.by_duckdb(location) == expected
    assert opinions.ours(log.snapshot(), log.store.uri) == opinions.delta_spark(spark, location)


def test_checksums_and_timestamps_go_on_where_the_table_has_them(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Our commit on such a table has both, and delta-spark finds them right."""
    location = str(tmp_path / "table")
    create(spark, location, CASES["in-commit timestamps"])
    log = DeltaLog(open_store(location))
    before = log.segment()
    assert before.checksum is not None
    previous = log.commit_info(before.version)

    done = set_property(log, "lakeferry.test", "1")

    info = log.commit_info(done.version)
    assert info is not None
    assert previous is not None
    assert info.in_commit_timestamp is not None
    assert previous.in_commit_timestamp is not None
    assert info.in_commit_timestamp > previous.in_commit_timestamp
    segment = log.segment()
    assert segment.checksum is not None
    spark_log = opinions.spark_log(spark, location)
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    none = jvm.scala.Option.empty()
    snapshot = spark_log.update(False, none, none)
    assert snapshot.version() == done.version
    assert snapshot.timestamp() == info.in_commit_timestamp
    assert snapshot.checksumOpt().isDefined()
    assert snapshot.validateChecksum(jvm.scala.Predef.Map().empty())
