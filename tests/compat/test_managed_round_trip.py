"""A table goes into Unity Catalog and back while rows arrive; every engine reads all of it.

The catalog is our own server, or the real one (``tests/support/unity_spark.py``). With the real
one delta-spark takes part: it appends, and it reads each version. The test is the same for a
server with authorization, and for one that has its tables in a bucket.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
import polars
import pyarrow as pa
import pytest
from deltalake import write_deltalake

import lakeferry
from lakeferry import spark as modern
from lakeferry.api.redirects import Redirects
from lakeferry.errors import (
    CatalogManaged,
    CommitConflict,
    LakeferryError,
    RedirectInProgress,
)
from lakeferry.redirect.states import RedirectState
from lakeferry.storage import normalise, open_store
from tests.support import engines
from tests.support.engines import Rows
from tests.support.moved_table import LONG, LONG_CUT
from tests.support.steady_writer import SteadyWriter, append_by_lakeferry, steadily
from tests.support.unity_server import UnityServer
from tests.support.unity_spark import REAL, use_unity

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOGGER = logging.getLogger(__name__)
"""Tells the numbers: ``pytest --log-cli-level=INFO`` shows them."""
REST_S = 0.3 if REAL else 0.1
Versions = dict[int, Rows]
pytestmark = pytest.mark.usefixtures("unity_here")
PASTS = {"twelve versions": LONG, "twelve versions, a log that was cut": LONG_CUT}


@dataclass(frozen=True)
class Sparks:
    """Two sessions with the catalog: one with our client, and one without it."""

    ours: SparkSession
    plain: SparkSession

    def append(self, source: str, row: int) -> None:
        """Append a row by the old path."""
        frame = self.ours.createDataFrame(
            [(row, "new", "a b")], "id BIGINT, value STRING, part STRING"
        )
        frame.write.format("delta").mode("append").save(source)


@pytest.fixture
def sparks(request: pytest.FixtureRequest, unity: UnityServer) -> Iterator[Sparks | None]:
    """Give the sessions, if there is a real catalog for them."""
    if not REAL:
        yield None
        return
    spark = request.getfixturevalue("spark")
    found = Sparks(spark.newSession(), spark.newSession())
    for session in (found.ours, found.plain):
        use_unity(session, unity)
    modern.install(found.ours)
    yield found
    modern.uninstall(found.ours)


def rows_of(table: pa.Table) -> Rows:
    return sorted(zip(*(column.to_pylist() for column in table.columns), strict=True), key=repr)


def versions(table: str) -> Versions:
    """Return every version that can be read, as our dataset has it."""
    found = {}
    for version in range(lakeferry.Table(table).snapshot().version + 1):
        try:
            found[version] = rows_of(lakeferry.open(table, version=version).to_table())
        except LakeferryError:
            continue
    return found


def newest(found: Versions) -> Rows:
    return found[max(found)]


def by_others(table: str, version: int, folder: Path) -> dict[str, Rows]:
    """Return the rows as engines read them that can't open a managed table themselves.

    delta-rs queries its own tables only, so it is given the rows first.
    """
    orders = lakeferry.open(table, version=version)
    with duckdb.connect() as connection:
        duck = connection.execute("SELECT * FROM orders").to_arrow_table()
    write_deltalake(str(folder), orders.scanner().to_reader(), mode="overwrite")
    return {
        "DuckDB": rows_of(duck),
        "Polars": sorted(polars.scan_pyarrow_dataset(orders).collect().rows(), key=repr),
        "delta-rs": engines.by_delta_rs(str(folder)),
    }


def times(table: str, since: int) -> dict[int, int]:
    """Return when each version from ``since`` on was committed."""
    told = lakeferry.Table(table).history()
    return {commit.version: commit.timestamp for commit in told if commit.version >= since}


def check_times(table: str, moments: Mapping[int, int]) -> None:
    """Check that the time of a version leads to that version."""
    for version, moment in moments.items():
        found, expected = (
            sorted(each.read_all().column("path").to_pylist())
            for each in (
                lakeferry.Table(table).files(timestamp_ms=moment),
                lakeferry.Table(table).files(version),
            )
        )
        assert found == expected, version


def check_rows(found: Rows, before: Rows, writer: SteadyWriter) -> None:
    """Check that a table has the rows of before, each acknowledged one once, and no refused one."""
    expected = [*(row[0] for row in before), *writer.acknowledged]
    assert sorted(row[0] for row in found) == sorted(expected)
    for refused in writer.refused.values():
        known = isinstance(refused, RedirectInProgress | CommitConflict)
        assert known or "io.delta" in str(refused) or "sql.delta" in str(refused), refused


@dataclass(frozen=True)
class Trip:
    """A table on its way, and who looks at it."""

    source: str
    name: str
    folder: Path
    sparks: Sparks | None

    @property
    def identifier(self) -> str:
        return ".".join(f"`{part}`" for part in self.name.removeprefix("unity:").split("."))

    def append(self, who: str) -> Callable[[int], None]:
        """Return how somebody appends a row by the old path."""
        if who == "Lakeferry":
            return partial(append_by_lakeferry, self.source)
        assert self.sparks is not None
        return partial(self.sparks.append, self.source)

    def check_others(self, expected: Versions) -> None:
        """Check what engines read through us that know neither redirects nor the catalog.

        They read the oldest version, one in the middle, and the newest.
        """
        known = sorted(expected)
        for version in (known[0], known[len(known) // 2], known[-1]):
            found = by_others(self.source, version, self.folder / "copy")
            assert found == dict.fromkeys(found, expected[version]), version

    def check_refused_others(self) -> None:
        """Check that no engine reads the place itself, where commits may be missing."""
        with pytest.raises(CatalogManaged):
            lakeferry.resolve(self.source)
        for read in (engines.by_delta_rs, engines.by_polars):
            with pytest.raises(Exception, match="redirectReaderWriter"):
                read(self.source)

    def check_spark_before(self, expected: Versions) -> None:
        """Check that delta-spark reads what we read, before anything has moved."""
        if self.sparks is not None:
            assert engines.by_spark_at(self.sparks.plain, self.source, expected) == expected

    def check_spark(self, expected: Versions, moments: Mapping[int, int]) -> None:
        """Check each version and each time by the old path, and versions by the name."""
        if self.sparks is None:
            return
        ours, plain = self.sparks.ours.read.format("delta"), self.sparks.plain
        by_path = {v: ours.option("versionAsOf", v).load(self.source) for v in expected}
        assert engines.of_frames(by_path) == expected
        by_name = {
            version: plain.sql(f"SELECT * FROM {self.identifier} VERSION AS OF {version}")
            for version in (min(expected), *moments)
        }
        assert engines.of_frames(by_name) == {version: expected[version] for version in by_name}
        ours = self.sparks.ours.read.format("delta")
        by_time = {
            version: ours.option("timestampAsOf", instant(moment)).load(self.source)
            for version, moment in moments.items()
        }
        assert engines.of_frames(by_time) == {version: expected[version] for version in moments}

    def change_by_spark(self, rows: Rows) -> Rows:
        """Insert by the name, delete by the old path; return the rows then."""
        if self.sparks is None:
            return rows
        gone, *kept = rows
        self.sparks.plain.sql(f"INSERT INTO {self.identifier} VALUES (900000, 'name', 'x:y')")
        self.sparks.ours.sql(f"DELETE FROM delta.`{self.source}` WHERE id = {gone[0]}")
        return sorted([*kept, (900_000, "name", "x:y")], key=repr)

    def check_spark_after(self, expected: Versions, between: range) -> None:
        """Check what delta-spark reads without the catalog. docs/managed.md says what it doesn't.

        The versions of the redirect have a feature that it doesn't know.
        """
        if self.sparks is None:
            return
        readable = {v: rows for v, rows in expected.items() if v not in between}
        assert engines.by_spark_at(self.sparks.plain, self.source, readable) == readable
        for version in (between[0], between[-1]):
            with pytest.raises(Exception, match="DELTA_UNSUPPORTED_FEATURES_FOR_READ"):
                engines.by_spark(self.sparks.plain, self.source, version)


def told(writer: SteadyWriter) -> str:
    """Return what a writer was told, in numbers."""
    refused = Counter(first_line(each) for each in writer.refused.values())
    return f"{len(writer.acknowledged)} rows acknowledged, refused: {dict(refused)}"


def first_line(error: Exception) -> str:
    """Return the line of an error that says what it is; Java's begins with the second one."""
    lines = str(error).splitlines()
    return f"{type(error).__name__} {lines[1] if lines[0].endswith('.') and lines[1:] else ''}"[
        :150
    ]


def instant(moment_ms: int) -> str:
    """Return a time as Spark spells it."""
    return datetime.fromtimestamp(moment_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")


@pytest.mark.parametrize("who", ["Lakeferry", *(["delta-spark"] if REAL else [])])
@pytest.mark.parametrize("past", PASTS)
def test_a_table_goes_into_the_catalog_and_back_while_rows_arrive(
    unity: UnityServer, sparks: Sparks | None, tmp_path: Path, past: str, who: str
) -> None:
    source = normalise(str(tmp_path / "orders"))
    PASTS[past].write(open_store(source), with_data=True)
    trip = Trip(source, f"unity:{unity.schema}.orders", tmp_path, sparks)
    before = versions(source)
    trip.check_spark_before(before)

    with Redirects() as redirects:
        with steadily(trip.append(who), 1_000_000, REST_S) as first:
            enabled = redirects.enable(source, trip.name, managed=True)
        assert enabled.state is RedirectState.READY
        opened = enabled.version
        assert opened is not None

        managed = versions(trip.name)
        assert before.items() <= managed.items()
        assert versions(source) == managed
        check_rows(newest(managed), newest(before), first)
        trip.check_others(managed)
        trip.check_refused_others()
        moments = times(source, opened - 1)
        check_times(source, moments)
        trip.check_spark(managed, moments)

        rows = trip.change_by_spark(newest(managed))
        with steadily(trip.append(who), 2_000_000, REST_S) as second:
            disabled = redirects.disable(source)
    assert disabled.state is RedirectState.NORMAL
    assert disabled.version is not None

    back = versions(source)
    assert managed.items() <= back.items()
    check_rows(newest(back), rows, second)
    trip.check_others(back)
    # The commits that were made by the name keep their times.
    later = times(source, opened + 1)
    assert {v: moment for v, moment in moments.items() if v > opened}.items() <= later.items()
    check_times(source, later)
    trip.check_spark_after(back, range(opened - 1, disabled.version))
    LOGGER.info(
        "%s, %s: on the way in %s; on the way back %s; versions: %d before, %d in the catalog, "
        "%d afterwards; %d times",
        *(past, who, told(first), told(second)),
        *(len(before), len(managed), len(back), len(moments)),
    )
