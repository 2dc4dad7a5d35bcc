"""What executors are sent, and how a limit of bytes per second is divided among their tasks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from lakeferry.engines.spark.spark_session import EngineSession


def session_of(slots: int | None, **settings: str) -> EngineSession:
    """Return a session of a cluster that says how many tasks run at a time, or can't say it."""
    pytest.importorskip("pyspark")
    from lakeferry.engines.spark.spark_session import EngineSession

    def running(_profile: object) -> int:
        if slots is None:
            raise AttributeError("no such method")
        return slots

    profiles = SimpleNamespace(defaultResourceProfile=lambda: "default")
    scala = SimpleNamespace(resourceProfileManager=lambda: profiles, maxNumConcurrentTasks=running)
    named = {f"spark.{name}": value for name, value in settings.items()}
    context = SimpleNamespace(
        master="local[4]",
        _jsc=SimpleNamespace(sc=lambda: scala),
        getConf=lambda: SimpleNamespace(get=lambda name, default=None: named.get(name, default)),
    )
    spark: Any = SimpleNamespace(sparkContext=context)
    return EngineSession(spark)


def test_tasks_that_run_at_a_time_share_a_limit() -> None:
    session = session_of(8)
    assert [session.task_rate(1000, tasks) for tasks in (1, 4, 8, 5_000)] == [1000, 250, 125, 125]
    assert session.task_rate(3, 8) == 1
    assert session.task_rate(None, 8) is None


def test_with_dynamic_allocation_executors_count_that_may_come() -> None:
    dynamic = {"dynamicAllocation.enabled": "true"}
    known = {"dynamicAllocation.maxExecutors": "10", "executor.cores": "4"}
    assert session_of(8, **dynamic, **known).at_once(5_000) == 40
    assert session_of(8, **dynamic).at_once(5_000) == 5_000
    assert session_of(8, **known).at_once(5_000) == 8


def test_executors_count_that_are_still_starting() -> None:
    assert session_of(4, **{"executor.instances": "10", "executor.cores": "4"}).at_once(5_000) == 40
    assert session_of(1, **{"executor.instances": "10"}).at_once(5_000) == 10
    assert session_of(4, **{"cores.max": "64"}).at_once(5_000) == 64
    assert session_of(96, **{"cores.max": "64"}).at_once(5_000) == 96


def test_spark_reads_its_settings_in_any_case() -> None:
    assert session_of(8, **{"dynamicAllocation.enabled": "TRUE"}).at_once(5_000) == 5_000


def test_where_spark_does_not_say_it_all_tasks_may_run_at_once() -> None:
    assert session_of(None).at_once(300) == 300


def test_executors_import_the_package_that_they_are_sent() -> None:
    pytest.importorskip("pyspark")
    from lakeferry.engines.spark import spark_session

    sent: list[str] = []
    context: Any = SimpleNamespace(applicationId="app-of-a-test", addPyFile=sent.append)
    spark_session._send_package(context)
    spark_session._send_package(context)
    (archive,) = sent
    program = (
        "import lakeferry.engines.spark.tasks.counters as counters, lakeferry.storage as storage;"
        "print(counters.__file__, storage.__file__)"
    )
    told = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": archive},
        cwd=Path(archive).parent,
        capture_output=True,
        text=True,
        check=True,
    )
    for file in told.stdout.split():
        assert file.startswith(f"{archive}/lakeferry/")
