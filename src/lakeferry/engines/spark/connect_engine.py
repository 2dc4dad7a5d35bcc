"""Runs the engine's jobs on a Spark Connect server: the user's session, or one of our own.

The jobs are data frames and functions over Arrow batches, which Connect has too. What needs the
driver's JVM is replaced: the number of cores comes from a job that also checks the executors, a
group of jobs is a tag, and progress comes from the session's progress handler. The executors need
Lakeferry in the version of this process: functions are sent by their names. They find credentials
in their own environment, as on every cluster.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from lakeferry.engine import Observer, unobserved
from lakeferry.engines.spark import spark_calls
from lakeferry.engines.spark.job_progress import JobGroups
from lakeferry.engines.spark.spark_errors import our_errors
from lakeferry.engines.spark.spark_session import EngineSession
from lakeferry.engines.spark.spark_versions import SPARK_REMOTE
from lakeferry.engines.spark.tasks.counters import Counters
from lakeferry.errors import InvalidInput, StorageUnavailable
from lakeferry.version import LAKEFERRY_VERSION

_CONNECTING = "connecting to Spark"
_CONNECT_TIMEOUT_S = 10
_DEFAULT_PORT = 15002
_ROWS_LOOKED_AT = 10_000
_own_sessions: weakref.WeakSet[Any] = weakref.WeakSet()
"""The sessions that engines began: each engine ends its own, so no other may use it."""


class ConnectEngineSession(EngineSession):
    """A session on a Spark Connect server, and whether we must end it."""

    def __init__(self, spark: Any, *, is_ours: bool) -> None:
        """Use ``spark``; executors that can't run our jobs are refused."""
        self.spark = spark
        self._ours = None
        self._is_ours = is_ours
        self._jobs = ConnectJobs(spark)
        self._cores = _checked_executors(spark)

    @property
    def jobs(self) -> JobGroups:
        """The jobs that this thread runs in the session."""
        return self._jobs

    @property
    def cores(self) -> int:
        """Number of partitions that the server chooses by itself: usually its cores."""
        return self._cores

    def _slots(self, tasks: int) -> int:
        # A server doesn't tell how many tasks it can run at the same time.
        return tasks

    @contextmanager
    def counters(self) -> Iterator[Counters | None]:
        """Provide nothing: executors are on other machines."""
        yield None

    def close(self) -> None:
        """End the session if we began it."""
        if self._is_ours:
            self.spark.stop()
            self._is_ours = False


class ConnectJobs:
    """The jobs of a Connect session, by their tags."""

    def __init__(self, spark: Any) -> None:
        self._spark = spark
        self._lock = threading.Lock()
        self._done: dict[str, dict[int, int]] = {}
        """The tasks of each group that have ended, by stage."""

    def begin(self, group: str, what: str) -> Callable[[], None]:
        """Let this thread's jobs belong to a group; return what ends that."""
        del what  # A tag has no description.
        self._spark.addTag(group)
        self._done[group] = {}

        def note(stages: Any, *_: Any, **__: Any) -> None:
            with self._lock:
                # PySpark may still tell it what another thread's jobs do after the group's end.
                done = self._done.get(group, {})
                for stage in stages or ():
                    done[stage.stage_id] = stage.num_completed_tasks

        # PySpark 3.5 doesn't tell progress.
        register = getattr(self._spark, "registerProgressHandler", None)
        if register is not None:
            register(note)

        def end() -> None:
            self._spark.removeTag(group)
            if register is not None:
                self._spark.removeProgressHandler(note)
            with self._lock:
                del self._done[group]

        return end

    def cancel(self, group: str) -> None:
        """Cancel the jobs of a group."""
        self._spark.interruptTag(group)

    def tasks_done(self, group: str) -> int:
        """Return how many tasks of the group have ended."""
        with self._lock:
            return sum(self._done.get(group, {}).values())


def open_remote_session(observer: Observer = unobserved) -> ConnectEngineSession | None:
    """Return a session on a server: the user's own, or a new one at ``LAKEFERRY_SPARK_REMOTE``.

    ``None`` if there is neither: then the engine has a JVM of its own.
    """
    url = os.environ.get(SPARK_REMOTE)
    theirs = _session_of_user()
    if theirs is not None:
        return ConnectEngineSession(theirs, is_ours=False)
    if not url:
        return None
    observer(_CONNECTING, 0, 1)
    _check_reachable(url)
    try:
        spark: Any = SparkSession.builder.remote(url).create()
        _own_sessions.add(spark)
    except ImportError as missing:
        raise InvalidInput(
            "Spark lacks a package that it needs for Spark Connect",
            cause=str(missing),
            remedy="pip install 'pyspark[connect]'",
        ) from None
    try:
        opened = ConnectEngineSession(spark, is_ours=True)
    except BaseException:
        spark.stop()
        raise
    observer(_CONNECTING, 1, 1)
    return opened


def _session_of_user() -> Any:
    """Return the Connect session that the user has; ``None`` if there is none."""
    found: list[Any] = [SparkSession.getActiveSession()]
    known = sys.modules.get("pyspark.sql.connect.session")
    if known is not None:
        # A session is active only in its own thread; this finds it from all threads.
        with contextlib.suppress(PySparkException):
            found.append(known.SparkSession.active())
    theirs = (each for each in found if spark_calls.is_connect(each) and not each.is_stopped)
    return next((each for each in theirs if each not in _own_sessions), None)


def _check_reachable(url: str) -> None:
    """Raise an error if nobody listens there: PySpark would retry for many minutes."""
    # What follows may be a token.
    shown = url.partition(";")[0]
    place = urlsplit(shown)
    if place.scheme != "sc" or not place.hostname:
        raise InvalidInput(
            f"{SPARK_REMOTE} isn't the URL of a Spark Connect server: {shown}",
            remedy="write sc://host:port, as PySpark's builder.remote takes it",
        )
    address = (place.hostname, place.port or _DEFAULT_PORT)
    try:
        socket.create_connection(address, _CONNECT_TIMEOUT_S).close()
    except OSError as failed:
        raise StorageUnavailable(
            f"no Spark Connect server answers at {address[0]}:{address[1]}",
            cause=str(failed),
            remedy=f"start it, correct {SPARK_REMOTE}, or use --engine local",
        ) from failed


def _checked_executors(spark: Any) -> int:
    """Return the number of partitions that the server chooses; refuse executors without Lakeferry.

    The function is nested, so that it travels whole, and is told of a missing package rather than
    failing by it.
    """

    def look(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import importlib

        import pyarrow

        for _ in batches:
            pass
        try:
            # The first of these needs the packages that Lakeferry depends on.
            importlib.import_module("lakeferry.storage")
            told = ["", importlib.import_module("lakeferry.version").LAKEFERRY_VERSION]
        except ImportError as missing:
            told = [str(missing), ""]
        yield pyarrow.RecordBatch.from_pydict({"missing": told[:1], "version": told[1:]})

    with our_errors():
        rows = spark.range(_ROWS_LOOKED_AT).mapInArrow(look, "missing string, version string")
        told = rows.collect()
    for row in told:
        if row["version"] != LAKEFERRY_VERSION:
            raise InvalidInput(
                "the executors of this Spark Connect server can't run Lakeferry's jobs",
                cause=row["missing"]
                or f"they have Lakeferry {row['version']}, and this is {LAKEFERRY_VERSION}",
                remedy=f"install lakeferry=={LAKEFERRY_VERSION} for the server's Python "
                "(on Databricks: in the cluster's libraries, or the environment of the "
                "serverless job), or use --engine local",
            )
    return max(1, len(told))
