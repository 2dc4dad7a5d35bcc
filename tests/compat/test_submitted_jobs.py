"""Commands as jobs of spark-submit on a real cluster, and the examples that show how.

Airflow isn't among the tests' packages. The DAG is imported with a stand-in for Airflow's two
decorators, and its tasks are called in the order that the DAG gives them.
"""

from __future__ import annotations

import json
import runpy
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any, Self

import pytest

import lakeferry
from lakeferry import jobs
from tests.support import components
from tests.support.history import Append, Delete, History
from tests.support.spark_cluster import standalone
from tests.unit.cli.program import environment, make

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
ROWS_OF = History().then(Append(4), Append(3), Delete(1))


@dataclass(frozen=True)
class Cluster:
    """How to submit a job to a running cluster."""

    submit: list[str]
    variables: dict[str, str]

    def run(self, *words: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self.submit, jobs.path(), *map(str, words)],
            env=self.variables,
            capture_output=True,
            text=True,
            check=False,
        )


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A master and two workers."""
    components.require("spark-jars")
    folder = tmp_path_factory.mktemp("cluster")
    with standalone(folder) as master:
        home = folder / "spark-home"
        options = {
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.memory": "512m",
            "spark.executor.memory": "512m",
            "spark.log.level": "WARN",
            "spark.ui.enabled": "false",
        }
        settings = [f"--conf={name}={value}" for name, value in options.items()]
        here = {"SPARK_HOME": str(home), "PYSPARK_PYTHON": sys.executable, "TMPDIR": str(folder)}
        yield Cluster(
            [str(home / "bin" / "spark-submit"), "--master", master, *settings],
            environment(folder, here),
        )


@dataclass
class Tasks:
    """A stand-in for Airflow's decorators: it notes the tasks, and their order."""

    functions: dict[str, Callable[[], dict[str, Any]]] = field(default_factory=dict)
    order: list[str] = field(default_factory=list)

    def dag(self, **_: object) -> Callable[[Callable[[], None]], Callable[[], None]]:
        return lambda function: function

    def task(self, function: Callable[[], dict[str, Any]] | None = None, **_: object) -> Any:
        if function is None:
            return self.task
        self.functions[function.__name__] = function
        return lambda: Step(self, function.__name__)


@dataclass
class Step:
    """A task in a DAG; ``a >> b`` says that b comes after a."""

    tasks: Tasks
    name: str

    def __rshift__(self, after: Self) -> Self:
        for name in (self.name, after.name):
            if name not in self.tasks.order:
                self.tasks.order.append(name)
        return after


@pytest.fixture
def airflow(monkeypatch: pytest.MonkeyPatch) -> Tasks:
    tasks = Tasks()
    sdk = ModuleType("airflow.sdk")
    sdk.__dict__.update(dag=tasks.dag, task=tasks.task)
    monkeypatch.setitem(sys.modules, "airflow", ModuleType("airflow"))
    monkeypatch.setitem(sys.modules, "airflow.sdk", sdk)
    return tasks


@pytest.mark.spark
@pytest.mark.xdist_group("spark of its own")
def test_the_tasks_of_the_dag_move_a_table_on_the_executors_of_a_cluster(
    cluster: Cluster,
    airflow: Tasks,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = make(ROWS_OF, tmp_path / "old" / "orders")
    target = tmp_path / "new" / "orders"
    rows = lakeferry.open(str(source)).count_rows()
    events = tmp_path / "events"
    events.mkdir()
    log = " ".join(
        f"--conf=spark.eventLog.{name}"
        for name in ("enabled=true", "compress=false", "rolling.enabled=false", f"dir={events}")
    )
    for name, value in cluster.variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("LAKEFERRY_SUBMIT", f"{shlex.join(cluster.submit)} {log}")
    monkeypatch.setenv("LAKEFERRY_SOURCE", str(source))
    monkeypatch.setenv("LAKEFERRY_TARGET", str(target))
    runpy.run_path(str(EXAMPLES / "airflow_dag.py"))
    assert airflow.order == ["rehearse", "move", "check"]
    documents = {name: airflow.functions[name]() for name in ("move", "check")}
    assert documents["move"]["state"] == "READY"
    assert documents["check"]["location"] == target.as_uri()
    assert lakeferry.open(str(source)).count_rows() == rows
    # Tasks ran on executors, which are other processes than the driver.
    (file,) = events.iterdir()
    told = [json.loads(line) for line in file.read_text().splitlines()]
    ends = [event for event in told if event["Event"] == "SparkListenerTaskEnd"]
    assert ends
    assert all(end["Task Info"]["Executor ID"] != "driver" for end in ends)


@pytest.mark.spark
@pytest.mark.xdist_group("spark of its own")
def test_a_job_that_fails_has_the_exit_code_and_the_error_of_the_command(tmp_path: Path) -> None:
    components.require("spark-jars")
    here = {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    local = Cluster(
        [str(Path(sys.executable).with_name("spark-submit")), "--master", "local[1]"],
        environment(tmp_path, here),
    )
    refused = local.run("inspect", tmp_path / "nothing")
    assert (refused.returncode, refused.stdout) == (1, "")
    (error,) = [line for line in refused.stderr.splitlines() if line.startswith('{"error"')]
    assert json.loads(error)["error"]["code"] == "table_not_found"


def test_the_cells_of_the_notebook_move_a_table(spark: SparkSession, tmp_path: Path) -> None:
    source = make(ROWS_OF, tmp_path / "old" / "orders")
    given = {"source": str(source), "target": str(tmp_path / "new" / "orders")}
    widgets = SimpleNamespace(text=lambda *_: None, get=given.__getitem__)
    scope: dict[str, Any] = {"spark": spark, "dbutils": SimpleNamespace(widgets=widgets)}
    text = (EXAMPLES / "databricks_notebook.py").read_text()
    first, *cells = text.split("\n# COMMAND ----------\n")
    assert first.startswith("# Databricks notebook source\n")
    try:
        for cell in cells:
            exec(compile(cell, "notebook", "exec"), scope)
    finally:
        lakeferry.spark.uninstall(spark)
    assert scope["moved"].state.value == "READY"
    assert scope["rows"] == lakeferry.open(given["target"]).count_rows() > 0
    assert lakeferry.resolve(given["source"]) == (tmp_path / "new" / "orders").as_uri()
