"""Which clients read a version, by its protocol."""

from __future__ import annotations

import pytest

from lakeferry.clients.readability import ReadableRow, readable_by
from lakeferry.clients.verdicts import Ability
from lakeferry.log.actions import Protocol

VECTORS = Protocol(3, 7, ("deletionVectors",), ("deletionVectors", "checkpointProtection"))


def row(protocol: Protocol, client: str, versions: str) -> ReadableRow:
    (found,) = (
        each for each in readable_by(protocol) if (each.client, each.versions) == (client, versions)
    )
    return found


@pytest.mark.parametrize(
    ("client", "versions", "reads", "writes"),
    [
        ("Lakeferry", "0.2.0", Ability.YES, Ability.YES),
        ("delta-spark", "3.2", Ability.YES, Ability.NO),
        ("delta-spark", "3.3", Ability.YES, Ability.YES),
        ("delta-rs", "1.6.6", Ability.PARTLY, Ability.NO),
        ("Polars", "2.1", Ability.YES, Ability.NO),
        ("Trino", "454 to 483", Ability.YES, Ability.NO),
        ("Delta Standalone", "all", Ability.NO, Ability.NO),
    ],
)
def test_each_client_has_a_row(client: str, versions: str, reads: Ability, writes: Ability) -> None:
    found = row(VECTORS, client, versions)
    assert (found.reads, found.writes) == (reads, writes)
    assert found.source


def test_a_row_names_what_is_in_the_way() -> None:
    found = row(VECTORS, "Trino", "454 to 483")
    assert found.because == ("checkpointProtection",)
    assert found.as_document()["because"] == ["checkpointProtection"]
    assert "QueryBuilder" in row(VECTORS, "delta-rs", "1.6.6").note


def test_a_feature_that_nobody_knows_is_read_by_nobody() -> None:
    rows = readable_by(Protocol(3, 7, ("unheardOf",), ("unheardOf",)))
    assert {each.reads for each in rows} == {Ability.NO, Ability.UNKNOWN}


def test_everybody_reads_the_oldest_protocol() -> None:
    assert {each.reads for each in readable_by(Protocol(1, 2))} == {Ability.YES}
    assert {each.writes for each in readable_by(Protocol(1, 2))} <= {Ability.YES, Ability.PARTLY}
