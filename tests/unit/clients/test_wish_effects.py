"""What a change means for clients: cases that no engine has to be asked for."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from lakeferry.clients.verdicts import Ability
from lakeferry.clients.wish_effects import (
    INSTALL,
    ClientEffects,
    MoveWish,
    ProtocolRange,
    ProtocolWish,
    ShareWish,
    TableClients,
    client_effects,
    protocol_of,
)
from lakeferry.log.actions import Protocol
from lakeferry.log.commit_writer import CommitWriter, KnownWriter
from lakeferry.redirect.entry import Data, Dialect, Mode

PLAIN = Protocol(1, 2)
VECTORS = Protocol(3, 7, ("deletionVectors",), ("deletionVectors",))
PROTECTED = Protocol(1, 7, None, ("checkpointProtection",))
BOTH = (Dialect.RFC, Dialect.DELTA_SPARK)
LOCKED, LEFT = MoveWish(Mode.READER_WRITER, BOTH), MoveWish(Mode.WRITER_ONLY, BOTH)
RANGES = (ProtocolRange(3, 9, PLAIN), ProtocolRange(10, 12, VECTORS))
DELTA_RS = CommitWriter("delta-rs:py-1.6.6", KnownWriter.DELTA_RS, "1.6.6")
SPARK_3_3 = CommitWriter("… Delta-Lake/3.3.3", KnownWriter.DELTA_SPARK, "3.3.3")
FUTURE = CommitWriter("… Delta-Lake/9.0.0", KnownWriter.DELTA_SPARK, "9.0.0")
ODD = CommitWriter("¯\\_(ツ)_/¯")


def row(found: Sequence[ClientEffects], name: str, version: str | None = None) -> ClientEffects:
    (each,) = (each for each in found if each.name == name and version in (None, each.version))
    return each


def of_writer(writer: CommitWriter, wish: object, protocol: Protocol = PLAIN) -> ClientEffects:
    table = TableClients(protocol, RANGES, ((writer, 5),))
    (found,) = client_effects(table, wish, known=False)  # type: ignore[arg-type]
    return found


def test_writers_come_first_with_their_commits_and_every_known_client_follows() -> None:
    found = client_effects(TableClients(PLAIN, (), ((DELTA_RS, 7), (ODD, 1))), LOCKED)
    assert [(each.name, each.commits) for each in found[:2]] == [
        ("delta-rs:py-1.6.6", 7),
        (ODD.name, 1),
    ]
    assert all(each.commits is None for each in found[2:])
    assert row(found, "delta-spark", "4.4").breaks is True
    assert row(found, "Lakeferry").breaks is False
    assert row(found, INSTALL).breaks is False
    assert all(each.source for each in found)


@pytest.mark.parametrize(("wish", "after"), [(LOCKED, "neither"), (LEFT, "reads the frozen copy")])
def test_a_move_breaks_a_client_that_does_not_follow(wish: MoveWish, after: str) -> None:
    found = of_writer(DELTA_RS, wish)
    assert found.before == "reads and writes"
    assert "writers wait" in found.during
    assert found.after.startswith(after)
    assert found.breaks is True


def test_an_option_that_follows_is_named() -> None:
    newest = CommitWriter("x", KnownWriter.DELTA_SPARK, "4.4.0")
    assert "unless spark.databricks" in of_writer(newest, LEFT).after
    assert "unless" not in of_writer(SPARK_3_3, LEFT).after
    rfc = MoveWish(Mode.WRITER_ONLY, (Dialect.RFC,))
    assert "unless" not in of_writer(newest, rfc).after


@pytest.mark.parametrize("writer", [FUTURE, ODD, CommitWriter(None)])
def test_of_unknown_writers_it_is_said_that_nothing_is_known(writer: CommitWriter) -> None:
    found = of_writer(writer, LEFT)
    assert found.breaks is None
    assert "unless it knows redirects" in found.after
    assert of_writer(writer, LOCKED, VECTORS).before.startswith("unknown whether it reads")


def test_a_client_that_could_do_nothing_before_loses_nothing() -> None:
    table = Protocol(3, 7, ("unheardOf",), ("unheardOf",))
    found = of_writer(DELTA_RS, LOCKED, table)
    assert found.before == "neither reads nor writes (unheardOf)"
    assert found.breaks is False


def test_versions_before_a_move_are_read_by_those_who_look_at_one_version_only() -> None:
    table = TableClients(PLAIN, RANGES)
    found = client_effects(table, LOCKED)
    spark = row(found, "delta-spark", "4.4").versions
    assert [(each.first, each.last, each.reads) for each in spark] == [(3, 12, Ability.NO)]
    polars = row(found, "Polars").versions
    assert [(each.first, each.last, each.reads) for each in polars] == [(3, 12, Ability.YES)]
    trino = row(found, "Trino", "454 to 483").versions
    assert [each.reads for each in trino] == [Ability.UNKNOWN]


def test_a_target_by_reference_serves_no_client_that_needs_relative_paths() -> None:
    wish = MoveWish(Mode.WRITER_ONLY, BOTH, data=Data.REFERENCE)
    assert "can't use the new path" in of_writer(DELTA_RS, wish).after
    assert "by the new path: reads and writes" in of_writer(SPARK_3_3, wish).after


def test_a_managed_target_is_opened_by_its_name() -> None:
    wish = MoveWish(Mode.READER_WRITER, (Dialect.RFC,), managed=True)
    found = client_effects(TableClients(PLAIN), wish)
    assert "by its name" in row(found, "delta-spark", "4.4").after
    assert "doesn't open managed tables" in row(found, "delta-spark", "3.3").after
    assert row(found, "Lakeferry").breaks is False
    assert row(found, INSTALL).breaks is True


def test_a_drop_lets_others_read_and_locks_out_writers() -> None:
    found = client_effects(TableClients(VECTORS, RANGES), ProtocolWish(PROTECTED))
    standalone = row(found, "Delta Standalone")
    assert standalone.before.startswith("neither reads nor writes")
    assert standalone.after.startswith("reads; doesn't write")
    assert "can't read the old versions 10 to 12 (minReaderVersion=3)" in standalone.after
    assert standalone.breaks is False
    rust = row(found, "delta-rs", "1.6.6")
    assert rust.breaks is True
    assert rust.after.startswith("reads; doesn't write (checkpointProtection)")
    assert row(found, "delta-spark", "4.4").breaks is False


def test_history_that_is_truncated_is_not_spoken_of() -> None:
    wish = ProtocolWish(PLAIN, keeps_history=False)
    found = client_effects(TableClients(VECTORS, RANGES), wish)
    assert all(each.versions == () for each in found)
    assert not any("history" in each.after for each in found)


def test_versions_that_were_not_looked_up_are_unknown() -> None:
    table = TableClients(VECTORS, (ProtocolRange(0, 4, None), ProtocolRange(5, 9, VECTORS)))
    (found,) = (
        each
        for each in client_effects(table, ProtocolWish(PROTECTED))
        if (each.name, each.version) == ("Trino", "427 to 443")
    )
    assert [each.reads for each in found.versions] == [Ability.UNKNOWN, Ability.YES]


def test_nobody_loses_a_table_that_is_shared() -> None:
    found = client_effects(TableClients(VECTORS, RANGES), ShareWish())
    assert {each.breaks for each in found} == {False}
    assert "the copy: doesn't read" in row(found, "Delta Standalone").after


def test_a_protocol_is_made_of_the_features_that_were_recorded() -> None:
    assert protocol_of(["appendOnly", "invariants"]) == Protocol(
        1, 7, None, ("appendOnly", "invariants")
    )
    assert protocol_of(["deletionVectors"]) == VECTORS
    assert protocol_of([]) == Protocol(1, 1)
