"""Tries everything that Lakeferry does with Spark, with one Spark, and writes what it found.

The Python of an environment with that Spark runs it (:mod:`tests.matrix.environments`)::

    python -m tests.matrix.suite RESULT FOLDER [GROUP...]

One JVM does all of it, on local disk. A group is a caller: the engine of a command, or a session
that uses a table's old path after the table moved. Without Delta Lake only the first is tried.
A new group is a row of :data:`GROUPS`; the page has it as soon as a run has it.
"""

from __future__ import annotations

import io
import json
import os
import platform
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyspark
from deltalake import write_deltalake
from pyspark.errors import ParseException
from pyspark.sql import SparkSession

import lakeferry
from lakeferry.engines.spark import copy_on_spark, replay_on_spark, spark_jars
from lakeferry.engines.spark.spark_versions import installed_version, line_of
from lakeferry.redirect.dialects import property_of
from lakeferry.redirect.entry import Dialect, Mode
from lakeferry.storage import open_store
from tests.matrix.cells import (
    ENGINE,
    ENTRY_OF_3_3,
    INSTALL,
    INSTALL_LOCKED,
    SOMETHING_BROKEN,
    STOCK_WITH_OPTION,
    Cell,
    MatrixRun,
    Outcome,
    refusal,
)
from tests.support.delta_spark_features import KnownFeatures, known_features
from tests.support.history import Append, Checkpoint, Create, DeleteRows, History, Layout
from tests.support.moved_session import FOLLOWED, MANY, Moved, moved_session
from tests.support.redirected_tables import (
    MOVED_ON,
    OURS,
    ROWS,
    STOCK,
    STOCK_FOLLOWING,
    Places,
    client_session,
    create,
    ids,
    newest_version,
    rows,
)
from tests.support.spark import session as start_session
from tests.support.spark_reads import delta_table, streamed

# --- Calls by a path -----------------------------------------------------------

Read = Callable[[SparkSession, str], Any]
"""Returns a data frame of the table at a path."""
Write = Callable[[SparkSession, str, int], object]
"""Adds a row to the table at a path."""


def _append(session: SparkSession, path: str, row: int) -> None:
    _one(session, row).write.format("delta").mode("append").save(path)


def _merge_by_sql(session: SparkSession, path: str, row: int) -> None:
    session.sql(
        f"MERGE INTO delta.`{path}` AS old USING (SELECT {row}L AS id) AS new ON old.id = new.id"
        " WHEN NOT MATCHED THEN INSERT *"
    ).collect()


def _stream_into(session: SparkSession, path: str, row: int) -> None:
    feed, checkpoint = f"{path}-feed-{row}", f"{path}-checkpoint-{row}"
    write_deltalake(feed, rows([row]))
    stream = session.readStream.format("delta").load(feed).writeStream.format("delta")
    stream = stream.option("checkpointLocation", checkpoint).trigger(availableNow=True)
    stream.start(path).awaitTermination()


def _merge_by_table(session: SparkSession, path: str, row: int) -> None:
    merge = (
        delta_table(session, path)
        .alias("old")
        .merge(_one(session, row).alias("new"), "old.id = new.id")
    )
    merge.whenNotMatchedInsertAll().execute()


def _one(session: SparkSession, row: int) -> Any:
    return session.range(row, row + 1).coalesce(1)


def _view(path: str) -> str:
    return re.sub(r"\W", "_", f"view_of_{Path(path).name}")


READS: dict[str, Read] = {
    "read": lambda s, p: s.read.format("delta").load(p),
    "query": lambda s, p: s.sql(f"SELECT id FROM delta.`{p}`"),
    "stream from it": lambda s, p: streamed(s, s.readStream.format("delta").load(p)),
    "`DeltaTable`": lambda s, p: delta_table(s, p).toDF(),
    "view": lambda s, p: s.table(_view(p)),
}
WRITES: dict[str, Write] = {
    "write": _append,
    "`MERGE` in SQL": _merge_by_sql,
    "stream to it": _stream_into,
    "`DeltaTable.merge`": _merge_by_table,
}


def _try_read(call: Read, session: SparkSession, places: Places) -> tuple[Outcome, str]:
    found = sorted(row.id for row in call(session, str(places.source)).collect())
    if found == ids(places.target):
        return Outcome.WORKS, ""
    return (Outcome.FROZEN, "") if found == ROWS else (Outcome.BROKEN, f"read {found}")


def _try_forms(moved: Moved) -> tuple[Outcome, str]:
    """Read a table by every form of a query that this Spark parses."""
    path = moved.places["ours"].source
    wrong = {}
    for text in FOLLOWED:
        try:
            found = moved.count(text.format(t="ours", p=path, s=moved.schema))
        except ParseException:
            continue
        if found != MANY:
            wrong[text] = found
    return (Outcome.BROKEN, f"{wrong}") if wrong else (Outcome.WORKS, "")


def _try_write(call: Write, row: int, session: SparkSession, places: Places) -> tuple[Outcome, str]:
    version, before, logs = newest_version(places.source), ids(places.target), places.logs
    try:
        call(session, str(places.source), row)
    except Exception:
        if places.logs != logs:
            return Outcome.BROKEN, "refused, but something was committed"
        raise
    if newest_version(places.source) != version:
        return Outcome.BROKEN, "wrote to the old place"
    found = ids(places.target)
    return (Outcome.WORKS, "") if found == sorted([*before, row]) else (Outcome.BROKEN, f"{found}")


# --- Groups ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Workplace:
    """A running Spark, and a folder for tables."""

    spark: SparkSession
    folder: Path
    has_delta: bool


Attempts = Iterator[tuple[str, Callable[[], tuple[Outcome, str]]]]
"""What to try, by its name. What is yielded is called at once."""
Group = Callable[[Workplace], Attempts]


def _engine(at: Workplace) -> Attempts:
    """Commands with ``--engine spark``, on tables with deletion vectors."""
    steps = Append(3), DeleteRows(2), Checkpoint(), Append(2)
    history = History(Layout(partitioned=True, deletion_vectors="u"), (Create(), *steps))
    there = {name: at.folder / f"engine {name}" for name in ("listed", "locked", "left", "same")}
    for place in there.values():
        history.write(open_store(str(place)), with_data=True)
    count = lakeferry.open(str(there["listed"])).count_rows()

    def command(table: Path, *words: object) -> tuple[Outcome, str]:
        code, failed = _run([*map(str, words), "--engine", "spark", "--json"])
        if code:
            known = failed.get("code", "") not in ("", "error", "internal_error")
            text = failed["code"] if known else f"{failed}"
            return (Outcome.REFUSED if known else Outcome.BROKEN), text
        found = lakeferry.open(str(table)).count_rows()
        if found != count:
            return Outcome.BROKEN, f"{found} rows instead of {count}"
        return Outcome.WORKS, ""

    listed, locked, left = there["listed"], there["locked"], there["left"]
    # Executors read the log too, which they do of long logs only.
    copy_on_spark.PLANNED_HERE_BYTES, replay_on_spark._SURVEYED_HERE = 0, 0
    output = at.folder / "files.parquet"
    yield "`files`", partial(command, listed, "files", listed, "--output", output)
    enable = ("redirect", "enable")
    yield (
        "`redirect enable`",
        partial(command, locked, *enable, locked, f"{locked}-moved", "--yes"),
    )
    yield (
        "`redirect enable --mode writer-only`",
        partial(command, left, *enable, left, f"{left}-moved", "--mode", "writer-only", "--yes"),
    )
    yield (
        "`verify --digest --rows`",
        partial(command, listed, "verify", listed, there["same"], "--digest", "--rows"),
    )
    yield "`feature drop`", partial(command, listed, "feature", "drop", listed, "deletionVectors")


def _run(words: list[str]) -> tuple[int, Mapping[str, Any]]:
    """Run a command in this process, where Spark runs; return its exit code and its error."""
    from lakeferry.cli.app import run_command

    told = io.BytesIO()
    errors = io.TextIOWrapper(told, "utf-8")
    with redirect_stdout(io.TextIOWrapper(io.BytesIO(), "utf-8")), redirect_stderr(errors):
        code = run_command(words)
        errors.flush()
    if code == 0:
        return code, {}
    error: Mapping[str, Any] = json.loads(told.getvalue().splitlines()[-1])["error"]
    return code, error


def _caller(
    client: str, mode: str, at: Workplace, edit: Callable[[Places], None] | None = None
) -> Attempts:
    """Sessions of a client that use the old path of a table that moved.

    ``edit`` changes the source's log afterwards.
    """
    if not at.has_delta:
        return
    name = f"{client} {mode}{' edited' if edit else ''}"
    places = create(at.folder, name.replace(" ", "-"))
    at.spark.sql(f"CREATE VIEW {_view(str(places.source))} AS TABLE delta.`{places.source}`")
    places.move(mode=mode)
    if edit is not None:
        edit(places)
    write_deltalake(str(places.target), rows([MOVED_ON]), mode="append")
    with client_session(at.spark, client) as session:
        for name, read in READS.items():
            yield name, partial(_try_read, read, session, places)
        for number, (name, write) in enumerate(WRITES.items()):
            yield name, partial(_try_write, write, 20 + number, session, places)


def _installed(at: Workplace) -> Attempts:
    """Sessions with our client, which also follow every form of a query."""
    yield from _caller(OURS, "writer-only", at)
    if at.has_delta:
        with moved_session(at.spark, at.folder / "forms") as moved:
            yield "queries of all forms", partial(_try_forms, moved)


def _spell_as_3_3(places: Places) -> None:
    """Give the source an entry that Delta Lake 3.3 can parse; its source isn't a part of it."""
    for path in sorted(places.source.glob("_delta_log/*.json")):
        actions = [json.loads(line) for line in path.read_text().splitlines()]
        for action in actions:
            properties = action.get("metaData", {}).get("configuration", {})
            if DELTA_ENTRY in properties:
                entry = json.loads(properties[DELTA_ENTRY])
                destination = json.loads(entry["spec"])["destPath"]
                entry["spec"] = json.dumps({"tablePath": destination})
                properties[DELTA_ENTRY] = json.dumps(entry)
        path.write_text("".join(json.dumps(action) + "\n" for action in actions))
    # The checkpoint has the entry too, and the commits are all there.
    for pattern in ("*.crc", "*.checkpoint.parquet", "_last_checkpoint"):
        for path in places.source.glob(f"_delta_log/{pattern}"):
            path.unlink()


DELTA_ENTRY = property_of(Dialect.DELTA_SPARK, Mode.WRITER_ONLY)
GROUPS: dict[str, Group] = {
    ENGINE: _engine,
    INSTALL_LOCKED: partial(_caller, OURS, "reader-writer"),
    INSTALL: _installed,
    STOCK_WITH_OPTION: partial(_caller, STOCK_FOLLOWING, "writer-only"),
    "stock without it, writer-only": partial(_caller, STOCK, "writer-only"),
    "stock with the option, reader-writer": partial(_caller, STOCK_FOLLOWING, "reader-writer"),
    "stock without it, reader-writer": partial(_caller, STOCK, "reader-writer"),
    ENTRY_OF_3_3: partial(_caller, STOCK_FOLLOWING, "writer-only", edit=_spell_as_3_3),
}


# --- A run ----------------------------------------------------------------------


def _started(group: str, at: Workplace) -> Attempts:
    """Yield what to try; a group that can't be started is a defect, too."""
    try:
        yield from GROUPS[group](at)
    except Exception as failed:  # noqa: BLE001 - any error is a result here

        def fail(failure: Exception = failed) -> tuple[Outcome, str]:
            raise failure

        yield "start", fail


def try_groups(at: Workplace, names: tuple[str, ...]) -> Iterator[Cell]:
    """Yield the cells of groups, and say on standard error what each was."""
    for group in names:
        for what, attempt in _started(group, at):
            started = time.monotonic()
            try:
                outcome, detail = attempt()
            except Exception as failed:  # noqa: BLE001 - any error is a result here
                outcome, detail = refusal(failed)
            took = time.monotonic() - started
            print(f"{took:5.1f} s  {group}, {what}: {outcome.value} {detail}", file=sys.stderr)
            yield Cell(group, what, outcome, detail)


def run(folder: Path, names: tuple[str, ...]) -> MatrixRun:
    """Start Spark, try these groups, or all if there are none, and stop it."""
    line = line_of(pyspark.__version__)
    has_delta = not line.delta_fails_with(pyspark.__version__)
    jars = spark_jars.jars_folder(os.environ, line) if has_delta else None
    # Spark 4.0 has scripts, but switches them off.
    settings = {"spark.sql.scripting.enabled": "true"}
    spark = start_session(jars, folder / "spark", settings=settings)
    spark.sparkContext.setLogLevel("OFF")
    at = Workplace(spark, folder, has_delta)
    try:
        cells = tuple(try_groups(at, names or tuple(GROUPS)))
        known = known_features(spark, folder / "asked") if has_delta else KnownFeatures()
    finally:
        spark.stop()
    return MatrixRun(
        spark=pyspark.__version__,
        delta=installed_version("delta-spark") if has_delta else None,
        python=platform.python_version(),
        pyarrow=pa.__version__,
        day=f"{datetime.now(UTC):%Y-%m-%d}",
        cells=cells,
        reads=known.reads,
        writes=known.writes,
    )


def main(arguments: list[str]) -> int:
    """Write the result; return :data:`SOMETHING_BROKEN` if that is so."""
    result, folder, *names = arguments
    found = run(Path(folder), tuple(names))
    found.write(Path(result))
    for cell in found.broken:
        print(f"broken: {cell.group}, {cell.what}: {cell.detail}", file=sys.stderr)
    return SOMETHING_BROKEN if found.broken else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
