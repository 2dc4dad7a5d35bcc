"""The ways in which PySpark reads a Delta table by its path."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from lakeferry import spark as modern

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Read = Callable[["SparkSession", str], "DataFrame"]


def streamed(session: SparkSession, frame: DataFrame) -> DataFrame:
    """Return all rows that a stream has now."""
    name = f"sink_{uuid.uuid4().hex}"
    writer = frame.writeStream.format("memory").queryName(name).trigger(availableNow=True)
    writer.start().awaitTermination()
    return session.table(name)


def delta_table(session: SparkSession, path: str) -> Any:
    """Return delta-spark's own table of a path."""
    from delta.tables import DeltaTable

    return DeltaTable.forPath(session, path)


READS: dict[str, Read] = {
    "load": lambda s, p: s.read.format("delta").load(p),
    "option path": lambda s, p: s.read.option("path", p).format("delta").load(),
    "options path": lambda s, p: s.read.format("delta").load(PATH=p),
    "table": lambda s, p: s.table(f"delta.`{p}`"),
    "read.table": lambda s, p: s.read.table(f"delta.`{p}`"),
    "sql": lambda s, p: s.sql(f"SELECT * FROM delta.`{p}`"),
    "temporary view": lambda s, p: (
        s.sql(f"CREATE OR REPLACE TEMP VIEW seen AS SELECT * FROM delta.`{p}`"),
        s.table("seen"),
    )[1],
    "DeltaTable": lambda s, p: delta_table(s, p).toDF(),
    "stream": lambda s, p: streamed(s, s.readStream.format("delta").load(p)),
    "stream by option": lambda s, p: streamed(
        s, s.readStream.format("delta").option("path", p).load()
    ),
    # Delta itself can't do that.
    "stream of a table": lambda s, p: streamed(s, s.readStream.table(f"delta.`{p}`")),
    "lakeferry.spark.read": lambda s, p: modern.read(s, p),
    "lakeferry.spark.for_path": lambda s, p: modern.for_path(s, p).toDF(),
}
