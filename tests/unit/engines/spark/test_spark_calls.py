"""Rows are placed by a hash that is computed here; a JVM isn't asked."""

from __future__ import annotations

import pytest

from lakeferry.engines.spark.spark_versions import SPARK_LINES

spark_calls = pytest.importorskip("lakeferry.engines.spark.spark_calls", exc_type=ImportError)


def test_the_hash_of_an_integer_is_that_of_spark() -> None:
    # From `SELECT hash(0), hash(1), hash(2), hash(12345)` in Spark.
    assert [spark_calls.spark_hash(n) for n in (0, 1, 2, 12345)] == [
        933211791,
        -559580957,
        1765031574,
        -2122148428,
    ]


@pytest.mark.parametrize("tasks", [1, 2, 7, 100, 2_000])
def test_each_task_has_a_number_that_leads_to_it(tasks: int) -> None:
    numbers = spark_calls.hashed_to_tasks(tasks)
    assert [spark_calls.spark_hash(number) % tasks for number in numbers] == list(range(tasks))


def test_every_line_of_spark_has_ways_that_exist() -> None:
    for line in SPARK_LINES:
        assert line.map_call in spark_calls._MAPS
        assert line.place_call in spark_calls._PLACES
