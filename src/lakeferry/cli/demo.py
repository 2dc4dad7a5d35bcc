"""``demo``: Lakeferry at work on local disk, with tables that other engines write.

Spark makes a table, delta-rs writes to it too, and Lakeferry looks at it with
the same commands that a user types. Spark runs as its own program, so nothing
of it is loaded here and its messages stay in a file.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from lakeferry.cli import doctor, progress
from lakeferry.cli.options import Session, command
from lakeferry.cli.output import Output
from lakeferry.errors import FeatureRequired, InvalidInput, LakeferryError

_SPARK_TIMEOUT_S = 300
_STATEMENTS = (
    """CREATE TABLE delta.`{table}` (id BIGINT, region STRING, amount DOUBLE) USING delta
       PARTITIONED BY (region) TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')""",
    """INSERT INTO delta.`{table}` SELECT id, IF(id % 2 = 0, 'north', 'south'), id * 1.5
       FROM range(1000)""",
    "UPDATE delta.`{table}` SET amount = 0 WHERE id = 7",
    "DELETE FROM delta.`{table}` WHERE region = 'north' AND id < 100",
)


@command(
    examples=(
        ("lakeferry demo", "in a folder that is removed afterwards"),
        ("lakeferry demo --folder ./demo", "keep the table, to look at it further"),
    )
)
@click.option(
    "--folder", type=click.Path(file_okay=False), help="Make the table here, and keep it."
)
def demo(session: Session, folder: str | None) -> None:
    """See Lakeferry at work: a table written by Spark and delta-rs, on local disk.

    Needs the Spark extra and Java. The first start of Spark takes a while.
    """
    with _workplace(folder) as place:
        table = place / "orders"
        output = session.output
        story = Session(Output(json=False))
        if not output.json:
            output.page().line("Spark makes a table: 1,000 orders, one changed, 50 deleted")
        with progress.waiting(output, "Spark is at work"):
            _write_with_spark(table, place)
        if importlib.util.find_spec("deltalake") is not None:
            _write_with_delta_rs(table)
            if not output.json:
                output.page().line("delta-rs appends 10 more")
        if output.json:
            output.document(_tell(session, table))
            return
        for words in (["inspect"], ["checkpoint"], ["history"], ["files", "--version", "1"]):
            _run(story, [words[0], str(table), *words[1:]])
        if folder is not None:
            output.page().line(f"the table stays at {table}")


def _tell(session: Session, table: Path) -> dict[str, object]:
    from lakeferry.api import Table

    opened = Table(str(table), warn=session.output.warn)
    written = opened.checkpoint()
    found = opened.inspect()
    return {
        "location": found.location,
        "version": found.version,
        "num_files": found.num_files,
        "checkpoint": written.version,
        "commits": len(opened.history()),
    }


def _run(session: Session, words: list[str]) -> None:
    """Show a command line as a user would type it, and what it answers."""
    from lakeferry.cli.app import invoke

    session.output.text(f"\n$ lakeferry {' '.join(words)}\n")
    invoke(words, session)


@contextmanager
def _workplace(folder: str | None) -> Iterator[Path]:
    if folder is None:
        with tempfile.TemporaryDirectory(prefix="lakeferry-demo-") as made:
            yield Path(made)
        return
    place = Path(folder).absolute()
    if (place / "orders").exists():
        raise InvalidInput(
            f"{place / 'orders'} is there already", remedy="name another folder", path=str(place)
        )
    place.mkdir(parents=True, exist_ok=True)
    yield place


def _write_with_spark(table: Path, place: Path) -> None:
    """Run Spark's own SQL shell with the jars of Delta Lake."""
    home, jars = _spark_home(), doctor.spark_jars(os.environ)
    if home is None or jars is None or doctor.java(os.environ) is None:
        raise FeatureRequired(
            "the demo needs Spark",
            cause="PySpark, Java or the jars of Delta Lake aren't installed",
            remedy="'lakeferry doctor' says what is missing",
        )
    settings = {
        "spark.driver.bindAddress": "127.0.0.1",
        # It ends before the optimising compiler would pay for itself.
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.shuffle.partitions": "2",
        "spark.databricks.delta.snapshotPartitions": "2",
        "spark.ui.enabled": "false",
    }
    statements = ";\n".join(_STATEMENTS).format(table=table)
    words = [
        str(home / "bin" / "spark-sql"),
        "--master",
        "local[2]",
        "--driver-class-path",
        f"{jars}/*",
    ]
    for name, value in settings.items():
        words += ["--conf", f"{name}={value}"]
    log = place / "spark.log"
    with log.open("wb") as stream, tempfile.TemporaryDirectory(dir=place) as scratch:
        ended = subprocess.run(
            [*words, "-e", statements],
            cwd=scratch,
            env={**os.environ, "SPARK_HOME": str(home)},
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            timeout=_SPARK_TIMEOUT_S,
            check=False,
        )
    if ended.returncode != 0:
        last = log.read_text(errors="replace").strip().splitlines()[-1:]
        raise LakeferryError(
            "Spark could not make the table",
            cause=last[0] if last else f"it ended with {ended.returncode}",
            remedy="run 'lakeferry demo --folder DIR' and look at DIR/spark.log",
        )


def _spark_home() -> Path | None:
    """Return the folder of PySpark, which holds all of Spark, without loading it."""
    found = importlib.util.find_spec("pyspark")
    folders = found.submodule_search_locations if found is not None else None
    return Path(folders[0]) if folders else None


def _write_with_delta_rs(table: Path) -> None:
    import deltalake
    import pyarrow as pa

    ids = list(range(1000, 1010))
    orders = pa.table(
        {"id": ids, "region": ["south"] * 10, "amount": [float(each) for each in ids]}
    )
    deltalake.write_deltalake(str(table), orders, mode="append")
