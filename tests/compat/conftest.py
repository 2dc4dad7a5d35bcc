"""Fixtures of the tests with other engines."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from tests.support.redirected_tables import client_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def spark_as(spark: SparkSession) -> Iterator[Callable[[str], SparkSession]]:
    """New sessions in the one JVM, each as one of the clients that redirects know."""
    with ExitStack() as sessions:
        yield lambda client: sessions.enter_context(client_session(spark, client))


@pytest.fixture(scope="module")
def unsplit_plans(spark: SparkSession) -> Iterator[None]:
    """Spark doesn't split its plans up: for modules whose tables are all tiny."""
    from tests.support.spark import unsplit

    with unsplit(spark):
        yield
