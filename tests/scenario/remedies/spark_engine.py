"""Spark: what its engine and its client refuse, and what the user does then."""

from __future__ import annotations

from datetime import date
from functools import partial

import deltalake
import pytest

import lakeferry
from lakeferry.storage import open_store
from tests.support.lake import ORDERS
from tests.support.remedies import Witness, follows
from tests.support.servers import S3Server, free_port

SPARK = ("spark",)


@follows(
    "spark_engine.py: choose a place on disk or in an object store; in Python, "
    'engine="local" uses memory too',
    starts=SPARK,
)
def executors_get_a_place_that_they_reach(witness: Witness) -> None:
    table, memory = witness.lake.make("t"), "memory://remedies"
    witness.fixture("spark")
    witness.refused("export", table, "--to", memory, "--engine", "spark")
    export = lakeferry.Table(table).export
    witness.raises(lambda: export(memory, engine="spark"))
    witness.returns(lambda: export(memory, engine="local"))
    witness.returns(lambda: export(witness.lake.uri("out"), engine="spark"))


@follows("spark_session.py: install Java 17 or newer and set JAVA_HOME, or use --engine local")
def a_table_is_moved_without_java(witness: Witness) -> None:
    words = ("redirect", "enable", witness.lake.make("t"), witness.lake.uri("n"), "--engine")
    witness.refused(*words, "spark", JAVA_HOME=witness.lake.uri("no-java"))
    witness.done(*words, "local")


@follows("connect_engine.py: start it, correct {}, or use --engine local")
def a_table_is_exported_while_the_server_of_spark_connect_is_away(witness: Witness) -> None:
    words = ("export", witness.lake.make("t"), "--to", witness.lake.uri("out"), "--engine")
    url = f"sc://127.0.0.1:{free_port()}"
    witness.refused(*words, "spark", LAKEFERRY_SPARK_REMOTE=url)
    witness.done(*words, "local")


@follows("copy_on_spark.py: try again: what was copied isn't copied again", starts=SPARK)
def a_move_whose_objects_were_miscounted_is_tried_again(witness: Witness) -> None:
    witness.fixture("spark")
    from lakeferry.engines.spark import copy_on_spark

    source, target = witness.lake.make("t"), witness.lake.uri("n")
    move = partial(lakeferry.Table(source).redirect, target, engine="spark")
    packed = copy_on_spark._packed
    with pytest.MonkeyPatch.context() as large, pytest.MonkeyPatch.context() as lossy:
        large.setattr(copy_on_spark, "PLANNED_HERE_BYTES", -1)
        # No real Spark can be made to lose rows of a job that succeeds.
        lossy.setattr(copy_on_spark, "_packed", lambda *given: packed(*given).limit(1))
        witness.raises(move)
        lossy.undo()
        witness.returns(move)
    assert witness.done("redirect", "resolve", source)["location"] == target


@follows("old_calendar.py: rewrite its rows with Spark, and try again", starts=SPARK)
def days_of_the_old_calendar_are_written_anew_by_spark(witness: Witness) -> None:
    spark, folder = witness.fixture("spark"), witness.lake.folder / "t"
    setting = "spark.sql.parquet.datetimeRebaseModeInWrite"
    spark.conf.set(setting, "LEGACY")
    try:
        spark.sql(
            f"CREATE TABLE delta.`{folder}` USING delta "
            "TBLPROPERTIES ('delta.columnMapping.mode' = 'name') "
            "AS SELECT 1 AS id, DATE'1500-1-1' AS d"
        )
    finally:
        spark.conf.unset(setting)
    drop = ("feature", "drop", witness.lake.uri("t"), "columnMapping", "--engine", "local")
    witness.refused(*drop)
    spark.sql(f"UPDATE delta.`{folder}` SET id = 2")
    witness.done(*drop)
    rows = deltalake.DeltaTable(folder).to_pyarrow_table().to_pydict()
    assert list(rows.values()) == [[2], [date(1500, 1, 1)]]


@follows("spark/__init__.py: read the place that lakeferry.resolve(path) returns")
def a_session_without_a_driver_reads_the_place_itself(witness: Witness) -> None:
    source, target = witness.lake.make("t"), witness.lake.uri("n")
    witness.done("redirect", "enable", source, target)
    other = type("SparkSession", (), {"__module__": "another.spark"})()
    witness.raises(partial(lakeferry.spark.read, other, source))
    witness.returns(lambda: deltalake.DeltaTable(lakeferry.resolve(source)).to_pyarrow_table())
    assert lakeferry.resolve(source) == target


@follows(
    "session_tables.py: Lakeferry reads the log itself, with credentials from the environment: give"
    " it other credentials with install(spark, storage_options={…})",
    starts=SPARK,
)
def a_session_is_given_the_credentials_of_the_log(witness: Witness) -> None:
    server: S3Server = witness.fixture("versitygw")
    session = witness.fixture("spark_s3").newSession()
    bucket = server.create_bucket("remedies-of-spark")
    ORDERS.write(open_store(f"{bucket.uri}/t", bucket.storage_options), with_data=True)

    def read() -> object:
        return session.read.format("delta").load(f"{bucket.uri}/t").count()

    with pytest.MonkeyPatch.context() as patch:
        for name, value in server.environment().items():
            patch.setenv(name, "wrong" if "SECRET" in name else value)
        lakeferry.spark.install(session)
        try:
            witness.raises(read)
            lakeferry.spark.install(session, storage_options=bucket.storage_options)
            witness.returns(read)
        finally:
            lakeferry.spark.uninstall(session)
