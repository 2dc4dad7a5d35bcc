"""What managed tables cost: to move a table into its catalog, to open it there, to commit there.

* How long writers wait during a move to a managed table: 20,000 files against 1,000, both on
  local disk, each with a writer that commits twice a second by the old path.
* What it costs to open a managed table whose name hasn't changed, by its name and by its old
  path: calls of the catalog and listings of its log.
* How many commits per second go through the catalog, against delta-spark with Unity Catalog's
  connector, on the same server, disk and machine, each with a table of its own. Two pairs:

  - *one row*: Spark's ``INSERT INTO t VALUES (…)`` against a Parquet file of one row that we
    write, and a commit that adds it;
  - *a property*: Spark's ``ALTER TABLE … SET TBLPROPERTIES`` against our commit of a property.
    Neither moves data, so this is the closer pair: what is left is the protocol.

  Both begin at the table's name each time, as each SQL statement does: they look it up, get
  credentials, read the newest version, stage, propose and publish. Spark is one warm session and
  caches the table's state; we read it anew from the last checkpoint on. Spark also parses, plans
  and runs a job, and reports metrics; we force each file to the disk, which Spark doesn't.
  Neither writes checkpoints (``delta.checkpointInterval``). Rounds alternate.

Commits need a real server that sees this disk, and the connector's jars:

    LAKEFERRY_UC_URL=http://127.0.0.1:8080 LAKEFERRY_UC_SPARK_JARS=FOLDER python bench/managed.py

FOLDER has the jars of delta-spark and of ``unitycatalog-spark``. Without both variables that part
is left out, and without the first one the others run against our own server for tests.

Run it with ``make bench``, or alone: ``python bench/managed.py [RUNS]``.
"""

from __future__ import annotations

import io
import os
import statistics
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from support import tables
from support.measure import Bar, child, counted, report
from support.moves import waits, writing
from support.unity import REAL, counted_calls, is_real, unity

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lakeferry.log.commit import Transaction
    from lakeferry.table import DeltaLog

MANY, FEW = 20_000, 1_000
BLOCKED = 1.5
CALLS, LISTINGS = 2, 1
COMMITS = 1 / 0.9
"""How long a commit of ours may take, measured by one of Spark's: nine tenths of its rate."""
JARS = "LAKEFERRY_UC_SPARK_JARS"
WARM_UP, ROUND = 5, 10


# --- Moves ------------------------------------------------------------------------------


def blocked(argument: str) -> Callable[[], object]:
    """Move a table into the catalog with a writer at work; the result says how long it waited."""
    from lakeferry.api.redirects import Redirects

    folder, _, name = argument.partition("|")
    source = Path(folder) / "old"

    def work() -> object:
        with writing(source), Redirects(engine="local") as redirects:
            return redirects.enable(str(source), name, managed=True).as_document()

    return work


def managed(source: Path, schema: str) -> str:
    """Move a table into the catalog; return its name there."""
    from lakeferry.api.redirects import Redirects

    name = _new_name(schema)
    with Redirects(engine="local") as redirects:
        redirects.enable(str(source), name, managed=True)
    return name


def move_calls(files: int, folder: Path, schema: str) -> tuple[str, Counter[str], Counter[str]]:
    """Move a table of so many files; return its name, the stores' calls and the catalog's."""
    tables.write(folder / "old", files)
    with counted() as calls, counted_calls() as asked:
        name = managed(folder / "old", schema)
    return name, calls, asked


def _new_name(schema: str) -> str:
    return f"unity:{schema}.bench_{uuid.uuid4().hex[:12]}"


# --- Opening ----------------------------------------------------------------------------


def opening_calls(table: str) -> tuple[Counter[str], Counter[str]]:
    """Return what finding a table's newest version asks of the stores and of the catalog."""
    from lakeferry.catalogs.places import Places
    from lakeferry.redirect.resolve import Resolver

    places = Places()
    with counted() as calls, counted_calls() as asked:
        place = places.locate(table)
        found = Resolver(places.open, places.catalog, grant=places.grant).resolve(
            place, allow_managed=True
        )
    assert found.redirected or table.startswith("unity:")
    return calls, asked


# --- Commits ----------------------------------------------------------------------------


class OurWriter:
    """Commits to a managed table by its name, and finds it anew each time."""

    def __init__(self, name: str) -> None:
        self._name = name

    def _log(self) -> DeltaLog:
        from lakeferry.catalogs.places import Places
        from lakeferry.table import DeltaLog

        places = Places()
        return DeltaLog(places.open(places.locate(self._name)))

    def add_row(self, number: int) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        from lakeferry.log import file_actions
        from lakeferry.log.commit import Transaction

        log = self._log()
        sink = io.BytesIO()
        pq.write_table(pa.table({"id": pa.array([number], pa.int64())}), sink)
        name = f"part-{uuid.uuid4()}.parquet"
        log.store.put(name, sink.getvalue())
        row = {
            "path": name,
            "partitionValues": [],
            "size": sink.tell(),
            "modificationTime": time.time_ns() // 1_000_000,
            "dataChange": True,
            "stats": '{"numRecords":1}',
        }
        adds = pa.Table.from_pylist([row], schema=file_actions.ADD)
        self._commit(log, Transaction("WRITE", str(uuid.uuid4()), adds=adds, new_names=True))

    def set_property(self, number: int) -> None:
        from lakeferry.log.actions import changed
        from lakeferry.log.commit import Transaction

        log = self._log()
        before = log.state().metadata
        wanted = {**before.configuration, "bench.number": str(number)}
        metadata = changed(before, configuration=wanted)
        self._commit(log, Transaction("SET TBLPROPERTIES", str(uuid.uuid4()), metadata=metadata))

    def _commit(self, log: DeltaLog, transaction: Transaction) -> None:
        from lakeferry.table.put_commit import Committed

        assert isinstance(log.commit(transaction, log.state()), Committed)


class SparkWriter:
    """Commits to a managed table by its name, in one warm session."""

    def __init__(self, spark: SparkSession, name: str) -> None:
        self._spark = spark
        self._name = name.partition(":")[2]

    def add_row(self, number: int) -> None:
        self._spark.sql(f"INSERT INTO {self._name} VALUES ({number})")

    def set_property(self, number: int) -> None:
        self._spark.sql(f"ALTER TABLE {self._name} SET TBLPROPERTIES ('bench.number'='{number}')")

    def count(self) -> int:
        return self._spark.table(self._name).count()


@contextmanager
def connected(url: str, token: str | None, catalog: str, folder: Path) -> Iterator[SparkSession]:
    """Give a Spark session with the connector, in which the catalog has its own name."""
    from pyspark.sql import SparkSession

    jars = sorted(str(jar) for jar in Path(os.environ[JARS]).glob("*.jar"))
    builder = SparkSession.builder.master("local[2]").appName("bench")
    for name, value in {
        "spark.jars": ",".join(jars),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.sql.shuffle.partitions": "2",
        # Its default of 50 makes a small table's state slower to build.
        "spark.databricks.delta.snapshotPartitions": "2",
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        f"spark.sql.catalog.{catalog}": "io.unitycatalog.spark.UCSingleCatalog",
        f"spark.sql.catalog.{catalog}.uri": url,
        f"spark.sql.catalog.{catalog}.token": token or "",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.driver.extraJavaOptions": f"-Dderby.system.home={folder / 'derby'}",
    }.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    try:
        yield session
    finally:
        session.stop()


def commits(rounds: int) -> list[Bar]:
    """Return the bars of both pairs of commits."""
    with unity() as server, tempfile.TemporaryDirectory() as place:
        folder, catalog = Path(place), server.schema.partition(".")[0]
        with connected(server.url, server.token, catalog, folder) as spark:
            names = []
            for who in ("ours", "spark"):
                name = managed(tables.write(folder / who, 10), server.schema)
                spark.sql(
                    f"ALTER TABLE {name.partition(':')[2]} "
                    "SET TBLPROPERTIES ('delta.checkpointInterval'='100000')"
                )
                names.append(name)
            ours, peer = OurWriter(names[0]), SparkWriter(spark, names[1])
            found = [
                _pair("one row", ours.add_row, peer.add_row, rounds),
                _pair("a property", ours.set_property, peer.set_property, rounds),
            ]
            # Both wrote tables that everybody can read.
            rows = 10 + WARM_UP + ROUND * rounds
            assert SparkWriter(spark, names[0]).count() == peer.count() == rows
    return found


def _pair(what: str, ours: Callable[[int], None], peer: Callable[[int], None], rounds: int) -> Bar:
    """Return how long a commit takes, ours and the peer's, in rounds that alternate."""
    taken: dict[Callable[[int], None], list[float]] = {ours: [], peer: []}
    for commit in taken:
        for number in range(WARM_UP):
            commit(number)
    for _ in range(rounds):
        for commit, seconds in taken.items():
            for number in range(ROUND):
                begun = time.perf_counter()
                commit(number)
                seconds.append(time.perf_counter() - begun)
    mine, theirs = (statistics.median(seconds) * 1_000 for seconds in taken.values())
    print(f"commits per second, {what}: {1_000 / mine:.2f}, and {1_000 / theirs:.2f} by Spark")
    return Bar(f"a commit through the catalog, {what}", mine, theirs, "ms", COMMITS)


# --- All --------------------------------------------------------------------------------


def main() -> int:
    child({blocked.__name__: blocked})
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 7
    which = os.environ[REAL] if is_real() else f"our own server for tests ({REAL} isn't set)"
    print(f"Unity Catalog: {which}")
    bars = []
    with unity() as server:
        few, many = (
            waits(__file__, "blocked", files, runs, lambda at: f"{at}|{_new_name(server.schema)}")
            for files in (FEW, MANY)
        )
        print(f"waits at {FEW:,} files: {sorted(few)} ms; at {MANY:,}: {sorted(many)} ms")
        medians = statistics.median(many), statistics.median(few)
        bars.append(Bar("writers wait, 20,000 files to 1,000", *medians, "ms", BLOCKED))
        with tempfile.TemporaryDirectory() as place:
            source = tables.write(Path(place) / "old", 10)
            name = managed(source, server.schema)
            for how, table, besides in (("name", name, 0), ("old path", str(source), 1)):
                calls, asked = opening_calls(table)
                print(f"opening by {how}: {dict(asked)} of the catalog, {dict(calls)} of stores")
                # The old path has a log of its own to list.
                lists = calls["LIST"] - besides
                bars += [
                    Bar(f"opening by {how}, catalog calls", asked.total(), CALLS, "", 1.0),
                    Bar(f"opening by {how}, listings", lists, LISTINGS, "", 1.0),
                ]
    if is_real() and os.environ.get(JARS):
        bars += commits(runs)
    else:
        print(
            f"commits per second: not measured, set {REAL} and {JARS} (see {Path(__file__).name})"
        )
    return report(bars)


if __name__ == "__main__":
    sys.exit(main())
