"""A list of moves on Spark: one session for all of them, and the user's own where there is one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from lakeferry.api.move_list import Mover, Wanted, move_all
from tests.support.history import Append, Delete, History
from tests.unit.cli.program import make

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_list_moves_on_the_session_that_is_there_which_goes_on(
    spark: SparkSession, tmp_path: Path
) -> None:
    wanted = []
    for number in range(3):
        source = make(History().then(Append(3), Delete(1)), tmp_path / f"old{number}")
        wanted.append(Wanted(number + 2, source.as_uri(), f"{tmp_path.as_uri()}/new{number}"))
    with Mover(engine="spark") as mover:
        report = move_all(mover, wanted)
    assert [move.error for move in report.moves] == [None] * 3
    assert [move.outcome and move.outcome.files_copied for move in report.moves] == [3] * 3
    for each in wanted:
        assert spark.read.format("delta").load(each.target).count() == 6
