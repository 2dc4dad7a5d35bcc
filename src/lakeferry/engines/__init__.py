"""The engines that implement the port: in this process, and on Spark."""

from __future__ import annotations

import os
import shutil
from importlib.util import find_spec

from lakeferry.engine import Engine, Name
from lakeferry.errors import InvalidInput
from lakeferry.storage.byte_rate import ByteRate

__all__ = ["open_engine", "spark_is_installed"]


def open_engine(name: Name, rate: ByteRate | None = None) -> Engine:
    """Return the engine of that name; nothing is started before its first plan.

    ``rate`` limits the bytes that its copies and exports move themselves.
    """
    if name == "local":
        from lakeferry.engines.local_engine import LocalEngine

        return LocalEngine(rate=rate)
    # Imported late, so that only jobs on Spark need it installed.
    try:
        from lakeferry.engines.spark.spark_engine import SparkEngine
    except ModuleNotFoundError as missing:
        raise InvalidInput(
            "Spark isn't installed",
            cause=str(missing),
            remedy="pip install 'lakeferry[spark]', or use --engine local",
        ) from missing
    return SparkEngine(limit_rate=None if rate is None else rate.bytes_per_s)


def spark_is_installed() -> bool:
    """Return True if Spark is installed, and a Java to start it with."""
    has_java = "JAVA_HOME" in os.environ or shutil.which("java") is not None
    return has_java and find_spec("pyspark") is not None
