"""PySpark with our client: every way in which it names a table leads to where the table is."""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable, write_deltalake

from lakeferry import spark as modern
from lakeferry.api.redirects import Redirects
from lakeferry.errors import InvalidInput, RedirectInProgress, RedirectRuleViolated
from lakeferry.spark import patches, session_clients
from lakeferry.spark.client import Client
from lakeferry.storage import open_store
from tests.support import engines, spark_reads
from tests.support.redirected_tables import (
    MOVED_ON,
    ROWS,
    Places,
    Stage,
    at_stage,
    content,
    create,
    rows,
)
from tests.support.servers import S3Bucket
from tests.support.spark_reads import Read, delta_table, streamed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Write = Callable[["SparkSession", str], object]
AT_TARGET = [*ROWS, MOVED_ON]
NEW = 99


@pytest.fixture
def session(spark: SparkSession) -> Iterator[SparkSession]:
    """A session with our client."""
    made = spark.newSession()
    made.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
    modern.install(made)
    yield made
    modern.uninstall(made)


@pytest.fixture
def places(tmp_path: Path) -> Places:
    """A table that moved, for readers too; the target has one more row."""
    return at_stage(tmp_path / "o d ü", Stage.READY, "reader-writer")


def ids(frame: DataFrame) -> list[int]:
    return sorted(row.id for row in frame.select("id").collect())


def at(location: object) -> list[int]:
    """The rows at a place, by an engine that knows no redirects."""
    return sorted(row[0] for row in engines.by_delta_rs(str(location)))


READS: dict[str, Read] = {
    **spark_reads.READS,
    "load with everything": lambda s, p: s.read.load(path=p, format="delta", ignoreDeletes=True),
    "a file URI": lambda s, p: s.read.format("delta").load(f"file://{p}/"),
    "sql with column": lambda s, p: s.sql(f"SELECT delta.`{p}`.id FROM delta.`{p}`"),
    "sql with a frame": lambda s, p: s.sql(
        f"SELECT t.* FROM delta.`{p}` t JOIN {{x}} x ON t.id = x.id", x=s.range(100)
    ),
}


def append_frame(session: SparkSession) -> DataFrame:
    return session.range(NEW, NEW + 1).coalesce(1)


def stream_frame(session: SparkSession, path: str) -> Any:
    """A stream of one row, and a checkpoint beside the table."""
    source = f"{path}-new-{uuid.uuid4().hex}"
    write_deltalake(source, rows([NEW]))
    frame = session.readStream.format("delta").load(source)
    return frame.writeStream.option("checkpointLocation", f"{source}-seen").trigger(
        availableNow=True
    )


def never() -> Any:
    """A condition under which no row matches another."""
    from pyspark.sql.functions import lit

    return lit(False)


APPENDS: dict[str, Write] = {
    "save": lambda s, p: append_frame(s).write.format("delta").mode("append").save(p),
    "save with everything": lambda s, p: append_frame(s).write.save(
        path=p, format="delta", mode="append"
    ),
    "option path": lambda s, p: (
        append_frame(s).write.format("delta").mode("append").option("path", p).save()
    ),
    "saveAsTable": lambda s, p: (
        append_frame(s).write.format("delta").mode("append").saveAsTable(f"delta.`{p}`")
    ),
    "insertInto": lambda s, p: append_frame(s).write.insertInto(tableName=f"delta.`{p}`"),
    "writeTo": lambda s, p: append_frame(s).writeTo(f"delta.`{p}`").append(),
    "INSERT": lambda s, p: s.sql(f"INSERT INTO delta.`{p}` VALUES ({NEW})"),
    "MERGE": lambda s, p: s.sql(
        f"MERGE INTO delta.`{p}` t USING (SELECT {NEW}L AS id) n ON t.id = n.id "
        "WHEN NOT MATCHED THEN INSERT *"
    ),
    "mergeInto": lambda s, p: (
        append_frame(s)
        .alias("n")
        .mergeInto(f"delta.`{p}`", never())
        .whenNotMatched()
        .insertAll()
        .merge()
    ),
    "DeltaTable.merge": lambda s, p: (
        delta_table(s, p)
        .alias("t")
        .merge(append_frame(s).alias("n"), "t.id = n.id")
        .whenNotMatchedInsertAll()
        .execute()
    ),
    "stream": lambda s, p: stream_frame(s, p).format("delta").start(p).awaitTermination(),
    "stream by option": lambda s, p: (
        stream_frame(s, p).format("delta").option("path", p).start().awaitTermination()
    ),
    "foreachBatch": lambda s, p: (
        stream_frame(s, p)
        .foreachBatch(lambda frame, _: frame.write.format("delta").mode("append").save(p))
        .start()
        .awaitTermination()
    ),
    "foreachBatch in SQL": lambda s, p: (
        stream_frame(s, p)
        .foreachBatch(
            lambda frame, _: frame.sparkSession.sql(f"INSERT INTO delta.`{p}` VALUES ({NEW})")
        )
        .start()
        .awaitTermination()
    ),
    "lakeferry.spark.write": lambda s, p: modern.write(append_frame(s), p, mode="append"),
}
OTHER_WRITES: dict[str, tuple[Write, list[int]]] = {
    "overwrite": (
        lambda s, p: append_frame(s).write.format("delta").mode("overwrite").save(p),
        [NEW],
    ),
    "INSERT OVERWRITE": (lambda s, p: s.sql(f"INSERT OVERWRITE delta.`{p}` VALUES ({NEW})"), [NEW]),
    "DELETE": (lambda s, p: s.sql(f"DELETE FROM delta.`{p}` WHERE id > 3"), ROWS[:4]),
    "UPDATE": (lambda s, p: s.sql(f"UPDATE delta.`{p}` SET id = 0 WHERE id > 0"), [0] * 11),
    "DeltaTable.delete": (lambda s, p: delta_table(s, p).delete("id > 3"), ROWS[:4]),
    "OPTIMIZE": (lambda s, p: s.sql(f"OPTIMIZE '{p}'"), AT_TARGET),
    "DeltaTable.optimize": (
        lambda s, p: delta_table(s, p).optimize().executeCompaction(),
        AT_TARGET,
    ),
    "VACUUM": (lambda s, p: s.sql(f"VACUUM '{p}' RETAIN 0 HOURS").collect(), AT_TARGET),
    "RESTORE": (lambda s, p: s.sql(f"RESTORE delta.`{p}` TO VERSION AS OF 1"), ROWS),
    "ALTER": (lambda s, p: s.sql(f"ALTER TABLE delta.`{p}` ADD COLUMN more INT"), AT_TARGET),
    "catalog.truncateTable": (lambda s, p: s.catalog.truncateTable(f"delta.`{p}`"), []),
    "REPLACE": (
        lambda s, p: s.sql(
            f"CREATE OR REPLACE TABLE delta.`{p}` USING delta AS SELECT {NEW}L AS id"
        ),
        [NEW],
    ),
}


@pytest.mark.parametrize("name", READS)
def test_readers_are_led_to_the_target(name: str, session: SparkSession, places: Places) -> None:
    assert ids(READS[name](session, str(places.source))) == AT_TARGET


def test_versions_mean_what_they_meant(session: SparkSession, places: Places) -> None:
    source = str(places.source)
    reader = session.read.format("delta")
    assert ids(reader.option("versionAsOf", 0).load(source)) == ROWS[:5]
    assert ids(session.read.format("delta").load(f"{source}@v0")) == ROWS[:5]
    assert ids(session.sql(f"SELECT * FROM delta.`{source}` VERSION AS OF 0")) == ROWS[:5]
    assert ids(session.table(f"delta.`{source}@v0`")) == ROWS[:5]


def test_what_is_said_about_a_table_is_about_the_target(
    session: SparkSession, places: Places
) -> None:
    from delta.tables import DeltaTable

    source = str(places.source)
    for said in (
        session.sql(f"DESCRIBE DETAIL '{source}'"),
        session.sql(f"DESCRIBE DETAIL delta.`{source}`"),
        DeltaTable.forPath(session, source).detail(),
    ):
        assert said.collect()[0].location == f"file:{places.target}"
    assert DeltaTable.isDeltaTable(session, source)
    assert not DeltaTable.isDeltaTable(session, str(places.source.parent))


@pytest.mark.parametrize("name", APPENDS)
def test_writers_are_led_to_the_target(name: str, session: SparkSession, places: Places) -> None:
    before = content(places.source)
    APPENDS[name](session, str(places.source))
    assert at(places.target) == [*AT_TARGET, NEW]
    assert content(places.source) == before


@pytest.mark.parametrize("name", OTHER_WRITES)
def test_changes_are_made_at_the_target(name: str, session: SparkSession, places: Places) -> None:
    before = content(places.source)
    write, expected = OTHER_WRITES[name]
    write(session, str(places.source))
    assert at(places.target) == expected
    assert content(places.source) == before


@pytest.mark.parametrize("stage", [Stage.ENABLING, Stage.WITHDRAWING, Stage.DROPPING])
def test_writers_are_refused_while_a_redirect_changes(
    stage: Stage, session: SparkSession, tmp_path: Path
) -> None:
    places = at_stage(tmp_path, stage, "writer-only")
    logs = places.logs
    writes = [*APPENDS.values(), *(write for write, _ in OTHER_WRITES.values())]
    for write in writes if stage is Stage.ENABLING else writes[:1]:
        with pytest.raises(Exception, match=r"can't be written to now"):
            write(session, str(places.source))
    with pytest.raises(RedirectInProgress):
        session.sql(f"DELETE FROM delta.`{places.source}`")
    assert places.logs == logs
    expected = ROWS if stage is Stage.ENABLING else AT_TARGET
    assert ids(session.read.format("delta").load(str(places.source))) == expected


def test_without_a_redirect_everything_is_as_before(session: SparkSession, tmp_path: Path) -> None:
    """The first write makes a table, and Spark's own errors are Spark's own."""
    from pyspark.errors import AnalysisException

    for name, is_new in (
        ("save", True),
        ("stream", True),
        ("saveAsTable", False),
        ("INSERT", False),
    ):
        path = str(tmp_path / name)
        if not is_new:
            write_deltalake(path, rows(ROWS))
        APPENDS[name](session, path)
        assert at(path) == ([NEW] if is_new else [*ROWS, NEW]), name
    with pytest.raises(AnalysisException, match=r"DELTA_TABLE_NOT_FOUND|PATH_NOT_FOUND"):
        session.read.format("delta").load(str(tmp_path / "nothing")).collect()
    with pytest.raises(AnalysisException, match=r"already exists|DELTA_PATH_EXISTS"):
        append_frame(session).write.format("delta").save(str(tmp_path / "save"))
    place = str(tmp_path / "parquet")
    session.range(3).write.parquet(place)
    session.range(3).write.mode("append").save(place, "parquet")
    assert session.read.load(place).count() == 6
    assert session.sql(f"SELECT * FROM parquet.`{place}`").count() == 6


def test_the_default_format_may_be_delta(session: SparkSession, places: Places) -> None:
    session.conf.set("spark.sql.sources.default", "delta")
    append_frame(session).write.mode("append").save(str(places.source))
    assert ids(session.read.load(str(places.source))) == [*AT_TARGET, NEW]


def test_a_partitions_folder_is_that_of_the_target(session: SparkSession, tmp_path: Path) -> None:
    places = Places(tmp_path / "source", tmp_path / "target")
    session.range(10).selectExpr("id", "id % 2 AS part").write.format("delta").partitionBy(
        "part"
    ).save(str(places.source))
    places.move(mode="writer-only")
    session.sql(f"DELETE FROM delta.`{places.source}` WHERE id < 5")
    assert ids(session.read.format("delta").load(f"{places.source}/part=1")) == [5, 7, 9]


def test_paths_are_taken_as_spark_takes_them(session: SparkSession, tmp_path: Path) -> None:
    """A percent sign is one, a path without a scheme may be relative, quotes are doubled."""
    places = Places(tmp_path / "a%20b c", tmp_path / "d%41 `e")
    session.range(10).write.format("delta").save(str(places.source))
    places.move(mode="reader-writer")
    session.sql(f"INSERT INTO delta.`{places.source}` VALUES ({NEW})")
    relative = os.path.relpath(places.source)
    for path in (str(places.source), f"{places.source}/", relative, f"file://{places.source}"):
        assert ids(session.read.format("delta").load(path)) == [*ROWS, NEW]


def test_tables_of_the_catalog_are_found_at_the_target(
    session: SparkSession, tmp_path: Path
) -> None:
    from delta.tables import DeltaTable

    places = create(tmp_path)
    session.sql("CREATE DATABASE IF NOT EXISTS moved")
    name = f"moved.t{uuid.uuid4().hex}"
    short = name.partition(".")[2]
    session.sql(f"CREATE TABLE {name} USING delta LOCATION '{places.source}'")
    assert ids(session.table(name)) == ROWS
    places.move(mode="reader-writer")
    before = content(places.source)

    def expect(*expected: int) -> None:
        assert at(places.target) == sorted(expected)

    assert ids(session.table(name).where(f"{short}.id > 7")) == [8, 9]
    assert ids(session.sql(f"SELECT {short}.id FROM {name} WHERE {short}.id > 7")) == [8, 9]
    assert ids(session.sql(f"SELECT a.id FROM {name} a, range(3) b WHERE a.id = b.id")) == [0, 1, 2]
    assert ids(session.sql(f"SELECT * FROM {name} VERSION AS OF 0")) == ROWS[:5]
    session.sql(f"WITH t AS (SELECT 20L AS id) INSERT INTO {name} SELECT * FROM t")
    append_frame(session).write.mode("append").saveAsTable(name)
    append_frame(session).write.insertInto(name)
    append_frame(session).writeTo(name).append()
    expect(*ROWS, 20, NEW, NEW, NEW)
    session.sql(f"UPDATE {name} SET id = 98 WHERE {short}.id = {NEW}")
    session.sql(
        f"MERGE INTO {name} USING (SELECT * FROM range(8)) r ON {short}.id = r.id "
        "WHEN MATCHED THEN DELETE"
    )
    expect(8, 9, 20, 98, 98, 98)
    DeltaTable.forName(session, name).delete("id = 98")
    stream_frame(session, str(places.source)).toTable(name).awaitTermination()
    expect(8, 9, 20, NEW)
    assert ids(streamed(session, session.readStream.table(name)))[-1] == NEW
    assert session.sql(f"DESCRIBE HISTORY {name}").collect()[0].operation == "STREAMING UPDATE"
    assert content(places.source) == before
    session.sql(f"DROP TABLE {name}")


def test_a_table_that_is_made_over_a_redirected_path_is_at_the_target(
    session: SparkSession, places: Places
) -> None:
    name = f"over_{uuid.uuid4().hex}"
    session.sql(f"CREATE TABLE {name} USING delta LOCATION '{places.source}'")
    detail = session.sql(f"DESCRIBE DETAIL {name}").collect()[0]
    assert detail.location.endswith(f"/{places.target.name}")
    session.sql(f"DROP TABLE {name}")
    session.range(3).createOrReplaceTempView(name)
    assert ids(session.table(name)) == [0, 1, 2]


@pytest.mark.parametrize("app", ["lakeferry-tests", "LAKEFERRY-tests"])
def test_a_rule_keeps_a_session_at_the_source(
    app: str, session: SparkSession, tmp_path: Path
) -> None:
    places = create(tmp_path)
    places.move(mode="writer-only", rules=[f"{app}:OPTIMIZE,MERGE"])
    write_deltalake(str(places.target), rows([MOVED_ON]), mode="append")
    logs = places.logs
    source = str(places.source)
    assert ids(session.read.format("delta").load(source)) == ROWS
    for write in (APPENDS["save"], APPENDS["INSERT"], OTHER_WRITES["DELETE"][0]):
        with pytest.raises(RedirectRuleViolated, match=app):
            write(session, source)
    with pytest.raises(RedirectRuleViolated, match="VACUUM START"):
        session.sql(f"VACUUM '{source}'")
    table = delta_table(session, source)
    with pytest.raises(RedirectRuleViolated, match="DELETE"):
        table.delete()
    assert Client(session).moved_path(source, "MERGE", "optimize") is None
    assert places.logs == logs
    session.conf.set("spark.app.name", "another")
    assert ids(session.read.format("delta").load(source)) == AT_TARGET


def test_from_disk_to_s3(spark_s3: SparkSession, s3_bucket: S3Bucket, tmp_path: Path) -> None:
    """Our ``s3://`` is ``s3a://`` to a Spark that knows no ``s3://``."""
    import lakeferry

    source, target = str(tmp_path / "source"), f"{s3_bucket.uri}/ta rget"
    write_deltalake(source, rows(ROWS))
    table = lakeferry.Table(source, storage_options=s3_bucket.storage_options)
    table.redirect(target, mode="reader-writer", engine="local")
    session = spark_s3.newSession()
    modern.install(session, storage_options=s3_bucket.storage_options)
    try:
        for known in (True, False):
            if not known:
                session.conf.set("fs.s3.impl", "")
            frame = session.read.format("delta").load(source)
            assert ids(frame) == ROWS
            (file, *_) = frame.inputFiles()
            assert file.startswith("s3://" if known else "s3a://")
        APPENDS["INSERT"](session, source)
        assert ids(session.table(f"delta.`{source}`")) == [*ROWS, NEW]
        assert lakeferry.resolve(source, storage_options=s3_bucket.storage_options) == (
            f"{s3_bucket.uri}/ta%20rget"
        )
    finally:
        modern.uninstall(session)


ON_S3 = {
    "s3a": (["load", "table", "sql", "stream", "DeltaTable"], ["save", "saveAsTable", "INSERT"]),
    "s3": (["load", "sql"], ["INSERT"]),
}
"""How tables on S3 are read and written, by the scheme of their paths."""


@pytest.mark.parametrize("scheme", ON_S3)
def test_on_s3_an_old_path_leads_to_the_target(
    scheme: str, spark_s3: SparkSession, s3_bucket: S3Bucket, tmp_path: Path
) -> None:
    """The redirect is one that Spark itself doesn't follow."""
    options = s3_bucket.storage_options
    source, target = f"{s3_bucket.uri}/o d/table", f"{s3_bucket.uri}/moved"
    write_deltalake(source, rows(ROWS), storage_options=options)
    with Redirects(options) as moves:
        moves.enable(source, target, mode="writer-only", dialects=("rfc",))
    write_deltalake(target, rows([MOVED_ON]), mode="append", storage_options=options)
    store = open_store(source, options)
    before = {entry.path: store.get(entry.path) for entry in store.list("")}
    old = f"{scheme}://{s3_bucket.name}/o d/table"
    session = spark_s3.newSession()
    modern.install(session, storage_options=options)

    def now() -> list[int]:
        found = DeltaTable(target, storage_options=options).to_pyarrow_table()
        return sorted(found["id"].to_pylist())

    reads, appends = ON_S3[scheme]
    try:
        found = {name: ids(READS[name](session, old)) for name in reads}
        assert found == dict.fromkeys(found, AT_TARGET)
        assert ids(session.read.format("delta").load(f"{old}@v0")) == ROWS
        for name in appends:
            APPENDS[name](session, old)
        if scheme == "s3a":
            feed = str(tmp_path / "feed")
            stream_frame(session, feed).format("delta").start(old).awaitTermination()
        assert now() == [*AT_TARGET, *[NEW] * (len(appends) + (scheme == "s3a"))]
        delta_table(session, old).delete(f"id = {NEW}")
        assert now() == AT_TARGET
        APPENDS["MERGE"](session, old)
        assert now() == [*AT_TARGET, NEW]
        (said,) = session.sql(f"DESCRIBE DETAIL '{old}'").collect()
        assert said.location == f"s3://{s3_bucket.name}/moved"
    finally:
        modern.uninstall(session)
    assert {entry.path: store.get(entry.path) for entry in store.list("")} == before


def test_readers_and_writers_that_were_made_before_are_followed_too(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The redirect is one that Spark itself doesn't follow: it would read the frozen copy."""
    places = create(tmp_path)
    path = str(places.source)
    made = spark.newSession()
    formatted = made.read.format("delta")
    placed = made.read.format("delta").option("PATH", path)
    of_parquet = made.read.format("parquet")
    streamed_one = made.readStream.format("delta").option("path", path)
    writer = append_frame(made).write.format("delta").option("path", path).mode("append")
    session_clients.client_options.clear()
    patches._withdraw()
    places.move(mode="writer-only", dialects=("rfc",))
    write_deltalake(str(places.target), rows([MOVED_ON]), mode="append")
    before = content(places.source)
    modern.install(made)
    try:
        assert ids(formatted.load(path)) == AT_TARGET
        assert ids(placed.load()) == AT_TARGET
        assert ids(streamed(made, streamed_one.load())) == AT_TARGET
        writer.save()
        assert at(places.target) == [*AT_TARGET, NEW]
        # Other formats read the files that they are told to read.
        assert ids(of_parquet.load(path)) == ROWS
    finally:
        modern.uninstall(made)
    assert content(places.source) == before


def methods() -> dict[tuple[type, str], Any]:
    return {(owner, name): vars(owner)[name] for owner, name, _ in patches._patches()}


def test_installing_is_for_one_session_and_can_be_undone(
    spark: SparkSession, places: Places
) -> None:
    # Sessions of other tests are over.
    session_clients.client_options.clear()
    patches._withdraw()
    before = methods()
    source = str(places.source)
    first, second, third = spark.newSession(), spark.newSession(), spark.newSession()
    for _ in range(2):
        modern.install(first)
        modern.install(second, storage_options={"timeout": "30s"})
    during = methods()
    assert all(during[key] is not before[key] for key in before)
    for session in (first, second):
        assert ids(session.read.format("delta").load(source)) == AT_TARGET
    with pytest.raises(Exception, match="redirectReaderWriter"):
        third.read.format("delta").load(source).collect()
    modern.uninstall(first)
    modern.uninstall(first)
    with pytest.raises(Exception, match="redirectReaderWriter"):
        first.sql(f"SELECT * FROM delta.`{source}`").collect()
    assert ids(second.sql(f"SELECT * FROM delta.`{source}`")) == AT_TARGET
    modern.uninstall(second)
    assert methods() == before
    with pytest.raises(Exception, match="redirectReaderWriter"):
        second.table(f"delta.`{source}`").collect()


def test_sessions_may_be_installed_by_many_threads_at_once(spark: SparkSession) -> None:
    session_clients.client_options.clear()
    patches._withdraw()
    before = methods()
    sessions = [spark.newSession() for _ in range(8)]
    barrier = threading.Barrier(len(sessions))
    failures: list[BaseException] = []

    def work(session: SparkSession) -> None:
        try:
            barrier.wait()
            for _ in range(5):
                modern.install(session)
                assert session.sql("SELECT 1 AS id").collect()[0].id == 1
                modern.uninstall(session)
        except BaseException as failed:
            failures.append(failed)
            raise

    threads = [threading.Thread(target=work, args=(session,)) for session in sessions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert methods() == before


def test_what_is_no_session_with_a_driver_is_refused() -> None:
    class SparkSession:
        """As Spark Connect has one: of the same name, and another class."""

    for act in (modern.install, modern.uninstall):
        with pytest.raises(InvalidInput, match="SparkSession"):
            act(SparkSession())  # type: ignore[arg-type]
