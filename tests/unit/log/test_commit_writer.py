"""Which client wrote a commit. The texts are those that the clients write."""

from __future__ import annotations

from typing import Any

import pytest

from lakeferry.log.commit_writer import CommitWriter, KnownWriter, commit_writer

SPARK = "Apache-Spark/3.5.9 Delta-Lake/3.3.3"
FABRIC = "Apache-Spark/3.4.3.5.3.20250511.1 Delta-Lake/2.4.0.24"
FLINK = "flink-engine/1.16.1 flink-delta-connector/3.0.0"


@pytest.mark.parametrize(
    ("info", "kind", "version"),
    [
        ({"engineInfo": "Lakeferry/0.2.0"}, KnownWriter.LAKEFERRY, "0.2.0"),
        ({"engineInfo": SPARK}, KnownWriter.DELTA_SPARK, "3.3.3"),
        ({"engineInfo": FABRIC}, KnownWriter.DELTA_SPARK, "2.4.0.24"),
        (
            {"engineInfo": "Databricks-Runtime/15.4.x-scala2.12"},
            KnownWriter.DATABRICKS,
            "15.4.x-scala2.12",
        ),
        ({"engineInfo": "Databricks-Runtime/<unknown>"}, KnownWriter.DATABRICKS, "<unknown>"),
        (
            {"engineInfo": "delta-rs:py-1.6.6", "clientVersion": "delta-rs.py-1.6.6"},
            KnownWriter.DELTA_RS,
            "1.6.6",
        ),
        ({"engineInfo": "delta-rs:0.32.1"}, KnownWriter.DELTA_RS, "0.32.1"),
        ({"engineInfo": "DuckDB", "kernelVersion": "v0.21.0"}, KnownWriter.DUCKDB, None),
        ({"engineInfo": FLINK}, KnownWriter.FLINK, "3.0.0"),
        ({"engineInfo": "Kernel-4.1.0/DeltaSink"}, KnownWriter.FLINK, "4.1.0"),
        ({"engineInfo": f"Kernel-4.4.0/{SPARK}"}, KnownWriter.KERNEL, "4.4.0"),
        (
            {"engineInfo": "pulsar-sink-connector-version-2.9.1 Delta-Standalone/0.3.0"},
            KnownWriter.STANDALONE,
            "0.3.0",
        ),
    ],
)
def test_a_client_is_recognized_by_its_own_text(
    info: dict[str, Any], kind: KnownWriter, version: str | None
) -> None:
    assert commit_writer(info) == CommitWriter(info["engineInfo"], kind, version)


def test_delta_rs_before_it_stated_an_engine_is_recognized_by_its_version() -> None:
    old = commit_writer({"clientVersion": "delta-rs.py-0.25.5"})
    assert old == CommitWriter("delta-rs.py-0.25.5", KnownWriter.DELTA_RS, "0.25.5")


def test_an_application_on_delta_rs_is_recognized_by_the_version_beside_its_own_text() -> None:
    found = commit_writer({"engineInfo": "loader/1", "clientVersion": "delta-rs.0.21.0"})
    assert (found.kind, found.version) == (KnownWriter.DELTA_RS, "0.21.0")


def test_the_nodes_of_a_trino_cluster_are_one_client() -> None:
    found = {commit_writer({"clusterId": f"trino-435-node-{n}"}) for n in range(3)}
    assert found == {CommitWriter("trino-435", KnownWriter.TRINO, "435")}


def test_the_cluster_of_databricks_is_not_a_client() -> None:
    assert commit_writer({"clusterId": "0720-061852-wd0b5onj"}) == CommitWriter(None)


def test_an_unknown_client_is_named_by_its_own_text() -> None:
    assert commit_writer({"engineInfo": "loader/1.2"}) == CommitWriter("loader/1.2")


@pytest.mark.parametrize("value", [None, 7, "", "  ", {"a": 1}, []])
def test_a_client_that_states_no_text_has_no_name(value: object) -> None:
    assert commit_writer({"engineInfo": value}) == CommitWriter(None)


def test_a_long_text_is_shortened_to_one_line() -> None:
    name = commit_writer({"engineInfo": "a\nb\t" + "c" * 1_000_000}).name
    assert name is not None
    assert name.startswith("a b c")
    assert len(name) == 120


@pytest.mark.parametrize(
    ("version", "release"),
    [
        ("3.3.3", (3, 3, 3)),
        ("2.4.0.24", None),
        ("4.4.0-SNAPSHOT", None),
        ("15.4.x-scala2.12", None),
        ("", None),
        (None, None),
    ],
)
def test_only_a_released_version_has_numbers(
    version: str | None, release: tuple[int, int, int] | None
) -> None:
    assert CommitWriter("x", KnownWriter.DELTA_SPARK, version).release == release
