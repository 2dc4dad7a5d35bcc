"""The pandas API of Spark, in a session with our client and a JVM of its own.

Sessions of Spark Connect have the same test in ``test_spark_connect.py``.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import write_deltalake

from tests.compat.test_spark_connect import install, run
from tests.support import pandas_reads
from tests.support.connect import ConnectFailure, classic_process
from tests.support.redirected_tables import (
    MOVED_ON,
    ROWS,
    Stage,
    at_stage,
    content,
    create,
    ids,
    rows,
)

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("connect")]


def test_pandas_on_spark_is_led_to_the_target(tmp_path: Path) -> None:
    places = create(tmp_path)
    path, name, new = str(places.source), "default.of_pandas", 99
    with classic_process(tmp_path) as process:
        process.call(run, f"CREATE TABLE {name} USING delta LOCATION '{path}'")
        places.move(mode="writer-only", dialects=("rfc",))
        write_deltalake(str(places.target), rows([MOVED_ON]), mode="append")
        before = content(places.source)
        # What it reads without our client is the frozen copy.
        frozen = process.call(pandas_reads.read_all, path, name)
        assert frozen == dict.fromkeys(pandas_reads.READS, ROWS)
        process.call(install)
        found = process.call(pandas_reads.read_all, path, name)
        assert found == {how: [*ROWS, MOVED_ON] for how in pandas_reads.READS}
        assert process.call(pandas_reads.read_version, path, 0) == ROWS[:5]
        written = process.call(pandas_reads.write_all, path, name, new)
        assert ids(places.target) == [*ROWS, MOVED_ON, *[new] * written]
        assert content(places.source) == before
        changing = at_stage(tmp_path, Stage.ENABLING, "writer-only")
        with pytest.raises(ConnectFailure, match="RedirectInProgress"):
            process.call(pandas_reads.write_all, changing.source, name, new)
