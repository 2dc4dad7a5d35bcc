"""What a line of the matrix answers about a protocol."""

from __future__ import annotations

import pytest

from lakeferry.clients.client_lines import ClientLine, reader_features
from lakeferry.clients.verdicts import Ability
from lakeferry.log.actions import Protocol
from lakeferry.log.commit_writer import CommitWriter, KnownWriter

LINE = ClientLine(
    "client",
    "1.2",
    "a test",
    KnownWriter.DELTA_RS,
    (1, 2, 0),
    (1, 3, 0),
    reads=frozenset({"timestampNtz"}),
    writes=frozenset({"timestampNtz", "appendOnly"}),
    partly_reads={"deletionVectors": "one call reads it"},
)


def features(*names: str, writers: tuple[str, ...] = ()) -> Protocol:
    return Protocol(3, 7, names, (*names, *writers))


@pytest.mark.parametrize(
    ("protocol", "reads", "writes"),
    [
        (Protocol(1, 1), Ability.YES, Ability.YES),
        (Protocol(1, 7, None, ("appendOnly",)), Ability.YES, Ability.YES),
        (Protocol(1, 7, None, ("new",)), Ability.YES, Ability.NO),
        (features("timestampNtz"), Ability.YES, Ability.YES),
        (features("new"), Ability.NO, Ability.NO),
        (features("deletionVectors", "timestampNtz"), Ability.PARTLY, Ability.NO),
        (Protocol(4, 7, ("timestampNtz",), ("timestampNtz",)), Ability.NO, Ability.NO),
        (Protocol(1, 8), Ability.YES, Ability.NO),
    ],
)
def test_all_features_of_a_protocol_decide(
    protocol: Protocol, reads: Ability, writes: Ability
) -> None:
    assert LINE.reads_protocol(protocol).ability is reads
    assert LINE.writes_protocol(protocol).ability is writes


def test_what_decides_is_named() -> None:
    assert LINE.reads_protocol(features("new", "newer")).because == ("new", "newer")
    assert LINE.reads_protocol(features("deletionVectors")).note == "one call reads it"
    assert LINE.reads_protocol(Protocol(4, 7)).because == ("minReaderVersion=4",)


@pytest.mark.parametrize(
    ("protocol", "expected"),
    [
        (Protocol(1, 2), ()),
        (Protocol(1, 7, None, ("columnMapping",)), ()),
        (Protocol(2, 5), ("columnMapping",)),
        (Protocol(2, 7, None, ("columnMapping",)), ("columnMapping",)),
        (features("deletionVectors", writers=("appendOnly",)), ("deletionVectors",)),
        (Protocol(3, 7, ("unheardOf",), ("unheardOf",)), ("unheardOf",)),
    ],
)
def test_readers_must_know_what_is_listed_for_them_or_implied(
    protocol: Protocol, expected: tuple[str, ...]
) -> None:
    assert reader_features(protocol) == expected


def test_an_incomplete_line_does_not_know_what_it_does_not_name() -> None:
    line = ClientLine("client", "9", "nothing", writes=frozenset({"appendOnly"}), complete=False)
    assert line.reads_protocol(features("new")).ability is Ability.UNKNOWN
    assert line.writes_protocol(Protocol(1, 7, None, ("new",))).ability is Ability.UNKNOWN
    assert line.reads_protocol(Protocol(9, 9)).ability is Ability.YES
    assert line.reads_protocol(Protocol(1, 7, None, ("new",))).ability is Ability.YES


@pytest.mark.parametrize(
    ("version", "expected"),
    [("1.2.0", True), ("1.2.9", True), ("1.3.0", False), ("1.2.0-vendor", False), (None, False)],
)
def test_a_line_is_about_its_releases(version: str | None, expected: bool) -> None:
    assert LINE.is_about(CommitWriter("x", KnownWriter.DELTA_RS, version)) is expected
    assert not LINE.is_about(CommitWriter("x", KnownWriter.TRINO, version))
