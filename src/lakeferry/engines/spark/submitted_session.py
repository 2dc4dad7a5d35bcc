"""Starts and ends the session of ``spark-submit``, and separates standard error from the output.

``spark-submit`` sends what a Python program writes to standard error to its own standard output.
The result of a command has to be the only thing there. So what is written to standard error goes
through the JVM, whose standard error is that of ``spark-submit``.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.sql import SparkSession

from lakeferry.engines.spark import spark_calls
from lakeferry.engines.spark.spark_errors import our_errors

_DRAIN_TIMEOUT_S = 10.0


@contextmanager
def session_of_submit() -> Iterator[None]:
    """Have the session that ``spark-submit`` has configured, until the context ends.

    Also for commands that don't need it: YARN takes a program without a session for a failed one.
    A session that is there already, as in a notebook, is left alone.
    """
    if SparkContext._active_spark_context is not None:
        yield
        return
    spark_calls.spark_line()
    with our_errors():
        spark = SparkSession.builder.getOrCreate()
    try:
        with _stderr_of_jvm(spark.sparkContext._jvm):
            yield
    finally:
        spark.stop()


@contextmanager
def _stderr_of_jvm(jvm: Any) -> Iterator[None]:
    """Send the lines that this process writes to standard error to that of the JVM."""
    stderr = jvm.java.lang.System.err
    read, write = os.pipe()
    kept = os.dup(sys.stderr.fileno())

    def send() -> None:
        with open(read, encoding="utf-8", errors="backslashreplace") as lines:  # noqa: PTH123
            for line in lines:
                try:
                    stderr.println(line.rstrip("\n"))
                except (Py4JError, OSError):
                    # The JVM has ended.
                    os.write(kept, line.encode(errors="backslashreplace"))

    sender = threading.Thread(target=send, name="standard error", daemon=True)
    os.dup2(write, sys.stderr.fileno())
    os.close(write)
    sender.start()
    try:
        yield
    finally:
        sys.stderr.flush()
        # It closes the last end of the pipe that can be written to.
        os.dup2(kept, sys.stderr.fileno())
        sender.join(_DRAIN_TIMEOUT_S)
        os.close(kept)
