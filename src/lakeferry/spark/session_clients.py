"""Which client a Spark session has.

A session has its client's number in its configuration. Sessions that streaming clones, inside of
``foreachBatch``, inherit the number; new sessions don't.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from lakeferry.spark.client import Client
from lakeferry.spark.table_locations import active

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Method = Callable[..., Any]
Patch = tuple[type, str, Callable[[Method], Method]]
"""A class, the name of its method, and a function from the method to its replacement."""

CLIENT_SETTING = "spark.lakeferry.client"
FOLLOW_IN_JVM = "spark.databricks.delta.enableTableRedirectFeature"
"""Makes delta-spark follow writer-only redirects in its own dialect."""

clients_lock = threading.RLock()
client_options: dict[str, Mapping[str, str]] = {}
"""The storage options of each client, by its number."""
told_jvm: set[str] = set()
"""Client numbers of sessions in which we set :data:`FOLLOW_IN_JVM`."""


def client_of(spark: SparkSession) -> Client | None:
    """Return the client of a session, if it has one."""
    number = spark.conf.get(CLIENT_SETTING, None)
    options = client_options.get(number) if number is not None else None
    return None if options is None else Client(spark, options)


def give_number(spark: SparkSession, number: str) -> None:
    """Store the client's number in a session, and make its JVM follow redirects too."""
    spark.conf.set(CLIENT_SETTING, number)
    # A value that the user has set is kept.
    if not spark._jsparkSession.conf().contains(FOLLOW_IN_JVM):
        spark.conf.set(FOLLOW_IN_JVM, "true")
        told_jvm.add(number)


def keep_number(spark: SparkSession, number: str) -> None:
    """Restore a session's client number: the statement ``RESET`` removes all settings."""
    with clients_lock:
        if number in client_options and spark.conf.get(CLIENT_SETTING, None) is None:
            give_number(spark, number)


@contextmanager
def followed_by_us_alone(spark: SparkSession) -> Iterator[None]:
    """Keep delta-spark's own following out of what this thread does.

    With :data:`FOLLOW_IN_JVM`, delta-spark opens the sink of a stream by its path, and refuses the
    path of a managed table. Setting it in the session would change what other threads read, so
    the thread gets a copy of the session as its active one.
    """
    if spark.conf.get(FOLLOW_IN_JVM, None) != "true":
        yield
        return
    session: Any = spark
    copy = session._jsparkSession.cloneSession()
    copy.conf().set(FOLLOW_IN_JVM, "false")
    with active(spark, copy):
        yield


def session_of(of: Any) -> SparkSession:
    """Return the session of a reader, a writer, a data frame or a table."""
    from pyspark.sql import DataFrame

    # A data frame returns a column for an attribute that it doesn't have.
    found: SparkSession = of.sparkSession if isinstance(of, DataFrame) else of._spark
    return found
