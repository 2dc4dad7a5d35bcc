"""Spark Connect with a server and a client of an older line of Spark: the tests of the newest one.

A run takes a share of them, with the oldest line. ``make matrix`` takes all of them with each line
that has a server, which :data:`LINE_VARIABLE` names.
"""

from __future__ import annotations

import os

import pytest

from lakeferry.engines.spark.spark_versions import SPARK_LINES
from tests.compat import test_spark_connect as newest
from tests.compat.test_spark_connect import (  # noqa: F401 - fixtures and a hook
    connect,
    line,
    moved,
    places,
    pytest_generate_tests,
    server_folder,
)
from tests.matrix import environments

LINE_VARIABLE = "LAKEFERRY_CONNECT_LINE"
LINE = next(
    each
    for each in SPARK_LINES
    if each.line == os.environ.get(LINE_VARIABLE, environments.OLDEST.line)
)
IN_SHARES = LINE_VARIABLE not in os.environ
pytestmark = pytest.mark.xdist_group("connect")

globals().update(
    {
        name: test
        for name, test in vars(newest).items()
        if name.startswith("test_") and newest.has(LINE, name, "")
    }
)
