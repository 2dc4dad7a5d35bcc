"""Checks that a place has every file of a version, on Spark.

Runs the two checks of :mod:`lakeferry.engines.presence_check` as joins of data that executors
read and list themselves; the driver sees counters and a few names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import pyarrow as pa
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as sql
from pyspark.sql.pandas.types import from_arrow_schema

from lakeferry.engine import (
    LISTED_FINDINGS,
    CheckPlan,
    CheckTotals,
    Observer,
    ReplayPlan,
)
from lakeferry.engines import objects_to_copy, presence_check
from lakeferry.engines.spark import replay_on_spark
from lakeferry.engines.spark.job_progress import watched
from lakeferry.engines.spark.replay_on_spark import SparkReplayed
from lakeferry.engines.spark.spark_session import EngineSession, map_in_arrow
from lakeferry.engines.spark.tasks.task_failures import telling_the_driver
from lakeferry.log.rewrite import Rewrite, Unchanged
from lakeferry.storage import StoreConfig, open_config

_CHECKING = "checking what is there"

Reading = Callable[[Iterable[pa.RecordBatch], Rewrite, str], Iterator[pa.RecordBatch]]


def check_presence_on_spark(
    session: EngineSession, plan: CheckPlan, observer: Observer
) -> CheckTotals:
    """Look for a version's files at another place."""
    here = replay_on_spark.replay(session, ReplayPlan(plan.source, plan.segment), observer)
    with here:
        if plan.there is None:
            return _against_objects(session, plan, here, observer)
        there = replay_on_spark.replay(session, ReplayPlan(plan.target, plan.there), observer)
        with there:
            return _against_version(session, plan, here, there, observer)


def _against_objects(
    session: EngineSession, plan: CheckPlan, here: SparkReplayed, observer: Observer
) -> CheckTotals:
    rows = _rows(here, presence_check.objects, plan.rename, plan.target.uri)
    listed = listing_frame(session, plan.target)
    joined = rows.join(listed, "key", "left").select(
        "path",
        sql.col("there").isNull().alias("missing"),
        sql.coalesce(sql.col("there") != sql.col("size"), sql.lit(False)).alias("unequal"),
    )
    counted = joined.agg(
        sql.count(sql.lit(1)).alias("wanted"),
        sql.count_if("missing").alias("missing"),
        sql.count_if("unequal").alias("unequal"),
    )
    total = _only(session, counted, observer)
    named = {
        kind: _named(joined.where(kind)) if total[kind] else () for kind in ("missing", "unequal")
    }
    return CheckTotals(
        total["wanted"], total["missing"], named["missing"], total["unequal"], named["unequal"], 0
    )


def _against_version(
    session: EngineSession,
    plan: CheckPlan,
    here: SparkReplayed,
    there: SparkReplayed,
    observer: Observer,
) -> CheckTotals:
    root = plan.target.uri
    signed = _rows(here, presence_check.live, plan.rename, root).withColumn("sign", sql.lit(1))
    theirs = _rows(there, presence_check.live, Unchanged(), root).withColumn("sign", sql.lit(-1))
    sums = (
        signed.unionByName(theirs)
        .groupBy("key", "size", "rows")
        .agg(sql.sum("sign").alias("sign"), sql.first("path").alias("path"))
    )
    sign = sql.col("sign")
    counted = sums.agg(
        sql.coalesce(sql.sum(sql.when(sign > 0, sign)), sql.lit(0)).alias("missing"),
        sql.coalesce(sql.sum(sql.when(sign < 0, -sign)), sql.lit(0)).alias("extra"),
    )
    total = _only(session, counted, observer)
    missing = _named(sums.where(sign > 0)) if total["missing"] else ()
    return CheckTotals(here.totals.num_files, total["missing"], missing, 0, (), total["extra"])


def _rows(replayed: SparkReplayed, reading: Reading, rename: Rewrite, root: str) -> DataFrame:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with telling_the_driver():
            yield from reading(batches, rename, root)

    considered = replayed.files_frame.select(*presence_check.CONSIDERED)
    return map_in_arrow(considered, run, from_arrow_schema(presence_check.ROWS))


def listing_frame(session: EngineSession, place: StoreConfig) -> DataFrame:
    """Return what is at a place; a listing goes from page to page, so one task reads it."""

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with telling_the_driver():
            for batch in batches:
                if len(batch):
                    for page in objects_to_copy.list_place(open_config(place)):
                        yield from page.to_batches()

    one = session.spark.range(0, 1, 1, 1)
    listed = map_in_arrow(one, read, from_arrow_schema(objects_to_copy.LISTED))
    return listed.select(sql.col("name").alias("key"), sql.col("size").alias("there"))


def _only(session: EngineSession, counted: DataFrame, observer: Observer) -> Row:
    with watched(session.jobs, _CHECKING, 1, observer):
        (row,) = counted.collect()
    return row


def _named(rows: DataFrame) -> tuple[str, ...]:
    return tuple(row["path"] for row in rows.select("path").limit(LISTED_FINDINGS).collect())
