"""Logs cleaned up by delta-spark and by us, each after the other dropped a feature."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lakeferry import Table
from lakeferry.api.table import Cleaned
from lakeferry.storage import open_store
from lakeferry.table import DeltaLog
from tests.support import cleanup_rules, engines, opinions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.usefixtures("unsplit_plans")

INSERT = "INSERT INTO {t} SELECT id, 'x' FROM range(10)"
AGE_H = 6


def run(spark: SparkSession, location: str, statements: Iterable[str]) -> None:
    for statement in statements:
        spark.sql(statement.format(t=f"delta.`{location}`"))


def create(spark: SparkSession, location: str, properties: Mapping[str, str]) -> None:
    given = ", ".join(f"'{name}' = '{value}'" for name, value in properties.items())
    run(
        spark,
        location,
        [f"CREATE TABLE {{t}} (id BIGINT, s STRING) USING delta TBLPROPERTIES ({given})", INSERT],
    )


def newest_of(location: str) -> int:
    return DeltaLog(open_store(location)).segment().version


def set_ages(location: str, hours: Mapping[int, int]) -> None:
    """Make the log's files so many hours old, by their versions; sidecars are the oldest."""
    now = time.time()
    for file in Path(location, "_delta_log").rglob("*"):
        found = re.match(r"\.?(\d{20})\.", file.name)
        if found or file.parent.name == "_sidecars":
            age = hours[int(found[1])] if found else max(hours.values())
            os.utime(file, (now - age * 3_600,) * 2)


def log_of(location: str) -> cleanup_rules.Log:
    """Return what is in a log, and which sidecars its checkpoints name."""
    names = {
        str(file.relative_to(location)): int(file.stat().st_mtime * 1000)
        for file in Path(location, "_delta_log").rglob("*")
        if file.is_file() and not file.name.startswith((".", "_last"))
    }
    sidecars = {}
    for name in names:
        if re.search(r"\.checkpoint\.[0-9a-f-]{36}\.json$", name):
            rows = map(json.loads, Path(location, name).read_text().splitlines())
            found = {row["sidecar"]["path"] for row in rows if "sidecar" in row}
            sidecars[name] = frozenset(f"_delta_log/_sidecars/{path}" for path in found)
    return cleanup_rules.Log(names, sidecars)


def check_rules(before: cleanup_rules.Log, location: str, cut: int, boundary: int | None) -> None:
    """No rule of cleaning up was broken on the way from what was there to what is."""
    after = log_of(location).names
    at_ms = int(time.time() * 1000)
    assert not [*cleanup_rules.violations(before, after, after, cut, boundary, at_ms)]


@dataclass(frozen=True)
class Protected:
    """Two tables with equal histories and a boundary, and delta-spark's rows of each version."""

    dropped_by_us: str
    dropped_by_spark: str
    boundary: int
    rows: Mapping[int, engines.Rows]

    @property
    def newest(self) -> int:
        """The newest version of both."""
        return max(self.rows)


@pytest.fixture(scope="module")
def protected(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Protected:
    """Deletion vectors, checkpoints on the way, the feature dropped, and commits since."""
    folder = tmp_path_factory.mktemp("protected")
    ours, theirs = str(folder / "ours"), str(folder / "theirs")
    properties = {"delta.enableDeletionVectors": "true", "delta.checkpointInterval": "2"}
    create(spark, ours, properties)
    run(spark, ours, ["DELETE FROM {t} WHERE id = 3", INSERT])
    shutil.copytree(ours, theirs)
    Table(ours).drop_feature("deletionVectors", engine="local")
    run(spark, theirs, ["ALTER TABLE {t} DROP FEATURE deletionVectors"])
    boundary = newest_of(ours)
    assert newest_of(theirs) == boundary
    for location in (ours, theirs):
        run(spark, location, [INSERT, INSERT, INSERT])
    rows = engines.by_spark_at(spark, ours, range(newest_of(ours) + 1))
    return Protected(ours, theirs, boundary, rows)


def check_readable(
    spark: SparkSession, location: str, rows: Mapping[int, engines.Rows], first: int
) -> None:
    """delta-rs and we read every version from the first on as it was, delta-spark a few of them."""
    expected = {version: rows[version] for version in rows if version >= first}
    newest = max(expected)
    some = {version: rows[version] for version in {first, min(first + 1, newest), newest}}
    assert engines.by_spark_at(spark, location, some) == some
    assert {v: engines.by_delta_rs(location, v) for v in expected} == expected
    log = DeltaLog(open_store(location))
    theirs = opinions.delta_spark(spark, location, first)
    assert opinions.ours(log.snapshot(first), log.store.uri) == theirs
    for version in expected:
        assert log.snapshot(version).version == version


# The oldest version that isn't too old, where the boundary is 10. With a boundary, delta-spark
# cleans up only where a checkpoint is right there.
OLDEST = {"a little of": 2, "most of": 8, "all of": 10, "more than": 12}


@pytest.mark.parametrize("how_much", OLDEST)
def test_delta_spark_cleans_up_history_before_our_boundary(
    how_much: str, spark: SparkSession, protected: Protected, tmp_path: Path
) -> None:
    """When it makes a checkpoint it deletes what is too old, and what stays can be read."""
    location = str(tmp_path / "table")
    shutil.copytree(protected.dropped_by_us, location)
    oldest = OLDEST[how_much]
    set_ages(location, {v: 960 if v < oldest else 0 for v in range(protected.newest + 1)})
    before = log_of(location)

    retention = ", ".join(
        f"'delta.{name}Duration' = 'interval 2 days'"
        for name in ("logRetention", "deletedFileRetention")
    )
    run(spark, location, [f"ALTER TABLE {{t}} SET TBLPROPERTIES ({retention})"])

    after = log_of(location).names
    assert min(cleanup_rules.commits(after)) == oldest
    # Where it supports every version that goes, it lets protected checkpoints go with them.
    check_rules(before, location, oldest, None)
    assert min(cleanup_rules.checkpoint_versions(after)) == oldest
    check_readable(spark, location, protected.rows, oldest)
    assert Table(location).inspect().earliest_version == oldest
    assert engines.by_delta_rs(location) == protected.rows[protected.newest]


@pytest.mark.parametrize("where", ["below", "at", "above"])
@pytest.mark.parametrize("how", ["before", "retention"])
def test_we_clean_up_behind_the_boundary_of_delta_spark(
    how: str, where: str, spark: SparkSession, protected: Protected, tmp_path: Path
) -> None:
    """Checkpoints before it stay, unless all history before it goes; Spark goes on."""
    location = str(tmp_path / "table")
    shutil.copytree(protected.dropped_by_spark, location)
    boundary, newest = protected.boundary, protected.newest
    set_ages(location, {v: AGE_H * (newest - v) for v in range(newest + 1)})
    before = log_of(location)
    cut = boundary + {"below": -7, "at": 0, "above": 1}[where]

    if how == "before":
        done = Table(location).cleanup(before=cut)
    else:
        done = Table(location).cleanup(retention=f"{AGE_H * (newest - cut)}h", force=True)

    assert isinstance(done, Cleaned)
    after = log_of(location)
    check_rules(before, location, cut, boundary)
    assert not [*cleanup_rules.leftovers(before, after.names)]
    # By age it isn't asked to begin anywhere, and takes the checkpoint that there is.
    first = cut if how == "before" else {"below": 2, "at": boundary, "above": boundary}[where]
    assert min(cleanup_rules.commits(after.names)) == first
    early = {v for v in cleanup_rules.checkpoint_versions(before.names) if v < boundary}
    stayed = {v for v in cleanup_rules.checkpoint_versions(after.names) if v < boundary}
    assert len(early) > 3
    assert stayed == (early | {first} if where == "below" else set())
    check_readable(spark, location, protected.rows, first)
    run(spark, location, [INSERT])
    assert len(engines.by_delta_rs(location)) == len(protected.rows[newest]) + 10


def test_old_sidecars_go_with_the_checkpoints_that_named_them(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Those that a checkpoint names stay however old they are, and young ones anyhow."""
    location = str(tmp_path / "table")
    create(spark, location, {"delta.checkpointPolicy": "v2", "delta.checkpointInterval": "1"})
    run(spark, location, [INSERT, "DELETE FROM {t} WHERE id = 3", INSERT])
    rows = engines.by_spark_at(spark, location, range(5))
    set_ages(location, dict.fromkeys(rows, 48))
    folder = Path(location, "_delta_log", "_sidecars")
    young = folder / "00000000-0000-4000-8000-000000000000.parquet"
    shutil.copyfile(next(folder.glob("*.parquet")), young)
    before = log_of(location)
    assert len(before.sidecars) >= 4

    Table(location).cleanup(before=3)

    check_rules(before, location, 3, None)
    after = log_of(location)
    named = {name for found in after.sidecars.values() for name in found}
    assert named
    there = {name for name in after.names if name.startswith("_delta_log/_sidecars/")}
    assert there == named | {str(young.relative_to(location))}
    assert len(there) < len(before.sidecars)
    check_readable(spark, location, rows, 3)
    run(spark, location, [INSERT])
    assert len(engines.by_delta_rs(location)) == len(rows[4]) + 10
