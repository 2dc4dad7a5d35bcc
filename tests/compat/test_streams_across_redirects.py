"""Streaming queries that were stopped before a table moved go on after it, and after it came back.

They keep their checkpoints: versions and the table's id are the same at both
ends, and so are the transactions that streaming writers leave in the log.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from deltalake import write_deltalake

import lakeferry
from lakeferry.api.redirects import Redirects
from tests.support.redirected_tables import (
    MODES,
    OURS,
    ROWS,
    STOCK_FOLLOWING,
    Places,
    create,
    ids,
    rows,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CLIENTS = [
    (OURS, "reader-writer"),
    (OURS, "writer-only"),
    (STOCK_FOLLOWING, "writer-only"),
]


def append(places: Places, row: int) -> None:
    """Write to wherever the table is."""
    location = lakeferry.resolve(str(places.source), write=True)
    write_deltalake(location, rows([row]), mode="append")


def disable(places: Places) -> None:
    with Redirects() as moves:
        moves.disable(str(places.source))


def run(session: SparkSession, source: Path, sink: Path, checkpoint: Path) -> None:
    """Have a query bring everything that it hasn't brought, and stop."""
    stream = session.readStream.format("delta").load(str(source)).writeStream.format("delta")
    stream = stream.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
    stream.start(str(sink)).awaitTermination()


@pytest.mark.parametrize(("client", "mode"), CLIENTS)
def test_a_query_that_reads_the_table_sees_every_row_once(
    client: str,
    mode: str,
    spark: SparkSession,
    spark_as: Callable[[str], SparkSession],
    tmp_path: Path,
) -> None:
    places, seen = create(tmp_path), tmp_path / "seen"
    session = spark_as(client)

    def drain(with_session: SparkSession) -> list[int]:
        run(with_session, places.source, seen, tmp_path / "checkpoint")
        return ids(seen)

    assert drain(spark) == ROWS
    append(places, 10)
    places.move(mode=mode)
    append(places, 11)
    assert drain(session) == [*ROWS, 10, 11]
    append(places, 12)
    assert drain(session) == [*ROWS, 10, 11, 12]
    append(places, 13)
    disable(places)
    append(places, 14)
    assert drain(session) == [*ROWS, 10, 11, 12, 13, 14]
    # By now it is an ordinary table again, for everybody.
    append(places, 15)
    assert drain(spark) == [*ROWS, 10, 11, 12, 13, 14, 15]


@pytest.mark.parametrize(("client", "mode"), CLIENTS)
def test_a_query_that_writes_the_table_writes_every_row_once(
    client: str,
    mode: str,
    spark: SparkSession,
    spark_as: Callable[[str], SparkSession],
    tmp_path: Path,
) -> None:
    """Each time, the query forgets that its last batch was written, as after a crash."""
    places, feed, checkpoint = create(tmp_path), tmp_path / "feed", tmp_path / "checkpoint"
    session = spark_as(client)

    def pour(with_session: SparkSession, row: int) -> None:
        if checkpoint.exists():
            (*_, last) = sorted(checkpoint.glob("commits/[0-9]*"))
            last.unlink()
            (last.parent / f".{last.name}.crc").unlink()
        write_deltalake(str(feed), rows([row]), mode="append")
        run(with_session, feed, places.source, checkpoint)

    pour(spark, 10)
    assert ids(places.source) == [*ROWS, 10]
    places.move(mode=mode)
    pour(session, 11)
    assert ids(places.target) == [*ROWS, 10, 11]
    pour(session, 12)
    assert ids(places.target) == [*ROWS, 10, 11, 12]
    disable(places)
    pour(session, 13)
    assert ids(places.source) == [*ROWS, 10, 11, 12, 13]
    pour(spark, 14)
    assert ids(places.source) == [*ROWS, 10, 11, 12, 13, 14]


@pytest.mark.parametrize("mode", MODES)
def test_a_query_that_slept_through_a_redirect_goes_on_or_stops_and_never_skips(
    mode: str, spark: SparkSession, tmp_path: Path
) -> None:
    """The versions of a reader-writer redirect are what stock delta-spark can't read."""
    places, seen, checkpoint = create(tmp_path), tmp_path / "seen", tmp_path / "checkpoint"
    run(spark, places.source, seen, checkpoint)
    places.move(mode=mode)
    append(places, 10)
    disable(places)
    append(places, 11)

    if mode == "writer-only":
        run(spark, places.source, seen, checkpoint)
        assert ids(seen) == [*ROWS, 10, 11]
    else:
        with pytest.raises(Exception, match="redirectReaderWriter"):
            run(spark, places.source, seen, checkpoint)
        assert ids(seen) == ROWS
