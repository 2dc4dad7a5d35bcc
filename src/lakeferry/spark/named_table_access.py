"""Readers, writers, streams and tables that were given a path, and use a table's name instead.

Mode, options, partitions and triggers are those that the reader or writer already has. Only its
option ``path`` is removed, because a catalog would take it for the place of a new table.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from lakeferry.spark.redirected_path import NewPlace
from lakeferry.spark.session_clients import followed_by_us_alone, session_of
from lakeferry.spark.table_locations import active

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def read_by_name(reader: Any, place: NewPlace, schema: Any = None) -> DataFrame:
    """Return the data frame of a batch or stream reader, from a table's name."""
    if schema is not None:
        reader = reader.schema(schema)
    reader = reader.options(**place.read_options)
    _remove_path(reader._jreader)
    frame: DataFrame = reader._df(reader._jreader.table(place.identifier))
    return frame


def write_by_name(
    writer: Any,
    place: NewPlace,
    format: str | None = None,
    mode: str | None = None,
    partitionBy: Any = None,  # noqa: N803
    **options: Any,
) -> None:
    """Write a data frame as ``save`` would: an overwrite replaces rows, and keeps the table.

    ``saveAsTable`` does the same for a table that exists, in every mode.
    """
    writer = writer.mode(mode).options(**options).format(format or "delta")
    if partitionBy is not None:
        writer = writer.partitionBy(partitionBy)
    _remove_path(writer._jwrite)
    writer._jwrite.saveAsTable(place.identifier)


def start_by_name(writer: Any, place: NewPlace, *given: Any, **named: Any) -> Any:
    """Start a stream as ``start`` would; the arguments are those after its path."""
    # The method as it was before Lakeferry patched it, if it has.
    to_table = inspect.unwrap(type(writer).toTable)
    with followed_by_us_alone(session_of(writer)):
        return to_table(writer, place.identifier, *given, **named)


def named_delta_table(kind: Any, spark: SparkSession, name: str) -> Any:
    """Return a ``DeltaTable`` (``kind``) by its name.

    delta-spark looks for the catalog in the settings of the thread's active session.
    """
    for_name = inspect.getattr_static(kind, "forName").__func__
    with active(spark):
        # The method as it was before Lakeferry patched it, if it has.
        return inspect.unwrap(for_name)(kind, spark, name)


def _remove_path(of_jvm: Any) -> None:
    """Remove the option ``path`` from a reader or writer of the JVM."""
    options = of_jvm.extraOptions()
    if options.contains("path"):
        getattr(of_jvm, "extraOptions_$eq")(options.removed("path"))
