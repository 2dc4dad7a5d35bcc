"""Files written anew: on Spark as in one process, and to stock delta-spark the same rows."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from lakeferry.engine import REWRITTEN, Engine, Observer, RewritePlan, Volume, unobserved
from lakeferry.engines.local_engine import LocalEngine
from lakeferry.errors import MissingFile
from lakeferry.log import arrow_versions, file_actions
from lakeferry.log.actions import Metadata, changed
from lakeferry.log.commit import Transaction
from lakeferry.storage import open_store
from lakeferry.table import DeltaLog
from lakeferry.table.put_commit import Committed
from tests.support import opinions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lakeferry.engines.spark.spark_engine import SparkEngine

LONG = "concat(repeat('x', 40), id)"
EVERY_VALUE = f"""
    INSERT INTO {{t}} SELECT /*+ REPARTITION(1) */
    id, cast(id AS TINYINT), cast(id / 4 AS FLOAT), id / 4, cast(id AS DECIMAL(20,3)),
    id % 2 = 0, date_add(DATE'1969-12-25', cast(id AS INT)),
    timestamp_millis(id * 123456789), cast(timestamp_millis(id * 987654321) AS TIMESTAMP_NTZ),
    {LONG}, named_struct('a', id, 'b', if(id % 3 = 0, null, 'ü')), array(id), map('k', id)
    FROM range(50)
"""


@dataclass(frozen=True)
class Case:
    """A table made by delta-spark, and what its schema and properties are to be."""

    schema: str
    statements: tuple[str, ...]
    properties: dict[str, str] = field(default_factory=dict)
    partition: str = ""
    unset: tuple[str, ...] = ()
    asked: str = "*"
    filter: str = "id > 7"


CASES = {
    "deletion vectors": Case(
        "id BIGINT, name STRING, part STRING",
        (
            (
                "INSERT INTO {t} SELECT id, concat('n', id), if(id % 3 = 0, 'a b/c', null) "
                "FROM range(40)"
            ),
            "DELETE FROM {t} WHERE id % 7 = 3",
            "UPDATE {t} SET name = 'new' WHERE id = 8",
            "DELETE FROM {t} WHERE id = 8",
            "INSERT INTO {t} VALUES (100, 'untouched', 'x')",
        ),
        {"delta.enableDeletionVectors": "true", "delta.enableRowTracking": "true"},
        "part",
        asked="*, _metadata.row_id, _metadata.row_commit_version",
    ),
    "column mapping": Case(
        "id BIGINT, name STRING, part BIGINT, s STRUCT<a: INT, b: ARRAY<STRUCT<x: INT>>>, "
        "m MAP<STRING, STRUCT<y: INT>>",
        (
            (
                "INSERT INTO {t} SELECT id, concat('n', id), id % 2, named_struct('a', 1, 'b', "
                "array(named_struct('x', 1), null)), map('k', named_struct('y', 2)) FROM range(20)"
            ),
            "ALTER TABLE {t} RENAME COLUMN name TO full_name",
            "ALTER TABLE {t} RENAME COLUMN part TO p",
            "ALTER TABLE {t} RENAME COLUMN s.b.element.x TO z",
            "ALTER TABLE {t} DROP COLUMN full_name",
            "ALTER TABLE {t} ADD COLUMN name STRING",
            "INSERT INTO {t} (id, p, name) VALUES (100, 7, 'new')",
            "DELETE FROM {t} WHERE id = 9",
        ),
        {"delta.columnMapping.mode": "name", "delta.enableDeletionVectors": "true"},
        "part",
        unset=("delta.columnMapping.mode", "delta.columnMapping.maxColumnId"),
    ),
    "type widening": Case(
        "id INT, f FLOAT, de DECIMAL(5,2), toDec INT, da DATE, s STRUCT<a: SMALLINT>",
        (
            (
                "INSERT INTO {t} SELECT cast(id AS INT), id / 4, 1.25, 7, DATE'2020-01-01', "
                "named_struct('a', 3S) FROM range(20)"
            ),
            "ALTER TABLE {t} CHANGE COLUMN id TYPE BIGINT",
            "ALTER TABLE {t} CHANGE COLUMN f TYPE DOUBLE",
            "ALTER TABLE {t} CHANGE COLUMN de TYPE DECIMAL(12,4)",
            "ALTER TABLE {t} CHANGE COLUMN toDec TYPE DECIMAL(15,2)",
            "ALTER TABLE {t} CHANGE COLUMN da TYPE TIMESTAMP_NTZ",
            "ALTER TABLE {t} CHANGE COLUMN s.a TYPE INT",
            (
                "INSERT INTO {t} VALUES (1L << 40, 1e300, 1.2345, 1.5, "
                "TIMESTAMP_NTZ'2021-01-01 01:02:03', named_struct('a', 70000))"
            ),
        ),
        {"delta.enableTypeWidening": "true", "delta.feature.timestampNtz": "supported"},
        unset=("delta.enableTypeWidening",),
    ),
}


@pytest.fixture
def engine(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Iterator[SparkEngine]:
    """The engine on Spark, with tasks of two files at most."""
    from lakeferry.engines.spark.spark_engine import SparkEngine
    from lakeferry.engines.spark.tasks import task_sizes

    monkeypatch.setattr(task_sizes, "TASK_OBJECTS", 2)
    monkeypatch.setattr(task_sizes, "_SMALLEST_TASK_OBJECTS", 2)
    with SparkEngine() as running:
        yield running


def made(spark: SparkSession, location: str, case: Case) -> DeltaLog:
    """Let delta-spark make a table."""
    table = f"delta.`{location}`"
    properties = ", ".join(f"'{key}' = '{value}'" for key, value in case.properties.items())
    spark.sql(
        f"CREATE TABLE {table} ({case.schema}) USING delta"
        + (f" PARTITIONED BY ({case.partition})" if case.partition else "")
        + (f" TBLPROPERTIES ({properties})" if properties else "")
    )
    for statement in case.statements:
        spark.sql(statement.format(t=table))
    return DeltaLog(open_store(location))


def without_traces(metadata: Metadata, unset: tuple[str, ...]) -> Metadata:
    """Return metadata without properties, and without what features keep in a schema."""

    def bare(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: {} if key == "metadata" else bare(item) for key, item in value.items()}
        return [bare(item) for item in value] if isinstance(value, list) else value

    kept = {key: value for key, value in metadata.configuration.items() if key not in unset}
    text = json.dumps(bare(json.loads(metadata.schema_string)))
    return changed(metadata, schema_string=text, configuration=kept)


def rewritten(engine: Engine, plan: RewritePlan, observer: Observer = unobserved) -> pa.Table:
    """Return what became of the plan's files, in its order."""
    batches = list(engine.rewrite(plan, observer))
    return pa.Table.from_batches(batches, REWRITTEN).sort_by("row")


def comparable(found: pa.Table) -> list[dict[str, Any]]:
    """Return what must not depend on who wrote a file."""
    rows: list[dict[str, Any]]
    rows = arrow_versions.to_rows(found.drop_columns(["modificationTime"]))
    for row in rows:
        if row["outcome"] == "rewritten":
            row["path"] = row["path"].rpartition("/")[0]
    return rows


def commit(log: DeltaLog, plan: RewritePlan, found: pa.Table, metadata: Metadata | None) -> None:
    """Put new files in the place of old ones."""
    done = found.filter(pc.not_equal(found["outcome"], "kept"))
    old = plan.files.take(done["row"])
    removes = pa.Table.from_pylist(
        [
            {name: row.get(name) for name in file_actions.REMOVE.names}
            | {"dataChange": False, "deletionTimestamp": 1_700_000_000_000}
            | {"extendedFileMetadata": True}
            for row in old.to_pylist()
        ],
        file_actions.REMOVE,
    )
    adds = done.filter(pc.equal(done["outcome"], "rewritten")).select(file_actions.ADD.names)
    transaction = Transaction(
        "REORG",
        str(uuid.uuid4()),
        metadata=metadata,
        adds=adds,
        removes=removes,
        new_names=True,
    )
    assert isinstance(log.commit(transaction, log.state()), Committed)


def rows(spark: SparkSession, location: str, case: Case, condition: str = "true") -> list[str]:
    opinions.forget(spark)
    query = f"SELECT {case.asked} FROM delta.`{location}` WHERE {condition}"
    return sorted(map(repr, spark.sql(query).collect()))


@pytest.mark.parametrize("name", CASES)
def test_delta_spark_finds_the_same_rows_in_files_that_lost(
    name: str, spark: SparkSession, engine: SparkEngine, tmp_path: Path
) -> None:
    case = CASES[name]
    location = str(tmp_path / "table")
    log = made(spark, location, case)
    expected = rows(spark, location, case)
    some = rows(spark, location, case, case.filter)
    assert 0 < len(some) < len(expected)
    snapshot = log.snapshot()
    after = without_traces(snapshot.metadata, case.unset) if case.unset else snapshot.metadata
    live = snapshot.files.select(file_actions.ADD.names).cast(file_actions.ADD)
    plan = RewritePlan(log.store.config, live, snapshot.metadata, after, tight_bounds=True)
    told: list[tuple[str, int, int]] = []

    found = rewritten(engine, plan, lambda *event: told.append(event))

    assert comparable(found) == comparable(rewritten(LocalEngine(), plan))
    assert "rewritten" in found["outcome"].to_pylist()
    last = told[-1]
    assert isinstance(last[2], Volume)
    assert last == ("rewriting files", snapshot.size_bytes, snapshot.size_bytes)
    assert last[2].objects == snapshot.num_files
    commit(log, plan, found, after if case.unset else None)
    assert rows(spark, location, case) == expected
    assert rows(spark, location, case, case.filter) == some
    # There is nothing left to do.
    newest = log.snapshot()
    assert newest.files["deletionVector"].null_count == newest.num_files
    live = newest.files.select(file_actions.ADD.names).cast(file_actions.ADD)
    again = replace(plan, files=live, before=after)
    assert set(rewritten(LocalEngine(), again)["outcome"].to_pylist()) == {"kept"}


def test_statistics_are_delta_sparks_own_and_a_missing_file_is_named(
    spark: SparkSession, engine: SparkEngine, tmp_path: Path
) -> None:
    case = Case(
        "id BIGINT, b TINYINT, f FLOAT, d DOUBLE, de DECIMAL(20,3), bo BOOLEAN, da DATE, "
        "ts TIMESTAMP, tn TIMESTAMP_NTZ, long STRING, s STRUCT<a: BIGINT, b: STRING>, "
        "ar ARRAY<BIGINT>, m MAP<STRING, BIGINT>",
        (EVERY_VALUE,),
    )
    log = made(spark, str(tmp_path / "table"), case)
    snapshot = log.snapshot()
    live = snapshot.files.select(file_actions.ADD.names).cast(file_actions.ADD)
    plan = RewritePlan(
        log.store.config, live, snapshot.metadata, snapshot.metadata, only_where_needed=False
    )
    found = rewritten(engine, plan)
    theirs, ours = (
        json.loads(each["stats"][0].as_py(), parse_float=Decimal) for each in (live, found)
    )
    assert theirs.pop("tightBounds", True)
    assert ours == theirs

    gone = live["path"][0].as_py()
    log.store.delete_many([gone])
    with pytest.raises(MissingFile) as missing:
        rewritten(engine, plan)
    assert missing.value.fields["path"] == gone
