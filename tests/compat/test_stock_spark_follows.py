"""Stock delta-spark follows our writer-only redirects, with one option and no code of ours.

Everything that it does through the old path, it does at the target; the source
stays as it is, byte for byte. Without the option it is a legacy client.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable, write_deltalake

import lakeferry
from lakeferry.api.redirects import Redirects
from lakeferry.errors import RedirectRuleViolated, RedirectSpecInvalid
from lakeferry.log import paths
from lakeferry.redirect import dialects
from lakeferry.redirect.entry import Dialect, Mode
from lakeferry.storage import open_store
from tests.support.redirected_tables import (
    MODES,
    MOVED_ON,
    OURS,
    ROWS,
    STOCK_FOLLOWING,
    Places,
    content,
    create,
    ids,
    newest_version,
    rows,
)
from tests.support.servers import S3Bucket

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

REFUSED = "DELTA_NO_REDIRECT_RULES_VIOLATED|DELTA_UNSUPPORTED_FEATURES_FOR_WRITE"
AT_TARGET = [*ROWS, MOVED_ON]


@pytest.fixture
def places(tmp_path: Path) -> Places:
    """A table that moved, with one more row at the target."""
    made = create(tmp_path)
    made.move(mode="writer-only")
    write_deltalake(str(made.target), rows([MOVED_ON]), mode="append")
    return made


@pytest.fixture
def stock(spark_as: Callable[[str], SparkSession]) -> SparkSession:
    """A session with the option on."""
    return spark_as(STOCK_FOLLOWING)


def read(session: SparkSession, location: object, **options: Any) -> list[int]:
    frame = session.read.format("delta").options(**options).load(str(location))
    return sorted(row.id for row in frame.collect())


def save(session: SparkSession, location: object, row: int, mode: str) -> None:
    frame = session.range(row, row + 1).coalesce(1)
    frame.write.format("delta").mode(mode).save(str(location))


def delta_table(session: SparkSession, location: object) -> Any:
    from delta.tables import DeltaTable as Table

    return Table.forPath(session, str(location))


def merge(session: SparkSession, location: object) -> None:
    session.sql(
        f"MERGE INTO delta.`{location}` AS old USING (SELECT id FROM range(9, 12)) AS new"
        " ON old.id = new.id WHEN MATCHED THEN DELETE WHEN NOT MATCHED THEN INSERT *"
    )


def stream_into(session: SparkSession, location: object, row: int, folder: Path) -> None:
    feed, checkpoint = folder / "feed", folder / "checkpoint"
    write_deltalake(str(feed), rows([row]), mode="append")
    stream = session.readStream.format("delta").load(str(feed)).writeStream.format("delta")
    stream = stream.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
    stream.start(str(location)).awaitTermination()


Write = Callable[["SparkSession", Path], object]
WRITES: dict[str, tuple[Write, list[int]]] = {
    "append": (lambda s, t: save(s, t, 20, "append"), [*AT_TARGET, 20]),
    "overwrite": (lambda s, t: save(s, t, 20, "overwrite"), [20]),
    "INSERT": (lambda s, t: s.sql(f"INSERT INTO delta.`{t}` VALUES (20)"), [*AT_TARGET, 20]),
    "DELETE": (lambda s, t: s.sql(f"DELETE FROM delta.`{t}` WHERE id >= 5"), ROWS[:5]),
    "UPDATE": (
        lambda s, t: s.sql(f"UPDATE delta.`{t}` SET id = id + 90 WHERE id = 10"),
        [*ROWS, 100],
    ),
    "MERGE": (merge, [*ROWS[:9], 11]),
    "DeltaTable.delete": (lambda s, t: delta_table(s, t).delete("id < 5"), AT_TARGET[5:]),
    "DeltaTable.update": (
        lambda s, t: delta_table(s, t).update("id = 10", {"id": "id + 90"}),
        [*ROWS, 100],
    ),
    "OPTIMIZE": (lambda s, t: s.sql(f"OPTIMIZE delta.`{t}`"), AT_TARGET),
    "ALTER TABLE": (
        lambda s, t: s.sql(f"ALTER TABLE delta.`{t}` SET TBLPROPERTIES ('user.said' = 'yes')"),
        AT_TARGET,
    ),
    "a stream": (lambda s, t: stream_into(s, t, 20, t.parent), [*AT_TARGET, 20]),
}


@pytest.mark.parametrize("name", WRITES)
def test_writes_to_the_old_path_are_made_at_the_target(
    name: str, stock: SparkSession, places: Places
) -> None:
    write, expected = WRITES[name]
    source, version = content(places.source), newest_version(places.target)

    write(stock, places.source)

    assert newest_version(places.target) == version + 1
    assert ids(places.target) == expected
    assert read(stock, places.source) == expected
    assert content(places.source) == source


def test_vacuum_of_the_old_path_cleans_the_target(stock: SparkSession, places: Places) -> None:
    source = content(places.source)
    stale = places.target / "nobody-refers-to-this.parquet"
    stale.write_bytes(b"")
    save(stock, places.source, 20, "overwrite")
    stock.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")

    stock.sql(f"VACUUM delta.`{places.source}` RETAIN 0 HOURS")

    assert not stale.exists()
    assert len(list(places.target.glob("*.parquet"))) == 1
    assert ids(places.target) == [20]
    assert content(places.source) == source


def test_reads_of_the_old_path_are_of_the_target(stock: SparkSession, places: Places) -> None:
    source = content(places.source)
    frame = stock.read.format("delta").load(str(places.source))
    assert sorted(row.id for row in frame.collect()) == AT_TARGET
    assert all(f"{places.target}/" in file for file in frame.inputFiles())
    assert delta_table(stock, places.source).toDF().count() == len(AT_TARGET)
    found = stock.sql(f"SELECT id FROM delta.`{places.source}` WHERE id >= 8").collect()
    assert sorted(row.id for row in found) == [8, 9, 10]
    (detail,) = stock.sql(f"DESCRIBE DETAIL delta.`{places.source}`").collect()
    assert detail.location == places.target.as_uri().replace("file://", "file:")
    history = stock.sql(f"DESCRIBE HISTORY delta.`{places.source}`").collect()
    assert [row.version for row in history] == list(range(newest_version(places.target), -1, -1))
    assert content(places.source) == source


def test_time_travel_through_the_old_path_means_what_it_meant(
    stock: SparkSession, tmp_path: Path
) -> None:
    places = create(tmp_path)
    now = datetime.now(UTC)
    for version, written in enumerate((now - timedelta(days=3), now - timedelta(days=2))):
        os.utime(places.source / paths.commit(version), (written.timestamp(),) * 2)
    places.move(mode="writer-only")
    write_deltalake(str(places.target), rows([MOVED_ON]), mode="append")

    by_version = {
        version: read(stock, places.source, versionAsOf=version)
        for version in range(newest_version(places.target) + 1)
    }
    # Two writes, the beginning and the end of the move, and the row that came since.
    assert by_version == {0: ROWS[:5], 1: ROWS, 2: ROWS, 3: ROWS, 4: AT_TARGET}
    between = f"{now - timedelta(hours=60):%Y-%m-%d %H:%M:%S}"
    assert read(stock, places.source, timestampAsOf=between) == ROWS[:5]
    for moment in ("VERSION AS OF 0", f"TIMESTAMP AS OF '{between}'"):
        query = f"SELECT * FROM delta.`{places.source}` {moment}"
        assert stock.sql(query).count() == len(ROWS[:5])


@pytest.fixture
def table_name(spark: SparkSession) -> Iterator[str]:
    name = f"orders_{uuid.uuid4().hex}"
    yield name
    spark.sql(f"DROP TABLE IF EXISTS {name}")


@pytest.mark.parametrize("made_by", ["CREATE TABLE", "saveAsTable"])
def test_a_table_of_the_metastore_follows_its_location(
    made_by: str, spark: SparkSession, stock: SparkSession, tmp_path: Path, table_name: str
) -> None:
    if made_by == "CREATE TABLE":
        places = create(tmp_path)
        spark.sql(f"CREATE TABLE {table_name} USING delta LOCATION '{places.source}'")
    else:
        places = Places(tmp_path / "old", tmp_path / "new")
        frame = spark.range(len(ROWS)).write.format("delta")
        frame.option("path", str(places.source)).saveAsTable(table_name)
    places.move(mode="writer-only")
    source = content(places.source)

    stock.sql(f"INSERT INTO {table_name} VALUES (10)")
    stock.range(11, 12).write.format("delta").mode("append").saveAsTable(table_name)
    stock.sql(f"DELETE FROM {table_name} WHERE id < 5")

    assert ids(places.target) == [*ROWS[5:], 10, 11]
    assert sorted(row.id for row in stock.table(table_name).collect()) == [*ROWS[5:], 10, 11]
    assert content(places.source) == source
    assert sorted(row.id for row in spark.table(table_name).collect()) == ROWS


def test_without_the_option_it_reads_the_frozen_source_and_can_not_write_it(
    spark: SparkSession, places: Places
) -> None:
    logs = places.logs
    assert read(spark, places.source) == ROWS
    for write, _ in WRITES.values():
        with pytest.raises(Exception, match=REFUSED):
            write(spark, places.source)
    assert places.logs == logs


def test_an_app_that_a_rule_is_about_stays_at_the_source_and_others_move_on(
    stock: SparkSession, tmp_path: Path
) -> None:
    """Stock delta-spark lacks the feature: what a rule allows it, it can't commit all the same."""
    places = create(tmp_path)
    places.move(mode="writer-only", rules=["Lakeferry-Tests:VACUUM,DELETE"])
    write_deltalake(str(places.target), rows([MOVED_ON]), mode="append")
    logs = places.logs
    assert read(stock, places.source) == ROWS
    for statement, refusal in {
        "INSERT INTO {} VALUES (20)": "WRITE cannot be performed",
        "UPDATE {} SET id = 20 WHERE id = 1": "UPDATE cannot be performed",
        "OPTIMIZE {}": "OPTIMIZE cannot be performed",
    }.items():
        with pytest.raises(Exception, match="DELTA_NO_REDIRECT_RULES_VIOLATED") as refused:
            stock.sql(statement.format(f"delta.`{places.source}`"))
        assert refusal in str(refused.value)
    for statement in ("VACUUM {}", "DELETE FROM {} WHERE id = 1"):
        with pytest.raises(Exception, match="DELTA_UNSUPPORTED_FEATURES_FOR_WRITE"):
            stock.sql(statement.format(f"delta.`{places.source}`"))
    assert places.logs == logs
    stock.conf.set("spark.app.name", "another")
    assert read(stock, places.source) == AT_TARGET
    save(stock, places.source, 20, "append")
    assert ids(places.target) == [*AT_TARGET, 20]


def test_through_our_client_a_rule_that_forbids_is_named(
    spark_as: Callable[[str], SparkSession], tmp_path: Path
) -> None:
    places, ours = create(tmp_path), spark_as(OURS)
    places.move(mode="writer-only", rules=["lakeferry-tests:VACUUM"])
    write_deltalake(str(places.target), rows([MOVED_ON]), mode="append")
    logs = places.logs
    assert read(ours, places.source) == ROWS
    for write in (
        lambda: save(ours, places.source, 20, "append"),
        lambda: save(ours, places.source, 20, "overwrite"),
        lambda: ours.sql(f"DELETE FROM delta.`{places.source}` WHERE id = 1"),
        lambda: delta_table(ours, places.source).delete("id = 1"),
        lambda: stream_into(ours, places.source, 20, tmp_path),
    ):
        with pytest.raises(RedirectRuleViolated, match="lakeferry-tests:VACUUM START,VACUUM END"):
            write()
    assert places.logs == logs
    ours.conf.set("spark.app.name", "another")
    assert read(ours, places.source) == AT_TARGET
    save(ours, places.source, 20, "append")
    assert ids(places.target) == [*AT_TARGET, 20]


@pytest.mark.parametrize("mode", MODES)
def test_a_property_without_the_feature_blocks_nobody_and_is_no_redirect(
    mode: str, spark: SparkSession, tmp_path: Path
) -> None:
    """Which is what a statement makes of it, outside of delta-spark's testing mode."""
    places = create(tmp_path)
    source, target = str(places.source), str(places.target)
    name = dialects.property_of(Dialect.DELTA_SPARK, Mode(mode))
    entry = {
        "type": "PathBasedRedirect",
        "state": "REDIRECT-READY",
        "spec": json.dumps({"sourcePath": source, "destPath": target}),
        "noRedirectRules": [],
    }
    value = json.dumps(entry).replace("\\", "\\\\")
    spark.sql(f"ALTER TABLE delta.`{source}` SET TBLPROPERTIES ('{name}' = '{value}')")

    (found,) = lakeferry.Table(source).inspect().warnings
    assert found.code == "property_without_feature"
    assert name in found.message
    assert lakeferry.resolve(source, write=True) == places.source.as_uri()
    with Redirects() as moves:
        assert not moves.resolve(source).redirected
        for refused in (moves.enable, moves.plan_enable):
            with pytest.raises(RedirectSpecInvalid, match="without its table feature"):
                refused(source, target, mode=mode)
    write_deltalake(source, rows([10]), mode="append")
    save(spark, source, 11, "append")
    assert ids(source) == [*ROWS, 10, 11]
    assert not places.target.exists()


def test_on_s3(stock: SparkSession, spark_s3: SparkSession, s3_bucket: S3Bucket) -> None:
    """The entry names the target in Hadoop's spelling, and the source by its bare path."""
    options = s3_bucket.storage_options
    source, target = f"{s3_bucket.uri}/old/table", f"{s3_bucket.uri}/new/table"
    write_deltalake(source, rows(ROWS), storage_options=options)
    with Redirects(options) as moves:
        moves.enable(source, target, mode="writer-only")
    store = open_store(source, options)
    before = {entry.path: store.get(entry.path) for entry in store.list("")}

    for scheme in ("s3a", "s3"):
        old = f"{scheme}://{s3_bucket.name}/old/table"
        save(stock, old, MOVED_ON, "append")
        assert read(stock, old) == [*ROWS, MOVED_ON]
        stock.sql(f"DELETE FROM delta.`{old}` WHERE id = {MOVED_ON}")
        assert read(stock, old) == ROWS
        assert read(stock, old, versionAsOf=0) == ROWS

    versions = [
        commit["version"] for commit in DeltaTable(target, storage_options=options).history()
    ]
    assert max(versions) == 2 + 4
    assert {entry.path: store.get(entry.path) for entry in store.list("")} == before
    assert read(spark_s3, f"s3a://{s3_bucket.name}/old/table") == ROWS
