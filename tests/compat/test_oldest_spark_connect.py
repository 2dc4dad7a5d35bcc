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
from tests.support.connect import ConnectFailure, ConnectProcess
from tests.support.redirected_tables import Places

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

if LINE is environments.OLDEST:

    def test_a_view_is_refused_where_the_server_follows_nothing(
        connect: ConnectProcess, moved: dict[str, Places]
    ) -> None:
        connect.call(
            newest.run,
            "CREATE VIEW view_of_both AS SELECT * FROM both",
            "CREATE TEMPORARY VIEW temporary AS SELECT * FROM both",
        )
        # It was made by a statement that is followed.
        assert connect.call(newest.table, "temporary") == newest.AT_TARGET
        for text in ("SELECT * FROM view_of_both", "SELECT 1 WHERE 3 IN (TABLE view_of_both)"):
            with pytest.raises(ConnectFailure, match="RedirectNotFollowed"):
                connect.call(newest.run, text)
        with pytest.raises(ConnectFailure, match="RedirectNotFollowed"):
            connect.call(newest.table, "view_of_both")
