"""Writers of every engine append without pause while their table moves there and back."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError

import lakeferry
from lakeferry.api.redirects import Redirects
from lakeferry.log.commit import Transaction
from lakeferry.log.conflicts import Conflict
from lakeferry.log.replay import TableState as TableState
from lakeferry.redirect.states import RedirectState
from lakeferry.storage import Store, open_store
from lakeferry.table import DeltaLog
from tests.support import engines
from tests.support import redirect_writers as writers
from tests.support.lake import Lake, on_disk, on_s3
from tests.support.meanwhile import commits, meanwhile
from tests.support.redirect_writers import Board, Story, Writer
from tests.support.redirects import added
from tests.support.stores import FaultyStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS_BETWEEN = 3
"""So many rows each writer gets in between two transitions."""


@pytest.fixture(params=["disk", pytest.param("s3", marks=pytest.mark.versitygw)])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    if request.param == "disk":
        return on_disk(tmp_path)
    return on_s3(tmp_path, request.getfixturevalue("s3_bucket"))


def create(lake: Lake, name: str) -> str:
    """Make a table with one row in it, whose writers checkpoint it often."""
    write_deltalake(
        lake.uri(name),
        pa.table({"id": pa.array([0], pa.int64())}),
        storage_options=dict(lake.variables) or None,
        configuration={"delta.checkpointInterval": "7"},
    )
    return lake.uri(name)


class Mover:
    """Moves a table and, while writers have to wait, waits until each of them was refused."""

    def __init__(self, lake: Lake, board: Board, lock: Path) -> None:
        self._board = board
        self._lock = lock
        self._waits_for: str | None = None
        self.redirects = Redirects(dict(lake.variables), engine="local")
        self.redirects.setting = replace(self.redirects.setting, open_store=self._open)
        self._options = dict(lake.variables)

    def enable(self, source: str, target: str, **options: Any) -> None:
        """Move a table; its writers are refused before the target gets its first lock."""
        self._waits_for = target
        done = self.redirects.enable(source, target, **options)
        assert done.state is RedirectState.READY
        assert self._waits_for is None

    def disable(self, source: str, **options: Any) -> None:
        """Bring a table back; its writers are refused before anything comes."""
        self._waits_for = source
        self.redirects.disable(source, **options)
        assert self._waits_for is None

    def _open(self, uri: str) -> Store:
        return InTurn(open_store(uri, self._options), self._lock, self._before)

    def _before(self, uri: str) -> None:
        if uri == self._waits_for:
            self._waits_for = None
            self._board.all_are_refused()


class InTurn(FaultyStore):
    """A store whose commits wait for those who have to be alone."""

    def __init__(self, inner: Store, lock: Path, before: Callable[[str], None]) -> None:
        super().__init__(inner)
        self._lock_file = lock
        self._before = before

    def put_if_absent(self, path: str, data: bytes) -> bool:
        if not path.endswith(".json") or "/_lakeferry/" in path:
            return super().put_if_absent(path, data)
        self._before(self.uri)
        with writers.in_turn(self._lock_file):
            return super().put_if_absent(path, data)


KNOWN_REFUSALS = re.compile(r"redirect|(protocol|metadata) changed since last commit", re.I)
"""What cuts a writer off: a redirect by its name, or a commit of one that delta-rs doesn't name."""


def check(stories: list[Story], *readings: engines.Rows) -> None:
    """What was acknowledged is there once, what was refused isn't, whoever reads."""
    assert [story.failure for story in stories if story.failure] == []
    refusals = [why for story in stories for why in story.refused.values()]
    assert [why for why in refusals if not KNOWN_REFUSALS.search(why)] == []
    expected = Counter([0, *(row for story in stories for row in story.acknowledged)])
    for reading in readings:
        assert Counter(row for (row,) in reading) == expected


def by_lakeferry(lake: Lake, table: str) -> engines.Rows:
    found = lakeferry.open(table, storage_options=dict(lake.variables)).to_table()
    return [(row,) for row in found["id"].to_pylist()]


def test_rows_are_neither_lost_nor_doubled_while_a_table_moves_there_and_back(
    lake: Lake, tmp_path: Path
) -> None:
    source, lock = create(lake, "old"), tmp_path / "lock"
    board = Board(3)
    who = [
        Writer(number, engine, source, dict(lake.variables), lock)
        for number, engine in enumerate(("delta-rs", "delta-rs", "lakeferry"))
    ]
    mover = Mover(lake, board, lock)
    with writers.writing(board, who) as stories:
        for number, mode in enumerate(("reader-writer", "writer-only")):
            board.all_append(ROWS_BETWEEN)
            mover.enable(source, lake.uri(f"new-{number}"), mode=mode)
            board.all_append(ROWS_BETWEEN)
            mover.disable(source)
        board.all_append(ROWS_BETWEEN)
    by_delta_rs = engines.by_delta_rs(source, options=lake.variables)
    check(stories, by_delta_rs, by_lakeferry(lake, source))


@dataclass(frozen=True)
class Stale:
    """Writers that have read a table, and write to it whenever they are asked to."""

    lake: Lake
    place: str
    table: DeltaTable
    state: TableState

    @classmethod
    def at(cls, lake: Lake, place: str) -> Stale:
        table = DeltaTable(place, storage_options=dict(lake.variables) or None)
        return cls(lake, place, table, DeltaLog(open_store(place, lake.variables)).state())

    def are_refused(self) -> None:
        """Have each of them append, in vain."""
        before = self._files()
        with pytest.raises(CommitFailedError, match=KNOWN_REFUSALS):
            write_deltalake(self.table, pa.table({"id": pa.array([7], pa.int64())}), mode="append")
        log = DeltaLog(open_store(self.place, self.lake.variables))
        adds = added(["part-7"], {"part-7": b"7"}, log.clock())
        made = log.commit(Transaction("WRITE", "seven", adds=adds, new_names=True), self.state)
        assert isinstance(made, Conflict)
        assert "changes the protocol" in made.detail
        assert self._files() == before

    def _files(self) -> list[str]:
        snapshot = DeltaLog(open_store(self.place, self.lake.variables)).snapshot()
        found: list[str] = snapshot.files["path"].to_pylist()
        return sorted(found)


@pytest.mark.parametrize("mode", ["reader-writer", "writer-only"])
def test_a_write_that_began_before_a_transition_fails_after_it(lake: Lake, mode: str) -> None:
    source, target = create(lake, "old"), lake.uri("new")
    early = Stale.at(lake, source)
    meanwhile(commits(target), early.are_refused, lake.variables).enable(source, target, mode=mode)
    early.are_refused()
    late = Stale.at(lake, target)
    meanwhile(commits(source), late.are_refused, lake.variables).disable(source)
    late.are_refused()
    early.are_refused()
    assert engines.by_delta_rs(source, options=lake.variables) == [(0,)]


@contextmanager
def spark_writing(spark: SparkSession, board: Board, writer: Writer) -> Iterator[list[Story]]:
    """Run a writer with Spark, in a thread of this process."""

    def append(place: str, _: object, row: int) -> None:
        frame = spark.range(row, row + 1).coalesce(1)
        frame.write.format("delta").mode("append").save(place)

    stories: list[Story] = []
    with ThreadPoolExecutor(1) as pool:
        story = pool.submit(writer.work, board, append)
        try:
            yield stories
        finally:
            board.stop()
            stories.append(story.result())


@pytest.fixture
def spark_of_lake(request: pytest.FixtureRequest, lake: Lake) -> SparkSession:
    on_s3 = lake.root.startswith("s3:")
    spark: SparkSession = request.getfixturevalue("spark_s3" if on_s3 else "spark")
    return spark


@pytest.mark.spark
@pytest.mark.parametrize(
    ("lake", "data"),
    [
        ("disk", "copy"),
        ("disk", "reference"),
        pytest.param("s3", "copy", marks=pytest.mark.versitygw),
    ],
    indirect=["lake"],
)
def test_rows_that_spark_writes_too_are_neither_lost_nor_doubled(
    lake: Lake, spark_of_lake: SparkSession, tmp_path: Path, data: str
) -> None:
    """Spark looks and then writes, so it is alone when it does; all the rest is as it comes."""
    source, lock = create(lake, "old"), tmp_path / "lock"
    spark, options = spark_of_lake, dict(lake.variables)
    # delta-rs can't read a target that names its files by absolute paths.
    others = ["lakeferry", *(["delta-rs"] if data == "copy" else [])]
    board = Board(1 + len(others))
    mover = Mover(lake, board, lock)
    with (
        spark_writing(spark, board, Writer(0, "spark", source, options, lock, True)) as by_spark,
        writers.writing(
            board,
            [Writer(n, engine, source, options, lock) for n, engine in enumerate(others, 1)],
        ) as by_others,
    ):
        board.all_append(1)
        mover.enable(
            source,
            lake.uri("new"),
            mode="writer-only" if data == "copy" else "reader-writer",
            data=data,
        )
        board.all_append(1)
        mover.disable(source, data=data)
        board.all_append(1)
    stories = [*by_spark, *by_others]
    readings = [engines.by_spark(spark, source), by_lakeferry(lake, source)]
    if data == "copy":
        readings.append(engines.by_delta_rs(source, options=lake.variables))
    check(stories, *readings)
