"""A server of Spark Connect, and a client process that talks to it.

The client needs pandas and gRPC, which our own environment doesn't have
(the component ``connect-client``). So it is a process of its own, which calls the functions that a
test names and sends back what they return: :meth:`ConnectProcess.call`.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyspark

from lakeferry.engines.spark import spark_jars
from lakeferry.engines.spark.spark_versions import NEWEST_WITH_DELTA, SparkLine
from tests.matrix import environments
from tests.support import components
from tests.support.servers import Launch, _listens, _running

_LOG4J = Path(__file__).with_name("log4j2.properties")
_ANSWER = "connect answer: "

SETTINGS = {
    # Tests ask many questions about a few rows.
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.databricks.delta.retentionDurationCheck.enabled": "false",
}
"""What a server of these tests has beside what every Spark of the tests has."""


@dataclass
class ConnectFailure(Exception):
    """What a function raised in the client's process."""

    kind: str
    text: str
    remedy: str = ""

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"


class ConnectProcess:
    """A process with a session of Spark Connect."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call a function of a test module with the session; its result must fit into JSON."""
        path = Path(function.__code__.co_filename).resolve()
        module = path.relative_to(components.ROOT).with_suffix("").as_posix().replace("/", ".")
        asked = {"module": module, "function": function.__name__, "args": [*map(_plain, args)]}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(asked), file=self._process.stdin, flush=True)
        for line in self._process.stdout:
            if line.startswith(_ANSWER):
                told = json.loads(line.removeprefix(_ANSWER))
                if "failure" in told:
                    raise ConnectFailure(**told["failure"])
                return told["result"]
        raise AssertionError("the client ended")


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, Path) else value


@contextmanager
def connect_server(folder: Path, line: SparkLine = NEWEST_WITH_DELTA) -> Iterator[str]:
    """Run a server with Delta Lake until the context ends; give its URL."""
    jars = _jars(line)
    start = _start_of_3_5 if line is environments.OLDEST else _start
    variables = {
        "PYSPARK_PYTHON": str(environments.python_of(line)),
        # For the functions of foreachBatch, which have a session of their own.
        "PYTHONPATH": _python_path(),
        "SPARK_HOME": str(_home(line)),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }

    def launch(port: int) -> Launch:
        return Launch(start(line, jars, folder, port), variables)

    with _running(launch, folder, _listens) as port:
        yield f"sc://127.0.0.1:{port}"


def _start(line: SparkLine, jars: Path, folder: Path, port: int) -> list[str]:
    """Return the command of a line whose PySpark brings the server."""
    settings = {
        **SETTINGS,
        "spark.app.name": "lakeferry-tests",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraClassPath": f"{jars}/*",
        "spark.driver.extraJavaOptions": " ".join(
            [
                f"-Dlog4j2.configurationFile={_LOG4J.as_uri()}",
                f"-Dderby.system.home={folder}",
                f"-Djava.io.tmpdir={folder}",
            ]
        ),
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.local.dir": str(folder),
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.ui.enabled": "false",
    }
    options = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    return [
        str(_home(line) / "bin" / "spark-class"),
        "org.apache.spark.deploy.SparkSubmit",
        *("--master", "local[2]"),
        *("--class", "org.apache.spark.sql.connect.service.SparkConnectServer"),
        *options,
        "spark-internal",
    ]


def _start_of_3_5(line: SparkLine, jars: Path, folder: Path, port: int) -> list[str]:
    server = components.require("oldest-connect")
    python = str(environments.python_of(line))
    paths = os.pathsep.join(map(str, [jars, server]))
    return [python, "-m", "tests.support.oldest_connect", str(port), paths, str(folder)]


def _jars(line: SparkLine) -> Path:
    """Return the jars of a line; skip the test if its environment isn't there."""
    if line is NEWEST_WITH_DELTA:
        return components.require("spark-jars")
    if line is environments.OLDEST:
        components.require("oldest-spark")
    return spark_jars.jars_folder(os.environ, line)


def _home(line: SparkLine) -> Path:
    """Return the folder of a line's PySpark."""
    if line is NEWEST_WITH_DELTA:
        return Path(pyspark.__file__).parent
    (found,) = environments.python_of(line).parents[1].glob("lib/python*/site-packages/pyspark")
    return found


@contextmanager
def connect_process(
    url: str, folder: Path, line: SparkLine = NEWEST_WITH_DELTA
) -> Iterator[ConnectProcess]:
    """Run a client until the context ends."""
    with _client(line, folder, url) as process:
        yield process


@contextmanager
def classic_process(folder: Path) -> Iterator[ConnectProcess]:
    """Run a process with the client's packages whose session has a JVM of its own."""
    with _client(NEWEST_WITH_DELTA, folder, str(_jars(NEWEST_WITH_DELTA)), str(folder)) as process:
        yield process


@contextmanager
def _client(line: SparkLine, folder: Path, *arguments: str) -> Iterator[ConnectProcess]:
    with (folder / "client.log").open("wb") as log:
        process = subprocess.Popen(
            [str(environments.python_of(line)), "-m", "tests.support.connect", *arguments],
            cwd=components.ROOT,
            env={**os.environ, "PYTHONPATH": _python_path()},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    try:
        yield ConnectProcess(process)
    finally:
        assert process.stdin is not None
        process.stdin.close()
        process.wait(60)
        assert process.stdout is not None
        process.stdout.close()


def _python_path() -> str:
    """Return where Python finds the client's packages, Lakeferry and the tests."""
    client = components.require("connect-client")
    return os.pathsep.join(map(str, [client, components.ROOT / "src", components.ROOT]))


def main(place: str, folder: str = "") -> None:
    """Call functions with a session, one for each line of standard input.

    ``place`` is the URL of a server, or a folder of jars for a session with a JVM.
    """
    from pyspark.sql import SparkSession

    if folder:
        from tests.support.spark import session as start_session

        session = start_session(Path(place), Path(folder), settings=SETTINGS)
    else:
        session = SparkSession.builder.remote(place).getOrCreate()
    for line in sys.stdin:
        asked = json.loads(line)
        function = getattr(importlib.import_module(asked["module"]), asked["function"])
        try:
            told = {"result": function(session, *asked["args"])}
        except Exception as failed:  # noqa: BLE001 - the test judges it
            remedy = getattr(failed, "remedy", None) or ""
            failure = {"kind": type(failed).__name__, "text": str(failed), "remedy": remedy}
            told = {"failure": failure}
        # PySpark 3.5 returns numbers and truth values of NumPy.
        answer = json.dumps(told, default=lambda value: value.item())
        print(f"\n{_ANSWER}{answer}", flush=True)
    session.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
