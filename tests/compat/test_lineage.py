"""What delta-spark does to a table that has moved: it stays the table that moved."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

import lakeferry
from lakeferry.api.redirects import Redirects
from lakeferry.log import paths
from lakeferry.redirect.states import RedirectState
from lakeferry.storage import open_store
from lakeferry.table import DeltaLog


def test_replace_restore_and_expiring_transactions_are_legitimate(
    spark: SparkSession, tmp_path: Path
) -> None:
    source, target = tmp_path / "old", tmp_path / "new"
    spark.range(5).write.format("delta").save(str(source))
    with Redirects(engine="local") as moves:
        ready = moves.enable(str(source), str(target)).version
    assert ready is not None
    log = DeltaLog(open_store(str(target)))
    before = log.state().metadata.id
    spark.range(3).write.format("delta").mode("append").save(str(target))
    # CREATE OR REPLACE of a path that isn't in the session's catalog is refused.
    spark.createDataFrame([("z",)], "name STRING").writeTo(f"delta.`{target}`").tableProperty(
        "delta.setTransactionRetentionDuration", "interval 1 milliseconds"
    ).tableProperty("delta.checkpointInterval", "1").using("delta").createOrReplace()
    assert log.state().metadata.id != before
    spark.sql(f"INSERT INTO delta.`{target}` VALUES ('a'), ('b')")
    spark.sql(f"RESTORE TABLE delta.`{target}` TO VERSION AS OF {log.state().version - 1}")
    spark.sql(f"INSERT INTO delta.`{target}` VALUES ('c')")
    newest = log.state().version
    assert log.hint() is not None
    for version in range(newest):
        for file in (target / paths.LOG_DIR).glob(f"{version:020d}.*"):
            file.unlink()
    assert lakeferry.resolve(str(source)) == target.as_uri()
    rows = lakeferry.open(str(source)).to_table()["name"].to_pylist()
    assert sorted(rows) == ["c", "z"]
    with Redirects(engine="local") as moves:
        assert moves.status(str(source)).warnings == ()
        assert moves.disable(str(source)).state is RedirectState.NORMAL
    home = spark.read.format("delta").load(str(source)).collect()
    assert sorted(row["name"] for row in home) == ["c", "z"]
