"""Who sees what of a redirected table, cell by cell, asked of the clients themselves.

Modern clients are ours and, for writer-only redirects, stock delta-spark with its
option on; all others are legacy, and know nothing. Each is given the source's
path, and does what its users do.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars
import pytest
from deltalake import DeltaTable, write_deltalake

import lakeferry
from lakeferry.errors import RedirectInProgress
from tests.support import engines
from tests.support.redirected_tables import (
    MODES,
    MOVED_ON,
    OURS,
    ROWS,
    STOCK,
    STOCK_FOLLOWING,
    Places,
    Stage,
    at_stage,
    newest_version,
    rows,
)
from tests.unit.cli.program import run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Sees(Enum):
    """What becomes of a client that uses the source's path."""

    SOURCE = "the source"
    TARGET = "the target"
    REFUSED = "refused: redirect in progress"
    BLOCKED = "blocked by a feature that it doesn't know"


SOURCE, TARGET, REFUSED, BLOCKED = Sees


@dataclass(frozen=True)
class Row:
    """What clients see in one state. No legacy client ever writes."""

    modern_read: Sees
    modern_write: Sees
    legacy_reader_writer: Sees
    legacy_writer_only: Sees

    def read(self, mode: str, *, modern: bool) -> Sees:
        legacy = {
            "reader-writer": self.legacy_reader_writer,
            "writer-only": self.legacy_writer_only,
        }
        return self.modern_read if modern else legacy[mode]

    def write(self, *, modern: bool) -> Sees:
        return self.modern_write if modern else BLOCKED


WHO_SEES_WHAT = {
    Stage.ENABLING: Row(SOURCE, REFUSED, BLOCKED, SOURCE),
    Stage.READY: Row(TARGET, TARGET, BLOCKED, SOURCE),
    # Between the two: the target is locked, the source not yet DROPPING.
    Stage.WITHDRAWING: Row(TARGET, REFUSED, BLOCKED, SOURCE),
    Stage.DROPPING: Row(TARGET, REFUSED, BLOCKED, SOURCE),
}
CELLS = [
    pytest.param(stage, mode, id=f"{stage.name}-{mode}")
    for stage, mode in itertools.product(Stage, MODES)
]
# delta-spark, which has the code and not the feature, refuses as if its rules said so.
REFUSALS = {
    REFUSED: "(?i)redirect",
    BLOCKED: "redirect(ReaderWriter|WriterOnly)|NO_REDIRECT_RULES_VIOLATED|INTERMEDIATE_REDIRECT",
}
AT_TARGET = [*ROWS, MOVED_ON]
NEW = itertools.count(1_000)
"""Rows that no table has yet."""


@dataclass(frozen=True)
class Answer:
    """The rows that a client read and, where it tells, the files that they are in."""

    ids: list[int]
    files: list[str] | None = None


Read = Callable[[str], Answer]
Write = Callable[[str, int], object]


@dataclass(frozen=True)
class Client:
    """What a client does with a path. A write takes a row to add, to leave alone, or to delete."""

    reads: dict[str, Read]
    writes: dict[str, Write] = field(default_factory=dict)
    modern_for: tuple[str, ...] = ()
    refusal: type[Exception] = RedirectInProgress
    reads_in: dict[tuple[Stage, str], Sees] = field(default_factory=dict)
    """Where its reads differ from what the table says of modern ones."""

    def check(self, operation: str, places: Places, stage: Stage, mode: str) -> None:
        """Do one thing, and look what it led to."""
        row, modern = WHO_SEES_WHAT[stage], mode in self.modern_for
        if operation in self.writes:
            self._check_write(operation, places, row.write(modern=modern))
            return
        expected = row.read(mode, modern=modern)
        if modern:
            expected = self.reads_in.get((stage, mode), expected)
        self._check_read(self.reads[operation], places, stage, expected)

    def _check_read(self, read: Read, places: Places, stage: Stage, expected: Sees) -> None:
        if expected is BLOCKED:
            with pytest.raises(Exception, match="redirectReaderWriter"):
                read(str(places.source))
            return
        answer = read(str(places.source))
        # When the source says DROPPING, what was written meanwhile is back.
        moved_on = expected is TARGET or stage is Stage.DROPPING
        assert answer.ids == (AT_TARGET if moved_on else ROWS)
        place = places.target if expected is TARGET else places.source
        assert answer.files is None or answer.files
        assert all(f"{place}/" in file for file in answer.files or ())

    def _check_write(self, operation: str, places: Places, expected: Sees) -> None:
        write, logs = self.writes[operation], places.logs
        if expected is not TARGET:
            error = self.refusal if expected is REFUSED else Exception
            with pytest.raises(error, match=REFUSALS[expected]):
                write(str(places.source), next(NEW))
            assert places.logs == logs
            return
        version = newest_version(places.target)
        row = MOVED_ON if operation == "delete" else next(NEW)
        after = {"overwrite": [row], "delete": ROWS}.get(operation, [*AT_TARGET, row])
        try:
            write(str(places.source), row)
            assert by_delta_rs(str(places.target)).ids == after
            assert newest_version(places.target) == version + 1
            at_source = f"{places.source}/"
            assert _of(places.logs, at_source) == _of(logs, at_source)
        finally:
            DeltaTable(str(places.target)).restore(version)


def _of(logs: dict[str, bytes], place: str) -> dict[str, bytes]:
    return {name: data for name, data in logs.items() if name.startswith(place)}


@pytest.fixture(scope="module")
def redirected(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[Stage, str], Places]:
    """A table in every stage and mode; whoever writes to one restores its rows."""
    folder = tmp_path_factory.mktemp("who-sees-what")
    return {(stage, mode): at_stage(folder, stage, mode) for stage in Stage for mode in MODES}


# --- Clients without Spark ------------------------------------------------------


def by_dataset(location: str) -> Answer:
    dataset: Any = lakeferry.open(location)
    files = lakeferry.Table(location).files().read_all()["path"].to_pylist()
    return Answer(sorted(dataset.to_table()["id"].to_pylist()), files)


def by_command_line(location: str) -> Answer:
    """Read the files that ``lakeferry files`` lists."""
    ended = run("files", location, "--json", home=Path(location).parent)
    assert ended.code == 0, ended.err
    files = [line["path"] for line in ended.lines]
    found = polars.read_parquet([file.removeprefix("file://") for file in files])
    return Answer(found["id"].sort().to_list(), files)


def by_delta_rs(location: str) -> Answer:
    ids = sorted(row[0] for row in engines.by_delta_rs(location))
    return Answer(ids, DeltaTable(location).file_uris())


def ids_by(read: Callable[[str], engines.Rows]) -> Read:
    return lambda location: Answer(sorted(row[0] for row in read(location)))


def where_we_say(write: Write) -> Write:
    """Have an engine write where we say that the table is."""
    return lambda location, row: write(lakeferry.resolve(location, write=True), row)


def polars_write(location: str, row: int, mode: Any, **options: Any) -> Any:
    return polars.DataFrame({"id": [row]}).write_delta(location, mode=mode, **options)


def polars_delete(location: str, row: int) -> None:
    options = {"predicate": "new.id = old.id", "source_alias": "new", "target_alias": "old"}
    merge = polars_write(location, row, "merge", delta_merge_options=options)
    merge.when_matched_delete().execute()


def duckdb_append(location: str, row: int) -> None:
    with engines.duckdb_with_delta() as connection:
        connection.execute(f"ATTACH '{location}' AS t (TYPE delta)")
        connection.execute("INSERT INTO t VALUES (?)", [row])


DELTA_RS: dict[str, Write] = {
    "append": lambda location, row: write_deltalake(location, rows([row]), mode="append"),
    "overwrite": lambda location, row: write_deltalake(location, rows([row]), mode="overwrite"),
    "delete": lambda location, row: DeltaTable(location).delete(f"id = {row}"),
}
CLIENTS = {
    "lakeferry": Client({"read": by_dataset}, modern_for=MODES),
    "delta-rs where lakeferry says": Client(
        {"read": lambda location: by_delta_rs(lakeferry.resolve(location))},
        {name: where_we_say(write) for name, write in DELTA_RS.items()},
        MODES,
        # It is the source that is to be read, and that is what delta-rs can't do.
        reads_in={(Stage.ENABLING, "reader-writer"): BLOCKED},
    ),
    "command line": Client({"read": by_command_line}, modern_for=MODES),
    "delta-rs": Client({"read": by_delta_rs}, DELTA_RS),
    "Polars": Client(
        {"read": ids_by(engines.by_polars)},
        {
            "append": lambda location, row: polars_write(location, row, "append"),
            "overwrite": lambda location, row: polars_write(location, row, "overwrite"),
            "delete": polars_delete,
        },
    ),
    "DuckDB": Client({"read": ids_by(engines.by_duckdb)}, {"append": duckdb_append}),
}


@pytest.mark.parametrize(("stage", "mode"), CELLS)
@pytest.mark.parametrize(
    ("name", "operation"),
    [
        (name, operation)
        for name, client in CLIENTS.items()
        for operation in (*client.reads, *client.writes)
    ],
)
def test_cell_of(
    name: str,
    operation: str,
    stage: Stage,
    mode: str,
    redirected: dict[tuple[Stage, str], Places],
) -> None:
    CLIENTS[name].check(operation, redirected[stage, mode], stage, mode)


@pytest.mark.parametrize(("stage", "mode"), CELLS)
def test_history_on_the_command_line_is_that_of_the_table_that_is_read(
    stage: Stage, mode: str, redirected: dict[tuple[Stage, str], Places]
) -> None:
    places = redirected[stage, mode]
    ended = run("history", places.source, "--json", home=places.source.parent)
    assert ended.code == 0, ended.err
    reads_target = WHO_SEES_WHAT[stage].modern_read is TARGET
    newest = newest_version(places.target if reads_target else places.source)
    assert [commit["version"] for commit in ended.document["commits"]] == list(
        range(newest, -1, -1)
    )


# --- Spark --------------------------------------------------------------------


def spark_client(session: SparkSession, folder: Path, **expectations: Any) -> Client:
    """A Spark session as a client; what its streams need is put into ``folder``."""

    def load(location: str) -> Answer:
        frame = session.read.format("delta").load(location)
        return Answer(sorted(row.id for row in frame.collect()), frame.inputFiles())

    def read_stream(location: str) -> Answer:
        name = f"seen_{uuid.uuid4().hex}"
        stream = session.readStream.format("delta").load(location).writeStream
        query = stream.format("memory").queryName(name).trigger(availableNow=True)
        query.option("checkpointLocation", str(folder / name)).start().awaitTermination()
        return Answer(sorted(row.id for row in session.table(name).collect()))

    def save(location: str, row: int, mode: str) -> None:
        frame = session.range(row, row + 1).coalesce(1)
        frame.write.format("delta").mode(mode).save(location)

    def write_stream(location: str, row: int) -> None:
        feed, checkpoint = folder / f"feed-{row}", folder / f"checkpoint-{row}"
        write_deltalake(str(feed), rows([row]))
        stream = session.readStream.format("delta").load(str(feed)).writeStream.format("delta")
        stream = stream.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
        stream.start(location).awaitTermination()

    return Client(
        {"read": load, "read a stream": read_stream},
        {
            "append": lambda location, row: save(location, row, "append"),
            "overwrite": lambda location, row: save(location, row, "overwrite"),
            "delete": lambda location, row: session.sql(
                f"DELETE FROM delta.`{location}` WHERE id = {row}"
            ),
            "write a stream": write_stream,
        },
        **expectations,
    )


SPARK_OPERATIONS = ("read", "read a stream", "append", "overwrite", "delete", "write a stream")


@pytest.fixture(scope="module")
def spark_clients(
    spark_as: Callable[[str], SparkSession], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Client]:
    """Three sessions in one JVM, which share nothing that is about redirects."""
    folder = tmp_path_factory.mktemp("streams")
    expectations: dict[str, dict[str, Any]] = {
        OURS: {
            "modern_for": MODES,
            # It is the source that is to be read, and that is what delta-spark can't do.
            "reads_in": {(Stage.ENABLING, "reader-writer"): BLOCKED},
        },
        STOCK: {},
        STOCK_FOLLOWING: {
            "modern_for": ("writer-only",),
            "refusal": Exception,
            # The same rows: all of them are back by then.
            "reads_in": {(Stage.DROPPING, "writer-only"): SOURCE},
        },
    }
    return cache(lambda name: spark_client(spark_as(name), folder, **expectations[name]))


@pytest.mark.parametrize("operation", SPARK_OPERATIONS)
@pytest.mark.parametrize(
    ("name", "stage", "mode"),
    [
        pytest.param(name, stage, mode, id=f"{name}-{stage.name}-{mode}")
        for name, stage, mode in itertools.product([OURS, STOCK, STOCK_FOLLOWING], Stage, MODES)
        # Of reader-writer redirects its option knows nothing: it is the same client then.
        if (name, mode) != (STOCK_FOLLOWING, "reader-writer")
    ],
)
def test_cell_of_spark(
    name: str,
    stage: Stage,
    mode: str,
    operation: str,
    spark_clients: Callable[[str], Client],
    redirected: dict[tuple[Stage, str], Places],
) -> None:
    spark_clients(name).check(operation, redirected[stage, mode], stage, mode)
