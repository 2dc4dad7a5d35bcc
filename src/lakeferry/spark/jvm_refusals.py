"""The exceptions with which Spark refuses what we ask it: its JVM, or a server of Spark Connect."""

from __future__ import annotations

from pyspark.errors import PySparkException

JVM_SAYS_NO: tuple[type[Exception], ...]

try:
    from py4j.protocol import Py4JError
except ModuleNotFoundError:
    # The package pyspark-client has no JVM to talk to.
    JVM_SAYS_NO = (PySparkException,)
else:
    JVM_SAYS_NO = (Py4JError, PySparkException)
