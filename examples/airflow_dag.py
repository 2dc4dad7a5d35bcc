"""Moves a Delta table with Airflow: a rehearsal, the move, and a look at the result.

The rehearsal and the move are jobs of ``spark-submit``, so the cluster does the work. Airflow's
workers need Lakeferry (``pip install lakeferry``), ``spark-submit``, and credentials for both
places. Copy this file to the folder of DAGs, and set in the workers' environment:

=================  ==================================================================
LAKEFERRY_SUBMIT   spark-submit with its options; by default ``spark-submit``
LAKEFERRY_SOURCE   the table to move
LAKEFERRY_TARGET   its new place, which is empty
=================  ==================================================================

This is for Airflow 3. In Airflow 2, ``dag`` and ``task`` are in ``airflow.decorators``.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from datetime import timedelta
from typing import Any

from airflow.sdk import dag, task

import lakeferry
from lakeferry import jobs

SUBMIT = shlex.split(os.environ.get("LAKEFERRY_SUBMIT", "spark-submit"))
SOURCE = os.environ.get("LAKEFERRY_SOURCE", "s3://warehouse/old/orders")
TARGET = os.environ.get("LAKEFERRY_TARGET", "s3://warehouse/new/orders")


def submit(*words: str) -> dict[str, Any]:
    """Run a command of Lakeferry on the cluster, and return its document."""
    command = [*SUBMIT, jobs.path(), *words]
    # Standard error goes to the task's log; if the command fails, its error is there.
    ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if ended.returncode != 0:
        raise RuntimeError(f"lakeferry {shlex.join(words)} ended with {ended.returncode}")
    document: dict[str, Any] = json.loads(ended.stdout)
    return document


@dag(schedule=None, catchup=False, tags=["lakeferry"])
def move_table() -> None:
    """Move a table, while others write to it."""

    @task
    def rehearse() -> dict[str, Any]:
        """Say what the move would do; what can't work fails here, and nothing is changed."""
        return submit("redirect", "enable", SOURCE, TARGET, "--mode", "writer-only", "--dry-run")

    @task(retries=3, retry_delay=timedelta(minutes=1))
    def move() -> dict[str, Any]:
        """Move the table; a retry continues a move that was interrupted."""
        if lakeferry.Table(SOURCE).redirect_status().state.value.endswith("IN-PROGRESS"):
            return submit("redirect", "resume", SOURCE)
        return submit("redirect", "enable", SOURCE, TARGET, "--mode", "writer-only")

    @task
    def check() -> dict[str, Any]:
        """Follow the old path, and describe the table that is there."""
        table = lakeferry.Table(lakeferry.resolve(SOURCE)).inspect()
        return {"location": table.location, "version": table.version, "files": table.num_files}

    rehearse() >> move() >> check()


move_table()
