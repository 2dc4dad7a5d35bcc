"""Other engines read what was pushed, exported or brought back from a managed table, and write."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import lakeferry
from lakeferry.storage import normalise
from tests.support import engines
from tests.support.history import Append, Checkpoint, DeleteRows, History, Layout
from tests.support.moved_table import moved_table
from tests.support.unity_server import UnityServer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# The history is of a time that delta-spark reads only if it is told to keep it.
KEEP = (("delta.deletedFileRetentionDuration", "interval 10000 days"),)
PAST = History(Layout(deletion_vectors="u", properties=KEEP)).then(
    Append(2), DeleteRows(1), Checkpoint(), Append(1), DeleteRows(1)
)


def versions_of(table: str) -> dict[int, engines.Rows]:
    """Return the rows of each version, as we read them."""
    found = {}
    for version in range(lakeferry.Table(table).snapshot().version + 1):
        rows = lakeferry.open(table, version=version).to_table().to_pylist()
        found[version] = sorted((tuple(row.values()) for row in rows), key=repr)
    return found


def test_engines_without_the_catalog_read_every_version_and_write(
    spark: SparkSession, unity: UnityServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unity.name_in(monkeypatch)
    moved = moved_table(unity, tmp_path / "orders", PAST)
    expected = versions_of(moved.name)
    pulled, exported = (normalise(str(tmp_path / each)) for each in ("pulled", "exported"))
    root = str(tmp_path / "root")
    with lakeferry.Server(root) as server:
        token, url = lakeferry.create_token(root, scope="write"), f"{server.url}/acme/orders"
        lakeferry.Table(moved.source).push(url, token=token, engine="local")
        lakeferry.Table(pulled).pull(url, token=token, engine="local")
    lakeferry.Table(moved.source).export(exported, engine="local")

    newest = max(expected)
    assert {version: engines.by_delta_rs(pulled, version) for version in expected} == expected
    # delta-spark takes a second for each: before and after the table became a managed one.
    some = [newest - 4, newest - 1, newest]
    found = engines.by_spark_at(spark, pulled, some)
    assert found == {version: expected[version] for version in some}
    assert engines.by_spark(spark, exported) == expected[newest]
    assert engines.by_delta_rs(exported) == expected[newest]

    # delta-spark accepts what is left of the protocol for its own commits, too.
    spark.sql(f"DELETE FROM delta.`{pulled}` WHERE id IS NOT NULL")
    assert lakeferry.Table(pulled).snapshot().version == newest + 1
    assert engines.by_delta_rs(pulled) == []
    protocol = lakeferry.Table(pulled).snapshot().protocol
    assert "catalogManaged" not in protocol.features


def test_delta_spark_reads_each_version_after_a_way_back_from_a_writer_only_move(
    spark: SparkSession, unity: UnityServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("UC_TOKEN", raising=False)
    for variable, value in unity.environment().items():
        monkeypatch.setenv(variable, value)
    moved = moved_table(unity, tmp_path / "orders", PAST, mode="writer-only")
    lakeferry.Table(moved.source).redirect_disable()
    expected = versions_of(moved.source)
    assert engines.by_spark_at(spark, moved.source, expected) == expected
