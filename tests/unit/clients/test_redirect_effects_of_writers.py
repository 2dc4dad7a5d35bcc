"""What a redirect does to the clients that wrote a table."""

from __future__ import annotations

import pytest

from lakeferry.clients.client_lines import OPTION, PROTOCOL_TEXT
from lakeferry.clients.redirect_effects import Effect, effect_on
from lakeferry.log.commit_writer import CommitWriter, KnownWriter
from lakeferry.redirect.entry import Dialect, Mode

BOTH = (Dialect.RFC, Dialect.DELTA_SPARK)
LAKEFERRY = CommitWriter("Lakeferry/0.2.0", KnownWriter.LAKEFERRY, "0.2.0")
DATABRICKS = CommitWriter("Databricks-Runtime/15.4.x", KnownWriter.DATABRICKS, "15.4.x")
LOADER = CommitWriter("loader/1")


def spark(version: str) -> CommitWriter:
    return CommitWriter(f"Delta-Lake/{version}", KnownWriter.DELTA_SPARK, version)


@pytest.mark.parametrize("version", ["3.3.0", "3.3.3"])
def test_delta_3_3_reads_the_frozen_copy_whatever_its_option_says(version: str) -> None:
    found = effect_on(spark(version), Mode.WRITER_ONLY, BOTH)
    assert (found.reads, found.writes, found.unless) == (Effect.FROZEN, Effect.BLOCKED, None)
    assert found.sentence == (
        "in writer-only mode it will read the frozen copy and its option doesn't follow"
    )


@pytest.mark.parametrize("version", ["4.0.1", "4.1.0", "4.2.0", "4.4.0"])
def test_delta_4_follows_with_its_option(version: str) -> None:
    found = effect_on(spark(version), Mode.WRITER_ONLY, BOTH)
    assert (found.reads, found.unless) == (Effect.FROZEN, OPTION)


def test_delta_4_does_not_follow_an_entry_in_another_dialect() -> None:
    found = effect_on(spark("4.4.0"), Mode.WRITER_ONLY, (Dialect.RFC,))
    assert found.unless is None
    assert "its option doesn't follow" in found.sentence


@pytest.mark.parametrize("version", ["2.4.0", "3.2.1"])
def test_delta_before_3_3_has_no_option(version: str) -> None:
    found = effect_on(spark(version), Mode.WRITER_ONLY, BOTH)
    assert (found.reads, found.unless) == (Effect.FROZEN, None)
    assert "option" not in found.sentence


@pytest.mark.parametrize(
    "writer",
    [spark("4.9.0"), spark("5.0.0"), spark("3.2.0.24"), spark("4.4.0-amzn-1"), DATABRICKS, LOADER],
)
def test_a_version_that_was_not_tested_is_said_to_be_untested(writer: CommitWriter) -> None:
    found = effect_on(writer, Mode.WRITER_ONLY, BOTH)
    assert (found.reads, found.proof) == (Effect.FROZEN, PROTOCOL_TEXT)
    assert "wasn't tested" in found.sentence


@pytest.mark.parametrize("kind", [kind for kind in KnownWriter if kind is not LAKEFERRY.kind])
def test_a_reader_writer_redirect_blocks_every_other_client(kind: KnownWriter) -> None:
    found = effect_on(CommitWriter("x", kind, "4.4.0"), Mode.READER_WRITER, BOTH)
    assert (found.reads, found.writes) == (Effect.BLOCKED, Effect.BLOCKED)


@pytest.mark.parametrize("mode", Mode)
def test_lakeferry_follows(mode: Mode) -> None:
    found = effect_on(LAKEFERRY, mode, (Dialect.RFC,))
    assert (found.reads, found.writes) == (Effect.FOLLOWS, Effect.FOLLOWS)


def test_who_reads_old_rows_is_named_before_who_is_refused() -> None:
    ranks = [
        effect_on(spark("3.3.3"), Mode.WRITER_ONLY, BOTH).rank,
        effect_on(spark("4.4.0"), Mode.WRITER_ONLY, BOTH).rank,
        effect_on(spark("3.3.3"), Mode.READER_WRITER, BOTH).rank,
        effect_on(LAKEFERRY, Mode.WRITER_ONLY, BOTH).rank,
    ]
    assert ranks == [0, 1, 2, 3]
