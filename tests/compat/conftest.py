"""Fixtures of the tests with other engines."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from tests.support.redirected_tables import client_session
from tests.support.shares import TAKEN

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what isn't in this run's share, in modules that are shared out test by test."""
    shared = [item for item in items if getattr(_module(item), "IN_SHARES", False)]
    taken = config.stash[TAKEN].some(shared) if shared else []
    left_out = set(shared) - set(taken)
    if left_out:
        config.hook.pytest_deselected(items=sorted(left_out, key=items.index))
        items[:] = [item for item in items if item not in left_out]


def _module(item: pytest.Item) -> object:
    module = item.getparent(pytest.Module)
    return None if module is None else module.obj


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
