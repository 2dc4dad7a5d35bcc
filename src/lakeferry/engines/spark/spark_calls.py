"""Calls to PySpark that differ between lines of Spark, chosen by their table.

:mod:`lakeferry.engines.spark.spark_versions` says which way a line has; here is each way.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pyspark
from pyspark.sql import DataFrame
from pyspark.sql import functions as sql
from pyspark.sql.types import StructType
from pyspark.sql.udf import UserDefinedFunction

from lakeferry.engines.spark.spark_versions import (
    SPARK_LINES,
    MapCall,
    PlaceCall,
    SparkLine,
    line_of,
)

ArrowFunction = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]

_HASH_SEED = 42
_32_BITS = 0xFFFF_FFFF


def spark_line() -> SparkLine:
    """Return the line of the imported PySpark; an unsupported one is an error."""
    return line_of(pyspark.__version__)


def is_connect(session: Any) -> bool:
    """Return True for a session of Spark Connect: its driver is in another process."""
    return type(session).__module__ == "pyspark.sql.connect.session"


def map_in_arrow_without_pandas(
    frame: DataFrame, function: ArrowFunction, schema: StructType | str
) -> DataFrame:
    """Do the same as ``DataFrame.mapInArrow``, but without requiring pandas.

    The original requires it because it makes its function with ``pandas_udf``, although neither
    it nor a worker then uses pandas. The calls to the JVM are those of PySpark's own method, and
    some of those names aren't public. Why Lakeferry doesn't depend on pandas instead:
    docs/decisions/0008-spark-reads-through-our-store.md.
    """
    mapped = UserDefinedFunction(function, schema, evalType=_arrow_map_type())
    column: Any = mapped(*[frame[name] for name in frame.columns])
    return DataFrame(_MAPS[spark_line().map_call](frame._jdf, column._jc), frame.sparkSession)


def place_by_task(frame: DataFrame, tasks: int, column: str) -> DataFrame:
    """Return rows with each in the partition that its ``column``, an integer, names."""
    line = spark_line()
    if is_connect(frame.sparkSession):
        # The server may be older than the client, or newer.
        line = min(line, line_of(frame.sparkSession.version), key=SPARK_LINES.index)
    return _PLACES[line.place_call](frame, tasks, column)


# --- Classes ------------------------------------------------------------------


def frame_class() -> type[DataFrame]:
    """Return the class of the data frames whose driver is in this process."""
    found: type[DataFrame] = importlib.import_module(spark_line().frame_module).DataFrame
    return found


def session_class(jvm: Any) -> Any:
    """Return the JVM's class of sessions, which knows the active one."""
    return getattr(jvm, spark_line().session_class)


# --- mapInArrow ---------------------------------------------------------------


def _arrow_map_type() -> int:
    """Return the number of functions over Arrow batches; its class moved in Spark 4."""
    for module in ("pyspark.util", "pyspark.rdd"):
        types = getattr(importlib.import_module(module), "PythonEvalType", None)
        if types is not None:
            return int(types.SQL_MAP_ARROW_ITER_UDF)
    raise AttributeError("this PySpark has no PythonEvalType")


def _map_of_column(frame: Any, column: Any) -> Any:
    barrier, resource_profile = False, None
    return frame.mapInArrow(column, barrier, resource_profile)


def _map_of_expression(frame: Any, column: Any) -> Any:
    barrier = False
    return frame.pythonMapInArrow(column.expr(), barrier)


_MAPS: dict[MapCall, Callable[[Any, Any], Any]] = {
    "mapInArrow of a column": _map_of_column,
    "pythonMapInArrow of an expression": _map_of_expression,
}

# --- Partitions ---------------------------------------------------------------


def _place_by_id(frame: DataFrame, tasks: int, column: str) -> DataFrame:
    return frame.repartitionById(tasks, sql.col(column))


def _place_by_hash(frame: DataFrame, tasks: int, column: str) -> DataFrame:
    """Place rows by a number whose hash leads to the task.

    If Spark hashed differently, tasks would share partitions, and the results were the same.
    """
    # As one text, because Spark plans a list of literals slowly.
    chosen = ",".join(map(str, hashed_to_tasks(tasks)))
    number = sql.expr(f"cast(element_at(split('{chosen}', ','), int({column}) + 1) as int)")
    return frame.repartition(tasks, number)


_PLACES: dict[PlaceCall, Callable[[DataFrame, int, str], DataFrame]] = {
    "repartitionById": _place_by_id,
    "repartition by a chosen hash": _place_by_hash,
}


def hashed_to_tasks(tasks: int) -> list[int]:
    """Return an integer for each task that Spark's partitioner sends to that task."""
    found: dict[int, int] = {}
    number = 0
    while len(found) < tasks:
        found.setdefault(spark_hash(number) % tasks, number)
        number += 1
    return [found[task] for task in range(tasks)]


def spark_hash(number: int) -> int:
    """Return what Spark's ``hash`` returns for an integer: Murmur3 of its 32 bits."""
    mixed = number * 0xCC9E2D51 & _32_BITS
    mixed = _rotated(mixed, 15) * 0x1B873593 & _32_BITS
    value = (_rotated(_HASH_SEED ^ mixed, 13) * 5 + 0xE6546B64) & _32_BITS
    value ^= 4
    value = (value ^ value >> 16) * 0x85EBCA6B & _32_BITS
    value = (value ^ value >> 13) * 0xC2B2AE35 & _32_BITS
    value ^= value >> 16
    return value - (1 << 32) if value >> 31 else value


def _rotated(value: int, bits: int) -> int:
    return (value << bits | value >> (32 - bits)) & _32_BITS
