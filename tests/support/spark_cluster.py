"""Spark on processes of its own: a master and workers on loopback, as on a real cluster.

Unlike ``local[2]``, executors are other processes than the driver, which have to be
sent what they run, and which live on for a moment when the driver is killed.
"""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark

from tests.support.servers import Launch, _http, _running

WORKERS = 2


def spark_home(folder: Path) -> Path:
    """Return a Spark of links to PySpark's own: workers of a cluster write into their Spark."""
    home = folder / "spark-home"
    home.mkdir()
    for path in Path(pyspark.__file__).parent.iterdir():
        (home / path.name).symlink_to(path)
    return home


@contextmanager
def standalone(folder: Path) -> Iterator[str]:
    """Run a master and two workers with a core each; give the master's address."""
    home = spark_home(folder)
    with ExitStack() as stack:
        address = "--host 127.0.0.1 --port 0"
        ui_port = stack.enter_context(_daemon(home, folder / "master", "master.Master", address))
        with urllib.request.urlopen(f"http://127.0.0.1:{ui_port}/json/") as answer:
            url: str = json.load(answer)["url"]
        for number in range(WORKERS):
            scratch = folder / f"worker-{number}"
            options = f"--host 127.0.0.1 --cores 1 --memory 1g --work-dir {scratch} {url}"
            stack.enter_context(_daemon(home, scratch, "worker.Worker", options))
        yield url


@contextmanager
def _daemon(home: Path, folder: Path, name: str, options: str) -> Iterator[int]:
    """Run one of Spark's daemons until the context ends; give the port of its page."""
    folder.mkdir()

    def launch(port: int) -> Launch:
        return Launch(
            [
                str(home / "bin" / "spark-class"),
                f"org.apache.spark.deploy.{name}",
                *("--webui-port", str(port)),
                *options.split(),
            ],
            {
                "SPARK_HOME": str(home),
                "SPARK_DAEMON_MEMORY": "256m",
                "SPARK_LOCAL_DIRS": str(folder),
                "SPARK_LOCAL_IP": "127.0.0.1",
                "SPARK_NO_DAEMONIZE": "1",
            },
        )

    with _running(launch, folder, _http("/json/")) as port:
        yield port
