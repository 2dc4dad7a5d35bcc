"""The matrix of clients is consistent, and says of each cell how it is known."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest

from lakeferry.clients.client_lines import ClientLine, RedirectSupport
from lakeferry.clients.known_lines import KNOWN_LINES, client_lines_of, line_of_writer
from lakeferry.clients.verdicts import Ability
from lakeferry.log.actions import Protocol
from lakeferry.log.commit_writer import CommitWriter, KnownWriter
from lakeferry.log.features import FEATURES, FeatureKind
from tests.matrix.cells import read_runs

ROOT = Path(__file__).parents[3]
NAMES = [f"{line.client} {line.versions}" for line in KNOWN_LINES]
VERSIONED = re.compile(r"v?\d+(\.\d+)*")


@pytest.mark.parametrize("line", KNOWN_LINES, ids=NAMES)
def test_a_line_names_features_of_the_registry(line: ClientLine) -> None:
    named = {*line.reads, *line.writes, *line.partly_reads, *line.partly_writes}
    assert named <= set(FEATURES)
    for name in (*line.reads, *line.partly_reads):
        assert FEATURES[name].kind is FeatureKind.READER_WRITER


@pytest.mark.parametrize("line", KNOWN_LINES, ids=NAMES)
def test_every_source_is_a_test_or_a_file_with_its_version(line: ClientLine) -> None:
    for source in (line.source, line.redirects_source):
        for part in source.split("; "):
            path, _, anchor = part.partition("#")
            if part.startswith("the protocol:"):
                continue
            if part.startswith(("tests/", "docs/", "src/")):
                text = (ROOT / path).read_text(encoding="utf-8")
                assert not anchor or f"## {anchor.replace('-', ' ')}" in text.lower()
            else:
                repository, _, rest = part.partition(" ")
                assert repository.count("/") == 1
                assert VERSIONED.search(rest.partition(":")[0])


def test_names_are_those_of_one_line() -> None:
    assert len(set(NAMES)) == len(NAMES)


def test_no_two_lines_are_about_one_release() -> None:
    numbers = [f"{x}.{y}.{z}" for x in range(1, 6) for y in range(8) for z in (0, 1, 3, 6)]
    for kind, version in itertools.product(KnownWriter, [*numbers, "430", "460", "483"]):
        writer = CommitWriter("x", kind, version)
        assert sum(line.is_about(writer) for line in KNOWN_LINES) <= 1


RUNS = {run.delta: run for run in read_runs() if run.delta is not None}


@pytest.mark.parametrize("delta", RUNS)
def test_delta_spark_knows_what_its_own_check_said(delta: str) -> None:
    """What ``make matrix`` has found; the newest and the oldest are asked by every test run."""
    run = RUNS[delta]
    (line,) = client_lines_of("delta-spark", delta)
    said = [name for name in FEATURES if line.writing(name).ability is not Ability.NO]
    assert sorted(said) == list(run.writes)
    readers = [name for name in said if FEATURES[name].kind is FeatureKind.READER_WRITER]
    assert sorted(readers) == sorted(
        name for name in run.reads if FEATURES[name].kind is FeatureKind.READER_WRITER
    )


@pytest.mark.parametrize(
    ("client", "version", "expected"),
    [
        ("delta-spark", "4.0.1", ["4.0.1"]),
        ("Delta-Spark", "3.3.3", ["3.3"]),
        ("Trino", "470", ["454 to 483"]),
        ("Trino", "9999", []),
        ("DuckDB", "1.5.5", ["1.5.5"]),
        ("delta-spark", "4.4.0-vendor", []),
        ("nobody", "1.0.0", []),
    ],
)
def test_lines_are_found_by_name_and_version(
    client: str, version: str, expected: list[str]
) -> None:
    assert [line.versions for line in client_lines_of(client, version)] == expected


@pytest.mark.parametrize(
    "writer",
    [
        CommitWriter("Apache-Spark/5 Delta-Lake/9.0.0", KnownWriter.DELTA_SPARK, "9.0.0"),
        CommitWriter("… 4.4.0-amzn-1", KnownWriter.DELTA_SPARK, "4.4.0-amzn-1"),
        CommitWriter("Databricks-Runtime/17.3", KnownWriter.DATABRICKS, "17.3"),
        CommitWriter("loader/1"),
        CommitWriter(None),
    ],
)
def test_of_an_unknown_client_or_version_nothing_is_claimed(writer: CommitWriter) -> None:
    line = line_of_writer(writer)
    future = Protocol(3, 7, ("deletionVectors",), ("deletionVectors",))
    assert line.reads_protocol(future).ability is Ability.UNKNOWN
    assert line.reads_protocol(Protocol(1, 2)).ability is Ability.YES
    assert line.redirects is RedirectSupport.UNKNOWN


def test_a_release_that_is_older_than_redirects_knows_none() -> None:
    old = CommitWriter("delta-rs:0.1.0", KnownWriter.DELTA_RS, "0.1.0")
    assert line_of_writer(old).redirects is RedirectSupport.NONE


def test_only_lakeferry_knows_a_redirect_by_its_feature() -> None:
    """So what a redirect does to all others follows from the protocol."""
    redirects = [name for name in FEATURES if name.startswith("redirect")]
    for line in KNOWN_LINES:
        answers = {line.writing(name).ability for name in redirects}
        wanted = Ability.YES if line.client == "Lakeferry" else Ability.NO
        assert answers == {wanted if line.complete else Ability.UNKNOWN}
