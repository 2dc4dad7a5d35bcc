"""Gets a Spark session: the user's if there is one, otherwise one of our own.

Our own session uses this machine's cores, listens only on loopback, and is quiet: the output of
the JVM and its Python workers goes to a file in the session's folder, so it is never mixed with
a command's output. It opens no web page and keeps nothing after :meth:`EngineSession.close`.

Executors run the same Lakeferry as the driver: unless the session is a local one, the package is
sent to them. They must have its dependencies. Spark's configuration is visible on its web pages,
so it never contains a credential: executors find credentials in their environment.
"""

from __future__ import annotations

import atexit
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from lakeferry.engine import Observer, unobserved
from lakeferry.engines.spark import spark_calls, spark_jars
from lakeferry.engines.spark.job_progress import ContextJobs, JobGroups
from lakeferry.engines.spark.spark_calls import ArrowFunction
from lakeferry.engines.spark.tasks.counters import Counters, kept
from lakeferry.errors import InvalidInput

_PACKAGE = Path(__file__).resolve().parents[2]
_LOG4J = """\
rootLogger.level = warn
rootLogger.appenderRef.out.ref = out
appender.out.type = Console
appender.out.name = out
appender.out.target = SYSTEM_ERR
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex
"""
_INTERPRETER = "PYSPARK_PYTHON"
_STARTING = "starting Spark"
_CLASS_PATHS = ("spark.driver.extraClassPath", "spark.executor.extraClassPath")
_END_TIMEOUT_S = 20
_TOLD_LINES = 5


class EngineSession:
    """A running session, and whether we must stop it."""

    def __init__(self, spark: SparkSession, ours: _Started | None = None) -> None:
        """Use ``spark``; ``ours`` is what to stop with it, if we started it."""
        self.spark = spark
        self._ours = ours
        if not _is_local(spark.sparkContext):
            _send_package(spark.sparkContext)

    @property
    def jobs(self) -> JobGroups:
        """The jobs that this thread runs in the session."""
        return ContextJobs(self.spark.sparkContext)

    @property
    def cores(self) -> int:
        """Number of tasks that run at a time."""
        return max(1, int(self.spark.sparkContext.defaultParallelism))

    def task_rate(self, limit_rate: int | None, tasks: int) -> int | None:
        """Return each task's share of a limit: all that run at a time stay below it together.

        Tasks don't know of each other. So the limit isn't reached while fewer of them run.
        """
        return None if limit_rate is None else max(1, limit_rate // self.at_once(tasks))

    def at_once(self, tasks: int) -> int:
        """Return how many of these tasks can run at the same time, at most."""
        return max(1, min(tasks, self._slots(tasks)))

    def _slots(self, tasks: int) -> int:
        context = self.spark.sparkContext
        conf = context.getConf()
        try:
            profile = context._jsc.sc().resourceProfileManager().defaultResourceProfile()
            slots = int(context._jsc.sc().maxNumConcurrentTasks(profile))
        except Exception:  # noqa: BLE001 - Spark's own method, which a version may not have
            return tasks
        cores = conf.get("spark.executor.cores")
        if str(conf.get("spark.dynamicAllocation.enabled", "false")).lower() == "true":
            most = conf.get("spark.dynamicAllocation.maxExecutors")
            if most is None or cores is None:
                # Any number of executors may come.
                return tasks
        else:
            # Those of a fixed number may still be starting; Spark doesn't wait for all of them.
            most = conf.get("spark.executor.instances", "0")
            slots = max(slots, int(conf.get("spark.cores.max", "0")))
        return max(slots, int(most) * int(cores or 1))

    @contextmanager
    def counters(self) -> Iterator[Counters | None]:
        """Provide counters for a job's tasks, if they run on this machine."""
        if not _is_local(self.spark.sparkContext):
            yield None
            return
        with kept() as counters:
            yield counters

    def close(self) -> None:
        """Stop the session if we started it, and wait until its JVM has ended."""
        if self._ours is not None:
            self._ours.end()
            self._ours = None


def open_session(
    settings: Mapping[str, str] | None = None, observer: Observer = unobserved
) -> EngineSession:
    """Return the user's active session, or start one with ``settings`` added to ours.

    A JVM takes seconds to start, so the observer is told about it. An unsupported Spark is
    refused first.
    """
    spark_calls.spark_line()
    active = SparkSession.getActiveSession()
    if active is None and SparkContext._active_spark_context is not None:
        # A session is active only in its own thread, but getOrCreate finds it from all threads.
        active = SparkSession.builder.getOrCreate()
    if active is not None:
        return EngineSession(active)
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        # spark-submit started us, so the session and its settings are the user's.
        return EngineSession(SparkSession.builder.getOrCreate())
    observer(_STARTING, 0, 1)
    started = _Started(settings or {})
    observer(_STARTING, 1, 1)
    return EngineSession(started.spark, started)


def map_in_arrow(
    frame: DataFrame,
    function: ArrowFunction,
    schema: StructType | str,
) -> DataFrame:
    """Return the executors' results for a frame's batches; nothing runs yet.

    Workers on this machine use this Python interpreter, unless the user says otherwise. PySpark
    would use any ``python3``, which may not have Lakeferry.
    """
    if spark_calls.is_connect(frame.sparkSession):
        return frame.mapInArrow(function, schema)
    context = frame.sparkSession.sparkContext
    given = context.pythonExec
    if _is_local(context) and _INTERPRETER not in os.environ:
        context.pythonExec = sys.executable
    try:
        return frame.mapInArrow(function, schema)
    except ImportError:
        # pandas is missing or too old.
        return spark_calls.map_in_arrow_without_pandas(frame, function, schema)
    finally:
        context.pythonExec = given


def _is_local(context: SparkContext) -> bool:
    """Return True if executors are threads of the driver."""
    return (context.master or "").partition("[")[0] == "local"


def _jars_folder() -> Path | None:
    """Return the folder with Delta Lake's jars for this Spark, if the setup fetched them.

    Our jobs read through our own store and don't need them. A user who reads a Delta table with
    Spark's own reader does, and then nothing must be resolved or downloaded.
    """
    line = spark_calls.spark_line()
    folder = None if line.delta is None else spark_jars.jars_folder(os.environ, line)
    return folder if folder is not None and folder.is_dir() else None


class _Started:
    """A session that we started, with its JVM and its folder."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="lakeferry-spark-"))
        self._log = self._folder / "spark.log"
        self._gateway: Any = None
        self._context: SparkContext | None = None
        # py4j logs an error when a connection closes, before its exception reaches us.
        logging.getLogger("py4j").setLevel(logging.CRITICAL)
        try:
            self.spark = self._start(settings)
        except (PySparkException, OSError) as failed:
            told = self._last_words()
            self.end()
            raise InvalidInput(
                "Spark can't be started",
                cause=told or str(failed),
                remedy="install Java 17 or newer and set JAVA_HOME, or use --engine local",
            ) from failed
        except BaseException:
            self.end()
            raise

    def _start(self, settings: Mapping[str, str]) -> SparkSession:
        log4j = self._folder / "log4j2.properties"
        log4j.write_text(_LOG4J)
        conf = SparkConf(loadDefaults=False)
        for name, value in (_defaults(self._folder, log4j) | dict(settings)).items():
            conf.set(name, value)
        with self._log.open("ab") as log:
            output = {"stdout": log, "stderr": log, "cwd": str(self._folder)}
            self._gateway = launch_gateway(conf, output)  # type: ignore[no-untyped-call]
        self._context = SparkContext(gateway=self._gateway, conf=conf)
        if _INTERPRETER not in os.environ:
            self._context.pythonExec = sys.executable
        return SparkSession.builder.getOrCreate()

    def _last_words(self) -> str:
        """Return the end of the JVM's output."""
        if not self._log.exists():
            return ""
        return " ".join(self._log.read_text(errors="replace").splitlines()[-_TOLD_LINES:])

    def end(self) -> None:
        """Stop everything that was started, even if starting failed halfway."""
        gateway, self._gateway = self._gateway, None
        if gateway is not None:
            if self._context is not None:
                self._context.stop()
            gateway.shutdown()
            # The JVM ends when its standard input does.
            gateway.proc.stdin.close()
            try:
                gateway.proc.wait(_END_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                gateway.proc.kill()
                gateway.proc.wait()
            # Otherwise PySpark would use the stopped JVM for the next session.
            SparkContext._gateway = None
            SparkContext._jvm = None
        shutil.rmtree(self._folder, ignore_errors=True)


def _defaults(folder: Path, log4j: Path) -> dict[str, str]:
    java = [
        f"-Dlog4j2.configurationFile={log4j.as_uri()}",
        f"-Dderby.system.home={folder}",
        f"-Djava.io.tmpdir={folder}",
    ]
    jars = _jars_folder()
    # On the class path, because `spark.jars` would copy each jar at every start.
    class_path = {} if jars is None else dict.fromkeys(_CLASS_PATHS, f"{jars}/*")
    return class_path | {
        "spark.master": "local[*]",
        "spark.app.name": "lakeferry",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "2g",
        "spark.driver.extraJavaOptions": " ".join(java),
        "spark.executorEnv.PYTHONPATH": os.environ.get("PYTHONPATH", ""),
        "spark.local.dir": str(folder),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        # Results that a driver collects are small here, so a large one is a bug.
        "spark.driver.maxResultSize": "256m",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }


_sent: set[str] = set()


def _send_package(context: SparkContext) -> None:
    """Let executors import the same Lakeferry as the driver."""
    if context.applicationId in _sent:
        return
    # Executors fetch it when they start, so it is kept until this process ends.
    folder = tempfile.mkdtemp(prefix="lakeferry-package-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    archive = Path(folder) / "lakeferry.zip"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as package:
        for path in sorted(_PACKAGE.rglob("*.py")):
            package.write(path, str(path.relative_to(_PACKAGE.parent)))
    before = list(sys.path)
    context.addPyFile(str(archive))
    # The driver keeps using the package that it has imported.
    sys.path[:] = before
    _sent.add(context.applicationId)
