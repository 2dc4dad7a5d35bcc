"""The ways in which the pandas API of Spark reads and writes Delta tables.

They are called in a process that has pandas (``tests/support/connect.py``);
that of the tests has none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def _pandas(session: SparkSession) -> Any:
    """Return the pandas API, which uses the active session."""
    from pyspark import pandas

    session.conf.set("spark.sql.ansi.enabled", "false")
    return pandas


READS: dict[str, Callable[[Any, SparkSession, str, str], Any]] = {
    "read_delta": lambda ps, _, path, __: ps.read_delta(path),
    "read_delta with options": lambda ps, _, path, __: ps.read_delta(path, options={"a": "b"}),
    "read_spark_io": lambda ps, _, path, __: ps.read_spark_io(path, format="delta"),
    "read_table of a path": lambda ps, _, path, __: ps.read_table(f"delta.`{path}`"),
    "read_table": lambda ps, _, __, name: ps.read_table(name),
    "sql": lambda ps, _, path, __: ps.sql(f"SELECT * FROM delta.`{path}`"),
    "sql of a name": lambda ps, _, __, name: ps.sql(f"SELECT * FROM {name}"),
    "pandas_api": lambda _, session, path, __: session.read.format("delta").load(path).pandas_api(),
    "table.pandas_api": lambda _, session, __, name: session.table(name).pandas_api(),
}
WRITES: dict[str, Callable[[Any, str, str], object]] = {
    "to_delta": lambda frame, path, _: frame.to_delta(path, mode="append"),
    "to_spark_io": lambda frame, path, _: frame.spark.to_spark_io(path, "delta", "append"),
    "to_table": lambda frame, _, name: frame.to_table(name, format="delta", mode="append"),
    "spark.to_table": lambda frame, _, name: frame.spark.to_table(name, "delta", "append"),
}


def read_all(session: SparkSession, path: str, name: str) -> dict[str, list[int]]:
    """Return the ids that each way of reading finds."""
    pandas = _pandas(session)
    return {
        how: sorted(int(each) for each in read(pandas, session, path, name)["id"].to_numpy())
        for how, read in READS.items()
    }


def read_version(session: SparkSession, path: str, version: int) -> list[int]:
    """Return the ids of an older version."""
    return sorted(
        int(each) for each in _pandas(session).read_delta(path, version=version)["id"].to_numpy()
    )


def write_all(session: SparkSession, path: str, name: str, row: int) -> int:
    """Append a row in each way of writing; return how many ways there are."""
    frame = _pandas(session).DataFrame({"id": [row]})
    for write in WRITES.values():
        write(frame, path, name)
    return len(WRITES)
