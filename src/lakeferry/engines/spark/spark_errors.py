"""Converts Spark's exceptions to Lakeferry's errors."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from lakeferry.engines.spark.tasks.task_failures import found_in
from lakeferry.errors import InvalidInput, LakeferryError, PackageMissing

_RAISED = re.compile(r"(: |Caused by: )?[A-Za-z_][\w.]*(Error|Exception|Failed)\b.*:")
_NO_MODULE = re.compile(r"ModuleNotFoundError: No module named '([\w.]+)'")


@contextmanager
def our_errors() -> Iterator[None]:
    """Raise the executor's exception if it is one of our errors."""
    try:
        yield
    except ImportError as missing:
        raise InvalidInput(
            "Spark lacks a package that it needs",
            cause=str(missing),
            remedy="install that package with pip, or use --engine local",
        ) from None
    except (PySparkException, Py4JJavaError) as failed:
        # Spark's exception asks the JVM for its text whenever it is printed, and the JVM may be
        # gone by then. So it isn't kept as the cause of ours.
        text = str(failed)
        raise found_in(text) or _failure(_heart_of(text)) from None


def _failure(heart: str) -> LakeferryError:
    """Return the error for a job that failed, and not with an error of ours."""
    missing = _NO_MODULE.search(heart)
    if missing is None:
        return LakeferryError("a Spark job failed", cause=heart)
    return PackageMissing(
        "Spark's executors lack a Python package that the driver has",
        cause=heart,
        remedy="install what Lakeferry requires on every node, or send it with --archives of "
        "spark-submit; docs/install.md shows how",
        package=missing[1].partition(".")[0],
    )


def _heart_of(text: str) -> str:
    """Return the line with the actual error: the last of a Python traceback, else the first."""
    lines = [line for line in text.splitlines() if line.strip()]
    raised = [line for line in lines if _RAISED.match(line)]
    return (raised[-1:] or lines or ["it gave no reason"])[0].strip(": ")
