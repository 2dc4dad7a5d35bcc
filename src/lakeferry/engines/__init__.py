"""The engines that implement the port: in this process, and on Spark."""

from __future__ import annotations

import os
import shutil
from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec
from typing import TYPE_CHECKING

from lakeferry.engines.spark.spark_versions import SPARK_REMOTE
from lakeferry.errors import InvalidInput

if TYPE_CHECKING:
    # Imported for types only: 'doctor' looks for Spark where pyarrow may be missing.
    from lakeferry.engine import Engine, Name
    from lakeferry.storage.byte_rate import ByteRate

__all__ = ["open_engine", "spark_is_installed", "submitted_session"]


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
    except ImportError as missing:
        if isinstance(missing, ModuleNotFoundError) and not (missing.name or "").startswith(
            ("pyspark", "py4j")
        ):
            raise
        raise InvalidInput(
            "Spark isn't installed",
            cause=str(missing),
            remedy="pip install 'lakeferry[spark]', or use --engine local",
        ) from missing
    return SparkEngine(limit_rate=None if rate is None else rate.bytes_per_s)


def spark_is_installed() -> bool:
    """Return True if Spark is installed, and there is a Java to start it or a server that runs."""
    has_java = "JAVA_HOME" in os.environ or shutil.which("java") is not None
    is_running = bool(os.environ.get(SPARK_REMOTE))
    return (has_java or is_running) and find_spec("pyspark") is not None


def submitted_session() -> AbstractContextManager[None]:
    """Return a context with the session of ``spark-submit``, if that has started this process."""
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        return nullcontext()
    from lakeferry.engines.spark.submitted_session import session_of_submit

    return session_of_submit()
