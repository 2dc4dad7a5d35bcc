"""Rows of tables that other engines wrote: our dataset has those that delta-spark finds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

import lakeferry
from lakeferry.errors import LakeferryError
from tests.golden.conftest import GOLDEN
from tests.golden.test_golden_tables import REFUSED, TABLES, UNREADABLE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def rows(table: pa.Table) -> list[str]:
    return sorted(map(repr, table.to_pylist()))


@pytest.mark.parametrize("name", [name for name in TABLES if name not in REFUSED | UNREADABLE])
def test_we_find_the_rows_of_delta_spark(name: str, spark: SparkSession) -> None:
    """What Spark can't read, because its files were left out, isn't read by us either."""
    location = str(GOLDEN / name)
    try:
        expected = spark.read.format("delta").load(location).toArrow()
    except (Py4JError, PySparkException):
        with pytest.raises((LakeferryError, FileNotFoundError)):
            lakeferry.open(location).to_table()
        return
    found = lakeferry.open(location)
    assert found.schema.names == expected.schema.names
    assert rows(found.to_table()) == rows(expected)
